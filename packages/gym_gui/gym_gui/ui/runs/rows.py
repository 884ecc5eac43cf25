"""One run as the table knows it: what its cells say, what it is sorted by, what a filter looks through. No widgets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from enum import IntEnum
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QCoreApplication

from gym_gui.wording import formats
from gym_gui.wording.run_view import algo_of, elapsed_s, fraction, remaining_s, remark_on, state_of, unit_of

_SEARCHED_NOTES = 2_000
"""Characters of a note that a filter looks through; a note may be a whole page"""

_MIN_OF_ID, _NO_ID = 4, "-"
"""Characters of a word that may begin or end an id, as in the daemon; what neither begins nor ends one"""


def QT_TRANSLATE_NOOP(context: str, text: str) -> str:
    """Mark a text for translation and return it as it is; Qt's own returns just any object."""
    return text


class Column(IntEnum):
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


HIDDEN_AT_FIRST = frozenset({Column.TAGS})
"""Most people have none; the menu of columns offers it"""

_CONTEXT = "RunsTable"
_TITLES = {
    Column.STATUS: QT_TRANSLATE_NOOP("RunsTable", "Status"),
    Column.NAME: QT_TRANSLATE_NOOP("RunsTable", "Name"),
    Column.WORKER: QT_TRANSLATE_NOOP("RunsTable", "Worker"),
    Column.ALGORITHM: QT_TRANSLATE_NOOP("RunsTable", "Algorithm"),
    Column.ENVIRONMENT: QT_TRANSLATE_NOOP("RunsTable", "Environment"),
    Column.SEED: QT_TRANSLATE_NOOP("RunsTable", "Seed"),
    Column.PROGRESS: QT_TRANSLATE_NOOP("RunsTable", "Progress"),
    Column.RETURN: QT_TRANSLATE_NOOP("RunsTable", "Return"),
    Column.SPS: QT_TRANSLATE_NOOP("RunsTable", "Steps/s"),
    Column.STARTED: QT_TRANSLATE_NOOP("RunsTable", "Started"),
    Column.DURATION: QT_TRANSLATE_NOOP("RunsTable", "Duration"),
    Column.SIZE: QT_TRANSLATE_NOOP("RunsTable", "Size"),
    Column.TAGS: QT_TRANSLATE_NOOP("RunsTable", "Tags"),
}
_EXPLANATIONS = {
    Column.PROGRESS: QT_TRANSLATE_NOOP(
        "RunsTable", "Steps done of those wanted, and the time left at the present speed"
    ),
    Column.RETURN: QT_TRANSLATE_NOOP("RunsTable", "Mean return of the last episodes, and how it came about"),
    Column.SPS: QT_TRANSLATE_NOOP("RunsTable", "Environment steps per second"),
    Column.STARTED: QT_TRANSLATE_NOOP("RunsTable", "When it began to work; of a queued run, when it was submitted"),
    Column.SIZE: QT_TRANSLATE_NOOP("RunsTable", "What its files take on disk"),
    Column.TAGS: QT_TRANSLATE_NOOP("RunsTable", "What people marked it with; of a group, what all of its runs have"),
}
RIGHT_ALIGNED = frozenset({Column.SEED, Column.RETURN, Column.SPS, Column.DURATION, Column.SIZE})
LIVE_COLUMNS = (
    Column.STATUS, Column.PROGRESS, Column.RETURN, Column.SPS, Column.STARTED, Column.DURATION, Column.SIZE,
    Column.TAGS,
)  # fmt: skip
"""What changes while a run works, or when somebody edits it"""
_STATE_ORDER = (
    "running", "stalled", "pausing", "cancelling", "starting", "faulted", "paused", "released", "queued", "failed",
    "cancelled", "completed", "finished",
)  # fmt: skip
_STATE_RANKS = {state: rank for rank, state in enumerate(_STATE_ORDER)}

