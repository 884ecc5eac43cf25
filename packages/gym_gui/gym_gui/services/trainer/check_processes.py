"""Asks workers about configs (`--check`): one process per worker, kept for the next config until it has been idle.

An answer that does not come refuses nothing: the run is queued, and its worker tells when it starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Mapping
from typing import Any

from mosaic_wire import env
from mosaic_wire.config_checks import CheckAnswer
from mosaic_wire.paths import Home
from mosaic_wire.worker_spec import WorkerSpec

from gym_gui.services.trainer.describe import environment_without_secrets
from gym_gui.services.trainer.limits import usual_limits

logger = logging.getLogger(__name__)

ANSWER_S = 20.0
"""Below what a client waits for its submission"""
IDLE_S = 300.0
_MAX_LINE_BYTES = 16 << 20


class CheckProcesses:
    """The workers' check processes; for one event loop."""

    def __init__(self, home: Home, *, answer_s: float = ANSWER_S, idle_s: float = IDLE_S) -> None:
        self._home, self._answer_s, self._idle_s = home, answer_s, idle_s
        self._known: dict[str, _CheckProcess] = {}

    async def ask(self, spec: WorkerSpec, config: Mapping[str, Any]) -> CheckAnswer:
        """What the worker finds wrong with its config; nothing when it has no check, or gives no answer."""
        if not spec.checks:
            return CheckAnswer()
        process = self._known.setdefault(spec.name, _CheckProcess(self._home, self._idle_s))
        try:
            async with asyncio.timeout(self._answer_s):
                return await process.ask(spec, json.dumps(config))
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:  # TimeoutError is an OSError
            why = str(error) or f"no answer within {self._answer_s:g} s"
            logger.warning("worker %r could not check a config before it was queued: %s", spec.name, why)
            return CheckAnswer(notes=[f"the worker could not check this run ({why}): a mistake shows when it starts"])

    async def close(self) -> None:
        """End them all."""
        await asyncio.gather(*(process.close() for process in self._known.values()))


class _CheckProcess:
    """One worker's process; a second config waits until the first one is answered."""

    def __init__(self, home: Home, idle_s: float) -> None:
        self._home, self._idle_s = home, idle_s
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._spec: WorkerSpec | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def ask(self, spec: WorkerSpec, line: str) -> CheckAnswer:
        async with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            try:
                answer = await self._answer(spec, line)
            except BaseException:
                self.end()  # whatever it still says would be taken for the answer to the next config
                raise
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self.end)
        if "error" in answer:
            raise ValueError(str(answer["error"])[:500])
        return CheckAnswer.from_json(answer)

    async def _answer(self, spec: WorkerSpec, line: str) -> dict[str, Any]:
        # The catalog makes a new description when the worker was installed anew: then its process is of old.
        is_fresh = self._process is None or self._process.returncode is not None or self._spec is not spec
        process = await self._start(spec) if is_fresh or self._process is None else self._process
        assert process.stdin is not None
        assert process.stdout is not None
        told = b""
        with contextlib.suppress(ConnectionError):
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()
            told = await process.stdout.readline()
        if told.endswith(b"\n"):
            answer: dict[str, Any] = json.loads(told)
            return answer
        self.end()
        if is_fresh:
            raise EOFError("its process ended without an answer")
        return await self._answer(spec, line)  # it had died since the last config

    async def _start(self, spec: WorkerSpec) -> asyncio.subprocess.Process:
        self.end()
        # The home's requirement sets and caches are the run's.
        variables = {**environment_without_secrets(), **spec.env, env.MOSAIC_HOME: str(self._home.root)}
        variables.pop(env.MOSAIC_RUN_DIR, None)
        self._spec, self._process = spec, await asyncio.create_subprocess_exec(
            *spec.argv, "--check", env=variables, cwd="/", stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
            limit=_MAX_LINE_BYTES,
        )  # fmt: skip
        usual_limits(self._process.pid)
        return self._process

    async def close(self) -> None:
        process = self._process
        self.end()
        if process is not None:
            await process.wait()

    def end(self) -> None:
        """End the process with everything it has started."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process = None
