"""Record a clip of the frames of a run. No Qt and no threads of its own: the caller provides them.

recorder = ClipRecorder(path)
recorder.offer(pixels, width, height, now)      in the window's thread: only copies the bytes
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
"""A longer clip is ended"""
_MAX_WAITING = 90
"""Frames waiting to be written: three seconds; a slower encoder drops frames"""
_TICKS_PER_S = 1000


class ClipFailed(Exception):
    """The clip cannot be written; the message gives the reason."""


@dataclass(frozen=True)
class _Waiting:
    pixels: bytes
    width: int
    height: int
    at_s: float


class ClipRecorder:
    """Write an .mp4 in which each frame keeps the time at which it was shown."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self.left_out = 0
        """Frames that were dropped because the encoder was too slow or their size differed"""
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
        """Add a frame: rows of three bytes per pixel."""
        if self._began_at is None:
            self._began_at = now
        if len(self._waiting) >= _MAX_WAITING:
            self.left_out += 1
        elif self.length_s(now) <= LONGEST_S:
            self._waiting.append(_Waiting(pixels, width, height, now - self._began_at))

    def write_waiting(self) -> None:
        """Encode the waiting frames; raise ClipFailed on errors."""
        with self._lock:
            try:
                while self._waiting:
                    self._write(self._waiting.popleft())
            except (OSError, ValueError) as error:
                self._abandon()
                raise ClipFailed(f"{self.path} cannot be written: {error}") from error

    def finish(self) -> int:
        """Complete the file and return its number of frames; without frames there is no file."""
        self.write_waiting()
        with self._lock:
            if self._container is None:
                return 0
            try:
                for packet in self._stream.encode():
                    self._container.mux(packet)
                self._container.close()
                self._container = None
                self._unfinished.replace(self.path)  # a file under this name is always complete
            except (OSError, ValueError) as error:
                self._abandon()
                raise ClipFailed(f"{self.path} cannot be written: {error}") from error
            return self.written

    def discard(self) -> None:
        """Abort, and remove the incomplete file."""
        with self._lock:
            self._waiting.clear()
            self._abandon()

    def _write(self, frame_waiting: _Waiting) -> None:
        import av  # slow to import and only needed while recording

        # The codec accepts even sizes only: an odd last row or column is cut off.
        width, height = frame_waiting.width // 2 * 2, frame_waiting.height // 2 * 2
        if self._container is None:
            if not width or not height:
                raise ValueError(f"a frame of {frame_waiting.width} × {frame_waiting.height} is too small")
            self._unfinished.touch()  # av notices missing permissions only at the end
            self._container = av.open(str(self._unfinished), "w", format="mp4")
            self._stream = self._container.add_stream("libx264", rate=30, options={"preset": "veryfast", "crf": "20"})
            self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
            self._stream.codec_context.time_base = Fraction(1, _TICKS_PER_S)
        if (width, height) != (self._stream.width, self._stream.height):
            self.left_out += 1
            return
        rows = np.frombuffer(frame_waiting.pixels, np.uint8).reshape(frame_waiting.height, frame_waiting.width, 3)
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(rows[:height, :width]), format="rgb24")
        # The encoder refuses two frames with the same time stamp.
        self._last_tick = frame.pts = max(self._last_tick + 1, round(frame_waiting.at_s * _TICKS_PER_S))
        frame.time_base = Fraction(1, _TICKS_PER_S)
        for packet in self._stream.encode(frame):
            self._container.mux(packet)
        self.written += 1

    def _abandon(self) -> None:
        if self._container is not None:
            self._container.close()
            self._container = None
        self._unfinished.unlink(missing_ok=True)