_STATE_TEXTS = {
    "queued": QT_TRANSLATE_NOOP("RunsTable", "queued"),
    "starting": QT_TRANSLATE_NOOP("RunsTable", "starting"),
    "running": QT_TRANSLATE_NOOP("RunsTable", "running"),
    "stalled": QT_TRANSLATE_NOOP("RunsTable", "stalled"),
    "pausing": QT_TRANSLATE_NOOP("RunsTable", "pausing"),
    "paused": QT_TRANSLATE_NOOP("RunsTable", "paused"),
    "released": QT_TRANSLATE_NOOP("RunsTable", "released"),
    "cancelling": QT_TRANSLATE_NOOP("RunsTable", "cancelling"),
    "faulted": QT_TRANSLATE_NOOP("RunsTable", "faulted"),
    "finished": QT_TRANSLATE_NOOP("RunsTable", "finished"),
    "completed": QT_TRANSLATE_NOOP("RunsTable", "completed"),
    "failed": QT_TRANSLATE_NOOP("RunsTable", "failed"),
    "cancelled": QT_TRANSLATE_NOOP("RunsTable", "cancelled"),
}


def tr(text: str) -> str:
    return QCoreApplication.translate(_CONTEXT, text)


def title_of_column(column: Column) -> str:
    return tr(_TITLES[column])


def explanation_of_column(column: Column) -> str:
    return tr(_EXPLANATIONS[column]) if column in _EXPLANATIONS else title_of_column(column)


def state_text(state: str) -> str:
    """The word of `state_of` in the person's language."""
    return tr(_STATE_TEXTS[state]) if state in _STATE_TEXTS else state


def rank_of_state(state: str) -> int:
    """What needs attention first."""
    return _STATE_RANKS.get(state, len(_STATE_RANKS))


class Row:
    """A run in the table. What is derived from its record is worked out when it is first asked for."""

    __slots__ = ("_algo", "_haystack", "_state", "configuration", "entry_id", "is_archived", "number", "run")

    def __init__(self, run: pb.Run) -> None:
        self.entry_id: str = run.run_id
        self.number: int = run.number
        self.run = run
        self.replace(run)

    def replace(self, run: pb.Run) -> None:
        """Take a newer record of the same run."""
        if run is self.run or run.total != self.run.total or run.extras_json != self.run.extras_json:
            self.configuration: Any = None  # what `grouping` found out about it
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
        """Everything that a word of the filter is looked for in, in lower case; ids are random and not in it."""
        if self._haystack is None:
            run = self.run
            self._haystack = (
                f"{run.name}\n{self.algo}\n{run.env_id}\n{run.worker_type}\n{self.state}\n"
                f"{chr(10).join(run.tags)}\n{run.notes[:_SEARCHED_NOTES]}"
            ).lower()
        return self._haystack

    def prepare(self) -> None:
        """Work out what a filter will ask for; the first key typed need not wait for ten thousand of these."""
        _ = self.haystack

    @property
    def headline_return(self) -> float | None:
        return self.run.episodic_return if self.run.HasField("episodic_return") else None

    @property
    def fraction(self) -> float | None:
        return fraction(self.run)

    def text(self, column: Column) -> str:
        return _TEXTS[column](self)

    def tooltip(self, column: Column) -> str:
        """What the cell has no room for."""
        run = self.run
        if column is Column.STATUS:
            return "\n".join(filter(None, (state_text(self.state), remark_on(run))))
        if column is Column.NAME:
            tags = tr("Tags: {0}").format(", ".join(run.tags)) if run.tags else ""
            return "\n".join(filter(None, (run.name, run.run_id, tags, run.notes[:500])))
        if column is Column.PROGRESS:
            return _steps_text(run)
        if column is Column.STARTED:
            told = ((tr("Submitted"), run.created_at), (tr("Started"), run.started_at), (tr("Ended"), run.finished_at))
            return "\n".join(f"{word} {formats.moment(then)}" for word, then in told if then)
        if column is Column.WORKER and run.worker_id:
            return f"{run.worker_type} · {run.worker_id}"
        return self.text(column)


def _seed_text(row: Row) -> str:
    return str(row.run.seed) if row.run.HasField("seed") else ""


def _steps_text(run: pb.Run) -> str:
    if run.total > 0:
        counted = {
            "steps": tr("{0} of {1} steps"), "episodes": tr("{0} of {1} episodes"), "trials": tr("{0} of {1} trials"),
        }[unit_of(run)]  # fmt: skip
        return counted.format(formats.count(run.step), formats.count(run.total))
    return tr("{0} steps").format(formats.count(run.step)) if run.step else ""


def _progress_text(row: Row) -> str:
    """`43 % · 2:10 left`; the bar itself is painted behind it."""
    run, done = row.run, row.fraction
    if done is None:
        return formats.short_count(run.step) if run.step else ""
    percent = f"{100 * done:.0f} %"
    remaining = run.eta_s if run.HasField("eta_s") else remaining_s(run)
    if run.status == "EXEC" and remaining is not None and math.isfinite(remaining):
        return tr("{0} · {1} left").format(percent, formats.duration(remaining))
    return percent if run.step or run.status != "INIT" else ""


