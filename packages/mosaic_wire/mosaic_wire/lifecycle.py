"""Lifecycle events and their spool.

A worker appends each event to `lifecycle.jsonl` in its run folder before it reports it. The file is the
only copy: the daemon reads it from where it left off, so nothing is lost and nothing is counted twice while
either side is away.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeGuard

from mosaic_wire.files import MAX_JSON_DEPTH, SEAL, checksum_of, open_plain, parse_json, unseal

MAX_LINE_BYTES = 1 << 20
"""A longer line is not an event and is skipped in pieces"""

MAX_EVENT_BYTES = 1 << 18
"""Limit of written events, well below the one of reading; longer payloads are shortened so that no ending is lost"""

_ENVELOPE_BYTES = 512
"""Maximum size of a line without its payload"""

MAX_FILE_BYTES = 1 << 30
"""Limit of a file's size, because a sparse file can have any size"""
READ_BYTES = 8 << 20
"""Bytes per read; the rest is read by the next one"""

LAST_STATISTICS = "last_figures"
"""Key in the payload of an ending: last step and return, for a daemon that missed heartbeats"""


class LifecycleKind(StrEnum):
    """Events that a worker reports about its run."""

    RUN_STARTED = "run_started"
    HEARTBEAT = "heartbeat"
    RUN_COMPLETED = "run_completed"
    RUN_FAILED = "run_failed"
    RUN_CANCELLED = "run_cancelled"
    CHECKPOINT_SAVED = "checkpoint_saved"
    CHECKPOINT_LOADED = "checkpoint_loaded"
    PAUSED = "paused"
    RESUMED = "resumed"
    STAGE_CHANGED = "stage_changed"  # of a curriculum

    @property
    def ends_the_run(self) -> bool:
        """Return whether no event follows it."""
        return self in (LifecycleKind.RUN_COMPLETED, LifecycleKind.RUN_FAILED, LifecycleKind.RUN_CANCELLED)


@dataclass(frozen=True)
class RunLifecycleEvent:
    """One line of `lifecycle.jsonl`."""

    event: LifecycleKind
    run_id: str
    timestamp: float
    seq: int
    payload: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 1

    def to_line(self) -> str:
        """Return one JSON line with newline; NaN and infinities become null, as JSON has none."""
        document = {
            "event": str(self.event),
            "run_id": self.run_id,
            "timestamp": self.timestamp,
            "seq": self.seq,
            "attempt": self.attempt,
            "payload": bounded_payload(self.payload),
        }
        document[SEAL] = checksum_of(document)
        return json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False) + "\n"

    @classmethod
    def from_line(cls, line: bytes | str) -> RunLifecycleEvent:
        """Return the event in a line; raise ValueError with the reason if it is none."""
        try:
            document = parse_json(line)
            if not isinstance(document, dict):
                raise ValueError("not a JSON object")
            document = unseal(document)
        except ValueError as error:
            raise ValueError(f"not an event: {error}") from error
        seq, payload, attempt = document.get("seq"), document.get("payload", {}), document.get("attempt", 1)
        timestamp, run_id = document.get("timestamp"), document.get("run_id")
        if not _is_count(seq) or not _is_count(attempt):
            raise ValueError("seq and attempt must be whole numbers from 1")
        if not _is_moment(timestamp) or not isinstance(run_id, str):
            raise ValueError("timestamp must be a number and run_id a string")
        if not isinstance(payload, dict):
            raise ValueError("payload must be an object")
        return cls(LifecycleKind(str(document.get("event"))), run_id, float(timestamp), seq, payload, attempt)


