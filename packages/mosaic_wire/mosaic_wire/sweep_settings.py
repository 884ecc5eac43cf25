"""What a sweep is asked to do: the ranges it searches, and how. docs/sweeps.md has the format.

Read by the sweep worker, and by clients before they submit one, so that everything wrong is told at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from mosaic_wire.errors import Problem
from mosaic_wire.sweep_ranges import ParameterRange, read_ranges
from mosaic_wire.worker_spec import FieldSpec

WORKER_TYPE = ALGORITHM = "sweep"
SAMPLERS = ("tpe", "cmaes", "random", "grid", "gp")
PRUNERS = ("none", "median", "percentile", "hyperband", "asha")
AGGREGATES = ("mean", "median", "min", "max", "iqm")
DIRECTIONS = ("maximize", "minimize")
MEAN_RETURN = "mean_return_100"
"""The usual objective: the mean return of the last hundred episodes, as the daemon tells it of every run"""
JOURNAL, SQLITE = "journal", "sqlite"
STUDY_FILES = {JOURNAL: "study.journal", SQLITE: "study.sqlite3"}
"""Where the study lies in the run folder, by storage; every other storage is the URL of a database"""

_MOST_SEEDS = 1_000
_JSON_FIELDS = ("parameters", "trial", "seeds")


@dataclass(frozen=True)
class SweepSettings:
    """The parameters of the algorithm `sweep`."""

    parameters: tuple[ParameterRange, ...]
    trial: Mapping[str, Any] = field(repr=False)
    """The run config of every trial, without what the sweep puts in"""
    sampler: str = "tpe"
    pruner: str = "none"
    parallel: int = 1
    seeds: tuple[int | None, ...] = (1,)
    """(None,): whatever trains has no seed to set"""
    aggregate: str = "mean"
    metric: str = MEAN_RETURN
    direction: str = "maximize"
    reports: int = 20
    warmup_trials: int = 5
    startup_trials: int = 10
    timeout_minutes: float = 0.0
    give_up_after: int = 10
    storage: Any = JOURNAL
    study_name: str = ""
    rehearse_s: float = 0.0

    @property
    def trial_config(self) -> Mapping[str, Any]:
        """The worker's part of the trials' config."""
        config: Mapping[str, Any] = self.trial["metadata"]["worker"]["config"]
        return config

    def grid_size(self) -> int | None:
        """How many combinations there are; None: without end."""
        sizes = [len(values) if (values := each.values()) is not None else 0 for each in self.parameters]
        return math.prod(sizes) if all(sizes) else None


def sweep_fields() -> tuple[FieldSpec, ...]:
    """The settings as fields of an algorithm: for `--describe`, forms and checks."""
    default = {each.name: each.default for each in fields(SweepSettings)}

    def text(name: str, words: str, choices: Sequence[str] = (), group: str = "search") -> FieldSpec:
        return FieldSpec(name, "str", default[name], words, tuple(choices), group=group)

    def count(name: str, words: str, least: int, most: int, group: str = "search") -> FieldSpec:
        return FieldSpec(name, "int", default[name], words, minimum=least, maximum=most, group=group)

    return (
        FieldSpec("total_timesteps", "int", 50, "how many trials", minimum=1, maximum=1_000_000, group="search"),
        FieldSpec("seed", "int", 1, "seed of the sampler", minimum=0, group="search"),
        FieldSpec("parameters", "json", {}, "the ranges to search: name to {kind, low, high, log, step, choices}"),
        FieldSpec("trial", "json", {}, "the run config of every trial: all that is not searched for"),
        text("sampler", "who chooses the next values", SAMPLERS),
        text("pruner", "who ends trials that do badly", PRUNERS),
        count("parallel", "how many trials at a time", 1, 1_000),
        FieldSpec("seeds", "json", [1], "one run per seed in every trial", group="objective"),
        text("aggregate", "what the seeds of a trial give together", AGGREGATES, "objective"),
        text("metric", "the figure to judge by: mean_return_100, or a tag of the trials' curves", group="objective"),
        text("direction", "whether more of it is better", DIRECTIONS, "objective"),
        count("reports", "how often over its length a trial is compared with the others", 1, 1_000, "pruning"),
        count("warmup_trials", "trials that must have ended before one is pruned", 0, 10_000, "pruning"),
        count("startup_trials", "trials drawn at random before the sampler learns", 0, 10_000),
        FieldSpec("timeout_minutes", "float", 0.0, "no new trials after so long; 0: no limit", minimum=0),
        count("give_up_after", "so many failed trials in a row end the sweep; 0: never", 0, 10_000, ""),
        text("storage", "journal, sqlite, or the URL of a database", group="storage"),
        text("study_name", "name of the study; empty: the name of the run", group="storage"),
        FieldSpec(
            "rehearse_s", "float", 0.0, "nothing trains: a trial takes so long and its objective is made up; 0: train",
            minimum=0, maximum=3600, group="tests",
        ),
    )  # fmt: skip


def read_settings(document: Mapping[str, Any], *, path: str = "") -> tuple[SweepSettings | None, list[Problem]]:
    """Read `algo_params` of a sweep; None with everything that is wrong.

    Single values are checked by `sweep_fields`; this is about what a field cannot say.
    """
    prefix = f"{path}." if path else ""
    problems: list[Problem] = []
    ranges = read_ranges(document.get("parameters"), problems, path=f"{prefix}parameters")
    trial = document.get("trial")
    rehearses = bool(document.get("rehearse_s"))
    if not rehearses or trial:
        problems += _wrong_trial(trial, f"{prefix}trial")
    seeds = document.get("seeds", [1])
    is_list = isinstance(seeds, list) and 0 < len(seeds) <= _MOST_SEEDS
    if not is_list or not (seeds == [None] or all(_is_seed(seed) for seed in seeds)):
        problems.append(Problem(f"{prefix}seeds", f"expected a list of whole numbers from 0, got {seeds!r:.80}"))
    elif len(set(seeds)) != len(seeds):
        problems.append(Problem(f"{prefix}seeds", "a seed is named twice"))
    if problems:
        return None, problems
    known = {each.name for each in fields(SweepSettings)} - {*_JSON_FIELDS}
    given = {name: value for name, value in document.items() if name in known and value is not None}
    settings = SweepSettings(parameters=tuple(ranges), trial=dict(trial or {}), seeds=tuple(seeds), **given)
    problems += _contradictions(settings, prefix)
    return (None, problems) if problems else (settings, [])


def _is_seed(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _wrong_trial(trial: Any, path: str) -> list[Problem]:
    part: Any = trial
    walked = path
    for key in ("metadata", "worker", "config"):
        if not isinstance(part, Mapping) or not isinstance(part.get(key), Mapping):
            return [Problem(f"{walked}.{key}", "is missing: a trial is a run config with metadata.worker.config")]
        part, walked = part[key], f"{walked}.{key}"
    problems = []
    if trial["metadata"]["worker"].get("type") == WORKER_TYPE:
        problems.append(Problem(f"{path}.metadata.worker.type", "a sweep cannot sweep over sweeps"))
    total = part.get("total_timesteps")
    if type(total) is not int or total < 1:
        problems.append(Problem(f"{walked}.total_timesteps", "is missing: how long does a trial train?"))
    for name in ("algo", "env_id"):
        if not isinstance(part.get(name), str):
            problems.append(Problem(f"{walked}.{name}", "is missing"))
    extras = part.get("extras", {})
    if not isinstance(extras, Mapping) or not isinstance(extras.get("algo_params") or {}, Mapping):
        problems.append(Problem(f"{walked}.extras", "must be an object, and so must its algo_params"))
    return problems


def _contradictions(settings: SweepSettings, prefix: str) -> list[Problem]:
    problems = []
    if settings.sampler == "grid":
        problems += [
            Problem(f"{prefix}parameters.{each.name}", "a grid needs a few values: give choices, or a step")
            for each in settings.parameters
            if each.values() is None
        ]
    if settings.sampler == "cmaes" and all(each.kind == "categorical" for each in settings.parameters):
        problems.append(Problem(f"{prefix}sampler", "cmaes needs a number to search for; choices alone go with tpe"))
    if settings.trial:
        extras = settings.trial_config.get("extras") or {}
        fixed = {*extras, *(extras.get("algo_params") or {})}
        problems += [
            Problem(f"{prefix}parameters.{each.name}", "is also fixed by the trial's config; keep one of the two")
            for each in settings.parameters
            if each.name in fixed
        ]
    return problems


def with_parameters(trial: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The run config of a trial with these parameters put in."""
    document: dict[str, Any] = json.loads(json.dumps(trial))
    config = document["metadata"]["worker"]["config"]
    extras = config.setdefault("extras", {})
    extras["algo_params"] = {**(extras.get("algo_params") or {}), **parameters}
    config.pop("run_id", None)
    return document
