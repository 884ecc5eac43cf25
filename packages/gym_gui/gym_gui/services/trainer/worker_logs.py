"""A worker's output files: their last lines, their structured lines, and a cap on their size.

Workers write to files, never to pipes: they outlive the daemon, and a line of a million characters hurts nobody.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from mosaic_wire.redaction import redact_text

from gym_gui.logging_config.log_constants import parse_structured_line

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 8192
_READ_BYTES = 1 << 20
TAIL_BYTES = 64 * 1024
TAIL_LINES = 40


def tail_text(path: Path, secrets: Iterable[str] = (), *, lines: int = TAIL_LINES) -> str:
    """The last lines of a file, bounded and redacted; empty when there is nothing to show."""
    try:
        with path.open("rb") as stream:
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
        self._offset = path.stat().st_size if path.exists() else 0
        self._inside_long_line = False

    def follow(self) -> None:
        """Look at new lines; an over-long one is skipped in pieces, never held whole."""
        try:
            if os.stat(self._path).st_size == self._offset:
                return
            stream = self._path.open("rb")
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
        if not line.startswith(b"LOG"):
            return
        entry = parse_structured_line(self._clean(line.decode("utf-8", "replace")))
        if entry is not None:
            logger.log(
                entry.level,
                "LOG%d | %s | run=%s extra=%s",
                entry.number,
                entry.message,
                self._run_id,
                entry.extra,
                extra={"log_code": entry.number, "run_id": self._run_id},
            )


def cap_size(path: Path, cap_bytes: int) -> bool:
    """Keep the last part of a file that has outgrown its cap in `<name>.1` and start it anew; True when it did.

    The worker holds the file open for appending, so cutting it to nothing is safe: its next line lands at the start.
    """
    try:
        size = path.stat().st_size
        if size <= cap_bytes:
            return False
        older = path.with_name(path.name + ".1")
        # No more than that: a worker that floods the file writes on while it is copied.
        left = cap_bytes // 2
        with path.open("rb") as source, older.open("wb") as target:
            source.seek(size - left)
            while left > 0 and (piece := source.read(min(left, 1 << 20))):
                target.write(piece)
                left -= len(piece)
        os.truncate(path, 0)
    except OSError as error:
        logger.warning("cannot cap %s: %s", path, error)
        return False
    return True
