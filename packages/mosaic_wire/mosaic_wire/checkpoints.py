"""Checkpoint folders: written atomically, and used only if their hashes are correct.

`checkpoints/step-<n>/state.json` holds the worker's state and, under `files`, the SHA-256 of every sibling; under
`shared`, files beside the checkpoints that several of them may refer to (a replay buffer is too large to be written
again and again). The run manifest holds the SHA-256 of state.json itself. This module knows nothing of tensors.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.errors import DamagedCheckpoint
from mosaic_wire.files import fsync_directory, json_bytes, read_json_object
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry, sha256_of_file
from mosaic_wire.paths import RunFolder

STATE_FILE = "state.json"

_FOLDER_NAME = re.compile(r"step-(0|[1-9][0-9]{0,17})", re.ASCII)
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_SHARED_PATH = re.compile(rf"{_FILE_NAME.pattern}/{_FILE_NAME.pattern}", re.ASCII)


@dataclass(frozen=True)
class SharedFile:
    """An immutable file that checkpoints refer to instead of containing a copy."""

    path: str
    """Relative to the folder of the checkpoints: `<folder>/<name>`"""
    sha256: str
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the entry that a checkpoint lists."""
        return {"path": self.path, "sha256": self.sha256, "bytes": self.bytes}

    @classmethod
    def from_json(cls, document: Any) -> SharedFile:
        """Return an entry; raise ValueError when it is invalid or names a file elsewhere."""
        path, sha256, size = (document.get(key) for key in ("path", "sha256", "bytes"))
        if not isinstance(path, str) or not isinstance(sha256, str) or type(size) is not int:
            raise ValueError(f"not a shared file of a checkpoint: {document!r:.200}")
        if not _SHARED_PATH.fullmatch(path) or _FOLDER_NAME.fullmatch(path.partition("/")[0]):
            raise ValueError(f"a checkpoint names a file outside its folder: {path[:80]!r}")
        return cls(path, sha256, size)


def write_checkpoint(
    run_folder: RunFolder,
    step: int,
    state: Mapping[str, Any],
    files: Mapping[str, bytes] | None = None,
    *,
    kind: str = "periodic",
    shared: Sequence[SharedFile] = (),
) -> CheckpointEntry:
    """Write `checkpoints/step-<n>/` under a temporary name, fsync, rename; return its entry for the manifest.

    `state` is a JSON object without the keys `files` and `shared`; large data go into `files` (name to content). The
    `shared` files are on disk already. A good checkpoint of the same step is replaced only by a whole one.
    """
    if (
        step < 0
        or {"files", "shared"} & state.keys()
        or any(not _FILE_NAME.fullmatch(name) or name == STATE_FILE for name in files or {})
        or any(not _SHARED_PATH.fullmatch(file.path) for file in shared)
    ):
        raise ValueError("a checkpoint needs a step from 0, plain file names, and a state without the key 'files'")
    final = run_folder.checkpoints / f"step-{step}"
    run_folder.checkpoints.mkdir(parents=True, exist_ok=True)
    temporary = run_folder.checkpoints / f".step-{step}.{secrets.token_hex(6)}.tmp"
    temporary.mkdir()
    try:
        hashes = {}
        for name, content in (files or {}).items():
            _write_file(temporary / name, content)
            hashes[name] = hashlib.sha256(content).hexdigest()
        references = {"shared": [file.to_json() for file in shared]} if shared else {}
        document = json_bytes({**state, "step": step, "files": hashes, **references}, sealed=True)
        _write_file(temporary / STATE_FILE, document)
        fsync_directory(temporary)
        _put_in_place(temporary, final)
    except BaseException:
        # On a full disk, an incomplete checkpoint must not keep its space.
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_directory(run_folder.checkpoints)
    return CheckpointEntry(f"checkpoints/step-{step}", step, hashlib.sha256(document).hexdigest(), kind)


def _write_file(path: Path, content: bytes) -> None:
    with path.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _put_in_place(temporary: Path, final: Path) -> None:
    """Rename a folder; an existing one of the same step (of a run resumed from an earlier step) is moved away first."""
    if not final.exists():
        temporary.rename(final)
        return
    aside = final.with_name(f".{final.name}.{secrets.token_hex(6)}.old")
    final.rename(aside)
    temporary.rename(final)
    shutil.rmtree(aside, ignore_errors=True)


def verify_checkpoint(folder: Path, sha256: str) -> str | None:
    """Return what is wrong with a checkpoint folder, or None when every hash is correct."""
    return _damage(folder, sha256, _SharedFiles())


def read_checkpoint(folder: Path, *, hash_shared: bool = True) -> dict[str, Any]:
    """Return the state document of an intact checkpoint; raise DamagedCheckpoint with the reason.

    The document's own checksum and its siblings' hashes must fit.
    Without `hash_shared` the shared files need only be there with their size: for those who compute the hashes anyway
    when they read them, or who want a quick answer.
    """
    return _read_verified(folder, None, _SharedFiles(hashed=hash_shared))


