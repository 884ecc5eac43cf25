"""Export finished runs as archives, and import them.

An archive is a `.tar.gz`: `run.json` (the record), `story.jsonl`, `config/`, `run/` (the run folder), `logs/`,
`evals/`, `scripts/`, and last `manifest.json` with size and SHA-256 of every file. tar can unpack it, too.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import secrets as random_tokens
import shutil
import stat
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from mosaic_wire.files import fsync_directory, open_plain, read_json_object, walk
from mosaic_wire.paths import Home, make_private_folder
from mosaic_wire.redaction import spellings_of

from gym_gui.services.trainer.archive_reader import (
    ArchiveLimits,
    ArchiveReader,
    Member,
    open_archive,
    problem_with_name,
)
from gym_gui.services.trainer.archive_records import (
    config_bytes,
    history_bytes,
    read_history,
    read_record,
    record_bytes,
)
from gym_gui.services.trainer.errors import ArchiveRefused, NotPossibleNow
from gym_gui.services.trainer.records import HistoryEvent, RunRecord
from gym_gui.services.trainer.run_files import delete_run_files, remove, size_of_run

__all__ = [
    "ArchiveLimits",
    "ImportedRun",
    "delete_run_files",
    "export_archive",
    "import_archive",
    "remove_leftovers",
    "size_of_run",
]


FORMAT_VERSION = 1
UPLOAD_PREFIX = "import-"
"""Name prefix of an archive that a client is uploading"""
_LEVEL = 3
"""Higher levels compress zeros 1000 to 1, so that the archive would be refused as a zip bomb"""
_FOLDERS = ("run", "logs", "evals", "scripts")
_FILES = ("run.json", "story.jsonl", "manifest.json", "config/config.json", "config/worker.json")
_KEPT_FREE_BYTES = 128 << 20
_MAX_NOTED = 1000
_MANIFEST_BYTES = 256 << 20


# ---------------------------------------------------------------------- export


def export_archive(
    home: Home, record: RunRecord, history: Sequence[HistoryEvent], *, secrets: Iterable[str] = ()
) -> Path:
    """Pack a finished run into a temporary file under the home and return its path; the caller removes it.

    These secrets are masked in every file (a worker may have printed one).
    """
    make_private_folder(home.archive)
    target = home.archive / f".{record.run_id}-{random_tokens.token_hex(8)}.tar.gz.part"
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with (
            os.fdopen(descriptor, "wb") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=_LEVEL) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            _Exporter(tar, secrets).add_run(home, record, history)
    except OSError as error:
        target.unlink(missing_ok=True)
        raise NotPossibleNow(
            f"run {record.run_id} cannot be packed in {home.archive}: {error.strerror or error}"
        ) from error
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return target


class _Exporter:
    """Streams files into a tar archive and records their hashes."""

    def __init__(self, tar: tarfile.TarFile, secrets: Iterable[str]) -> None:
        self._tar = tar
        self._secrets = tuple(secrets)
        self._members: dict[str, dict[str, Any]] = {}
        self._left_out: list[str] = []
        self._headers = 0

    def add_run(self, home: Home, record: RunRecord, history: Sequence[HistoryEvent]) -> None:
        self._add_bytes("run.json", record_bytes(record, self._secrets, home.config_file(record.run_id)))
        self._add_bytes("story.jsonl", history_bytes(history, self._secrets))
        for name, place in home.places_of_run(record.run_id).items():
            if name in _FOLDERS:
                self._add_folder(name, place)
            elif place.is_file() and not place.is_symlink():
                self._add_bytes(name, config_bytes(place, self._secrets))
        manifest = {
            "format": FORMAT_VERSION,
            "run_id": record.run_id,
            "created_at": time.time(),
            "members": self._members,
            "left_out": self._left_out[:_MAX_NOTED],
        }
        self._add_bytes("manifest.json", json.dumps(manifest, indent=1).encode())

    def _add_folder(self, name: str, folder: Path) -> None:
        try:
            status = folder.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(status.st_mode):
            self._leave_out(name, "it is not a folder")
            return
        self._add_header(name, status.st_mtime)
        place = len(os.fspath(folder))

        def has_good_name(entry: os.DirEntry[str]) -> bool:
            return problem_with_name(name + entry.path[place:]) is None

        def failed(error: OSError) -> None:
            self._leave_out(str(error.filename), f"it cannot be read: {error.strerror}")

        # One more than the limit, so that `_count` refuses it.
        for entry in walk(folder, most=ArchiveLimits().members, depth=sys.maxsize, enter=has_good_name, failed=failed):
            member = name + entry.path[place:]
            if (problem := problem_with_name(member)) is not None:
                self._leave_out(member, problem)
            elif entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):  # curves of a run that has just ended are rebuilt
                    self._add_header(member, entry.stat(follow_symlinks=False).st_mtime)
            elif entry.is_file(follow_symlinks=False):
                self._add_file(member, Path(entry.path))
            else:
                self._leave_out(member, "it is a link, socket, pipe or device")

    def _add_header(self, name: str, mtime: float) -> None:
        header = tarfile.TarInfo(name)
        header.type, header.mode, header.mtime = tarfile.DIRTYPE, 0o755, int(mtime)
        self._count(header)
        self._tar.addfile(header)

    def _add_file(self, name: str, path: Path) -> None:
        try:
            stream = open_plain(path)
        except OSError as error:
            self._leave_out(name, f"it cannot be read: {error.strerror}")
            return
        with stream:
            status = os.fstat(stream.fileno())
            self._add_stream(name, stream, status.st_size, int(status.st_mtime))

    def _add_bytes(self, name: str, data: bytes) -> None:
        self._add_stream(name, io.BytesIO(data), len(data), int(time.time()))

    def _add_stream(self, name: str, stream: BinaryIO, size: int, mtime: int) -> None:
        header = tarfile.TarInfo(name)
        header.size, header.mtime, header.mode = size, mtime, 0o644
        self._count(header)
        reader = _MaskingReader(stream, size, self._secrets)
        self._tar.addfile(header, reader)
        self._members[name] = {"size": size, "sha256": reader.sha256.hexdigest()}

    def _count(self, header: tarfile.TarInfo) -> None:
        limits = ArchiveLimits()
        self._headers += 1
        if self._headers >= limits.members or header.size > limits.member_bytes:
            raise OSError(f"{header.name!r} is one file too many, or too large, for an archive")

    def _leave_out(self, name: str, why: str) -> None:
        self._left_out.append(f"{name!r}: {why}")


class _MaskingReader(io.RawIOBase):
    """Reads exactly `size` bytes and hashes them; secrets are replaced by asterisks of the same length."""

    def __init__(self, stream: BinaryIO, size: int, secrets: Iterable[str]) -> None:
        self._stream, self._missing = stream, size
        self._secrets = [text.encode("utf-8", "surrogateescape") for text in spellings_of(secrets)]
        self._overlap = max(map(len, self._secrets), default=1) - 1
        self._buffer = bytearray()
        self.sha256 = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Return only bytes that cannot be the beginning of a secret."""
        while self._missing and (size < 0 or self._ready() < size):
            data = self._stream.read(min(self._missing, 64 * 1024))
            if not data:
                raise OSError("a file became shorter while it was packed")
            self._missing -= len(data)
            self._buffer += data
            for secret in self._secrets:
                if secret in self._buffer:
                    self._buffer = self._buffer.replace(secret, b"*" * len(secret))
        data = bytes(self._buffer[: self._ready() if size < 0 else min(size, self._ready())])
        del self._buffer[: len(data)]
        self.sha256.update(data)
        return data

    def _ready(self) -> int:
        return max(len(self._buffer) - self._overlap, 0) if self._missing else len(self._buffer)


