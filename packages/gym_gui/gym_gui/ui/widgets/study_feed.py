"""Reads a study in the background, and again whenever its file has changed while somebody looks.

feed = StudyFeed(background, parent)
feed.arrived.connect(…)             StudyReading: rows for the table, importances
feed.open(path)                     the first study of the file, or the one that is named
feed.set_live(True)                 look again every few seconds
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal

from gym_gui.services.analytics.studies import (
    NoStudyYet,
    Study,
    StudyError,
    StudyFile,
    StudySummary,
    open_file,
    path_of,
)
from gym_gui.services.analytics.studies.importances import Importances, importances
from gym_gui.ui.background import Background
from gym_gui.ui.presenters.study_rows import StudyRows

LOOK_EVERY_MS = 2000
_SHARE_OF_TIME = 10
"""A study that takes long to read is read less often: at most this part of the time"""

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class StudyReading:
    """A study as it was at one moment, ready to be shown."""

    rows: StudyRows
    shares: tuple[Importances, ...]
    """For each objective"""
    studies: tuple[StudySummary, ...]
    """All of the file"""

    @property
    def study(self) -> Study:
        return self.rows.study

    def shares_of(self, objective: int) -> Importances:
        return self.shares[objective] if objective < len(self.shares) else Importances({}, 0, 0)


@dataclass(frozen=True)
class _Looked:
    file: StudyFile
    stamp: Stamp
    reading: StudyReading | None
    """None: nothing has changed"""
    took_s: float


class StudyFeed(QObject):
    """One study at a time; one look at a time."""

    arrived = Signal(object)  # StudyReading
    refused = Signal(str, bool)  # why it cannot be shown; whether it may only not be there yet

    def __init__(self, background: Background, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._background = background
        self._address, self._name = "", ""
        self._file: StudyFile | None = None
        self._stamp: Stamp = ()
        self._turn = 0
        """Counts what was opened: an answer about something else comes too late"""
        self._is_looking = self._looks_again = self._is_live = False
        self._clock = QTimer(self, singleShot=True, interval=LOOK_EVERY_MS)
        self._clock.timeout.connect(self.look)

    @property
    def address(self) -> str:
        return self._address

    def open(self, address: str | Path, name: str = "") -> None:
        """Show the study of this name; without a name the latest one that the file holds."""
        self._begin(str(address), name)
        self.look()

    def close(self) -> None:
        self._begin("", "")

    def _begin(self, address: str, name: str) -> None:
        self._turn += 1
        self._address, self._name = address, name
        self._file, self._stamp = None, ()
        self._clock.stop()

    def choose(self, name: str) -> None:
        """Another study of the same file."""
        if name != self._name:
            self._name, self._stamp = name, ()
            self.look()

    def set_live(self, live: bool) -> None:
        """Whether anybody looks and more may come."""
        self._is_live = live
        if live:
            self.look()
        else:
            self._clock.stop()

    def look(self) -> None:
        """Read it if it has changed."""
        if not self._address:
            return
        if self._is_looking:
            self._looks_again = True
            return
        self._is_looking = True
        turn, address, name, file, stamp = self._turn, self._address, self._name, self._file, self._stamp
        self._background.run(
            lambda: _look(address, name, file, stamp),
            owner=self,
            done=lambda looked: self._take(turn, looked),
            failed=lambda error: self._refuse(turn, error),
        )

    def _take(self, turn: int, looked: _Looked) -> None:
        if not self._is_over(turn):
            return
        self._file, self._stamp = looked.file, looked.stamp
        self._look_later(looked.took_s)
        if looked.reading is not None:
            self._name = looked.reading.study.name
            self.arrived.emit(looked.reading)

    def _refuse(self, turn: int, error: Exception) -> None:
        if not isinstance(error, StudyError):
            raise error
        if self._is_over(turn):
            self._file, self._stamp = None, ()
            self._look_later(0.0)
            self.refused.emit(str(error), isinstance(error, NoStudyYet))

    def _is_over(self, turn: int) -> bool:
        """One look has ended; False when it was at something else."""
        self._is_looking = False
        again, self._looks_again = self._looks_again, False
        if turn != self._turn or again:
            self.look()
        return turn == self._turn

    def _look_later(self, took_s: float) -> None:
        if self._is_live:
            self._clock.start(max(LOOK_EVERY_MS, round(took_s * 1000 * _SHARE_OF_TIME)))


# ---------------------------------------------------------------- in a thread


def _look(address: str, name: str, file: StudyFile | None, stamp: Stamp) -> _Looked:
    began = time.monotonic()
    file = file or open_file(address)
    now = _stamp_of(path_of(address))
    if now == stamp:
        return _Looked(file, stamp, None, 0.0)
    studies = file.summaries()
    if not studies:
        raise NoStudyYet(f"{file.path} holds no study yet")
    study = file.read(name or studies[-1].name)
    return _Looked(file, now, _reading(study, studies), time.monotonic() - began)


def _reading(study: Study, studies: tuple[StudySummary, ...]) -> StudyReading:
    shares = tuple(importances(study, place) for place in range(len(study.directions)))
    return StudyReading(StudyRows(study), shares, studies)


def _stamp_of(path: Path) -> Stamp:
    """Of the file and of the log that SQLite may write beside it."""
    found = []
    for each in (path, Path(f"{path}-wal")):
        try:
            status = each.stat()
        except OSError:
            continue
        found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)
