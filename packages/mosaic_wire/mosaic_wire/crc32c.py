"""CRC-32C (Castagnoli) and the masked form of it that TensorBoard's record files carry."""

from __future__ import annotations

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
"""What one byte does to the checksum"""


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Checksum of a short buffer; `mosaic_wire.event_bulk` has a quick one for long and for many buffers."""
    table, crc = TABLE, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """As it stands in a record: rotated and shifted, so that a checksum over checksums says something."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF
