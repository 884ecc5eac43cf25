"""A clip of what a run draws, written while it is watched. No widgets here, and no thread: the caller brings one.

recorder = ClipRecorder(path)
recorder.offer(pixels, width, height, now)      in the window's thread: a copy of the bytes, nothing else
recorder.write_waiting()                        in a thread, one call at a time
recorder.finish()                               in a thread, at the end
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

LONGEST_S = 600.0
"""A clip that nobody ends is ended"""
_MOST_WAITING = 90
"""Pictures that wait to be written: three seconds; an encoder that is slower than that leaves some out"""
_TICKS_PER_S = 1000


class ClipFailed(Exception):
    """The clip cannot be written; says why."""


@dataclass(frozen=True)
class _Waiting:
    pixels: bytes
    width: int
    height: int
    at_s: float


class ClipRecorder:
    """Writes an .mp4 with the pictures at the times they were shown."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self.left_out = 0
        """Pictures the encoder had no time for, or that were of another size"""
        self._unfinished = path.with_name(f".{path.name}.part")
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._began_at: float | None = None
        self._last_tick = -1
        self._container: Any = None
        self._stream: Any = None

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def length_s(self, now: float) -> float:
        return now - self._began_at if self._began_at is not None else 0.0

    def offer(self, pixels: bytes, width: int, height: int, now: float) -> None:
        """One more picture: rows of three bytes a pixel."""
        if self._began_at is None:
            self._began_at = now
        if len(self._waiting) >= _MOST_WAITING:
            self.left_out += 1
        elif self.length_s(now) <= LONGEST_S:
            self._waiting.append(_Waiting(pixels, width, height, now - self._began_at))

    def write_waiting(self) -> None:
        """Encode what has gathered; raises ClipFailed."""
        with self._lock:
            try:
                while self._waiting:
                    self._write(self._waiting.popleft())
            except (OSError, ValueError) as error:
                self._abandon()
                raise ClipFailed(f"{self.path} cannot be written: {error}") from error

    def finish(self) -> int:
        """Complete the file; returns how many pictures it has. Without any there is no file."""
        self.write_waiting()
        with self._lock:
            if self._container is None:
                return 0
            try:
                for packet in self._stream.encode():
                    self._container.mux(packet)
                self._container.close()
                self._container = None
                self._unfinished.replace(self.path)  # under its name it is always a whole file
            except (OSError, ValueError) as error:
                self._abandon()
                raise ClipFailed(f"{self.path} cannot be written: {error}") from error
            return self.written

    def discard(self) -> None:
        """Give it up and leave nothing behind."""
        with self._lock:
            self._waiting.clear()
            self._abandon()

    def _write(self, picture: _Waiting) -> None:
        import av  # only where somebody records

        # The codec takes even sizes only: an odd last row or column is cut.
        width, height = picture.width // 2 * 2, picture.height // 2 * 2
        if self._container is None:
            if not width or not height:
                raise ValueError(f"a picture of {picture.width} × {picture.height} is too small")
            self._unfinished.touch()  # av notices only at the end that it may not write there
            self._container = av.open(str(self._unfinished), "w", format="mp4")
            self._stream = self._container.add_stream("libx264", rate=30, options={"preset": "veryfast", "crf": "20"})
            self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
            self._stream.codec_context.time_base = Fraction(1, _TICKS_PER_S)
        if (width, height) != (self._stream.width, self._stream.height):
            self.left_out += 1
            return
        rows = np.frombuffer(picture.pixels, np.uint8).reshape(picture.height, picture.width, 3)
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(rows[:height, :width]), format="rgb24")
        # Two pictures of one moment would be refused.
        self._last_tick = frame.pts = max(self._last_tick + 1, round(picture.at_s * _TICKS_PER_S))
        frame.time_base = Fraction(1, _TICKS_PER_S)
        for packet in self._stream.encode(frame):
            self._container.mux(packet)
        self.written += 1

    def _abandon(self) -> None:
        if self._container is not None:
            self._container.close()
            self._container = None
        self._unfinished.unlink(missing_ok=True)
