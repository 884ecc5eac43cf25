"""The files of a run: list, read, measure and remove them without following links."""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire.files import open_below, open_plain, size_below, walk
from mosaic_wire.frames import remove_frames
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import Home

from gym_gui.services.trainer.errors import NotPossibleNow

MAX_LISTED = 20_000
_PIECE_BYTES = 512 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class RunFile:
    """A file of a run, by its name as clients write it: `run/analytics.json`, `config/config.json`."""

    path: str
    size: int
    modified_ns: int


def list_run_files(home: Home, run_id: str, patterns: Collection[str] = ()) -> tuple[list[RunFile], bool]:
    """Return the plain files of a run that match one of the patterns (none: all), and whether there are more."""
    matches = re.compile("|".join(map(fnmatch.translate, patterns or ("*",)))).match
    found: list[RunFile] = []
    for place, path in home.places_of_run(run_id).items():
        if "." in place:
            entries: Iterable[tuple[str, os.stat_result]] = [(place, path.lstat())] if os.path.lexists(path) else []
        elif path.is_symlink() or not any(_may_match(pattern, place) for pattern in patterns or ("*",)):
            continue
        else:
            entries = _entries_below(path, place)
        for name, status in entries:
            if stat.S_ISREG(status.st_mode) and matches(name) and name.isprintable():
                if len(found) >= MAX_LISTED:
                    return found, True
                found.append(RunFile(name, status.st_size, status.st_mtime_ns))
    return found, False


def _may_match(pattern: str, place: str) -> bool:
    fixed = re.split("[*?[]", pattern, maxsplit=1)[0]
    return fixed.startswith(f"{place}/") or f"{place}/".startswith(fixed)


def _entries_below(top: Path, place: str) -> Iterator[tuple[str, os.stat_result]]:
    for entry in walk(top, most=MAX_LISTED):
        with suppress(OSError):
            yield f"{place}/{os.path.relpath(entry.path, top)}", entry.stat(follow_symlinks=False)


class RunFileReader:
    """Reads one file of a run in pieces, as far as it reached when it was opened; `sha256` covers all of that."""

    def __init__(self, home: Home, run_id: str, name: str, offset: int) -> None:
        place, _, rest = name.partition("/")
        places = home.places_of_run(run_id)
        if not (name in places or (place in places and rest)):
            raise NotPossibleNow(f"{name!r} is no file of a run; its place is one of {', '.join(places)}")
        self.path = places[name] if name in places else places[place] / rest
        self._stream = open_plain(self.path) if name in places else open_below(places[place], rest)
        status = os.fstat(self._stream.fileno())
        self.size, self.modified_ns, self._hash = status.st_size, status.st_mtime_ns, hashlib.sha256()
        self.offset = offset if 0 <= offset <= self.size else 0
        self._position = 0

    def read(self) -> bytes:
        """Return the next piece; empty at the end. What lies before the offset is only hashed."""
        while self._position < self.size:
            data = self._stream.read(min(_PIECE_BYTES, self.size - self._position))
            if not data:
                raise NotPossibleNow(f"{self.path} was truncated while it was read; read it again")
            self._hash.update(data)
            begin, self._position = self._position, self._position + len(data)
            if self._position > self.offset:
                data = data[max(0, self.offset - begin) :]
                self.offset += len(data)
                return data
        return b""

    @property
    def sha256(self) -> str:
        """Return the hash of what was read; empty before the end."""
        return self._hash.hexdigest() if self._position == self.size else ""

    def close(self) -> None:
        self._stream.close()


def size_of_run(home: Home, run_id: str) -> int:
    """Return the bytes of all files of a run."""
    return sum(_size(path) for path in home.places_of_run(run_id).values())


def last_checkpoint_step(home: Home, run_id: str) -> int:
    """Return the highest step of the checkpoints in its manifest, or 0."""
    manifest = AnalyticsManifest.find(home.run_folder(run_id).manifest)
    return max((entry.step for entry in manifest.checkpoints), default=0) if manifest is not None else 0


def delete_run_files(home: Home, run_id: str) -> int:
    """Remove every file of a run and its frames in shared memory; return the bytes freed on the disk.

    Its parts are first renamed, so that a deletion that fails or is cut short leaves no half of a run. It can be asked
    for again: parts that are not there are skipped.
    """
    asides = {place: place.with_name(f".{place.name}.removed") for place in home.places_of_run(run_id).values()}
    freed = 0
    try:
        for place in (*asides, *asides.values()):
            _refuse_mounts(place)
            freed += _size(place)
        for aside in asides.values():
            remove(aside)
        _rename(asides)
        remove_frames(run_id)
        for aside in asides.values():
            remove(aside)
    except OSError as error:
        raise NotPossibleNow(
            f"run {run_id} cannot be deleted: {error.filename or 'its files'}: {error.strerror or error}"
        ) from error
    return freed


def _rename(names: dict[Path, Path]) -> None:
    """Rename all of these that exist, or none."""
    done = []
    try:
        for old, new in names.items():
            with suppress(FileNotFoundError, NotADirectoryError):
                old.rename(new)
                done.append(old)
    except OSError:
        for old in done:
            names[old].rename(old)
        raise


def _refuse_mounts(path: Path) -> None:
    """Raise OSError when something is mounted on the path or below it; device numbers do not show bind mounts."""
    top = os.path.join(os.path.realpath(path.parent), path.name)
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        point = os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), line.split()[4]))
        if point == top or point.startswith(f"{top}/"):
            raise OSError(errno.EBUSY, "something is mounted there; unmount it first", point)


def remove(path: Path) -> None:
    """Remove a file, a link (not its target) or a whole folder, if it exists."""
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return
    except (IsADirectoryError, PermissionError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise
        _refuse_mounts(path)
        path.chmod(0o700)  # a worker may have removed the permissions
        top = os.open(path, _FOLDER)
        try:
            while names := os.listdir(top):
                for name in names:
                    _remove_from(top, name)
        finally:
            os.close(top)
        path.rmdir()


def _remove_from(top: int, name: str) -> None:
    """Remove an entry of a folder; subfolders are first moved up, so that no path becomes too long."""
    if _is_unlinked(top, name):
        return
    folder = os.open(name, _FOLDER, dir_fd=top)
    try:
        for inner in os.listdir(folder):
            if not _is_unlinked(folder, inner):
                os.rename(inner, f"{secrets.token_hex(8)}.removed", src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=top)


def _is_unlinked(folder: int, name: str) -> bool:
    """Unlink an entry that is not a folder and return True; make a folder accessible otherwise."""
    try:
        if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
            os.chmod(name, 0o700, dir_fd=folder)
            return False
        os.unlink(name, dir_fd=folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{os.readlink(f'/proc/self/fd/{folder}')}/{name}") from error
    return True


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return 0
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size_below(path)
