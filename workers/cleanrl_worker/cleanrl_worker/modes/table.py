"""The modes, and which one a config asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mosaic_wire.errors import Problem
from mosaic_wire.worker_spec import nearest

TRAIN = "train"
RESUME = "resume_training"
EVALUATE = "policy_eval"
CURRICULUM = "curriculum"
INTERACTIVE = "interactive"
CUSTOM_SCRIPT = "custom_script"

MODES = (TRAIN, RESUME, EVALUATE, CURRICULUM, INTERACTIVE, CUSTOM_SCRIPT)
OF_ALGORITHMS = MODES[:-1]
"""Those that an algorithm takes part in"""
TRAINING = (TRAIN, RESUME, CURRICULUM)
"""Those that change weights"""


def mode_of(extras: Mapping[str, Any]) -> str:
    """The mode asked for; a schedule alone means a curriculum."""
    chosen = extras.get("mode")
    if chosen in (None, "", TRAIN):
        return CURRICULUM if extras.get("curriculum_schedule") else TRAIN
    return str(chosen)


def mode_problems(extras: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the choice itself."""
    mode = mode_of(extras)
    if mode not in MODES:
        return [Problem("extras.mode", f"{mode!r} is not one of {', '.join(MODES)}", nearest(mode, MODES))]
    if mode == CURRICULUM and not extras.get("curriculum_schedule"):
        return [Problem("extras.curriculum_schedule", "is missing: the stages of the curriculum, or a preset's name")]
    return []
