"""Reading many event records at once, with numpy.

Records of one length and one tag differ in few bytes: the wall time, the step, the values. The first of a kind is read
with care and becomes a template; records that equal it in every other byte need not be parsed again. Nor is their
checksum computed over all bytes: CRC-32C is linear, so what the differing bytes contribute, taken from the stored
checksum, must leave the same number for all of them.

Whatever does not fit (texts, histograms, odd encodings) is parsed one by one. Where anything is damaged, nothing is
decoded here: the caller goes through that piece of the file record by record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mosaic_wire.event_records import (
    FOOTER_BYTES,
    HEADER_BYTES,
    MASK_DELTA,
    MAX_RECORD_BYTES,
    TABLE,
    EventBatch,
    ParsedEvent,
    TextSummary,
    crc32c,
    parse_event,
)

Bytes: TypeAlias = npt.NDArray[np.uint8]
Words: TypeAlias = npt.NDArray[np.uint64]
Checksums: TypeAlias = npt.NDArray[np.uint32]
Places: TypeAlias = npt.NDArray[np.int64]

_PADDING = 16
_MAX_TEMPLATE_BYTES = 1024
_MAX_LONELY_TEMPLATES = 64
"""Templates that fitted one record only, after which a group of records is parsed one by one"""

_BLOCK = 64
_BLOCKS_AT_ONCE = 2048  # what a core's cache holds: each of the columns goes through all of them
_UNFIXED = ""


class _Damaged(Exception):
    """This piece of the file must be decoded record by record."""


# ---------------------------------------------------------------- checksums


_byte_tables: list[Checksums] = [np.array(TABLE, dtype=np.uint32)]


def _byte_table(distance: int) -> Checksums:
    """Return what each value of a byte contributes to the checksum when `distance` bytes follow it."""
    while len(_byte_tables) <= distance:
        before = _byte_tables[-1]
        _byte_tables.append((before >> np.uint32(8)) ^ _byte_tables[0][before & np.uint32(0xFF)])
    return _byte_tables[distance]


@cache
def _shift_tables(power: int) -> Checksums:
    """Four tables, one per byte of a checksum: what 2**power zero bytes make of it."""
    values = np.arange(256, dtype=np.uint32)[None, :] << np.array([[0], [8], [16], [24]], dtype=np.uint32)
    if power == 0:
        after_one: Checksums = (values >> np.uint32(8)) ^ _byte_table(0)[values & np.uint32(0xFF)]
        return after_one
    return _shifted(_shifted(values, power - 1), power - 1)


def _shifted(crcs: Checksums, power: int) -> Checksums:
    tables = _shift_tables(power)
    shifted: Checksums = tables[0][crcs & np.uint32(0xFF)]
    for index in (1, 2, 3):
        shifted = shifted ^ tables[index][(crcs >> np.uint32(8 * index)) & np.uint32(0xFF)]
    return shifted


@cache
def _crc_of_zeros(length: int) -> int:
    """Return the checksum of that many zero bytes: what the start value alone contributes."""
    crc = np.array([0xFFFFFFFF], dtype=np.uint32)
    for power in range(length.bit_length()):
        if length >> power & 1:
            crc = _shifted(crc, power)
    return int(crc[0]) ^ 0xFFFFFFFF


def crc32c_of_many(data: Bytes, starts: Places, lengths: Places) -> Checksums:
    """Return the checksums of pieces of a buffer, a whole buffer being the simplest case."""
    # Zeros in front contribute nothing: each piece becomes whole blocks, and a power of two of them.
    blocks = np.maximum(1, -(-lengths // _BLOCK))
    powers = [(int(count) - 1).bit_length() for count in blocks]
    crcs = np.empty(len(starts), dtype=np.uint32)
    for power in sorted(set(powers)):
        chosen = [index for index, known in enumerate(powers) if known == power]
        width = _BLOCK << power
        rows = np.zeros((len(chosen), width), dtype=np.uint8)
        for row, index in enumerate(chosen):
            start, length = int(starts[index]), int(lengths[index])
            rows[row, width - length :] = data[start : start + length]
        parts = _contributions_of_blocks(rows.reshape(-1, _BLOCK)).reshape(len(chosen), -1)
        for fold in range(power):
            parts = _shifted(parts[:, 0::2], fold + _BLOCK.bit_length() - 1) ^ parts[:, 1::2]
        affine = np.array([_crc_of_zeros(int(lengths[index])) for index in chosen], dtype=np.uint32)
        crcs[chosen] = parts[:, 0] ^ affine
    return crcs


def crc32c_of(data: bytes) -> int:
    """Return the checksum of one buffer of any length."""
    if len(data) < 16 * _BLOCK:
        return crc32c(data)
    piece = np.frombuffer(data, dtype=np.uint8)
    return int(crc32c_of_many(piece, np.array([0]), np.array([len(data)]))[0])


def _contributions_of_blocks(blocks: Bytes) -> Checksums:
    total = np.zeros(len(blocks), dtype=np.uint32)
    for first in range(0, len(blocks), _BLOCKS_AT_ONCE):
        part = slice(first, first + _BLOCKS_AT_ONCE)
        for column in range(_BLOCK):
            total[part] ^= _byte_table(_BLOCK - 1 - column)[blocks[part, column]]
    return total


def _unmasked(stored: Checksums) -> Checksums:
    rotated = stored - np.uint32(MASK_DELTA)
    return (rotated >> np.uint32(17)) | (rotated << np.uint32(15))


# ---------------------------------------------------------------- framing


@dataclass(frozen=True)
class _Piece:
    """A piece of an event file, every byte of it reachable as the start of something longer."""

    data: Bytes
    size: int

    def at(self, places: Places, dtype: str) -> npt.NDArray[Any]:
        """Return the values of a type that begin at these places, aligned or not."""
        kind = np.dtype(dtype)
        count = len(self.data) - kind.itemsize + 1
        everywhere: npt.NDArray[Any] = np.ndarray((count,), dtype=kind, buffer=self.data, strides=(1,))
        return everywhere[places]


def _find_records(piece: _Piece) -> tuple[Places, Places]:
    """Return where the whole records of a piece begin, and the lengths of their events."""
    if piece.size < HEADER_BYTES:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    found = []
    for shift in range(4):
        halves = np.frombuffer(piece.data, dtype="<u4", offset=shift, count=(piece.size - shift) // 4)
        found.append(np.flatnonzero(halves == 0) * 4 + (shift - 4))  # the upper half of a length
    places = np.concatenate(found)
    places = places[(places >= 0) & (places + HEADER_BYTES <= piece.size)]
    lengths = piece.at(places, "<u4")
    crcs = np.full(len(places), _crc_of_zeros(8), dtype=np.uint32)
    for byte in range(4):
        crcs ^= _byte_table(7 - byte)[(lengths >> np.uint32(8 * byte)) & np.uint32(0xFF)]
    intact = (_unmasked(piece.at(places + 8, "<u4")) == crcs) & (lengths <= MAX_RECORD_BYTES)
    starts = np.sort(places[intact], kind="stable")  # four sorted runs
    lengths = piece.at(starts, "<u4").astype(np.int64)
    ends = starts + lengths + (HEADER_BYTES + FOOTER_BYTES)
    if not len(starts) or starts[0] != 0 or (starts[1:] != ends[:-1]).any():
        raise _Damaged
    whole = len(starts) - (1 if ends[-1] > piece.size else 0)
    if ends[-1] + HEADER_BYTES <= piece.size:
        raise _Damaged  # a header should begin there
    return starts[:whole], lengths[:whole]


# ---------------------------------------------------------------- templates


Span: TypeAlias = tuple[int, int, str]
"""Where bytes differ from record to record: begin, size, and struct's letter ("v": a varint)"""