def bounded_payload(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload as JSON values, long texts shortened where it would exceed `MAX_EVENT_BYTES`."""
    plain: dict[str, Any] = _plain(payload)
    for longest in (0, 8192, 256):  # characters a text of an oversized payload may keep
        kept = {**shortened(plain, longest), "shortened": True} if longest else plain
        if len(json.dumps(kept, separators=(",", ":"))) <= MAX_EVENT_BYTES - _ENVELOPE_BYTES:
            return kept
    return {"shortened": True}


def _is_count(value: object) -> TypeGuard[int]:
    """Return whether it is an integer from 1 that fits a database column."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 63


def _is_moment(value: object) -> TypeGuard[float]:
    """Return whether it is a valid Unix time."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


def _plain(value: Any, depth: int = MAX_JSON_DEPTH - 2) -> Any:
    """Return any value as JSON, so that no event is lost because its payload has a path or an array scalar."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth == 0:
        return "… nested deeper than an event may be"
    if isinstance(value, Mapping):
        return {str(key): _plain(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth - 1) for item in value]
    item = getattr(value, "item", None)  # numpy and torch scalars
    try:
        return _plain(item()) if callable(item) else str(value)
    except (TypeError, ValueError, RuntimeError):
        return str(value)


def shortened(value: Any, longest: int) -> Any:
    """Return a JSON value whose texts keep their beginning and end, `longest` characters together."""
    if isinstance(value, str) and len(value) > longest:
        half = longest // 2  # both ends of an error message are informative
        return f"{value[:half]} … {len(value) - longest} characters left out … {value[-half:]}"
    if isinstance(value, dict):
        return {shortened(key, longest): shortened(item, longest) for key, item in value.items()}
    if isinstance(value, list):
        return [shortened(item, longest) for item in value]
    return value


class LifecycleSpool:
    """Writes the lifecycle file; numbering continues where an earlier attempt stopped."""

    def __init__(self, path: Path, run_id: str, *, attempt: int = 1) -> None:
        self._path, self._run_id, self._attempt = path, run_id, attempt
        reader = LifecycleReader(path)
        self._seq = max((event.seq for event in reader.read_to_the_end()), default=0)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._torn = _ends_inside_a_line(path)  # the last writer died within a line

    @property
    def seq(self) -> int:
        """Number of the newest event."""
        return self._seq

    def append(self, kind: LifecycleKind, payload: Mapping[str, Any] | None = None) -> RunLifecycleEvent:
        """Write one event; endings are on disk when this returns."""
        event = RunLifecycleEvent(kind, self._run_id, time.time(), self._seq + 1, payload or {}, self._attempt)
        data = b"\n" * self._torn + event.to_line().encode()  # close a torn line, so that this one is whole
        written = os.write(self._descriptor, data)
        self._torn = 0 < written < len(data)
        if written != len(data):  # a full disk may have stored a part of the line
            raise OSError(f"only {written} of {len(data)} bytes of a lifecycle event could be written to {self._path}")
        self._seq = event.seq
        if kind.ends_the_run or kind is LifecycleKind.PAUSED:
            os.fsync(self._descriptor)
        return event

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _ends_inside_a_line(path: Path) -> bool:
    with open_plain(path) as stream:
        if stream.seek(0, os.SEEK_END) == 0:
            return False
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) != b"\n"


class LifecycleReader:
    """Reads the lifecycle file: incremental, bounded, and tolerant of damage.

    A line that is not an event, an event already seen, or one of a number below the last is skipped.
    """

    def __init__(self, path: Path, *, after_seq: int = 0) -> None:
        self._path = path
        self._offset = 0
        self._inside_a_long_line = False
        self.last_seq = after_seq
        self.has_more = False
        """The last read stopped at its limit, not at the end of the file"""

    def read(self) -> list[RunLifecycleEvent]:
        """Return the events that were added since the last call, or as many as one read takes."""
        events: list[RunLifecycleEvent] = []
        self.has_more = False
        try:
            stream = open_plain(self._path)
        except FileNotFoundError:
            return events
        with stream:
            size = stream.seek(0, os.SEEK_END)
            if size > MAX_FILE_BYTES:
                raise OSError(errno.EFBIG, f"it is larger than {MAX_FILE_BYTES >> 20} MB", str(self._path))
            if size < self._offset:
                # The file was replaced by a shorter one; sequence numbers identify new events.
                self._offset, self._inside_a_long_line = 0, False
            stream.seek(self._offset)
            end = self._offset + READ_BYTES
            while line := stream.readline(MAX_LINE_BYTES):
                whole = line.endswith(b"\n")
                if not whole and not self._inside_a_long_line and len(line) < MAX_LINE_BYTES:
                    break  # still being written
                self._offset = stream.tell()
                if whole and not self._inside_a_long_line:
                    event = self._parse(line)
                    if event is not None and event.seq > self.last_seq:
                        self.last_seq = event.seq
                        events.append(event)
                else:
                    self._inside_a_long_line = not whole
                if self._offset >= end:
                    self.has_more = True
                    break
        return events

    def read_to_the_end(self) -> Iterator[RunLifecycleEvent]:
        """Return all remaining events."""
        yield from self.read()
        while self.has_more:
            yield from self.read()

    def _parse(self, line: bytes) -> RunLifecycleEvent | None:
        if not line.strip():
            return None
        try:
            return RunLifecycleEvent.from_line(line)
        except ValueError:
            return None
