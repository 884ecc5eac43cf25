"""`mosaic frames`: record a clip of what a run draws."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus

from gym_gui.cli.context import Cli, notify, one_run, pass_cli
from gym_gui.cli.listing import check_target, force_option
from gym_gui.cli.summary import videos_of
from gym_gui.services.trainer.errors import NotPossibleNow
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from gym_gui.services.trainer.client import TrainerClient

_MOVING = (".gif", ".webp")
_SINGLE = (".png", ".jpg", ".jpeg")
_PATIENCE_S = 60.0
"""Seconds without a frame before the command gives up"""


@click.command()
@one_run
@click.option(
    "-o",
    "--out",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="clip.mp4, .gif or .webp; a .png or .jpg is one image.",
)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Length of the clip.")
@click.option("--fps", type=click.FloatRange(min=0.1, max=60), default=30.0, show_default=True)
@click.option("--max-side", type=click.IntRange(min=16, max=8192), help="Make frames smaller than they are drawn.")
@force_option
@pass_cli
def frames_command(
    cli: Cli, /, run: str, out: Path, seconds: float, fps: float, max_side: int | None, force: bool
) -> int:
    """Record what a run draws while it trains; it draws only while it has a viewer."""
    check_target(out, force=force)
    with cli.client() as client:
        found = client.find(run)
        if found.status == RunStatus.TERM:
            videos = videos_of(client.local(found, "run/analytics.json", "run/videos/*"))
            video = f"its last video is {videos[-1]}" if videos else "it recorded no video"
            raise NotPossibleNow(f"run {short_id(found.run_id)} has finished and draws nothing any more; {video}")
        length_s = 0.0 if out.suffix.lower() in _SINGLE else seconds
        frames = _frames(client, found.run_id, fps, max_side or 0, length_s)
        recorded = _record(frames, out, fps, cli.home)
    if not recorded:
        raise NotPossibleNow(f"run {run} drew no frame within {_PATIENCE_S:g} s")
    notify(f"{out}: {recorded} frames")
    return 0


def _record(frames: Iterator[pb.RunFrame], out: Path, fps: float, home: Home) -> int:
    """Write the clip under a temporary name, so that a file that exists is replaced only by a complete one."""
    unfinished = out.with_name(f".{out.stem}.{secrets.token_hex(6)}{out.suffix}")
    clip = _clip_for(out, unfinished, fps, home)
    recorded = 0
    try:
        try:
            with clip:
                for frame in frames:
                    clip.add(frame)
                    recorded += 1
        except KeyboardInterrupt:
            notify("")  # what was recorded so far stays
        if recorded:
            os.replace(unfinished, out)
    finally:
        unfinished.unlink(missing_ok=True)
    return recorded


def _frames(client: TrainerClient, run_id: str, fps: float, max_side: int, seconds: float) -> Iterator[pb.RunFrame]:
    began: float | None = None
    requested_at = time.monotonic()
    with client.frames(run_id, max_fps=fps, max_side=max_side, encoding="png") as stream:
        for frame in stream:
            now = time.monotonic()
            if not frame.data:
                if began is None and frame.notice and now - requested_at > 2:
                    notify(frame.notice)
                if began is None and now - requested_at > _PATIENCE_S:
                    return
                continue
            began = began or now
            # PNG is exact and, for what environments draw, a hundredth of the pixels.
            yield pb.RunFrame(width=frame.width, height=frame.height, data=pixels_of(frame.data))
            if now - began >= seconds:
                return


def pixels_of(png: bytes) -> bytes:
    """Return the RGB pixels of a frame row by row."""
    from PIL import Image

    return Image.open(io.BytesIO(png)).convert("RGB").tobytes()


class _Clip(Protocol):
    def __enter__(self) -> Any: ...

    def __exit__(self, *details: object) -> None: ...

    def add(self, frame: pb.RunFrame) -> None: ...


def _clip_for(out: Path, unfinished: Path, fps: float, home: Home) -> _Clip:
    suffix = out.suffix.lower()
    if suffix in (*_MOVING, *_SINGLE):
        return _Images(unfinished, fps)
    if suffix not in (".mp4", ".mkv", ".webm"):
        raise NotPossibleNow(f"{out.name}: a clip is an .mp4, .webm, .gif or .webp file, an image a .png or .jpg")
    program = _ffmpeg(home)
    if program is None:
        raise NotPossibleNow(
            f"{out.name} needs ffmpeg, which is not here: `mosaic extras install video` brings it, or record a .gif"
        )
    return _Film(out, unfinished, fps, program)


def _ffmpeg(home: Home) -> str | None:
    """One on the path, or that of the requirement set `video`."""
    if found := shutil.which("ffmpeg"):
        return found
    pattern = "trainer/venvs/video/*/lib/*/site-packages/imageio_ffmpeg/binaries/ffmpeg-*"
    return next((str(path) for path in sorted(home.root.glob(pattern))), None)


class _Images:
    """Animated or single images, written by Pillow at the end."""

    def __init__(self, out: Path, fps: float) -> None:
        self._out, self._fps = out, fps
        self._images: list[Any] = []

    def __enter__(self) -> _Images:
        return self

    def add(self, frame: pb.RunFrame) -> None:
        from PIL import Image

        self._images.append(Image.frombytes("RGB", (frame.width, frame.height), frame.data))

    def __exit__(self, *details: object) -> None:
        if not self._images:
            return
        first, *others = self._images
        options: dict[str, Any] = {}
        if others and self._out.suffix.lower() in _MOVING:
            options = {"save_all": True, "append_images": others, "duration": round(1000 / self._fps), "loop": 0}
        first.save(self._out, **options)


class _Film:
    """ffmpeg, fed with frames of the first one's size."""

    def __init__(self, out: Path, unfinished: Path, fps: float, program: str) -> None:
        self._out, self._unfinished, self._fps, self._program = out, unfinished, fps, program
        self._process: subprocess.Popen[bytes] | None = None
        self._size = (0, 0)

    def __enter__(self) -> _Film:
        return self

    def add(self, frame: pb.RunFrame) -> None:
        if self._process is None:
            self._size = frame.width, frame.height
            size = f"{frame.width}x{frame.height}"
            source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", size, "-r", f"{self._fps:g}"]
            even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"]  # the codec takes even sizes only
            command = [self._program, "-loglevel", "error", "-y", *source, "-i", "-", *even]
            command.append(str(self._unfinished))
            # A group of its own: Ctrl-C ends the recording, and ffmpeg then completes the file.
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)
        if (frame.width, frame.height) == self._size and self._process.stdin is not None:
            try:
                self._process.stdin.write(frame.data)
            except BrokenPipeError:
                raise self._failure() from None

    def __exit__(self, *details: object) -> None:
        if self._process is None:
            return
        self._process.communicate()
        if self._process.returncode != 0:
            raise self._failure() from None

    def _failure(self) -> NotPossibleNow:
        return NotPossibleNow(f"ffmpeg could not write {self._out}; its own message is above")
