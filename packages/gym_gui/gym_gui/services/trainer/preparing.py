"""Before its turn comes: a run may ask that its worker first prepares what it lacks (`extras.install_missing`).

The run waits in INIT meanwhile. The worker's own command does the work (`<worker> --config … --prepare`): it prints
one JSON object a line, `{"phase": …, "message": …}`, and exits 0 when the run can start. The daemon only watches,
tells how far it is, and ends the command when it has to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from gym_gui.services.trainer.worker_logs import tail_text

INSTALL_MISSING = "install_missing"
"""The key of `extras` that asks for it"""

_MAX_LINE_BYTES = 64 * 1024

Report = Callable[[str, str], Awaitable[None]]
"""Told (phase, message) for each line"""


async def prepare(argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, report: Report) -> str:
    """Run the command to its end; return what went wrong, or nothing. Cancelling this ends the command."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stderr:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=dict(env),
                cwd=cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                limit=_MAX_LINE_BYTES,
            )
        except OSError as error:
            return f"{argv[0]!r} could not be started: {error}"
    assert process.stdout is not None
    last_words = ""
    try:
        async for phase, message in _progress(process.stdout):
            last_words = message
            await report(phase, message)
        code = await process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        await process.wait()
        raise
    if code == 0:
        return ""
    return last_words or tail_text(log, lines=5) or f"the command exited with code {code} and said nothing"


async def _progress(stream: asyncio.StreamReader) -> AsyncIterator[tuple[str, str]]:
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError as error:
            await stream.readexactly(error.consumed)  # not a progress line
            continue
        with contextlib.suppress(ValueError):
            document = json.loads(line)
            if isinstance(document, dict) and isinstance(message := document.get("message"), str) and message:
                yield str(document.get("phase") or ""), message[:500]
