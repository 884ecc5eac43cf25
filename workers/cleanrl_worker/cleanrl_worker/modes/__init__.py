"""The modes of a run: what a config requests, what is wrong with it, what the training process is started with.

| mode | what happens |
| --- | --- |
| train, resume_training, curriculum | one training loop, started in different ways |
| policy_eval | a trained policy, or a random one, plays and its returns are measured |
| interactive | a client steps the environment over JSON lines, with or without a policy |
| custom_script | a shell or Python script drives a training of several phases, see `scripts/custom.py` |

Nothing heavy is imported here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.run_request import Mode
from mosaic_wire.worker_spec import nearest

from cleanrl_worker.modes.checkpoints import checkpoint_problems, chosen_path, find_checkpoint
from cleanrl_worker.wrappers.schedule import parse_schedule

OF_ALGORITHMS = tuple(mode.value for mode in Mode if mode is not Mode.CUSTOM_SCRIPT)
"""Modes that an algorithm takes part in"""
TRAINING = (Mode.TRAIN, Mode.RESUME, Mode.CURRICULUM)
"""Modes that change weights"""

SUMMARY_FILE = "eval_summary.json"
MAX_TOGETHER = 1024
RANDOM = "random"
"""`extras.eval_policy`: no weights at all, the baseline for trained policies"""


def mode_of(extras: Mapping[str, Any]) -> str:
    """Return the requested mode; a schedule alone means a curriculum."""
    chosen = extras.get("mode")
    if chosen in (None, "", Mode.TRAIN):
        return Mode.CURRICULUM.value if extras.get("curriculum_schedule") else Mode.TRAIN.value
    return str(chosen)


def mode_problems(extras: Mapping[str, Any], *, algo: str, env_id: str) -> list[Problem]:
    """Return what is wrong with the mode and with what it needs: checkpoint, curriculum, evaluation settings."""
    mode = mode_of(extras)
    if mode not in tuple(Mode):
        return [Problem("extras.mode", f"{mode!r} is not one of {', '.join(Mode)}", nearest(mode, [*map(str, Mode)]))]
    if mode == Mode.EVALUATE:
        return _policy_problems(extras, algo) + read_settings(extras)[1]
    if mode == Mode.INTERACTIVE:
        return checkpoint_problems(extras, algo=algo)
    if mode == Mode.RESUME:
        resumed = checkpoint_problems(extras, algo=algo, env_id=env_id, required_by=Mode.RESUME)
        return resumed + _curriculum_problems(extras)
    if mode == Mode.CURRICULUM and not extras.get("curriculum_schedule"):
        return [Problem("extras.curriculum_schedule", "is missing: the stages of the curriculum, or a preset's name")]
    return _curriculum_problems(extras) if mode in TRAINING else []


def _curriculum_problems(extras: Mapping[str, Any]) -> list[Problem]:
    try:
        if extras.get("curriculum_schedule"):
            parse_schedule(extras["curriculum_schedule"])
    except ConfigProblems as error:
        return list(error.problems)
    return []


def _policy_problems(extras: Mapping[str, Any], algo: str) -> list[Problem]:
    chosen = extras.get("eval_policy")
    if chosen in (None, ""):
        return checkpoint_problems(extras, algo=algo, required_by=Mode.EVALUATE)
    if chosen != RANDOM:
        return [Problem("extras.eval_policy", f"expected {RANDOM!r}, or a checkpoint_path instead, got {chosen!r:.80}")]
    if chosen_path(extras):
        return [Problem("extras.eval_policy", "and checkpoint_path name two policies; give one of them")]
    return []


def launcher_options(extras: Mapping[str, Any], *, summary: Path, endpoint: Mapping[str, Any]) -> list[str]:
    """Return what the launcher gets besides the algorithm and its flags.

    `summary` is the file an evaluation writes; `endpoint` is the `socket`, or the descriptors `input` and `output`, of
    an interactive run.
    """
    mode = mode_of(extras)
    if mode in (Mode.EVALUATE, Mode.INTERACTIVE):
        source = None if mode == Mode.EVALUATE and plays_at_random(extras) else find_checkpoint(extras)
        policy = {"policy": str(source.path) if source is not None else None}
        if mode == Mode.INTERACTIVE:
            return ["--play", json.dumps({**policy, **endpoint})]
        return ["--evaluate", json.dumps({**policy, "summary": str(summary), **asdict(read_settings(extras)[0])})]
    options = []
    if mode == Mode.RESUME and (source := find_checkpoint(extras)) is not None:
        options += ["--resume-from", str(source.path)]
    if extras.get("curriculum_schedule"):
        options += ["--curriculum", json.dumps(extras["curriculum_schedule"])]
    return options


# ------------------------------------------------------------------ policy_eval


@dataclass(frozen=True)
class EvaluationSettings:
    """How to evaluate; `extras.eval_*` of a config."""

    episodes: int = 20
    """per batch"""
    gamma: float | None = None
    """of the discounted return; None: as the policy was trained"""
    capture_video: bool = False
    """record the first episode of each batch"""
    repeat: int = 1
    """batches; 0: until the run is stopped"""
    batch_size: int = 0
    """environments stepped together; 0: as many as there are episodes, up to 16"""
    max_episode_steps: int = 0
    max_episode_seconds: float = 0.0
    deterministic: bool = True
    """use the best action; false: sample"""

    @property
    def together(self) -> int:
        """Return how many environments are stepped together."""
        return min(self.batch_size or 16, self.episodes, MAX_TOGETHER)


def read_settings(extras: Mapping[str, Any]) -> tuple[EvaluationSettings, list[Problem]]:
    """Return the settings, and everything that is wrong with them."""
    found: list[Problem] = []
    values: dict[str, Any] = {}
    for name, (check, expected) in _CHECKS.items():
        value = extras.get(f"eval_{name}")
        if value is None:
            continue
        if check(value):
            values[name] = value
        else:
            found.append(Problem(f"extras.eval_{name}", f"expected {expected}, got {value!r:.80}"))
    if plays_at_random(extras):
        values["deterministic"] = False
    if isinstance(repeat := values.get("repeat"), bool):  # a check box: endlessly, or once
        values["repeat"] = 0 if repeat else 1
    return EvaluationSettings(**values), found


def _is_count(least: int) -> Any:
    return lambda value: type(value) is int and value >= least


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


_CHECKS: Mapping[str, tuple[Any, str]] = {
    "episodes": (_is_count(1), "a whole number from 1"),
    "gamma": (lambda value: _is_amount(value) and value <= 1, "a number from 0 to 1"),
    "capture_video": (_is_switch, "true or false"),
    "repeat": (lambda value: _is_switch(value) or _is_count(1)(value), "true, false or a whole number from 1"),
    "batch_size": (_is_count(0), "a whole number from 0"),
    "max_episode_steps": (_is_count(0), "a whole number from 0"),
    "max_episode_seconds": (_is_amount, "a number of seconds"),
    "deterministic": (_is_switch, "true or false"),
}


def plays_at_random(extras: Mapping[str, Any]) -> bool:
    """Return whether the random policy is evaluated."""
    return extras.get("eval_policy") == RANDOM
