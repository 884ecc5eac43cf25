"""For tests: shared requirement sets, and trainings in this process that can be stopped and compared.

The sets are installed once, beside the base environment (`.venv/test-sets`), so `make clean` removes them with it.
Several processes may ask at the same time: the installer's own lock lets one of them work and the others wait.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mosaic_wire.event_files import EventFolderReader
from mosaic_wire.paths import Home

from cleanrl_worker.requirement_sets.overlays import Base, check_sets, interpreter_for, make_plan, venvs_of

if TYPE_CHECKING:
    from cleanrl_worker.training.channel import Command
    from cleanrl_worker.training.evaluation import Evaluation
    from cleanrl_worker.training.run import RunContext


def home_of_sets() -> Home:
    """Return the home of the tests' sets."""
    return Home(Base.current().prefix / "test-sets")


@cache
def interpreter_with(*sets: str) -> Path:
    """Return an interpreter that has these sets on top of the base environment; install what is missing."""
    home = home_of_sets()
    if not check_sets(home, sets).is_ready:
        home.root.mkdir(exist_ok=True, mode=0o700)
        install = [sys.executable, "-m", "cleanrl_worker.tools.install_extras", "--home", str(home.root)]
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


def run_script(script: str, argv: list[str], stdout: str, stderr: str) -> None:
    """Be `python script argv…` in a process that multiprocessing started, with its output in files."""
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.argv = [script, *argv]
    runpy.run_path(script, run_name="__main__")


class Quiet:
    """A channel without a worker; returns the commands it was given, one at each safe point (None: nothing)."""

    def __init__(self, commands: Sequence[Command | None] = ()) -> None:
        self._commands = list(commands)
        self.messages: list[tuple[str, Mapping[str, Any]]] = []

    def send(self, kind: str, message: Mapping[str, Any], *, must_arrive: bool = True) -> None:
        """Store the message."""
        self.messages.append((kind, message))

    def poll(self, timeout_s: float = 0) -> list[Command]:
        """Return the next command."""
        command = self._commands.pop(0) if self._commands else None
        return [] if command is None else [command]


def train_here(
    module: ModuleType,
    folder: Path,
    args: Any,
    *,
    algo: str = "",
    commands: Sequence[Command | None] = (),
    resume: Path | None = None,
) -> tuple[RunContext, Evaluation | None]:
    """Run an algorithm's `train`; the folder is made where it is missing.

    Without `algo` the environments come as they are, whatever pipeline the name of the algorithm has.
    """
    from cleanrl_worker.training.run import RunContext

    folder.mkdir(parents=True, exist_ok=True)
    run = RunContext(algo or "plain", folder, Quiet(commands), resume=resume)
    try:
        return run, module.train(args, run)
    finally:
        run.writer.close()


def weights_digest(folder: Path) -> str:
    """Return the digest of all weights in the model that a run has left."""
    import torch

    (path,) = folder.glob("*.cleanrl_model")
    parts = torch.load(path, weights_only=True)
    digest = hashlib.sha256()
    for part in parts if isinstance(parts, tuple) else (parts.get("model_weights", parts),):
        for name, tensor in part.items():
            digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


def charts(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the points of all charts that do not depend on the clock; what a resumed run did again counts once."""
    points: dict[str, dict[int, list[float]]] = {}
    reader = EventFolderReader(folder)
    while True:
        for batch in reader.read():
            if batch.drop_from is not None:
                points = {tag: {s: v for s, v in of.items() if s < batch.drop_from} for tag, of in points.items()}
            for tag, column in batch.columns.items():
                for step, value in zip(column.steps, column.values, strict=True):
                    points.setdefault(tag, {}).setdefault(step, []).append(value)
        if not reader.has_more:
            return {
                tag: [(step, value) for step, values in of.items() for value in values]
                for tag, of in points.items()
                if not tag.endswith("/SPS")
            }
