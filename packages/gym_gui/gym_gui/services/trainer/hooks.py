"""What an operator wants to happen when a run ends: a command, a webhook, or both.

Both are processes with a deadline: whatever a server or a name service does, no thread of the daemon waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from gym_gui.config.settings import Settings
from gym_gui.services.trainer.records import RunRecord

_TIMEOUT_S = 30.0
_AT_ONCE = 8
_TOLD_CHARACTERS = 300
_POST = """
import http.client, json, signal, sys, urllib.request
order = json.load(sys.stdin)
signal.alarm(order["timeout_s"])  # also when the daemon that waits for it is gone
request = urllib.request.Request(order["url"], order["message"].encode(), {"Content-Type": "application/json"})
try:
    urllib.request.urlopen(request).close()
except (OSError, ValueError, http.client.HTTPException) as error:
    sys.exit(print(error) or 1)
"""
"""The address is read from standard input: it may hold a secret, and other users see arguments"""


class EndHooks:
    """Tells the operator's hooks of each end, a few at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def tell(self, record: RunRecord) -> str:
        """Run the hooks of the settings; return what went wrong with them, or nothing."""
        command, url = tuple(self._settings.on_end_command), self._settings.on_end_webhook
        if not (command or url):
            return ""
        message = json.dumps(
            {
                "run_id": record.run_id, "name": record.name, "outcome": record.outcome, "reason": record.reason,
                "worker": record.worker_type, "algo": record.algo, "env_id": record.env_id, "seed": record.seed,
                "step": record.step, "return": record.episodic_return, "result": record.result,
            }
        )  # fmt: skip
        problems: list[str] = []
        async with self._turn:
            if command:  # the facts arrive as JSON on stdin and, for one-liners, in two variables
                own = {"MOSAIC_RUN_ID": record.run_id, "MOSAIC_OUTCOME": str(record.outcome or "")}
                problems.append(await _run(f"on_end_command {command[0]!r}", command, message, own))
            if url:
                order = json.dumps({"url": url, "message": message, "timeout_s": math.ceil(_TIMEOUT_S)})
                problems.append(await _run("on_end_webhook", (sys.executable, "-I", "-S", "-c", _POST), order, {}))
        return "; ".join(problem for problem in problems if problem)


async def _run(name: str, argv: Sequence[str], message: str, own: Mapping[str, str]) -> str:
    """Run a process and end it after the deadline; return what went wrong, or nothing."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={**os.environ, **own},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if argv[-1] is _POST else asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return f"{name} could not be started: {error}"
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            told, _ = await process.communicate(message.encode())
    except TimeoutError:
        # Its session, not only itself: what it has started would stay behind, holding its end of the pipe.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        return f"{name} took longer than {_TIMEOUT_S:g} s and was ended"
    if told:
        return f"{name} failed: {told.decode(errors='replace')[:_TOLD_CHARACTERS].strip()}"
    return "" if process.returncode == 0 else f"{name} exited with code {process.returncode}"
