"""One curve on disk: its points in three columns, and a pyramid of buckets with their extremes and means.

A plot of any range reads about as many records as it draws points, however long the curve is. All of it can be rebuilt
from the event files.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from operator import gt
from pathlib import Path

from mosaic_wire.files import open_plain

FAN_OUT = 16
"""Points of a bucket, and buckets of a bucket of the next level"""
_BUCKET = 8
"""Doubles of a bucket: step and value of its smallest point, the same of its largest, last step, last wall time, sum
and number of its finite values"""
_COLUMNS = (("steps", "q"), ("times", "d"), ("values", "d"))
_LEVELS = 12
"""Enough for 16^12 points"""


@dataclass
class Points:
    """Points of one curve in order."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)

    def extend(self, other: Points) -> None:
        """Append other points."""
        self.steps.extend(other.steps)
        self.times.extend(other.times)
        self.values.extend(other.values)

    def add(self, step: int, time: float, value: float) -> None:
        """Append one point."""
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)

    def slice(self, begin: int, end: int) -> Points:
        """Return the points from index `begin` to `end`."""
        return Points(self.steps[begin:end], self.times[begin:end], self.values[begin:end])


class DamagedSeries(Exception):
    """The files do not match the index; the curve has to be rebuilt."""


class Series:
    """A growing curve; `flush` writes new points. `stem` is the path of its files without a suffix."""

    def __init__(self, stem: Path, stored: int = 0, *, is_sorted: bool = True) -> None:
        self._stem = stem
        self.stored = stored
        self.is_sorted = is_sorted
        """Whether steps never decrease, so that a range of steps is found by bisection"""
        self._recent = Points()
        self._buckets: list[array[float]] = []
        """By level, the buckets that are not on disk yet"""
        self._bucket_counts: list[int] = []
        self._last_step = -(2**63)
        if stored:
            self._check_files()
            self._last_step = int(self._read_column("steps", "q", stored - 1, stored)[0])

    def __len__(self) -> int:
        return self.stored + len(self._recent)

    @property
    def last_step(self) -> int:
        """Return the step of the last point."""
        return self._last_step

    @property
    def unstored(self) -> int:
        """Return the number of points that are not on disk."""
        return len(self._recent)

    # ------------------------------------------------------------------ writing

    def append(self, points: Points) -> None:
        """Add points; `flush` writes them."""
        if not points:
            return
        steps = points.steps
        if steps[0] < self._last_step or any(map(gt, steps, islice(steps, 1, None))):
            self.is_sorted = False
        self._last_step = points.steps[-1]
        self._recent.extend(points)
        self._build()

    def drop_from(self, step: int) -> None:
        """Drop the points at this step and later ones."""
        if self.is_sorted:
            self._truncate(self._index_of(step))
            return
        everything = self._points(0, len(self))
        self._truncate(0)
        self.is_sorted = True
        remaining = Points()
        for index, known in enumerate(everything.steps):
            if known < step:
                remaining.add(known, everything.times[index], everything.values[index])
        self.append(remaining)

    def _truncate(self, count: int) -> None:
        if count >= len(self):
            return
        if count < self.stored:
            for suffix, _ in _COLUMNS:
                _truncate_file(self._path(suffix), 8 * count)
            self._recent, self.stored = Points(), count
        else:
            self._recent = self._recent.slice(0, count - self.stored)
        for level in range(len(self._bucket_counts)):
            self._truncate_level(level, count // FAN_OUT ** (level + 1))
        self._last_step = self._points(count - 1, count).steps[0] if count else -(2**63)

    def _truncate_level(self, level: int, count: int) -> None:
        pending = len(self._buckets[level]) // _BUCKET
        stored = self._bucket_counts[level] - pending
        if count < stored:
            _truncate_file(self._path(f"level{level + 1}"), 8 * _BUCKET * count)
            self._buckets[level] = array("d")
        elif count < self._bucket_counts[level]:
            self._buckets[level] = self._buckets[level][: (count - stored) * _BUCKET]
        self._bucket_counts[level] = min(self._bucket_counts[level], count)

    def _build(self) -> None:
        """Build the buckets that are now full, level by level."""
        below = len(self)
        for level in range(_LEVELS):
            full = below // FAN_OUT
            if level == len(self._bucket_counts):
                if not full:
                    return
                self._buckets.append(array("d"))
                self._bucket_counts.append(0)
            known = self._bucket_counts[level]
            if known < full:
                make = self._buckets_of_points if level == 0 else self._buckets_of_buckets
                self._buckets[level].extend(make(level, known, full))
                self._bucket_counts[level] = full
            below = full

    def _buckets_of_points(self, level: int, begin: int, end: int) -> Iterator[float]:
        points = self._points(begin * FAN_OUT, end * FAN_OUT)
        for at in range(0, len(points), FAN_OUT):
            values = points.values[at : at + FAN_OUT]
            low, high, total, count = min(values), max(values), sum(values), FAN_OUT
            if not (math.isfinite(low) and math.isfinite(high)) or any(map(math.isnan, values)):
                finite = [value for value in values if math.isfinite(value)]
                total, count = sum(finite), len(finite)
                low, high = min(finite, default=math.nan), max(finite, default=math.nan)
            yield points.steps[at + _index(values, low)]
            yield low
            yield points.steps[at + _index(values, high)]
            yield high
            yield points.steps[at + FAN_OUT - 1]
            yield points.times[at + FAN_OUT - 1]
            yield total
            yield count

    def _buckets_of_buckets(self, level: int, begin: int, end: int) -> Iterator[float]:
        below = self._level(level - 1, begin * FAN_OUT, end * FAN_OUT)
        width = FAN_OUT * _BUCKET
        for at in range(0, len(below), width):
            group = below[at : at + width]
            lows, highs = group[1::_BUCKET], group[3::_BUCKET]
            finite = [value for value in lows if not math.isnan(value)] or [math.nan]
            low = _index(lows, min(finite)) * _BUCKET
            finite = [value for value in highs if not math.isnan(value)] or [math.nan]
            high = _index(highs, max(finite)) * _BUCKET
            yield from (group[low], group[low + 1], group[high + 2], group[high + 3], group[-4], group[-3])
            yield sum(group[6::_BUCKET])
            yield sum(group[7::_BUCKET])

    # ------------------------------------------------------------------ files

    def flush(self) -> None:
        """Append new points to the files; the index, which states how many count, must be written afterwards."""
        for suffix, _ in _COLUMNS:
            _append(self._path(suffix), getattr(self._recent, suffix))
        self.stored += len(self._recent)
        self._recent = Points()
        for level, pending in enumerate(self._buckets):
            _append(self._path(f"level{level + 1}"), pending)
            self._buckets[level] = array("d")

    def _check_files(self) -> None:
        """Truncate what a killed daemon appended after its last index; raise DamagedSeries if files are too short."""
        count, level = self.stored, 0
        for suffix, _ in _COLUMNS:
            self._fit(self._path(suffix), 8 * count)
        while (count := count // FAN_OUT) and level < _LEVELS:
            self._fit(self._path(f"level{level + 1}"), 8 * _BUCKET * count)
            self._buckets.append(array("d"))
            self._bucket_counts.append(count)
            level += 1

    @staticmethod
    def _fit(path: Path, size: int) -> None:
        try:
            found = path.lstat().st_size
        except FileNotFoundError:
            found = 0
        if found < size:
            raise DamagedSeries(f"{path} has {found} bytes, its index says {size}")
        if found > size:
            _truncate_file(path, size)

    def _path(self, suffix: str) -> Path:
        return self._stem.with_suffix(f".{suffix}")

    def _read_column(self, suffix: str, kind: str, begin: int, end: int) -> array[float]:
        return _read(self._path(suffix), kind, begin, end)

    # ------------------------------------------------------------------ reading

    def points(self, begin: int, end: int, most: int) -> Points:
        """Return points `begin` to `end`, or about `most` of them that keep the extremes."""
        begin, end = max(0, begin), min(end, len(self))
        if end - begin <= most or most <= 0 or not self._bucket_counts:
            return self._points(begin, end)
        level, width = 0, FAN_OUT
        while 2 * (end - begin) // width > most and level + 1 < len(self._bucket_counts):
            level, width = level + 1, width * FAN_OUT
        shown = Points()
        self._show(shown, level, begin, end)
        last = self._points(end - 1, end)  # the last point is always shown
        if (shown.steps[-1], shown.values[-1]) != (last.steps[0], last.values[0]):
            shown.extend(last)
        return shown

    def means(self, begin: int, end: int, most: int) -> Points:
        """Return points `begin` to `end`, or about `most`, each the mean of a bucket at its last step.

        Use means to smooth a curve or average it with others; the middle of two extremes is not a mean.
        """
        begin, end = max(0, begin), min(end, len(self))
        if end - begin <= most or most <= 0:
            return self._points(begin, end)
        bucket_size = -(-(end - begin) // most)
        level = min(int(math.log(bucket_size, FAN_OUT)), len(self._bucket_counts)) - 1
        shown = Points()
        points, total, count = 0, 0.0, 0.0
        step, time = 0.0, 0.0
        for width, step, time, part, finite in self._sums(level, begin, end):
            points, total, count = points + width, total + part, count + finite
            if points >= bucket_size:
                shown.add(int(step), time, total / count if count else math.nan)
                points, total, count = 0, 0.0, 0.0
        if points:
            shown.add(int(step), time, total / count if count else math.nan)
        return shown

    def between(self, first_step: int, last_step: int, most: int, *, means: bool = False) -> Points:
        """Return points (or means) of a range of steps, both ends included."""
        read = self.means if means else self.points
        if self.is_sorted:
            return read(self._index_of(first_step), self._index_of(last_step + 1), most)
        return read(0, len(self), most)

    def _show(self, shown: Points, level: int, begin: int, end: int) -> None:
        """Add a range to `shown`: single points, and the extremes of buckets."""
        for _, part in self._cover(level, begin, end):
            if isinstance(part, Points):
                shown.extend(part)
                continue
            for at in range(0, len(part), _BUCKET):
                low_step, low, high_step, high, _, time = part[at : at + 6]
                pairs = ((low_step, low), (high_step, high))
                if high_step < low_step:
                    pairs = pairs[::-1]
                shown.add(int(pairs[0][0]), time, pairs[0][1])
                if pairs[0] != pairs[1]:
                    shown.add(int(pairs[1][0]), time, pairs[1][1])

    def _sums(self, level: int, begin: int, end: int) -> Iterator[tuple[int, float, float, float, float]]:
        """Yield parts of a range: number of points, last step and time, sum and number of finite values."""
        for width, part in self._cover(level, begin, end):
            if isinstance(part, Points):
                for step, time, value in zip(part.steps, part.times, part.values, strict=True):
                    is_finite = math.isfinite(value)
                    yield 1, step, time, value if is_finite else 0.0, float(is_finite)
            else:
                for at in range(0, len(part), _BUCKET):
                    last_step, last_time, total, count = part[at + 4 : at + 8]
                    yield width, last_step, last_time, total, count

    def _cover(self, level: int, begin: int, end: int) -> Iterator[tuple[int, Points | array[float]]]:
        """Yield the parts that cover a range, with their widths: large buckets, smaller ones at its ends."""
        width = FAN_OUT ** (level + 1)
        if level < 0:
            yield 1, self._points(begin, end)
            return
        first, last = -(-begin // width), min(end // width, self._bucket_counts[level])
        if first >= last:
            yield from self._cover(level - 1, begin, end)
            return
        if begin < first * width:
            yield from self._cover(level - 1, begin, first * width)
        yield width, self._level(level, first, last)
        if last * width < end:
            yield from self._cover(level - 1, last * width, end)

    def _points(self, begin: int, end: int) -> Points:
        split = min(max(begin, self.stored), end)
        stored = Points()
        if begin < self.stored:
            for suffix, kind in _COLUMNS:
                setattr(stored, suffix, self._read_column(suffix, kind, begin, min(end, self.stored)))
        stored.extend(self._recent.slice(split - self.stored, max(end - self.stored, 0)))
        return stored

    def _level(self, level: int, begin: int, end: int) -> array[float]:
        pending = self._buckets[level]
        stored = self._bucket_counts[level] - len(pending) // _BUCKET
        found = array("d")
        if begin < stored:
            found = _read(self._path(f"level{level + 1}"), "d", begin * _BUCKET, min(end, stored) * _BUCKET)
        found.extend(pending[max(0, begin - stored) * _BUCKET : max(0, end - stored) * _BUCKET])
        return found

    def _index_of(self, step: int) -> int:
        """Return the index of the first point at or after a step."""
        if self._recent and self._recent.steps[0] < step:
            return self.stored + bisect_left(self._recent.steps, step)
        low, high = 0, self.stored
        while low < high:
            middle = (low + high) // 2
            if self._read_column("steps", "q", middle, middle + 1)[0] < step:
                low = middle + 1
            else:
                high = middle
        return low


def _index(values: array[float], value: float) -> int:
    """Return the index of a value; 0 for NaN, which equals nothing."""
    return 0 if math.isnan(value) else values.index(value)


def _append(path: Path, values: array[float]) -> None:
    if values:
        with open_plain(path, "ab") as stream:
            values.tofile(stream)


def _truncate_file(path: Path, size: int) -> None:
    with open_plain(path, "r+b") as stream:
        stream.truncate(size)


def _read(path: Path, kind: str, begin: int, end: int) -> array[float]:
    found: array[float] = array(kind)
    try:
        with open_plain(path) as stream:
            stream.seek(begin * found.itemsize)
            found.fromfile(stream, end - begin)
    except (EOFError, FileNotFoundError) as error:
        raise DamagedSeries(f"{path} ends before item {end}") from error
    return found
