"""Event records of a known form, read without parsing them again: what `event_bulk` does, without numpy.

A script writes the same few kinds of record over and over: the same tags, other times, steps and values. The first of a
kind is parsed with care and becomes a form. A record that equals it in every other byte gives its numbers at once, and
of its checksum only what the differing bytes contribute is computed: CRC-32C is linear. A worker that follows its
training reads this way with a fifth of the time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import reduce
from operator import getitem, itemgetter, xor

from mosaic_wire.crc32c import MASK_DELTA, TABLE, crc32c
from mosaic_wire.event_batch import EventBatch, ScalarColumn
from mosaic_wire.event_records import FOOTER_BYTES, HEADER_BYTES, ParsedEvent, length_in

FIRST_FORMS = 64
"""Learned without question; more only while they turn out to be used: a script may make up a tag for every record"""
_USES_A_FORM = 50
_MOST_KEPT = 512
_LONGEST_BYTES = 4096
_SIZES = {"f": 4, "d": 8, "i": 4, "q": 8}
_MASK = 0xFFFFFFFF
_contribution: Callable[[list[int], int], int] = getitem


class _Contributions:
    """What each value of a byte contributes to a checksum when so many bytes follow it; made for the places needed."""

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
    """One kind of record: which of its bytes differ, and how its numbers are read."""

    def __init__(self, data: bytes, event: ParsedEvent, names: list[str]) -> None:
        self.names = names
        self.step_at, self.step_end = event.step_at, event.step_at + event.step_bytes
        places = [(event.wall_time_at, "d"), *((scalar.at, scalar.format) for scalar in event.scalars)]
        free = bytearray(len(data))  # bits that may differ
        for at, kind in places:
            free[at : at + _SIZES[kind]] = b"\xff" * _SIZES[kind]
        # Where a varint goes on is part of the form.
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
    """Where each number stands among those that are unpacked in the order of the bytes."""
    ordered = sorted(starts)
    return [ordered.index(start) for start in starts]


class KnownForms:
    """The forms one reader has met."""

    def __init__(self) -> None:
        self._by_length: dict[int, list[_Form]] = {}
        self._learned = self._used = 0

    def learn(self, data: bytes, event: ParsedEvent, name_of: Callable[[bytes], str]) -> None:
        """Remember the form of a record that was read and found intact, where it is one that comes again."""
        if self._learned >= FIRST_FORMS + self._used // _USES_A_FORM:
            return
        if len(data) > _LONGEST_BYTES or event.texts or event.is_restart:
            return
        if not event.scalars or event.wall_time_at < 0 or event.step_at < 0:
            return
        if any(scalar.format not in _SIZES for scalar in event.scalars):
            return
        self._learned += 1
        if self._learned % _MOST_KEPT == 0:  # steps grow by a byte now and then: old forms do not come again
            self._by_length.clear()
        form = _Form(data, event, [name_of(scalar.tag) for scalar in event.scalars])
        self._by_length.setdefault(len(data), []).append(form)

    def read(self, buffer: bytes, at: int, batch: EventBatch) -> int:
        """Add the records of known forms that begin here to a batch; return where the first other one begins."""
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
            wanted = columns.get(id(form))
            if wanted is None:
                wanted = columns[id(form)] = [batch.column(name) for name in form.names]
            step, shift = 0, 0
            for byte in data[form.step_at : form.step_end]:
                step |= (byte & 0x7F) << shift
                shift += 7
            step &= 0xFFFFFFFFFFFFFFFF
            if step >> 63:
                step -= 1 << 64
            numbers = form.numbers.unpack_from(data)
            wall_time, *values = form.order(numbers) if form.order is not None else numbers
            for column, value in zip(wanted, values, strict=True):
                column.steps.append(step)
                column.wall_times.append(wall_time)
                column.values.append(value)
            self._used += 1
            at = end + FOOTER_BYTES
        return at
