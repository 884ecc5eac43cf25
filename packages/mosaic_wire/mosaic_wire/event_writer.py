"""A small writer of TensorBoard event files: scalars alone, for what the worker itself has to tell.

Training code writes its own files with whatever library it likes; this needs none.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from mosaic_wire.crc32c import crc32c, masked
from mosaic_wire.event_files import PREFIX


class ScalarEventWriter:
    """One file; each call is one event, on disk when it returns (as far as the kernel is concerned)."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{PREFIX}{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._stream: BinaryIO = (folder / name).open("ab", buffering=0)
        self._write(_text_field(3, "brain.Event:2"), time.time(), 0)

    def add_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write values of one step."""
        summary = b"".join(
            _bytes_field(1, _text_field(1, tag) + b"\x15" + struct.pack("<f", value)) for tag, value in values.items()
        )
        self._write(_bytes_field(5, summary), time.time(), step)

    def _write(self, content: bytes, wall_time: float, step: int) -> None:
        event = b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step) + content
        length = struct.pack("<Q", len(event))
        self._stream.write(
            length + struct.pack("<I", masked(crc32c(length))) + event + struct.pack("<I", masked(crc32c(event)))
        )

    def close(self) -> None:
        self._stream.close()


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
