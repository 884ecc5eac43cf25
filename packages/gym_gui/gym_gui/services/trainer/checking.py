"""Check a config before it is queued: validate it, compare it with the machine, and let its worker check it.

An unambiguous short name is accepted: `sac` is the one of `sac_continuous_action` and `sac_atari` that supports the
environment, and `ppo` is `ppo_continuous_action` where actions are continuous.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from mosaic_wire import env
from mosaic_wire.config_checks import CheckAnswer
from mosaic_wire.errors import Problem, SpecError
from mosaic_wire.paths import Home
from mosaic_wire.redaction import is_secret_ref
from mosaic_wire.run_config import TrainRunConfig
from mosaic_wire.run_request import PART_KEYS, runs_script, with_worker_part, worker_part
from mosaic_wire.run_request import PART_PATH as PATH
from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec, nearest

from gym_gui.config.settings import Settings
from gym_gui.services.trainer.catalog import WorkerCatalog, run_in_catalog
from gym_gui.services.trainer.describe import environment_without_secrets
from gym_gui.services.trainer.errors import InvalidConfig, UnknownWorker
from gym_gui.services.trainer.limits import restore_limits
from gym_gui.services.trainer.records import LOCAL
from gym_gui.services.trainer.resources import ResourceLedger, ResourceRequest
from gym_gui.services.trainer.validation.json_document import read_config_text
from gym_gui.services.trainer.validation.train_config import identity_of, presentable, validate_train_run_config
from gym_gui.services.trainer.validation.worker_part import script_folders, script_problems

_OF_THE_MACHINE = ("memory", "disk")


class ConfigChecks:
    """Checks configs before their runs are accepted."""

    def __init__(
        self,
        home: Home,
        *,
        catalog: WorkerCatalog,
        ledger: ResourceLedger,
        settings: Settings,
        processes: CheckProcesses,
    ) -> None:
        self._home, self._catalog, self._ledger, self._settings = home, catalog, ledger, settings
        self._processes = processes

    async def accept(self, document: Mapping[str, Any] | str) -> tuple[TrainRunConfig, Sequence[str]]:
        """Return the canonical config, with the resolved algorithm, and notes on its values.

        Raise InvalidConfig with every problem.
        """
        raw = await asyncio.to_thread(read_config_text, document) if isinstance(document, str) else document
        names = await self._names(raw)
        refusals: list[InvalidConfig] = []
        for index, algorithm in enumerate(names or [None]):
            chosen = raw if algorithm is None else _with_algorithm(raw, algorithm.name)
            try:
                config = await run_in_catalog(self._validated, chosen)
            except InvalidConfig as refusal:
                if algorithm is None or chosen is raw:
                    raise
                refusals.append(refusal)  # it may use a flag that only another variant has
                continue
            problems, answer = await self._examine(config)
            if not problems and not _is_for_another_variant(names[index:], answer.missing_sets):
                return config, answer.notes
            refusals += [InvalidConfig(problems)] if problems else []
            if answer.fits or (answer.fits is None and index == 0 and problems):
                raise refusals[-1]  # another algorithm would not do better
        raise min(refusals, key=lambda refusal: len(refusal.problems))

    async def check(self, config: TrainRunConfig) -> None:
        """Check a config that is already validated; raise InvalidConfig."""
        if problems := (await self._examine(config))[0]:
            raise InvalidConfig(problems)

    async def _names(self, raw: Mapping[str, Any]) -> list[AlgorithmSpec]:
        """Return the algorithms that a config's name may mean, best first; none if validation has to fail."""
        try:
            worker = raw["metadata"]["worker"]
            spec, extras = await self._catalog.find(worker["type"]), worker["config"].get("extras") or {}
            return spec.variants(worker["config"]["algo"]) if spec.checks and not runs_script(extras) else []
        except (KeyError, TypeError, AttributeError, SpecError, UnknownWorker):
            return []

    def _validated(self, document: Mapping[str, Any]) -> TrainRunConfig:
        config = validate_train_run_config(
            document, workers=self._catalog.get, worker_names=self._catalog.names(), scripts=self._catalog.script
        )
        folders = script_folders(self._home, self._settings.custom_scripts)
        if problems := script_problems(identity_of(config).extras, folders):
            raise InvalidConfig(problems)
        return config

    async def _examine(self, config: TrainRunConfig) -> tuple[list[Problem], CheckAnswer]:
        resources, worker = config.resources, config.metadata.worker
        request = ResourceRequest(
            resources.cpus.requested, resources.gpus.requested, resources.gpus.mandatory, resources.memory_mb
        )
        name = config.scheduling.executor
        if name in (None, LOCAL):
            problems = self._ledger.lacking(request)
        elif name in self._settings.executors:
            problems = []  # its engine knows what it has
        else:
            known = ", ".join((LOCAL, *self._settings.executors))
            text = f"there is no executor {name!r}; known are {known} ([executors.{name}] in the settings adds it)"
            problems = [Problem("scheduling.executor", text, nearest(name, (LOCAL, *self._settings.executors)))]
        spec = await self._catalog.find(worker.type)
        answer = await self._processes.ask(spec, _without_references(worker.config))
        problems += [Problem(_place(each.path), each.message, each.suggestion) for each in answer.problems]
        for run in answer.runs:
            problems += await self._problems_of_run(run, answer.varied)
        return presentable(problems, config.to_json()) if problems else [], answer

    async def _problems_of_run(self, run: Mapping[str, Any], varied: Sequence[str]) -> list[Problem]:
        """Return the problems of a run that a worker would submit, except those of varied parameters."""
        try:
            await self.accept(run)
        except InvalidConfig as error:
            flags = [f"--{name.replace('_', '-')}" for name in varied]
            return [
                Problem(f"{PATH}.extras.algo_params.trial.{each.path}", each.message, each.suggestion)
                for each in error.problems
                if each.path.rpartition(".")[2] not in (*varied, *_OF_THE_MACHINE)
                and not any(flag in each.message for flag in flags)
            ]
        return []


