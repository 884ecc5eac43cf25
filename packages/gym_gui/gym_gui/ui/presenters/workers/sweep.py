"""Convert sweep requests to configs of the sweep worker and back, and to `mosaic sweep …`. No Qt.

A sweep request is a training request (shared by all trials) with the search space and the settings of the search.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from mosaic_wire.errors import Problem
from mosaic_wire.paths import Home
from mosaic_wire.run_request import RUN_ID_PLACEHOLDER, algo_params, run_request, worker_part
from mosaic_wire.sweep_settings import (
    ALGORITHM,
    WORKER_TYPE,
    SweepSettings,
    check_ranges,
    range_from_text,
    read_ranges,
    read_settings,
    with_parameters,
)
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec

from gym_gui.ui.presenters.workers.registry import WorkerPresenter, shape_problems
from gym_gui.ui.presenters.workers.train_request import (
    PREFERRED_WORKER,
    CommandLine,
    NotAConfig,
    TrainRequest,
    command_of,
    configs_of,
    request_of,
    seeds_text,
)
from gym_gui.ui.workers.translation import marked

FLOAT, LOG, INT, LOG_INT, CHOICE = "float", "log", "int", "logint", "choice"
KINDS = {
    FLOAT: marked("number"),
    LOG: marked("number, log"),
    INT: marked("whole number"),
    LOG_INT: marked("whole number, log"),
    CHOICE: marked("choices"),
}
"""The kinds of `mosaic sweep --param` and their labels in forms"""


@dataclass(frozen=True)
class RangeText:
    """A search range as the texts of a form."""

    kind: str = FLOAT
    low: str = ""
    high: str = ""
    step: str = ""
    choices: str = ""

    @property
    def has_step(self) -> bool:
        return self.kind in (FLOAT, INT)

    def document(self, name: str, known: FieldSpec | None = None) -> dict[str, Any]:
        """Return the range for a config; raise ValueError with a message for users if it is invalid."""
        if self.kind == CHOICE:
            message = ",".join(part.strip() for part in self.choices.split(",") if part.strip())
            text = f"{CHOICE}:{message}"
        else:
            step = f":{self.step.strip()}" if self.has_step and self.step.strip() else ""
            missing = [end for end, value in (("from", self.low), ("to", self.high)) if not value.strip()]
            if missing:
                raise ValueError(f"a number is missing: {' and '.join(missing)}")
            text = f"{self.kind}:{self.low.strip()}:{self.high.strip()}{step}"
        try:
            return range_from_text(name, text, known)
        except ValueError as error:
            raise ValueError(str(error).removeprefix(f"{name}: ")) from None

    def problem(self, name: str, algorithm: AlgorithmSpec | None) -> str:
        """Return what is invalid, also for this algorithm; empty if nothing is."""
        known = algorithm.field(name) if algorithm is not None else None
        try:
            document = self.document(name, known)
        except ValueError as error:
            return str(error)
        found: list[Any] = []
        ranges = read_ranges({name: document}, found)
        if algorithm is not None and not found:
            found += check_ranges(ranges, algorithm)
        hints = [f" Did you mean {problem.suggestion}?" if problem.suggestion else "" for problem in found]
        return "; ".join(f"{problem.message}{hint}" for problem, hint in zip(found, hints, strict=True))


def text_of(entry: Mapping[str, Any]) -> RangeText:
    """Return a range of a config as a form shows it."""
    kind = entry.get("kind")
    if kind == "categorical":
        choices = entry.get("choices")
        return RangeText(CHOICE, choices=", ".join(map(_range_text, choices if isinstance(choices, list) else [])))
    kinds = {("int", True): LOG_INT, ("int", False): INT, ("float", True): LOG}
    chosen = kinds.get((str(kind), entry.get("log") is True), FLOAT)
    step = entry.get("step")
    return RangeText(
        chosen, _range_text(entry.get("low")), _range_text(entry.get("high")), _range_text(step) if step else ""
    )


def suggested(field: FieldSpec) -> RangeText:
    """Return an initial range: around the default, within the algorithm's bounds."""
    if field.choices:
        return RangeText(CHOICE, choices=", ".join(map(_range_text, field.choices)))
    if field.kind == "bool":
        return RangeText(CHOICE, choices="true, false")
    if field.kind not in ("int", "float") or not isinstance(field.default, int | float):
        return RangeText(CHOICE, choices=_range_text(field.default) if field.default else "")
    value = field.default
    if field.kind == "int":
        low, high = max(1, value // 4) if value > 0 else value, value * 4 if value > 0 else value + 10
        kind = LOG_INT if value >= 64 else INT
    elif 0 < value <= 0.05:
        low, high, kind = value / 10, value * 10, LOG
    elif 0.5 <= value < 1:  # a discount factor: close to 1, and never above
        low, high, kind = 1 - (1 - value) * 4, 1 - (1 - value) / 4, FLOAT
    else:
        low, high, kind = (0.0, value * 2, FLOAT) if value >= 0 else (value * 2, 0.0, FLOAT)
        if value == 0:
            high = 0.1
    low = max(low, field.minimum) if field.minimum is not None else low
    high = min(high, field.maximum) if field.maximum is not None else high
    if kind in (LOG, LOG_INT) and low <= 0:
        kind = FLOAT if kind == LOG else INT
    return RangeText(kind, _range_text(low), _range_text(high))


def _range_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    return str(value)


RETRIES = 20
"""Default number of retries: a killed sweep resumes from its study"""
_DEFAULTS = {each.name: each.default for each in fields(SweepSettings)}
_PREFIX = "metadata.worker.config.extras.algo_params"


@dataclass(frozen=True)
class SweepRequest(TrainRequest):
    """The settings of all trials and the ranges that differ between them. `seeds` are the seeds of each trial."""

    ranges: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trials: int = 50
    sampler_seed: int | None = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of `SweepSettings` that differ from their defaults"""


class SweepPresenter(WorkerPresenter):
    """The presenter of the sweep form; it uses the presenter of the worker that runs the trials."""

    name = "sweep_form"

    def __init__(self, trials: WorkerPresenter) -> None:
        super().__init__(trials.lane)
        self._trials = trials

    # ------------------------------------------------------------------ trials

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
        """Return the parameters that can have a range."""
        return tuple(field for field in self.hyper_parameters(algorithm) if field.kind != "json")

    # ------------------------------------------------------------------ configs

    def configs(self, request: TrainRequest, spec: WorkerSpec | None) -> list[dict[str, Any]]:
        """Return one config: the sweep with the config of its trials."""
        assert isinstance(request, SweepRequest)
        settings = {
            "parameters": {name: dict(entry) for name, entry in request.ranges.items()},
            **{name: value for name, value in request.settings.items() if value != _DEFAULTS.get(name)},
            "seeds": [1 if seed is None else seed for seed in request.seeds],
            "trial": trial_config(request, spec),
        }
        return [
            run_request(
                WORKER_TYPE,
                algo=ALGORITHM,
                env_id=request.env_id,
                total_timesteps=request.trials,
                seed=request.sampler_seed,
                extras={"algo_params": settings, "notes": request.notes or None},
                run_name=request.run_name,
                resources={"cpus": {"requested": 0}},
                scheduling={"retries": RETRIES},
                tags=request.tags,
            )
        ]

    def problems(self, config: Mapping[str, Any], spec: WorkerSpec | None) -> list[Problem]:
        """Return everything that is invalid in the sweep or in the config of its trials."""
        found = shape_problems(config)
        parameters = algo_params(worker_part(config)["extras"])
        _, wrong = read_settings(parameters, path=_PREFIX)
        found += wrong
        trial = parameters["trial"]
        found += self._trials.problems(trial, spec)
        algorithm = spec.algorithm(worker_part(trial)["algo"]) if spec is not None else None
        if algorithm is not None:
            # Errors of single ranges are reported above.
            ranges = read_ranges(parameters["parameters"], [], path=f"{_PREFIX}.parameters")
            found += check_ranges(ranges, algorithm, path=f"{_PREFIX}.parameters")
        return found

    def dry_run(self, spec: WorkerSpec, config: Mapping[str, Any], home: Home) -> tuple[bool, str]:
        """Check a trial with the first value of every range, as its worker would."""
        parameters = algo_params(worker_part(config)["extras"])
        ranges = read_ranges(parameters["parameters"], [])
        first = {each.name: each.choices[0] if each.kind == "categorical" else each.low for each in ranges}
        document = with_parameters(parameters["trial"], first)
        worker_part(document).update({"run_id": RUN_ID_PLACEHOLDER, "seed": parameters["seeds"][0]})
        return self._trials.dry_run(spec, document, home)

    def command(self, request: TrainRequest, spec: WorkerSpec | None) -> CommandLine:
        """Return `mosaic sweep …` with the settings that differ from its defaults."""
        assert isinstance(request, SweepRequest)
        argv = ["mosaic", "sweep", "--algo", request.algo, "--env", request.env_id]
        argv += ["--total-timesteps", str(request.total_timesteps), "--trials", str(request.trials)]
        for name, entry in request.ranges.items():
            read = read_ranges({name: entry}, [])
            argv += ["--param", f"{name}={read[0]}" if read else f"{name}=?"]
        fixed = _trial_request(request)
        for name, value in fixed.parameters.items():
            argv += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
        for name, value in request.settings.items():
            if value != _DEFAULTS.get(name):
                argv += [_FLAGS.get(name, f"--{name.replace('_', '-')}"), _written(value)]
        seeds = [seed for seed in request.seeds if seed is not None]
        others = {
            "--seeds": seeds_text(seeds) if seeds not in ([], [1]) else "",
            "--seed": "" if request.sampler_seed in (None, 1) else request.sampler_seed,
            "--cpus": "" if request.cpus == 1 else _written(request.cpus),
            "--gpus": request.gpus or "",
            "--memory-mb": request.memory_mb or "",
            "--name": request.run_name,
            "--worker": "" if request.worker_type in ("", PREFERRED_WORKER) else request.worker_type,
        }
        for flag, value in others.items():
            argv += [flag, str(value)] if value != "" else []
        for tag in request.tags:
            argv += ["--tag", tag]
        return CommandLine(tuple(argv), self._not_in_command(request, fixed))

    def _not_in_command(self, request: SweepRequest, fixed: TrainRequest) -> tuple[str, ...]:
        no_flag = {
            "notes": request.notes,
            "priority": request.priority,
            "retries": request.retries,
            "max_wallclock": request.max_wallclock_minutes,
            "wandb": request.wandb.enabled,
        }
        also = command_of(fixed, None).only_in_json
        return tuple(dict.fromkeys((*(name for name, value in no_flag.items() if value), *also)))


_FLAGS = {"timeout_minutes": "--timeout"}


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def trial_config(request: SweepRequest, spec: WorkerSpec | None) -> dict[str, Any]:
    """Return the config of all trials, without the seed, name and parameters that the sweep sets."""
    (document,) = configs_of(_trial_request(request), spec)
    worker_part(document).pop("run_id")
    return document


def _trial_request(request: SweepRequest) -> TrainRequest:
    plain = {each.name: getattr(request, each.name) for each in fields(TrainRequest)}
    fixed = {name: value for name, value in request.parameters.items() if name not in request.ranges}
    return replace(TrainRequest(**plain), seeds=(None,), run_name="", tags=(), notes="", parameters=fixed)


def sweep_request_of(document: Any) -> SweepRequest:
    """Return the request for a sweep's run config; raise NotAConfig for other configs."""
    try:
        worker = document["metadata"]["worker"]
        config = worker["config"]
        parameters = config["extras"]["algo_params"]
        trial, ranges = parameters["trial"], parameters["parameters"]
        if worker["type"] != WORKER_TYPE or not isinstance(ranges, dict):
            raise NotAConfig("this is not a config of a sweep")
    except (KeyError, TypeError):
        raise NotAConfig("this is not a config of a sweep: it has no ranges and no trial") from None
    base = request_of(trial)
    plain = {each.name: getattr(base, each.name) for each in fields(TrainRequest)}
    seeds = parameters.get("seeds") or [1]
    settings = {name: value for name, value in parameters.items() if name not in ("parameters", "trial", "seeds")}
    return SweepRequest(
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
    """Return the worker of a sweep's trials from its extras; the default one if they do not name it."""
    try:
        return str(extras["algo_params"]["trial"]["metadata"]["worker"]["type"])
    except (KeyError, TypeError):
        return PREFERRED_WORKER
