"""The artifacts in a run's folder, found the same way by workers and by the daemon."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from mosaic_wire.checkpoints import good_checkpoints
from mosaic_wire.event_files import PREFIX
from mosaic_wire.files import open_plain, walk
from mosaic_wire.manifest import POLICY_SUFFIX, VIDEO_SUFFIXES, CheckpointEntry
from mosaic_wire.paths import RunFolder
from mosaic_wire.system_metrics import FOLDER as SYSTEM_FOLDER

PHASES = "phases"
"""Runs of workers that a script started lie below"""
_DATABASE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
_JOURNAL_SUFFIXES = (".journal", ".log")
_NOT_LOOKED_INTO = frozenset({"wandb", "metrics", "checkpoints", "scripts"})


@dataclass(frozen=True)
class FoundArtifacts:
    """Paths relative to the run folder."""

    policy: str | None
    videos: tuple[str, ...]
    tensorboard_dir: str | None
    optuna_db_path: str | None
    checkpoints: tuple[CheckpointEntry, ...]


def artifacts_of(folder: RunFolder, tensorboard: Path | None = None) -> FoundArtifacts:
    """Walk the run folder: the newest saved model, videos, event files, an Optuna study, checkpoints of phases, too."""
    policies: list[Path] = []
    videos: list[str] = []
    studies: list[Path] = []
    events: set[Path] = set()
    tensorboard = tensorboard or folder.tensorboard
    for path in _files_below(folder.root):
        if path.suffix == POLICY_SUFFIX:
            policies.append(path)
        elif path.suffix.lower() in VIDEO_SUFFIXES:
            videos.append(str(path.relative_to(folder.root)))
        elif path.name.startswith(PREFIX):
            events.add(path.parent)
        elif _is_study(path):
            studies.append(path)
    return FoundArtifacts(
        _newest(policies, folder.root),
        tuple(sorted(videos)),
        _place_of(events, folder.root, tensorboard),
        _newest(studies, folder.root),
        tuple(_checkpoints(folder)),
    )


def _newest(paths: list[Path], root: Path) -> str | None:
    newest = max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)
    return None if newest is None else str(newest.relative_to(root))


def _place_of(events: set[Path], root: Path, tensorboard: Path) -> str | None:
    """Return where TensorBoard finds the curves: the usual folder, or where the writer of a script put its files."""
    if not events:
        return None
    curves = {place for place in events if place != tensorboard / SYSTEM_FOLDER}
    is_usual = not curves or any(place.is_relative_to(tensorboard) for place in curves)
    tops = {place.relative_to(root).parts[:1] for place in curves}
    place = tensorboard if is_usual else root.joinpath(*tops.pop()) if len(tops) == 1 else root
    return os.path.relpath(place, root)


def _is_study(path: Path) -> bool:
    """Return whether a file is a study of Optuna's: a database with its tables, or a journal."""
    try:
        if path.suffix in _JOURNAL_SUFFIXES:
            with open_plain(path) as stream:
                return b'"op_code"' in stream.read(512)
        if path.suffix not in _DATABASE_SUFFIXES:
            return False
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as database:
            found = database.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('studies', 'trials')")
            return bool(found.fetchone()[0] == 2)
    except (OSError, sqlite3.Error):
        return False


def _checkpoints(folder: RunFolder) -> Iterator[CheckpointEntry]:
    yield from good_checkpoints(folder)
    for phase in walk(folder.root / PHASES, depth=1):
        if phase.is_dir(follow_symlinks=False):
            for entry in good_checkpoints(RunFolder(Path(phase.path))):
                yield replace(entry, path=f"{PHASES}/{phase.name}/{entry.path}")


def _files_below(root: Path) -> Iterator[Path]:
    def is_scanned(entry: os.DirEntry[str]) -> bool:
        parent = Path(entry.path).parent
        return entry.name not in _NOT_LOOKED_INTO or not (parent == root or parent.parent == root / PHASES)

    for entry in walk(root, enter=is_scanned):
        if entry.is_file(follow_symlinks=False):
            yield Path(entry.path)
