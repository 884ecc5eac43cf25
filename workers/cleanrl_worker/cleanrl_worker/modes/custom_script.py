"""custom_script: a person's own `*.sh` or `*.py` that drives a training of several phases.

Only files in the configured folders are run: `custom_scripts` of the settings (the daemon hands them over), and
`trainer/custom_scripts` of the home. What a script says about itself, `mosaic_wire.script_header` reads.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic_wire import env
from mosaic_wire.errors import Problem
from mosaic_wire.paths import Home, find_home
from mosaic_wire.script_header import SCRIPT_SUFFIXES, read_script_header

PATH = "extras.script_path"
_MOST_BYTES = 4 << 20


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
    if real.suffix not in SCRIPT_SUFFIXES or not real.is_file():
        return None, [Problem(PATH, f"{real} must be a file that ends in {' or '.join(SCRIPT_SUFFIXES)}")]
    try:
        if real.stat().st_size > _MOST_BYTES:
            return None, [Problem(PATH, f"{real} is larger than {_MOST_BYTES >> 20} MiB")]
        content = real.read_bytes()
    except OSError as error:
        return None, [Problem(PATH, f"{real} cannot be read: {error.strerror}")]
    return CustomScript(real, content, root, read_script_header(content.decode(errors="replace"))), []
