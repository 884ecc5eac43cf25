"""Pictures for somebody at the other end: as a PNG in the line itself, or in a shared-memory file the line names."""

from __future__ import annotations

import base64
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

KINDS = ("png", "shm", "none")


def png(image: np.ndarray) -> bytes:
    """An RGB picture as a PNG file."""
    height, width, _ = image.shape
    rows = np.zeros((height, width * 3 + 1), dtype=np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = image.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


class FrameSink:
    """Turns pictures into `render_payload`s; the shared-memory file is made when it is first wanted."""

    def __init__(self, name: str) -> None:
        self._path = Path("/dev/shm" if Path("/dev/shm").is_dir() else "/tmp") / f"mosaic-{name}-frame"
        self._file: int | None = None

    def payload(self, image: Any, kind: str) -> dict[str, Any] | None:
        """What a message says about this picture; None without one."""
        if kind == "none" or not isinstance(image, np.ndarray) or image.ndim != 3 or image.shape[2] != 3:
            return None
        picture = np.ascontiguousarray(image, dtype=np.uint8)
        height, width, _ = picture.shape
        size = {"mode": "rgb_array", "width": width, "height": height}
        if kind == "shm":
            return {**size, "encoding": "raw", "path": self._write(picture)}
        return {**size, "encoding": "png", "data": base64.b64encode(png(picture)).decode()}

    def _write(self, picture: np.ndarray) -> str:
        if self._file is None:
            self._path.unlink(missing_ok=True)  # of a process that was killed
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.pwrite(self._file, picture.tobytes(), 0)
        return str(self._path)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._path.unlink(missing_ok=True)
            self._file = None
