"""The settings of a sweep: the ranges it searches, and how. docs/sweeps.md has the format.

They are read by the sweep worker, and by clients before they submit a sweep, to report all problems at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from mosaic_wire.errors import Problem
from mosaic_wire.run_request import WorkerPart, worker_part
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, nearest

KINDS = ("float", "int", "categorical")
NOT_SEARCHED = ("env_id", "seed", "total_timesteps")
_MAX_PARAMETERS, _MAX_CHOICES = 100, 1_000
_NUMBER_KEYS = {"kind", "low", "high", "log", "step"}
_RANGE_KEYS = {"float": _NUMBER_KEYS, "int": _NUMBER_KEYS, "categorical": {"kind", "choices"}}


@dataclass(frozen=True)
class ParameterRange:
    """The values one parameter may take."""

    name: str
    kind: str
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: tuple[Any, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the range as an entry of `parameters`."""
        if self.kind == "categorical":
            return {"kind": self.kind, "choices": list(self.choices)}
        document = {"kind": self.kind, "low": self.low, "high": self.high}
        return document | ({"log": True} if self.log else {}) | ({"step": self.step} if self.step is not None else {})

    def __str__(self) -> str:
        """Return the range in the notation of the command line."""
        if self.kind == "categorical":
            return "choice:" + ",".join(text if isinstance(text, str) else json.dumps(text) for text in self.choices)
        kind = {("float", True): "log", ("int", True): "logint"}.get((self.kind, self.log), self.kind)
        return ":".join([kind, *(f"{end:g}" for end in (self.low, self.high, self.step) if end is not None)])

    def values(self) -> tuple[Any, ...] | None:
        """Return every value for a grid, or None if they are unlimited."""
        if self.kind == "categorical":
            return self.choices
        step = self.step or (1 if self.kind == "int" else None)
        if step is None or (self.log and self.kind == "float"):
            return None
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        if count > _MAX_CHOICES:
            return None
        found = [self.low + index * step for index in range(count)]
        return tuple(int(value) for value in found) if self.kind == "int" else tuple(found)


def read_ranges(document: Any, problems: list[Problem], *, path: str = "parameters") -> list[ParameterRange]:
    """Return the ranges of `parameters`; append what is wrong to `problems`."""
    if not isinstance(document, Mapping) or not document:
        problems.append(Problem(path, "which parameters? Give at least one range"))
        return []
    if len(document) > _MAX_PARAMETERS:
        problems.append(Problem(path, f"at most {_MAX_PARAMETERS} parameters can be searched for"))
        return []
    ranges = []
    for name, entry in document.items():
        where = f"{path}.{name}"
        if not isinstance(entry, Mapping) or entry.get("kind") not in KINDS:
            problems.append(Problem(where, f"expected an object with `kind`, one of {', '.join(KINDS)}"))
        elif wrong := _wrong_range(entry):
            problems.append(Problem(where, wrong))
        elif entry["kind"] == "categorical":
            ranges.append(ParameterRange(str(name), "categorical", choices=tuple(entry["choices"])))
        else:
            step = entry.get("step")
            is_log = entry.get("log") is True
            ranges.append(ParameterRange(str(name), entry["kind"], entry["low"], entry["high"], is_log, step))
    return ranges


def _wrong_range(entry: Mapping[str, Any]) -> str:
    """Return what is wrong with one range, or an empty text."""
    kind = entry["kind"]
    if unknown := [str(key) for key in entry if key not in _RANGE_KEYS[kind]]:
        return f"a range of kind {kind} has no {', '.join(unknown)}"
    return _wrong_choices(entry.get("choices")) if kind == "categorical" else _wrong_ends(entry)


def _wrong_choices(choices: Any) -> str:
    if not isinstance(choices, list) or not 0 < len(choices) <= _MAX_CHOICES:
        return f"expected a list of 1 to {_MAX_CHOICES} choices"
    if any(isinstance(value, list | dict) or not _is_finite(value) for value in choices):
        return "a choice is text, a finite number, true, false or null"
    if len({(type(value), value) for value in choices}) != len(choices):
        return "a choice is repeated"
    return ""


