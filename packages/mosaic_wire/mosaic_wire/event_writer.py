"""A small writer of TensorBoard event files: scalars alone, for what the worker itself has to tell.

Training code writes its own files with whatever library it likes; this needs none.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from mosaic_wire.event_files import PREFIX
from mosaic_wire.event_records import frame


class ScalarEventWriter:
    """One file; each call is one event, on disk when it returns (as far as the kernel is concerned).

    After an OSError (a full disk) it may be used on: what was torn costs only itself.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{PREFIX}{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.0"
        self._stream: BinaryIO | None = None

    def _open(self) -> BinaryIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        stream = self._path.open("ab", buffering=0)
        try:
            _append(stream, _text_field(3, "brain.Event:2"), time.time(), 0)
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
