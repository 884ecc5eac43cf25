"""policy_eval: play a trained policy, or one that acts at random, and write down how well it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.errors import Problem

from cleanrl_worker.modes.checkpoints import checkpoint_problems, chosen_path, find_checkpoint
from cleanrl_worker.modes.table import EVALUATE

SUMMARY_FILE = "eval_summary.json"
DEFAULT_EPISODES = 20
MOST_TOGETHER = 1024
RANDOM = "random"
"""`extras.eval_policy`: no weights at all, what trained policies are measured against"""


@dataclass(frozen=True)
class EvaluationSettings:
    """How to evaluate; `extras.eval_*` of a config."""

    episodes: int = DEFAULT_EPISODES
    """per batch"""
    gamma: float | None = None
    """of the discounted return; None: as the policy was trained"""
    capture_video: bool = False
    """record the first episode of each batch"""
    repeat: int = 1
    """batches; 0: until somebody stops it"""
    batch_size: int = 0
    """environments stepped together; 0: as many as there are episodes, up to 16"""
    max_episode_steps: int = 0
    max_episode_seconds: float = 0.0
    deterministic: bool = True
    """take the best action; false: sample"""

    @property
    def together(self) -> int:
        return min(self.batch_size or 16, self.episodes, MOST_TOGETHER)


def read_settings(extras: Mapping[str, Any]) -> tuple[EvaluationSettings, list[Problem]]:
    """The settings, and everything that is wrong with them."""
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
    repeat = values.get("repeat")
    if isinstance(repeat, bool):  # a tick box: again and again, or once
        values["repeat"] = 0 if repeat else 1
    return EvaluationSettings(**values), found


def _is_count(least: int) -> Any:
    return lambda value: type(value) is int and value >= least


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")


_CHECKS: Mapping[str, tuple[Any, str]] = {
    "episodes": (_is_count(1), "a whole number from 1"),
    "gamma": (lambda value: _is_amount(value) and value <= 1, "a number from 0 to 1"),
    "capture_video": (lambda value: isinstance(value, bool), "true or false"),
    "repeat": (lambda value: isinstance(value, bool) or _is_count(1)(value), "true, false or a whole number from 1"),
    "batch_size": (_is_count(0), "a whole number from 0"),
    "max_episode_steps": (_is_count(0), "a whole number from 0"),
    "max_episode_seconds": (_is_amount, "a number of seconds"),
    "deterministic": (lambda value: isinstance(value, bool), "true or false"),
}


def plays_at_random(extras: Mapping[str, Any]) -> bool:
    """Is it the environment that is measured, and not a policy?"""
    return extras.get("eval_policy") == RANDOM


def problems(extras: Mapping[str, Any], *, algo: str) -> list[Problem]:
    """What is wrong with the policy and the settings."""
    return _policy_problems(extras, algo) + read_settings(extras)[1]


def _policy_problems(extras: Mapping[str, Any], algo: str) -> list[Problem]:
    chosen = extras.get("eval_policy")
    if chosen in (None, ""):
        return checkpoint_problems(extras, algo=algo, required_by=EVALUATE)
    if chosen != RANDOM:
        return [Problem("extras.eval_policy", f"expected {RANDOM!r}, or a checkpoint_path instead, got {chosen!r:.80}")]
    if chosen_path(extras):
        return [Problem("extras.eval_policy", "and checkpoint_path name two policies; give one of them")]
    return []


def launcher_options(extras: Mapping[str, Any], summary: Path) -> list[str]:
    """What the training process is told besides the algorithm's flags; without a `policy` it acts at random."""
    source = None if plays_at_random(extras) else find_checkpoint(extras)
    policy = str(source.path) if source is not None else None
    request = {"policy": policy, "summary": str(summary), **asdict(read_settings(extras)[0])}
    return ["--evaluate", json.dumps(request)]
