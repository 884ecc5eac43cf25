"""Files between a run's folders here and its node: what the run starts from, and what the node sends.

Everything that comes from a node is untrusted: names, sizes, order and content.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from mosaic_wire.files import NotAPlainFile, open_plain, walk
from mosaic_wire.ids import is_run_id
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.services.trainer.errors import NotPossibleNow, RegistryUnwritable

PLACES = ("run", "logs", "evals")
"""The folders of a run that its node writes; config and scripts are the daemon's"""
MAX_ENTRIES = 20_000
_OWN = "metrics"
"""The folder of a run that the daemon writes itself"""
_NOT_NEEDED = frozenset({_OWN, "videos", "wandb"})
"""Folders of an earlier attempt that no later one reads"""
_MAX_DEPTH, _MAX_NAME_BYTES = 32, 200
_READ_BYTES = 1 << 20
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT)


def inputs_of(home: Home, run_id: str, worker_config: Mapping[str, Any], *, attempt: int) -> list[pb.RunFile]:
    """Return the files that a run starts from: checkpoints and scripts of this home, and its earlier attempt.

    A path is `<run id>/<place>/<name>`.
    """
    tops = [Path(text) for text in _texts(worker_config.get("extras")) if os.path.isabs(text)]
    if attempt > 1:
        tops += [home.run_folder(run_id).root, home.run_logs(run_id)]
    found: dict[str, pb.RunFile] = {}
    for top in tops:
        if (place := _place_of(home, top)) is None:
            continue
        is_own = top == home.run_folder(run_id).root
        for path, status in _plain_files(top, skip=_NOT_NEEDED if is_own else frozenset()):
            name = "/".join(filter(None, (place, os.path.relpath(path, top) if path != str(top) else "")))
            found[name] = pb.RunFile(path=name, size=status.st_size, modified_ns=status.st_mtime_ns)
            if len(found) > MAX_ENTRIES:
                raise NotPossibleNow(f"run {run_id} starts from more than {MAX_ENTRIES} files; too many for a node")
    return list(found.values())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for item in items:
        yield from _texts(item)


def _place_of(home: Home, path: Path) -> str | None:
    """Return the name of a path in a run's folders, or None for every other path."""
    for top, place in ((home.runs, "run"), (home.root / "logs" / "trainer", "logs"), (home.custom_scripts, "scripts")):
        if path.is_relative_to(top) and ".." not in path.parts and (parts := path.relative_to(top).parts):
            run_id, *rest = parts
            return "/".join((run_id, place, *rest)) if is_run_id(run_id) else None
    return None


