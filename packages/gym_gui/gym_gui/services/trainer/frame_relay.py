"""Pictures of a run for a client on another machine: read from its FastLane, made smaller as the link needs it."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic_wire.frames import LARGEST_SIDE, Frame, FrameReader, NotAFrameFile
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.services.trainer.errors import NotPossibleNow

if TYPE_CHECKING:
    from PIL.Image import Image

ENCODINGS = ("jpeg", "png", "rgb")
_FASTEST, _DEFAULT_FPS = 60.0, 30.0
_TELL_S = 1.0
"""So often a client hears something, also without a new picture"""
_EFFORTS = ((1.0, 85), (1.0, 60), (0.5, 60), (0.25, 50))
"""Share of the size, and JPEG's quality: what a slow link is given, step by step"""


async def stream_frames(
    path: Path, *, max_fps: float, max_side: int, encoding: str, is_live: Callable[[], bool]
) -> AsyncIterator[pb.RunFrame]:
    """New pictures until the run is over, at most `max_fps` a second; a slow link gets fewer and smaller ones."""
    encoding = encoding or "jpeg"
    if encoding not in ENCODINGS:
        raise NotPossibleNow(f"there is no encoding {encoding!r}; a picture comes as {', '.join(ENCODINGS)}")
    if not (0 <= max_fps <= _FASTEST and 0 <= max_side <= LARGEST_SIDE):
        raise NotPossibleNow(f"ask for up to {_FASTEST:g} pictures a second of up to {LARGEST_SIDE} pixels a side")
    interval = 1 / (max_fps or _DEFAULT_FPS)
    reader, effort, told_at = FrameReader(path, interval_s=interval), 0, -_TELL_S
    try:
        while is_live():
            began = time.monotonic()
            message = await asyncio.to_thread(_next, reader, max_side, encoding, effort)
            if message.data or began - told_at >= _TELL_S:
                told_at = time.monotonic()
                yield message  # waits while the client does not read
                effort = _adapted(effort, time.monotonic() - told_at, interval)
            await asyncio.sleep(max(0.005, interval - (time.monotonic() - began)))
    finally:
        reader.close()


def _adapted(effort: int, sending_s: float, interval_s: float) -> int:
    if sending_s > 2 * interval_s:
        return min(effort + 1, len(_EFFORTS) - 1)
    return max(0, effort - 1) if sending_s < interval_s / 4 else effort


def _next(reader: FrameReader, max_side: int, encoding: str, effort: int) -> pb.RunFrame:
    try:
        frame = reader.read()
        notice = reader.notice() if reader.is_open else "this run draws no pictures yet"
    except NotAFrameFile as error:
        return pb.RunFrame(notice=str(error))
    if frame is None:
        return pb.RunFrame(notice=notice)
    share, quality = _EFFORTS[effort]
    width, height, data = encoded(frame, max_side, encoding, share=share, quality=quality)
    return pb.RunFrame(
        number=frame.number,
        width=width,
        height=height,
        encoding=encoding,
        data=data,
        last_reward=frame.last_reward,
        rolling_return=frame.rolling_return,
        step_rate_hz=frame.step_rate_hz,
        notice=notice,
    )


def encoded(
    frame: Frame, max_side: int, encoding: str, *, share: float = 1.0, quality: int = 85
) -> tuple[int, int, bytes]:
    """A picture as bytes, no side longer than `max_side` (0: as it is); returns its size, too."""
    longest = max(frame.width, frame.height)
    scale = share * min(1.0, max_side / longest if max_side else 1.0)
    if encoding == "rgb" and scale == 1.0:
        return frame.width, frame.height, frame.pixels
    picture = _image(frame)
    if scale < 1.0:
        size = max(1, round(frame.width * scale)), max(1, round(frame.height * scale))
        picture = picture.resize(size, reducing_gap=2.0)
    if encoding == "rgb":
        return picture.width, picture.height, picture.tobytes()
    stream = io.BytesIO()
    if encoding == "png":
        picture.save(stream, "PNG", compress_level=1)
    else:
        picture.save(stream, "JPEG", quality=quality)
    return picture.width, picture.height, stream.getvalue()


def _image(frame: Frame) -> Image:
    from PIL import Image  # only where somebody watches from afar

    return Image.frombuffer("RGB", (frame.width, frame.height), frame.pixels, "raw", "RGB", 0, 1)
