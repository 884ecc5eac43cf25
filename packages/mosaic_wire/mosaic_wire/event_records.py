"""The format of TensorBoard event files: the framing of records and the protobuf encoding of an event.

A record is: length (uint64), masked CRC-32C of those 8 bytes, the event, masked CRC-32C of the event. The event is
decoded by hand, because this package does not import TensorBoard, and because such a reader skips graphs, images and
histograms at no cost.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem, itemgetter, xor
from pathlib import Path
from typing import NamedTuple

_POLYNOMIAL = 0x82F63B78  # bits reversed
MASK_DELTA = 0xA282EAD8


def _table_of_bytes() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


TABLE = _table_of_bytes()
"""The contribution of one byte to the checksum"""


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the checksum of a short buffer (`mosaic_wire.event_bulk` is faster for long or many ones)."""
    table, crc = TABLE, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """Return a checksum as it is stored in a record: rotated and offset."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


HEADER_BYTES = 12
FOOTER_BYTES = 4
MAX_RECORD_BYTES = 2**31
"""protobuf itself refuses larger messages"""

_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")

_SOMETHING = re.compile(rb"[^\0]")

_MAX_KNOWN_HEADERS = 4096
_known_headers: dict[bytes, int] = {}


def frame(event: bytes) -> bytes:
    """Return the record of one serialized event."""
    length = _LENGTH.pack(len(event))
    return length + _CRC.pack(masked(crc32c(length))) + event + _CRC.pack(masked(crc32c(event)))


def length_in(header: bytes) -> int:
    """Return the length in a 12-byte header, or -1 if it is damaged."""
    length = _known_headers.get(header)
    if length is None:
        length = _LENGTH.unpack_from(header)[0]
        if length > MAX_RECORD_BYTES or _CRC.unpack_from(header, 8)[0] != masked(crc32c(header[:8])):
            return -1
        if len(_known_headers) < _MAX_KNOWN_HEADERS:
            _known_headers[header] = length
    return length


def find_header(buffer: bytes, at: int) -> int:
    """Return the offset of the next intact header, or -1."""
    while True:
        zeros = buffer.find(b"\0\0\0\0", at + 4)  # the upper half of a length
        at = zeros - 4
        if zeros < 0 or at + HEADER_BYTES > len(buffer):
            return -1
        header = buffer[at : at + HEADER_BYTES]
        if length_in(header) >= 0:
            return at
        at += 1
        if not any(header):  # skip the zeros of a hole
            something = _SOMETHING.search(buffer, at)
            at = max(at, something.start() - HEADER_BYTES + 1) if something else len(buffer)


@dataclass
class RecordScanner:
    """Finds the records of a file that is read in pieces; after damage it continues at the next intact header."""

    checksum: Callable[[bytes], int] = crc32c
    searching: bool = False
    done: int = 0
    """Bytes of the last buffer that are processed"""

    def records(self, buffer: bytes) -> Iterator[tuple[int, bytes, str]]:
        """Yield each record of a buffer as (offset, event, problem); the event is empty if damaged."""
        self.done, size = 0, len(buffer)
        while True:
            if self.searching and not self._find(buffer):
                return
            at = self.done
            if at + HEADER_BYTES > size:
                return
            length = length_in(buffer[at : at + HEADER_BYTES])
            end = at + HEADER_BYTES + length
            if length < 0:
                problem, event = "the checksum of its length is wrong", b""
            elif end + FOOTER_BYTES > size:
                return  # still being written, or beyond this buffer
            else:
                event = buffer[at + HEADER_BYTES : end]
                intact = _CRC.unpack_from(buffer, end)[0] == masked(self.checksum(event))
                problem = "" if intact else "the checksum of its content is wrong"
            if problem:
                # Not `end`: after a torn write, the next record begins within the claimed length of this one.
                self.searching, self.done = True, at + 1
                yield at, b"", problem
            else:
                self.done = end + FOOTER_BYTES
                yield at, event, ""

    def _find(self, buffer: bytes) -> bool:
        found = find_header(buffer, self.done)
        self.searching = found < 0
        self.done = max(self.done, len(buffer) - HEADER_BYTES + 1) if found < 0 else found
        return found >= 0


# ---------------------------------------------------------------- the event


@dataclass(slots=True)
class ScalarValue:
    """A number in an event, and its offset if its encoding has a fixed size."""

    tag: bytes
    value: float
    at: int = -1
    format: str = ""
    """Its struct format (f, d, i, q); empty if its size depends on its value"""


@dataclass(slots=True)
class ParsedEvent:
    """The parts of an event that this package uses."""

    wall_time: float = 0.0
    step: int = 0
    wall_time_at: int = -1
    step_at: int = -1
    step_bytes: int = 0
    is_restart: bool = False
    """Whether a session starts, which invalidates earlier points at this step or a later one"""
    scalars: list[ScalarValue] = field(default_factory=list)
    texts: list[tuple[bytes, bytes]] = field(default_factory=list)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 10 bytes")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message as (key, value or 0, begin, end); the key has number and wire type."""
    while at < end:
        key, at = _varint(data, at)
        wire, value, begin = key & 7, 0, at
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 1:
            at += 8
        elif wire == 2:
            length, begin = _varint(data, at)
            at = begin + length
        elif wire == 5:
            at += 4
        else:
            raise ValueError(f"a field of the unknown kind {wire}")
        if at > end:
            raise ValueError("a field extends beyond its message")
        yield key, value, begin, at


