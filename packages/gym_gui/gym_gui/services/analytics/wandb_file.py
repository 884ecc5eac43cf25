"""A run in the local files of Weights & Biases: config, history, summary and system metrics, without a network.

    log = WandbLog([folder.file for folder in find_wandb_folders(run_dir / "wandb")])
    while log.read():
        …
    shown = log.snapshot()

A run of ours that was resumed has several files; they are read as one, in their order. `read` is for a thread; what
`snapshot` returns is not changed any more.
"""

from __future__ import annotations

import json
import os
import re
import struct
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from mosaic_wire.files import NotAPlainFile, plain_file
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_Path = tuple[str, ...]

_STEP, _TIME, _RUNTIME = "_step", "_timestamp", "_runtime"
_OWN = frozenset({_STEP, _TIME, _RUNTIME, "_wandb"})
"""Keys that W&B itself adds"""
_OUTPUT_LINES = 200
_MOST_NESTED = 20


@dataclass(frozen=True)
class WandbCurve:
    """One key's numbers, against the steps they were logged for and the time."""

    key: str
    steps: Floats
    times: Floats
    """Unix seconds; nan if the file has none"""
    values: Floats


@dataclass(frozen=True)
class WandbSnapshot:
    """Everything that is shown of a run, at one moment."""

    run_id: str = ""
    entity: str = ""
    project: str = ""
    name: str = ""
    group: str = ""
    tags: tuple[str, ...] = ()
    host: str = ""
    started_at: float = 0.0
    config: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    history: Mapping[str, WandbCurve] = field(default_factory=dict)
    system: Mapping[str, WandbCurve] = field(default_factory=dict)
    output: tuple[str, ...] = ()
    exit_code: int | None = None
    """None before its end, or if it was killed"""
    rows: int = 0
    """Rows of the history"""
    skipped_bytes: int = 0
    """Bytes skipped because of damage"""
    damaged: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was read yet."""
        return not (self.run_id or self.history or self.config or self.summary or self.system)


class _Column:
    """Numbers of one key and the rows they stand in."""

    def __init__(self) -> None:
        self.rows = array("q")
        self.values = array("d")

    def add(self, row: int, value: float) -> None:
        self.rows.append(row)
        self.values.append(value)


class WandbLog:
    """Reads one run's files, a piece at a time."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._logs = [RecordLog(file) for file in files]
        self._facts: dict[str, Any] = {}
        self._config: dict[_Path, str] = {}
        self._summary: dict[_Path, str] = {}
        """Key, as a path → its value as JSON: of the thousands that a key has in turn, only the last is ever parsed"""
        self._columns: dict[str, _Column] = {}
        self._step_metrics: dict[str, str] = {}
        self._row = 0
        self._system: dict[str, tuple[array[float], array[float]]] = {}
        self._output: deque[str] = deque(maxlen=_OUTPUT_LINES)
        self._exit_code: int | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the transaction logs that are read, the oldest first."""
        return tuple(log.path for log in self._logs)

    @property
    def has_more(self) -> bool:
        """The last read stopped at its limit."""
        return any(log.has_more for log in self._logs)

    def read(self) -> bool:
        """Ingest new records; return whether there were any. Raise NotAWandbFile or OSError for an unreadable file."""
        changed = False
        for log in self._logs:
            for record in log.read():
                self._apply(record)
                changed = True
            if log.has_more:
                break  # the next file continues where this one ends
        return changed

    # ------------------------------------------------------------------ one record

    def _apply(self, record: Any) -> None:
        if record.HasField("history"):
            self._apply_history(record.history)
        elif record.HasField("stats"):
            self._apply_stats(record.stats)
        elif record.HasField("summary"):
            _change(self._summary, record.summary)
        elif record.HasField("config"):
            _change(self._config, record.config)
        elif record.HasField("run"):
            self._apply_run(record.run)
        elif record.HasField("metric"):
            name = record.metric.name or record.metric.glob_name
            if name and record.metric.step_metric:
                self._step_metrics[name] = record.metric.step_metric
        elif record.HasField("exit"):
            self._exit_code = record.exit.exit_code
        elif record.HasField("output_raw"):
            self._output.extend(record.output_raw.line.splitlines())
        elif record.HasField("output"):
            self._output.extend(record.output.line.splitlines())

    def _apply_run(self, run: Any) -> None:
        self._exit_code = None  # it continues
        for name in ("run_id", "entity", "project", "display_name", "run_group", "host"):
            if value := getattr(run, name):
                self._facts[name] = value
        if run.tags:
            self._facts["tags"] = tuple(run.tags)
        if run.HasField("start_time") and "started_at" not in self._facts:
            self._facts["started_at"] = run.start_time.seconds + run.start_time.nanos / 1e9
        _change(self._config, run.config)
        _change(self._summary, run.summary)

    def _apply_history(self, history: Any) -> None:
        row, self._row = self._row, self._row + 1
        has_step = False
        for item in history.item:
            key = ".".join(item.nested_key) or item.key
            has_step = has_step or key == _STEP
            try:
                self._column(key).add(row, float(item.value_json))  # nearly always a number
            except ValueError:
                self._apply_value(key, _value_of(item), row)
        if history.HasField("step") and not has_step:
            self._column(_STEP).add(row, float(history.step.num))

    def _apply_value(self, key: str, value: Any, row: int, depth: int = 0) -> None:
        """Numbers are kept; what a dictionary holds is shown under `outer.inner`, as W&B names it."""
        if isinstance(value, bool | int | float):
            self._column(key).add(row, float(value))
        elif isinstance(value, dict) and "_type" not in value and depth < _MOST_NESTED:
            for name, inner in value.items():
                self._apply_value(f"{key}.{name}", inner, row, depth + 1)

    def _column(self, key: str) -> _Column:
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = _Column()
        return column

    def _apply_stats(self, stats: Any) -> None:
        moment = stats.timestamp.seconds + stats.timestamp.nanos / 1e9
        for item in stats.item:
            value = _value_of(item)
            if isinstance(value, int | float) and not isinstance(value, bool):
                times, values = self._system.setdefault(item.key, (array("d"), array("d")))
                times.append(moment)
                values.append(float(value))

    # ------------------------------------------------------------------ what is shown

    def snapshot(self) -> WandbSnapshot:
        """Return a copy of what is known now."""
        facts = self._facts
        return WandbSnapshot(
            run_id=facts.get("run_id", ""),
            entity=facts.get("entity", ""),
            project=facts.get("project", ""),
            name=facts.get("display_name", ""),
            group=facts.get("run_group", ""),
            tags=facts.get("tags", ()),
            host=facts.get("host", ""),
            started_at=facts.get("started_at", 0.0),
            config=_document(self._config),
            summary=_document(self._summary),
            history={
                key: self._curve(key)
                for key, column in sorted(self._columns.items())
                if key not in _OWN and column.rows
            },
            system={key: _system_curve(key, *columns) for key, columns in sorted(self._system.items())},
            output=tuple(self._output),
            exit_code=self._exit_code,
            rows=self._row,
            skipped_bytes=sum(log.skipped_bytes for log in self._logs),
            damaged=sum(log.damaged for log in self._logs),
        )

    def _curve(self, key: str) -> WandbCurve:
        column = self._columns[key]
        rows = np.array(column.rows, np.int64)
        values = np.array(column.values, np.float64)
        steps = self._at_rows(self._step_metric_of(key), rows)
        missing = np.isnan(steps)
        if missing.any():  # logged without the metric it should be drawn against
            own = self._at_rows(_STEP, rows)
            if missing.all():
                steps = own
            else:
                keep = ~missing
                rows, values, steps = rows[keep], values[keep], steps[keep]
        if np.isnan(steps).any():
            steps = rows.astype(np.float64)
        finite = np.isfinite(values)
        return WandbCurve(key, steps[finite], self._at_rows(_TIME, rows)[finite], values[finite])

    def _step_metric_of(self, key: str) -> str:
        """Return the metric that counts this key's steps: its own, or that of the first pattern it fits."""
        for name, metric in self._step_metrics.items():
            if metric != key and (name == key or fnmatchcase(key, name)):
                return metric
        return _STEP

    def _at_rows(self, key: str, rows: NDArray[np.int64]) -> Floats:
        """Return the values of a key in these rows; nan where it has none."""
        found = np.full(len(rows), np.nan)
        column = self._columns.get(key)
        if column is None or not len(column.rows):
            return found
        theirs = np.array(column.rows, np.int64)
        places = np.minimum(np.searchsorted(theirs, rows), len(theirs) - 1)
        fitting = theirs[places] == rows
        found[fitting] = np.array(column.values, np.float64)[places[fitting]]
        return found


