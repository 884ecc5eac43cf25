"""Which analytics a run has to show: asked of its record, its manifest and its folder. No Qt.

Charts and TensorBoard stand for every run that leaves curves. W&B stands when the run was told to log there or when
files of it appear, Optuna when the run is a study or names one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home, RunFolder, find_home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.sweep_settings import WORKER_TYPE as SWEEP

from gym_gui.services.analytics.wandb_folders import WandbFolder, find_wandb_folders
from gym_gui.ui.presenters.run_files import ManifestReading, read_manifest
from gym_gui.wording.run_view import parsed


@dataclass(frozen=True)
class Artefacts:
    """What was found of a run's analytics, at one moment."""

    reading: ManifestReading = field(default_factory=ManifestReading)
    wandb: tuple[WandbFolder, ...] = ()
    stamp: tuple[int, int] = (0, 0)
    """Of the manifest: when and how long it was written, so that an unchanged one is not read again"""

    @property
    def manifest(self) -> AnalyticsManifest | None:
        return self.reading.manifest


def look(run_dir: str, before: Artefacts | None = None) -> Artefacts:
    """Look into a run's folder; what has not changed since `before` is taken from there."""
    if not run_dir:
        return Artefacts()
    folder = RunFolder(Path(run_dir))
    stamp = _stamp_of(folder.manifest)
    if before is not None and stamp == before.stamp and before.manifest is not None:
        reading = before.reading
    else:
        reading = read_manifest(run_dir)
    return Artefacts(reading, find_wandb_folders(folder.wandb), stamp)


def tabs_of(run: pb.Run, named: Iterable[str], found: Artefacts | None) -> tuple[str, ...]:
    """Of the tabs that the presenter names, those that this run has now."""
    held = {"wandb": has_wandb, "optuna": has_study}
    return tuple(name for name in named if name not in held or held[name](run, found))


def has_wandb(run: pb.Run, found: Artefacts | None) -> bool:
    """It was told to log there, says that it does, or has files of it."""
    manifest = found.manifest if found is not None else None
    says_so = manifest is not None and (manifest.wandb_run_id or manifest.wandb_run_path)
    return bool(says_so) or bool(found and found.wandb) or asks_for_wandb(run)


def asks_for_wandb(run: pb.Run) -> bool:
    extras = extras_of(run)
    parameters = extras.get("algo_params")
    places = (extras, parameters if isinstance(parameters, Mapping) else {})
    return any(place.get(name) is True for place in places for name in ("track_wandb", "track"))


def has_study(run: pb.Run, found: Artefacts | None) -> bool:
    """It tunes others, or names the study it belongs to."""
    extras = extras_of(run)
    manifest = found.manifest if found is not None else None
    is_sweep = run.worker_type == SWEEP
    return is_sweep or bool(extras.get("optuna_db") or (manifest is not None and manifest.optuna_db_path))


def extras_of(run: pb.Run) -> Mapping[str, Any]:
    extras = parsed(run.extras_json)
    return extras if isinstance(extras, dict) else {}


def _stamp_of(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def home_of(run_dir: str) -> Home:
    """The home that a run's folder lies in: `<home>/trainer/runs/<id>`."""
    folder = Path(run_dir)
    return Home(folder.parents[2]) if folder.parent.parent.name == "trainer" else find_home()
