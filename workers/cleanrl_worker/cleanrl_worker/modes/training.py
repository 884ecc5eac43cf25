"""train, resume_training and curriculum: one training loop, begun in different ways."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.worker_spec import WorkerSpec, nearest

from cleanrl_worker.modes.checkpoints import checkpoint_problems, find_checkpoint
from cleanrl_worker.modes.table import RESUME, mode_of
from cleanrl_worker.wrappers.schedule import PATH, parse_schedule


def problems(extras: Mapping[str, Any], spec: WorkerSpec, *, algo: str, env_id: str) -> list[Problem]:
    """What is wrong with the checkpoint to go on from, and with the curriculum."""
    found: list[Problem] = []
    if mode_of(extras) == RESUME:
        found += checkpoint_problems(extras, algo=algo, env_id=env_id, required_by=RESUME)
    return found + _curriculum_problems(extras, spec)


def _curriculum_problems(extras: Mapping[str, Any], spec: WorkerSpec) -> list[Problem]:
    if not extras.get("curriculum_schedule"):
        return []
    try:
        schedule = parse_schedule(extras["curriculum_schedule"])
    except ConfigProblems as error:
        return list(error.problems)
    known = spec.environments
    return [
        Problem(f"{PATH}[{index}].env_id", f"unknown environment {env_id!r}", nearest(env_id, known))
        for index, env_id in enumerate(schedule.env_ids)
        if known is not None and env_id not in known and ":" not in env_id
    ]


def launcher_options(extras: Mapping[str, Any]) -> list[str]:
    """What the training process is told besides the algorithm's flags."""
    options = []
    if mode_of(extras) == RESUME and (source := find_checkpoint(extras)) is not None:
        options += ["--resume-from", str(source.path)]
    if extras.get("curriculum_schedule"):
        options += ["--curriculum", json.dumps(extras["curriculum_schedule"])]
    return options
