"""A worker's output files: their last lines, their structured lines, and a cap on their size.

Workers write to files, never to pipes: they outlive the daemon, and a line of a million characters hurts nobody.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

from mosaic_wire.files import open_plain
from mosaic_wire.redaction import redact_text

from gym_gui.logging_config.log_constants import parse_structured_line

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 8192
_READ_BYTES = 1 << 20
TAIL_BYTES = 64 * 1024
TAIL_LINES = 40
_MOST_LOGS = 20_000
_REPEATED_LINES, _REPEATED_A_SECOND = 200, 10
"""Structured lines of a run that the daemon's own log repeats: so many at once, and so many a second in the long run"""
_REPEATED_CHARACTERS = 500


def tail_text(path: Path, secrets: Iterable[str] = (), *, lines: int = TAIL_LINES) -> str:
    """The last lines of a file, bounded and redacted; empty when there is nothing to show."""
    try:
        with open_plain(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - TAIL_BYTES))
            data = stream.read(TAIL_BYTES)
    except OSError:
        return ""
    kept = data.decode("utf-8", "replace").splitlines()[-lines:]
    cut = [line if len(line) <= 2000 else f"{line[:2000]} … ({len(line)} characters)" for line in kept]
    return redact_text("\n".join(cut), secrets)


class LogFollower:
    """Reads what was added to a file and re-emits its structured lines with their log code."""

    def __init__(self, path: Path, run_id: str, *, clean: Callable[[str], str] = str) -> None:
        self._path, self._run_id, self._clean = path, run_id, clean
        # A daemon that re-attaches does not repeat what an earlier one has told already.
        self._offset = os.lstat(path).st_size if os.path.lexists(path) else 0
        self._inside_long_line = False
        self._allowed, self._allowed_at, self._left_out = float(_REPEATED_LINES), time.monotonic(), 0

    def follow(self) -> None:
        """Look at new lines; an over-long one is skipped in pieces, never held whole."""
        try:
            if os.lstat(self._path).st_size == self._offset:
                return
            stream = open_plain(self._path)
        except OSError:
            return
        with stream:
            if os.fstat(stream.fileno()).st_size < self._offset:
                self._offset = 0  # it was cut
            stream.seek(self._offset)
            budget = _READ_BYTES  # a flood is sampled, not followed to its end
            while budget > 0 and (line := stream.readline(MAX_LINE_BYTES)):
                whole = line.endswith(b"\n")
                if not whole and len(line) < MAX_LINE_BYTES:
                    break
                budget -= len(line)
                self._offset = stream.tell()
                if whole and not self._inside_long_line:
                    self._emit(line)
                self._inside_long_line = not whole
            if budget <= 0:
                self._offset = stream.seek(0, os.SEEK_END)
                self._inside_long_line = True

    def _emit(self, line: bytes) -> None:
        if not line.startswith(b"LOG") or not self._is_allowed():
            return
        entry = parse_structured_line(self._clean(line.decode("utf-8", "replace")))
        if entry is not None:
            logger.log(
                entry.level,
                "LOG%d | %s | run=%s extra=%s",
                entry.number,
                entry.message[:_REPEATED_CHARACTERS],
                self._run_id,
                str(entry.extra)[:_REPEATED_CHARACTERS],
                extra={"log_code": entry.number, "run_id": self._run_id},
            )

    def _is_allowed(self) -> bool:
        """A worker that prints nothing else must not fill the daemon's log."""
        now = time.monotonic()
        grown = (now - self._allowed_at) * _REPEATED_A_SECOND
        self._allowed, self._allowed_at = min(float(_REPEATED_LINES), self._allowed + grown), now
        if self._allowed < 1:
            self._left_out += 1
            return False
        if self._left_out:
            logger.warning("run %s: %d structured lines of its output are not repeated", self._run_id, self._left_out)
            self._left_out = 0
        self._allowed -= 1
        return True


def cap_logs(folders: Iterable[Path], cap_bytes: int) -> list[Path]:
    """Cut the logs in these folders once they have outgrown a cap together; return the older parts that were kept.

    The last lines of each cut log stay in `<name>.1`, older parts go; afterwards they are below the cap together.
    The worker holds a log open for appending, so cutting it to nothing is safe: its next line lands at the start.
    """
    with ExitStack() as stack:
        logs: list[tuple[Path, int, int]] = []
        for folder in folders:
            # A folder that is a link lies elsewhere, and what lies elsewhere is not ours to cut.
            with suppress(OSError):
                place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                stack.callback(os.close, place)
                with os.scandir(place) as entries:
                    logs += [
                        (folder / entry.name, _bytes_on_disk(entry.stat(follow_symlinks=False)), place)
                        for entry in islice(entries, _MOST_LOGS)
                        if ".log" in entry.name and entry.is_file(follow_symlinks=False)
                    ]
        if sum(size for _, size, _ in logs) <= cap_bytes:
            return []
        large = [log for log in logs if log[1] > cap_bytes // (2 * len(logs))]
        large.sort(key=lambda log: log[0].suffix == ".log")  # older parts first: a cut log leaves a new one
        return [older for path, _, place in large if (older := _cut(path, place, cap_bytes // 2 // len(large)))]


def _bytes_on_disk(status: os.stat_result) -> int:
    """A log that its worker does not append to has a hole where it was cut; one with two names is not cut at all."""
    return min(status.st_size, status.st_blocks * 512) if status.st_nlink == 1 else 0


def cap_log(path: Path, cap_bytes: int) -> None:
    """The same for one log that has a folder with others."""
    with suppress(FileNotFoundError):
        if _bytes_on_disk(path.lstat()) > cap_bytes:
            place = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _cut(path, place, cap_bytes // 2)
            finally:
                os.close(place)


def _cut(path: Path, place: int, kept_bytes: int) -> Path | None:
    try:
        if path.suffix != ".log":
            os.unlink(path.name, dir_fd=place)
            return None
        older = path.with_name(f"{path.name}.1")
        with suppress(FileNotFoundError):
            os.unlink(older.name, dir_fd=place)
        with open_plain(path.name, "r+b", dir_fd=place) as source, open_plain(older.name, "xb", dir_fd=place) as target:
            # No more than that: a worker that floods the file writes on while it is copied.
            left = min(kept_bytes, source.seek(0, os.SEEK_END))
            source.seek(-left, os.SEEK_END)
            while left > 0 and (piece := source.read(min(left, 1 << 20))):
                target.write(piece)
                left -= len(piece)
            source.truncate(0)
    except OSError as error:
        logger.warning("cannot cap %s: %s", path, error)
        return None
    return older
