"""Lines of a log file of any size, without loading it: an index of every hundredth line, and reads around one place.

    index = LineIndex(path)
    while not index.extend():                    # in a thread; a stretch of the file each time
        …
    index.read(12_000_000, 60)                   # those sixty lines, wherever they lie

A gigabyte of output costs less than a megabyte of index. A line longer than MAX_LINE_BYTES counts as several, so that a
file without line ends is no worse than any other. Nothing here knows of Qt.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from mosaic_wire.files import open_plain

from gym_gui.logging_config.log_constants import ALL_CODES
from gym_gui.wording.plain_text import printable, without_escapes

STRIDE = 128
"""Lines between two remembered places"""
MAX_LINE_BYTES = 16 * 1024
BLOCK_BYTES = 256 * 1024
"""Read at once; Python holds its lock while it looks through one, and the window wants to draw meanwhile"""
STRETCH_BYTES = 16 << 20
"""What one call of `extend` reads at most"""
TAIL_BYTES = 256 * 1024
MAX_HITS = 100_000


@dataclass(frozen=True)
class LogLine:
    """One line as it is shown."""

    number: int | None
    """From 1; None while the lines before it are not counted yet"""
    text: str


class LogLevel(Enum):
    """Which lines somebody wants to see."""

    ALL = "all"
    WARNINGS = "warnings"
    ERRORS = "errors"
    STRUCTURED = "structured"


_LOUD_CODES = "|".join(code.code for code in ALL_CODES if code.level >= 40)
_ERRORS = (
    r"\b(?:ERROR|CRITICAL|FATAL)\b|^Traceback |^[\w.]*(?:Error|Exception|Interrupt)(?::|$)"
    rf'|^(?:{_LOUD_CODES}) \||"event":"run_failed"'
)
_WARNINGS = r"\bWARN(?:ING)?\b|\bwarning: |Warning: "
_STRUCTURED = r'^LOG\d{1,6} \| |^\{"event":'
_PATTERNS = {
    LogLevel.WARNINGS: f"{_ERRORS}|{_WARNINGS}",
    LogLevel.ERRORS: _ERRORS,
    LogLevel.STRUCTURED: _STRUCTURED,
}
_ERROR_WORDS = (b"ERROR", b"CRITICAL", b"FATAL", b"Traceback ", b"Error", b"Exception", b"Interrupt", b'"run_failed"',
                *(code.code.encode() for code in ALL_CODES if code.level >= 40))  # fmt: skip
_WORDS = {
    LogLevel.WARNINGS: (*_ERROR_WORDS, b"WARN", b"arning: "),
    LogLevel.ERRORS: _ERROR_WORDS,
    LogLevel.STRUCTURED: (b"LOG", b'{"event":'),
}
"""A line of the level holds one of these: finding words is ten times as fast as trying a pattern everywhere"""
_ERROR_LINE, _WARNING_LINE = re.compile(_ERRORS), re.compile(_WARNINGS)


def level_of(text: str) -> LogLevel:
    """How loud a shown line is: ERRORS, WARNINGS or ALL."""
    if _ERROR_LINE.search(text):
        return LogLevel.ERRORS
    return LogLevel.WARNINGS if _WARNING_LINE.search(text) else LogLevel.ALL


def as_shown(data: bytes) -> str:
    """Bytes of a line as text: no colours of a terminal, and of a progress bar that redraws itself its last state."""
    text = data.decode("utf-8", "replace").rstrip("\r\n")
    if "\r" in text:
        text = text.rpartition("\r")[2]
    return printable(without_escapes(text).expandtabs(4))


class _LineCounter:
    """Where lines begin in a stream of blocks; long ones are parted."""

    def __init__(self) -> None:
        self.scanned = 0
        self.line_start = 0
        self.starts = 1
        """Beginnings so far, that of the line which is not over yet included"""

    @property
    def lines(self) -> int:
        return self.starts - (self.line_start == self.scanned)

    def feed(self, block: bytes) -> npt.NDArray[np.int64]:
        """Beginnings of lines in (and right after) this block, which continues what was fed before."""
        found = np.flatnonzero(np.frombuffer(block, np.uint8) == 10).astype(np.int64) + (self.scanned + 1)
        self.scanned += len(block)
        bounds = np.concatenate(([self.line_start], found, [self.scanned]))
        if int(np.max(np.diff(bounds))) > MAX_LINE_BYTES:
            pieces = [
                np.append(np.arange(begin + MAX_LINE_BYTES, end, MAX_LINE_BYTES, dtype=np.int64), end)
                for begin, end in zip(bounds[:-2], found, strict=True)
            ]
            pieces.append(np.arange(bounds[-2] + MAX_LINE_BYTES, self.scanned, MAX_LINE_BYTES, dtype=np.int64))
            found = np.concatenate(pieces)
        if len(found):
            self.line_start = int(found[-1])
            self.starts += len(found)
        return found


class LineIndex:
    """Where every STRIDE-th line of a growing file begins. One thread extends it; any thread may read lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        """Counts how often the file was cut or replaced, and the index begun anew"""
        self.lines = 0
        self.size = 0
        """Of the file, when it was last looked at"""
        self._begin()

    def _begin(self) -> None:
        self._counter = _LineCounter()
        self._places = array("Q", [0])
        self._inode = 0
        self.lines = 0

    @property
    def scanned(self) -> int:
        return self._counter.scanned

    @property
    def index_bytes(self) -> int:
        """Memory that the index takes."""
        return self._places.buffer_info()[1] * self._places.itemsize

    def extend(self, budget: int = STRETCH_BYTES, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Read on, at most so many bytes; True when the end is reached. OSError when the file cannot be read."""
        with open_plain(self.path) as stream:
            status = os.fstat(stream.fileno())
            if status.st_size < self._counter.scanned or self._inode not in (0, status.st_ino):
                self._begin()  # it outgrew its cap and was cut, or another file took its place
                self.generation += 1
            self._inode, self.size = status.st_ino, status.st_size
            stream.seek(self._counter.scanned)
            while budget > 0 and not stopped():
                block = stream.read(min(BLOCK_BYTES, budget))
                if not block:
                    self.size = max(self.size, self._counter.scanned)
                    return True
                budget -= len(block)
                self._take(block)
        return self._counter.scanned >= self.size

    def _take(self, block: bytes) -> None:
        number = self._counter.starts  # of the first beginning that this block adds
        found = self._counter.feed(block)
        self._places.extend(found[(-number) % STRIDE :: STRIDE].tolist())
        self.lines = self._counter.lines

    def read(self, first: int, count: int) -> list[LogLine]:
        """These lines (counted from 0), fewer where the file ends."""
        first = max(0, first)
        if count <= 0 or first >= self.lines:
            return []
        place = min(first // STRIDE, len(self._places) - 1)
        with open_plain(self.path) as stream:
            stream.seek(self._places[place])
            skipped = first - place * STRIDE
            wanted = min(count, self.lines - first)
            found: list[LogLine] = []
            for position, data in enumerate(_pieces(stream)):
                if position >= skipped:
                    found.append(LogLine(first + len(found) + 1, as_shown(data)))
                    if len(found) == wanted:
                        break
            return found


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    """Lines from here on as `_LineCounter` counts them."""
    while line := stream.readline(MAX_LINE_BYTES):
        yield line


def read_tail(path: Path, count: int = 2000) -> list[LogLine]:
    """The last lines of a file that is not counted yet."""
    with open_plain(path) as stream:
        size = stream.seek(0, os.SEEK_END)
        start = max(0, size - TAIL_BYTES)
        stream.seek(start)
        lines = list(_pieces(stream))
    if start > 0:
        lines = lines[1:] or lines  # the first one begins before what was read
    return [LogLine(None, as_shown(data)) for data in lines[-count:]]


@dataclass
class Hits:
    """Lines of a file that hold what was looked for."""

    path: Path
    numbers: array[int] = field(default_factory=lambda: array("Q"))
    """From 0"""
    places: array[int] = field(default_factory=lambda: array("Q"))
    is_cut: bool = False
    """There are more than MAX_HITS"""

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, first: int, count: int) -> list[LogLine]:
        """These of the hits, as lines with their numbers in the file."""
        first = max(0, first)
        found = []
        with open_plain(self.path) as stream:
            for position in range(first, min(first + count, len(self.numbers))):
                stream.seek(self.places[position])
                found.append(LogLine(self.numbers[position] + 1, as_shown(stream.readline(MAX_LINE_BYTES))))
        return found


class Finder:
    """Looks through a growing file for lines of a level that hold a text, in whatever case; a stretch at a time."""

    def __init__(self, path: Path, level: LogLevel, text: str, *, max_hits: int = MAX_HITS) -> None:
        self.hits = Hits(path)
        self._pattern = re.compile(_PATTERNS[level].encode()) if level in _PATTERNS else None
        self._words = _WORDS.get(level, ())
        self._needle = text.lower().encode()
        self._max_hits = max_hits
        self._counter = _LineCounter()

    @property
    def scanned(self) -> int:
        return self._counter.scanned

    def extend(self, budget: int = STRETCH_BYTES, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Read on, at most so many bytes; True when the end is reached or there is no room for more hits."""
        with open_plain(self.hits.path) as stream:
            stream.seek(self._counter.scanned)
            rest = b""
            while budget > 0 and not stopped() and not self.hits.is_cut:
                block = stream.read(BLOCK_BYTES)
                data = rest + block
                if not data:
                    return True
                # Whole lines only: what is looked for must not lie across two blocks.
                end = data.rfind(b"\n") + 1 if block else len(data)
                if end == 0 and len(data) >= BLOCK_BYTES:
                    end = len(data)
                data, rest = data[:end], data[end:]
                budget -= len(data)
                if data:
                    self._collect(data)
        return self.hits.is_cut

    def _collect(self, data: bytes) -> None:
        counter, hits = self._counter, self.hits
        base, before, begin = counter.scanned, counter.starts, counter.line_start
        starts = np.concatenate(([begin], counter.feed(data)))
        lowered = data.lower() if self._needle else b""
        words = self._words or (self._needle,)
        places = chain.from_iterable(_occurrences(data if self._words else lowered, word) for word in words)
        positions = np.fromiter(places, np.int64) + base
        rows = np.unique(np.searchsorted(starts, positions, side="right") - 1).tolist()
        if self._pattern is not None:
            ends = np.append(starts[1:], counter.scanned)
            spans = ((row, max(0, int(starts[row]) - base), int(ends[row]) - base) for row in rows)
            rows = [row for row, start, end in spans if self._fits(data, lowered, start, end)]
        known = hits.numbers[-1] if len(hits) else -1
        for row in rows:
            number = before - 1 + row
            if number == known:
                continue  # the line began in the block before
            if len(hits) >= self._max_hits:
                hits.is_cut = True
                return
            hits.places.append(int(starts[row]))
            hits.numbers.append(number)

    def _fits(self, data: bytes, lowered: bytes, start: int, end: int) -> bool:
        """Whether this line is of the level, and holds the text."""
        assert self._pattern is not None
        if self._needle and lowered.find(self._needle, start, end) < 0:
            return False
        return self._pattern.search(data[start:end].rstrip(b"\r\n")) is not None


def _occurrences(data: bytes, word: bytes) -> Iterator[int]:
    at = data.find(word)
    while at >= 0:
        yield at
        at = data.find(word, at + len(word))
