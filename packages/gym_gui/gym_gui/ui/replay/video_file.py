"""A video file, picture by picture: any picture by its number, forwards as fast as it decodes. No Qt, one thread at a
time.

The numbers come from the packets of the file, so that "picture 17" is the same one however it was reached, and a file
that breaks off is known to do so before anybody plays it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import av
import av.error
import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
"""Rows × columns × red, green, blue"""

CACHE_BYTES = 96 << 20
"""Of decoded pictures: what one steps back over need not be decoded again from the last key picture"""
_DEFAULT_FPS = Fraction(30)
_MAYBE = "It may have been cut off before it was whole, or is still being written."


class VideoProblem(Exception):
    """Why a file cannot be played, in words for people."""


@dataclass(frozen=True)
class VideoFacts:
    """What is known of a file before it is decoded."""

    width: int
    height: int
    fps: float
    pictures: int
    """That can be read"""
    promised: int
    """That the file says it has; more than `pictures` when it was cut off"""
    codec: str

    @property
    def is_truncated(self) -> bool:
        return self.promised > self.pictures

    @property
    def duration_s(self) -> float:
        return self.pictures / self.fps


class VideoFile:
    """Decodes one file. Not safe for two threads at once; whoever uses it takes turns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cache: OrderedDict[int, av.VideoFrame] = OrderedDict()
        self._container = _open(path)
        try:
            self._stream = self._container.streams.video[0]
            # Threads by picture would give back the first one only after several: seeking would wait for them.
            self._stream.thread_type = "SLICE"
            self._times, self._keys, is_cut = self._read_index()
            if not self._times:
                raise IndexError
            promised = max(self._stream.frames, len(self._times) + int(is_cut))
            self.facts = VideoFacts(
                self._stream.codec_context.width, self._stream.codec_context.height,
                float(self._stream.average_rate or _DEFAULT_FPS), len(self._times), promised,
                self._stream.codec_context.name,
            )  # fmt: skip
            self._decoder: Iterator[tuple[int, av.VideoFrame]] | None = None
            self._next = 0
        except IndexError:
            self._container.close()
            raise VideoProblem(f"{path.name} cannot be played: there is no picture in it. {_MAYBE}") from None
        except (av.error.FFmpegError, OSError, ValueError) as error:
            self._container.close()
            raise VideoProblem(f"{path.name} cannot be read: {_words(error)}.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._decoder = None
        self._cache.clear()
        self._container.close()

    def read(self, number: int) -> Picture | None:
        """Picture `number` from 0; None when it cannot be decoded (the file breaks off before)."""
        if not 0 <= number < len(self._times):
            raise IndexError(f"picture {number} of {len(self._times)}")
        if number in self._cache:
            self._cache.move_to_end(number)
            return _picture(self._cache[number])
        # Going on is cheaper than seeking as long as no key picture lies in between.
        if self._decoder is None or number < self._next or self._key_before(number) > self._next:
            self._seek(number)
        assert self._decoder is not None
        for found, frame in self._decoder:
            self._next = found + 1
            self._keep(found, frame)
            if found >= number:  # beyond it: it was not where the index said
                break
        else:
            self._decoder = None
        return _picture(self._cache[number]) if number in self._cache else None

    # ------------------------------------------------------------------ inside

    def _read_index(self) -> tuple[list[int], list[int], bool]:
        """Presentation times of all pictures in order, the numbers of key pictures, and whether the file breaks off."""
        times: list[int] = []
        keys: list[int] = []
        is_cut = False
        try:
            for packet in self._container.demux(self._stream):
                time = packet.pts if packet.pts is not None else packet.dts
                if packet.size == 0 or time is None:
                    continue  # the end, or a format without times
                if packet.is_corrupt:
                    is_cut = True
                    continue
                times.append(time)
                if packet.is_keyframe:
                    keys.append(time)
        except (av.error.FFmpegError, OSError):
            is_cut = True
        times.sort()
        return times, sorted(bisect_right(times, time) - 1 for time in keys), is_cut

    def _key_before(self, number: int) -> int:
        place = bisect_right(self._keys, number)
        return self._keys[place - 1] if place else 0

    def _seek(self, number: int) -> None:
        self._decoder = None
        try:
            self._container.seek(self._times[self._key_before(number)], stream=self._stream, backward=True)
        except (av.error.FFmpegError, OSError):
            # A format that cannot be sought in: from the beginning.
            self._container.close()
            self._container = _open(self.path)
            self._stream = self._container.streams.video[0]
        self._decoder = self._decode()
        self._next = self._key_before(number)

    def _decode(self) -> Iterator[tuple[int, av.VideoFrame]]:
        try:
            for frame in self._container.decode(self._stream):
                time = frame.pts if frame.pts is not None else frame.dts
                if time is None:
                    continue
                number = bisect_right(self._times, time) - 1
                if number >= 0:
                    # Rows of an odd width are padded in memory; what draws them wants them one after the other.
                    yield number, frame
        except (av.error.FFmpegError, OSError):
            return  # it breaks off here

    def _keep(self, number: int, frame: av.VideoFrame) -> None:
        """As it was decoded: half the size of a picture, and what is only passed over is never turned into one."""
        self._cache[number] = frame
        fitting = max(1, CACHE_BYTES // max(1, frame.width * frame.height * 3 // 2))
        while len(self._cache) > fitting:
            self._cache.popitem(last=False)


def _picture(frame: av.VideoFrame) -> Picture:
    return np.ascontiguousarray(frame.to_ndarray(format="rgb24"))


def _open(path: Path) -> Any:
    try:
        return av.open(str(path), mode="r", metadata_errors="replace")
    except FileNotFoundError:
        raise VideoProblem(f"{path.name} is not there any more.") from None
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise VideoProblem(f"{path.name} cannot be played: {_words(error)}. {_MAYBE}") from error


def _words(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text[:1].lower() + text[1:].rstrip(".")