def _wrong_ends(entry: Mapping[str, Any]) -> str:
    low, high, log, step = entry.get("low"), entry.get("high"), entry.get("log", False), entry.get("step")
    whole = entry["kind"] == "int"
    for name, value in (("low", low), ("high", high), ("step", step)):
        if value is None and name == "step":
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
        if not is_number or (whole and not isinstance(value, int)):
            return f"{name} must be a {'whole' if whole else 'finite'} number, got {value!r:.40}"
    if not isinstance(log, bool):
        return f"log must be true or false, got {log!r:.40}"
    assert low is not None
    assert high is not None
    if low >= high:
        return f"low must be below high, got {low:g} and {high:g}"
    if log and low <= 0:
        return f"on a logarithmic scale low must be above 0, got {low:g}"
    if step is not None and (log or step <= 0 or step > high - low):
        return "a step must be above 0, within the range, and cannot be combined with log"
    return ""


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def check_ranges(
    ranges: Sequence[ParameterRange], algorithm: AlgorithmSpec, *, path: str = "parameters"
) -> list[Problem]:
    """Return the problems of these ranges with an algorithm: names, types, limits."""
    problems = []
    for each in ranges:
        where, name = f"{path}.{each.name}", each.name.replace("-", "_")
        known = algorithm.field(name)
        if name in NOT_SEARCHED:
            problems.append(Problem(where, f"{name} cannot be searched: it is the same in every trial"))
        elif known is None:
            if not algorithm.open_flags:
                names = [field.name for field in algorithm.fields if field.name not in NOT_SEARCHED]
                message = f"{algorithm.name!r} has no parameter {each.name!r}"
                problems.append(Problem(where, message, nearest(each.name, names)))
        elif wrong := _misfit(each, known):
            problems.append(Problem(where, wrong))
    return problems


def _misfit(each: ParameterRange, known: FieldSpec) -> str:
    if each.kind == "categorical":
        wrong = [problem for value in each.choices if (problem := known.problem_with(value)) is not None]
        return "; ".join(wrong[:3])
    if known.kind not in ("int", "float") or known.choices:
        example = ",".join(map(str, known.choices)) or ("true,false" if known.kind == "bool" else "a,b")
        return f"takes {known.kind}, not a range of numbers; give choices: choice:{example}"
    if known.kind == "int" and each.kind == "float":
        return f"takes whole numbers: {'logint' if each.log else 'int'}:{math.ceil(each.low)}:{math.floor(each.high)}"
    return "; ".join(problem for end in (each.low, each.high) if (problem := known.problem_with(end)) is not None)


def range_from_text(name: str, text: str, known: FieldSpec | None = None) -> dict[str, Any]:
    """Parse a range: `log:1e-5:1e-2`, `int:32:256[:32]`, `logint:1:64`, `float:0:1[:0.1]`, `choice:a,b`.

    `known` determines the type of choices; without it, numbers, true, false and null are recognized. Raise ValueError
    with a message for the user.
    """
    scale, _, rest = text.partition(":")
    if scale in ("choice", "categorical"):
        if not rest:
            raise ValueError(f"{name}: which choices? {name}=choice:a,b,c")
        return {"kind": "categorical", "choices": [_choice(part.strip(), known) for part in rest.split(",")]}
    if scale not in ("float", "int", "log", "logint"):
        raise ValueError(
            f"{name}: {text!r} is not a range; write log:LOW:HIGH, float:LOW:HIGH[:STEP], int:LOW:HIGH[:STEP], "
            "logint:LOW:HIGH or choice:A,B,…"
        )
    kind, is_log = ("int" if scale.endswith("int") else "float"), scale.startswith("log")
    ends = rest.split(":") if rest else []
    if len(ends) not in ((2,) if is_log else (2, 3)):
        raise ValueError(f"{name}: {text!r} needs {scale}:LOW:HIGH" + ("" if is_log else f" or {scale}:LOW:HIGH:STEP"))
    numbers = [_number(name, end, kind) for end in ends]
    document: dict[str, Any] = {"kind": kind, "low": numbers[0], "high": numbers[1]}
    if is_log:
        document["log"] = True
    if len(numbers) == 3:
        document["step"] = numbers[2]
    if wrong := _wrong_ends(document):
        raise ValueError(f"{name}: {wrong}")
    return document


def _number(name: str, text: str, kind: str) -> int | float:
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        raise ValueError(f"{name}: {text!r} is not a number") from None
    if kind == "float":
        return value
    if not value.is_integer():
        raise ValueError(f"{name}: {text!r} is not a whole number")
    return int(value)


def _choice(text: str, known: FieldSpec | None) -> Any:
    if known is not None:
        try:
            return known.parse(text)
        except ValueError:
            return text  # reported later with all other problems
    lowered = text.lower()
    if lowered in ("true", "false", "null", "none"):
        return {"true": True, "false": False}.get(lowered)
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


WORKER_TYPE = ALGORITHM = "sweep"
SAMPLERS = ("tpe", "cmaes", "random", "grid", "gp")
PRUNERS = ("none", "median", "percentile", "hyperband", "asha")
AGGREGATES = ("mean", "median", "min", "max", "iqm")
DIRECTIONS = ("maximize", "minimize")
MEAN_RETURN = "mean_return_100"
"""The default objective: the mean return of the last hundred episodes, which the daemon computes for every run"""
JOURNAL, SQLITE = "journal", "sqlite"
STUDY_FILES = {JOURNAL: "study.journal", SQLITE: "study.sqlite3"}
"""The study's file in the run folder, by storage; any other storage is the URL of a database"""

_MAX_SEEDS = 1_000
_JSON_FIELDS = ("parameters", "trial", "seeds")


