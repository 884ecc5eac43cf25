"""Files of runs for clients: the run's own folders on the daemon's machine, elsewhere copies in a bounded cache.

    run = client.local(run, *DOCUMENTS, "run/videos/*")     its `run_dir` and `logs_dir` are on this machine now

The copies are laid out as a home, so that whatever reads a run's files reads them here, too.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import translate
from io import BufferedRandom
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from mosaic_wire.files import size_below
from mosaic_wire.paths import Home, cache_home, make_private_folder
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.services.trainer.errors import TrainerError
from gym_gui.services.trainer.local_daemon import read_token, running_record
from gym_gui.wording import formats

if TYPE_CHECKING:
    from gym_gui.services.trainer.client import TrainerClient

DOCUMENTS = ("config/*", "run/analytics.json", "run/exit.json", "run/smoke.json")
STUDY = (*DOCUMENTS, "run/study.*")
LOGS = ("run/lifecycle.jsonl", "logs/*", "run/logs/*")
SCRIPTS = ("run/scripts/*",)

CACHE_BYTES = 4 << 30
_UNFETCHED = 0
"""Mode of a file that is listed here but was not fetched: it has the size and the time, and cannot be opened"""


class RunCopies:
    """Gives the files of a daemon's runs a place on this machine."""

    def __init__(self, client: TrainerClient, token: str, *, limit_bytes: int = CACHE_BYTES) -> None:
        self._client, self._token, self._limit = client, token, limit_bytes
        # The token is the home's own, whatever address it is reached by.
        self.home = Home(cache_home() / "runs" / hashlib.sha256(token.encode()).hexdigest()[:16])
        self._is_here: bool | None = True if client.target.startswith("unix:") else None

    @property
    def is_here(self) -> bool:
        """Return whether the daemon's home is on this machine and this user's; the first time it asks the daemon."""
        if self._is_here is None:
            home = Home(Path(self._client.health().home))
            try:  # Behind a tunnel a home of the same path may be another one: it has another token.
                self._is_here = running_record(home) is not None and read_token(home) == self._token
            except (TrainerError, OSError):
                self._is_here = False
        return self._is_here

    def local(self, run: pb.Run, *patterns: str, listed: Sequence[str] = ()) -> pb.Run:
        """Return the run with folders on this machine, in which files that match a pattern are up to date.

        Files that match only `listed` have their name, size and time, and no content. Callable from any thread.
        """
        if self.is_here:
            return run
        self.refresh(run.run_id, patterns, listed)
        return self.moved(run)

    def moved(self, run: pb.Run) -> pb.Run:
        """Return the run with the folders of its copies, as they are."""
        if self._is_here:
            return run
        here = pb.Run()
        here.CopyFrom(run)
        here.run_dir, here.logs_dir = str(self.home.run_folder(run.run_id).root), str(self.home.run_logs(run.run_id))
        return here

    def name_of(self, run_id: str, path: Path) -> str:
        """Return the daemon's name for a copy, as a pattern that matches nothing else."""
        for place, top in self.home.places_of_run(run_id).items():
            if path.is_relative_to(top):
                return glob.escape(place if path == top else f"{place}/{path.relative_to(top).as_posix()}")
        raise ValueError(f"{path} is no copy of a file of run {run_id}")

    def refresh(self, run_id: str, patterns: Sequence[str], listed: Sequence[str] = ()) -> None:
        """Fetch what has changed of the files that match; remove copies of files that are gone."""
        chosen = re.compile("|".join(map(translate, patterns)) if patterns else "(?!)").match
        try:
            with self._locked(run_id):
                answer = self._client.list_files(run_id, [*patterns, *listed])
                places = self.home.places_of_run(run_id)
                files = {_place(places, file.path): file for file in answer.files}
                if not answer.is_cut:
                    self._remove_others(places, set(files), [*patterns, *listed])
                outdated = {}
                for path, file in files.items():
                    if _is_fetched(path) and (_is_same(path, file) or not chosen(file.path)):
                        continue  # an earlier content is still better than none
                    if chosen(file.path):
                        outdated[path] = file
                    elif not _is_same(path, file):
                        _put_unfetched(path, file)
                if outdated:
                    self._make_room(run_id, sum(file.size for file in outdated.values()))
                    self._fetch(run_id, outdated)
                with suppress(FileNotFoundError):
                    os.utime(places["run"])  # used now: copies of other runs are removed first
        except OSError as error:
            raise TrainerError(f"the copies of files under {self.home.root} cannot be written: {error}") from error

    def _fetch(self, run_id: str, outdated: dict[Path, pb.RunFile]) -> None:
        left, failures = outdated, []
        for is_first in (True, False):  # a file that was replaced meanwhile is read once more, from its beginning
            paths = {file.path: path for path, file in left.items()}
            parts = {
                name: _Part(self._part(run_id, name), path if is_first else None, path) for name, path in paths.items()
            }
            for piece in self._client.read_files(run_id, {name: part.size for name, part in parts.items()}):
                part = parts[piece.path]
                if piece.problem:
                    part.path.unlink(missing_ok=True)
                    if piece.problem != os.strerror(2):  # removed since it was listed
                        failures.append(f"{piece.path}: {piece.problem}")
                else:
                    part.add(piece)
                if piece.problem or part.is_complete:
                    del left[paths[piece.path]]
            if not left:
                break
        failures += [f"{file.path} changes faster than it can be read" for file in left.values()]
        if failures:
            raise TrainerError(f"files of run {run_id} cannot be fetched: {'; '.join(failures[:3])}")

    def _part(self, run_id: str, name: str) -> Path:
        return self.home.cache / f"{run_id}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.part"

    def _remove_others(self, places: dict[str, Path], present: set[Path], patterns: Sequence[str]) -> None:
        """Remove copies that match a pattern and are no longer there."""
        matches = re.compile("|".join(map(translate, patterns))).match
        for place, top in places.items():
            for path in [top] if "." in place else [*top.rglob("*")]:
                name = place if "." in place else f"{place}/{path.relative_to(top).as_posix()}"
                if path not in present and matches(name) and path.is_file():
                    path.unlink()
                    with suppress(OSError):
                        path.parent.rmdir()

    def _make_room(self, run_id: str, needed: int) -> None:
        """Remove the copies of runs that were not used for longest until there is room."""
        if needed > self._limit:
            raise TrainerError(
                f"{formats.size(needed)} of files of run {run_id} are on the daemon's machine, and at most "
                f"{formats.size(self._limit)} are copied; `mosaic export {run_id}` brings the whole run"
            )
        runs = sorted(self.home.runs.glob("*"), key=lambda folder: folder.stat().st_mtime)
        copies = {run.name: self._copies_of(run.name) for run in runs}
        sizes = {other: sum(map(_size_on_disk, paths)) for other, paths in copies.items()}
        used = sum(sizes.values())
        for other, paths in copies.items():
            if used + needed <= self._limit:
                return
            if other != run_id:
                used -= sizes[other]
                for path in paths:
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def _copies_of(self, run_id: str) -> list[Path]:
        return [*self.home.places_of_run(run_id).values(), *self.home.cache.glob(f"{run_id}-*.part")]

    @contextmanager
    def _locked(self, run_id: str) -> Iterator[None]:
        """Keep other windows and commands of this user from writing the same copies."""
        for folder in (self.home.root, self.home.cache):
            make_private_folder(folder)
        with open(self.home.cache / f"{run_id}.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class _Part:
    """A file that is being fetched; what an earlier attempt left, or the beginning of a file that grew, is kept."""

    def __init__(self, path: Path, beginning: Path | None, target: Path) -> None:
        self.path, self._target = path, target
        if not path.exists() and beginning is not None and _is_fetched(beginning):
            shutil.copyfile(beginning, path)
        self.size = path.stat().st_size if path.exists() else 0
        self.is_complete = False

    def add(self, piece: pb.FilePiece) -> None:
        """Append a piece; after the last one the file takes its place if its hash is right."""
        with open(self.path, "r+b" if self.path.exists() else "x+b") as stream:
            if piece.offset > self.size:
                raise TrainerError(f"the daemon left out a part of {piece.path}")
            stream.truncate(piece.offset)
            stream.seek(piece.offset)
            stream.write(piece.data)
            self.size = stream.tell()
            if piece.sha256:
                self._finish(stream, piece)

    def _finish(self, stream: BufferedRandom, piece: pb.FilePiece) -> None:
        stream.flush()
        stream.seek(0)
        self.is_complete = hashlib.file_digest(stream, "sha256").hexdigest() == piece.sha256
        if not self.is_complete:
            self.path.unlink()
            return
        self._target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.utime(self.path, ns=(piece.modified_ns, piece.modified_ns))
        os.chmod(self.path, 0o600)
        os.replace(self.path, self._target)


def _place(places: dict[str, Path], name: str) -> Path:
    """Return where a file of the daemon lies here; it must not name a place elsewhere."""
    place, _, rest = name.partition("/")
    if name in places:
        return places[name]
    if place not in places or not rest or rest.startswith("/") or ".." in PurePosixPath(rest).parts or "\0" in rest:
        raise TrainerError(f"the daemon named a file outside of the run: {name!r}")
    return places[place] / rest


def _is_same(path: Path, file: pb.RunFile) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return (status.st_size, status.st_mtime_ns) == (file.size, file.modified_ns)


def _is_fetched(path: Path) -> bool:
    return path.exists() and path.stat().st_mode & 0o777 != _UNFETCHED


def _put_unfetched(path: Path, file: pb.RunFile) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with open(path, "xb") as stream:
        stream.truncate(file.size)
    os.chmod(path, _UNFETCHED)
    os.utime(path, ns=(file.modified_ns, file.modified_ns))


def _size_on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512 if path.is_file() else size_below(path)
