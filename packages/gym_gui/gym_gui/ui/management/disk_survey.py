"""Measure what uses disk space in a home and suggest what to delete. No widgets; for background threads."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Protocol

from mosaic_wire.checkpoints import shared_files, verify_checkpoint
from mosaic_wire.files import read_json_object, size_below
from mosaic_wire.ids import is_run_id
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry
from mosaic_wire.paths import Home, RunFolder
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunOutcome, RunStatus
from PySide6.QtCore import QCoreApplication

from gym_gui.services.trainer.run_files import remove, size_of_run
from gym_gui.wording import formats
from gym_gui.wording.run_view import title_of

_LEFTOVER = re.compile(r"\.step-\d+\..*\.(tmp|old)")


class CannotPrune(Exception):
    """Why nothing was deleted, in a message for users."""


@dataclass(frozen=True)
class SpareCheckpoints:
    """Checkpoints of one run that can be deleted."""

    count: int
    bytes: int
    kept: tuple[int, ...]
    """Steps of the remaining checkpoints"""


def find_spare_checkpoints(run_dir: Path) -> SpareCheckpoints | None:
    """Return the superfluous checkpoints of a finished run; None if there are none or the manifest is unreadable."""
    folder = RunFolder(run_dir)
    manifest = AnalyticsManifest.find(folder.manifest)
    if manifest is None:
        return None
    spare, kept = _divide(manifest.checkpoints)
    places = [run_dir / entry.path for entry in spare] + _leftovers(folder)
    there = [place for place in places if place.is_dir()]
    if not there:
        return None
    size = sum(size_below(place) for place in there)
    return SpareCheckpoints(len(there), size, tuple(sorted(entry.step for entry in kept)))


def remove_spare_checkpoints(run_dir: Path) -> int:
    """Delete them and return the freed bytes; raise CannotPrune if the remaining newest checkpoint is damaged."""
    folder = RunFolder(run_dir)
    try:
        manifest = AnalyticsManifest.read(folder.manifest)
    except (OSError, ValueError) as error:
        raise CannotPrune(f"The list of its checkpoints cannot be read: {error}") from error
    spare, kept = _divide(manifest.checkpoints)
    for entry in kept:
        # Delete nothing before the remaining checkpoint is verified.
        if (problem := verify_checkpoint(run_dir / entry.path, entry.sha256)) is not None:
            raise CannotPrune(f"The remaining checkpoint is damaged, so nothing was deleted: {problem}")
    before = size_below(folder.checkpoints)
    # Update the manifest first: it must never name missing files.
    replace(manifest, checkpoints=tuple(kept)).write(folder.manifest)
    root = run_dir.resolve()
    for place in [run_dir / entry.path for entry in spare] + _leftovers(folder):
        if place.resolve().is_relative_to(root / "checkpoints"):
            remove(place)
    _remove_unshared(folder, kept)
    return before - size_below(folder.checkpoints)


def _divide(entries: tuple[CheckpointEntry, ...]) -> tuple[list[CheckpointEntry], list[CheckpointEntry]]:
    """Return the checkpoints to delete and those to keep: the newest, the last and the best."""
    newest = max((entry.step for entry in entries), default=-1)
    kept = [entry for entry in entries if entry.step == newest or entry.kind in ("last", "best")]
    return [entry for entry in entries if entry not in kept], kept


def _leftovers(folder: RunFolder) -> list[Path]:
    """Return files that a killed worker left incomplete."""
    try:
        return [folder.checkpoints / name for name in os.listdir(folder.checkpoints) if _LEFTOVER.fullmatch(name)]
    except OSError:
        return []


def _remove_unshared(folder: RunFolder, kept: list[CheckpointEntry]) -> None:
    """Delete shared files to which no remaining checkpoint refers."""
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


LARGEST_RUNS = 100
"""Runs that are listed and searched for superfluous checkpoints"""
MAX_SUGGESTIONS = 100
"""The largest suggestions are shown; after deleting them, the next ones"""
_MAX_MEASURED = 50
"""Limit of live runs whose size is measured because the registry has none"""
_ORPHAN_AGE_S = 3_600
"""Younger files may belong to a run that is being submitted or imported"""
_CONFIG = re.compile(r"(?:config|worker)-([0-9A-Z]{26})\.json")
_DAY_S = 86_400


def _tr(text: str) -> str:
    return QCoreApplication.translate("DiskSurvey", text)


class SuggestionKind(Enum):
    RUN = "run"
    CHECKPOINTS = "checkpoints"
    ORPHAN = "orphan"
    ENVIRONMENTS = "environments"


@dataclass(frozen=True)
class Suggestion:
    """Something that can be deleted, the reason, and the bytes it frees."""

    kind: SuggestionKind
    title: str
    reason: str
    bytes: int
    run_id: str = ""
    path: str = ""


@dataclass(frozen=True)
class RunUse:
    run_id: str
    title: str
    name: str
    bytes: int
    finished_at: float
    is_over: bool


@dataclass(frozen=True)
class Share:
    """Size of one part of the home."""

    title: str
    bytes: int
    path: str


@dataclass(frozen=True)
class DiskSurvey:
    """The result of a survey."""

    shares: tuple[Share, ...]
    runs: tuple[RunUse, ...]
    """The largest"""
    runs_in_all: int
    suggestions: tuple[Suggestion, ...]
    """The largest"""
    suggestions_in_all: int = 0
    free_bytes: int = 0
    disk_bytes: int = 0

    @property
    def used_bytes(self) -> int:
        return sum(share.bytes for share in self.shares)

    @property
    def freeable_bytes(self) -> int:
        return sum(suggestion.bytes for suggestion in self.suggestions)


class SurveyListing(Protocol):
    """The part of the client that a survey needs."""

    def list(self, *, include_archived: bool = False) -> pb.ListRunsResponse: ...


def survey(client: SurveyListing, home: Home | None, *, older_than_days: float) -> DiskSurvey:
    """List all runs, then measure the disk; for a remote daemon only the sizes in the records are known."""
    now = time.time()
    # List folders before runs: otherwise a run submitted in between would look like an orphan.
    on_disk = _ids_on_disk(home, now) if home is not None else set()
    runs = list(client.list(include_archived=True).runs)
    sizes = _sizes(runs, home)
    largest = sorted(runs, key=lambda run: sizes[run.run_id], reverse=True)[:LARGEST_RUNS]
    suggestions = failed_runs(runs, sizes, older_than_days=older_than_days, now=now)
    shares = [Share(_tr("Runs"), sum(sizes.values()), str(home.runs) if home is not None else "")]
    free = total = 0
    if home is not None:
        suggested = {suggestion.run_id for suggestion in suggestions}
        suggestions += _spare_checkpoints([run for run in largest if run.run_id not in suggested], runs)
        suggestions += _orphans(home, on_disk - {run.run_id for run in runs})
        shares += [share for share in _other_shares(home) if share.bytes]
        free, total = _disk(home)
    suggestions.sort(key=lambda suggestion: suggestion.bytes, reverse=True)
    uses = tuple(
        RunUse(run.run_id, title_of(run), run.name, sizes[run.run_id], run.finished_at, run.status == RunStatus.TERM)
        for run in largest
    )
    shares.sort(key=lambda share: share.bytes, reverse=True)
    shown = tuple(suggestions[:MAX_SUGGESTIONS])
    return DiskSurvey(tuple(shares), uses, len(runs), shown, len(suggestions), free, total)


def failed_runs(
    runs: Sequence[pb.Run], sizes: dict[str, int], *, older_than_days: float, now: float
) -> list[Suggestion]:
    """Return runs that failed or were cancelled long ago and that no other run needs."""
    unfinished = [run for run in runs if run.status != RunStatus.TERM]
    found = []
    for run in runs:
        if run.status != RunStatus.TERM or run.outcome not in (RunOutcome.FAILED, RunOutcome.CANCELLED):
            continue
        if not run.finished_at or now - run.finished_at < older_than_days * _DAY_S or is_needed(run.run_id, unfinished):
            continue
        why = " ".join(run.reason.split())
        outcome = _tr("failed {} ago") if run.outcome == RunOutcome.FAILED else _tr("cancelled {} ago")
        reason = outcome.format(formats.age(run.finished_at, now)) + (f": {why[:160]}" if why else "")
        found.append(
            Suggestion(
                SuggestionKind.RUN, run.name or title_of(run), reason, sizes[run.run_id], run.run_id, run.run_dir
            )
        )
    return found


def is_needed(run_id: str, unfinished: Iterable[pb.Run]) -> bool:
    """Return whether an unfinished run resumes from this run's checkpoint or evaluates it."""
    return any(run.parent.run_id == run_id or run_id in run.extras_json for run in unfinished)


