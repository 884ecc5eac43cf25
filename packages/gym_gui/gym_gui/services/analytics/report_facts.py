"""What a report says about runs beyond their curves: story, machine, files, last words. Reads daemon and disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic_wire.files import read_plain_file
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.redaction import redact_document, redact_text, secret_values

from gym_gui.wording.last_words import last_words
from gym_gui.wording.run_view import parsed

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

MOST_VIDEO_BYTES = 4 << 20
"""Of one video that is put into the page"""
MOST_BYTES_OF_VIDEOS = 16 << 20
_TAIL_BYTES = 64 << 10
_LAST_LINES = 40


@dataclass(frozen=True)
class Video:
    """A recorded episode; `data` when it is small enough to travel with the page."""

    path: Path
    size: int
    data: bytes | None = None


@dataclass(frozen=True)
class RunFacts:
    """One run; empty where its folder is on another machine."""

    run: pb.Run
    story: tuple[pb.StoryEvent, ...]
    manifest: AnalyticsManifest | None = None
    videos: tuple[Video, ...] = ()
    last_stream: str = ""
    last_lines: tuple[str, ...] = ()
    """What a run that did not complete wrote at its end"""
    command: str = ""
    """What does the same again"""


def facts_of(
    client: TrainerClient,
    runs: Sequence[pb.Run],
    commands: Mapping[str, str],
    *,
    most_bytes: int = MOST_BYTES_OF_VIDEOS,
) -> list[RunFacts]:
    """Everything about these runs; videos are embedded in their order until `most_bytes` are reached."""
    gathered = []
    left = most_bytes
    for run in runs:
        story = tuple(client.story(run.run_id))
        manifest = _manifest(run)
        videos = tuple(_videos(run, manifest, left))
        left -= sum(len(video.data or b"") for video in videos)
        stream, lines = ("", []) if run.status != "TERM" or run.outcome == "completed" else _end_of(client, run, story)
        gathered.append(
            RunFacts(run, story, manifest, videos, stream, tuple(lines), commands.get(run.run_id, ""))
        )  # fmt: skip
    return gathered


def redacted_run(run: pb.Run) -> pb.Run:
    """A copy without what looks like a secret: the daemon keeps none, but a page travels further than a home does."""
    clean = type(run)()
    clean.CopyFrom(run)
    for name in ("name", "notes", "reason"):
        setattr(clean, name, redact_text(getattr(run, name)))
    extras = parsed(run.extras_json)
    secrets = secret_values(extras) if isinstance(extras, dict) else set()
    for name in ("extras_json", "learning_json"):
        if isinstance(document := parsed(getattr(run, name)), dict):
            setattr(clean, name, json.dumps(redact_document(document, secrets)))
    return clean


def _manifest(run: pb.Run) -> AnalyticsManifest | None:
    try:
        return AnalyticsManifest.read(RunFolder(Path(run.run_dir)).manifest)
    except (OSError, ValueError):
        return None


def _videos(run: pb.Run, manifest: AnalyticsManifest | None, budget: int) -> Iterator[Video]:
    folder = Path(run.run_dir)
    for name in manifest.videos if manifest else ():
        path = folder / name
        try:
            # A manifest is a file like any other: what it names may lie elsewhere, and is then not read.
            if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
                continue
            size = path.stat().st_size
            data = read_plain_file(path, size) if size <= min(MOST_VIDEO_BYTES, budget) else None
        except (OSError, ValueError):
            continue
        budget -= len(data or b"")
        yield Video(path, size, data)


def _end_of(client: TrainerClient, run: pb.Run, story: Sequence[pb.StoryEvent]) -> tuple[str, list[str]]:
    """Its last words as the story keeps them, else the end of its log."""
    stream, lines = last_words(story, lines=_LAST_LINES)
    if lines:
        return stream, lines
    for name in ("training_stderr", "stderr", "stdout"):
        data = b""
        with client.logs(run.run_id, name, tail_bytes=_TAIL_BYTES) as chunks:
            for chunk in chunks:
                data = (data + chunk.data)[-_TAIL_BYTES:]
        if text := data.decode("utf-8", "replace").rstrip():
            return name.replace("_", " "), text.splitlines()[-_LAST_LINES:]
    return "", []
