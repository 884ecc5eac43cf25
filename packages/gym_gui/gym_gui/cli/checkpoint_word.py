"""RUN or CKPT: what a person means by the word after `mosaic eval` and `mosaic resume --checkpoint`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.checkpoints import STATE_FILE, read_checkpoint
from mosaic_wire.errors import DamagedCheckpoint
from mosaic_wire.ids import is_run_id
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder

from gym_gui.cli.run_view import parsed, short_id
from gym_gui.services.trainer.launch import NOT_TRAINING

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

MODEL_SUFFIX = ".cleanrl_model"


@dataclass(frozen=True)
class Chosen:
    """A policy, and what is known of where it comes from."""

    path: str
    """what a worker's `checkpoint_path` may be: a run id, a checkpoint folder, a file"""
    title: str
    worker_type: str = ""
    algo: str = ""
    env_id: str = ""
    seed: int | None = None
    step: int = 0
    weights_only: bool = False
    args: Mapping[str, Any] = field(default_factory=dict)
    """the flags it was trained with, where they are known"""
    curriculum: Any = None


def choose(client: TrainerClient, word: str, checkpoint: str = "") -> Chosen:
    """A run (or one checkpoint of it), a checkpoint folder, or a file with weights."""
    path = Path(word).expanduser()
    if path.suffix == MODEL_SUFFIX or path.exists():
        if checkpoint:
            raise click.UsageError("--checkpoint chooses among the checkpoints of a run; a path names one already")
        return of_path(path.absolute())
    return _of_run(client.find(word), checkpoint)


def _of_run(run: pb.Run, checkpoint: str) -> Chosen:
    extras = parsed(run.extras_json) or {}
    if extras.get("mode") in NOT_TRAINING:
        raise click.UsageError(f"{short_id(run.run_id)} trained no policy: its mode was {extras['mode']}")
    schedule = extras.get("curriculum_schedule")
    path = run.run_id
    if checkpoint:
        path = str(Path(run.run_dir) / "checkpoints" / f"step-{checkpoint.rpartition('step-')[2].strip('/')}")
    seed = run.seed if run.HasField("seed") else None
    return Chosen(
        path, short_id(run.run_id), run.worker_type, run.algo, _last_env(schedule) or run.env_id, seed, run.step,
        curriculum=schedule,
    )  # fmt: skip


def _last_env(schedule: Any) -> str:
    """A curriculum's policy is judged in its last environment."""
    if isinstance(schedule, dict):
        schedule = schedule.get("stages")
    last = schedule[-1] if isinstance(schedule, list) and schedule else None
    return str(last.get("env_id") or "") if isinstance(last, dict) else ""


def of_path(path: Path) -> Chosen:
    """A checkpoint folder or a file with weights, by what lies in it and around it."""
    if not path.exists():
        raise click.UsageError(f"there is no {path}")
    if path.is_file() and path.name != STATE_FILE:
        return _of_file(path)
    folder = path.parent if path.is_file() else path
    try:
        state = read_checkpoint(folder)
    except DamagedCheckpoint as error:
        raise click.UsageError(f"{path} is no checkpoint that can be used: {error}") from error
    args = (state.get("values") or {}).get("args") or {}
    envs = (state.get("values") or {}).get("envs") or {}
    if envs.get("curriculum"):
        ids = envs["curriculum"].get("env_ids") or [args.get("env_id")]
        args = {**args, "env_id": ids[-1]}
    return Chosen(
        str(folder), folder.name, "", str(state.get("algo") or ""), str(args.get("env_id") or ""), args.get("seed"),
        int(state["step"]), args=args,
    )  # fmt: skip


def _of_file(path: Path) -> Chosen:
    """Weights alone say nothing about themselves; the run they lie in may."""
    manifest = None
    if is_run_id(path.parent.name):
        try:
            manifest = AnalyticsManifest.read(RunFolder(path.parent).manifest)
        except (OSError, ValueError):
            manifest = None
    algo, env_id = (manifest.algo, manifest.env_id) if manifest is not None else ("", "")
    return Chosen(str(path), path.name, "", algo, env_id, weights_only=True)
