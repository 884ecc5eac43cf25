"""custom_script: a person's own `*.sh` or `*.py` that drives a training of several phases.

Only files in the configured folders are run: `custom_scripts` of the settings (the daemon hands them over), and
`trainer/custom_scripts` of the home. The first 30 lines may say what the script is:

    # @description: warm up on 5x5, then 8x8
    # @env_family: minigrid
    # @phases: warm-up, main
    # @total_timesteps: 600000
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import Problem
from mosaic_wire.paths import Home, find_home

PATH = "extras.script_path"
SUFFIXES = (".sh", ".py")
HEADER_LINES = 30
KEYS = ("description", "env_family", "phases", "total_timesteps")
_MOST_BYTES = 4 << 20
_FACT = re.compile(r"^\s*#\s*@(\w+)\s*:\s*(.*?)\s*$")


@dataclass(frozen=True)
class CustomScript:
    """A script that may be run, as its text stood."""

    path: Path
    content: bytes
    root: Path
    """the configured folder it lies in"""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def argv(self) -> list[str]:
        """How it is started: always by an interpreter, never by a shell line."""
        return [*(["bash"] if self.path.suffix == ".sh" else [sys.executable, "-u"]), str(self.path)]


def allowed_folders(home: Home) -> list[Path]:
    """Where scripts may lie."""
    configured = os.environ.get(env.MOSAIC_CUSTOM_SCRIPTS_DIR, "").split(os.pathsep)
    return [*(Path(folder) for folder in configured if folder), home.custom_scripts]


def read_facts(text: str) -> dict[str, Any]:
    """What the header says; `total_timesteps` as a number, if it is one."""
    facts: dict[str, Any] = {}
    for line in text.splitlines()[:HEADER_LINES]:
        match = _FACT.match(line)
        if match is not None and match[1] in KEYS:
            facts.setdefault(match[1], match[2])
    if "total_timesteps" in facts:
        digits = re.sub(r"[_,\s]", "", facts["total_timesteps"])
        facts["total_timesteps"] = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 16 else None
    return {name: value for name, value in facts.items() if value not in (None, "")}


def find_script(extras: Mapping[str, Any]) -> tuple[CustomScript | None, list[Problem]]:
    """The script a config names, or why it is not run."""
    chosen = extras.get("script_path")
    if not isinstance(chosen, str) or not chosen:
        return None, [Problem(PATH, "is missing: which script?")]
    path = Path(chosen).expanduser()
    home = find_home()
    if not path.is_absolute():
        path = home.custom_scripts / path
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        return None, [Problem(PATH, f"{path} cannot be read: {getattr(error, 'strerror', None) or error}")]
    folders = allowed_folders(home)
    # Links are followed first: what counts is where the file really lies.
    root = next((folder for folder in folders if real.is_relative_to(folder.resolve())), None)
    if root is None:
        where = ", ".join(map(str, folders))
        cure = "move it there, or add its folder to `custom_scripts` in settings.toml"
        return None, [Problem(PATH, f"{real} lies in none of the folders scripts may come from ({where}); {cure}")]
    if real.suffix not in SUFFIXES or not real.is_file():
        return None, [Problem(PATH, f"{real} must be a file that ends in {' or '.join(SUFFIXES)}")]
    try:
        if real.stat().st_size > _MOST_BYTES:
            return None, [Problem(PATH, f"{real} is larger than {_MOST_BYTES >> 20} MiB")]
        content = real.read_bytes()
    except OSError as error:
        return None, [Problem(PATH, f"{real} cannot be read: {error.strerror}")]
    return CustomScript(real, content, root, read_facts(content.decode(errors="replace"))), []
