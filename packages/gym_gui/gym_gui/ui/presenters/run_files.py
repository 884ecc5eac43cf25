"""What lies in a run's folders: read one folder at a time, with what is known of each file from the manifest.

Every function here reads the disk and belongs into a thread. A folder that is gone, closed or damaged is an answer, not
an error.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from mosaic_wire.checkpoints import STATE_FILE
from mosaic_wire.files import open_chosen, read_json_object, size_below, walk
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry
from mosaic_wire.paths import RunFolder

from gym_gui.services.policy_files import MODEL_SUFFIX

MAX_ENTRIES = 5000
"""Of one folder that are shown; nobody scrolls through more, and the tree stays quick"""
MAX_COUNTED = 20_000
"""Files whose sizes are added up for a folder"""
PREVIEW_BYTES = 256 * 1024
_STATE_BYTES = 8 << 20
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".svg", ".ppm"})
VIDEO_SUFFIXES = frozenset({".mp4", ".webm", ".mkv", ".avi", ".mov"})


class Role(Enum):
    """What a file or folder is for."""

    FILE = "file"
    FOLDER = "folder"
    MANIFEST = "manifest"
    LIFECYCLE = "lifecycle"
    EXIT = "exit"
    CHECKPOINT = "checkpoint"
    CHECKPOINTS = "checkpoints"
    POLICY = "policy"
    EVENTS = "events"
    METRICS = "metrics"
    VIDEO = "video"
    DATABASE = "database"
    LOG = "log"
    CONFIG = "config"


class Trouble(Enum):
    """Why something cannot be read."""

    MISSING = "missing"
    FORBIDDEN = "forbidden"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Problem:
    trouble: Trouble
    detail: str = ""


@dataclass(frozen=True)
class ManifestReading:
    """`analytics.json`, or why there is none to read."""

    manifest: AnalyticsManifest | None = None
    problem: Problem | None = None


@dataclass(frozen=True)
class CheckpointFacts:
    """What is known of a checkpoint folder without loading it."""

    step: int
    kind: str = ""
    """last | best | periodic; empty: the manifest does not list it"""
    mean_return: float | None = None
    """Of the last episodes before it, where the worker keeps them"""
    is_listed: bool = False
    problem: str = ""


@dataclass(frozen=True)
class FileEntry:
    """One row of the tree."""

    path: Path
    name: str
    role: Role
    is_folder: bool
    size: int | None
    modified: float
    is_listed: bool = False
    """The manifest names it"""
    link_target: str = ""
    checkpoint: CheckpointFacts | None = None


@dataclass(frozen=True)
class Listing:
    """A folder's entries: folders first, by name."""

    entries: tuple[FileEntry, ...] = ()
    left_out: int = 0
    problem: Problem | None = None


def problem_of(error: OSError | ValueError) -> Problem:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return Problem(Trouble.MISSING, str(error.filename or ""))
    if isinstance(error, PermissionError):
        return Problem(Trouble.FORBIDDEN, str(error.filename or ""))
    if isinstance(error, OSError):
        return Problem(Trouble.UNREADABLE, error.strerror or str(error))
    return Problem(Trouble.DAMAGED, str(error))


def read_manifest(run_dir: str) -> ManifestReading:
    """The run's manifest; without one, why."""
    if not run_dir:
        return ManifestReading(problem=Problem(Trouble.MISSING))
    try:
        return ManifestReading(AnalyticsManifest.read(RunFolder(Path(run_dir)).manifest))
    except (OSError, ValueError) as error:
        return ManifestReading(problem=problem_of(error))


def listed_paths(manifest: AnalyticsManifest) -> dict[str, Role]:
    """What the manifest says is there, by its path relative to the run folder."""
    listed = {entry.path: Role.CHECKPOINT for entry in manifest.checkpoints}
    listed |= dict.fromkeys(manifest.videos, Role.VIDEO)
    for path, role in (
        (manifest.policy, Role.POLICY),
        (manifest.tensorboard_dir, Role.EVENTS),
        (manifest.optuna_db_path, Role.DATABASE),
    ):
        if path:
            listed[path] = role
    return listed


def missing_artefacts(run_dir: Path, manifest: AnalyticsManifest) -> list[str]:
    """Paths of the manifest that are not there."""
    return [path for path in listed_paths(manifest) if not os.path.lexists(run_dir / path)]


