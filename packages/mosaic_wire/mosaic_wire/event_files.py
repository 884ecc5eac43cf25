"""Reading TensorBoard event files while they grow, and writing scalars.

    reader = EventFolderReader(run_folder.tensorboard)
    for batch in reader.read():
        for tag, column in batch.columns.items():
            …
    saved = reader.position()                      # JSON
    reader = EventFolderReader(folder, position=saved)    # continues there: nothing lost, nothing twice

Checksums are always checked. A record that is still being written is waited for; a damaged one is reported once and
left out. numpy is used when there is much to read and it is installed; a worker that follows its own training reads a
few records at a time and never loads it.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from mosaic_wire.event_records import (
    FOOTER_BYTES,
    HEADER_BYTES,
    DamagedRecord,
    EventBatch,
    KnownForms,
    RecordScanner,
    Scalar,
    ScalarColumn,
    TextSummary,
    crc32c,
    frame,
    length_in,
    parse_event,
)
from mosaic_wire.files import NotAPlainFile, plain_file

__all__ = [
    "DamagedRecord",
    "EventBatch",
    "EventFileReader",
    "EventFolderReader",
    "Scalar",
    "ScalarColumn",
    "ScalarEventWriter",
    "TextSummary",
]

PREFIX = "events.out.tfevents."
READ_BYTES = 8 * 2**20
"""Default limit of one read"""

_WITHOUT_EVENTS = frozenset({"checkpoints", "metrics", "wandb"})
"""Folders of a run that may hold many files and never event files to be read"""
_MOST_ENTRIES = 20_000
_WORTH_LOADING_NUMPY = 2**20
_WORTH_USING_NUMPY = 2**15
_TAIL_BYTES = 32


@cache
def _load_bulk() -> ModuleType | None:
    try:
        from mosaic_wire import event_bulk
    except ImportError:
        return None
    return event_bulk


def _bulk_for(size: int) -> ModuleType | None:
    """Return the module that reads much at once, where that is worth its start (numpy: 0.1 s, 25 MB)."""
    worth = _WORTH_USING_NUMPY if "numpy" in sys.modules else _WORTH_LOADING_NUMPY
    return _load_bulk() if size >= worth else None


class _Replaced(Exception):
    """The file is no longer the one whose beginning was read."""


class EventFileReader:
    """Reads one event file from where it left off."""

    def __init__(
        self, path: Path, offset: int = 0, *, texts: bool = False, bulk: bool = True, position: Any = None
    ) -> None:
        """`texts` keeps text summaries too; `bulk=False` never uses numpy; `position` is what `position()` returned."""
        self.path = path
        self.offset = offset
        self.has_more = False
        """The last read stopped at its limit, not at the end of the file"""
        self.waiting_bytes = 0
        """Bytes after the last whole record: still being written, or torn by a writer that exited"""
        self._texts, self._bulk = texts, bulk
        self._scanner = RecordScanner(self._checksum)
        self._tail = b""
        self._names: dict[bytes, str] = {}
        self._forms = KnownForms()
        if position is not None:
            self._restore(position)

    def position(self) -> dict[str, Any]:
        """Return the position to continue from, as JSON."""
        return {"offset": self.offset, "tail": self._tail.hex(), "searching": self._scanner.searching}

    def _restore(self, position: Any) -> None:
        try:
            self.offset, self._tail = int(position["offset"]), bytes.fromhex(position["tail"])
            self._scanner.searching = bool(position["searching"])
            if self.offset < len(self._tail):
                raise ValueError(f"offset {self.offset} is too small")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"this is not the position of a reader of event files: {position!r}") from error

    def read(self, max_bytes: int = READ_BYTES) -> EventBatch:
        """Return what was added since the last read; empty when nothing was, or when there is no file yet."""
        batch = EventBatch()
        try:
            self.read_into(batch, max_bytes)
        except _Replaced:
            self.rewind()
            batch = EventBatch(is_reset=True)
            self.read_into(batch, max_bytes)
        return batch

    def rewind(self) -> None:
        """Begin again at the first record."""
        self.offset, self._tail, self._scanner.searching = 0, b"", False

    def read_into(self, batch: EventBatch, max_bytes: int = READ_BYTES) -> int:
        """Add what is new to a batch; return how many bytes of the file that took."""
        try:
            descriptor = plain_file(os.fspath(self.path), os.O_RDONLY)
        except (FileNotFoundError, NotAPlainFile):
            if self.offset:
                raise _Replaced from None
            return 0
        try:
            size = os.fstat(descriptor).st_size
            if size < self.offset:
                raise _Replaced
            if self._tail and os.pread(descriptor, len(self._tail), self.offset - len(self._tail)) != self._tail:
                raise _Replaced
            buffer = self._next_bytes(descriptor, max_bytes)
        finally:
            os.close(descriptor)
        done = self._decode(buffer, batch)
        if done:
            self._tail = (self._tail + buffer[max(0, done - _TAIL_BYTES) : done])[-_TAIL_BYTES:]
            self.offset += done
        self.waiting_bytes = max(0, size - self.offset)
        self.has_more = done > 0 and self.waiting_bytes > len(buffer) - done
        return done

    def _next_bytes(self, descriptor: int, max_bytes: int) -> bytes:
        buffer = os.pread(descriptor, max(max_bytes, HEADER_BYTES), self.offset)
        if len(buffer) >= HEADER_BYTES and not self._scanner.searching:
            record = HEADER_BYTES + length_in(buffer[:HEADER_BYTES]) + FOOTER_BYTES
            if record > len(buffer):  # one record longer than the limit: it is taken whole or not at all
                buffer += os.pread(descriptor, record - len(buffer), self.offset + len(buffer))
        return buffer

    def _checksum(self, event: bytes) -> int:
        bulk = _bulk_for(len(event)) if self._bulk and len(event) >= _WORTH_USING_NUMPY else None
        return bulk.crc32c_of(event) if bulk else crc32c(event)

    def _decode(self, buffer: bytes, batch: EventBatch) -> int:
        bulk = _bulk_for(len(buffer)) if self._bulk and not self._scanner.searching else None
        if bulk is not None:
            done: int = bulk.decode(buffer, batch, texts=self._texts)
            if done >= 0:
                return done
        scanner = self._scanner
        for at, event, problem in scanner.records(buffer):
            problem = problem or self._add(event, batch)
            if problem:
                batch.problems.append(DamagedRecord(self.path, self.offset + at, problem))
            if not scanner.searching:
                scanner.done = self._forms.read(buffer, scanner.done, batch)
        return scanner.done

    def _add(self, data: bytes, batch: EventBatch) -> str:
        """Add one event to a batch; return what is wrong with it."""
        try:
            event = parse_event(data)
        except ValueError as error:
            return f"its content is no event: {error}"
        self._forms.learn(data, event, self._name_of)
        if event.is_restart:
            batch.restart(event.step)
        for scalar in event.scalars:
            batch.add(self._name_of(scalar.tag), event.step, event.wall_time, scalar.value)
        for tag, text in event.texts if self._texts else ():
            content = text.decode("utf-8", "replace")
            batch.texts.append(TextSummary(self._name_of(tag), event.step, event.wall_time, content))
        return ""

    def _name_of(self, tag: bytes) -> str:
        name = self._names.get(tag)
        if name is None:
            name = self._names[tag] = tag.decode("utf-8", "replace")
        return name


class EventFolderReader:
    """Reads all event files below a folder, also those that appear later; each folder's files in their order."""

    def __init__(
        self, folder: Path, *, beside: bool = False, texts: bool = False, bulk: bool = True, position: Any = None
    ) -> None:
        """`beside` reads those in other folders of the same run, too (`../runs/…`): a script writes where it likes.

        The other arguments are those of `EventFileReader`.
        """
        self._folder, self._beside = folder, beside
        self._options = {"texts": texts, "bulk": bulk}
        self._readers: dict[str, dict[str, EventFileReader]] = {}
        self.has_more = False
        if position is not None:
            self._restore(position)

    def position(self) -> dict[str, Any]:
        """Return the position to continue from, as JSON."""
        files = {
            f"{folder}/{name}": reader.position()
            for folder, readers in self._readers.items()
            for name, reader in readers.items()
            if reader.offset
        }
        return {"version": 1, "files": files}

    def _restore(self, position: Any) -> None:
        if not isinstance(position, Mapping) or position.get("version") != 1 or "files" not in position:
            raise ValueError(f"this is not the position of a reader of event folders: {position!r}")
        for path, place in position["files"].items():
            folder, _, name = path.rpartition("/")
            self._reader(folder, name, position=place)

    @property
    def waiting_bytes(self) -> int:
        """Bytes after the last whole record of each file: being written, or torn by a writer that exited."""
        return sum(reader.waiting_bytes for readers in self._readers.values() for reader in readers.values())

    def read(self, max_bytes: int = READ_BYTES) -> list[EventBatch]:
        """Return what was added since the last read, one batch for each folder with new records."""
        self._scan_folder()
        batches, self.has_more = [], False
        for folder in sorted(self._readers):
            batch, done = self._read_folder(folder, max_bytes)
            max_bytes -= done
            if batch:
                batches.append(batch)
            if max_bytes <= 0:
                self.has_more = True
                break
        return batches

    def _read_folder(self, folder: str, max_bytes: int) -> tuple[EventBatch, int]:
        batch = EventBatch(folder)
        while True:
            try:
                return batch, self._read_files(folder, batch, max_bytes)
            except _Replaced:
                # What was returned of this folder no longer matches its files: return all of it again.
                for name, reader in list(self._readers[folder].items()):
                    reader.rewind()
                    if not reader.path.exists():
                        del self._readers[folder][name]
                batch = EventBatch(folder, is_reset=True)

    def _read_files(self, folder: str, batch: EventBatch, max_bytes: int) -> int:
        total = 0
        readers = self._readers[folder]
        for name in sorted(readers, key=_order_of):
            while total < max_bytes:
                done = readers[name].read_into(batch, max_bytes - total)
                total += done
                if not readers[name].has_more:
                    break
        return total

    def _scan_folder(self) -> None:
        pending = [("", os.fspath(self._folder))]
        if self._beside:
            pending.append(("..", os.fspath(self._folder.parent)))
        left = _MOST_ENTRIES
        while pending and left > 0:
            folder, path = pending.pop()
            try:
                with os.scandir(path) as found:
                    entries = list(islice(found, left))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                continue  # folders nested without end
            left -= len(entries)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if not (folder.startswith("..") and self._is_passed_over(folder, entry.name)):
                        pending.append((f"{folder}/{entry.name}".lstrip("/"), entry.path))
                elif entry.name.startswith(PREFIX) and entry.is_file(follow_symlinks=False):
                    self._reader(folder, entry.name)

    def _is_passed_over(self, folder: str, name: str) -> bool:
        return name in _WITHOUT_EVENTS or (folder == ".." and name == self._folder.name)

    def _reader(self, folder: str, name: str, position: Any = None) -> None:
        readers = self._readers.setdefault(folder, {})
        if name not in readers:
            path = Path(os.path.normpath(self._folder / folder / name))  # the folder itself may not be there
            readers[name] = EventFileReader(path, position=position, **self._options)


