"""Training with a curriculum; `schedule` reads its stages, `training/envs/curriculum.py` switches between them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cleanrl_worker.training.envs.curriculum import BabyAITaskWrapper
from cleanrl_worker.training.standalone import run_algorithm
from cleanrl_worker.wrappers.schedule import BABYAI_DOORKEY_CURRICULUM, BABYAI_GOTO_CURRICULUM, Schedule, parse_schedule

__all__ = ["BABYAI_DOORKEY_CURRICULUM", "BABYAI_GOTO_CURRICULUM", "BabyAITaskWrapper", "run_curriculum_training"]


def run_curriculum_training(
    algo: str,
    args: Any,
    train: Callable[..., Any],
    schedule: Any,
    folder: Path,
    channel: Any,
    *,
    tensorboard: Path | None = None,
    resume: Path | None = None,
) -> Any:
    """Train with a curriculum in this process; `schedule` as `parse_schedule` reads it."""
    checked = schedule if isinstance(schedule, Schedule) else parse_schedule(schedule)
    return run_algorithm(algo, args, train, folder, channel, tensorboard=tensorboard, resume=resume, curriculum=checked)