def list_folder(folder: Path, run_dir: Path, manifest: AnalyticsManifest | None) -> Listing:
    """Read one folder of a run."""
    listed = listed_paths(manifest) if manifest else {}
    entries: list[FileEntry] = []
    left_out = 0
    try:
        with os.scandir(folder) as found:
            for item in found:
                if len(entries) >= MAX_ENTRIES:
                    left_out += 1
                elif (entry := _entry(item, run_dir, listed, manifest)) is not None:
                    entries.append(entry)
    except OSError as error:
        return Listing(problem=problem_of(error))
    entries.sort(key=_order)
    return Listing(tuple(entries), left_out)


def _order(entry: FileEntry) -> tuple[bool, int, str]:
    # The newest checkpoint is what people look for.
    return not entry.is_folder, -entry.checkpoint.step if entry.checkpoint else 0, entry.name.lower()


def _entry(
    item: os.DirEntry[str], run_dir: Path, listed: Mapping[str, Role], manifest: AnalyticsManifest | None
) -> FileEntry | None:
    path = Path(item.path)
    try:
        status = item.stat(follow_symlinks=False)
    except OSError:
        return None  # it went away while the folder was read
    is_folder = stat.S_ISDIR(status.st_mode)
    relative = path.relative_to(run_dir).as_posix() if path.is_relative_to(run_dir) else path.name
    role = listed.get(relative) or _role(path, relative, is_folder)
    checkpoint = checkpoint_facts(path, manifest) if role is Role.CHECKPOINT and is_folder else None
    return FileEntry(
        path, item.name, role, is_folder, folder_size(path) if is_folder else status.st_size, status.st_mtime,
        is_listed=relative in listed,
        link_target=_target(path) if stat.S_ISLNK(status.st_mode) else "",
        checkpoint=checkpoint,
    )  # fmt: skip


def _target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "?"


_NAMES = {"analytics.json": Role.MANIFEST, "lifecycle.jsonl": Role.LIFECYCLE, "exit.json": Role.EXIT}
_FOLDERS = {
    "checkpoints": Role.CHECKPOINTS,
    "tensorboard": Role.EVENTS,
    "metrics": Role.METRICS,
    "videos": Role.VIDEO,
    "logs": Role.LOG,
}


def _role(path: Path, relative: str, is_folder: bool) -> Role:
    if is_folder:
        is_checkpoint = relative.startswith("checkpoints/step-") and relative.count("/") == 1
        return Role.CHECKPOINT if is_checkpoint else _FOLDERS.get(relative, Role.FOLDER)
    if relative in _NAMES:
        return _NAMES[relative]
    if ".tfevents." in path.name:
        return Role.EVENTS
    if path.suffix.lower() in VIDEO_SUFFIXES:
        return Role.VIDEO
    if path.suffix == MODEL_SUFFIX:
        return Role.POLICY
    if path.suffix == ".log" or path.name.endswith(".log.1"):
        return Role.LOG
    return Role.CONFIG if path.name.startswith(("config-", "worker-")) and path.suffix == ".json" else Role.FILE


def folder_size(folder: Path) -> int | None:
    """Bytes below a folder; None when there are too many files to count quickly."""
    is_countable = sum(1 for _ in walk(folder, most=MAX_COUNTED + 1)) <= MAX_COUNTED
    return size_below(folder, most=MAX_COUNTED) if is_countable else None


def checkpoint_facts(folder: Path, manifest: AnalyticsManifest | None) -> CheckpointFacts:
    """Step, kind and return of a checkpoint, from the manifest and its state file."""
    entry = _listed_checkpoint(folder, manifest)
    number = folder.name.removeprefix("step-")
    step = entry.step if entry else int(number) if number.isascii() and number.isdigit() else 0
    kind = entry.kind if entry else ""
    try:
        state = read_json_object(folder / STATE_FILE, max_bytes=_STATE_BYTES)
    except OSError as error:
        return CheckpointFacts(step, kind, is_listed=entry is not None, problem=error.strerror or str(error))
    except ValueError as error:
        return CheckpointFacts(step, kind, is_listed=entry is not None, problem=str(error))
    return CheckpointFacts(step, kind, _mean_return(state), is_listed=entry is not None)


