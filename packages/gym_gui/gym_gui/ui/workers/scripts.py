"""Scripts of a person's own: those in the configured folders, with what they say of themselves. No Qt; reads files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic_wire.errors import ConfigProblems
from mosaic_wire.paths import Home
from mosaic_wire.script_header import SCRIPT_SUFFIXES, read_script_header

from gym_gui.config.settings import load_settings
from gym_gui.services.trainer.validation.custom_scripts import script_folders

_MOST_BYTES = 4 << 20
_MOST_SCRIPTS = 2000


@dataclass(frozen=True)
class FoundScript:
    """A file, its `@…` lines and the hash of its content."""

    path: Path
    sha256: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_allowed: bool = True
    """It lies in a folder that scripts may be run from"""

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
    """Where scripts may be run from; settings that cannot be read name no folder."""
    try:
        configured: Sequence[Path] = load_settings().custom_scripts
    except ConfigProblems:
        configured = ()
    return script_folders(home, configured)


def find_scripts(home: Home) -> list[FoundScript]:
    """Every script in the configured folders, by name; what cannot be read is passed over."""
    found: dict[Path, FoundScript] = {}
    for folder in folders_of(home):
        try:
            files = sorted(file for file in folder.rglob("*") if file.suffix in SCRIPT_SUFFIXES)
        except OSError:
            continue
        for file in files[:_MOST_SCRIPTS]:
            try:
                found[file] = read_script(file)
            except (OSError, ValueError):
                continue
    return sorted(found.values(), key=lambda script: script.name.lower())


def script_at(path: Path, home: Home | None) -> FoundScript:
    """A file somebody named; raise ValueError or OSError with what is wrong with it."""
    allowed = home is not None and any(
        path.resolve().is_relative_to(folder.resolve()) for folder in folders_of(home)
    )  # fmt: skip
    return read_script(path, is_allowed=allowed)


def read_script(path: Path, *, is_allowed: bool = True) -> FoundScript:
    if path.suffix not in SCRIPT_SUFFIXES or not path.is_file():
        raise ValueError(f"{path} is no file that ends in {' or '.join(SCRIPT_SUFFIXES)}")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} is larger than {_MOST_BYTES >> 20} MiB")
    content = path.read_bytes()
    facts = read_script_header(content.decode("utf-8", "replace"))
    return FoundScript(path, hashlib.sha256(content).hexdigest(), facts, is_allowed)
