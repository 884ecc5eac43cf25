"""Translate a gRPC error into the `TrainerError` that the daemon raised, or into `DaemonUnreachable`."""

from __future__ import annotations

import json
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