# ---------------------------------------------------------------------- import


@dataclass
class ImportedRun:
    """A run that was unpacked and checked in a staging folder; `commit` moves it into the home."""

    record: RunRecord
    history: tuple[HistoryEvent, ...]
    staging: Path
    _home: Home
    _placed: list[Path] = field(default_factory=list)

    def commit(self, *, replace: bool = False) -> None:
        """Move all files into the home; `replace` first removes leftovers of an interrupted import."""
        places = self._home.places_of_run(self.record.run_id)
        if replace:
            delete_run_files(self._home, self.record.run_id)
        elif taken := [place for place in places.values() if os.path.lexists(place)]:
            raise ArchiveRefused(f"{taken[0]} already exists; delete run {self.record.run_id} first")
        try:
            for name, place in places.items():
                source = self.staging / name
                if source.exists():
                    place.parent.mkdir(parents=True, exist_ok=True)
                    self._placed.append(place)
                    shutil.move(source, place)  # copies if the folder is on another disk
                    fsync_directory(place.parent)
        except OSError as error:
            self.abandon()
            raise ArchiveRefused(f"run {self.record.run_id} cannot be moved into the home: {error.strerror}") from error
        remove(self.staging)

    def abandon(self) -> None:
        """Remove all files, also those that `commit` has moved."""
        for place in self._placed:
            remove(place)
        self._placed.clear()
        remove(self.staging)