@dataclass(frozen=True)
class SweepSettings:
    """The parameters of the algorithm `sweep`."""

    parameters: tuple[ParameterRange, ...]
    trial: Mapping[str, Any] = field(repr=False)
    """The run config of every trial, without the parameters the sweep sets"""
    sampler: str = "tpe"
    pruner: str = "none"
    parallel: int = 1
    seeds: tuple[int | None, ...] = (1,)
    """(None,) if the algorithm has no seed"""
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
    def trial_config(self) -> WorkerPart:
        """Return the worker's part of the trials' config."""
        return worker_part(self.trial)

    def grid_size(self) -> int | None:
        """Return the number of combinations, or None if it is unlimited."""
        sizes = [len(values) if (values := each.values()) is not None else 0 for each in self.parameters]
        return math.prod(sizes) if all(sizes) else None


def sweep_fields() -> tuple[FieldSpec, ...]:
    """Return the settings as fields of an algorithm for `--describe`, forms and checks."""
    default = {each.name: each.default for each in fields(SweepSettings)}

    def text(name: str, help_text: str, choices: Sequence[str] = (), group: str = "search") -> FieldSpec:
        return FieldSpec(name, "str", default[name], help_text, tuple(choices), group=group)

    def count(name: str, help_text: str, least: int, most: int, group: str = "search") -> FieldSpec:
        return FieldSpec(name, "int", default[name], help_text, minimum=least, maximum=most, group=group)

    return (
        FieldSpec("total_timesteps", "int", 50, "how many trials", minimum=1, maximum=1_000_000, group="search"),
        FieldSpec("seed", "int", 1, "seed of the sampler", minimum=0, group="search"),
        FieldSpec("parameters", "json", {}, "the ranges to search: name to {kind, low, high, log, step, choices}"),
        FieldSpec("trial", "json", {}, "the run config of every trial: all that is not searched for"),
        text("sampler", "how the next values are chosen", SAMPLERS),
        text("pruner", "how trials that do badly are ended early", PRUNERS),
        count("parallel", "how many trials at a time", 1, 1_000),
        FieldSpec("seeds", "json", [1], "one run per seed in every trial", group="objective"),
        text("aggregate", "what the seeds of a trial give together", AGGREGATES, "objective"),
        text("metric", "the figure to judge by: mean_return_100, or a tag of the trials' curves", group="objective"),
        text("direction", "whether more of it is better", DIRECTIONS, "objective"),
        count("reports", "how often over its length a trial is compared with other trials", 1, 1_000, "pruning"),
        count("warmup_trials", "trials that must have ended before one is pruned", 0, 10_000, "pruning"),
        count("startup_trials", "trials drawn at random before the sampler learns", 0, 10_000),
        FieldSpec("timeout_minutes", "float", 0.0, "no new trials after so long; 0: no limit", minimum=0),
        count("give_up_after", "so many failed trials in a row end the sweep; 0: never", 0, 10_000, ""),
        text("storage", "journal, sqlite, or the URL of a database", group="storage"),
        text("study_name", "name of the study; empty: the name of the run", group="storage"),
        FieldSpec(
            "rehearse_s",
            "float",
            0.0,
            "nothing trains: a trial takes so long and its objective is made up; 0: train",
            minimum=0,
            maximum=3600,
            group="tests",
        ),
    )


def read_settings(document: Mapping[str, Any], *, path: str = "") -> tuple[SweepSettings | None, list[Problem]]:
    """Return the settings in `algo_params` of a sweep, or None and all problems.

    Single values are checked with `sweep_fields`; this checks what fields cannot express.
    """
    prefix = f"{path}." if path else ""
    problems: list[Problem] = []
    ranges = read_ranges(document.get("parameters"), problems, path=f"{prefix}parameters")
    trial = document.get("trial")
    rehearses = bool(document.get("rehearse_s"))
    if not rehearses or trial:
        problems += _wrong_trial(trial, f"{prefix}trial")
    seeds = document.get("seeds", [1])
    is_list = isinstance(seeds, list) and 0 < len(seeds) <= _MAX_SEEDS
    if not is_list or not (seeds == [None] or all(_is_seed(seed) for seed in seeds)):
        problems.append(Problem(f"{prefix}seeds", f"expected a list of whole numbers from 0, got {seeds!r:.80}"))
    elif len(set(seeds)) != len(seeds):
        problems.append(Problem(f"{prefix}seeds", "a seed is repeated"))
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
            Problem(
                f"{prefix}parameters.{each.name}", "a grid needs a limited number of values: give choices, or a step"
            )
            for each in settings.parameters
            if each.values() is None
        ]
    if settings.sampler == "cmaes" and all(each.kind == "categorical" for each in settings.parameters):
        problems.append(Problem(f"{prefix}sampler", "cmaes needs a numeric parameter; use tpe for choices only"))
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
    """Return the run config of a trial with these parameters."""
    document: dict[str, Any] = json.loads(json.dumps(trial))
    config = worker_part(document)
    extras = config.setdefault("extras", {})
    extras["algo_params"] = {**(extras.get("algo_params") or {}), **parameters}
    config.pop("run_id", None)
    return document
