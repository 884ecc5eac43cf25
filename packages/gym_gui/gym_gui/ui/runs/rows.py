"""One run as a row of the table: texts of its cells, sort keys, searchable text. No widgets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from enum import IntEnum
from functools import partial
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import QCoreApplication

from gym_gui.ui.workers.translation import QT_TRANSLATE_NOOP
from gym_gui.wording import formats
from gym_gui.wording.run_view import algo_of, elapsed_s, fraction, remaining_s, remark_on, state_of, unit_of

_SEARCHED_NOTES = 2_000
"""Characters of a note that are searched; a note may be a whole page"""

_MIN_OF_ID, _NO_ID = 4, "-"
"""Minimal length of a term that is compared with both ends of ids, as in the daemon; a term that matches no id"""


class RunColumn(IntEnum):
    STATUS = 0
    NAME = 1
    WORKER = 2
    ALGORITHM = 3
    ENVIRONMENT = 4
    SEED = 5
    PROGRESS = 6
    RETURN = 7
    SPS = 8
    STARTED = 9
    DURATION = 10
    SIZE = 11
    TAGS = 12


HIDDEN_AT_FIRST = frozenset({RunColumn.TAGS})
"""Columns that are hidden by default"""

_ = partial(QT_TRANSLATE_NOOP, "RunsTable")
_TITLES = {
    RunColumn.STATUS: _("Status"),
    RunColumn.NAME: _("Name"),
    RunColumn.WORKER: _("Worker"),
    RunColumn.ALGORITHM: _("Algorithm"),
    RunColumn.ENVIRONMENT: _("Environment"),
    RunColumn.SEED: _("Seed"),
    RunColumn.PROGRESS: _("Progress"),
    RunColumn.RETURN: _("Return"),
    RunColumn.SPS: _("Steps/s"),
    RunColumn.STARTED: _("Started"),
    RunColumn.DURATION: _("Duration"),
    RunColumn.SIZE: _("Size"),
    RunColumn.TAGS: _("Tags"),
}
_EXPLANATIONS = {
    RunColumn.PROGRESS: _("Steps done of the total, and the time left at the current speed"),
    RunColumn.RETURN: _("Mean return of the last episodes, and its curve"),
    RunColumn.SPS: _("Environment steps per second"),
    RunColumn.STARTED: _("When it started; for a queued run, when it was submitted"),
    RunColumn.SIZE: _("Size of its files on disk"),
    RunColumn.TAGS: _("Its tags; for a group, those that all of its runs have"),
}
RIGHT_ALIGNED = frozenset({RunColumn.SEED, RunColumn.RETURN, RunColumn.SPS, RunColumn.DURATION, RunColumn.SIZE})
LIVE_COLUMNS = (RunColumn.STATUS, RunColumn.TAGS)
"""First and last column that change while a run is active, or when it is edited"""
_STATES = (
    _("running"),
    _("stalled"),
    _("pausing"),
    _("cancelling"),
    _("starting"),
    _("faulted"),
    _("paused"),
    _("released"),
    _("queued"),
    _("failed"),
    _("cancelled"),
    _("completed"),
    _("finished"),
)
"""States in the order of the attention they need"""
_STATE_RANKS = {state: rank for rank, state in enumerate(_STATES)}


def tr(text: str) -> str:
    return QCoreApplication.translate("RunsTable", text)


def title_of_column(column: RunColumn) -> str:
    return tr(_TITLES[column])


def explanation_of_column(column: RunColumn) -> str:
    return tr(_EXPLANATIONS[column]) if column in _EXPLANATIONS else title_of_column(column)


def state_text(state: str) -> str:
    """Return the name of a state in the user's language."""
    return tr(state) if state in _STATE_RANKS else state


def rank_of_state(state: str) -> int:
    """Return the rank of a state: what needs attention comes first."""
    return _STATE_RANKS.get(state, len(_STATE_RANKS))


