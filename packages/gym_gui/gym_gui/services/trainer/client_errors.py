"""Translate a gRPC error into the `TrainerError` that the daemon raised, or into `DaemonUnreachable`."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path
from typing import Any

import grpc
from mosaic_wire.errors import Problem

from gym_gui.services.trainer import errors
from gym_gui.services.trainer.errors import DaemonUnreachable, InvalidConfig, NotAllowed, RunNotFound, TrainerError

ERROR_KEY = "mosaic-error"
"""Trailing metadata: the name of the error class"""
PROBLEMS_KEY = "mosaic-problems-bin"
"""Trailing metadata of InvalidConfig: a JSON list of [path, message, suggestion]"""

_CLASSES: dict[str, type[TrainerError]] = {
    name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, TrainerError)
}
_FIELDS: dict[str, dict[str, Any]] = {
    # Fields the constructors would have set; the daemon sends only the message.
    "InvalidTransition": {"run_id": "", "status": "", "event": ""},
    "StaleRun": {"run_id": "", "expected": "", "found": ""},
    "RunNotFound": {"run_id": ""},
    "AmbiguousRunId": {"prefix": "", "matches": ()},
    "InvalidConfig": {"problems": ()},
}
_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


def translate(
    error: grpc.RpcError, *, run_id: str = "", unreachable: str = "no trainer daemon answers"
) -> TrainerError:
    """Return the exception to raise instead; `unreachable` is the message when the daemon does not answer."""
    code: grpc.StatusCode = error.code()
    details: str = error.details() or code.name
    trailing: dict[str, str | bytes] = {entry.key: entry.value for entry in error.trailing_metadata() or ()}
    name = str(trailing.get(ERROR_KEY, ""))
    if name in _CLASSES:
        return _rebuild(name, details, trailing.get(PROBLEMS_KEY), run_id)
    if code in _UNREACHABLE:
        return DaemonUnreachable(unreachable)
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return NotAllowed(details)
    if code is grpc.StatusCode.NOT_FOUND and run_id:
        return RunNotFound(run_id)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return TrainerError(
            "the running daemon does not know this request; it is of another version: "
            "`mosaic daemon stop`, then `mosaic daemon start` (runs continue meanwhile)"
        )
    if code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL):
        return TrainerError(f"the daemon failed on this request ({details}); see its log: `mosaic daemon status`")
    return TrainerError(details)


_PROBE_S = 3.0
_EXPIRED, _NOT_YET_VALID, _OTHER_NAMES = 10, 9, (62, 64)
"""Verification errors of OpenSSL"""


def connection_problem(target: str, tls_ca: Path | None, details: str) -> str:
    """Return why no daemon answers at an address, found by connecting once more; `details` is gRPC's own reason."""
    where = f"no trainer daemon answers at {target}"
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    if target.startswith("unix") or not port.isdigit():
        return f"{where}: {details}"
    try:
        with socket.create_connection((host, int(port)), timeout=_PROBE_S) as connection:
            reason = _tls_problem(connection, host, tls_ca)
    except socket.gaierror as error:
        reason = f"the name {host!r} is not known here ({error.strerror})"
    except ConnectionRefusedError:
        reason = "nothing listens at this port; `mosaic daemon status` there shows the address, `--listen` opens one"
    except TimeoutError:
        reason = "the machine does not answer; a firewall, or the wrong address"
    except OSError as error:
        reason = f"{error.strerror or error}"
    return f"{where}: {reason or details}"


def _tls_problem(connection: socket.socket, host: str, tls_ca: Path | None) -> str:
    """Return what is wrong between the certificate there and the one given here; empty when they fit."""
    context = ssl.create_default_context(cafile=tls_ca)
    context.set_alpn_protocols(["h2"])
    if tls_ca is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with context.wrap_socket(connection, server_hostname=host):
            return "" if tls_ca else "it speaks TLS; give its certificate with --tls-ca FILE"
    except ssl.SSLCertVerificationError as error:
        reasons = {
            _EXPIRED: "its certificate has expired; create a new one there and copy it here",
            _NOT_YET_VALID: "its certificate is not valid yet; is a clock wrong?",
            **dict.fromkeys(_OTHER_NAMES, f"its certificate is not for {host!r}: that must be in its subjectAltName"),
        }
        unknown = f"its certificate is not vouched for by {tls_ca} ({error.verify_message}); copy the server's anew"
        return reasons.get(error.verify_code, unknown)
    except (OSError, ValueError) as error:  # it closed the connection, or answered something else
        plain = "it does not speak TLS: leave out --tls-ca, or give that daemon a certificate"
        return plain if tls_ca else "something else than a trainer daemon may listen there" if not str(error) else ""


def _rebuild(name: str, details: str, problems: str | bytes | None, run_id: str) -> TrainerError:
    if name == "InvalidConfig" and problems is not None:
        try:
            return InvalidConfig([Problem(*entry) for entry in json.loads(problems)])
        except (ValueError, TypeError):
            pass  # a newer daemon may send more fields per problem; its message is still right
    # Bypass the constructors, which would build the message from parts that were not sent.
    error = _CLASSES[name].__new__(_CLASSES[name], details)
    error.__dict__.update(_FIELDS.get(name, {}))
    if "run_id" in error.__dict__:
        error.__dict__["run_id"] = run_id
    return error