def _key(number: int, wire: int) -> int:
    return number << 3 | wire


_EVENT_WALL_TIME, _EVENT_STEP, _EVENT_SUMMARY, _EVENT_SESSION = _key(1, 1), _key(2, 0), _key(5, 2), _key(7, 2)
_SUMMARY_VALUE = _key(1, 2)
_VALUE_TAG, _VALUE_SIMPLE, _VALUE_TENSOR, _VALUE_METADATA = _key(1, 2), _key(2, 5), _key(8, 2), _key(9, 2)
_METADATA_PLUGIN, _PLUGIN_NAME = _key(1, 2), _key(1, 2)
_SESSION_STATUS, _SESSION_START = _key(1, 0), 1
_TENSOR_TYPE, _TENSOR_SHAPE, _TENSOR_CONTENT = _key(1, 0), _key(2, 2), _key(4, 2)
_SHAPE_DIMENSION, _DIMENSION_SIZE = _key(2, 2), _key(1, 0)
_STRING = 7

_NUMBERS = {1: "f", 2: "d", 3: "i", 4: "B", 5: "h", 6: "b", 9: "q", 10: "?", 17: "H", 19: "e", 22: "I", 23: "Q"}
"""Numeric tensor types and their struct formats"""

_FIXED_VALUES = {5: "f", 6: "d"}  # float_val, double_val
_VARINT_VALUES = (7, 10, 11, 16, 17)  # int_val, int64_val, bool_val, uint32_val, uint64_val
_UNSIGNED_TYPES = (10, 22, 23)


def parse_event(data: bytes) -> ParsedEvent:
    """Return a decoded event; raise ValueError for other bytes."""
    event = ParsedEvent()
    try:
        for key, value, begin, end in _fields(data, 0, len(data)):
            if key == _EVENT_WALL_TIME:
                event.wall_time, event.wall_time_at = _DOUBLE.unpack_from(data, begin)[0], begin
            elif key == _EVENT_STEP:
                event.step, event.step_at, event.step_bytes = _signed(value), begin, end - begin
            elif key == _EVENT_SUMMARY:
                for inner, _, value_begin, value_end in _fields(data, begin, end):
                    if inner == _SUMMARY_VALUE:
                        _parse_value(data, value_begin, value_end, event)
            elif key == _EVENT_SESSION:
                status = [value for inner, value, _, _ in _fields(data, begin, end) if inner == _SESSION_STATUS]
                event.is_restart = status[-1:] == [_SESSION_START]
    except (IndexError, struct.error) as error:
        raise ValueError("it ends in the middle of a field") from error
    return event


