"""For tests: trainings in this process that can be stopped and compared."""

from __future__ import annotations

import hashlib
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mosaic_wire.event_files import EventFolderReader

if TYPE_CHECKING:
    from cleanrl_worker.training.channel import Command
    from cleanrl_worker.training.evaluation import Evaluation
    from cleanrl_worker.training.run import RunContext


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
