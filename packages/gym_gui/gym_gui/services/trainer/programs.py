"""Programs that a client elsewhere cannot start: a worker's own questions, its requirement sets, `mosaic doctor`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

from mosaic_wire import env
from mosaic_wire.paths import Home
from mosaic_wire.worker_spec import EXTRAS, WORKER, WorkerSpec

from gym_gui.services.trainer.describe import environment_without_secrets
from gym_gui.services.trainer.errors import NotPossibleNow
from gym_gui.services.trainer.limits import restore_limits

DOCTOR = "doctor"
_NO_QUESTIONS = ("--config", "--run-id", "--prepare", "--interactive")
"""Arguments of a worker that trains or installs; training goes through SubmitRun"""
_CHUNK_BYTES = 64 * 1024
_GRACE_S = 10.0


def argv_of(spec: WorkerSpec | None, program: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line of a program; raise NotPossibleNow for one that clients may not start."""
    if spec is None and program == DOCTOR:
        return [sys.executable, "-m", "gym_gui", "doctor", *arguments]
    if spec is not None and program == EXTRAS and spec.extras_program:
        return [*spec.extras_program, *arguments]
    if spec is not None and program == WORKER and arguments and not {*arguments} & {*_NO_QUESTIONS}:
        return [*spec.argv, *arguments]
    raise NotPossibleNow(f"clients cannot start {' '.join([program, *arguments[:1]])!r} on the daemon's machine")


async def run_program(
    argv: Sequence[str], home: Home, spec: WorkerSpec | None, config_json: str
) -> AsyncIterator[tuple[str, bytes] | int]:
    """Yield ("stdout" or "stderr", data) as it is written, then the exit code; leaving the loop ends the program."""
    variables = {**environment_without_secrets(), **(spec.env if spec else {}), env.MOSAIC_HOME: str(home.root)}
    variables.pop(env.MOSAIC_RUN_DIR, None)
    with tempfile.TemporaryDirectory(prefix="mosaic-program-") as folder:
        if config_json:
            file = Path(folder) / "config.json"
            file.touch(mode=0o600)
            file.write_text(config_json, encoding="utf-8")
            argv = [*argv, "--config", str(file)]
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=variables,
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise NotPossibleNow(f"{argv[0]} cannot be started: {error.strerror or error}") from error
        restore_limits(process.pid)
        try:
            async for piece in _outputs(process):
                yield piece
            yield await process.wait()
        finally:
            await _end(process)


async def _outputs(process: asyncio.subprocess.Process) -> AsyncIterator[tuple[str, bytes]]:
    assert process.stdout is not None
    assert process.stderr is not None
    streams = {"stdout": process.stdout, "stderr": process.stderr}
    reads = {asyncio.create_task(stream.read(_CHUNK_BYTES)): name for name, stream in streams.items()}
    try:
        while reads:
            done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
            for read in done:
                name = reads.pop(read)
                if data := read.result():
                    yield name, data
                    reads[asyncio.create_task(streams[name].read(_CHUNK_BYTES))] = name
    finally:
        for read in reads:
            read.cancel()


async def _end(process: asyncio.subprocess.Process) -> None:
    """End what is left of the program's session."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
