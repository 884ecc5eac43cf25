"""Decode a video file frame by frame, and find the videos of a run. No Qt; one thread at a time.

Frame numbers come from the packets of the file, so they do not depend on how a frame was reached, and a truncated
file is recognized before it is played.
"""

from __future__ import annotations

import os
import re
import stat
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import av
import av.error
import numpy as np
from mosaic_wire.files import walk
from mosaic_wire.manifest import VIDEO_SUFFIXES, AnalyticsManifest
from mosaic_wire.paths import RunFolder
from numpy.typing import NDArray

Image = NDArray[np.uint8]
"""Rows × columns × red, green, blue"""

CACHE_BYTES = 96 << 20
"""Cache of decoded frames: stepping back need not decode again from the last key frame"""
_DEFAULT_FPS = Fraction(30)
_MAYBE = "It may be truncated, or is still being written."


class VideoProblem(Exception):
    """Why a file cannot be played, in a message for users."""


@dataclass(frozen=True)
class VideoFacts:
    """Facts of a file that need no decoding."""

    width: int
    height: int
    fps: float
    frames: int
    """Readable frames"""
    promised: int
    """Frames according to the file; more than `frames` if it is truncated"""
    codec: str

    @property
    def is_truncated(self) -> bool:
        return self.promised > self.frames

    @property
    def duration_s(self) -> float:
        return self.frames / self.fps