def _sizes(runs: Iterable[pb.Run], home: Home | None) -> dict[str, int]:
    """Return the sizes in the records; measure runs without one."""
    sizes: dict[str, int] = {}
    measured = 0
    for run in runs:
        size = run.size_bytes
        if not size and home is not None and measured < _MAX_MEASURED:
            measured += 1
            size = size_of_run(home, run.run_id)
        sizes[run.run_id] = size
    return sizes


def _spare_checkpoints(largest: Sequence[pb.Run], runs: Sequence[pb.Run]) -> list[Suggestion]:
    unfinished = [run for run in runs if run.status != RunStatus.TERM]
    found = []
    for run in largest:
        if run.status != RunStatus.TERM or not run.run_dir or is_needed(run.run_id, unfinished):
            continue
        spare = find_spare_checkpoints(Path(run.run_dir))
        if spare is not None and spare.bytes:
            kept = ", ".join(formats.count(step) for step in spare.kept)
            reason = _tr("{count} older checkpoints; the newest and the best stay (step {kept})").format(
                count=spare.count, kept=kept
            )
            found.append(
                Suggestion(
                    SuggestionKind.CHECKPOINTS, run.name or title_of(run), reason, spare.bytes, run.run_id, run.run_dir
                )
            )
    return found


def _ids_on_disk(home: Home, now: float) -> set[str]:
    """Return the run ids in file names, without young files."""
    found: set[str] = set()
    for folder in (home.runs, home.root / "logs" / "trainer", home.evaluations, home.configs):
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    match = _CONFIG.fullmatch(entry.name)
                    name = match[1] if match else entry.name
                    if is_run_id(name) and now - entry.stat(follow_symlinks=False).st_mtime > _ORPHAN_AGE_S:
                        found.add(name)
        except OSError:
            continue
    return found


