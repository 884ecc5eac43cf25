"""What a script left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire.event_files import PREFIX
from mosaic_wire.paths import RunFolder

POLICY_SUFFIX = ".cleanrl_model"
_VIDEO_SUFFIXES = (".mp4", ".gif", ".webm")
_MAX_FILES = 20_000
_NOT_LOOKED_INTO = frozenset({"wandb", "logs", "scripts", "metrics", "checkpoints"})


@dataclass(frozen=True)
class Artefacts:
    """Paths relative to the run folder."""

    policy: str | None
    videos: tuple[str, ...]
    tensorboard_dir: str


def artefacts_of(folder: RunFolder, tensorboard: Path) -> Artefacts:
    """Look through the run folder: the newest saved model, videos, and where event files are."""
    policies: list[Path] = []
    videos: list[str] = []
    has_events = {"runs": False, "tensorboard": False}
    for path in _files_below(folder.root):
        relative = path.relative_to(folder.root)
        if path.suffix == POLICY_SUFFIX:
            policies.append(path)
        elif path.suffix in _VIDEO_SUFFIXES:
            videos.append(str(relative))
        elif path.name.startswith(PREFIX):
            has_events["tensorboard" if path.is_relative_to(tensorboard) else relative.parts[0]] = True
    newest = max(policies, key=lambda path: path.stat().st_mtime_ns, default=None)
    # A writer that is not torch's put its files where the script said.
    place = Path("runs") if has_events["runs"] and not has_events["tensorboard"] else tensorboard
    return Artefacts(
        None if newest is None else str(newest.relative_to(folder.root)),
        tuple(sorted(videos)),
        os.path.relpath(folder.root / place, folder.root),
    )


def _files_below(root: Path) -> Iterator[Path]:
    count = 0
    for place, folders, files in os.walk(root):
        if Path(place) == root:
            folders[:] = [name for name in folders if name not in _NOT_LOOKED_INTO]
        for name in files:
            count += 1
            if count > _MAX_FILES:
                return
            path = Path(place, name)
            if not path.is_symlink():
                yield path


def print_tail(lines: Sequence[str]) -> None:
    """Repeat the script's last words: the daemon quotes the worker's own stderr when it tells people what happened."""
    for line in lines:
        sys.stderr.write(f"{line}\n")
