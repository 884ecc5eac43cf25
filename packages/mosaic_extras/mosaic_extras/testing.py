"""For tests: requirement sets that are installed once, beside the base environment (`.venv/test-sets`).

`make clean` removes them with it. Several processes may ask at the same time: the installer's own lock lets one of
them work and other processes wait.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from mosaic_wire.paths import Home

from mosaic_extras.overlays import Base, check_sets, interpreter_for, make_plan, venvs_of


def home_of_sets() -> Home:
    """Return the home of the tests' sets."""
    return Home(Base.current().prefix / "test-sets")


@cache
def interpreter_with(*sets: str) -> Path:
    """Return an interpreter that has these sets on top of the base environment; install what is missing."""
    home = home_of_sets()
    if not check_sets(home, sets).is_ready:
        home.root.mkdir(exist_ok=True, mode=0o700)
        install = [sys.executable, "-m", "mosaic_extras.install_extras", "--home", str(home.root)]
        done = subprocess.run([*install, "--set", ",".join(sets)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the sets {', '.join(sets)} could not be installed for the tests: {done.stderr[-600:]}")
    return interpreter_for(home, sets)


@contextmanager
def importing(*sets: str) -> Iterator[None]:
    """Let this process import what the sets bring, behind everything the base has."""
    interpreter_with(*sets)
    folders = [str(make_plan(home_of_sets(), name).site) for name in sets]
    missing = [folder for folder in folders if folder not in sys.path]
    sys.path += missing
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        del sys.modules[name]  # it may have been loaded without mujoco, and remembers that
    try:
        yield
    finally:
        for folder in missing:
            sys.path.remove(folder)


def lend_sets(home: Home, *sets: str, of: Home | None = None) -> None:
    """Make the tests' sets, or those of a home, those of another one, for workers and daemons that use it."""
    if of is None:
        interpreter_with(*sets)
        of = home_of_sets()
    theirs = venvs_of(home)
    theirs.mkdir(parents=True, exist_ok=True)
    for name in sets:
        if not (theirs / name).exists():
            (theirs / name).symlink_to(venvs_of(of) / name)
