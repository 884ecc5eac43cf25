"""Sweeps: what the sweep form asks for, as a run config of the sweep worker and back, and as `mosaic sweep …`.

A sweep order is a training order (what every trial has) with ranges to search and how to search them. The runs of the
sweep worker have a presenter, too: their tabs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mosaic_wire.capabilities import Lane
from mosaic_wire.errors import Problem
from mosaic_wire.paths import Home
from mosaic_wire.sweep_ranges import check_ranges, read_ranges
from mosaic_wire.sweep_settings import ALGORITHM, WORKER_TYPE, SweepSettings, read_settings, with_parameters
from mosaic_wire.worker_config import RUN_ID_PLACEHOLDER
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec

from gym_gui.ui.presenters.workers.base import WorkerPresenter, shape_problems
from gym_gui.ui.presenters.workers.command_line import PREFERRED_WORKER, CommandLine, command_of, seeds_text
from gym_gui.ui.presenters.workers.order import NotAConfig, TrainOrder, configs_of, order_of

RETRIES = 20
"""A sweep that was killed goes on by itself: its study says what was done"""
_USUAL = {each.name: each.default for each in fields(SweepSettings)}
_PREFIX = "metadata.worker.config.extras.algo_params"


@dataclass(frozen=True)
class SweepOrder(TrainOrder):
    """What every trial has, and what differs between them. `seeds` are those of each trial."""

    ranges: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trials: int = 50
    sampler_seed: int | None = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The rest of `SweepSettings` that differs from what it is anyway"""


class SweepRunPresenter(WorkerPresenter):
    """Runs of the sweep worker: curves over trials and the study; there is nothing to watch step by step."""

    name = WORKER_TYPE
    lane = Lane.ANALYTICS

    def bootstrap_analytics_tabs(self) -> tuple[str, ...]:
        return tuple(tab for tab in super().bootstrap_analytics_tabs() if tab not in ("live", "replay"))


class SweepPresenter(WorkerPresenter):
    """The policy of the sweep form, over the presenter of the worker that runs the trials."""

    name = "sweep_form"

    def __init__(self, trials: WorkerPresenter) -> None:
        super().__init__(trials.lane)
        self._trials = trials
        self.has_dry_run = trials.has_dry_run

    # ------------------------------------------------------------------ what a trial can be

    def algorithms(self, spec: WorkerSpec) -> tuple[AlgorithmSpec, ...]:
        return self._trials.algorithms(spec)

    def hyper_parameters(self, algorithm: AlgorithmSpec) -> tuple[FieldSpec, ...]:
        return self._trials.hyper_parameters(algorithm)

    def help_page(self, algorithm: AlgorithmSpec) -> str:
        return self._trials.help_page(algorithm)

    def fitting(self, spec: WorkerSpec, actions: str, observations: str) -> tuple[AlgorithmSpec, ...]:
        return self._trials.fitting(spec, actions, observations)

    def interpreter(self, spec: WorkerSpec) -> str:
        return self._trials.interpreter(spec)

    def searchable(self, algorithm: AlgorithmSpec) -> tuple[FieldSpec, ...]:
        """Parameters that a range makes sense for."""
        return tuple(field for field in self.hyper_parameters(algorithm) if field.kind != "json")

    # ------------------------------------------------------------------ configs

    def configs(self, order: TrainOrder, spec: WorkerSpec | None) -> list[dict[str, Any]]:
        """One config: that of the sweep, with the trials' config in it."""
        assert isinstance(order, SweepOrder)
        settings = {
            "parameters": {name: dict(entry) for name, entry in order.ranges.items()},
            **{name: value for name, value in order.settings.items() if value != _USUAL.get(name)},
            "seeds": [1 if seed is None else seed for seed in order.seeds],
            "trial": trial_config(order, spec),
        }
        worker_config = {
            "run_id": RUN_ID_PLACEHOLDER, "algo": ALGORITHM, "env_id": order.env_id, "total_timesteps": order.trials,
            **({"seed": order.sampler_seed} if order.sampler_seed is not None else {}),
            "extras": {"algo_params": settings, **({"notes": order.notes} if order.notes else {})},
        }  # fmt: skip
        return [
            {
                **({"run_name": order.run_name} if order.run_name else {}),
                "resources": {"cpus": {"requested": 0}},
                "scheduling": {"retries": RETRIES},
                **({"tags": list(order.tags)} if order.tags else {}),
                "metadata": {"worker": {"type": WORKER_TYPE, "config": worker_config}},
            }
        ]

    def problems(self, config: Mapping[str, Any], spec: WorkerSpec | None) -> list[Problem]:
        """Everything that is wrong with the sweep, and with what every trial has."""
        found = shape_problems(config)
        parameters = config["metadata"]["worker"]["config"]["extras"]["algo_params"]
        _, wrong = read_settings(parameters, path=_PREFIX)
        found += wrong
        trial = parameters["trial"]
        found += self._trials.problems(trial, spec)
        algorithm = spec.algorithm(trial["metadata"]["worker"]["config"]["algo"]) if spec is not None else None
        if algorithm is not None:
            # What is wrong with a range by itself is said above.
            ranges = read_ranges(parameters["parameters"], [], path=f"{_PREFIX}.parameters")
            found += check_ranges(ranges, algorithm, path=f"{_PREFIX}.parameters")
        return found

    def dry_run(self, config: Mapping[str, Any], home: Home) -> tuple[bool, str]:
        """A trial as its worker would check it, with the first value of every range."""
        parameters = config["metadata"]["worker"]["config"]["extras"]["algo_params"]
        ranges = read_ranges(parameters["parameters"], [])
        first = {each.name: each.choices[0] if each.kind == "categorical" else each.low for each in ranges}
        document = with_parameters(parameters["trial"], first)
        document["metadata"]["worker"]["config"] |= {"run_id": RUN_ID_PLACEHOLDER, "seed": parameters["seeds"][0]}
        return self._trials.dry_run(document, home)

    def command(self, order: TrainOrder, spec: WorkerSpec | None) -> CommandLine:
        """`mosaic sweep …`: what differs from what it does by itself."""
        assert isinstance(order, SweepOrder)
        words = [
            "mosaic", "sweep", "--algo", order.algo, "--env", order.env_id, "--total-timesteps",
            str(order.total_timesteps), "--trials", str(order.trials),
        ]  # fmt: skip
        for name, entry in order.ranges.items():
            read = read_ranges({name: entry}, [])
            words += ["--param", f"{name}={read[0]}" if read else f"{name}=?"]
        fixed = _trial_order(order)
        for name, value in fixed.parameters.items():
            words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
        for name, value in order.settings.items():
            if value != _USUAL.get(name):
                words += [_FLAGS.get(name, f"--{name.replace('_', '-')}"), _written(value)]
        seeds = [seed for seed in order.seeds if seed is not None]
        others = {
            "--seeds": seeds_text(seeds) if seeds not in ([], [1]) else "",
            "--seed": "" if order.sampler_seed in (None, 1) else order.sampler_seed,
            "--cpus": "" if order.cpus == 1 else _written(order.cpus),
            "--gpus": order.gpus or "",
            "--memory-mb": order.memory_mb or "",
            "--name": order.run_name,
            "--worker": "" if order.worker_type in ("", PREFERRED_WORKER) else order.worker_type,
        }
        for flag, value in others.items():
            words += [flag, str(value)] if value != "" else []
        for tag in order.tags:
            words += ["--tag", tag]
        return CommandLine(tuple(words), self._unsaid(order, fixed))

    def _unsaid(self, order: SweepOrder, fixed: TrainOrder) -> tuple[str, ...]:
        no_flag = {
            "notes": order.notes, "priority": order.priority, "retries": order.retries,
            "max_wallclock": order.max_wallclock_minutes, "wandb": order.wandb.enabled,
        }  # fmt: skip
        also = command_of(fixed, None).only_in_json
        return tuple(dict.fromkeys((*(name for name, value in no_flag.items() if value), *also)))


