"""A replay buffer on disk: pieces of it (segments), each written once and named by the SHA-256 of its content.

The files lie in `checkpoints/replay/` and are shared by the checkpoints that refer to them: what has not changed since
the last checkpoint is not written again. A file is the columns of a segment, one after another, as plain bytes.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from mosaic_wire.checkpoints import SharedFile
from mosaic_wire.errors import DamagedCheckpoint
from mosaic_wire.files import fsync_directory

from cleanrl_worker.errors import BadInput

FOLDER = "replay"
SEGMENT_BYTES = 16 << 20
"""About so much goes into one file"""


def new_mark() -> str:
    """Sets the segments of a buffer apart from those of any other that the run may have; it stays when it is saved."""
    return secrets.token_hex(4)


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Segment:
    """One piece of a buffer at the moment of a snapshot."""

    name: str
    stamp: int
    """Differs whenever the content of a segment of this name differs"""
    columns: Sequence[np.ndarray]
    """The buffer's own memory, which it leaves alone until `release`, or copies"""
    release: Callable[[], None] = _nothing
    """Called when the segment is on disk, or never will be; more than once does no harm"""


class SegmentedReplay(Protocol):
    """What checkpoints need of a replay buffer; `replay.py` has it for rings."""

    def facts(self) -> dict[str, Any]:
        """JSON: how much it holds, and everything `restore` must know."""

    def segments(self) -> list[Segment]:
        """All it holds now. Called on the training's thread; the columns are read by another while training goes on."""

    def restore(self, facts: Mapping[str, Any], read: Callable[[str, Sequence[np.ndarray]], None]) -> None:
        """Become what `facts` tells of: `read(name, columns)` fills the columns with what was saved under that name.

        BadInput when this buffer is another (capacity, spaces).
        """


@dataclass(frozen=True)
class SavedReplay:
    """The replay buffer of a checkpoint that was loaded."""

    folder: Path
    """The folder of the checkpoints"""
    facts: Mapping[str, Any]
    files: Mapping[str, tuple[int, SharedFile]]
    """Segment name → (stamp, file)"""

    def read_into(self, buffer: SegmentedReplay) -> None:
        """Fill a buffer; raise BadInput when a file is damaged or the buffer is another."""
        buffer.restore(self.facts, self._read)

    def _read(self, name: str, columns: Sequence[np.ndarray]) -> None:
        _, file = self.files[name]
        path = self.folder / file.path
        digest = hashlib.sha256()
        try:
            with path.open("rb") as stream:
                for column in columns:
                    view = _bytes_of(column)
                    if stream.readinto(view) != len(view):
                        raise BadInput(f"{path} is shorter than the part of the replay buffer it should hold")
                    digest.update(view)
                more = stream.read(1)
        except OSError as error:
            raise BadInput(f"{path}, a part of the replay buffer, cannot be read: {error.strerror or error}") from error
        if more or digest.hexdigest() != file.sha256:
            raise BadInput(
                f"{path}, a part of the replay buffer, is not the file that was written: its SHA-256 differs"
            )

    def to_json(self) -> dict[str, Any]:
        """What `state.json` says of it, besides the files themselves."""
        return {"facts": dict(self.facts), "segments": [[name, stamp] for name, (stamp, _) in self.files.items()]}

    @classmethod
    def from_json(cls, folder: Path, document: Any, shared: Sequence[SharedFile]) -> SavedReplay:
        """The opposite; `shared` are the checkpoint's shared files, in the same order."""
        try:
            names = [(str(name), int(stamp)) for name, stamp in document["segments"]]
            files = {name: (stamp, file) for (name, stamp), file in zip(names, shared, strict=True)}
            return cls(folder, dict(document["facts"]), files)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedCheckpoint(f"what it says of its replay buffer cannot be read: {error!r}") from error


class SegmentStore:
    """The files in `checkpoints/replay/`. Used by one thread at a time."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self._folder = checkpoints / FOLDER
        self._written: dict[str, tuple[int, SharedFile]] = {}

    def know(self, saved: SavedReplay) -> None:
        """Take over what an earlier attempt of this run has written, so that it is not written again."""
        self._written.update(saved.files)

    def write(self, facts: Mapping[str, Any], segments: Iterable[Segment]) -> SavedReplay:
        """Bring every segment to the disk that is not there yet; each is released, whatever happens."""
        files: dict[str, tuple[int, SharedFile]] = {}
        changed = []
        for segment in segments:
            if self._has(segment):
                files[segment.name] = self._written[segment.name]
                segment.release()
            else:
                changed.append(segment)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for segment in changed:
                files[segment.name] = segment.stamp, self._write(segment.columns)
                segment.release()
            fsync_directory(self._folder)
        finally:
            for segment in changed:
                segment.release()
        self._written = dict(files)
        return SavedReplay(self._checkpoints, facts, files)

    def unwritten_bytes(self, segments: Iterable[Segment]) -> int:
        """How much `write` would have to write."""
        return sum(column.nbytes for segment in segments if not self._has(segment) for column in segment.columns)

    def _has(self, segment: Segment) -> bool:
        stamp, file = self._written.get(segment.name, (-1, None))
        return file is not None and stamp == segment.stamp and (self._checkpoints / file.path).exists()

    def _write(self, columns: Sequence[np.ndarray]) -> SharedFile:
        temporary = self._folder / f".{secrets.token_hex(6)}.tmp"
        digest, size = hashlib.sha256(), 0
        try:
            with temporary.open("xb", buffering=0) as stream:
                for column in columns:
                    view = _bytes_of(column)
                    digest.update(view)
                    size += len(view)
                    while view:
                        view = view[stream.write(view) :]
                os.fsync(stream.fileno())
            name = digest.hexdigest()
            temporary.rename(self._folder / name)
        except BaseException:
            temporary.unlink(missing_ok=True)  # a full disk must not keep what half a segment takes
            raise
        return SharedFile(f"{FOLDER}/{name}", name, size)

    def remove_all_but(self, needed: Iterable[str]) -> None:
        """Remove the files that none of these paths (relative to the folder of checkpoints) names."""
        keep = {Path(path).name for path in needed}
        try:
            names = set(os.listdir(self._folder)) - keep
        except OSError:
            names = set()
        for name in names:
            with suppress(OSError):
                (self._folder / name).unlink()
        self._written = {name: known for name, known in self._written.items() if Path(known[1].path).name in keep}


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of an array that lies in one piece."""
    return array.reshape(-1).view(np.uint8).data
