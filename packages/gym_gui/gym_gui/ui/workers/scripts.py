"""The user's own scripts in the configured folders, with their headers. No Qt; reads files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic_wire.errors import ConfigProblems
from mosaic_wire.paths import Home
from mosaic_wire.worker_spec import SCRIPT_SUFFIXES, read_script_header

from gym_gui.config.settings import load_settings
from gym_gui.services.trainer.validation.worker_part import script_folders

_MAX_BYTES = 4 << 20
_MAX_SCRIPTS = 2000


@dataclass(frozen=True)
class FoundScript:
    """A script with its `@…` header and the hash of its content."""

    path: Path
    sha256: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_allowed: bool = True
    """Whether it is in a folder from which scripts may be run"""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def description(self) -> str:
        return str(self.facts.get("description", ""))

    @property
    def env_family(self) -> str:
        return str(self.facts.get("env_family", ""))

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(filter(None, (phase.strip() for phase in str(self.facts.get("phases", "")).split(","))))

    @property
    def total_timesteps(self) -> int | None:
        found = self.facts.get("total_timesteps")
        return found if isinstance(found, int) else None

    @property
    def is_python(self) -> bool:
        return self.path.suffix == ".py"


def folders_of(home: Home) -> list[Path]:
    """Return the folders from which scripts may be run; unreadable settings name none."""
    try:
        configured: Sequence[Path] = load_settings().custom_scripts
    except ConfigProblems:
        configured = ()
    return script_folders(home, configured)


def find_scripts(home: Home) -> list[FoundScript]:
    """Return the scripts in the configured folders by name; unreadable ones are skipped."""
    found: dict[Path, FoundScript] = {}
    for folder in folders_of(home):
        try:
            files = sorted(file for file in folder.rglob("*") if file.suffix in SCRIPT_SUFFIXES)
        except OSError:
            continue
        for file in files[:_MAX_SCRIPTS]:
            try:
                found[file] = read_script(file)
            except (OSError, ValueError):
                continue
    return sorted(found.values(), key=lambda script: script.name.lower())


def script_at(path: Path, home: Home | None) -> FoundScript:
    """Return the script at a path the user named; raise ValueError or OSError with the reason if it is none."""
    allowed = home is not None and any(path.resolve().is_relative_to(folder.resolve()) for folder in folders_of(home))
    return read_script(path, is_allowed=allowed)


def read_script(path: Path, *, is_allowed: bool = True) -> FoundScript:
    if path.suffix not in SCRIPT_SUFFIXES or not path.is_file():
        raise ValueError(f"{path} is not a file that ends in {' or '.join(SCRIPT_SUFFIXES)}")
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{path} is larger than {_MAX_BYTES >> 20} MiB")
    content = path.read_bytes()
    facts = read_script_header(content.decode("utf-8", "replace"))
    return FoundScript(path, hashlib.sha256(content).hexdigest(), facts, is_allowed)
