"""Output files of workers: tails, structured lines, a size cap, and masking of secrets.

Workers write to files instead of pipes, because they outlive the daemon and may write lines of any length.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from mosaic_wire.files import (
    SEAL,
    checksum_of,
    json_bytes,
    open_plain,
    parse_json,
    read_plain_file,
    walk,
    write_bytes_atomically,
)
from mosaic_wire.paths import Home
from mosaic_wire.redaction import redact_document, redact_text, spellings_of

from gym_gui.logging_config.log_constants import parse_structured_line

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 8192
_READ_BYTES = 1 << 20
TAIL_BYTES = 64 * 1024
TAIL_LINES = 40
_MAX_LOGS = 20_000
_REPEATED_LINES, _REPEATED_PER_S = 200, 10
"""Structured lines of a run that the daemon's log repeats: the burst, and the lines per second after it"""
_REPEATED_CHARACTERS = 500


def tail_text(path: Path, secrets: Iterable[str] = (), *, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a file, bounded and redacted, or an empty text."""
    try:
        with open_plain(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - TAIL_BYTES))
            data = stream.read(TAIL_BYTES)
    except OSError:
        return ""
    last = data.decode("utf-8", "replace").splitlines()[-lines:]
    shown = [line if len(line) <= 2000 else f"{line[:2000]} … ({len(line)} characters)" for line in last]
    return redact_text("\n".join(shown), secrets)


class LogFollower:
    """Follows a file and repeats its structured lines in the daemon's log."""

    def __init__(self, path: Path, run_id: str, *, clean: Callable[[str], str] = str) -> None:
        self._path, self._run_id, self._clean = path, run_id, clean
        # A daemon that re-attaches does not repeat lines that an earlier one has logged.
        self._offset = os.lstat(path).st_size if os.path.lexists(path) else 0
        self._inside_long_line = False
        self._allowed, self._allowed_at, self._skipped = float(_REPEATED_LINES), time.monotonic(), 0

    def follow(self) -> None:
        """Read new lines; skip a too long one in pieces."""
        try:
            if os.lstat(self._path).st_size == self._offset:
                return
            stream = open_plain(self._path)
        except OSError:
            return
        with stream:
            if os.fstat(stream.fileno()).st_size < self._offset:
                self._offset = 0  # it was truncated
            stream.seek(self._offset)
            budget = _READ_BYTES  # of a flood only a sample is read
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
        """Return whether the rate limit allows another line in the daemon's log."""
        now = time.monotonic()
        grown = (now - self._allowed_at) * _REPEATED_PER_S
        self._allowed, self._allowed_at = min(float(_REPEATED_LINES), self._allowed + grown), now
        if self._allowed < 1:
            self._skipped += 1
            return False
        if self._skipped:
            logger.warning("run %s: %d structured lines of its output are not repeated", self._run_id, self._skipped)
            self._skipped = 0
        self._allowed -= 1
        return True


def cap_logs(folders: Iterable[Path], cap_bytes: int) -> list[Path]:
    """Truncate the logs in these folders if their total exceeds a cap; return the files with their last parts.

    The last part of each truncated log is kept in `<name>.1`, so that the total is below the cap. Truncating to zero is
    safe, because the worker has the log open for appending.
    """
    with ExitStack() as stack:
        logs: list[tuple[Path, int, int]] = []
        for folder in folders:
            # A linked folder is elsewhere and must not be changed.
            with suppress(OSError):
                place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                stack.callback(os.close, place)
                with os.scandir(place) as entries:
                    logs += [
                        (folder / entry.name, _bytes_on_disk(entry.stat(follow_symlinks=False)), place)
                        for entry in islice(entries, _MAX_LOGS)
                        if ".log" in entry.name and entry.is_file(follow_symlinks=False)
                    ]
        if sum(size for _, size, _ in logs) <= cap_bytes:
            return []
        large = [log for log in logs if log[1] > cap_bytes // (2 * len(logs))]
        large.sort(key=lambda log: log[0].suffix == ".log")  # `.1` files first: truncating a log creates a new one
        return [older for path, _, place in large if (older := _truncate(path, place, cap_bytes // 2 // len(large)))]


def _bytes_on_disk(status: os.stat_result) -> int:
    """Return the size without the hole that truncation leaves in some logs; 0 for a file with several links."""
    return min(status.st_size, status.st_blocks * 512) if status.st_nlink == 1 else 0


def cap_log(path: Path, cap_bytes: int) -> None:
    """Truncate a single log that exceeds the cap."""
    with suppress(FileNotFoundError):
        if _bytes_on_disk(path.lstat()) > cap_bytes:
            place = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _truncate(path, place, cap_bytes // 2)
            finally:
                os.close(place)


def _truncate(path: Path, place: int, kept_bytes: int) -> Path | None:
    try:
        if path.suffix != ".log":
            os.unlink(path.name, dir_fd=place)
            return None
        older = path.with_name(f"{path.name}.1")
        with suppress(FileNotFoundError):
            os.unlink(older.name, dir_fd=place)
        with open_plain(path.name, "r+b", dir_fd=place) as source, open_plain(older.name, "xb", dir_fd=place) as target:
            # Bounded, because a worker may keep writing while the file is copied.
            remaining = min(kept_bytes, source.seek(0, os.SEEK_END))
            source.seek(-remaining, os.SEEK_END)
            while remaining > 0 and (piece := source.read(min(remaining, 1 << 20))):
                target.write(piece)
                remaining -= len(piece)
            source.truncate(0)
    except OSError as error:
        logger.warning("cannot cap %s: %s", path, error)
        return None
    return older


# ---------------------------------------------------------------- masking


logger = logging.getLogger(__name__)

_PIECE = 1 << 20
_MAX_ENTRIES = 200_000
_SEALED = ("lifecycle.jsonl", "exit.json", "analytics.json")
_TEXT_SUFFIXES = {
    *("", ".1", ".log", ".out", ".err", ".txt", ".md", ".rst", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini"),
    *(".cfg", ".conf", ".csv", ".tsv", ".xml", ".html", ".py", ".sh", ".env"),
}


class SecretMask:
    """The secrets of one run, and up to where they were redacted in its growing files."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._texts = spellings_of(secrets)
        self._patterns = [text.encode("utf-8", "surrogateescape") for text in self._texts]
        self._overlap = max(map(len, self._patterns), default=1) - 1
        self._cleaned: dict[Path, int] = {}

    def text(self, text: str) -> str:
        """Return text without the run's secrets."""
        return redact_text(text, self._texts)

    def document(self, value: Any) -> Any:
        """Return a JSON document without the run's secrets."""
        return redact_document(value, self._texts)

    def follow(self, path: Path, *, anew: bool = False) -> None:
        """Redact what was added to a file since the last call, without changing its length."""
        if self._patterns:
            # It may not exist yet, or not be a plain file.
            with suppress(OSError):
                self._cleaned[path] = self._redact_file(path, 0 if anew else self._cleaned.get(path, 0))

    def clean_run(self, home: Home, run_id: str) -> None:
        """Redact every text file of a run whose processes have ended."""
        if not self._patterns:
            return
        folder = home.run_folder(run_id)
        for path in (*_text_files(home.run_logs(run_id)), *_text_files(folder.root, skip=folder.checkpoints)):
            try:
                if path.parent == folder.root and path.name in _SEALED:
                    self._reseal(path)
                self._redact_file(path, 0)
            except OSError as error:
                logger.error("run %s: %s may still contain a secret: %s", run_id, path, error)

    def _redact_file(self, path: Path, start: int) -> int:
        """Overwrite secrets with asterisks from this byte on; return the offset to continue from."""
        with open_plain(path, "r+b") as stream:
            descriptor = stream.fileno()
            offset = start if start <= os.fstat(descriptor).st_size else 0  # it was truncated meanwhile
            kept = bytearray()
            while piece := os.pread(descriptor, _PIECE, offset):
                offset += len(piece)
                kept += piece
                self._redact_piece(descriptor, kept, offset - len(kept))
                del kept[: max(0, len(kept) - self._overlap)]
            return offset - len(kept)

    def _redact_piece(self, descriptor: int, data: bytearray, base: int) -> None:
        for pattern in self._patterns:
            at = data.find(pattern)
            while at >= 0:
                stars = b"*" * len(pattern)
                os.pwrite(descriptor, stars, base + at)
                data[at : at + len(pattern)] = stars
                at = data.find(pattern, at + len(pattern))

    def _reseal(self, path: Path) -> None:
        """Redact a file and update its checksums."""
        try:
            data = read_plain_file(path)
        except ValueError:
            return  # too large to be one of them
        if not any(pattern in data for pattern in self._patterns):
            return
        parts = data.splitlines(keepends=True) if path.suffix == ".jsonl" else [data]
        clean = b"".join(self._resealed(part, lines=path.suffix == ".jsonl") for part in parts)
        write_bytes_atomically(path, clean, mode=stat.S_IMODE(path.stat().st_mode))

    def _resealed(self, data: bytes, *, lines: bool) -> bytes:
        try:
            document = parse_json(data)
        except ValueError:
            return data  # damaged anyway; its secrets are overwritten afterwards
        if not isinstance(document, dict) or not any(pattern in data for pattern in self._patterns):
            return data
        clean = {key: self.document(value) for key, value in document.items() if key != SEAL}
        if not lines:
            return json_bytes(clean, sealed=SEAL in document)
        if SEAL in document:
            clean[SEAL] = checksum_of(clean)
        return json.dumps(clean, separators=(",", ":")).encode() + b"\n"


def _text_files(folder: Path, *, skip: Path | None = None) -> Iterator[Path]:
    if folder.is_symlink():
        return  # a linked folder is elsewhere and must not be changed
    for entry in walk(folder, most=_MAX_ENTRIES, enter=lambda entry: Path(entry.path) != skip):
        if entry.is_file(follow_symlinks=False) and (path := Path(entry.path)).suffix.lower() in _TEXT_SUFFIXES:
            yield path