def _parse_value(data: bytes, begin: int, end: int, event: ParsedEvent) -> None:
    tag, plugin = b"", b""
    simple = tensor = -1
    tensor_end = 0
    for key, _, at, until in _fields(data, begin, end):
        if key == _VALUE_TAG:
            tag = data[at:until]
        elif key == _VALUE_SIMPLE:
            simple, tensor = at, -1
        elif key == _VALUE_TENSOR:
            simple, tensor, tensor_end = -1, at, until
        elif key == _VALUE_METADATA:
            plugin = _plugin_of(data, at, until)
    if simple >= 0:
        event.scalars.append(ScalarValue(tag, _FLOAT.unpack_from(data, simple)[0], simple, "f"))
    elif tensor >= 0 and plugin in (b"", b"scalars", b"text"):
        _parse_tensor(data, tensor, tensor_end, tag, plugin, event)


def _plugin_of(data: bytes, begin: int, end: int) -> bytes:
    name = b""
    for key, _, at, until in _fields(data, begin, end):
        if key == _METADATA_PLUGIN:
            for inner, _, name_at, name_end in _fields(data, at, until):
                if inner == _PLUGIN_NAME:
                    name = data[name_at:name_end]
    return name


def _parse_tensor(data: bytes, begin: int, end: int, tag: bytes, plugin: bytes, event: ParsedEvent) -> None:
    kind, elements = 0, 1
    found: tuple[int, int, int] | None = None
    texts = []
    for key, value, at, until in _fields(data, begin, end):
        if key == _TENSOR_TYPE:
            kind = value
        elif key == _TENSOR_SHAPE:
            elements = _elements_of(data, at, until)
        elif key == _key(8, 2):
            texts.append(data[at:until])
        elif key >> 3 != 3 and found is None:  # 3: the version number
            found = key, at, until
    if kind == _STRING and plugin != b"scalars":
        event.texts.extend((tag, text) for text in texts)
    elif kind in _NUMBERS and plugin != b"text" and elements == 1 and found is not None:
        number = _number_in(data, tag, kind, *found)
        if number is not None:
            event.scalars.append(number)


def _elements_of(data: bytes, begin: int, end: int) -> int:
    elements = 1
    for key, _, at, until in _fields(data, begin, end):
        if key == _SHAPE_DIMENSION:
            sizes = [value for inner, value, _, _ in _fields(data, at, until) if inner == _DIMENSION_SIZE]
            elements *= sizes[-1] if sizes else 0
    return elements


def _number_in(data: bytes, tag: bytes, kind: int, key: int, begin: int, end: int) -> ScalarValue | None:
    """Return the number of a one-element tensor: raw bytes, or a field with values, packed or not."""
    number, wire = key >> 3, key & 7
    written_as = _NUMBERS[kind] if key == _TENSOR_CONTENT else _FIXED_VALUES.get(number, "")
    if written_as:
        if end - begin != struct.calcsize(f"<{written_as}"):
            return None
        value = float(struct.unpack_from(f"<{written_as}", data, begin)[0])
        return ScalarValue(tag, value, begin, written_as if written_as in "fdiq" else "")
    if wire == 2 and begin == end:
        return None
    raw, until = _varint(data, begin)
    if until != end:
        return None
    if number == 13 and kind == 19:  # half_val holds the bits
        return ScalarValue(tag, struct.unpack("<e", (raw & 0xFFFF).to_bytes(2, "little"))[0])
    if number in _VARINT_VALUES:
        return ScalarValue(tag, float(raw if kind in _UNSIGNED_TYPES else _signed(raw)))
    return None


# ---------------------------------------------------------------- what a reader returns


class Scalar(NamedTuple):
    """One point of one curve."""

    tag: str
    step: int
    wall_time: float
    value: float


class TextSummary(NamedTuple):
    """A text summary, such as the hyperparameters."""

    tag: str
    step: int
    wall_time: float
    text: str


@dataclass(frozen=True)
class DamagedRecord:
    """A damaged record, which was skipped."""

    path: Path
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: the record at byte {self.offset} is damaged and was skipped: {self.reason}"