def _listed_checkpoint(folder: Path, manifest: AnalyticsManifest | None) -> CheckpointEntry | None:
    entries = manifest.checkpoints if manifest else ()
    # One folder may be listed twice: as the last one and as the best.
    fitting = [entry for entry in entries if Path(entry.path).name == folder.name]
    return next((entry for entry in fitting if entry.kind == "best"), fitting[-1] if fitting else None)


def _mean_return(state: Mapping[str, Any]) -> float | None:
    episodes = state.get("values")
    episodes = episodes.get("episodes") if isinstance(episodes, dict) else None
    recent = episodes.get("recent") if isinstance(episodes, dict) else None
    if not isinstance(recent, list) or not recent or not all(isinstance(value, int | float) for value in recent):
        return None
    return sum(recent) / len(recent)


# ------------------------------------------------------------------ looking into one file


class PreviewKind(Enum):
    TEXT = "text"
    IMAGE = "image"
    VIDEO = "video"
    BINARY = "binary"
    FOLDER = "folder"
    EMPTY = "empty"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Preview:
    """What can be shown of a file at a glance."""

    path: Path
    kind: PreviewKind
    text: str = ""
    size: int = 0
    is_cut: bool = False
    problem: Problem | None = None


def preview_of(path: Path) -> Preview:
    """Read the beginning of a file, as far as it is something people can read."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return Preview(path, PreviewKind.FOLDER)
        if not stat.S_ISREG(status.st_mode):
            return Preview(path, PreviewKind.BINARY)  # a pipe would never answer
        if status.st_size == 0:
            return Preview(path, PreviewKind.EMPTY)
        if path.suffix.lower() in IMAGE_SUFFIXES:
            return Preview(path, PreviewKind.IMAGE, size=status.st_size)
        if path.suffix.lower() in VIDEO_SUFFIXES:
            return Preview(path, PreviewKind.VIDEO, size=status.st_size)
        with open_chosen(path) as stream:
            data = stream.read(PREVIEW_BYTES)
    except OSError as error:
        return Preview(path, PreviewKind.UNREADABLE, problem=problem_of(error))
    text = _readable(data)
    if text is None:
        return Preview(path, PreviewKind.BINARY, size=status.st_size)
    is_cut = status.st_size > len(data)
    if path.suffix == ".json" and not is_cut:
        text = _pretty(text)
    return Preview(path, PreviewKind.TEXT, text, status.st_size, is_cut)


def _readable(data: bytes) -> str | None:
    """Text, when most of it is; a character cut in two at the end does not count."""
    if b"\0" in data[:8192]:
        return None
    text = data.decode("utf-8", "replace")
    return None if text.count("�") > max(4, len(text) // 20) else text


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


# ------------------------------------------------------------------ where it begins


@dataclass(frozen=True)
class Place:
    """A folder or file of the run that the tree begins with."""

    kind: str
    """run | logs | config | worker_config"""
    path: Path
    is_folder: bool
    is_there: bool


@dataclass(frozen=True)
class RunPlaces:
    """The places of a run, its manifest, and what that names but is not there."""

    places: tuple[Place, ...]
    reading: ManifestReading
    missing: tuple[str, ...] = ()


def look_at_places(run_dir: str, logs_dir: str, run_id: str) -> RunPlaces:
    """Look where a run's files lie and whether they are there."""
    places = [
        Place(kind, path, kind in ("run", "logs"), os.path.lexists(path))
        for kind, path in _roots(run_dir, logs_dir, run_id)
    ]
    reading = read_manifest(run_dir)
    missing = missing_artefacts(Path(run_dir), reading.manifest) if reading.manifest is not None else []
    return RunPlaces(tuple(places), reading, tuple(missing))


def _roots(run_dir: str, logs_dir: str, run_id: str) -> Iterator[tuple[str, Path]]:
    if run_dir:
        yield "run", Path(run_dir)
    if logs_dir:
        yield "logs", Path(logs_dir)
    if run_dir:
        # <home>/trainer/runs/<id> and <home>/trainer/configs: where the daemon keeps them.
        configs = Path(run_dir).parent.parent / "configs"
        for kind, name in (("config", f"config-{run_id}.json"), ("worker_config", f"worker-{run_id}.json")):
            if os.path.lexists(configs / name):
                yield kind, configs / name
