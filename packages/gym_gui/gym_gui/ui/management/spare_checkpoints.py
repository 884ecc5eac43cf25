"""Checkpoints of finished runs that nobody needs: all but the newest and the best. No Qt."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from mosaic_wire.checkpoints import shared_files, verify_checkpoint
from mosaic_wire.files import read_json_object, size_below
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry
from mosaic_wire.paths import RunFolder

from gym_gui.services.trainer.run_files import remove

_LEFTOVER = re.compile(r"\.step-\d+\..*\.(tmp|old)")


class CannotPrune(Exception):
    """Why nothing was removed, in words for people."""


@dataclass(frozen=True)
class SpareCheckpoints:
    """What could go of one run."""

    count: int
    bytes: int
    kept: tuple[int, ...]
    """Steps of those that stay"""


def find_spare_checkpoints(run_dir: Path) -> SpareCheckpoints | None:
    """What a finished run could do without; None: nothing, or its manifest cannot be read."""
    folder = RunFolder(run_dir)
    try:
        entries = AnalyticsManifest.read(folder.manifest).checkpoints
    except (OSError, ValueError):
        return None
    spare, kept = _divide(entries)
    places = [run_dir / entry.path for entry in spare] + _leftovers(folder)
    there = [place for place in places if place.is_dir()]
    if not there:
        return None
    size = sum(size_below(place) for place in there)
    return SpareCheckpoints(len(there), size, tuple(sorted(entry.step for entry in kept)))


def remove_spare_checkpoints(run_dir: Path) -> int:
    """Remove them and return the freed bytes; CannotPrune when the one to go on from is not whole."""
    folder = RunFolder(run_dir)
    try:
        manifest = AnalyticsManifest.read(folder.manifest)
    except (OSError, ValueError) as error:
        raise CannotPrune(f"The list of its checkpoints cannot be read: {error}") from error
    spare, kept = _divide(manifest.checkpoints)
    for entry in kept:
        # Nothing goes before what stays is known to be good.
        if (problem := verify_checkpoint(run_dir / entry.path, entry.sha256)) is not None:
            raise CannotPrune(f"The checkpoint that would stay is damaged, so the others are kept: {problem}")
    before = size_below(folder.checkpoints)
    # The list first: it must never name what is not there.
    replace(manifest, checkpoints=tuple(kept)).write(folder.manifest)
    root = run_dir.resolve()
    for place in [run_dir / entry.path for entry in spare] + _leftovers(folder):
        if place.resolve().is_relative_to(root / "checkpoints"):
            remove(place)
    _remove_unshared(folder, kept)
    return before - size_below(folder.checkpoints)


def _divide(entries: tuple[CheckpointEntry, ...]) -> tuple[list[CheckpointEntry], list[CheckpointEntry]]:
    """Those that may go, and those that stay: the newest, the last and the best."""
    newest = max((entry.step for entry in entries), default=-1)
    kept = [entry for entry in entries if entry.step == newest or entry.kind in ("last", "best")]
    return [entry for entry in entries if entry not in kept], kept


def _leftovers(folder: RunFolder) -> list[Path]:
    """What a killed worker left half written or half replaced."""
    try:
        return [folder.checkpoints / name for name in os.listdir(folder.checkpoints) if _LEFTOVER.fullmatch(name)]
    except OSError:
        return []


def _remove_unshared(folder: RunFolder, kept: list[CheckpointEntry]) -> None:
    """Files beside the checkpoints that none of those that stay refers to."""
    try:
        needed = {
            shared.path
            for entry in kept
            for shared in shared_files(read_json_object(folder.root / entry.path / "state.json"))
        }
    except (OSError, ValueError):
        return
    for place in folder.checkpoints.iterdir():
        if place.name.startswith(("step-", ".")) or place.is_symlink() or not place.is_dir():
            continue
        for file in place.iterdir():
            if f"{place.name}/{file.name}" not in needed and not file.is_dir():
                remove(file)
