"""`CleanRLWorkerConfig`: the config of one run, and the flags of the algorithm that follow from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mosaic_wire.errors import Problem
from mosaic_wire.paths import RunFolder
from mosaic_wire.run_request import Extras, Mode, extras_problems
from mosaic_wire.worker_config import WorkerConfig
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec, check_algorithm_choice, nearest

from cleanrl_worker.errors import BadInput
from cleanrl_worker.modes import TRAINING, mode_of, mode_problems
from cleanrl_worker.modes.checkpoints import find_checkpoint
from cleanrl_worker.wandb_settings import is_tracked

NO_PROGRESS = ("leave", "kill")
"""What to do with a training that makes no step; `leave`: the daemon only shows the flag `no_progress`"""

_SHARED_EXTRAS = ("eval_episodes", "checkpoint_freq", "agent")
"""Extras about the worker that are also fields of our algorithms"""


@dataclass(frozen=True)
class CleanRLWorkerConfig(WorkerConfig):
    """Flat or nested JSON; command-line flags win over the file."""

    def values_for(self, algorithm: AlgorithmSpec) -> dict[str, Any]:
        """Return the fields of the algorithm's `Args` that this config sets."""
        values = {name.replace("-", "_"): value for name, value in self.parameters.items()}
        extras: Mapping[str, Any] = self.extras
        for name in _SHARED_EXTRAS:
            if name in extras and algorithm.field(name) is not None:
                values.setdefault(name, extras[name])
        if isinstance(self.extras.get("env_kwargs"), Mapping):
            values.setdefault("env_kwargs", json.dumps(self.extras["env_kwargs"], sort_keys=True))
        if self.cuda is not None:
            values.setdefault("cuda", self.cuda)
        values.pop("track", None)
        if self.is_tracked:
            values["track"] = True
        values |= {"env_id": self.env_id, "total_timesteps": self.total_timesteps}
        if self.mode not in TRAINING:  # only training has a length and a frequency
            for name in ("total_timesteps", "eval_episodes", "checkpoint_freq"):
                values.pop(name, None)
        if self.seed is not None:
            values["seed"] = self.seed
        return values

    @property
    def cuda(self) -> bool | None:
        """Return whether to train on a GPU, under any of its names; None: as the algorithm chooses."""
        given = (self.extras.get("cuda"), self.extras.get("use_cuda"), self.extras.get("gpu"))
        return next((value for value in given if isinstance(value, bool)), None)

    @property
    def mode(self) -> str:
        """Return what the run does, see `modes`."""
        return mode_of(self.extras)

    @property
    def resume_from(self) -> Path | None:
        """Return the checkpoint folder, or the file with weights, to resume from; None also when it is missing.

        `problems` has the reason.
        """
        try:
            source = find_checkpoint(self.extras) if self.mode == Mode.RESUME else None
        except BadInput:
            return None
        return source.path if source is not None else None

    @property
    def is_tracked(self) -> bool:
        """Return whether the run logs to Weights & Biases."""
        return is_tracked(self.extras)

    @property
    def writes_events(self) -> bool:
        """Return whether TensorBoard event files are written: unless `tensorboard_dir` is empty."""
        return self.extras.get("tensorboard_dir", "tensorboard") not in (None, "")

    def tensorboard_folder(self, folder: RunFolder) -> Path:
        """Return where event files go: `extras.tensorboard_dir` below the run folder."""
        chosen = self.extras.get("tensorboard_dir")
        return folder.root / chosen if isinstance(chosen, str) and chosen else folder.tensorboard

    def problems(self, spec: WorkerSpec, folder: RunFolder) -> list[Problem]:
        """Return everything that keeps this config from being run."""
        algorithm = spec.algorithm(self.algo)
        values = self.values_for(algorithm) if algorithm is not None else {}
        found = check_algorithm_choice(spec, self.algo, self.env_id, values)
        found += mode_problems(self.extras, algo=self.algo, env_id=self.env_id)
        if not isinstance(self.extras.get("track_wandb", False), bool):
            found.append(Problem("extras.track_wandb", "must be true or false"))
        return [*found, *self.common_problems(folder)]

    def common_problems(self, folder: RunFolder) -> Iterator[Problem]:
        """Yield what is wrong with the extras that scripts have, too."""
        yield from no_progress_problems(self.extras)
        yield from extras_problems(self.extras)
        if not self.tensorboard_folder(folder).resolve().is_relative_to(folder.root.resolve()):
            yield Problem("extras.tensorboard_dir", f"must lie in the run folder {folder.root}")


