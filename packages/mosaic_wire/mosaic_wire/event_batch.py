"""What a reader of event files gives: scalars in columns, texts, and what was wrong with the file."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Scalar(NamedTuple):
    """One point of one curve."""

    tag: str
    step: int
    wall_time: float
    value: float


class TextSummary(NamedTuple):
    """A text somebody wrote beside the numbers, such as the hyperparameters."""

    tag: str
    step: int
    wall_time: float
    text: str


@dataclass(frozen=True)
class DamagedRecord:
    """A record that is not what was written; nothing of it was believed."""

    path: Path
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: the record at byte {self.offset} is damaged and was left out: {self.reason}"


@dataclass(slots=True)
class ScalarColumn:
    """The points of one tag, in the order of the file; `numpy.frombuffer` takes the arrays without a copy."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    wall_times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)

    def drop_from(self, step: int) -> None:
        """Forget the points at this step and after it."""
        kept = [index for index, known in enumerate(self.steps) if known < step]
        if len(kept) < len(self.steps):
            self.steps = array("q", (self.steps[index] for index in kept))
            self.wall_times = array("d", (self.wall_times[index] for index in kept))
            self.values = array("d", (self.values[index] for index in kept))


@dataclass
class EventBatch:
    """What was added to the event files of one folder since the last read.

    To apply it: forget everything when `is_reset`, then every point from step `drop_from` on, then add the columns.
    """

    folder: str = ""
    """The files' folder below the one that is watched, "" for that one itself; each is a set of curves of its own"""
    is_reset: bool = False
    """A file was cut, replaced or removed; this batch begins again at the first record of the folder"""
    drop_from: int | None = None
    """A new session started at this step: what was written before with this step or a later one no longer counts"""
    columns: dict[str, ScalarColumn] = field(default_factory=dict)
    texts: list[TextSummary] = field(default_factory=list)
    problems: list[DamagedRecord] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.is_reset or self.drop_from is not None or self.columns or self.texts or self.problems)

    def __len__(self) -> int:
        """Number of points."""
        return sum(map(len, self.columns.values()))

    def scalars(self) -> Iterator[Scalar]:
        """Every point, tag by tag."""
        for tag, column in self.columns.items():
            for step, wall_time, value in zip(column.steps, column.wall_times, column.values, strict=True):
                yield Scalar(tag, step, wall_time, value)

    def add(self, tag: str, step: int, wall_time: float, value: float) -> None:
        column = self.column(tag)
        column.steps.append(step)
        column.wall_times.append(wall_time)
        column.values.append(value)

    def column(self, tag: str) -> ScalarColumn:
        column = self.columns.get(tag)
        if column is None:
            column = self.columns[tag] = ScalarColumn()
        return column

    def restart(self, step: int) -> None:
        """A session starts at this step: it writes again what an earlier one had written from there on."""
        self.drop_from = step if self.drop_from is None else min(step, self.drop_from)
        for tag, column in list(self.columns.items()):
            column.drop_from(step)
            if not column:
                del self.columns[tag]
        self.texts = [text for text in self.texts if text.step < step]