def return_text(value: float | None) -> str:
    return "" if value is None else formats.quantity(value)


def _sps_text(row: Row) -> str:
    return formats.short_count(row.run.sps) if row.run.HasField("sps") else ""


def started_text(then: float, now: float | None = None) -> str:
    """The hour when it was today, the date otherwise."""
    if not then:
        return ""
    moment, today = datetime.fromtimestamp(then), datetime.fromtimestamp(time.time() if now is None else now)
    if moment.date() == today.date():
        return moment.strftime("%H:%M:%S")
    return moment.strftime("%d %b %H:%M" if moment.year == today.year else "%Y-%m-%d")


def _duration_text(row: Row) -> str:
    elapsed = elapsed_s(row.run)
    return "" if elapsed is None else formats.duration(elapsed)


_TEXTS: dict[Column, Callable[[Row], str]] = {
    Column.STATUS: lambda row: state_text(row.state),
    Column.NAME: lambda row: row.run.name or row.run.run_id,
    Column.WORKER: lambda row: row.run.worker_type,
    Column.ALGORITHM: lambda row: row.algo,
    Column.ENVIRONMENT: lambda row: row.run.env_id,
    Column.SEED: _seed_text,
    Column.PROGRESS: _progress_text,
    Column.RETURN: lambda row: return_text(row.headline_return),
    Column.SPS: _sps_text,
    Column.STARTED: lambda row: started_text(row.run.started_at or row.run.created_at),
    Column.DURATION: _duration_text,
    Column.SIZE: lambda row: formats.size(row.run.size_bytes) if row.run.size_bytes else "",
    Column.TAGS: lambda row: ", ".join(row.run.tags),
}


def _finite(value: float | None) -> float | None:
    # NaN is neither below nor above anything: one would leave the whole column unsorted.
    return None if value is None or math.isnan(value) else value


SORT_KEYS: dict[Column, Callable[[Row], Any]] = {
    Column.STATUS: lambda row: rank_of_state(row.state),
    Column.NAME: lambda row: row.run.name.lower() or None,
    Column.WORKER: lambda row: row.run.worker_type.lower() or None,
    Column.ALGORITHM: lambda row: row.algo.lower() or None,
    Column.ENVIRONMENT: lambda row: row.run.env_id.lower() or None,
    Column.SEED: lambda row: row.run.seed if row.run.HasField("seed") else None,
    Column.PROGRESS: lambda row: row.fraction,
    Column.RETURN: lambda row: _finite(row.headline_return),
    Column.SPS: lambda row: _finite(row.run.sps) if row.run.HasField("sps") else None,
    Column.STARTED: lambda row: row.run.started_at or row.run.created_at,
    Column.DURATION: lambda row: elapsed_s(row.run),
    Column.SIZE: lambda row: row.run.size_bytes or None,
    Column.TAGS: lambda row: ", ".join(row.run.tags).lower() or None,
}
"""What a column is sorted by; rows without a value (None) come last, whichever way it is sorted"""


def in_order(rows: list[Row], column: Column, *, descending: bool) -> list[Row]:
    """These rows sorted by a column; equal ones stay as they are."""
    key = SORT_KEYS[column]
    keyed = [(key(row), row) for row in rows]
    valued = [pair for pair in keyed if pair[0] is not None]
    valued.sort(key=lambda pair: pair[0], reverse=descending)
    return [row for _, row in valued] + [row for value, row in keyed if value is None]


def containing(rows: Iterable[Row], word: str) -> list[Row]:
    """Those that have a word (in lower case) somewhere, or whose id begins or ends with it."""
    # Reached into for speed: this is what happens ten thousand times at every key.
    end = _end_of_id(word)
    return [row for row in rows if word in (row._haystack or row.haystack) or _has_end(row.entry_id, end)]


def without(rows: Iterable[Row], word: str) -> list[Row]:
    end = _end_of_id(word)
    return [row for row in rows if word not in (row._haystack or row.haystack) and not _has_end(row.entry_id, end)]


def _end_of_id(word: str) -> str:
    return word.upper() if len(word) >= _MIN_OF_ID else _NO_ID


def _has_end(run_id: str, end: str) -> bool:
    return run_id.startswith(end) or run_id.endswith(end)
