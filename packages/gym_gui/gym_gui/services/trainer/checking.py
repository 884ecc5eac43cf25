"""Nothing known to fail is queued: a config is validated, held against the machine, and checked by its worker.

A short name is accepted where it is clear what it means: `sac` is the one of `sac_continuous_action` and `sac_atari`
that plays the environment, and `ppo` is `ppo_continuous_action` where actions are continuous.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from mosaic_wire.config_checks import CheckAnswer
from mosaic_wire.errors import Problem, SpecError
from mosaic_wire.paths import Home
from mosaic_wire.run_config import TrainRunConfig
from mosaic_wire.secret_refs import is_secret_ref
from mosaic_wire.worker_spec import AlgorithmSpec

from gym_gui.config.settings import Settings
from gym_gui.services.trainer.catalog import WorkerCatalog, ask_workers
from gym_gui.services.trainer.check_processes import CheckProcesses
from gym_gui.services.trainer.errors import InvalidConfig, UnknownWorker
from gym_gui.services.trainer.resources import ResourceLedger, ResourceRequest
from gym_gui.services.trainer.validation.custom_scripts import script_folders, script_problems
from gym_gui.services.trainer.validation.json_document import read_config_text
from gym_gui.services.trainer.validation.scripts import means_a_script
from gym_gui.services.trainer.validation.train_config import identity_of, presentable, validate_train_run_config
from gym_gui.services.trainer.validation.worker_part import CONFIG_KEYS, PATH

_OF_THE_MACHINE = ("memory", "disk")


class ConfigChecks:
    """What has to hold before a run is accepted."""

    def __init__(
        self, home: Home, *, catalog: WorkerCatalog, ledger: ResourceLedger, settings: Settings,
        processes: CheckProcesses,
    ) -> None:  # fmt: skip
        self._home, self._catalog, self._ledger, self._settings = home, catalog, ledger, settings
        self._processes = processes

    async def accept(self, document: Mapping[str, Any] | str) -> tuple[TrainRunConfig, Sequence[str]]:
        """Return the canonical config, with the algorithm that is meant, and notes on its values.

        Raise InvalidConfig with everything that is wrong.
        """
        raw = await asyncio.to_thread(read_config_text, document) if isinstance(document, str) else document
        names = await self._names(raw)
        refusals: list[InvalidConfig] = []
        for index, algorithm in enumerate(names or [None]):
            chosen = raw if algorithm is None else _with_algorithm(raw, algorithm.name)
            try:
                config = await ask_workers(self._validated, chosen)
            except InvalidConfig as refusal:
                if algorithm is None or chosen is raw:
                    raise
                refusals.append(refusal)  # a flag that only another one has
                continue
            problems, answer = await self._examine(config)
            if not problems and not _is_brought_by_another(names[index:], answer.missing_sets):
                return config, answer.notes
            refusals += [InvalidConfig(problems)] if problems else []
            if answer.fits or (answer.fits is None and index == 0 and problems):
                raise refusals[-1]  # another algorithm would not do better
        raise min(refusals, key=lambda refusal: len(refusal.problems))

    async def check(self, config: TrainRunConfig) -> None:
        """The same for a config that was validated already."""
        if problems := (await self._examine(config))[0]:
            raise InvalidConfig(problems)

    async def _names(self, raw: Mapping[str, Any]) -> list[AlgorithmSpec]:
        """The algorithms that a config may mean, its own first; none where validation has to tell."""
        try:
            worker = raw["metadata"]["worker"]
            spec, extras = await self._catalog.find(worker["type"]), worker["config"].get("extras") or {}
            return spec.variants(worker["config"]["algo"]) if spec.checks and not means_a_script(extras) else []
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
        problems = self._ledger.lacking(request)
        spec = await self._catalog.find(worker.type)
        answer = await self._processes.ask(spec, _without_references(worker.config))
        problems += [Problem(_place(each.path), each.message, each.suggestion) for each in answer.problems]
        for run in answer.runs:
            problems += await self._problems_of_run(run, answer.varied)
        return presentable(problems, config.to_json()) if problems else [], answer

    async def _problems_of_run(self, run: Mapping[str, Any], varied: Sequence[str]) -> list[Problem]:
        """What is wrong with a run that a worker would submit, whatever the parameters that vary are."""
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


def _is_brought_by_another(names: Sequence[AlgorithmSpec | None], missing: Sequence[str]) -> bool:
    """Whether a set that is to be installed first belongs to another algorithm of that name (`ppo_atari`)."""
    brought = [bool(each and {*each.requirement_sets} & {*missing}) for each in names]
    return not brought[0] and any(brought) if brought else False


def _with_algorithm(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    worker = raw["metadata"]["worker"]
    if worker["config"]["algo"] == name:
        return raw
    config = {**worker["config"], "algo": name}
    return {**raw, "metadata": {**raw["metadata"], "worker": {**worker, "config": config}}}


def _place(path: str) -> str:
    """Where a worker's problem lies in the run config."""
    if path in _OF_THE_MACHINE:
        return path
    key = path.partition(".")[0]
    return f"{PATH}.{path}" if key in (*CONFIG_KEYS, "extras") else f"{PATH}.extras.algo_params.{path}"


def _without_references(value: Any) -> Any:
    """A continued run's config refers to its secrets: any text stands for them here."""
    if is_secret_ref(value):
        return "secret"
    if isinstance(value, Mapping):
        return {key: _without_references(item) for key, item in value.items()}
    return [_without_references(item) for item in value] if isinstance(value, list | tuple) else value
