"""RUN or CKPT: what a person means by the word after `mosaic eval` and `mosaic resume --checkpoint`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import person_path

from gym_gui.services import policy_files
from gym_gui.services.policy_files import MODEL_SUFFIX, Chosen
from gym_gui.services.trainer.launch import NOT_TRAINING
from gym_gui.wording.run_view import parsed, short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

__all__ = ["MODEL_SUFFIX", "Chosen", "choose", "of_path"]


def choose(client: TrainerClient, word: str, checkpoint: str = "") -> Chosen:
    """A run (or one checkpoint of it), a checkpoint folder, or a file with weights."""
    path = person_path(word)
    if path.suffix == MODEL_SUFFIX or path.exists():
        if checkpoint:
            raise click.UsageError("--checkpoint chooses among the checkpoints of a run; a path names one already")
        return of_path(path)
    return _of_run(client.find(word), checkpoint)


def _of_run(run: pb.Run, checkpoint: str) -> Chosen:
    extras = parsed(run.extras_json) or {}
    if extras.get("mode") in NOT_TRAINING:
        raise click.UsageError(f"{short_id(run.run_id)} trained no policy: its mode was {extras['mode']}")
    if run.status == "TERM" and not run.started_at:
        raise click.UsageError(f"run {short_id(run.run_id)} never started, so it has no policy")
    if extras.get("script_path") and run.status == "TERM" and _saved_no_model(Path(run.run_dir)):
        raise click.UsageError(f"run {short_id(run.run_id)} saved no model: its script wrote no {MODEL_SUFFIX} file")
    schedule = extras.get("curriculum_schedule")
    path = run.run_id
    if checkpoint:
        path = str(Path(run.run_dir) / "checkpoints" / f"step-{checkpoint.rpartition('step-')[2].strip('/')}")
    seed = run.seed if run.HasField("seed") else None
    return Chosen(
        path, short_id(run.run_id), run.worker_type, run.algo, _last_env(schedule) or run.env_id, seed, run.step,
        curriculum=schedule,
    )  # fmt: skip


def _saved_no_model(folder: Path) -> bool:
    """Whether the run's manifest names none; False where it cannot be read (on another machine)."""
    try:
        return not AnalyticsManifest.read(folder / "analytics.json").policy
    except (OSError, ValueError):
        return False


def _last_env(schedule: Any) -> str:
    """A curriculum's policy is judged in its last environment."""
    if isinstance(schedule, dict):
        schedule = schedule.get("stages")
    last = schedule[-1] if isinstance(schedule, list) and schedule else None
    return str(last.get("env_id") or "") if isinstance(last, dict) else ""


def of_path(path: Path) -> Chosen:
    """A checkpoint folder or a file with weights, by what lies in it and around it."""
    try:
        return policy_files.of_path(path)
    except policy_files.NoPolicy as error:
        raise click.UsageError(str(error)) from error
