"""Runs as TensorBoard shows them: where their event files lie, what they are called, whose Python can serve them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic_wire.errors import SpecError
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.worker_spec import WorkerSpec

from gym_gui.wording.run_view import short_id, title_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient


@dataclass(frozen=True)
class Linked:
    """A run as TensorBoard will show it."""

    run_id: str
    name: str
    folder: Path


def linked(run: pb.Run) -> Linked:
    """Where a run's event files lie, or will, and its name there: `ppo CartPole-v1 seed 1 7G5FAV12`."""
    root = RunFolder(Path(run.run_dir))
    try:
        named = AnalyticsManifest.read(root.manifest).tensorboard_dir
    except (OSError, ValueError):
        named = None
    folder = root.root / named if named else root.tensorboard
    return Linked(run.run_id, f"{title_of(run)} {short_id(run.run_id)}", folder)


def interpreters_of(client: TrainerClient, worker_type: str = "") -> list[str]:
    """The installed workers' Pythons, that of the named worker first."""
    found = []
    for worker in client.workers():
        try:
            spec = WorkerSpec.from_json(json.loads(worker.spec_json)) if worker.spec_json else None
        except (SpecError, ValueError):
            continue
        if spec is not None and spec.argv:
            found.append((worker.name != worker_type, spec.argv[0]))
    return [python for _, python in sorted(found)]