def _order_of(name: str) -> list[tuple[int, str]]:
    """Files in the order of their making: the numbers in a name (time, process, counter) count as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


# ---------------------------------------------------------------- writing


class ScalarEventWriter:
    """One file; each call is one event, on disk when it returns (as far as the kernel is concerned).

    After an OSError (a full disk) it may be used on: what was torn costs only itself. With `resume_at`, readers drop
    what an earlier attempt wrote after that step.
    """

    def __init__(self, folder: Path, *, resume_at: int | None = None) -> None:
        self._resume_at = resume_at
        self._path = folder / f"{PREFIX}{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._stream: BinaryIO | None = None

    def _open(self) -> BinaryIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        stream = self._path.open("ab", buffering=0)
        try:
            _append(stream, _text_field(3, "brain.Event:2"), time.time(), 0)
            if self._resume_at is not None:
                _append(stream, _bytes_field(7, b"\x08\x01"), time.time(), self._resume_at + 1)  # SessionLog START
        except BaseException:
            stream.close()
            raise
        return stream

    def add_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write values of one step."""
        if self._stream is None:
            self._stream = self._open()
        summary = b"".join(
            _bytes_field(1, _text_field(1, tag) + b"\x15" + struct.pack("<f", value)) for tag, value in values.items()
        )
        _append(self._stream, _bytes_field(5, summary), time.time(), step)

    def close(self) -> None:
        """Close the file."""
        if self._stream is not None:
            self._stream.close()


def _append(stream: BinaryIO, content: bytes, wall_time: float, step: int) -> None:
    record = frame(b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step) + content)
    if stream.write(record) != len(record):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def _bytes_field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _text_field(number: int, text: str) -> bytes:
    return _bytes_field(number, text.encode())
