"""Extras of a worker config that mean the same to every worker: how a run is drawn, where its checkpoints lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import Problem
from mosaic_wire.worker_spec import nearest

CHECKPOINTS = "checkpoints"
FASTLANE_PREFIX = "fastlane_"
VIDEO_MODES = ("single", "grid", "off")
SWITCHES = ("fastlane_enabled", "fastlane_only")
NUMBERS: Mapping[str, tuple[int, str]] = {
    "fastlane_slot": (0, env.GYM_GUI_FASTLANE_SLOT),
    "fastlane_grid_limit": (1, env.GYM_GUI_FASTLANE_GRID_LIMIT),
    "fastlane_interval_ms": (1, env.CLEANRL_FASTLANE_INTERVAL_MS),
    "fastlane_max_dim": (0, env.CLEANRL_FASTLANE_MAX_DIM),
}
"""Whole numbers: the smallest that makes sense, and the variable that hands it to the training process"""
FASTLANE_EXTRAS = ("fastlane_video_mode", *SWITCHES, *NUMBERS)


def extras_problems(extras: Mapping[str, Any], path: str = "extras") -> list[Problem]:
    """Return what is wrong with the `fastlane_*` extras and `checkpoint_dir`; one that is None counts as left out."""
    given = {key: value for key, value in extras.items() if key.startswith(FASTLANE_PREFIX) and value is not None}
    found = [
        Problem(f"{path}.{key}", *wrong) for key, value in given.items() if (wrong := _wrong(key, value)) is not None
    ]
    if extras.get("checkpoint_dir") not in (None, "", CHECKPOINTS):
        text = f"cannot be chosen: a run keeps its checkpoints in the folder {CHECKPOINTS!r} of its own; leave it out"
        found.append(Problem(f"{path}.checkpoint_dir", text))
    return found


def _wrong(key: str, value: Any) -> tuple[str, str | None] | None:
    shown = repr(value)[:60]
    if key == "fastlane_video_mode":
        close = nearest(value, VIDEO_MODES) if isinstance(value, str) else None
        return None if value in VIDEO_MODES else (f"expected {' or '.join(VIDEO_MODES)}, got {shown}", close)
    if key in SWITCHES:
        return None if isinstance(value, bool) else (f"expected true or false, got {shown}", None)
    if key in NUMBERS:
        fits = type(value) is int and value >= NUMBERS[key][0]
        return None if fits else (f"expected a whole number from {NUMBERS[key][0]}, got {shown}", None)
    return f"unknown setting; known are {', '.join(FASTLANE_EXTRAS)}", nearest(key, FASTLANE_EXTRAS)