@dataclass(slots=True)
class ScalarColumn:
    """The points of one tag, in the order of the file; `numpy.frombuffer` takes the arrays without a copy."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    wall_times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.steps)

    def drop_from(self, step: int) -> None:
        """Drop the points at this step and later ones."""
        kept = [index for index, known in enumerate(self.steps) if known < step]
        if len(kept) < len(self.steps):
            self.steps = array("q", (self.steps[index] for index in kept))
            self.wall_times = array("d", (self.wall_times[index] for index in kept))
            self.values = array("d", (self.values[index] for index in kept))


@dataclass
class EventBatch:
    """What was added to the event files of one folder since the last read.

    To apply it, drop everything if `is_reset`, then every point from step `drop_from` on, then add the columns.
    """

    folder: str = ""
    """The files' folder relative to the followed one; each is a separate set of curves"""
    is_reset: bool = False
    """Whether a file was truncated, replaced or removed, so that the batch begins at the folder's first record"""
    drop_from: int | None = None
    """The step at which a new session started; earlier points at this step or a later one are invalid"""
    columns: dict[str, ScalarColumn] = field(default_factory=dict)
    texts: list[TextSummary] = field(default_factory=list)
    problems: list[DamagedRecord] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.is_reset or self.drop_from is not None or self.columns or self.texts or self.problems)

    def __len__(self) -> int:
        """Number of points."""
        return sum(map(len, self.columns.values()))

    def scalars(self) -> Iterator[Scalar]:
        """Yield every point, tag by tag."""
        for tag, column in self.columns.items():
            for step, wall_time, value in zip(column.steps, column.wall_times, column.values, strict=True):
                yield Scalar(tag, step, wall_time, value)

    def add(self, tag: str, step: int, wall_time: float, value: float) -> None:
        """Append a scalar to its column."""
        column = self.column(tag)
        column.steps.append(step)
        column.wall_times.append(wall_time)
        column.values.append(value)

    def column(self, tag: str) -> ScalarColumn:
        """Return the column of a tag; make it when it is new."""
        column = self.columns.get(tag)
        if column is None:
            column = self.columns[tag] = ScalarColumn()
        return column

    def restart(self, step: int) -> None:
        """A session starts at this step: it writes again what an earlier one had written from there on."""
        self.drop_from = step if self.drop_from is None else min(step, self.drop_from)
        for tag, column in list(self.columns.items()):
            column.drop_from(step)
            if not column:
                del self.columns[tag]
        self.texts = [text for text in self.texts if text.step < step]


# ---------------------------------------------------------------- records of a known layout


FIRST_FORMS = 64
"""Layouts that are always stored; more only if they are used, because a script may create a tag for every record"""
_USES_A_FORM = 50
_MAX_FORMS = 512
_MAX_FORM_BYTES = 4096
_SIZES = {"f": 4, "d": 8, "i": 4, "q": 8}
_MASK = 0xFFFFFFFF
_contribution: Callable[[list[int], int], int] = getitem


class _Contributions:
    """Tables of a byte's contribution to a checksum by the number of bytes that follow it, built on demand."""

    def __init__(self) -> None:
        self._tables: dict[int, list[int]] = {}

    def at(self, distances: list[int]) -> list[list[int]]:
        missing = {distance for distance in distances if distance not in self._tables}
        bits = [TABLE[1 << bit] for bit in range(8)]
        for distance in range(max(missing, default=-1) + 1):
            if distance in missing:
                table = [0]
                for bit in bits:  # a byte's contribution is that of its bits
                    table += [known ^ bit for known in table]
                self._tables[distance] = table
            bits = [TABLE[bit & 0xFF] ^ bit >> 8 for bit in bits]
        return [self._tables[distance] for distance in distances]


_contributions = _Contributions()