def _system_curve(key: str, times: array[float], values: array[float]) -> WandbCurve:
    moments = np.array(times, np.float64)
    elapsed = moments - (moments[0] if len(moments) else 0.0)
    return WandbCurve(key, elapsed, moments, np.array(values, np.float64))


def _value_of(item: Any) -> Any:
    """Return a value in whichever form this version of W&B wrote it."""
    for name in ("number", "integer", "boolean", "text"):
        if item.HasField(name):
            return getattr(item, name)
    return _parsed(item.json or item.value_json)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _change(known: dict[_Path, str], changes: Any) -> None:
    """Apply W&B's updates and removals."""
    for item in changes.update:
        path = tuple(item.nested_key) or (item.key,)
        known.pop(path, None)  # what came last counts, also when it is a part of another key
        known[path] = item.value_json
    for item in changes.remove:
        path = tuple(item.nested_key) or (item.key,)
        for other in [other for other in known if other[: len(path)] == path]:
            del known[other]


def _document(values: Mapping[_Path, str]) -> dict[str, Any]:
    """Paths and their values as one nested document."""
    document: dict[str, Any] = {}
    for path, text in values.items():
        place = document
        for name in path[:-1]:
            inner = place.get(name)
            if not isinstance(inner, dict):
                inner = place[name] = {}
            place = inner
        place[path[-1]] = _parsed(text)
    return document


