"""Which policies can be watched: runs whose algorithm can play, their checkpoints, files with weights. No Qt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_wire.errors import SpecError
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.worker_spec import WorkerSpec

from gym_gui.services.trainer.launch import NOT_TRAINING

if TYPE_CHECKING:
    from gym_gui.services.trainer.client import TrainerClient

MOST_RUNS = 200
_NEEDED_MODES = frozenset({"interactive", "policy_eval"})
"""An algorithm that can be watched is one whose policy can be loaded and stepped"""


@dataclass(frozen=True)
class Player:
    """An algorithm that can play what it has learnt, and the worker that has it."""

    worker: str
    module: str
    algo: str


@dataclass(frozen=True)
class Shelf:
    """What there is to watch."""

    runs: tuple[pb.Run, ...]
    players: Mapping[tuple[str, str], Player]
    """by worker and algorithm"""

    def player(self, algo: str, worker: str = "") -> Player | None:
        if worker:
            return self.players.get((worker, algo))
        return next((player for (_, name), player in self.players.items() if name == algo), None)

    @property
    def algorithms(self) -> list[str]:
        return sorted({algo for _, algo in self.players})


@dataclass(frozen=True)
class CheckpointChoice:
    """A checkpoint of a run; `path` is what a worker's `checkpoint_path` may be."""

    path: str
    step: int | None
    kind: str = ""


def look_at_shelf(client: TrainerClient) -> Shelf:
    """Newest first; of very many runs the newest."""
    players: dict[tuple[str, str], Player] = {}
    for worker in client.workers():
        try:
            spec = WorkerSpec.from_json(json.loads(worker.spec_json)) if worker.spec_json else None
        except (SpecError, ValueError):
            continue
        for algorithm in spec.algorithms if spec is not None else ():
            if set(algorithm.modes) >= _NEEDED_MODES and spec is not None:
                players[spec.name, algorithm.name] = Player(spec.name, spec.module, algorithm.name)
    runs = watchable(client.list(limit=20 * MOST_RUNS).runs, players)
    return Shelf(tuple(runs[:MOST_RUNS]), players)


def watchable(runs: Iterable[pb.Run], players: Mapping[tuple[str, str], Player]) -> list[pb.Run]:
    """Runs that have trained something that can play."""
    return [
        run
        for run in runs
        if (run.worker_type, run.algo) in players and run.step > 0 and _mode_of(run) not in NOT_TRAINING
    ]


def _mode_of(run: pb.Run) -> str:
    try:
        extras = json.loads(run.extras_json or "{}")
    except ValueError:
        return ""
    return str(extras.get("mode") or "") if isinstance(extras, dict) else ""


def checkpoints_of(run: pb.Run) -> list[CheckpointChoice]:
    """The run's newest good one first, then each by itself; ValueError says why there is none."""
    try:
        manifest = AnalyticsManifest.read(RunFolder(Path(run.run_dir)).manifest)
    except OSError as error:
        raise ValueError(f"the run's manifest cannot be read: {error.strerror or error}") from error
    entries = [entry for entry in manifest.checkpoints if (Path(run.run_dir) / entry.path).is_dir()]
    if not entries:
        raise ValueError("this run has no checkpoint (yet): it saves one at its end, when paused, or every so often")
    newest = CheckpointChoice(run.run_id, None)
    return [
        newest,
        *(
            CheckpointChoice(str(Path(run.run_dir) / entry.path), entry.step, entry.kind)
            for entry in sorted(entries, key=lambda entry: entry.step, reverse=True)
        ),
    ]


def watch_config(player: Player, *, path: str, env_id: str, seed: int | None, title: str) -> dict[str, Any]:
    """The run config of a policy that is watched."""
    worker_config = {
        "algo": player.algo, "env_id": env_id, "total_timesteps": 1,
        "extras": {"mode": "interactive", "checkpoint_path": path},
        **({} if seed is None else {"seed": seed}),
    }  # fmt: skip
    return {
        "run_name": f"watch {title}",
        "resources": {"cpus": {"requested": 0}},
        "metadata": {"worker": {"type": player.worker, "module": player.module, "config": worker_config}},
    }


def thoughts(message: Mapping[str, Any]) -> tuple[Sequence[float], bool, float | None]:
    """What the policy thought before a step: numbers for its actions, whether they are probabilities, the value."""
    value = message.get("value")
    told = float(value) if isinstance(value, int | float) else None
    for name, are_probabilities in (("action_probabilities", True), ("action_values", False)):
        numbers = message.get(name)
        if isinstance(numbers, list) and all(isinstance(number, int | float) for number in numbers):
            return [float(number) for number in numbers], are_probabilities, told
    return [], True, told