def _plain_files(top: Path, *, skip: frozenset[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files at or below a path."""
    with suppress(OSError):
        if not top.is_dir():
            status = top.lstat()
            if not top.is_symlink() and top.is_file():
                yield str(top), status
            return
    for entry in walk(top, most=MAX_ENTRIES + 1, enter=lambda entry: os.path.relpath(entry.path, top) not in skip):
        with suppress(OSError):
            if entry.is_file(follow_symlinks=False):
                yield entry.path, entry.stat(follow_symlinks=False)


class NodeFiles:
    """Writes what the node of a run sends, below the run's folders only and never through a link.

    Not for several threads at once.
    """

    def __init__(self, home: Home, run_id: str, *, max_bytes: float, min_free_bytes: int) -> None:
        self._home, self._run_id = home, run_id
        self._max_bytes, self._min_free_bytes = max_bytes, min_free_bytes
        self._used: tuple[int, int] | None = None  # bytes and entries; measured once
        self._hashes: dict[str, tuple[int, Any]] = {}
        """Of files that are being received: bytes so far, and their running hash"""

    def put(self, piece: pb.FilePiece) -> int:
        """Write a piece; return how many bytes of the file are here, where the next piece has to begin.

        Raise NotPossibleNow for a piece that is refused for good, RegistryUnwritable while the disk is full.
        """
        self._require_room(len(piece.data))
        try:
            with self._folder(piece.path, make=True) as (folder, name):
                return self._append(folder, name, piece) if piece.grows else self._replace(folder, name, piece)
        except NotAPlainFile as error:
            raise NotPossibleNow(f"{piece.path} {error.strerror}") from None
        except OSError as error:
            if error.errno in _FULL:
                raise RegistryUnwritable(f"the disk under {self._home.runs} is full") from None
            raise NotPossibleNow(f"{piece.path} cannot be written: {error.strerror}") from None

    def remove(self, path: str) -> None:
        """Remove a file that the node no longer has, and folders that are empty without it."""
        self._hashes.pop(path, None)
        try:
            with self._folder(path, make=False) as (folder, name):
                for each in (name, _beside(name)):
                    with suppress(FileNotFoundError):
                        size = os.lstat(each, dir_fd=folder).st_size
                        os.unlink(each, dir_fd=folder)
                        self._count(-size, -int(each == name))
                inside = f"/proc/self/fd/{folder}"
                with suppress(OSError):  # not empty, or a place itself
                    if Path(os.readlink(inside)) not in self._home.places_of_run(self._run_id).values():
                        os.rmdir(os.readlink(inside))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise NotPossibleNow(f"{path} cannot be removed: {error.strerror}") from None

    # -- one file

    def _append(self, folder: int, name: str, piece: pb.FilePiece) -> int:
        """Continue a file in its place."""
        try:
            stream = open_plain(name, "r+b", dir_fd=folder)
        except FileNotFoundError:
            return 0
        with stream:
            size = stream.seek(0, os.SEEK_END)
            # A log that reached its cap was truncated here, not on the node.
            is_capped = size < piece.offset and name.endswith(".log")
            if piece.offset != size and not is_capped:
                return size
            stream.write(piece.data)
            self._count(len(piece.data), 0)
            if piece.sha256:
                stream.flush()
                os.fsync(stream.fileno())
                if _sha256_of(stream) != piece.sha256:
                    return 0
        return piece.offset + len(piece.data)

    def _replace(self, folder: int, name: str, piece: pb.FilePiece) -> int:
        """Continue a new version of a file beside it; the last piece puts it in its place if the hash is right."""
        beside = _beside(name)
        try:
            stream = open_plain(beside, "w+b" if piece.offset == 0 else "r+b", dir_fd=folder)
        except FileNotFoundError:
            return 0
        with stream:
            size = stream.seek(0, os.SEEK_END)
            if piece.offset != size:
                return size
            hashed, running = self._hashes.pop(piece.path, (0, hashlib.sha256()))
            if hashed != piece.offset:
                running = hashlib.sha256()
                stream.seek(0)
                while data := stream.read(_READ_BYTES):
                    running.update(data)
            stream.write(piece.data)
            running.update(piece.data)
            self._count(len(piece.data), 0)
            if not piece.sha256:
                self._hashes[piece.path] = size + len(piece.data), running
                return size + len(piece.data)
            stream.flush()
            os.fsync(stream.fileno())
            if running.hexdigest() != piece.sha256:
                os.unlink(beside, dir_fd=folder)
                self._count(-size - len(piece.data), 0)
                return 0
            os.utime(stream.fileno(), ns=(piece.modified_ns, piece.modified_ns))
        earlier, is_new = 0, 1
        with suppress(FileNotFoundError):
            earlier, is_new = os.lstat(name, dir_fd=folder).st_size, 0
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        self._count(-earlier, is_new)
        return size + len(piece.data)

    # -- where

    @contextmanager
    def _folder(self, path: str, *, make: bool) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the file's folder, and its name there; create missing folders."""
        place, *folders, name = self._checked(path)
        top = self._home.places_of_run(self._run_id)[place]
        if make:
            top.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ExitStack() as stack:
            inner = os.open(top, _FOLDER)
            stack.callback(os.close, inner)
            for folder in folders:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(folder, 0o700, dir_fd=inner)
                        self._count(0, 1)
                try:
                    inner = os.open(folder, _FOLDER, dir_fd=inner)
                except NotADirectoryError:
                    raise NotAPlainFile(path, "lies behind a link or a file") from None
                stack.callback(os.close, inner)
            yield inner, name

    def _checked(self, path: str) -> list[str]:
        """Return the parts of a name as nodes write it; raise NotPossibleNow for one outside of the run's folders."""
        place, *rest = parts = path.split("/")
        problem = ""
        if place not in PLACES or not rest:
            problem = f"a node writes files of {', '.join(PLACES)}"
        elif any(part in ("", ".", "..") or not part.isprintable() for part in rest):
            problem = "it is not the name of a file below them"
        elif len(rest) > _MAX_DEPTH or max(len(part.encode()) for part in rest) > _MAX_NAME_BYTES:
            problem = f"it is longer than {_MAX_NAME_BYTES} bytes or deeper than {_MAX_DEPTH} folders"
        elif (place, rest[0]) == ("run", _OWN) or rest[-1] == _beside(rest[-1][1:-7]):
            problem = "it is one that the daemon writes itself"
        if problem:
            raise NotPossibleNow(f"the file {path[:200]!r} is refused: {problem}")
        return parts

    def _require_room(self, size: int) -> None:
        """Raise RegistryUnwritable when the disk would be too full, NotPossibleNow when the run has too many files."""
        used, entries = self._measured()
        if used + size > self._max_bytes or entries >= MAX_ENTRIES:
            raise NotPossibleNow(
                f"the files of run {self._run_id} are more than {self._max_bytes / 2**30:g} GB (run_gb in [nodes]) or "
                f"{MAX_ENTRIES} files; the rest stays on the node"
            )
        if shutil.disk_usage(self._home.runs).free - size < self._min_free_bytes:
            raise RegistryUnwritable(
                f"{self._min_free_bytes >> 20} MB of disk must stay free under {self._home.runs}; make some"
            )

    def _measured(self) -> tuple[int, int]:
        if self._used is None:
            places = self._home.places_of_run(self._run_id)
            sizes = [status.st_size for place in PLACES for _, status in _plain_files(places[place], skip=frozenset())]
            self._used = sum(sizes), len(sizes)
        return self._used

    def _count(self, size: int, entries: int) -> None:
        used, known = self._measured()
        self._used = max(0, used + size), max(0, known + entries)


def _beside(name: str) -> str:
    """Return the name of a new version of a file until it is complete."""
    return f".{name}.upload"


def _sha256_of(stream: Any) -> str:
    stream.seek(0)
    return hashlib.file_digest(stream, "sha256").hexdigest()