class RunRow:
    """A run in the table; derived values are computed when they are first needed."""

    __slots__ = ("_algo", "_haystack", "_state", "configuration", "entry_id", "is_archived", "number", "run")

    def __init__(self, run: pb.Run) -> None:
        self.entry_id: str = run.run_id
        self.number: int = run.number
        self.run = run
        self.replace(run)

    def replace(self, run: pb.Run) -> None:
        """Replace the record of the run."""
        if run is self.run or run.total != self.run.total or run.extras_json != self.run.extras_json:
            self.configuration: Any = None  # cache of `grouping`
        self.run = run
        self.is_archived: bool = run.archived
        self._state: str | None = None
        self._algo: str | None = None
        self._haystack: str | None = None

    @property
    def state(self) -> str:
        if self._state is None:
            self._state = state_of(self.run)
        return self._state

    @property
    def algo(self) -> str:
        if self._algo is None:
            self._algo = algo_of(self.run)
        return self._algo

    @property
    def haystack(self) -> str:
        """Return the searchable text in lower case, without ids."""
        if self._haystack is None:
            run = self.run
            self._haystack = (
                f"{run.name}\n{self.algo}\n{run.env_id}\n{run.worker_type}\n{self.state}\n"
                f"{chr(10).join(run.tags)}\n{run.notes[:_SEARCHED_NOTES]}"
            ).lower()
        return self._haystack

    def prepare(self) -> None:
        """Compute what a filter needs, so that the first key typed does not wait for thousands of rows."""
        _ = self.haystack

    @property
    def headline_return(self) -> float | None:
        return self.run.episodic_return if self.run.HasField("episodic_return") else None

    @property
    def fraction(self) -> float | None:
        return fraction(self.run)

    def text(self, column: RunColumn) -> str:
        return _TEXTS[column](self)

    def tooltip(self, column: RunColumn) -> str:
        """Return details that do not fit into the cell."""
        run = self.run
        if column is RunColumn.STATUS:
            return "\n".join(filter(None, (state_text(self.state), remark_on(run))))
        if column is RunColumn.NAME:
            tags = tr("Tags: {0}").format(", ".join(run.tags)) if run.tags else ""
            return "\n".join(filter(None, (run.name, run.run_id, tags, run.notes[:500])))
        if column is RunColumn.PROGRESS:
            return _steps_text(run)
        if column is RunColumn.STARTED:
            reported = (
                (tr("Submitted"), run.created_at),
                (tr("Started"), run.started_at),
                (tr("Ended"), run.finished_at),
            )
            return "\n".join(f"{label} {formats.moment(then)}" for label, then in reported if then)
        if column is RunColumn.WORKER and run.worker_id:
            return f"{run.worker_type} · {run.worker_id}"
        return self.text(column)


def _seed_text(row: RunRow) -> str:
    return str(row.run.seed) if row.run.HasField("seed") else ""


def _steps_text(run: pb.Run) -> str:
    if run.total > 0:
        counted = {
            "steps": tr("{0} of {1} steps"),
            "episodes": tr("{0} of {1} episodes"),
            "trials": tr("{0} of {1} trials"),
        }[unit_of(run)]
        return counted.format(formats.count(run.step), formats.count(run.total))
    return tr("{0} steps").format(formats.count(run.step)) if run.step else ""


def _progress_text(row: RunRow) -> str:
    """Return `43 % · 2:10 left`; the bar is painted behind it."""
    run, done = row.run, row.fraction
    if done is None:
        return formats.short_count(run.step) if run.step else ""
    percent = f"{100 * done:.0f} %"
    remaining = run.eta_s if run.HasField("eta_s") else remaining_s(run)
    if run.status == RunStatus.EXEC and remaining is not None and math.isfinite(remaining):
        return tr("{0} · {1} left").format(percent, formats.duration(remaining))
    return percent if run.step or run.status != RunStatus.INIT else ""


def return_text(value: float | None) -> str:
    return "" if value is None else formats.quantity(value)


def _sps_text(row: RunRow) -> str:
    return formats.short_count(row.run.sps) if row.run.HasField("sps") else ""


