"""Where the rows of the log view come from: a counted file, its last lines, hits of a search, or text in memory.

Also which logs a run has and where they lie. No Qt; everything that touches the disk belongs into a thread.
"""

from __future__ import annotations

import stat
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mosaic_wire.paths import RunFolder
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.ui.presenters.log_index import Hits, LineIndex, LogLevel, LogLine, as_shown, level_of, read_tail

LIFECYCLE = "lifecycle"
STREAMS = ("stdout", "stderr", "training_stdout", "training_stderr")
"""What the daemon can send, in the order of the list"""
MEMORY_BYTES = 1 << 20
"""Of a log on another machine, its end"""
_MEMORY_LINES = 50_000
FIRST_STRETCH_BYTES = 4 << 20

Decorate = Callable[[str], str]


class LogSource(Protocol):
    """Rows that can be read in stretches."""

    @property
    def count(self) -> int: ...

    def read(self, first: int, count: int) -> list[LogLine]: ...


@dataclass(frozen=True)
class FixedLines:
    """Rows that are all here."""

    lines: Sequence[LogLine]

    @property
    def count(self) -> int:
        return len(self.lines)

    def read(self, first: int, count: int) -> list[LogLine]:
        return list(self.lines[first : first + count])


@dataclass(frozen=True)
class FileLines:
    """Every line of a counted file."""

    index: LineIndex
    decorate: Decorate = str

    @property
    def count(self) -> int:
        return self.index.lines

    def read(self, first: int, count: int) -> list[LogLine]:
        return [LogLine(line.number, self.decorate(line.text)) for line in self.index.read(first, count)]


@dataclass(frozen=True)
class HitLines:
    """Only those lines of a file that were looked for."""

    hits: Hits
    decorate: Decorate = str

    @property
    def count(self) -> int:
        return len(self.hits)

    def read(self, first: int, count: int) -> list[LogLine]:
        return [LogLine(line.number, self.decorate(line.text)) for line in self.hits.read(first, count)]


class ReceivedLines:
    """The end of a log that lies on another machine, as it arrives."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MEMORY_LINES)
        self._rest = b""
        self._end = 0
        self.begins_inside = False
        """What came first was not the beginning of the log"""

    @property
    def count(self) -> int:
        return len(self._lines) + bool(self._rest)

    def add(self, chunk: pb.LogChunk) -> None:
        if chunk.offset < self._end:
            # The log outgrew its cap, was cut and begins anew; or the daemon was away and sends the end again.
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
        """Rows of this level that hold the text."""
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


# ------------------------------------------------------------------ which logs there are


@dataclass(frozen=True)
class LogFile:
    """One log of a run."""

    key: str
    path: Path
    size: int | None
    """None: there is no such file"""


@dataclass(frozen=True)
class FoundLogs:
    """The logs of a run as they lie on this machine."""

    files: tuple[LogFile, ...]
    is_here: bool
    """False: neither of the run's folders is on this machine"""

    def file(self, key: str) -> LogFile | None:
        return next((file for file in self.files if file.key == key), None)


def find_logs(run_dir: str, logs_dir: str) -> FoundLogs:
    """Look which logs there are and how large."""
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
        older = path.with_name(path.name + ".1")  # what was cut off a log that outgrew its cap
        if (size := _size(older)) is not None:
            files.append(LogFile(f"{key}.1", older, size))
    is_here = bool(run_dir) and (folder.root.is_dir() or (bool(logs_dir) and logs.is_dir()))
    return FoundLogs(tuple(files), is_here)


def _size(path: Path) -> int | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    # A pipe in the place of a log would keep its reader waiting for ever.
    return status.st_size if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) else None


def usual_log(found: FoundLogs, *, has_failed: bool) -> str:
    """What somebody wants to see first: errors of a failed run, else what the training said."""
    order = (
        ("training_stderr", "stderr", "training_stdout", "stdout")
        if has_failed
        else ("training_stdout", "stdout", "training_stderr", "stderr", LIFECYCLE)
    )
    return next((key for key in order if (file := found.file(key)) is not None and file.size), order[0])


@dataclass(frozen=True)
class FirstLook:
    """A log just opened: counted already when it is small, else its end."""

    index: LineIndex
    is_counted: bool
    tail: tuple[LogLine, ...] = ()


def open_log(path: Path) -> FirstLook:
    """Open a log of any size; reads a few megabytes at most."""
    index = LineIndex(path)
    if index.extend(FIRST_STRETCH_BYTES):
        return FirstLook(index, True)
    return FirstLook(index, False, tuple(read_tail(path)))