def import_archive(path: Path, home: Home, *, limits: ArchiveLimits | None = None) -> ImportedRun:
    """Unpack an archive into a staging folder and check it; on ArchiveRefused nothing is left."""
    staging = _staging_root(home) / random_tokens.token_hex(8)
    try:
        make_private_folder(staging.parent)
        staging.mkdir(mode=0o700)
        hashes = _unpack(path, staging, limits or ArchiveLimits())
        _check_hashes(staging, hashes)
        record = read_record(staging / "run.json")
        history = read_history(staging / "story.jsonl", record.run_id)
        (staging / "run").mkdir(exist_ok=True)
        _flush(staging)
    except OSError as error:
        remove(staging)
        raise ArchiveRefused(f"the archive cannot be unpacked: {error.strerror or error}") from error
    except BaseException:
        remove(staging)
        raise
    return ImportedRun(record, history, staging, home)


def remove_leftovers(home: Home) -> None:
    """Remove files of imports and exports that an earlier daemon did not finish."""
    leftovers = ((_staging_root(home), "*"), (home.archive, ".*.part"), (home.trainer, f"{UPLOAD_PREFIX}*"))
    for folder, pattern in leftovers:
        for leftover in folder.glob(pattern) if folder.is_dir() else ():
            with contextlib.suppress(OSError):
                remove(leftover)


def _staging_root(home: Home) -> Path:
    return home.trainer / "imports"


def _unpack(path: Path, staging: Path, limits: ArchiveLimits) -> dict[str, dict[str, Any]]:
    """Write the members into the staging folder; return the size and hash of each file."""
    hashes: dict[str, dict[str, Any]] = {}
    with open_archive(path) as packed:
        reader = ArchiveReader(packed, limits)
        for member in reader.members():
            _check_name(member)
            target = staging / member.name
            if member.is_folder:
                target.mkdir(parents=True, exist_ok=True)
                continue
            _check_free_space(staging, member)
            target.parent.mkdir(parents=True, exist_ok=True)
            hashes[member.name] = {"size": member.size, "sha256": _write(target, reader.content(member))}
    return hashes


def _write(target: Path, content: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    # O_EXCL and O_NOFOLLOW: no member can write through another one, whatever the checks above missed.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(target, flags, 0o644), "wb") as stream:
        for data in content:
            digest.update(data)
            stream.write(data)
    return digest.hexdigest()


def _flush(staging: Path) -> None:
    """Write everything to disk, so that the run survives a power failure."""
    for path in staging.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        else:
            fsync_directory(path)


def _check_name(member: Member) -> None:
    top = member.name.partition("/")[0]
    known = (member.name == "config" or top in _FOLDERS) if member.is_folder else member.name in _FILES
    inside = not member.is_folder and top in _FOLDERS and "/" in member.name
    if not (known or inside):
        raise ArchiveRefused(f"{member.name!r} does not belong in the archive of a run")


def _check_free_space(staging: Path, member: Member) -> None:
    if shutil.disk_usage(staging).free < member.size + _KEPT_FREE_BYTES:
        raise ArchiveRefused(
            f"the disk has no space for {member.name!r} ({member.size} bytes); free some and import again"
        )


def _check_hashes(staging: Path, hashes: dict[str, dict[str, Any]]) -> None:
    hashes.pop("manifest.json", None)
    try:
        manifest = read_json_object(staging / "manifest.json", max_bytes=_MANIFEST_BYTES)
    except FileNotFoundError:
        raise ArchiveRefused("the archive has no manifest.json: it is not a run exported by MOSAIC") from None
    except ValueError as error:
        raise ArchiveRefused(f"the archive's manifest.json is damaged: {error}") from None
    if manifest.get("format") != FORMAT_VERSION:
        raise ArchiveRefused(f"the archive has format {manifest.get('format')!r}, this MOSAIC reads {FORMAT_VERSION}")
    listed = manifest.get("members")
    if not isinstance(listed, dict):
        raise ArchiveRefused("the archive's manifest.json lists no members")
    for name in sorted(listed.keys() ^ hashes.keys()):
        what = "is missing from the archive" if name in listed else "is not in the archive's manifest"
        raise ArchiveRefused(f"{name[:200]!r} {what}")
    for name, found in hashes.items():
        if listed[name] != found:
            raise ArchiveRefused(f"{name!r} was damaged or changed: its hash differs from the manifest's")