__all__ = ["NotAWandbFile", "WandbCurve", "WandbLog", "WandbSnapshot"]


# ---------------------------------------------------------------- wandb records


BLOCK_BYTES = 32 * 1024
READ_BYTES = 4 * 2**20
"""Default limit of one read"""

_FILE_HEADER = struct.Struct("<4sHB")
_IDENT, _MAGIC = b":W&B", 0xBEE1
_CHUNK_HEADER = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_KIND_CRC = {kind: zlib.crc32(bytes([kind])) for kind in (_WHOLE, _FIRST, _MIDDLE, _LAST)}


class NotAWandbFile(ValueError):
    """The file does not begin as W&B's logs do."""


class RecordLog:
    """Reads the records of one file from where it left off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.has_more = False
        """The last read stopped at its limit, not at the end of the file"""
        self.damaged = 0
        """Number of damaged places"""
        self._skipped = 0
        self._size = 0
        self._skip_to: int | None = None
        self._parts: list[bytes] | None = None

    @property
    def skipped_bytes(self) -> int:
        """Bytes that could not be read because of damage."""
        waiting = max(0, min(self._skip_to, self._size) - self.offset) if self._skip_to is not None else 0
        return self._skipped + waiting

    def read(self, max_bytes: int = READ_BYTES) -> list[Any]:
        """Return the records that were added since the last read, decoded; none when there is no file yet.

        A file that became shorter is another one: NotAWandbFile says so, and a new reader begins at its beginning.
        """
        self.has_more = False
        try:
            descriptor = plain_file(os.fspath(self.path), os.O_RDONLY)
        except (FileNotFoundError, NotAPlainFile):
            return []
        try:
            self._size = os.fstat(descriptor).st_size
            if self._size < self.offset:
                raise NotAWandbFile(f"{self.path} was replaced while it was read")
            data = os.pread(descriptor, max(max_bytes, 2 * BLOCK_BYTES), self.offset)
        finally:
            os.close(descriptor)
        self.has_more = self.offset + len(data) < self._size
        return list(self._records(data))

    def _records(self, data: bytes) -> Iterator[Any]:
        begin, end = self.offset, self.offset + len(data)
        if begin == 0:
            if end < _FILE_HEADER.size:
                return
            ident, magic, _version = _FILE_HEADER.unpack_from(data)
            if (ident, magic) != (_IDENT, _MAGIC):
                raise NotAWandbFile(f"{self.path} does not begin like a file of W&B")
            self.offset = _FILE_HEADER.size
        while (chunk := self._next_chunk(data, begin, end)) is not None:
            kind, body = chunk
            whole = self._join(kind, body)
            if whole is not None:
                record = _decode(whole)
                if record is None:
                    self._lose(len(whole))
                else:
                    yield record

    def _next_chunk(self, data: bytes, begin: int, end: int) -> tuple[int, bytes] | None:
        """Return the chunk at the offset; None when it is not there yet. Damage is passed over."""
        while True:
            if self._skip_to is not None:
                if end < self._skip_to:
                    return None
                self._skipped += self._skip_to - self.offset
                self.offset, self._skip_to = self._skip_to, None
            room = BLOCK_BYTES - self.offset % BLOCK_BYTES
            if room < _CHUNK_HEADER.size:  # too little for a chunk: filled with zeros
                if end < self.offset + room:
                    return None
                self.offset += room
                continue
            if end < self.offset + _CHUNK_HEADER.size:
                return None
            checksum, length, kind = _CHUNK_HEADER.unpack_from(data, self.offset - begin)
            first = self.offset - begin + _CHUNK_HEADER.size
            if kind in _KIND_CRC and length <= room - _CHUNK_HEADER.size:
                if end - begin < first + length:
                    return None
                body = data[first : first + length]
                if zlib.crc32(body, _KIND_CRC[kind]) == checksum:
                    self.offset += _CHUNK_HEADER.size + length
                    return kind, body
            self.damaged += 1
            self._skip_to = self.offset + room

    def _join(self, kind: int, body: bytes) -> bytes | None:
        """Return the record that this chunk completes; pieces whose beginning or end was lost are lost, too."""
        if kind in (_WHOLE, _FIRST):
            if self._parts is not None:
                self._lose(sum(map(len, self._parts)))
            self._parts = [body] if kind == _FIRST else None
            return body if kind == _WHOLE else None
        if self._parts is None:
            self._skipped += len(body)
            return None
        self._parts.append(body)
        if kind == _MIDDLE:
            return None
        whole, self._parts = b"".join(self._parts), None
        return whole

    def _lose(self, size: int) -> None:
        self.damaged += 1
        self._skipped += size


def _decode(data: bytes) -> Any | None:
    try:
        return _record_class().FromString(data)
    except DecodeError:
        return None


_SCHEMA = """
Record       num=1:int64 history=2:History summary=3:Changes output=4:Output config=5:Changes stats=7:Stats
Record       metric=12:Metric output_raw=13:Output run=17:Run exit=18:Exit environment=26:Environment
Run          run_id=1:string entity=2:string project=3:string config=4:Changes summary=5:Changes run_group=6:string
Run          display_name=8:string notes=9:string tags=10:*string host=13:string start_time=17:Timestamp
Changes      update=1:*Item remove=2:*Item
History      item=1:*Item step=2:Step
Item         key=1:string nested_key=2:*string none=3:int32 boolean=4:bool integer=5:sint64 number=6:double
Item         text=7:string json=8:string value_json=16:string
Step         num=1:int64
Stats        timestamp=2:Timestamp item=3:*Item
Metric       name=1:string glob_name=2:string step_metric=4:string
Output       line=3:string
Exit         exit_code=1:int32 runtime=2:int32
Environment  os=1:string python=2:string program=6:string host=12:string gpu_type=18:string
Timestamp    seconds=1:int64 nanos=2:int32
"""
"""Message, then name=number:type of its fields, as W&B's `wandb_internal.proto` numbers them; `*` repeats"""