def _is_for_another_variant(names: Sequence[AlgorithmSpec | None], missing: Sequence[str]) -> bool:
    """Return whether a missing requirement set belongs to another variant of the algorithm (`ppo_atari`)."""
    requires = [bool(each and {*each.requirement_sets} & {*missing}) for each in names]
    return bool(requires) and not requires[0] and any(requires)


def _with_algorithm(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = worker_part(raw)
    return raw if part["algo"] == name else with_worker_part(raw, {**part, "algo": name})


def _place(path: str) -> str:
    """Return the path in the run config of a problem that a worker reported."""
    if path in _OF_THE_MACHINE:
        return path
    key = path.partition(".")[0]
    return f"{PATH}.{path}" if key in PART_KEYS else f"{PATH}.extras.algo_params.{path}"


def _without_references(value: Any) -> Any:
    """Return the config with secret references replaced by a placeholder text."""
    if is_secret_ref(value):
        return "secret"
    if isinstance(value, Mapping):
        return {key: _without_references(item) for key, item in value.items()}
    return [_without_references(item) for item in value] if isinstance(value, list | tuple) else value


# ---------------------------------------------------------------- check processes


logger = logging.getLogger(__name__)

ANSWER_S = 20.0
"""Shorter than a client waits for its submission"""
IDLE_S = 300.0
_MAX_LINE_BYTES = 16 << 20


class CheckProcesses:
    """The check processes of workers, for one event loop."""

    def __init__(self, home: Home, *, answer_s: float = ANSWER_S, idle_s: float = IDLE_S) -> None:
        self._home, self._answer_s, self._idle_s = home, answer_s, idle_s
        self._known: dict[str, _CheckProcess] = {}

    async def ask(self, spec: WorkerSpec, config: Mapping[str, Any]) -> CheckAnswer:
        """Return the problems a worker finds in its config; none when it has no check or does not answer."""
        if not spec.checks:
            return CheckAnswer()
        process = self._known.setdefault(spec.name, _CheckProcess(self._home, self._idle_s))
        try:
            async with asyncio.timeout(self._answer_s):
                return await process.ask(spec, json.dumps(config))
        except (OSError, ValueError, KeyError, TypeError, EOFError) as error:  # TimeoutError is an OSError
            why = str(error) or f"no answer within {self._answer_s:g} s"
            logger.warning("worker %r could not check a config before it was queued: %s", spec.name, why)
            return CheckAnswer(
                notes=[f"the worker could not check this run ({why}): mistakes will show when it starts"]
            )

    async def close(self) -> None:
        """End all check processes."""
        await asyncio.gather(*(process.close() for process in self._known.values()))


class _CheckProcess:
    """The check process of one worker, which checks one config at a time."""

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
                self.end()  # a late answer would be taken for the next config's
                raise
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self.end)
        if "error" in answer:
            raise ValueError(str(answer["error"])[:500])
        return CheckAnswer.from_json(answer)

    async def _answer(self, spec: WorkerSpec, line: str) -> dict[str, Any]:
        # A new description means that the worker was reinstalled, so its process is outdated.
        is_fresh = self._process is None or self._process.returncode is not None or self._spec is not spec
        process = await self._start(spec) if is_fresh or self._process is None else self._process
        assert process.stdin is not None
        assert process.stdout is not None
        reply = b""
        with contextlib.suppress(ConnectionError):
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()
            reply = await process.stdout.readline()
        if reply.endswith(b"\n"):
            answer: dict[str, Any] = json.loads(reply)
            return answer
        self.end()
        if is_fresh:
            raise EOFError("its process ended without an answer")
        return await self._answer(spec, line)  # it had died since the last config

    async def _start(self, spec: WorkerSpec) -> asyncio.subprocess.Process:
        self.end()
        # Use the requirement sets and caches of the home, as the run will.
        variables = {**environment_without_secrets(), **spec.env, env.MOSAIC_HOME: str(self._home.root)}
        variables.pop(env.MOSAIC_RUN_DIR, None)
        self._process = await asyncio.create_subprocess_exec(
            *(*spec.argv, "--check"),
            env=variables,
            cwd="/",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            limit=_MAX_LINE_BYTES,
        )
        self._spec = spec
        restore_limits(self._process.pid)
        return self._process

    async def close(self) -> None:
        process = self._process
        self.end()
        if process is not None:
            await process.wait()

    def end(self) -> None:
        """Kill the process and everything it started."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process = None
