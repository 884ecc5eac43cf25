"""What takes room in a home, and what of it could go. No widgets; for background threads."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from mosaic_wire.files import size_below
from mosaic_wire.ids import is_run_id
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QCoreApplication

from gym_gui.services.trainer.run_files import size_of_run
from gym_gui.ui.management.spare_checkpoints import find_spare_checkpoints
from gym_gui.wording import formats
from gym_gui.wording.run_view import title_of

LARGEST_RUNS = 100
"""Shown by name, and looked through for spare checkpoints"""
MOST_SUGGESTIONS = 100
"""The largest; when they are gone, the next ones are shown"""
_MOST_MEASURED = 50
"""Runs whose size nobody noted yet (they still run) are measured, but not hundreds of them"""
_ORPHAN_AGE_S = 3_600
"""Younger files may belong to a run that is being submitted or imported at this moment"""
_CONFIG = re.compile(r"(?:config|worker)-([0-9A-Z]{26})\.json")
_DAY_S = 86_400


def _tr(text: str) -> str:
    return QCoreApplication.translate("DiskSurvey", text)


class Kind(Enum):
    RUN = "run"
    CHECKPOINTS = "checkpoints"
    ORPHAN = "orphan"
    ENVIRONMENTS = "environments"


@dataclass(frozen=True)
class Suggestion:
    """Something that could go, why, and how much room that gives."""

    kind: Kind
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
    """A part of the home."""

    title: str
    bytes: int
    path: str


@dataclass(frozen=True)
class DiskSurvey:
    """All of it."""

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
    def bytes_to_gain(self) -> int:
        return sum(suggestion.bytes for suggestion in self.suggestions)


class Listing(Protocol):
    """The part of a client that is needed: every run."""

    def list(self, *, include_archived: bool = False) -> pb.ListRunsResponse: ...


def survey(client: Listing, home: Home | None, *, older_than_days: float, now: float | None = None) -> DiskSurvey:
    """Ask for every run, then look at the disk; without a home (the daemon is elsewhere) the records must do."""
    now = time.time() if now is None else now
    # Folders are listed before the runs: one that is submitted in between must not look like nobody's.
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
        RunUse(run.run_id, title_of(run), run.name, sizes[run.run_id], run.finished_at, run.status == "TERM")
        for run in largest
    )
    shares.sort(key=lambda share: share.bytes, reverse=True)
    shown = tuple(suggestions[:MOST_SUGGESTIONS])
    return DiskSurvey(tuple(shares), uses, len(runs), shown, len(suggestions), free, total)


def failed_runs(
    runs: Sequence[pb.Run], sizes: dict[str, int], *, older_than_days: float, now: float
) -> list[Suggestion]:
    """Runs that failed or were cancelled long ago, and that no run still needs."""
    unfinished = [run for run in runs if run.status != "TERM"]
    found = []
    for run in runs:
        if run.status != "TERM" or run.outcome not in ("failed", "cancelled"):
            continue
        if not run.finished_at or now - run.finished_at < older_than_days * _DAY_S or is_needed(run.run_id, unfinished):
            continue
        why = " ".join(run.reason.split())
        outcome = _tr("failed {} ago") if run.outcome == "failed" else _tr("cancelled {} ago")
        reason = outcome.format(formats.age(run.finished_at, now)) + (f": {why[:160]}" if why else "")
        found.append(
            Suggestion(Kind.RUN, run.name or title_of(run), reason, sizes[run.run_id], run.run_id, run.run_dir)
        )
    return found


def is_needed(run_id: str, unfinished: Iterable[pb.Run]) -> bool:
    """Whether a run that is not over yet starts from this one's checkpoint, or evaluates it."""
    return any(run.parent.run_id == run_id or run_id in run.extras_json for run in unfinished)


def _sizes(runs: Iterable[pb.Run], home: Home | None) -> dict[str, int]:
    """What the records say; those without a figure are measured."""
    sizes: dict[str, int] = {}
    measured = 0
    for run in runs:
        size = run.size_bytes
        if not size and home is not None and measured < _MOST_MEASURED:
            measured += 1
            size = size_of_run(home, run.run_id)
        sizes[run.run_id] = size
    return sizes


def _spare_checkpoints(largest: Sequence[pb.Run], runs: Sequence[pb.Run]) -> list[Suggestion]:
    unfinished = [run for run in runs if run.status != "TERM"]
    found = []
    for run in largest:
        if run.status != "TERM" or not run.run_dir or is_needed(run.run_id, unfinished):
            continue
        spare = find_spare_checkpoints(Path(run.run_dir))
        if spare is not None and spare.bytes:
            kept = ", ".join(formats.count(step) for step in spare.kept)
            reason = _tr("{count} older checkpoints; the newest and the best stay (step {kept})").format(
                count=spare.count, kept=kept
            )
            found.append(
                Suggestion(Kind.CHECKPOINTS, run.name or title_of(run), reason, spare.bytes, run.run_id, run.run_dir)
            )
    return found


def _ids_on_disk(home: Home, now: float) -> set[str]:
    """Run ids that files are named after, unless they are young."""
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
            Kind.ORPHAN, _tr("Files of {}").format(run_id), _tr("no run of this home has this id any more"),
            size_of_run(home, run_id), run_id, str(home.run_folder(run_id).root),
        )
        for run_id in sorted(run_ids)
    ]  # fmt: skip


def _other_shares(home: Home) -> list[Share]:
    logs = home.daemon_log.parent
    own_logs = sum(path.stat().st_size for path in logs.glob("*.log*") if path.is_file()) if logs.is_dir() else 0
    database = sum(
        path.stat().st_size for path in home.trainer.glob(f"{home.database.name}*") if path.is_file()
    )  # fmt: skip
    venvs = home.trainer / "venvs"
    return [
        Share(_tr("Environments of requirement sets"), size_below(venvs), str(venvs)),
        Share(_tr("Downloads and caches"), size_below(home.cache), str(home.cache)),
        Share(_tr("Recorded steps and episodes"), size_below(home.telemetry_database.parent),
              str(home.telemetry_database.parent)),
        Share(_tr("Registry of runs"), database, str(home.database)),
        Share(_tr("Log of the daemon"), own_logs, str(logs)),
        Share(_tr("Archives"), size_below(home.archive), str(home.archive)),
    ]  # fmt: skip


def _disk(home: Home) -> tuple[int, int]:
    try:
        usage = shutil.disk_usage(home.root)
    except OSError:
        return 0, 0
    return usage.free, usage.total
