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
        async with self._turn:
            problems = [await _run_command(record, command, message)] if command else []
            problems += [await _post(url, message)] if url else []
        return "; ".join(problem for problem in problems if problem)


async def _run_command(record: RunRecord, argv: Sequence[str], message: str) -> str:
    """The facts arrive as JSON on stdin and, for one-liners, in two variables."""
    own = {"MOSAIC_RUN_ID": record.run_id, "MOSAIC_OUTCOME": str(record.outcome or "")}
    name = f"on_end_command {argv[0]!r}"
    try:
        code, _ = await _run(argv, message, own)
    except TimeoutError:
        return f"{name} took longer than {_TIMEOUT_S:g} s and was ended"
    except OSError as error:
        return f"{name} could not be started: {error}"
    return "" if code == 0 else f"{name} exited with code {code}"


async def _post(url: str, message: str) -> str:
    order = {"url": url, "message": message, "timeout_s": math.ceil(_TIMEOUT_S)}
    try:
        code, told = await _run((sys.executable, "-I", "-S", "-c", _POST), json.dumps(order), {})
    except TimeoutError:
        return f"on_end_webhook took longer than {_TIMEOUT_S:g} s and was ended"
    except OSError as error:
        return f"on_end_webhook could not be called: {error}"
    return "" if code == 0 else f"on_end_webhook failed: {told[:_TOLD_CHARACTERS].strip() or f'exit code {code}'}"


async def _run(argv: Sequence[str], message: str, own: Mapping[str, str]) -> tuple[int | None, str]:
    """Exit code and output of a process that is ended after the deadline (TimeoutError)."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        env={**os.environ, **own},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE if not own else asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            output, _ = await process.communicate(message.encode())
    except TimeoutError:
        # Its session, not only itself: what it has started would stay behind, holding its end of the pipe.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    return process.returncode, (output or b"").decode(errors="replace")
