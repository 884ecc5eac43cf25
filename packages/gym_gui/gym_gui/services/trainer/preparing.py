"""Before its turn comes: a run may ask that its worker first prepares what it lacks (`extras.install_missing`).

The run waits in INIT meanwhile. The worker's own command does the work (`<worker> --config … --prepare`): it prints
one JSON object a line, `{"phase": …, "message": …}`, and exits 0 when the run can start. The daemon only watches,
tells how far it is, and ends the command when it has to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from mosaic_wire import env as variables
from mosaic_wire.files import open_plain
from mosaic_wire.paths import Home

from gym_gui.services.trainer import process_tree
from gym_gui.services.trainer.process_tree import ProcessIdentity, read_home, read_mark
from gym_gui.services.trainer.worker_logs import tail_text

INSTALL_MISSING = "install_missing"
"""The key of `extras` that asks for it"""

_MAX_LINE_BYTES = 64 * 1024
_GRACE_S = 3.0
"""How long an installer has after SIGTERM; `mosaic daemon stop` waits for it"""
_KILL_S = 5.0
_MARK_END = ".prepare"

Report = Callable[[str, str], Awaitable[None]]
"""Told (phase, message) for each line"""


async def prepare(argv: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, report: Report) -> str:
    """Run the command to its end; return what went wrong, or nothing. Cancelling this ends the command."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open_plain(log, "ab") as stderr:
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
        await _end_tree(ProcessIdentity.of(process.pid), env[variables.MOSAIC_RUN_MARK])
        raise
    if code == 0:
        return ""
    return last_words or tail_text(log, lines=5) or f"the command exited with code {code} and said nothing"


def mark_of(run_id: str, attempt: int) -> str:
    """The mark of a run's installer and of all that it starts."""
    return f"{run_id}.{attempt}{_MARK_END}"


async def end_leftovers(home: Home) -> None:
    """End the installers that a killed daemon of this home left behind."""
    marks = await asyncio.to_thread(_leftover_marks, home)
    await asyncio.gather(*(_end_tree(None, mark) for mark in marks))


def _leftover_marks(home: Home) -> set[str]:
    marked = {
        pid: mark for pid in process_tree.read_process_table() if (mark := read_mark(pid) or "").endswith(_MARK_END)
    }
    theirs = {pid: read_home(pid) for pid in marked}
    return {mark for pid, mark in marked.items() if (root := theirs[pid]) and Home(root).identity == home.identity}


async def _end_tree(identity: ProcessIdentity | None, mark: str) -> None:
    """Ask every process of an installer to end, and kill what is left after the grace time."""
    look = partial(process_tree.tree_of, identity, mark)
    for number, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _KILL_S)):
        deadline = time.monotonic() + patience_s
        await asyncio.to_thread(process_tree.signal_everyone, look, number)
        while await asyncio.to_thread(look):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)


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
