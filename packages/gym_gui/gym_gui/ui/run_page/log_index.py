"""Index, read and search log files of any size without loading them; find the logs of a run. No Qt.

    index = LineIndex(path)
    while not index.extend():                    # in a thread; one chunk of the file per call
        …
    index.read(12_000_000, 60)                   # sixty lines from there

The index of a gigabyte takes less than a megabyte. A line longer than MAX_LINE_BYTES counts as several, so a file
without line ends needs no special case.
"""

from __future__ import annotations

import os
import re
import stat
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
from mosaic_wire.files import open_plain
from mosaic_wire.paths import RunFolder
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.logging_config.log_constants import ALL_CODES
from gym_gui.wording.formats import printable, without_escapes

STRIDE = 128
"""Lines between two entries of the index"""
MAX_LINE_BYTES = 16 * 1024
BLOCK_BYTES = 256 * 1024
"""Bytes per read: a search holds the GIL, and the window must draw in between"""
CHUNK_BYTES = 16 << 20
"""Bytes that one call of `extend` reads at most"""
TAIL_BYTES = 256 * 1024
MAX_HITS = 100_000


@dataclass(frozen=True)
class LogLine:
    """One line to display."""

    number: int | None
    """From 1; None while the preceding lines are not counted"""
    text: str


class LogLevel(Enum):
    """Filter of lines."""

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
_PATTERNS = {LogLevel.WARNINGS: f"{_ERRORS}|{_WARNINGS}", LogLevel.ERRORS: _ERRORS, LogLevel.STRUCTURED: _STRUCTURED}
_ERROR_TERMS = (
    b"ERROR",
    b"CRITICAL",
    b"FATAL",
    b"Traceback ",
    b"Error",
    b"Exception",
    b"Interrupt",
    b'"run_failed"',
    *(code.code.encode() for code in ALL_CODES if code.level >= 40),
)
_LEVEL_TERMS = {
    LogLevel.WARNINGS: (*_ERROR_TERMS, b"WARN", b"arning: "),
    LogLevel.ERRORS: _ERROR_TERMS,
    LogLevel.STRUCTURED: (b"LOG", b'{"event":'),
}
"""Terms of which every line of a level holds at least one: ten times faster than a regular expression for each line"""
_ERROR_LINE, _WARNING_LINE = re.compile(_ERRORS), re.compile(_WARNINGS)


def level_of(text: str) -> LogLevel:
    """Return the level of a line: ERRORS, WARNINGS or ALL."""
    if _ERROR_LINE.search(text):
        return LogLevel.ERRORS
    return LogLevel.WARNINGS if _WARNING_LINE.search(text) else LogLevel.ALL


def as_shown(data: bytes) -> str:
    """Decode a line without terminal colors; of a progress bar that overwrites itself, return the last state."""
    text = data.decode("utf-8", "replace").rstrip("\r\n")
    if "\r" in text:
        text = text.rpartition("\r")[2]
    return printable(without_escapes(text).expandtabs(4))


