"""What an operator wants to happen when a run ends: a command, a webhook, or both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import urllib.error
import urllib.request

from gym_gui.config.settings import Settings
from gym_gui.services.trainer.records import RunRecord

_TIMEOUT_S = 30.0


async def tell_the_end(record: RunRecord, settings: Settings) -> str:
    """Run the hooks of the settings; return what went wrong with them, or nothing."""
    message = json.dumps(
        {
            "run_id": record.run_id, "name": record.name, "outcome": record.outcome, "reason": record.reason,
            "worker": record.worker_type, "algo": record.algo, "env_id": record.env_id, "seed": record.seed,
            "step": record.step, "return": record.episodic_return, "result": record.result,
        }
    ).encode()  # fmt: skip
    problems = []
    if settings.on_end_command:
        problems.append(await _run_command(record, tuple(settings.on_end_command), message))
    if settings.on_end_webhook:
        problems.append(await asyncio.to_thread(_post, settings.on_end_webhook, message))
    return "; ".join(problem for problem in problems if problem)


async def _run_command(record: RunRecord, argv: tuple[str, ...], message: bytes) -> str:
    """The facts arrive as JSON on stdin and, for one-liners, in two variables."""
    env = {**os.environ, "MOSAIC_RUN_ID": record.run_id, "MOSAIC_OUTCOME": str(record.outcome or "")}
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return f"on_end_command {argv[0]!r} could not be started: {error}"
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await process.communicate(message)
    except TimeoutError:
        # Its session, not only itself: what it has started would stay behind, holding its end of the pipe.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        return f"on_end_command {argv[0]!r} took longer than {_TIMEOUT_S:g} s and was ended"
    return "" if process.returncode == 0 else f"on_end_command {argv[0]!r} exited with code {process.returncode}"


def _post(url: str, message: bytes) -> str:
    request = urllib.request.Request(url, message, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            return ""
    except (OSError, urllib.error.URLError, ValueError) as error:
        return f"on_end_webhook failed: {error}"