def no_progress_problems(extras: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with `no_progress` and `no_progress_s`."""
    policy, limit = extras.get("no_progress") or NO_PROGRESS[0], extras.get("no_progress_s")
    if policy not in NO_PROGRESS:
        yield Problem("extras.no_progress", f"expected {' or '.join(NO_PROGRESS)}, got {policy!r}")
    if limit is not None and (type(limit) not in (int, float) or limit <= 0):
        yield Problem("extras.no_progress_s", f"expected a number of seconds above 0, got {limit!r}")


def flags_of(values: Mapping[str, Any]) -> list[str]:
    """Return command-line flags for these values; False is written out, too."""
    flags: list[str] = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def read_flags(arguments: Sequence[str], algorithm: AlgorithmSpec) -> tuple[dict[str, Any], list[Problem]]:
    """Read algorithm flags as typed; return the values and everything that is wrong."""
    fields = {field.name: field for field in algorithm.fields}
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        flag, has_value, text = argument.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        field = fields.get(name)
        negated = fields.get(name.removeprefix("no_")) if name.startswith("no_") else None
        if not argument.startswith("--"):
            problems.append(Problem(argument, "is not a flag"))
        elif field is None and negated is not None and negated.kind == "bool" and not has_value:
            values[negated.name] = False
        elif field is None and algorithm.open_flags:
            _read_open(name, text if has_value else None, queue, values)
        elif field is None:
            known = [candidate.flag for candidate in fields.values()]
            problems.append(Problem(flag, f"{algorithm.name!r} has no such flag.", nearest(flag, known)))
            if queue and not queue[0].startswith("--"):
                queue.pop(0)  # its value, presumably
        else:
            _read_value(field, text if has_value else None, queue, values, problems)
    return values, problems


def _read_value(
    field: FieldSpec, text: str | None, queue: list[str], values: dict[str, Any], problems: list[Problem]
) -> None:
    if text is None and field.kind == "bool":
        followed = bool(queue) and queue[0].lower() in _TRUTH
        text = queue.pop(0) if followed else "true"
    elif text is None:
        if not queue:
            problems.append(Problem(field.flag, f"needs a value ({field.kind})"))
            return
        text = queue.pop(0)
    try:
        values[field.name] = field.parse(text)
    except ValueError as error:
        problems.append(Problem(field.flag, str(error).removeprefix(f"{field.flag}: ")))


def _read_open(name: str, text: str | None, queue: list[str], values: dict[str, Any]) -> None:
    """Read an undeclared flag: the argument after it is its value, unless that is a flag, too."""
    if text is None and queue and not queue[0].startswith("--"):
        text = queue.pop(0)
    if text is None:
        values[name.removeprefix("no_")] = not name.startswith("no_")
    else:
        values[name] = _TRUTH.get(text.lower(), text)


# ------------------------------------------------------------------ switches

SWITCHES = """\
--cuda, --cpu                     train on the GPU that is reserved for the run, or on the processor
--track, --no-track               log to Weights & Biases, or not
--tensorboard, --no-tensorboard   write event files, or not (MOSAIC's own algorithms)"""
"""They win over the file, where `extras.track_wandb`, `extras.tensorboard_dir` and `artifacts` set the same"""

_TRUTH = {"true": True, "false": False}


def from_artifacts(document: Mapping[str, Any], extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return the extras with what `artifacts` of a whole run config sets; the extras themselves win."""
    artifacts = document.get("artifacts")

    def enabled(name: str) -> Any:
        part = artifacts.get(name) if isinstance(artifacts, Mapping) else None
        return part.get("enabled") if isinstance(part, Mapping) else None

    tracked = {"track_wandb": enabled("wandb")} if isinstance(enabled("wandb"), bool) else {}
    return {**tracked, **extras, **({"tensorboard_dir": ""} if enabled("tensorboard") is False else {})}


def apply_switches(
    arguments: Sequence[str], extras: Mapping[str, Any], algorithm: AlgorithmSpec | None, *, is_script: bool
) -> tuple[list[str], Extras]:
    """Return the arguments that are left for the algorithm, and the extras as the switches change them.

    A script keeps its arguments, because its flags of these names may mean something else.
    """
    left: list[str] = []
    changed = dict(extras)
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if argument == "--cpu" and _has_switch(algorithm, "cuda") and not _has_switch(algorithm, "cpu"):
            left.append("--no-cuda")
            continue
        name, value, following = _read_switch(argument, queue)
        if name == "track" and value is not None:
            changed = {**_without(changed, "track"), "track_wandb": value}
            if isinstance(parameters := changed.get("algo_params"), Mapping):
                changed["algo_params"] = _without(parameters, "track")
        elif name == "tensorboard" and value is not None and not is_script:
            if not value:
                changed["tensorboard_dir"] = ""
            elif not changed.get("tensorboard_dir"):
                changed.pop("tensorboard_dir", None)
        else:
            left.append(argument)
            continue
        if is_script and _has_switch(algorithm, name):
            left += [argument, *following]
        del queue[: len(following)]
    return left, cast(Extras, changed)


def _read_switch(argument: str, following: Sequence[str]) -> tuple[str, bool | None, list[str]]:
    """Return a switch's name, its value, and the arguments after it that belong to it; None: it is no switch."""
    flag, has_value, text = argument.partition("=")
    name = flag.removeprefix("--")
    if not argument.startswith("--") or name.removeprefix("no-") not in ("track", "tensorboard"):
        return "", None, []
    if name.startswith("no-"):
        return name.removeprefix("no-"), None if has_value else False, []
    if has_value:
        return name, _TRUTH.get(text.lower()), []
    if following and following[0].lower() in _TRUTH:
        return name, _TRUTH[following[0].lower()], [following[0]]
    return name, True, []


def _has_switch(algorithm: AlgorithmSpec | None, name: str) -> bool:
    known = algorithm.field(name) if algorithm is not None else None
    return known is not None and known.kind == "bool"


def _without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}