@cache
def _record_class() -> Any:
    """Return the class of `Record`, made from the schema: parsed by protobuf's own code, which is fast."""
    field_class = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="mosaic/wandb_record.proto", package="mosaic.wandb", syntax="proto2")
    messages: dict[str, descriptor_pb2.DescriptorProto] = {}
    for line in _SCHEMA.strip().splitlines():
        name, *fields = line.split()
        message = messages[name] if name in messages else messages.setdefault(name, file.message_type.add(name=name))
        for field_name, number, kind in (re.split("[=:]", text) for text in fields):
            label = field_class.LABEL_REPEATED if kind.startswith("*") else field_class.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=int(number), label=label)
            if (of := kind.removeprefix("*"))[0].isupper():
                field.type, field.type_name = field_class.TYPE_MESSAGE, f".mosaic.wandb.{of}"
            else:
                field.type = getattr(field_class, f"TYPE_{of.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("mosaic.wandb.Record"))


# ---------------------------------------------------------------- wandb folders


_NAME = re.compile(r"(?P<offline>offline-)?run-(?P<when>\d{8}_\d{6})-(?P<id>.+)")


@dataclass(frozen=True)
class WandbFolder:
    """One run as W&B keeps it; a run of ours that was resumed has several."""

    path: Path
    run_id: str
    when: str
    """YYYYMMDD_HHMMSS, as W&B writes it"""
    is_offline: bool
    is_synced: bool = False
    """`wandb sync` has sent it"""

    @property
    def file(self) -> Path:
        """The transaction log."""
        return self.path / f"run-{self.run_id}.wandb"


def find_wandb_folders(folder: Path) -> tuple[WandbFolder, ...]:
    """Return the folders in a run's `wandb/`, the oldest first; none if there is no such folder."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                matched = _NAME.fullmatch(entry.name)
                if matched and entry.is_dir(follow_symlinks=False):
                    path = Path(entry.path)
                    file = path / f"run-{matched['id']}.wandb"
                    is_offline, is_synced = matched["offline"] is not None, os.path.lexists(f"{file}.synced")
                    found.append(WandbFolder(path, matched["id"], matched["when"], is_offline, is_synced))
    except OSError:
        return ()
    return tuple(sorted(found, key=lambda entry: (entry.when, entry.path.name)))