def _spans_of(event: ParsedEvent) -> tuple[Span, ...] | None:
    """Return the differing bytes of events like this one, or None when they have no common form."""
    if event.is_restart or event.texts or not event.scalars:
        return None
    spans: list[Span] = []
    if event.wall_time_at >= 0:
        spans.append((event.wall_time_at, 8, "d"))
    if event.step_at >= 0:
        spans.append((event.step_at, event.step_bytes, "v"))
    for scalar in event.scalars:
        if scalar.format == _UNFIXED:
            return None
        spans.append((scalar.at, 8 if scalar.format in "dq" else 4, scalar.format))
    return tuple(spans)


class _Group:
    """The records of one length, side by side: the event and its stored checksum in each row."""

    def __init__(self, piece: _Piece, starts: Places, length: int) -> None:
        self.starts, self.length = starts, length
        self.width = -(-(length + FOOTER_BYTES) // 8) * 8
        self.rows: Bytes = piece.at(starts + HEADER_BYTES, f"V{self.width}").view(np.uint8).reshape(-1, self.width)
        self._stored = _unmasked(np.ascontiguousarray(self.rows[:, length : length + 4]).view("<u4")[:, 0])
        self._residues: dict[tuple[Span, ...], Checksums] = {}

    def event(self, row: int) -> bytes:
        return self.rows[row, : self.length].tobytes()

    def is_intact(self, row: int) -> bool:
        return crc32c_of(self.event(row)) == int(self._stored[row])

    def like(self, row: int, spans: tuple[Span, ...], candidates: Places) -> npt.NDArray[np.bool_]:
        """Return which candidates differ from an intact row in nothing but the spans, and are intact themselves."""
        residues = self._residues.get(spans)
        if residues is None:
            residues = self._residues[spans] = self._residues_of(spans)
        alike: npt.NDArray[np.bool_] = residues[candidates] == residues[row]
        words = self.rows.view("<u8")
        constant = self._constant_bits(spans)
        chosen = candidates[alike]
        alike[alike] = ((words[chosen] ^ words[row]) & constant == 0).all(axis=1)
        return alike

    def _residues_of(self, spans: tuple[Span, ...]) -> Checksums:
        """Each stored checksum less what the spans contribute to it: equal for all that equal each other elsewhere."""
        total = self._stored.copy()
        for begin, size, kind in spans:
            for column in range(begin, begin + size):
                values = self.rows[:, column]
                if kind == "v":
                    values = values & np.uint8(0x7F)  # the upper bit marks the end of the number: it may not differ
                total ^= _byte_table(self.length - 1 - column)[values]
        return total

    def _constant_bits(self, spans: tuple[Span, ...]) -> Words:
        bits = np.full(self.width, 0xFF, dtype=np.uint8)
        bits[self.length :] = 0
        for begin, size, kind in spans:
            bits[begin : begin + size] = 0x80 if kind == "v" else 0
        return bits.view("<u8")

    def numbers(self, rows: Places, span: Span) -> npt.NDArray[Any]:
        begin, size, kind = span
        columns = self.rows[rows, begin : begin + size]
        if kind != "v":
            return np.ascontiguousarray(columns).view(f"<{np.dtype(kind).str[1:]}")[:, 0]
        total = np.zeros(len(rows), dtype=np.uint64)
        for index in range(size):
            total |= (columns[:, index] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * index)
        return total.view(np.int64)


# ---------------------------------------------------------------- decoding


@dataclass
class _Found:
    """What a piece holds, in no order yet; every part has the positions of its points in the piece."""

    parts: dict[bytes, list[tuple[Places, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]]] = field(
        default_factory=dict
    )
    texts: list[tuple[int, TextSummary]] = field(default_factory=list)
    restarts: list[tuple[int, int]] = field(default_factory=list)

    def add_part(self, tag: bytes, places: Places, steps: Any, wall_times: Any, values: Any) -> None:
        self.parts.setdefault(tag, []).append((places, steps, wall_times, values))

    def add_event(self, start: int, event: ParsedEvent) -> None:
        if event.is_restart:
            self.restarts.append((start, event.step))
        for index, scalar in enumerate(event.scalars):
            place = start + (scalar.at if scalar.at >= 0 else index)
            self.add_part(
                scalar.tag,
                np.array([place]),
                np.array([event.step]),
                np.array([event.wall_time]),
                np.array([scalar.value]),
            )
        for tag, text in event.texts:
            name, content = tag.decode("utf-8", "replace"), text.decode("utf-8", "replace")
            self.texts.append((start, TextSummary(name, event.step, event.wall_time, content)))


def _decode_group(group: _Group, found: _Found) -> Places:
    """Take what follows a template; return which rows do not. Their checksums are still to be looked at."""
    remaining, odd = np.arange(len(group.starts)), []
    lonely = 0
    while len(remaining) and lonely < _MAX_LONELY_TEMPLATES:
        row = int(remaining[0])
        event = _parsed(group.event(row))
        spans = _spans_of(event)
        if spans is None:
            odd.append(row)
            remaining = remaining[1:]
            continue
        if not group.is_intact(row):
            raise _Damaged
        alike = group.like(row, spans, remaining)
        chosen, remaining = remaining[alike], remaining[~alike]
        lonely += len(chosen) == 1
        _ingest(group, chosen, event, spans, found)
    return np.concatenate([np.array(odd, dtype=np.int64), remaining])


def _ingest(group: _Group, rows: Places, event: ParsedEvent, spans: tuple[Span, ...], found: _Found) -> None:
    numbers = iter(spans)
    wall_times = group.numbers(rows, next(numbers)) if event.wall_time_at >= 0 else np.zeros(len(rows))
    steps = group.numbers(rows, next(numbers)) if event.step_at >= 0 else np.zeros(len(rows), dtype=np.int64)
    for scalar, span in zip(event.scalars, numbers, strict=True):
        values = group.numbers(rows, span).astype(np.float64)
        found.add_part(scalar.tag, group.starts[rows] + span[0], steps, wall_times, values)


def _parsed(data: bytes) -> ParsedEvent:
    try:
        return parse_event(data)
    except ValueError as error:
        raise _Damaged from error


def _decode_one_by_one(piece: _Piece, starts: Places, lengths: Places, found: _Found) -> None:
    crcs = crc32c_of_many(piece.data, starts + HEADER_BYTES, lengths)
    stored = _unmasked(piece.at(starts + HEADER_BYTES + lengths, "<u4"))
    if (crcs != stored).any():
        raise _Damaged
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        begin = start + HEADER_BYTES
        found.add_event(start, _parsed(piece.data[begin : begin + length].tobytes()))


def _put_into(batch: EventBatch, found: _Found, *, texts: bool) -> None:
    for _, step in found.restarts:
        batch.restart(step)
    for tag, parts in found.parts.items():
        places, steps, wall_times, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        if len(parts) > 1 and (np.diff(places) < 0).any():
            order = np.argsort(places, kind="stable")
            places, steps, wall_times, values = places[order], steps[order], wall_times[order], values[order]
        for start, step in found.restarts:
            kept = (places > start) | (steps < step)
            places, steps, wall_times, values = places[kept], steps[kept], wall_times[kept], values[kept]
        if len(steps):
            column = batch.column(tag.decode("utf-8", "replace"))
            column.steps.frombytes(steps.astype(np.int64).tobytes())
            column.wall_times.frombytes(wall_times.astype(np.float64).tobytes())
            column.values.frombytes(values.astype(np.float64).tobytes())
    if texts:
        for place, text in sorted(found.texts, key=lambda known: known[0]):
            if all(place > start or text.step < step for start, step in found.restarts):
                batch.texts.append(text)


def _by_length(lengths: Places) -> list[Places]:
    """Return the short records, those of each length together."""
    short = np.flatnonzero(lengths <= _MAX_TEMPLATE_BYTES)
    kinds = lengths[short].astype(np.uint16)  # two bytes: numpy sorts them without comparing
    order = np.argsort(kinds, kind="stable")
    borders = np.flatnonzero(np.diff(kinds[order])) + 1
    return [indices for indices in np.split(short[order], borders) if len(indices)]


def decode(buffer: bytes, batch: EventBatch, *, texts: bool = False) -> int:
    """Add the whole records at the start of a buffer to a batch; return their bytes, or -1 when one is damaged."""
    piece = _Piece(np.frombuffer(buffer + bytes(_PADDING), dtype=np.uint8), len(buffer))
    found = _Found()
    try:
        starts, lengths = _find_records(piece)
        odd = [np.flatnonzero(lengths > _MAX_TEMPLATE_BYTES)]
        for indices in _by_length(lengths):
            group = _Group(piece, starts[indices], int(lengths[indices[0]]))
            odd.append(indices[_decode_group(group, found)])
        others = np.concatenate(odd)
        if len(others):
            _decode_one_by_one(piece, starts[others], lengths[others], found)
    except _Damaged:
        return -1
    if not len(starts):
        return 0
    _put_into(batch, found, texts=texts)
    return int(starts[-1] + lengths[-1]) + HEADER_BYTES + FOOTER_BYTES
