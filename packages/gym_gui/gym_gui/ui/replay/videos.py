"""Which videos a run has: those its manifest names and those that lie in its folder, newest step first."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire.files import walk
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder

SUFFIXES = frozenset({".mp4", ".webm", ".mkv", ".mov", ".avi", ".gif", ".m4v"})

_EPISODE = re.compile(r"episode[-_](\d+)")
_STEP = re.compile(r"step[-_](\d+)")
_EVALUATION = re.compile(r"eval-(\d+)")


@dataclass(frozen=True)
class Video:
    """One video file of a run."""

    path: Path
    name: str
    """Relative to the run folder"""
    step: int | None
    """Of training, when it was recorded; None: nobody wrote it down"""
    episode: int | None
    evaluation: int | None
    """Which batch of an evaluation it shows, from 0"""
    bytes: int
    modified_at: float


@dataclass(frozen=True)
class Videos:
    """What was found, and what went wrong on the way, in words for people."""

    videos: tuple[Video, ...] = ()
    missing: tuple[str, ...] = ()
    """Named by the manifest, and not there"""
    problem: str = ""


def find_videos(run_dir: Path) -> Videos:
    """Look through a run folder. Never raises: a broken folder is a `problem`."""
    if not run_dir.is_dir():
        return Videos(problem=f"The folder of this run is not there: {run_dir}")
    folder, problem = RunFolder(run_dir), ""
    listed: tuple[str, ...] = ()
    steps: Mapping[str, object] = {}
    try:
        manifest = AnalyticsManifest.read(folder.manifest)
        listed, noted = manifest.videos, manifest.extra.get("video_steps")
        steps = noted if isinstance(noted, Mapping) else {}
    except FileNotFoundError:
        pass  # it has not begun yet, or never did
    except (OSError, ValueError) as error:
        problem = f"The list of what this run left cannot be read, so only its folder was looked through: {error}"
    found: dict[str, Video] = {}
    for path in (*(run_dir / name for name in listed), *_files_below(folder.videos)):
        video = _video(run_dir, path, steps)
        if video is not None:
            found[video.name] = video
    missing = tuple(name for name in listed if os.path.normpath(name) not in found)
    return Videos(tuple(sorted(found.values(), key=_newest_first)), missing, problem)


def _video(run_dir: Path, path: Path, steps: Mapping[str, object]) -> Video | None:
    name = os.path.normpath(os.path.relpath(path, run_dir))
    if name.startswith("..") or os.path.isabs(name):
        return None  # a manifest must not make us open files elsewhere
    try:
        status = path.lstat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None  # a pipe would never answer
    told = steps.get(name)
    step = told if isinstance(told, int) and not isinstance(told, bool) else _number(_STEP, name)
    return Video(
        path, name, step, _number(_EPISODE, path.name), _number(_EVALUATION, path.parent.name),
        status.st_size, status.st_mtime,
    )  # fmt: skip


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    return int(match[1]) if match else None


def _newest_first(video: Video) -> tuple[float, ...]:
    """By step; those without one follow, by batch and episode of the name, else by time."""
    step = -1 if video.step is None else video.step
    return -step, -(video.evaluation or 0), -(video.episode or 0), -video.modified_at


def _files_below(top: Path) -> Iterator[Path]:
    """Video files of a folder and those below it; hidden ones are still being written. Links are not followed."""
    for entry in walk(top):
        if not entry.name.startswith(".") and (path := Path(entry.path)).suffix.lower() in SUFFIXES:
            yield path
