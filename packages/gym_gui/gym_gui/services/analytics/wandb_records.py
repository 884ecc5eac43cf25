"""The transaction log of Weights & Biases, `run-<id>.wandb`, as records: read without W&B's package, while it grows.

The file is a log in LevelDB's format: seven bytes that name it, then blocks of 32 KiB. A record lies in one chunk or in
several, each with its length, its kind and a CRC-32 over both; a chunk never crosses a block. Inside a record is one
protobuf message `Record`, of which we know the few fields that are shown (the others are passed over).

A chunk that is still being written is waited for. After a damaged one reading goes on at the next block, and how many
bytes that cost is said.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from mosaic_wire.files import NotAPlainFile, plain_file

BLOCK_BYTES = 32 * 1024
READ_BYTES = 4 * 2**20
"""How much one read takes"""

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
        """How many places were found damaged"""
        self._skipped = 0
        self._size = 0
        self._skip_to: int | None = None
        self._parts: list[bytes] | None = None

    @property
    def skipped_bytes(self) -> int:
        """How much could not be read because of damage."""
        waiting = max(0, min(self._skip_to, self._size) - self.offset) if self._skip_to is not None else 0
        return self._skipped + waiting

    def read(self, max_bytes: int = READ_BYTES) -> list[Any]:
        """The records that were added since the last read, decoded; none when there is no file yet.

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
        """The chunk at the offset; None when it is not there yet. Damage is passed over."""
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
        """The record that this chunk completes; pieces whose beginning or end was lost are lost, too."""
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


_INT32, _INT64, _SINT64, _DOUBLE, _BOOL, _TEXT = (
    descriptor_pb2.FieldDescriptorProto.TYPE_INT32, descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    descriptor_pb2.FieldDescriptorProto.TYPE_SINT64, descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE,
    descriptor_pb2.FieldDescriptorProto.TYPE_BOOL, descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
)  # fmt: skip

_Kind = int | str
_MESSAGES: dict[str, dict[str, tuple[int, _Kind]]] = {
    "Record": {
        "num": (1, _INT64), "history": (2, "History"), "summary": (3, "Changes"), "output": (4, "Output"),
        "config": (5, "Changes"), "stats": (7, "Stats"), "metric": (12, "Metric"), "output_raw": (13, "Output"),
        "run": (17, "Run"), "exit": (18, "Exit"), "environment": (26, "Environment"),
    },
    "Run": {
        "run_id": (1, _TEXT), "entity": (2, _TEXT), "project": (3, _TEXT), "config": (4, "Changes"),
        "summary": (5, "Changes"), "run_group": (6, _TEXT), "display_name": (8, _TEXT), "notes": (9, _TEXT),
        "tags": (10, f"*{_TEXT}"), "host": (13, _TEXT), "start_time": (17, "Timestamp"),
    },
    "Changes": {"update": (1, "*Item"), "remove": (2, "*Item")},
    "History": {"item": (1, "*Item"), "step": (2, "Step")},
    "Item": {
        "key": (1, _TEXT), "nested_key": (2, f"*{_TEXT}"), "none": (3, _INT32), "boolean": (4, _BOOL),
        "integer": (5, _SINT64), "number": (6, _DOUBLE), "text": (7, _TEXT), "json": (8, _TEXT),
        "value_json": (16, _TEXT),
    },
    "Step": {"num": (1, _INT64)},
    "Stats": {"timestamp": (2, "Timestamp"), "item": (3, "*Item")},
    "Metric": {"name": (1, _TEXT), "glob_name": (2, _TEXT), "step_metric": (4, _TEXT)},
    "Output": {"line": (3, _TEXT)},
    "Exit": {"exit_code": (1, _INT32), "runtime": (2, _INT32)},
    "Environment": {
        "os": (1, _TEXT), "python": (2, _TEXT), "program": (6, _TEXT), "host": (12, _TEXT), "gpu_type": (18, _TEXT),
    },
    "Timestamp": {"seconds": (1, _INT64), "nanos": (2, _INT32)},
}  # fmt: skip
"""Message → field → number and type, as W&B's `wandb_internal.proto` numbers them; `*` repeats"""


@cache
def _record_class() -> Any:
    """The class of `Record`, made from the table: parsed by protobuf's own code, which is fast."""
    file = descriptor_pb2.FileDescriptorProto(name="mosaic/wandb_record.proto", package="mosaic.wandb", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            is_repeated = isinstance(kind, str) and kind.startswith("*")
            label = (
                descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
                if is_repeated
                else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
            )
            field = message.field.add(name=field_name, number=number, label=label)
            of = str(kind).removeprefix("*")
            if of.isdigit():
                field.type = int(of)  # type: ignore[assignment]  # an enum's number
            else:
                field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".mosaic.wandb.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("mosaic.wandb.Record"))