def _orphans(home: Home, run_ids: Iterable[str]) -> list[Suggestion]:
    return [
        Suggestion(
            SuggestionKind.ORPHAN,
            _tr("Files of {}").format(run_id),
            _tr("this home has no run with this id"),
            size_of_run(home, run_id),
            run_id,
            str(home.run_folder(run_id).root),
        )
        for run_id in sorted(run_ids)
    ]


def _other_shares(home: Home) -> list[Share]:
    logs = home.daemon_log.parent
    own_logs = sum(path.stat().st_size for path in logs.glob("*.log*") if path.is_file()) if logs.is_dir() else 0
    database = sum(path.stat().st_size for path in home.trainer.glob(f"{home.database.name}*") if path.is_file())
    venvs = home.trainer / "venvs"
    return [
        Share(_tr("Environments of requirement sets"), size_below(venvs), str(venvs)),
        Share(_tr("Downloads and caches"), size_below(home.cache), str(home.cache)),
        Share(
            _tr("Recorded steps and episodes"),
            size_below(home.telemetry_database.parent),
            str(home.telemetry_database.parent),
        ),
        Share(_tr("Registry of runs"), database, str(home.database)),
        Share(_tr("Log of the daemon"), own_logs, str(logs)),
        Share(_tr("Archives"), size_below(home.archive), str(home.archive)),
    ]


def _disk(home: Home) -> tuple[int, int]:
    try:
        # The folder of the runs may be a link to another disk.
        usage = shutil.disk_usage(home.runs if home.runs.exists() else home.root)
    except OSError:
        return 0, 0
    return usage.free, usage.total
