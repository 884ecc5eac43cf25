"""Checkpoint folders: written whole or not at all, and believed only when their hashes fit.

`checkpoints/step-<n>/state.json` holds the worker's state and, under `files`, the SHA-256 of every sibling. The run
manifest holds the SHA-256 of state.json itself. This module knows nothing of tensors.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mosaic_wire.errors import DamagedCheckpoint
from mosaic_wire.files import fsync_directory, json_bytes, read_json_object
from mosaic_wire.manifest import AnalyticsManifest, CheckpointEntry, sha256_of_file
from mosaic_wire.paths import RunFolder

STATE_FILE = "state.json"

_FOLDER_NAME = re.compile(r"step-(0|[1-9][0-9]{0,17})", re.ASCII)
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)


def write_checkpoint(
    run_folder: RunFolder,
    step: int,
    state: Mapping[str, Any],
    files: Mapping[str, bytes] | None = None,
    *,
    kind: str = "periodic",
) -> CheckpointEntry:
    """Write `checkpoints/step-<n>/` under a temporary name, fsync, rename; return its entry for the manifest.

    `state` is a JSON object without the key `files`; large data go into `files` (name to content). A good checkpoint
    of the same step is replaced only by a whole one.
    """
    if (
        step < 0
        or "files" in state
        or any(not _FILE_NAME.fullmatch(name) or name == STATE_FILE for name in files or {})
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
        document = json_bytes({**state, "step": step, "files": hashes}, sealed=True)
        _write_file(temporary / STATE_FILE, document)
        fsync_directory(temporary)
        _put_in_place(temporary, final)
    except BaseException:
        # A full disk must not keep the room that a half-written checkpoint takes.
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
    """Rename; a folder of the same step (a run that was resumed further back) steps aside first."""
    if not final.exists():
        temporary.rename(final)
        return
    aside = final.with_name(f".{final.name}.{secrets.token_hex(6)}.old")
    final.rename(aside)
    temporary.rename(final)
    shutil.rmtree(aside, ignore_errors=True)


def verify_checkpoint(folder: Path, sha256: str) -> str | None:
    """Say what is wrong with a checkpoint folder, or None when every hash fits."""
    try:
        _read_verified(folder, sha256)
    except DamagedCheckpoint as error:
        return str(error)
    return None


def read_checkpoint(folder: Path, sha256: str | None = None) -> dict[str, Any]:
    """Return the state document of a checkpoint whose hashes fit; raise DamagedCheckpoint with the reason.

    Without `sha256` (a folder somebody named by hand) the document's own checksum and its siblings' hashes must fit.
    """
    return _read_verified(folder, sha256)


def _read_verified(folder: Path, sha256: str | None) -> dict[str, Any]:
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
    except OSError as error:
        raise DamagedCheckpoint(f"{error.filename or folder} cannot be read: {error.strerror or error}") from error
    except DamagedCheckpoint:
        raise
    except ValueError as error:
        raise DamagedCheckpoint(str(error)) from error
    return document


def last_good_checkpoint(run_folder: RunFolder) -> CheckpointEntry | None:
    """The newest checkpoint whose hashes fit; bad ones are passed over."""
    return next(good_checkpoints(run_folder), None)


def good_checkpoints(run_folder: RunFolder) -> Iterator[CheckpointEntry]:
    """Every checkpoint whose hashes fit, newest first; each is verified only when it is asked for.

    Those of the manifest, and those that lie in the folder without being listed: a worker that was killed had no time
    to list its last one.
    """
    try:
        listed = AnalyticsManifest.read(run_folder.manifest).checkpoints
    except (OSError, ValueError):
        listed = ()
    # A listed folder that differs from its listing stays refused, however well it fits itself.
    unlisted = _unlisted_checkpoints(run_folder, passing_over={Path(entry.path).name for entry in listed})
    root = run_folder.root.resolve()
    for entry in sorted((*listed, *unlisted), key=lambda entry: entry.step, reverse=True):
        folder = run_folder.root / entry.path
        inside = folder.resolve().is_relative_to(root)  # not through a link
        if inside and verify_checkpoint(folder, entry.sha256) is None:
            yield entry


def _unlisted_checkpoints(run_folder: RunFolder, *, passing_over: set[str]) -> list[CheckpointEntry]:
    try:
        names = set(filter(_FOLDER_NAME.fullmatch, os.listdir(run_folder.checkpoints))) - passing_over
    except OSError:
        return []
    found = []
    for name in names:
        folder, step = run_folder.checkpoints / name, int(name.removeprefix("step-"))
        try:
            digest = sha256_of_file(folder / STATE_FILE)
            if not folder.is_symlink() and read_json_object(folder / STATE_FILE).get("step") == step:
                found.append(CheckpointEntry(f"checkpoints/{name}", step, digest))
        except (OSError, ValueError):
            continue
    return found