class _Form:
    """A record layout: which bytes differ between records, and how its numbers are decoded."""

    def __init__(self, data: bytes, event: ParsedEvent, names: list[str]) -> None:
        self.names = names
        self.step_at, self.step_end = event.step_at, event.step_at + event.step_bytes
        places = [(event.wall_time_at, "d"), *((scalar.at, scalar.format) for scalar in event.scalars)]
        free = bytearray(len(data))  # bits that may differ
        for at, kind in places:
            free[at : at + _SIZES[kind]] = b"\xff" * _SIZES[kind]
        # The continuation bits of a varint are part of the layout.
        free[self.step_at : self.step_end] = b"\x7f" * event.step_bytes
        self.mask = ~int.from_bytes(free, "little") & ((1 << 8 * len(data)) - 1)
        self.fixed = int.from_bytes(data, "little") & self.mask
        differing = [at for at, bits in enumerate(free) if bits]
        self.bytes_of: Callable[[bytes], tuple[int, ...]] = itemgetter(*differing)
        self.tables = _contributions.at([len(data) - 1 - at for at in differing])
        self.rest = crc32c(data) ^ reduce(xor, map(_contribution, self.tables, self.bytes_of(data)))
        self.numbers = struct.Struct(_layout(places))
        self.order = itemgetter(*_ranks([at for at, _ in places])) if len(places) > 1 else None

    def is_intact(self, data: bytes, stored: int) -> bool:
        crc = reduce(xor, map(_contribution, self.tables, self.bytes_of(data)), self.rest)
        return ((crc >> 15 | crc << 17) + MASK_DELTA) & _MASK == stored


def _layout(places: list[tuple[int, str]]) -> str:
    text, end = "<", 0
    for at, kind in sorted(places):
        text += f"{at - end}x{kind}"
        end = at + _SIZES[kind]
    return text


def _ranks(starts: list[int]) -> list[int]:
    """Return the index of each number in byte order."""
    ordered = sorted(starts)
    return [ordered.index(start) for start in starts]


class KnownForms:
    """Reads records of a known layout without parsing them (`event_bulk` does this with numpy).

    A script writes the same few kinds of records repeatedly, with the same tags but other times, steps and values. The
    first one of a kind is parsed and becomes a form. For a record that equals it in all other bytes, the numbers are
    unpacked directly, and only the contributions of the differing bytes to the checksum are computed (CRC-32C is
    linear). This takes a fifth of the time.
    """

    def __init__(self) -> None:
        self._by_length: dict[int, list[_Form]] = {}
        self._learned = self._used = 0

    def learn(self, data: bytes, event: ParsedEvent, name_of: Callable[[bytes], str]) -> None:
        """Store the layout of an intact record if it is likely to be repeated."""
        if self._learned >= FIRST_FORMS + self._used // _USES_A_FORM:
            return
        if len(data) > _MAX_FORM_BYTES or event.texts or event.is_restart:
            return
        if not event.scalars or event.wall_time_at < 0 or event.step_at < 0:
            return
        if any(scalar.format not in _SIZES for scalar in event.scalars):
            return
        self._learned += 1
        if self._learned % _MAX_FORMS == 0:  # steps grow by a byte from time to time, so old layouts become useless
            self._by_length.clear()
        form = _Form(data, event, [name_of(scalar.tag) for scalar in event.scalars])
        self._by_length.setdefault(len(data), []).append(form)

    def read(self, buffer: bytes, at: int, batch: EventBatch) -> int:
        """Add consecutive records of known layouts to a batch; return the offset of the first other one."""
        size, forms = len(buffer), self._by_length
        columns: dict[int, list[ScalarColumn]] = {}
        while at + HEADER_BYTES <= size:
            length = length_in(buffer[at : at + HEADER_BYTES])
            begin, end = at + HEADER_BYTES, at + HEADER_BYTES + length
            known = forms.get(length)
            if known is None or end + FOOTER_BYTES > size:
                break
            data = buffer[begin:end]
            number = int.from_bytes(data, "little")
            form = next((form for form in known if number & form.mask == form.fixed), None)
            if form is None or not form.is_intact(data, int.from_bytes(buffer[end : end + FOOTER_BYTES], "little")):
                break
            targets = columns.get(id(form))
            if targets is None:
                targets = columns[id(form)] = [batch.column(name) for name in form.names]
            step, shift = 0, 0
            for byte in data[form.step_at : form.step_end]:
                step |= (byte & 0x7F) << shift
                shift += 7
            step &= 0xFFFFFFFFFFFFFFFF
            if step >> 63:
                step -= 1 << 64
            numbers = form.numbers.unpack_from(data)
            wall_time, *values = form.order(numbers) if form.order is not None else numbers
            for column, value in zip(targets, values, strict=True):
                column.steps.append(step)
                column.wall_times.append(wall_time)
                column.values.append(value)
            self._used += 1
            at = end + FOOTER_BYTES
        return at
