"""List a run's files, one folder at a time, with the role of each file; read its manifest; decide its analytics tabs.

Every function here reads the disk: call it in a thread. A folder that is missing, unreadable or damaged is a result,
not an error.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from mosaic_wire.checkpoints import STATE_FILE
from mosaic_wire.files import open_chosen, read_json_object, size_below, walk
from mosaic_wire.manifest import POLICY_SUFFIX, VIDEO_SUFFIXES, AnalyticsManifest, CheckpointEntry
from mosaic_wire.paths import Home, RunFolder, find_home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_request import algo_params
from mosaic_wire.sweep_settings import WORKER_TYPE as SWEEP

from gym_gui.services.analytics.wandb_file import WandbFolder, find_wandb_folders
from gym_gui.wording.run_view import extras_of

MAX_ENTRIES = 5000
"""Entries shown per folder, so that the tree stays fast"""
MAX_COUNTED = 20_000
"""Files counted for the size of a folder"""
PREVIEW_BYTES = 256 * 1024
_STATE_BYTES = 8 << 20
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".svg", ".ppm"})


class Role(Enum):
    """The purpose of a file or folder."""

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


class ManifestTrouble(Enum):
    """Why something cannot be read."""

    MISSING = "missing"
    FORBIDDEN = "forbidden"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class ManifestProblem:
    trouble: ManifestTrouble
    detail: str = ""


@dataclass(frozen=True)
class ManifestReading:
    """`analytics.json`, or the reason why it could not be read."""

    manifest: AnalyticsManifest | None = None
    problem: ManifestProblem | None = None


@dataclass(frozen=True)
class CheckpointFacts:
    """Facts of a checkpoint folder that need no loading."""

    step: int
    kind: str = ""
    """last | best | periodic; empty: the manifest does not list it"""
    mean_return: float | None = None
    """Mean return of the last episodes before it, if the worker stored it"""
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
    """Whether the manifest names it"""
    link_target: str = ""
    checkpoint: CheckpointFacts | None = None


@dataclass(frozen=True)
class FolderListing:
    """A folder's entries: folders first, by name."""

    entries: tuple[FileEntry, ...] = ()
    left_out: int = 0
    problem: ManifestProblem | None = None


def problem_of(error: OSError | ValueError) -> ManifestProblem:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ManifestProblem(ManifestTrouble.MISSING, str(error.filename or ""))
    if isinstance(error, PermissionError):
        return ManifestProblem(ManifestTrouble.FORBIDDEN, str(error.filename or ""))
    if isinstance(error, OSError):
        return ManifestProblem(ManifestTrouble.UNREADABLE, error.strerror or str(error))
    return ManifestProblem(ManifestTrouble.DAMAGED, str(error))


def read_manifest(run_dir: str) -> ManifestReading:
    """Return the run's manifest, or why it cannot be read."""
    if not run_dir:
        return ManifestReading(problem=ManifestProblem(ManifestTrouble.MISSING))
    try:
        return ManifestReading(AnalyticsManifest.read(RunFolder(Path(run_dir)).manifest))
    except (OSError, ValueError) as error:
        return ManifestReading(problem=problem_of(error))


def listed_paths(manifest: AnalyticsManifest) -> dict[str, Role]:
    """Return what the manifest names, by path relative to the run folder."""
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


def missing_artifacts(run_dir: Path, manifest: AnalyticsManifest) -> list[str]:
    """Return paths of the manifest that do not exist."""
    return [path for path in listed_paths(manifest) if not os.path.lexists(run_dir / path)]


def list_folder(folder: Path, run_dir: Path, manifest: AnalyticsManifest | None) -> FolderListing:
    """List one folder of a run."""
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
        return FolderListing(problem=problem_of(error))
    entries.sort(key=_order)
    return FolderListing(tuple(entries), left_out)


def _order(entry: FileEntry) -> tuple[bool, int, str]:
    # The newest checkpoint comes first: users look for it.
    return not entry.is_folder, -entry.checkpoint.step if entry.checkpoint else 0, entry.name.lower()


def _entry(
    item: os.DirEntry[str], run_dir: Path, listed: Mapping[str, Role], manifest: AnalyticsManifest | None
) -> FileEntry | None:
    path = Path(item.path)
    try:
        status = item.stat(follow_symlinks=False)
    except OSError:
        return None  # removed while the folder was read
    is_folder = stat.S_ISDIR(status.st_mode)
    relative = path.relative_to(run_dir).as_posix() if path.is_relative_to(run_dir) else path.name
    role = listed.get(relative) or _role(path, relative, is_folder)
    checkpoint = checkpoint_facts(path, manifest) if role is Role.CHECKPOINT and is_folder else None
    return FileEntry(
        path,
        item.name,
        role,
        is_folder,
        folder_size(path) if is_folder else status.st_size,
        status.st_mtime,
        is_listed=relative in listed,
        link_target=_target(path) if stat.S_ISLNK(status.st_mode) else "",
        checkpoint=checkpoint,
    )


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
    if path.suffix == POLICY_SUFFIX:
        return Role.POLICY
    if path.suffix == ".log" or path.name.endswith(".log.1"):
        return Role.LOG
    return Role.CONFIG if path.name.startswith(("config-", "worker-")) and path.suffix == ".json" else Role.FILE


def folder_size(folder: Path) -> int | None:
    """Return the bytes below a folder; None if there are too many files to count quickly."""
    is_countable = sum(1 for _ in walk(folder, most=MAX_COUNTED + 1)) <= MAX_COUNTED
    return size_below(folder, most=MAX_COUNTED) if is_countable else None