_FLAGS = {"timeout_minutes": "--timeout"}


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def trial_config(order: SweepOrder, spec: WorkerSpec | None) -> dict[str, Any]:
    """What every trial has: seed, name and what is searched for the sweep puts in."""
    (document,) = configs_of(_trial_order(order), spec)
    document["metadata"]["worker"]["config"].pop("run_id")
    return document


def _trial_order(order: SweepOrder) -> TrainOrder:
    plain = {each.name: getattr(order, each.name) for each in fields(TrainOrder)}
    fixed = {name: value for name, value in order.parameters.items() if name not in order.ranges}
    return replace(TrainOrder(**plain), seeds=(None,), run_name="", tags=(), notes="", parameters=fixed)


def sweep_order_of(document: Any) -> SweepOrder:
    """What a sweep's run config says; NotAConfig when it is another worker's."""
    try:
        worker = document["metadata"]["worker"]
        config = worker["config"]
        parameters = config["extras"]["algo_params"]
        trial, ranges = parameters["trial"], parameters["parameters"]
        if worker["type"] != WORKER_TYPE or not isinstance(ranges, dict):
            raise NotAConfig("this is no config of a sweep")
    except (KeyError, TypeError):
        raise NotAConfig("this is no config of a sweep: it has no ranges and no trial") from None
    base = order_of(trial)
    plain = {each.name: getattr(base, each.name) for each in fields(TrainOrder)}
    seeds = parameters.get("seeds") or [1]
    settings = {name: value for name, value in parameters.items() if name not in ("parameters", "trial", "seeds")}
    return SweepOrder(
        **{
            **plain,
            "seeds": tuple(seeds) if isinstance(seeds, list) else (1,),
            "run_name": document.get("run_name") or "",
            "tags": tuple(map(str, document.get("tags") or ())),
            "notes": str(config["extras"].get("notes") or ""),
        },
        ranges={str(name): entry for name, entry in ranges.items() if isinstance(entry, dict)},
        trials=config.get("total_timesteps") or 50,
        sampler_seed=config.get("seed"),
        settings=settings,
    )


def trial_worker_of(extras: Mapping[str, Any]) -> str:
    """Which worker runs the trials of a sweep, by its extras; the usual one when they do not say."""
    try:
        return str(extras["algo_params"]["trial"]["metadata"]["worker"]["type"])
    except (KeyError, TypeError):
        return PREFERRED_WORKER