def started_text(then: float, now: float | None = None) -> str:
    """Return the time for today, else the date."""
    if not then:
        return ""
    moment, today = datetime.fromtimestamp(then), datetime.fromtimestamp(time.time() if now is None else now)
    if moment.date() == today.date():
        return moment.strftime("%H:%M:%S")
    return moment.strftime("%d %b %H:%M" if moment.year == today.year else "%Y-%m-%d")


def _duration_text(row: RunRow) -> str:
    elapsed = elapsed_s(row.run)
    return "" if elapsed is None else formats.duration(elapsed)


_TEXTS: dict[RunColumn, Callable[[RunRow], str]] = {
    RunColumn.STATUS: lambda row: state_text(row.state),
    RunColumn.NAME: lambda row: row.run.name or row.run.run_id,
    RunColumn.WORKER: lambda row: row.run.worker_type,
    RunColumn.ALGORITHM: lambda row: row.algo,
    RunColumn.ENVIRONMENT: lambda row: row.run.env_id,
    RunColumn.SEED: _seed_text,
    RunColumn.PROGRESS: _progress_text,
    RunColumn.RETURN: lambda row: return_text(row.headline_return),
    RunColumn.SPS: _sps_text,
    RunColumn.STARTED: lambda row: started_text(row.run.started_at or row.run.created_at),
    RunColumn.DURATION: _duration_text,
    RunColumn.SIZE: lambda row: formats.size(row.run.size_bytes) if row.run.size_bytes else "",
    RunColumn.TAGS: lambda row: ", ".join(row.run.tags),
}


def _finite(value: float | None) -> float | None:
    # A NaN would leave the whole column unsorted.
    return None if value is None or math.isnan(value) else value


SORT_KEYS: dict[RunColumn, Callable[[RunRow], Any]] = {
    RunColumn.STATUS: lambda row: rank_of_state(row.state),
    RunColumn.NAME: lambda row: row.run.name.lower() or None,
    RunColumn.WORKER: lambda row: row.run.worker_type.lower() or None,
    RunColumn.ALGORITHM: lambda row: row.algo.lower() or None,
    RunColumn.ENVIRONMENT: lambda row: row.run.env_id.lower() or None,
    RunColumn.SEED: lambda row: row.run.seed if row.run.HasField("seed") else None,
    RunColumn.PROGRESS: lambda row: row.fraction,
    RunColumn.RETURN: lambda row: _finite(row.headline_return),
    RunColumn.SPS: lambda row: _finite(row.run.sps) if row.run.HasField("sps") else None,
    RunColumn.STARTED: lambda row: row.run.started_at or row.run.created_at,
    RunColumn.DURATION: lambda row: elapsed_s(row.run),
    RunColumn.SIZE: lambda row: row.run.size_bytes or None,
    RunColumn.TAGS: lambda row: ", ".join(row.run.tags).lower() or None,
}
"""Sort keys of columns; rows without a value (None) come last in both directions"""


def in_order(rows: list[RunRow], column: RunColumn, *, descending: bool) -> list[RunRow]:
    """Return these rows sorted by a column; the sort is stable."""
    key = SORT_KEYS[column]
    keyed = [(key(row), row) for row in rows]
    valued = [pair for pair in keyed if pair[0] is not None]
    valued.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in valued] + [row for value, row in keyed if value is None]


def containing(rows: Iterable[RunRow], term: str) -> list[RunRow]:
    """Return the rows that contain a lower-case term, or whose id begins or ends with it."""
    # Private attribute used for speed: this runs ten thousand times per key press.
    end = _end_of_id(term)
    return [row for row in rows if term in (row._haystack or row.haystack) or _has_end(row.entry_id, end)]


def without(rows: Iterable[RunRow], term: str) -> list[RunRow]:
    end = _end_of_id(term)
    return [row for row in rows if term not in (row._haystack or row.haystack) and not _has_end(row.entry_id, end)]


def _end_of_id(term: str) -> str:
    return term.upper() if len(term) >= _MIN_OF_ID else _NO_ID


def _has_end(run_id: str, end: str) -> bool:
    return run_id.startswith(end) or run_id.endswith(end)
