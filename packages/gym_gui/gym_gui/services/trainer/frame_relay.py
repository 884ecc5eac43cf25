"""Relay frames of a run to a remote client: read from its FastLane and scaled down for a slow link."""

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
_MAX_FPS, _DEFAULT_FPS = 60.0, 30.0
_KEEPALIVE_S = 1.0
"""A client gets a message at least this often, also without a new frame"""
_QUALITIES = ((1.0, 85), (1.0, 60), (0.5, 60), (0.25, 50))
"""(scale, JPEG quality), from the best to that of the slowest link"""


async def stream_frames(
    path: Path, *, max_fps: float, max_side: int, encoding: str, is_live: Callable[[], bool]
) -> AsyncIterator[pb.RunFrame]:
    """Yield new frames until the run ends, at most `max_fps` per second; a slow link gets fewer and smaller ones."""
    encoding = encoding or "jpeg"
    if encoding not in ENCODINGS:
        raise NotPossibleNow(f"there is no encoding {encoding!r}; choose one of {', '.join(ENCODINGS)}")
    if not (0 <= max_fps <= _MAX_FPS and 0 <= max_side <= LARGEST_SIDE):
        raise NotPossibleNow(
            f"at most {_MAX_FPS:g} frames per second of at most {LARGEST_SIDE} pixels a side are possible"
        )
    interval = 1 / (max_fps or _DEFAULT_FPS)
    reader, quality_index, sent_at = FrameReader(path, interval_s=interval), 0, -_KEEPALIVE_S
    try:
        while is_live():
            began = time.monotonic()
            message = await asyncio.to_thread(_next, reader, max_side, encoding, quality_index)
            if message.data or began - sent_at >= _KEEPALIVE_S:
                sent_at = time.monotonic()
                yield message  # waits while the client does not read
                quality_index = _adapted(quality_index, time.monotonic() - sent_at, interval)
            await asyncio.sleep(max(0.005, interval - (time.monotonic() - began)))
    finally:
        reader.close()


def _adapted(quality_index: int, sending_s: float, interval_s: float) -> int:
    if sending_s > 2 * interval_s:
        return min(quality_index + 1, len(_QUALITIES) - 1)
    return max(0, quality_index - 1) if sending_s < interval_s / 4 else quality_index


def _next(reader: FrameReader, max_side: int, encoding: str, quality_index: int) -> pb.RunFrame:
    try:
        frame = reader.read()
        notice = reader.notice() if reader.is_open else "this run renders no frames yet"
    except NotAFrameFile as error:
        return pb.RunFrame(notice=str(error))
    if frame is None:
        return pb.RunFrame(notice=notice)
    share, quality = _QUALITIES[quality_index]
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
    """Return an encoded frame and its size, no side longer than `max_side` (0: unscaled)."""
    longest = max(frame.width, frame.height)
    scale = share * min(1.0, max_side / longest if max_side else 1.0)
    if encoding == "rgb" and scale == 1.0:
        return frame.width, frame.height, frame.pixels
    image = _image(frame)
    if scale < 1.0:
        size = max(1, round(frame.width * scale)), max(1, round(frame.height * scale))
        image = image.resize(size, reducing_gap=2.0)
    if encoding == "rgb":
        return image.width, image.height, image.tobytes()
    stream = io.BytesIO()
    if encoding == "png":
        image.save(stream, "PNG", compress_level=1)
    else:
        image.save(stream, "JPEG", quality=quality)
    return image.width, image.height, stream.getvalue()


def _image(frame: Frame) -> Image:
    from PIL import Image  # imported late: only remote viewers need it

    return Image.frombuffer("RGB", (frame.width, frame.height), frame.pixels, "raw", "RGB", 0, 1)