def checkpoint_facts(folder: Path, manifest: AnalyticsManifest | None) -> CheckpointFacts:
    """Return step, kind and return of a checkpoint, from the manifest and its state file."""
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
    # The manifest may list a folder twice: as the last and as the best checkpoint.
    fitting = [entry for entry in entries if Path(entry.path).name == folder.name]
    return next((entry for entry in fitting if entry.kind == "best"), fitting[-1] if fitting else None)


def _mean_return(state: Mapping[str, Any]) -> float | None:
    episodes = state.get("values")
    episodes = episodes.get("episodes") if isinstance(episodes, dict) else None
    recent = episodes.get("recent") if isinstance(episodes, dict) else None
    if not isinstance(recent, list) or not recent or not all(isinstance(value, int | float) for value in recent):
        return None
    return sum(recent) / len(recent)


# ------------------------------------------------------------------ preview of a file


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
    """The displayable part of a file."""

    path: Path
    kind: PreviewKind
    text: str = ""
    size: int = 0
    is_cut: bool = False
    problem: ManifestProblem | None = None


def preview_of(path: Path) -> Preview:
    """Read the beginning of a file, if it is readable text."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return Preview(path, PreviewKind.FOLDER)
        if not stat.S_ISREG(status.st_mode):
            return Preview(path, PreviewKind.BINARY)  # reading a pipe would block
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
    """Return the text if the data is mostly text; ignore a character cut off at the end."""
    if b"\0" in data[:8192]:
        return None
    text = data.decode("utf-8", "replace")
    return None if text.count("�") > max(4, len(text) // 20) else text


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


# ------------------------------------------------------------------ roots of the tree


@dataclass(frozen=True)
class Place:
    """A root of the tree: a folder or file of the run."""

    kind: str
    """run | logs | config | worker_config"""
    path: Path
    is_folder: bool
    is_there: bool


@dataclass(frozen=True)
class RunPlaces:
    """The root folders of a run, its manifest, and missing files that it names."""

    places: tuple[Place, ...]
    reading: ManifestReading
    missing: tuple[str, ...] = ()


def find_places(run_dir: str, logs_dir: str, run_id: str) -> RunPlaces:
    """Find a run's files and check whether they exist."""
    places = [
        Place(kind, path, kind in ("run", "logs"), os.path.lexists(path))
        for kind, path in _roots(run_dir, logs_dir, run_id)
    ]
    reading = read_manifest(run_dir)
    missing = missing_artifacts(Path(run_dir), reading.manifest) if reading.manifest is not None else []
    return RunPlaces(tuple(places), reading, tuple(missing))


def _roots(run_dir: str, logs_dir: str, run_id: str) -> Iterator[tuple[str, Path]]:
    if run_dir:
        yield "run", Path(run_dir)
    if logs_dir:
        yield "logs", Path(logs_dir)
    if run_dir:
        home = RunFolder(Path(run_dir)).home
        for kind, path in (("config", home.config_file(run_id)), ("worker_config", home.worker_config_file(run_id))):
            if os.path.lexists(path):
                yield kind, path


@dataclass(frozen=True)
class RunArtifacts:
    """A snapshot of a run's analytics."""

    reading: ManifestReading = field(default_factory=ManifestReading)
    wandb: tuple[WandbFolder, ...] = ()
    stamp: tuple[int, int] = (0, 0)
    """Modification time and size of the manifest, so that an unchanged one is not read again"""

    @property
    def manifest(self) -> AnalyticsManifest | None:
        return self.reading.manifest


def scan_artifacts(run_dir: str, before: RunArtifacts | None = None) -> RunArtifacts:
    """Scan a run's folder; reuse what has not changed since `before`."""
    if not run_dir:
        return RunArtifacts()
    folder = RunFolder(Path(run_dir))
    stamp = _stamp_of(folder.manifest)
    if before is not None and stamp == before.stamp and before.manifest is not None:
        reading = before.reading
    else:
        reading = read_manifest(run_dir)
    return RunArtifacts(reading, find_wandb_folders(folder.wandb), stamp)


def tabs_of(run: pb.Run, named: Iterable[str], found: RunArtifacts | None) -> tuple[str, ...]:
    """Return those of the presenter's tabs that this run has now."""
    held = {"wandb": has_wandb, "optuna": has_study}
    return tuple(name for name in named if name not in held or held[name](run, found))


def has_wandb(run: pb.Run, found: RunArtifacts | None) -> bool:
    """Return whether the run was configured for W&B, reports it, or has files of it."""
    manifest = found.manifest if found is not None else None
    names_wandb_run = manifest is not None and (manifest.wandb_run_id or manifest.wandb_run_path)
    return bool(names_wandb_run) or bool(found and found.wandb) or asks_for_wandb(run)


def asks_for_wandb(run: pb.Run) -> bool:
    places: tuple[Mapping[str, Any], ...] = (extras := extras_of(run), algo_params(extras))
    return any(place.get(name) is True for place in places for name in ("track_wandb", "track"))


def has_study(run: pb.Run, found: RunArtifacts | None) -> bool:
    """Return whether the run is a sweep or names the study it belongs to."""
    extras = extras_of(run)
    manifest = found.manifest if found is not None else None
    is_sweep = run.worker_type == SWEEP
    return is_sweep or bool(extras.get("optuna_db") or (manifest is not None and manifest.optuna_db_path))


def _stamp_of(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def home_of(run_dir: str) -> Home:
    """Return the home of a run's folder; of a folder elsewhere, the one of this process."""
    folder = RunFolder(Path(run_dir))
    return folder.home if folder.root.parent == folder.home.runs else find_home()
