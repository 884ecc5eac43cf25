"""`CleanRLWorkerConfig`: what one run is asked to do, and what that means as flags of the algorithm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.extras_checks import extras_problems
from mosaic_wire.paths import RunFolder
from mosaic_wire.worker_config import WorkerConfig
from mosaic_wire.worker_spec import AlgorithmSpec, FieldSpec, WorkerSpec, check_algorithm_choice, nearest

from cleanrl_worker.errors import BadInput
from cleanrl_worker.modes import interactive, policy_eval, training
from cleanrl_worker.modes.checkpoints import find_checkpoint
from cleanrl_worker.modes.table import EVALUATE, INTERACTIVE, RESUME, TRAINING, mode_of, mode_problems
from cleanrl_worker.no_progress import policy_problems
from cleanrl_worker.switches import writes_events
from cleanrl_worker.wandb_settings import is_tracked

_SHARED_EXTRAS = ("eval_episodes", "checkpoint_freq", "agent")
"""Extras about the worker that are also fields of our algorithms"""


@dataclass(frozen=True)
class CleanRLWorkerConfig(WorkerConfig):
    """Flat or nested JSON; command-line flags win over the file."""

    def values_for(self, algorithm: AlgorithmSpec) -> dict[str, Any]:
        """The fields of the algorithm's `Args` that this config sets."""
        values = {name.replace("-", "_"): value for name, value in self.parameters.items()}
        for name in _SHARED_EXTRAS:
            if name in self.extras and algorithm.field(name) is not None:
                values.setdefault(name, self.extras[name])
        if isinstance(self.extras.get("env_kwargs"), Mapping):
            values.setdefault("env_kwargs", json.dumps(self.extras["env_kwargs"], sort_keys=True))
        for name in ("cuda", "use_cuda", "gpu"):
            if isinstance(self.extras.get(name), bool):
                values.setdefault("cuda", self.extras[name])
        values.pop("track", None)
        if self.is_tracked:
            values["track"] = True
        values |= {"env_id": self.env_id, "total_timesteps": self.total_timesteps}
        if self.mode not in TRAINING:  # how long and how often is for training to know
            for name in ("total_timesteps", "eval_episodes", "checkpoint_freq"):
                values.pop(name, None)
        if self.seed is not None:
            values["seed"] = self.seed
        return values

    @property
    def mode(self) -> str:
        """What the run is asked to do, see `modes/table.py`."""
        return mode_of(self.extras)

    @property
    def resume_from(self) -> Path | None:
        """The checkpoint folder, or the file with weights, that training goes on from; None also when it is not there.

        `problems` says why it is not.
        """
        if self.mode != RESUME:
            return None
        with suppress(BadInput):
            source = find_checkpoint(self.extras)
            return source.path if source is not None else None
        return None

    @property
    def is_tracked(self) -> bool:
        """Does the run log to Weights & Biases?"""
        return is_tracked(self.extras)

    @property
    def writes_events(self) -> bool:
        """Are there TensorBoard's event files?"""
        return writes_events(self.extras)

    def tensorboard_folder(self, folder: RunFolder) -> Path:
        """Where event files go: `extras.tensorboard_dir` below the run folder."""
        chosen = self.extras.get("tensorboard_dir")
        return folder.root / chosen if isinstance(chosen, str) and chosen else folder.tensorboard

    def problems(self, spec: WorkerSpec, folder: RunFolder) -> list[Problem]:
        """Everything that keeps this config from being run."""
        algorithm = spec.algorithm(self.algo)
        values = self.values_for(algorithm) if algorithm is not None else {}
        found = check_algorithm_choice(spec, self.algo, self.env_id, values)
        found += mode_problems(self.extras)
        if self.mode in TRAINING:
            found += training.problems(self.extras, spec, algo=self.algo, env_id=self.env_id)
        elif self.mode == EVALUATE:
            found += policy_eval.problems(self.extras, algo=self.algo)
        elif self.mode == INTERACTIVE:
            found += interactive.problems(self.extras, algo=self.algo)
        if self.extras.get("source") not in (None, "", "mosaic"):
            found.append(Problem("extras.source", "only MOSAIC's own algorithms can run yet; leave it out"))
        if not isinstance(self.extras.get("track_wandb", False), bool):
            found.append(Problem("extras.track_wandb", "must be true or false"))
        found += [*policy_problems(self.extras), *extras_problems(self.extras)]
        if not self.tensorboard_folder(folder).resolve().is_relative_to(folder.root.resolve()):
            found.append(Problem("extras.tensorboard_dir", f"must lie in the run folder {folder.root}"))
        return found


def flags_of(values: Mapping[str, Any]) -> list[str]:
    """Command-line flags for these values; a False is said as clearly as a True."""
    flags: list[str] = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", str(value)]
    return flags


def parse_flags(words: Sequence[str], algorithm: AlgorithmSpec) -> dict[str, Any]:
    """Read algorithm flags a person typed; raise ConfigProblems with all that are wrong."""
    values, problems = read_flags(words, algorithm)
    if problems:
        raise ConfigProblems("the command line", problems)
    return values


def read_flags(words: Sequence[str], algorithm: AlgorithmSpec) -> tuple[dict[str, Any], list[Problem]]:
    """The same, for callers that look for other problems too."""
    fields = {field.name: field for field in algorithm.fields}
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        flag, has_value, text = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        field = fields.get(name)
        negated = fields.get(name.removeprefix("no_")) if name.startswith("no_") else None
        if not word.startswith("--"):
            problems.append(Problem(word, "is not a flag"))
        elif field is None and negated is not None and negated.kind == "bool" and not has_value:
            values[negated.name] = False
        elif field is None and algorithm.open_flags:
            _take_open(name, text if has_value else None, queue, values)
        elif field is None:
            known = [candidate.flag for candidate in fields.values()]
            problems.append(Problem(flag, f"{algorithm.name!r} has no such flag.", nearest(flag, known)))
            if queue and not queue[0].startswith("--"):
                queue.pop(0)  # its value, presumably
        else:
            _take_value(field, text if has_value else None, queue, values, problems)
    return values, problems


def _take_value(
    field: FieldSpec, text: str | None, queue: list[str], values: dict[str, Any], problems: list[Problem]
) -> None:
    if text is None and field.kind == "bool":
        followed = bool(queue) and queue[0].lower() in ("true", "false")
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


def _take_open(name: str, text: str | None, queue: list[str], values: dict[str, Any]) -> None:
    """A flag nobody described: the word after it is its value, unless that is a flag, too."""
    if text is None and queue and not queue[0].startswith("--"):
        text = queue.pop(0)
    if text is None:
        values[name.removeprefix("no_")] = not name.startswith("no_")
    else:
        values[name] = {"true": True, "false": False}.get(text.lower(), text)
