"""The run manifest as this worker writes it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.checkpoints import unlisted_checkpoint
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry
from mosaic_wire.paths import RunFolder

from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.modes.checkpoints import find_checkpoint
from cleanrl_worker.modes.table import EVALUATE, INTERACTIVE, RESUME
from cleanrl_worker.provenance import describe_machine, describe_module, versions_of


def build_manifest(
    config: CleanRLWorkerConfig,
    folder: RunFolder,
    *,
    argv: Sequence[str],
    requirements: Sequence[str] = ("base",),
    threads: int = 1,
    attempt: int = 1,
    versions: Mapping[str, str] | None = None,
) -> AnalyticsManifest:
    """The manifest at the start of a run; what an earlier attempt left is kept.

    `versions` are those of the run's requirement sets, where they differ from what this process sees.
    """
    earlier = _earlier_manifest(folder) if attempt > 1 else None
    checkpoints, best = _what_counts(earlier, config, folder) if earlier is not None else ((), {})
    own_module = config.env_id.rpartition(":")[0]
    environment = describe_module(own_module) if own_module else None
    return AnalyticsManifest(
        run_id=config.run_id,
        worker_type="cleanrl",
        algo=config.algo,
        env_id=config.env_id,
        seed=config.seed,
        tensorboard_dir=_relative(config.tensorboard_folder(folder), folder) if config.writes_events else None,
        checkpoints=checkpoints,
        videos=tuple(
            video for video in (earlier.videos if earlier is not None else ()) if (folder.root / video).exists()
        ),
        notes=str(config.extras.get("notes") or ""),
        requirements=tuple(requirements),
        versions=versions_of(from_sets=versions),
        hyperparameters=earlier.hyperparameters if earlier is not None else {},
        parent=_parent(config) or (earlier.parent if earlier is not None else None),
        argv=tuple(argv),
        host=describe_machine(threads=threads),
        extra={**({"environment_source": environment} if environment else {}), **best, **_video_steps(earlier)},
    )


def _video_steps(earlier: AnalyticsManifest | None) -> dict[str, Any]:
    """At which step each video was made."""
    steps = earlier.extra.get("video_steps") if earlier is not None else None
    return {"video_steps": steps} if isinstance(steps, dict) else {}


def _what_counts(
    earlier: AnalyticsManifest, config: CleanRLWorkerConfig, folder: RunFolder
) -> tuple[tuple[CheckpointEntry, ...], dict[str, Any]]:
    """The checkpoints, and the best of them, up to the one this attempt goes on from: later ones could not be used."""
    source = config.resume_from
    if source is None or source.parent.resolve() != folder.checkpoints.resolve():
        return (), {}
    going_on_from = [entry for entry in earlier.checkpoints if Path(entry.path).name == source.name]
    if not going_on_from and (entry := unlisted_checkpoint(source)) is not None:
        going_on_from = [entry]  # a worker that was killed had no time to list it
    newest = max((entry.step for entry in going_on_from), default=int(source.name.removeprefix("step-")))
    kept = tuple(entry for entry in earlier.checkpoints if entry.step < newest) + tuple(going_on_from)
    best = earlier.extra.get("best")
    is_kept = isinstance(best, dict) and best.get("path") in {entry.path for entry in kept}
    return kept, {"best": best} if is_kept else {}


def _parent(config: CleanRLWorkerConfig) -> dict[str, Any] | None:
    """The other run whose checkpoint this one goes on from or plays with, if it does."""
    source = find_checkpoint(config.extras) if config.mode in (RESUME, EVALUATE, INTERACTIVE) else None
    return source.parent(config.run_id) if source is not None else None


def _relative(path: Path, folder: RunFolder) -> str:
    return os.path.relpath(path, folder.root)


def _earlier_manifest(folder: RunFolder) -> AnalyticsManifest | None:
    try:
        return AnalyticsManifest.read(folder.manifest)
    except (OSError, ValueError):
        return None
