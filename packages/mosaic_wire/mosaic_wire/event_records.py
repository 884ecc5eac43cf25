"""TensorBoard's event files from the inside: the framing of records and the protobuf wire of an event.

A record is: length (uint64), masked CRC-32C of those 8 bytes, the event, masked CRC-32C of the event. The event is
read by hand, because the messages belong to TensorBoard, which this package does not import, and because a reader that
knows what it looks for passes over graphs, images and histograms at no cost.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mosaic_wire.crc32c import crc32c, masked

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
    """The record of one serialised event."""
    length = _LENGTH.pack(len(event))
    return length + _CRC.pack(masked(crc32c(length))) + event + _CRC.pack(masked(crc32c(event)))


def length_in(header: bytes) -> int:
    """The length that 12 bytes tell, or -1 when they are no intact header."""
    length = _known_headers.get(header)
    if length is None:
        length = _LENGTH.unpack_from(header)[0]
        if length > MAX_RECORD_BYTES or _CRC.unpack_from(header, 8)[0] != masked(crc32c(header[:8])):
            return -1
        if len(_known_headers) < _MAX_KNOWN_HEADERS:
            _known_headers[header] = length
    return length


def find_header(buffer: bytes, at: int) -> int:
    """Where the next intact header begins; -1 without one."""
    while True:
        zeros = buffer.find(b"\0\0\0\0", at + 4)  # the upper half of a length
        at = zeros - 4
        if zeros < 0 or at + HEADER_BYTES > len(buffer):
            return -1
        header = buffer[at : at + HEADER_BYTES]
        if length_in(header) >= 0:
            return at
        at += 1
        if not any(header):  # a hole: its zeros are not tried one by one
            something = _SOMETHING.search(buffer, at)
            at = max(at, something.start() - HEADER_BYTES + 1) if something else len(buffer)


@dataclass
class RecordScanner:
    """Finds the records of a file that is read in pieces; after damage it looks for the next intact header."""

    checksum: Callable[[bytes], int] = crc32c
    searching: bool = False
    done: int = 0
    """How far into the last buffer nothing is left to do"""

    def records(self, buffer: bytes) -> Iterator[tuple[int, bytes, str]]:
        """Each record of a buffer as (its place, the event, what is wrong with it); the event is empty when damaged."""
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
                problem, event = "the checksum of its length does not fit", b""
            elif end + FOOTER_BYTES > size:
                return  # still being written, or beyond this buffer
            else:
                event = buffer[at + HEADER_BYTES : end]
                intact = _CRC.unpack_from(buffer, end)[0] == masked(self.checksum(event))
                problem = "" if intact else "the checksum of its content does not fit"
            if problem:
                # Not `end`: after a torn write the next record begins inside what this one claims.
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
    """A number in an event, and where it stands when it always takes the same room."""

    tag: bytes
    value: float
    at: int = -1
    format: str = ""
    """As struct writes it: f, d, i, q; empty when its room depends on its value"""


@dataclass(slots=True)
class ParsedEvent:
    """What this package wants to know of an event; everything else was passed over."""

    wall_time: float = 0.0
    step: int = 0
    wall_time_at: int = -1
    step_at: int = -1
    step_bytes: int = 0
    is_restart: bool = False
    """A session starts: what was written before with this step or a later one no longer counts"""
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
    """The fields of a message as (key, value or 0, begin, end); the key holds number and wire type."""
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
            raise ValueError("a field goes on after its message has ended")
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
"""Numeric tensor types and how struct writes them"""

_FIXED_VALUES = {5: "f", 6: "d"}  # float_val, double_val
_VARINT_VALUES = (7, 10, 11, 16, 17)  # int_val, int64_val, bool_val, uint32_val, uint64_val
_UNSIGNED_TYPES = (10, 22, 23)


def parse_event(data: bytes) -> ParsedEvent:
    """Read one event; ValueError when the bytes are none."""
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


def parse_plain_scalar(data: bytes) -> tuple[float, int, bytes, float] | None:
    """(wall time, step, tag, value) of an event as most writers write it: one tag, one `simple_value`; else None."""
    end = len(data)
    if end < 24 or end > 127 or data[0] != _EVENT_WALL_TIME:
        return None
    at, step = 9, 0
    if data[9] == _EVENT_STEP:
        step, at = _varint(data, 10)
    if at + 6 > end or data[at] != _EVENT_SUMMARY or data[at + 1] != end - at - 2:
        return None
    if data[at + 2] != _SUMMARY_VALUE or data[at + 3] != end - at - 4:
        return None
    value_at = end - 5
    if data[at + 4] != _VALUE_TAG or data[at + 5] != value_at - at - 6 or data[value_at] != _VALUE_SIMPLE:
        return None
    value: float = _FLOAT.unpack_from(data, value_at + 1)[0]
    return _DOUBLE.unpack_from(data, 1)[0], _signed(step), data[at + 6 : value_at], value


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
        elif key >> 3 != 3 and found is None:  # the version number says nothing
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
    """The number of a tensor with one element: raw bytes, or one of the fields with values, packed or not."""
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