class VideoFile:
    """Decodes one file. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cache: OrderedDict[int, av.VideoFrame] = OrderedDict()
        self._container = _open(path)
        try:
            self._stream = self._container.streams.video[0]
            # Frame threading delays the first frame by several others, which would slow down seeking.
            self._stream.thread_type = "SLICE"
            self._times, self._keys, is_cut = self._read_index()
            if not self._times:
                raise IndexError
            promised = max(self._stream.frames, len(self._times) + int(is_cut))
            self.facts = VideoFacts(
                self._stream.codec_context.width,
                self._stream.codec_context.height,
                float(self._stream.average_rate or _DEFAULT_FPS),
                len(self._times),
                promised,
                self._stream.codec_context.name,
            )
            self._decoder: Iterator[tuple[int, av.VideoFrame]] | None = None
            self._next = 0
        except IndexError:
            self._container.close()
            raise VideoProblem(f"{path.name} cannot be played: it has no video stream. {_MAYBE}") from None
        except (av.error.FFmpegError, OSError, ValueError) as error:
            self._container.close()
            raise VideoProblem(f"{path.name} cannot be read: {_error_text(error)}.") from error

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

    def read(self, number: int) -> Image | None:
        """Return frame `number` from 0; None if it cannot be decoded (a truncated file)."""
        if not 0 <= number < len(self._times):
            raise IndexError(f"frame {number} of {len(self._times)}")
        if number in self._cache:
            self._cache.move_to_end(number)
            return _image(self._cache[number])
        # Decoding on is faster than seeking unless a key frame lies in between.
        if self._decoder is None or number < self._next or self._key_before(number) > self._next:
            self._seek(number)
        assert self._decoder is not None
        for found, frame in self._decoder:
            self._next = found + 1
            self._keep(found, frame)
            if found >= number:  # past it: the index was wrong
                break
        else:
            self._decoder = None
        return _image(self._cache[number]) if number in self._cache else None

    # ------------------------------------------------------------------ private

    def _read_index(self) -> tuple[list[int], list[int], bool]:
        """Return the presentation times of all frames, the numbers of key frames, and whether the file is truncated."""
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
            # The format cannot seek: decode from the beginning.
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
                    # Rows of odd width are padded in memory, but callers expect contiguous rows.
                    yield number, frame
        except (av.error.FFmpegError, OSError):
            return  # truncated here

    def _keep(self, number: int, frame: av.VideoFrame) -> None:
        """Cache the frame in its own pixel format: half the memory of RGB, and skipped frames are never converted."""
        self._cache[number] = frame
        fitting = max(1, CACHE_BYTES // max(1, frame.width * frame.height * 3 // 2))
        while len(self._cache) > fitting:
            self._cache.popitem(last=False)


def _image(frame: av.VideoFrame) -> Image:
    return np.ascontiguousarray(frame.to_ndarray(format="rgb24"))


def _open(path: Path) -> Any:
    try:
        return av.open(str(path), mode="r", metadata_errors="replace")
    except FileNotFoundError:
        raise VideoProblem(f"{path.name} no longer exists.") from None
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise VideoProblem(f"{path.name} cannot be played: {_error_text(error)}. {_MAYBE}") from error


def _error_text(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text[:1].lower() + text[1:].rstrip(".")


_EPISODE = re.compile(r"episode[-_](\d+)")
_STEP = re.compile(r"step[-_](\d+)")
_EVALUATION = re.compile(r"eval-(\d+)")


@dataclass(frozen=True)
class RunVideo:
    """A video file of a run."""

    path: Path
    name: str
    """Relative to the run folder"""
    step: int | None
    """Training step at the recording; None: unknown"""
    episode: int | None
    evaluation: int | None
    """Batch of the evaluation, from 0"""
    bytes: int
    modified_at: float


@dataclass(frozen=True)
class Videos:
    """The videos found, and a message for users about problems."""

    videos: tuple[RunVideo, ...] = ()
    missing: tuple[str, ...] = ()
    """Files that the manifest names and that do not exist"""
    problem: str = ""


def find_videos(run_dir: Path) -> Videos:
    """Scan a run folder; errors are reported in `problem`."""
    if not run_dir.is_dir():
        return Videos(problem=f"The folder of this run does not exist: {run_dir}")
    folder, problem = RunFolder(run_dir), ""
    listed: tuple[str, ...] = ()
    steps: Mapping[str, object] = {}
    try:
        manifest = AnalyticsManifest.read(folder.manifest)
        listed, noted = manifest.videos, manifest.extra.get("video_steps")
        steps = noted if isinstance(noted, Mapping) else {}
    except FileNotFoundError:
        pass  # it has not started
    except (OSError, ValueError) as error:
        problem = f"The manifest cannot be read, so only the folder was scanned: {error}"
    found: dict[str, RunVideo] = {}
    for path in (*(run_dir / name for name in listed), *_files_below(folder.videos)):
        video = _video(run_dir, path, steps)
        if video is not None:
            found[video.name] = video
    missing = tuple(name for name in listed if os.path.normpath(name) not in found)
    return Videos(tuple(sorted(found.values(), key=_newest_first)), missing, problem)


def _video(run_dir: Path, path: Path, steps: Mapping[str, object]) -> RunVideo | None:
    name = os.path.normpath(os.path.relpath(path, run_dir))
    if name.startswith("..") or os.path.isabs(name):
        return None  # a manifest must not refer to files outside of the folder
    try:
        status = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None  # reading a pipe would block
    reported = steps.get(name)
    step = reported if isinstance(reported, int) and not isinstance(reported, bool) else _number(_STEP, name)
    return RunVideo(
        path,
        name,
        step,
        _number(_EPISODE, path.name),
        _number(_EVALUATION, path.parent.name),
        status.st_size,
        status.st_mtime,
    )


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(match[1]) if match else None


def _newest_first(video: RunVideo) -> tuple[float, ...]:
    """Sort by step; videos without one follow by batch and episode in the name, else by time."""
    step = -1 if video.step is None else video.step
    return -step, -(video.evaluation or 0), -(video.episode or 0), -video.modified_at


def _files_below(top: Path) -> Iterator[Path]:
    """Yield the video files below a folder, without links and hidden (incomplete) files."""
    for entry in walk(top):
        if not entry.name.startswith(".") and (path := Path(entry.path)).suffix.lower() in VIDEO_SUFFIXES:
            yield path
