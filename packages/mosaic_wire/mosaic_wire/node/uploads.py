"""Sends what a worker writes on a node to the daemon: logs as they grow, other files when they are complete.

The files here are the spool. A call that fails is made again, and the daemon's answer has the offset where each file
continues, so nothing is lost or doubled by a broken link, a restarted daemon or a lost answer.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire.files import open_plain, walk
from mosaic_wire.node.calls import DaemonAway, DaemonCalls, Refused
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as messages

PLACES = ("run", "logs", "evals")
INTERVAL_S = 1.0
_EVENTS = "run/lifecycle.jsonl"
_EVENT_POLL_S = 0.1
_KEEPALIVE_S = 2.0
_PIECE_BYTES = 512 * 1024
_REQUEST_BYTES = 1 << 20
_MAX_PIECES = 200
_MAX_ENTRIES = 40_000
"""More than a daemon accepts, which refuses the rest by name"""
_MAX_PRINTED = 20
_SETTLED_S = 1.0
"""A file that was written to more recently is probably incomplete"""
_LONGEST_RETRY_S = 5.0
_LAST = ("run/analytics.json", "run/exit.json")
"""They name other files, so they are sent after them"""
_TEMPORARY = (".tmp", ".upload")


def grows(name: str) -> bool:
    """Return whether a file of this name is written from front to end over a long time."""
    return name.endswith((".log", ".jsonl", ".csv", ".wandb")) or ".tfevents." in name.rpartition("/")[2]


@dataclass
class _Known:
    """What the daemon has of a file."""

    path: Path
    inode: int
    size: int
    modified_ns: int
    is_verified: bool
    """Whether the hash of all of it was compared"""
    is_refused: bool = False


@dataclass(frozen=True)
class _Found:
    """A file here."""

    name: str
    path: Path
    status: os.stat_result


class _Version:
    """One version of a file that is being sent from its beginning."""

    def __init__(self, found: _Found) -> None:
        self.found = found
        self._stream = open_plain(found.path)
        status = os.fstat(self._stream.fileno())
        self.inode, self.size, self.modified_ns = _identity(status)
        self._offset, self._hash = 0, hashlib.sha256()

    def piece(self) -> messages.FilePiece:
        """Return the next piece; raise OSError when the file was truncated meanwhile."""
        self._stream.seek(self._offset)
        data = self._stream.read(min(_PIECE_BYTES, self.size - self._offset))
        if not data and self._offset < self.size:
            raise OSError(f"{self.found.path} was truncated while it was read")
        complete = self._hash.copy()
        complete.update(data)
        is_last = self._offset + len(data) == self.size
        return messages.FilePiece(
            path=self.found.name,
            offset=self._offset,
            data=data,
            size=self.size,
            modified_ns=self.modified_ns,
            sha256=complete.hexdigest() if is_last else "",
        )

    def continue_at(self, offset: int) -> None:
        """Let the next piece begin at this offset, which the daemon answered."""
        if not self._offset <= offset <= self.size:
            self._offset, self._hash = 0, hashlib.sha256()
            offset = offset if 0 <= offset <= self.size else 0
        self._stream.seek(self._offset)
        while self._offset < offset:
            data = self._stream.read(min(_PIECE_BYTES, offset - self._offset))
            if not data:
                raise OSError(f"{self.found.path} was truncated while it was read")
            self._hash.update(data)
            self._offset += len(data)

    def is_of(self, found: _Found) -> bool:
        """Return whether this is the version of a file that was found now."""
        return (self.found.path, self.inode, self.size, self.modified_ns) == (found.path, *_identity(found.status))

    def close(self) -> None:
        self._stream.close()


class FileUploads:
    """Follows a run's folders in a home of this node; `start`, and `finish` when the worker has ended."""

    def __init__(self, calls: DaemonCalls, home: Home, run_id: str) -> None:
        self._calls = calls
        self._places = {name: path for name, path in home.places_of_run(run_id).items() if name in PLACES}
        self._known: dict[str, _Known] = {}
        self._version: _Version | None = None
        """The file that is being sent whole; kept while the daemon is away"""
        self._begun: set[str] = set()
        """Files of which the daemon may have a part of a version"""
        self._missing: dict[str, float] = {}
        """Files that were removed here, and since when the daemon has to remove them"""
        self._called_at = float("-inf")
        self._problem = ""
        self._ending, self._aborting = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="mosaic-uploads", daemon=True)
        self.stop_requested = threading.Event()
        """Set when the daemon ends the run, or no longer expects this node"""
        self.frame_interval_s = 0.0
        """Interval between frames that a viewer requested; 0: no viewer"""
        self.is_preparing = True
        """Whether the worker was not started yet"""
        self.is_complete = False
        """Whether the daemon has confirmed everything but what it refused"""
        self.refused: list[str] = []
        """Why the daemon refused files"""
        self.refusal = ""
        """Why the daemon no longer expects this node"""

    def know(self, name: str, size: int) -> None:
        """Note that the daemon has this much of a file here, as of one that came from it."""
        status = (path := self._path_of(name)).stat()
        self._known[name] = _Known(path, status.st_ino, size, status.st_mtime_ns, is_verified=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def finish(self, abort: threading.Event) -> bool:
        """Send the rest, however long the daemon is away; return whether it has everything. `abort` gives up."""
        self._ending.set()
        while self._thread.is_alive() and not abort.is_set():
            self._thread.join(0.2)
        self._aborting.set()
        self._thread.join(1)
        return self.is_complete

    # -- in the thread

    def _run(self) -> None:
        retry_s = 0.2
        while not self._aborting.is_set():
            is_last = self._ending.is_set()  # what the worker wrote before its end is found from here on
            try:
                is_idle = self._send_changes(is_last=is_last)
                retry_s, self._problem = 0.2, ""
            except (DaemonAway, OSError) as error:  # OSError: a file was removed while it was read
                if str(error) != self._problem:
                    self._problem = str(error)
                    print_message(f"files cannot be sent now, will retry: {error}")
                self._aborting.wait(retry_s)
                retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
                continue
            except Refused as error:
                self.refusal = str(error)
                self.stop_requested.set()
                return
            if is_idle and is_last:
                self.is_complete = True
                return
            if is_idle:
                self._wait_for_event()

    def _wait_for_event(self) -> None:
        """Wait for the next pass, at most until the worker has written an event."""
        lifecycle, until = self._path_of(_EVENTS), time.monotonic() + INTERVAL_S
        known = self._known.get(_EVENTS)
        while time.monotonic() < until and not self._ending.wait(min(_EVENT_POLL_S, INTERVAL_S)):
            with suppress(FileNotFoundError):
                if lifecycle.stat().st_size != (known.size if known is not None else 0):
                    return

    def _send_changes(self, *, is_last: bool) -> bool:
        """Send what has changed; return whether there was nothing. At the end compare hashes of what grew, too."""
        changed, removed = self._changes(is_last=is_last)
        self._send_growing(changed)
        sent_at = time.monotonic()
        for found in sorted(changed, key=self._order):
            if not self._continues(found):
                for _ in self._send_version(found):
                    if time.monotonic() - sent_at > INTERVAL_S:
                        self._send_growing(self._changes(is_last=False)[0])
                        sent_at = time.monotonic()
        if removed:
            self._call([], removed)
            for name in removed:
                self._known.pop(name, None)
                self._begun.discard(name)
                self._missing.pop(name, None)
        if changed or self._missing:
            return False
        if time.monotonic() - self._called_at > _KEEPALIVE_S:
            self._call([], [])
        return not is_last or self._verify()

    def _order(self, found: _Found) -> tuple[bool, bool, str]:
        """Sort what was begun first, and what names other files last."""
        is_begun = self._version is not None and self._version.is_of(found)
        return not is_begun, found.name in _LAST, found.name

    def _changes(self, *, is_last: bool) -> tuple[list[_Found], list[str]]:
        """Return files that differ from what the daemon has, and those it has to remove.

        A file is removed there after everything that was written before it was removed here: an earlier checkpoint
        after the later one has arrived.
        """
        changed, present, now, oldest_unsent = [], set(), time.time(), float("inf")
        for found in self._files():
            present.add(found.name)
            known = self._known.get(found.name)
            if known is not None and (
                known.is_refused or (known.inode, known.size, known.modified_ns) == _identity(found.status)
            ):
                continue
            if not grows(found.name):
                oldest_unsent = min(oldest_unsent, found.status.st_mtime)
            if is_last or grows(found.name) or now - found.status.st_mtime > _SETTLED_S:
                changed.append(found)
        removed = (self._known.keys() | self._begun) - present
        self._missing = {name: self._missing.get(name, now) for name in sorted(removed)}
        return changed, [name for name, since in self._missing.items() if since < oldest_unsent]

    def _files(self) -> Iterator[_Found]:
        derived = str(self._places["run"] / "metrics")  # what the daemon makes of the event files
        for place, top in self._places.items():
            for entry in walk(top, most=_MAX_ENTRIES, enter=lambda entry: entry.path != derived):
                if entry.is_file(follow_symlinks=False) and not (
                    entry.name.startswith(".") and entry.name.endswith(_TEMPORARY)
                ):
                    with suppress(OSError):  # removed meanwhile
                        path = Path(entry.path)
                        name = f"{place}/{path.relative_to(top).as_posix()}".encode("utf-8", "replace").decode()
                        yield _Found(name, path, entry.stat(follow_symlinks=False))

    def _continues(self, found: _Found) -> bool:
        """Return whether the file is one that the daemon has the beginning of."""
        known = self._known.get(found.name)
        same = known is not None and known.inode == found.status.st_ino and found.status.st_size >= known.size
        return same and grows(found.name)

    def _send_growing(self, changed: Iterable[_Found]) -> None:
        """Send what was appended to files, several of them with each call."""
        waiting = [found for found in changed if self._continues(found)]
        while waiting:
            batch: dict[str, tuple[_Found, messages.FilePiece]] = {}
            for found in waiting[:_MAX_PIECES]:
                batch[found.name] = found, self._growth(found)
                if sum(len(piece.data) for _, piece in batch.values()) >= _REQUEST_BYTES:
                    break
            waiting = [found for found in waiting if found.name not in batch]
            for state in self._call([piece for _, piece in batch.values()], []):
                found, piece = batch[state.path]
                known = self._known[found.name]
                if state.problem:
                    self._refuse(found.name, known, state.problem)
                elif state.size == 0 and (piece.offset or piece.data):
                    del self._known[found.name]  # the daemon has none of it: from its beginning
                else:
                    known.size, known.is_verified = state.size, False
                    if known.size >= found.status.st_size:
                        known.modified_ns = found.status.st_mtime_ns
                    elif known.size > piece.offset:
                        waiting.append(found)  # anything else is for the next pass

    def _growth(self, found: _Found) -> messages.FilePiece:
        known = self._known[found.name]
        data = b""
        with suppress(OSError), open_plain(found.path) as stream:
            stream.seek(known.size)
            data = stream.read(min(_PIECE_BYTES, found.status.st_size - known.size))
        return messages.FilePiece(path=found.name, offset=known.size, data=data, grows=True)

    def _send_version(self, found: _Found) -> Iterator[None]:
        """Send a file from its beginning, piece after piece; the daemon puts it in its place when its hash is right."""
        try:
            if self._version is None or not self._version.is_of(found):
                self._drop_version()
                self._version = _Version(found)
            version = self._version
            self._begun.add(found.name)
            while True:
                piece = version.piece()
                (state,) = self._call([piece], [])
                known = _Known(found.path, version.inode, version.size, version.modified_ns, is_verified=True)
                if state.problem:
                    self._refuse(found.name, known, state.problem)
                    break
                if piece.sha256 and state.size == version.size:
                    self._known[found.name] = known
                    self._begun.discard(found.name)
                    break
                version.continue_at(state.size)
                yield
        except OSError:
            pass  # removed, replaced or truncated meanwhile: the next pass finds out
        self._drop_version()

    def _drop_version(self) -> None:
        if self._version is not None:
            self._version.close()
            self._version = None

    def _refuse(self, name: str, known: _Known, problem: str) -> None:
        known.is_refused = True
        self._known[name] = known
        self.refused.append(problem)
        if len(self.refused) <= _MAX_PRINTED:
            print_message(problem)

    def _verify(self) -> bool:
        """Compare the hashes of files that grew; forget those that differ, which are then sent whole."""
        differ = False
        for name, known in list(self._known.items()):
            if known.is_verified or known.is_refused or name.endswith(".log"):  # the daemon redacts and caps logs
                continue
            with open_plain(known.path) as stream:
                running = hashlib.sha256()
                while data := stream.read(_PIECE_BYTES):
                    running.update(data)
            sha256 = running.hexdigest()
            piece = messages.FilePiece(path=name, offset=known.size, size=known.size, sha256=sha256, grows=True)
            (state,) = self._call([piece], [])
            known.is_verified = state.size == known.size
            if not known.is_verified:
                differ = True
                del self._known[name]
        return not differ

    def _path_of(self, name: str) -> Path:
        place, _, rest = name.partition("/")
        return self._places[place] / rest

    def _call(self, pieces: list[messages.FilePiece], removed: list[str]) -> list[messages.FileState]:
        answer = self._calls.send_files(pieces, removed, is_preparing=self.is_preparing)
        self._called_at = time.monotonic()
        self.frame_interval_s = answer.frame_interval_s
        if answer.stop:
            self.stop_requested.set()
        return list(answer.files)


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def print_message(text: str) -> None:
    """Print to the engine's log of this process."""
    with suppress(OSError):
        print(f"mosaic node: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the process's only output
