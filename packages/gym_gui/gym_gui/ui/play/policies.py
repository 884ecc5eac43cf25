"""Which policies can be watched: runs, their checkpoints, and files with weights. No Qt."""

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
from mosaic_wire.run_request import NOT_TRAINING, Mode, run_request
from mosaic_wire.worker_spec import WorkerSpec

from gym_gui.wording.run_view import extras_of

if TYPE_CHECKING:
    from gym_gui.services.trainer.client import TrainerClient

MAX_RUNS = 200
_NEEDED_MODES = frozenset({"interactive", "policy_eval"})
"""Modes that an algorithm needs to be watched: its policy can be loaded and stepped"""


@dataclass(frozen=True)
class Player:
    """An algorithm that can run a trained policy, and its worker."""

    worker: str
    module: str
    algo: str


@dataclass(frozen=True)
class WatchableRuns:
    """The runs and players that can be watched."""

    runs: tuple[pb.Run, ...]
    players: Mapping[tuple[str, str], Player]
    """By worker and algorithm"""

    def player(self, algo: str, worker: str = "") -> Player | None:
        if worker:
            return self.players.get((worker, algo))
        return next((player for (_, name), player in self.players.items() if name == algo), None)

    @property
    def algorithms(self) -> list[str]:
        return sorted({algo for _, algo in self.players})


@dataclass(frozen=True)
class CheckpointChoice:
    """A checkpoint of a run; `path` is a valid `checkpoint_path` of its worker."""

    path: str
    step: int | None
    kind: str = ""


def load_watchable_runs(client: TrainerClient) -> WatchableRuns:
    """Return the newest watchable runs and the players."""
    players: dict[tuple[str, str], Player] = {}
    for worker in client.workers():
        try:
            spec = WorkerSpec.from_json(json.loads(worker.spec_json)) if worker.spec_json else None
        except (SpecError, ValueError):
            continue
        for algorithm in spec.algorithms if spec is not None else ():
            if set(algorithm.modes) >= _NEEDED_MODES and spec is not None:
                players[spec.name, algorithm.name] = Player(spec.name, spec.module, algorithm.name)
    runs = watchable(client.list(limit=20 * MAX_RUNS).runs, players)
    return WatchableRuns(tuple(runs[:MAX_RUNS]), players)


def watchable(runs: Iterable[pb.Run], players: Mapping[tuple[str, str], Player]) -> list[pb.Run]:
    """Return runs with a trained policy that can be watched."""
    return [
        run
        for run in runs
        if (run.worker_type, run.algo) in players and run.step > 0 and extras_of(run).get("mode") not in NOT_TRAINING
    ]


def checkpoints_of(run: pb.Run) -> list[CheckpointChoice]:
    """Return the run's newest valid checkpoint, then each one; raise ValueError if there are none."""
    try:
        manifest = AnalyticsManifest.read(RunFolder(Path(run.run_dir)).manifest)
    except OSError as error:
        raise ValueError(f"the run's manifest cannot be read: {error.strerror or error}") from error
    entries = [entry for entry in manifest.checkpoints if (Path(run.run_dir) / entry.path).is_dir()]
    if not entries:
        raise ValueError(
            "this run has no checkpoint (yet): checkpoints are saved at the end, on pause, or periodically"
        )
    newest = CheckpointChoice(run.run_id, None)
    return [
        newest,
        *(
            CheckpointChoice(str(Path(run.run_dir) / entry.path), entry.step, entry.kind)
            for entry in sorted(entries, key=lambda entry: entry.step, reverse=True)
        ),
    ]


def watch_config(player: Player, *, path: str, env_id: str, seed: int | None, title: str) -> dict[str, Any]:
    """Return the run config for watching a policy."""
    return run_request(
        player.worker,
        module=player.module,
        algo=player.algo,
        env_id=env_id,
        total_timesteps=1,
        seed=seed,
        extras={"mode": Mode.INTERACTIVE, "checkpoint_path": path},
        run_name=f"watch {title}",
        resources={"cpus": {"requested": 0}},
    )


def thoughts(message: Mapping[str, Any]) -> tuple[Sequence[float], bool, float | None]:
    """Return the policy's outputs before a step: values per action, whether they are probabilities, the state value."""
    value = message.get("value")
    reported = float(value) if isinstance(value, int | float) else None
    for name, are_probabilities in (("action_probabilities", True), ("action_values", False)):
        numbers = message.get(name)
        if isinstance(numbers, list) and all(isinstance(number, int | float) for number in numbers):
            return [float(number) for number in numbers], are_probabilities, reported
    return [], True, reported
