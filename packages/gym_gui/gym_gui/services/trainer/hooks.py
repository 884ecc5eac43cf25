"""Hooks of the operator that run when a run ends: a command, a webhook, or both.

Both run as processes with a deadline, so that a slow server or name service blocks no thread of the daemon.
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
_MAX_CONCURRENT = 8
_ERROR_CHARACTERS = 300
_POST = """
import base64, http.client, json, signal, sys, urllib.parse, urllib.request
request = json.load(sys.stdin)
signal.alarm(request["timeout_s"])  # also ends it when the daemon has died
address = urllib.parse.urlsplit(request["url"])
login, _, host = address.netloc.rpartition("@")
url = address._replace(netloc=host).geturl()
post = urllib.request.Request(url, request["message"].encode(), {"Content-Type": "application/json"})
if login:
    basic = base64.b64encode(urllib.parse.unquote_to_bytes(login)).decode()
    post.add_unredirected_header("Authorization", "Basic " + basic)
class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *moved):
        return None  # it would arrive as a GET without the message: fail instead
try:
    urllib.request.build_opener(NoRedirect).open(post).close()
except (OSError, ValueError, http.client.HTTPException) as error:
    sys.exit(print(error) or 1)
"""
"""The address is read from standard input: it may hold a secret, and other users see arguments"""


class EndHooks:
    """Runs the operator's hooks for each ended run, a few at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def run(self, record: RunRecord, event: str = "ended") -> str:
        """Run the hooks of the settings; return what went wrong with them, or nothing.

        `event`: "ended", or how its engine interrupted a run that is queued again ("preempted", "node_lost").
        """
        command, url = tuple(self._settings.on_end_command), self._settings.on_end_webhook
        if not (command or url):
            return ""
        names = ("run_id", "name", "outcome", "reason", "algo", "env_id", "seed", "step", "result")
        details = {name: getattr(record, name) for name in names}
        message = json.dumps(
            {"event": event, **details, "worker": record.worker_type, "return": record.episodic_return}
        )
        problems: list[str] = []
        async with self._slots:
            if command:  # the details are JSON on stdin; three environment variables serve one-liners
                variables = {
                    "MOSAIC_RUN_ID": record.run_id,
                    "MOSAIC_OUTCOME": str(record.outcome or ""),
                    "MOSAIC_EVENT": event,
                }
                problems.append(await _run(f"on_end_command {command[0]!r}", command, message, variables))
            if url:
                request = json.dumps({"url": url, "message": message, "timeout_s": math.ceil(_TIMEOUT_S)})
                problems.append(await _run("on_end_webhook", (sys.executable, "-I", "-S", "-c", _POST), request, {}))
        return "; ".join(problem for problem in problems if problem)


async def _run(name: str, argv: Sequence[str], message: str, variables: Mapping[str, str]) -> str:
    """Run a process and end it after the deadline; return what went wrong, or nothing."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            env={**os.environ, **variables},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if argv[-1] is _POST else asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return f"{name} could not be started: {error}"
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            output, _ = await process.communicate(message.encode())
    except TimeoutError:
        # Kill the whole session: a child would keep the pipe open.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        return f"{name} took longer than {_TIMEOUT_S:g} s and was ended"
    if output:
        return f"{name} failed: {output.decode(errors='replace')[:_ERROR_CHARACTERS].strip()}"
    return "" if process.returncode == 0 else f"{name} exited with code {process.returncode}"