def shared_files(document: Mapping[str, Any]) -> tuple[SharedFile, ...]:
    """Return the shared files that a state document refers to; raise ValueError for any other."""
    listed = document.get("shared", [])
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise ValueError("the shared files of a checkpoint must be a list of objects")
    return tuple(SharedFile.from_json(entry) for entry in listed)


class _SharedFiles:
    """Verifies shared files, each only once."""

    def __init__(self, *, hashed: bool = True) -> None:
        self._hashed = hashed
        self._problems: dict[tuple[Path, SharedFile], str] = {}

    def problem(self, checkpoints: Path, file: SharedFile) -> str:
        """Return what is wrong with the file, or an empty text."""
        key = checkpoints, file
        if key not in self._problems:
            self._problems[key] = self._find_problem(checkpoints, file)
        return self._problems[key]

    def _find_problem(self, checkpoints: Path, file: SharedFile) -> str:
        path = checkpoints / file.path
        if not path.resolve().is_relative_to(checkpoints.resolve()):
            return f"{path} lies outside the folder of the checkpoints"
        size = path.stat().st_size
        if size != file.bytes:
            return f"{path} is not the file that was written: it has {size} bytes instead of {file.bytes}"
        if self._hashed and sha256_of_file(path) != file.sha256:
            return f"{path} is not the file that was written: its SHA-256 differs"
        return ""


def _damage(folder: Path, sha256: str, shared: _SharedFiles) -> str | None:
    try:
        _read_verified(folder, sha256, shared)
    except DamagedCheckpoint as error:
        return str(error)
    return None


def _read_verified(folder: Path, sha256: str | None, shared: _SharedFiles) -> dict[str, Any]:
    state_file = folder / STATE_FILE
    try:
        if sha256 is not None and sha256_of_file(state_file) != sha256:
            raise DamagedCheckpoint(f"{state_file} is not the file that was written: its SHA-256 differs")
        document = read_json_object(state_file)
        step, hashes = document.get("step"), document.get("files", {})
        if type(step) is not int or step < 0 or not isinstance(hashes, dict):
            raise DamagedCheckpoint(f"{state_file} is not the state of a checkpoint")
        for name, expected in hashes.items():
            if not _FILE_NAME.fullmatch(name):
                raise DamagedCheckpoint(f"{state_file} names a file outside its folder: {name[:80]!r}")
            if sha256_of_file(folder / name) != expected:
                raise DamagedCheckpoint(f"{folder / name} is not the file that was written: its SHA-256 differs")
        for file in shared_files(document):
            if problem := shared.problem(folder.parent, file):
                raise DamagedCheckpoint(problem)
    except OSError as error:
        raise DamagedCheckpoint(f"{error.filename or folder} cannot be read: {error.strerror or error}") from error
    except DamagedCheckpoint:
        raise
    except ValueError as error:
        raise DamagedCheckpoint(str(error)) from error
    return document


def last_good_checkpoint(run_folder: RunFolder) -> CheckpointEntry | None:
    """Return the newest intact checkpoint, or None."""
    return next(good_checkpoints(run_folder), None)


def good_checkpoints(run_folder: RunFolder) -> Iterator[CheckpointEntry]:
    """Yield the intact checkpoints, newest first; each is verified only when it is requested.

    Those of the manifest, and those that lie in the folder without being listed: a worker that was killed had no time
    to list its last one.
    """
    try:
        listed = AnalyticsManifest.read(run_folder.manifest).checkpoints
    except (OSError, ValueError):
        listed = ()
    # A folder that differs from its manifest entry is refused even if it is consistent in itself.
    unlisted = _unlisted_checkpoints(run_folder, passing_over={Path(entry.path).name for entry in listed})
    root, shared = run_folder.root.resolve(), _SharedFiles()
    for entry in sorted((*listed, *unlisted), key=lambda entry: entry.step, reverse=True):
        folder = run_folder.root / entry.path
        inside = folder.resolve().is_relative_to(root)  # not through a link
        if inside and _damage(folder, entry.sha256, shared) is None:
            yield entry


def _unlisted_checkpoints(run_folder: RunFolder, *, passing_over: set[str]) -> list[CheckpointEntry]:
    try:
        names = set(filter(_FOLDER_NAME.fullmatch, os.listdir(run_folder.checkpoints))) - passing_over
    except OSError:
        return []
    return [entry for name in names if (entry := unlisted_checkpoint(run_folder.checkpoints / name)) is not None]


def unlisted_checkpoint(folder: Path) -> CheckpointEntry | None:
    """Return the manifest entry of a checkpoint folder without checking its other files, or None if it is none."""
    step = int(folder.name.removeprefix("step-"))
    try:
        if not folder.is_symlink() and read_json_object(folder / STATE_FILE).get("step") == step:
            return CheckpointEntry(f"checkpoints/{folder.name}", step, sha256_of_file(folder / STATE_FILE))
    except (OSError, ValueError):
        pass  # unreadable: not a checkpoint
    return None
