"""Describe a worker or a script by running the worker in its own process, bounded in time and output."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import SpecError
from mosaic_wire.redaction import is_secret_key, redact_text
from mosaic_wire.worker_spec import ScriptSpec, WorkerSpec

from gym_gui.services.trainer.limits import restore_limits, shortage

MAX_OUTPUT_BYTES = 16 << 20
_ERROR_BYTES = 2000
_MAX_SPEC_ITEMS = 20_000
_BAD_INPUT = 2
"""Exit code of a worker that refuses its input with a message for the user"""


def describe(argv: Sequence[str], *, timeout_s: float) -> WorkerSpec:
    """Run the worker's `--describe` and return its answer; raise SpecError with the problem and a remedy."""
    command = [*argv, "--describe"]
    try_it = f"try it by hand: {' '.join(command)}"
    try:
        return checked_spec(_answer(command, "--describe", timeout_s, try_it))
    except _Unusable as error:
        raise SpecError(f"--describe gave no usable description: {error}; {try_it}") from None


def describe_script(argv: Sequence[str], script: str, *, source: str = "", timeout_s: float = 30.0) -> ScriptSpec:
    """Return a worker's description of a script (a path, or an algorithm's name if `source` is given)."""
    command = [*argv, "--describe-script", script, *(["--source", source] if source else [])]
    try_it = f"try it by hand: {' '.join(command)}"
    document = _answer(command, "--describe-script", timeout_s, try_it)
    if not isinstance(document, dict):
        raise SpecError(f"--describe-script gave no usable description; {try_it}")
    return ScriptSpec.from_json(document)


class _Unusable(SpecError):
    """The answer itself is invalid."""


def _answer(command: Sequence[str], flag: str, timeout_s: float, try_it: str) -> Any:
    code, output, errors, limit = _run(command, flag, timeout_s)
    if limit:
        raise SpecError(f"{limit}; {try_it}")
    reported = redact_text(errors.decode("utf-8", "replace").strip())[-_ERROR_BYTES:]
    if code == _BAD_INPUT and flag == "--describe-script" and reported:
        raise SpecError(reported.splitlines()[-1][:600])
    if code != 0:
        last = reported.splitlines()[-1] if reported else "it printed nothing"
        raise SpecError(f"{flag} ended with exit code {code}: {last[:300]}; {try_it}")
    return _last_object(output)


def checked_spec(document: Any) -> WorkerSpec:
    """Return the spec in a worker's answer; raise SpecError for anything invalid in it."""
    if not isinstance(document, dict):
        raise _Unusable("it is not a JSON object")
    try:
        spec = WorkerSpec.from_json(document)
    except SpecError as error:
        raise _Unusable(str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _Unusable(f"it is malformed: {error!r}"[:300]) from None
    if len(spec.algorithms) > _MAX_SPEC_ITEMS or len(spec.environments or ()) > _MAX_SPEC_ITEMS:
        raise _Unusable(f"it lists more than {_MAX_SPEC_ITEMS} algorithms or environments")
    return spec


def _last_object(output: bytes) -> Any:
    """Return the answer: all of the output, or its last line when a library chattered before it."""
    lines = output.strip().splitlines()
    for text in (output, lines[-1] if lines else b""):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    raise _Unusable("it is not JSON")


def environment_without_secrets() -> dict[str, str]:
    """Return the environment for a worker that is only asked: it gets no secrets, and must not wake up a GPU."""
    return {name: value for name, value in os.environ.items() if not is_secret_key(name)} | {
        env.CUDA_VISIBLE_DEVICES: ""
    }


def _run(command: Sequence[str], flag: str, timeout_s: float) -> tuple[int, bytes, bytes, str]:
    """Run a command; return its exit code, stdout, the end of stderr and the limit it exceeded, if any."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment_without_secrets(),
            cwd="/",  # `-m` imports from the current folder first, so use one that users cannot write
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        if shortage(error):
            raise  # not a problem of the worker
        return 0, b"", b"", f"it cannot be started: {getattr(error, 'strerror', None) or error}"
    restore_limits(process.pid)
    with process:
        try:
            output, errors, limit = _read_both(process, flag, time.monotonic() + timeout_s)
            if not limit:
                try:
                    process.wait(timeout=max(1.0, timeout_s / 4))
                except subprocess.TimeoutExpired:
                    limit = f"{flag} closed its output and did not end"
            if limit.startswith("no answer"):
                limit = f"{flag} gave no answer within {timeout_s:g} s"
        finally:
            # Kill the whole session: children may hold the pipes open.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, output, errors, limit


def _read_both(process: subprocess.Popen[bytes], flag: str, deadline: float) -> tuple[bytes, bytes, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(process.stderr, selectors.EVENT_READ, errors)
        while selector.get_map():
            left = deadline - time.monotonic()
            ready = selector.select(timeout=max(left, 0))
            if left <= 0:
                return bytes(output), bytes(errors), "no answer"
            for key, _ in ready:
                data = os.read(key.fd, 64 * 1024)
                if not data:
                    selector.unregister(key.fileobj)
                key.data.extend(data)
            if len(output) > MAX_OUTPUT_BYTES:
                return bytes(output), bytes(errors), f"{flag} printed more than {MAX_OUTPUT_BYTES >> 20} MiB"
            del errors[:-_ERROR_BYTES]
    return bytes(output), bytes(errors), ""
