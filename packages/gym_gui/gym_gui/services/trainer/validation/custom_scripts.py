"""A person's own script (`extras.mode: custom_script`): only from the folders that were configured for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.errors import Problem
from mosaic_wire.paths import Home
from mosaic_wire.script_header import SCRIPT_SUFFIXES

from gym_gui.services.trainer.validation.worker_part import PATH

CUSTOM_SCRIPT = "custom_script"


def script_folders(home: Home, configured: Sequence[Path]) -> list[Path]:
    """Where scripts may come from."""
    return [*configured, home.custom_scripts]


def script_problems(extras: Mapping[str, Any], folders: Sequence[Path]) -> list[Problem]:
    """Why this run's script is not run; the worker looks once more before it starts it."""
    if extras.get("mode") != CUSTOM_SCRIPT:
        return []
    place, chosen = f"{PATH}.extras.script_path", extras.get("script_path")
    if not isinstance(chosen, str) or not chosen:
        return [Problem(place, "missing: which script?")]
    path = Path(chosen)
    if not path.is_absolute():
        path = folders[-1] / path
    try:
        real = path.resolve(strict=True)  # through links: what counts is where the file lies
    except (OSError, RuntimeError) as error:
        return [Problem(place, f"{path} cannot be read: {getattr(error, 'strerror', None) or error}")]
    if not any(real.is_relative_to(folder.resolve()) for folder in folders):
        where = ", ".join(map(str, folders))
        cure = "move it there, or add its folder to `custom_scripts` in settings.toml and restart the daemon"
        return [Problem(place, f"{real} lies in none of the folders scripts may come from ({where}); {cure}")]
    if real.suffix not in SCRIPT_SUFFIXES or not real.is_file():
        return [Problem(place, f"{real} must be a file that ends in {' or '.join(SCRIPT_SUFFIXES)}")]
    return []