class _LineCounter:
    """Find line starts in a stream of blocks; long lines are split."""

    def __init__(self) -> None:
        self.scanned = 0
        self.line_start = 0
        self.starts = 1
        """Line starts so far, including that of the current incomplete line"""

    @property
    def lines(self) -> int:
        return self.starts - (self.line_start == self.scanned)

    def feed(self, block: bytes) -> npt.NDArray[np.int64]:
        """Return the line starts in (and right after) the next block."""
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
    """Offsets of every STRIDE-th line of a growing file. One thread extends it; any thread may read lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        """Increased whenever the file was truncated or replaced and the index restarted"""
        self.lines = 0
        self.size = 0
        """Size of the file at the last check"""
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
        """Return the memory used by the index."""
        return self._places.buffer_info()[1] * self._places.itemsize

    def extend(self, budget: int = CHUNK_BYTES, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Index at most `budget` more bytes; return True at the end. Raises OSError if it is unreadable."""
        with open_plain(self.path) as stream:
            status = os.fstat(stream.fileno())
            if status.st_size < self._counter.scanned or self._inode not in (0, status.st_ino):
                self._begin()  # truncated at its size limit, or replaced
                self.generation += 1
            self._inode, self.size = status.st_ino, status.st_size
            stream.seek(self._counter.scanned)
            while budget > 0 and not stopped():
                block = stream.read(min(BLOCK_BYTES, budget))
                if not block:
                    self.size = max(self.size, self._counter.scanned)
                    return True
                budget -= len(block)
                self._add_block(block)
        return self._counter.scanned >= self.size

    def _add_block(self, block: bytes) -> None:
        number = self._counter.starts  # of the first line that starts in this block
        found = self._counter.feed(block)
        self._places.extend(found[(-number) % STRIDE :: STRIDE].tolist())
        self.lines = self._counter.lines

    def read(self, first: int, count: int) -> list[LogLine]:
        """Return these lines (counted from 0), fewer at the end of the file."""
        first = max(0, first)
        if count <= 0 or first >= self.lines:
            return []
        place = min(first // STRIDE, len(self._places) - 1)
        with open_plain(self.path) as stream:
            stream.seek(self._places[place])
            skipped = first - place * STRIDE
            requested = min(count, self.lines - first)
            found: list[LogLine] = []
            for position, data in enumerate(_pieces(stream)):
                if position >= skipped:
                    found.append(LogLine(first + len(found) + 1, as_shown(data)))
                    if len(found) == requested:
                        break
            return found


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the following lines, split as `_LineCounter` counts them."""
    while line := stream.readline(MAX_LINE_BYTES):
        yield line


def read_tail(path: Path, count: int = 2000) -> list[LogLine]:
    """Return the last lines of a file that is not indexed yet."""
    with open_plain(path) as stream:
        size = stream.seek(0, os.SEEK_END)
        start = max(0, size - TAIL_BYTES)
        stream.seek(start)
        lines = list(_pieces(stream))
    if start > 0:
        lines = lines[1:] or lines  # the first line is incomplete
    return [LogLine(None, as_shown(data)) for data in lines[-count:]]


@dataclass
class Hits:
    """Lines of a file that match a search."""

    path: Path
    numbers: array[int] = field(default_factory=lambda: array("Q"))
    """From 0"""
    places: array[int] = field(default_factory=lambda: array("Q"))
    is_cut: bool = False
    """The search stopped at MAX_HITS"""

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, first: int, count: int) -> list[LogLine]:
        """Return these matches, with the line numbers of the file."""
        first = max(0, first)
        found = []
        with open_plain(self.path) as stream:
            for position in range(first, min(first + count, len(self.numbers))):
                stream.seek(self.places[position])
                found.append(LogLine(self.numbers[position] + 1, as_shown(stream.readline(MAX_LINE_BYTES))))
        return found


class Finder:
    """Search a growing file for lines of a level that contain a text (case-insensitive), one chunk per call."""

    def __init__(self, path: Path, level: LogLevel, text: str, *, max_hits: int = MAX_HITS) -> None:
        self.hits = Hits(path)
        self._pattern = re.compile(_PATTERNS[level].encode()) if level in _PATTERNS else None
        self._level_terms = _LEVEL_TERMS.get(level, ())
        self._needle = text.lower().encode()
        self._max_hits = max_hits
        self._counter = _LineCounter()

    @property
    def scanned(self) -> int:
        return self._counter.scanned

    def extend(self, budget: int = CHUNK_BYTES, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Search at most `budget` more bytes; return True at the end of the file or at MAX_HITS."""
        with open_plain(self.hits.path) as stream:
            stream.seek(self._counter.scanned)
            rest = b""
            while budget > 0 and not stopped() and not self.hits.is_cut:
                block = stream.read(BLOCK_BYTES)
                data = rest + block
                if not data:
                    return True
                # Whole lines only: a match must not span two blocks.
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
        terms = self._level_terms or (self._needle,)
        places = chain.from_iterable(_occurrences(data if self._level_terms else lowered, term) for term in terms)
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
                continue  # the line started in the previous block
            if len(hits) >= self._max_hits:
                hits.is_cut = True
                return
            hits.places.append(int(starts[row]))
            hits.numbers.append(number)

    def _fits(self, data: bytes, lowered: bytes, start: int, end: int) -> bool:
        """Return whether this line has the level and contains the text."""
        assert self._pattern is not None
        if self._needle and lowered.find(self._needle, start, end) < 0:
            return False
        return self._pattern.search(data[start:end].rstrip(b"\r\n")) is not None


def _occurrences(data: bytes, term: bytes) -> Iterator[int]:
    at = data.find(term)
    while at >= 0:
        yield at
        at = data.find(term, at + len(term))


LIFECYCLE = "lifecycle"
STREAMS = ("stdout", "stderr", "training_stdout", "training_stderr")
"""Logs that the daemon can send, in the order of the list"""
MEMORY_BYTES = 1 << 20
"""Bytes kept of the end of a remote log"""
_MEMORY_LINES = 50_000
FIRST_CHUNK_BYTES = 4 << 20

Decorate = Callable[[str], str]


class LogSource(Protocol):
    """Rows that can be read in ranges."""

    @property
    def count(self) -> int: ...

    def read(self, first: int, count: int) -> list[LogLine]: ...


@dataclass(frozen=True)
class FixedLines:
    """Rows held in memory."""

    lines: Sequence[LogLine]

    @property
    def count(self) -> int:
        return len(self.lines)

    def read(self, first: int, count: int) -> list[LogLine]:
        return list(self.lines[first : first + count])


@dataclass(frozen=True)
class FileLines:
    """Every line of an indexed file."""

    index: LineIndex
    decorate: Decorate = str

    @property
    def count(self) -> int:
        return self.index.lines

    def read(self, first: int, count: int) -> list[LogLine]:
        return [LogLine(line.number, self.decorate(line.text)) for line in self.index.read(first, count)]


@dataclass(frozen=True)
class HitLines:
    """Only the lines of a file that match the search."""

    hits: Hits
    decorate: Decorate = str

    @property
    def count(self) -> int:
        return len(self.hits)

    def read(self, first: int, count: int) -> list[LogLine]:
        return [LogLine(line.number, self.decorate(line.text)) for line in self.hits.read(first, count)]


class ReceivedLines:
    """The end of a remote log, as it arrives."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MEMORY_LINES)
        self._rest = b""
        self._end = 0
        self.begins_inside = False
        """The first chunk was not the beginning of the log"""

    @property
    def count(self) -> int:
        return len(self._lines) + bool(self._rest)

    def add(self, chunk: pb.LogChunk) -> None:
        if chunk.offset < self._end:
            # The log was truncated at its size limit and restarts; or the daemon reconnected and sends the end again.
            self._lines.clear()
            self._rest = b""
        elif not self._end and chunk.offset > 0:
            self.begins_inside = True
        self._end = chunk.offset + len(chunk.data)
        *whole, self._rest = (self._rest + chunk.data).split(b"\n")
        self._lines.extend(map(as_shown, whole))

    def read(self, first: int, count: int) -> list[LogLine]:
        texts = [*self._lines, *([as_shown(self._rest)] if self._rest else ())]
        return [LogLine(None, text) for text in texts[first : first + count]]

    def rows_with(self, level: LogLevel, text: str) -> list[int]:
        """Return the rows of this level that contain the text."""
        needle = text.lower()
        lines = self.read(0, self.count)
        return [row for row, line in enumerate(lines) if _fits(line.text, level) and needle in line.text.lower()]


def _fits(text: str, level: LogLevel) -> bool:
    if level is LogLevel.ALL:
        return True
    if level is LogLevel.STRUCTURED:
        return text.startswith(("LOG", '{"event":'))
    loud = level_of(text)
    return loud is LogLevel.ERRORS or (level is LogLevel.WARNINGS and loud is LogLevel.WARNINGS)


# ------------------------------------------------------------------ the logs of a run


@dataclass(frozen=True)
class LogFile:
    """One log of a run."""

    key: str
    path: Path
    size: int | None
    """None: the file does not exist"""


@dataclass(frozen=True)
class FoundLogs:
    """The logs of a run on this machine."""

    files: tuple[LogFile, ...]
    is_here: bool
    """False: the run's folders are on another machine"""

    def file(self, key: str) -> LogFile | None:
        return next((file for file in self.files if file.key == key), None)


def find_logs(run_dir: str, logs_dir: str) -> FoundLogs:
    """Return the existing logs and their sizes."""
    folder, logs = RunFolder(Path(run_dir)), Path(logs_dir)
    places = {
        "stdout": logs / "stdout.log",
        "stderr": logs / "stderr.log",
        "training_stdout": folder.logs / "stdout.log",
        "training_stderr": folder.logs / "stderr.log",
        LIFECYCLE: folder.lifecycle,
    }
    files = []
    for key, path in places.items():
        files.append(LogFile(key, path, _size(path)))
        older = path.with_name(path.name + ".1")  # the part cut off at the size limit
        if (size := _size(older)) is not None:
            files.append(LogFile(f"{key}.1", older, size))
    is_here = bool(run_dir) and (folder.root.is_dir() or (bool(logs_dir) and logs.is_dir()))
    return FoundLogs(tuple(files), is_here)


def _size(path: Path) -> int | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    # Opening a named pipe would block its reader forever.
    return status.st_size if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) else None


def default_log(found: FoundLogs, *, has_failed: bool) -> str:
    """Return the log to open first: errors of a failed run, else the output of the training."""
    order = (
        ("training_stderr", "stderr", "training_stdout", "stdout")
        if has_failed
        else ("training_stdout", "stdout", "training_stderr", "stderr", LIFECYCLE)
    )
    return next((key for key in order if (file := found.file(key)) is not None and file.size), order[0])


@dataclass(frozen=True)
class FirstScan:
    """A log that was just opened: completely indexed if it is small, else its end."""

    index: LineIndex
    is_counted: bool
    tail: tuple[LogLine, ...] = ()


def open_log(path: Path) -> FirstScan:
    """Open a log of any size; read a few megabytes at most."""
    index = LineIndex(path)
    if index.extend(FIRST_CHUNK_BYTES):
        return FirstScan(index, True)
    return FirstScan(index, False, tuple(read_tail(path)))
