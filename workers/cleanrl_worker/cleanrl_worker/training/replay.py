"""Replay buffers: a ring of transitions, sampled uniformly. `make_replay` chooses the one for a run.

A transition is (obs, action, reward, next_obs, terminated), where `next_obs` is what followed the action, before any
reset: `Step.final_obs`. Values after truncated episodes are therefore bootstrapped from the right observation.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from mosaic_wire.checkpoints import SharedFile
from mosaic_wire.errors import DamagedCheckpoint
from mosaic_wire.files import fsync_directory

from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training.envs import VectorEnvs

Allocate = Callable[[tuple[int, ...], np.dtype], np.ndarray]
"""Makes an array of zeros of this shape and dtype"""


def in_memory(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Make an array in memory; the system allocates its pages at the first write."""
    return np.zeros(shape, dtype=dtype)


def on_disk(folder: Path | None) -> Allocate:
    """Return a function that makes memory-mapped arrays in this folder (by default the system's temporary folder)."""

    def allocate(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = int(np.prod(shape)) * dtype.itemsize
        where = folder if folder is not None else Path(tempfile.gettempdir())
        descriptor, name = tempfile.mkstemp(prefix=".replay-", suffix=".mapped", dir=where)
        try:
            # Unlinked at once: however the process ends, the space is freed.
            os.unlink(name)
            # Allocated now, where a full disk is an error. Later it would be a SIGBUS during training.
            os.posix_fallocate(descriptor, 0, size)
            mapped = mmap.mmap(descriptor, size)
        except OSError as error:
            raise TrainingStopped(
                f"the replay buffer does not fit on the disk of {where} ({size / 2**30:.1f} GiB for one part of it): "
                f"{error.strerror or error}; lower --buffer-size"
            ) from error
        finally:
            os.close(descriptor)
        return np.frombuffer(mapped, dtype=dtype).reshape(shape)

    return allocate


FOLDER = "replay"
SEGMENT_BYTES = FRAME_SEGMENT_BYTES = 16 << 20
"""Approximate size of one file"""


def new_mark() -> str:
    """Return a random mark that distinguishes a buffer's segments from those of others; it is saved with the buffer."""
    return secrets.token_hex(4)


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Segment:
    """One part of a buffer at the time of a snapshot."""

    name: str
    stamp: int
    """Changes with the content of the segment"""
    columns: Sequence[np.ndarray]
    """Copies, or the buffer's own memory, which it does not change until `release`"""
    release: Callable[[], None] = _nothing
    """Called when the segment is on disk or discarded; may be called more than once"""


class SegmentedReplay(Protocol):
    """A replay buffer that can be saved in a checkpoint."""

    def facts(self) -> dict[str, Any]:
        """Return the JSON values that `restore` needs."""

    def segments(self) -> list[Segment]:
        """Return the content. Called on the training thread; another thread reads the columns while training runs."""

    def restore(self, facts: Mapping[str, Any], read: Callable[[str, Sequence[np.ndarray]], None]) -> None:
        """Restore the content: `read(name, columns)` fills the columns from the segment of that name.

        Raises BadInput if capacity or spaces differ.
        """


@dataclass(frozen=True)
class SavedReplay:
    """The replay buffer of a loaded checkpoint."""

    folder: Path
    """The folder of the checkpoints"""
    facts: Mapping[str, Any]
    files: Mapping[str, tuple[int, SharedFile]]
    """Segment name → (stamp, file)"""

    def read_into(self, buffer: SegmentedReplay) -> None:
        """Restore a buffer; raise BadInput if a file is damaged or the buffer differs."""
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
        """Return its entry in `state.json`."""
        return {"facts": dict(self.facts), "segments": [[name, stamp] for name, (stamp, _) in self.files.items()]}

    @classmethod
    def from_json(cls, folder: Path, document: Any, shared: Sequence[SharedFile]) -> SavedReplay:
        """Read its entry in `state.json`; `shared` are the checkpoint's shared files, in the same order."""
        try:
            names = [(str(name), int(stamp)) for name, stamp in document["segments"]]
            files = {name: (stamp, file) for (name, stamp), file in zip(names, shared, strict=True)}
            return cls(folder, dict(document["facts"]), files)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedCheckpoint(f"its description of the replay buffer cannot be read: {error!r}") from error


class SegmentStore:
    """The files in `checkpoints/replay/`. Not thread-safe."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints = checkpoints
        self._folder = checkpoints / FOLDER
        self._written: dict[str, tuple[int, SharedFile]] = {}

    def know(self, saved: SavedReplay) -> None:
        """Register files of an earlier attempt of this run, so that they are not written again."""
        self._written.update(saved.files)

    def write(self, facts: Mapping[str, Any], segments: Iterable[Segment]) -> SavedReplay:
        """Write the segments that are not on disk yet; all are released, even on an error."""
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
        """Return how many bytes `write` would write."""
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
            temporary.unlink(missing_ok=True)  # free the space of the incomplete segment
            raise
        return SharedFile(f"{FOLDER}/{name}", name, size)

    def remove_all_but(self, needed: Iterable[str]) -> None:
        """Remove all files except these paths (relative to the folder of checkpoints)."""
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
    """Return the memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


class Transitions(NamedTuple):
    """A batch, one row per transition."""

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray


class Ring:
    """A ring buffer of columns; saved in a checkpoint as segments of rows.

    The checkpoint thread reads a segment while training continues: `advance` waits until it is on disk before its rows
    are overwritten.
    """

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self.columns = dict(columns)
        self.capacity = len(next(iter(self.columns.values())))
        self.position = 0
        """The row that is written next"""
        self.added = 0
        """Rows ever written"""
        row_bytes = sum(array.nbytes for array in self.columns.values()) // self.capacity
        # The segment being filled is copied at every checkpoint, on the training thread, so segments are small.
        self._segment_rows = min(self.capacity, max(1, SEGMENT_BYTES // 4 // row_bytes))
        self._free_until = 0
        """Rows up to here belong to the segment being filled, and may be written"""
        self._mark = new_mark()
        self._held: dict[int, threading.Event] = {}
        """Segments being saved → an event set when they are on disk"""

    @property
    def size(self) -> int:
        """Return the number of rows stored."""
        return min(self.added, self.capacity)

    def advance(self, count: int) -> int:
        """Reserve `count` rows and return the first; the caller must write them before `segments` is called."""
        first, end = self.position, self.position + count
        if end > self._free_until:
            self._enter(first, end)
        self.added += count
        if end < self.capacity:
            self.position = end
        elif end == self.capacity:
            self.position = self._free_until = 0  # the first segment has not been entered yet
        else:
            self.position = end % self.capacity
        return first

    def rows(self, first: int, count: int) -> slice | np.ndarray:
        """Return the index of `count` rows from `first` on, wrapped around the end of the ring."""
        end = first + count
        return slice(first, end) if end <= self.capacity else np.arange(first, end) % self.capacity

    def _enter(self, first: int, end: int) -> None:
        size = self._segment_rows
        row = first
        while row < end:
            within = row % self.capacity
            if (saved := self._held.pop(within // size, None)) is not None:
                saved.wait()
            row += min(size - within % size, self.capacity - within)
        self._free_until = row % self.capacity or self.capacity

    # -- checkpoints

    def facts(self) -> dict[str, Any]:
        """Return the JSON values that `restore` needs."""
        columns = {name: [array.dtype.str, list(array.shape[1:])] for name, array in self.columns.items()}
        size = {"capacity": self.capacity, "added": self.added, "rows": self._segment_rows}
        return {**size, "columns": columns, "mark": self._mark}

    def segments(self) -> list[Segment]:
        """Return the content as segments of rows."""
        return [self._segment(start) for start in range(0, self.size, self._segment_rows)]

    def _segment(self, start: int) -> Segment:
        end = min(start + self._segment_rows, self.capacity)
        stamp = self._stamp(start, end)
        columns = [array[start : min(end, self.size)] for array in self.columns.values()]
        if start < self.position < end:  # the segment being filled
            return Segment(self._name(start), stamp, [column.copy() for column in columns])
        saved = self._held[start // self._segment_rows] = threading.Event()
        return Segment(self._name(start), stamp, columns, release=saved.set)

    def _name(self, start: int) -> str:
        return f"{self._mark}/rows/{start // self._segment_rows}"

    def _stamp(self, start: int, end: int) -> int:
        """Return the value of `added` when one of these rows was last written."""
        lap = self.added - self.position
        return lap + min(end, self.position) if self.position > start else lap - self.capacity + end

    def restore(self, facts: Mapping[str, Any], read: Callable[[str, Sequence[np.ndarray]], None]) -> None:
        """Restore the rows; raise BadInput if capacity or columns differ."""
        own = self.facts()
        if facts["capacity"] != own["capacity"]:
            raise BadInput(
                f"the checkpoint's replay buffer has room for {facts['capacity']} transitions and this run's for "
                f"{own['capacity']}; give the same --buffer-size"
            )
        if facts["columns"] != own["columns"]:
            raise BadInput(f"the checkpoint's replay buffer holds {facts['columns']}, this run's {own['columns']}")
        self._segment_rows, self._mark = int(facts["rows"]), str(facts["mark"])
        self.added = int(facts["added"])
        self.position = self._free_until = self.added % self.capacity
        for start in range(0, self.size, self._segment_rows):
            end = min(start + self._segment_rows, self.size)
            read(self._name(start), [array[start:end] for array in self.columns.values()])


class ReplayBuffer:
    """The last `capacity` transitions of all environments together, one per row."""

    def __init__(
        self, capacity: int, observations: gym.Space, actions: gym.Space, *, allocate: Allocate = in_memory
    ) -> None:
        self.capacity = capacity
        self.actions = allocate((capacity, *(actions.shape or ())), _action_dtype(actions))
        self.rewards = allocate((capacity,), np.dtype(np.float32))
        self.terminated = allocate((capacity,), np.dtype(np.float32))
        columns = {"actions": self.actions, "rewards": self.rewards, "terminated": self.terminated}
        self._ring = Ring({**self._observation_columns(observations, allocate), **columns})

    def _observation_columns(self, space: gym.Space, allocate: Allocate) -> dict[str, np.ndarray]:
        shape, dtype = (self.capacity, *(space.shape or ())), _stored_dtype(space)
        self._obs, self._next_obs = allocate(shape, dtype), allocate(shape, dtype)
        return {"obs": self._obs, "next_obs": self._next_obs}

    def __len__(self) -> int:
        return self._ring.size

    @property
    def position(self) -> int:
        """Return the first row of the next `add`, which writes one row per environment."""
        return self._ring.position

    @property
    def nbytes(self) -> int:
        """Return the bytes it takes when it is full."""
        return sum(column.nbytes for column in self._ring.columns.values())

    def add(
        self, obs: np.ndarray, actions: np.ndarray, rewards: np.ndarray, next_obs: np.ndarray, terminated: np.ndarray
    ) -> None:
        """Store one step of every environment."""
        count = len(rewards)
        first = self._ring.advance(count)
        self._store_observations(first, obs, next_obs)
        if count == 1:  # indexing with an integer takes half the time of a slice
            self.actions[first] = actions[0]
            self.rewards[first] = rewards[0]
            self.terminated[first] = terminated[0]
        else:
            rows = self._ring.rows(first, count)
            self.actions[rows] = actions
            self.rewards[rows] = rewards
            self.terminated[rows] = terminated

    def _store_observations(self, first: int, obs: np.ndarray, next_obs: np.ndarray) -> None:
        rows = first if len(obs) == 1 else self._ring.rows(first, len(obs))
        self._obs[rows] = obs
        self._next_obs[rows] = next_obs

    def sample(self, rng: np.random.Generator, batch_size: int) -> Transitions:
        """Return rows sampled uniformly, with replacement."""
        return self.take(draw_rows(rng, len(self), batch_size))

    def take(self, rows: np.ndarray) -> Transitions:
        """Return copies of these rows."""
        return Transitions(
            self.obs_at(rows),
            self.actions.take(rows, axis=0),
            self.rewards.take(rows),
            self.next_obs_at(rows),
            self.terminated.take(rows),
        )

    def obs_at(self, rows: np.ndarray) -> np.ndarray:
        """Return the observations of these rows."""
        return self._obs.take(rows, axis=0)

    def next_obs_at(self, rows: np.ndarray) -> np.ndarray:
        """Return the next observations of these rows."""
        return self._next_obs.take(rows, axis=0)

    # -- checkpoints

    def facts(self) -> dict[str, Any]:
        """Return the JSON values that `restore` needs."""
        return self._ring.facts()

    def segments(self) -> list[Segment]:
        """Return the content as segments."""
        return self._ring.segments()

    def restore(self, facts: Mapping[str, Any], read: Callable[[str, Sequence[np.ndarray]], None]) -> None:
        """Restore the transitions; raise BadInput if the buffer differs."""
        self._ring.restore(facts, read)


def draw_rows(rng: np.random.Generator, size: int, count: int) -> np.ndarray:
    """Return uniform integers below `size`; twice as fast as `rng.integers`, which uses rejection sampling."""
    return (rng.random(count) * size).astype(np.int64)


def _stored_dtype(observations: gym.Space) -> np.dtype:
    """Return the dtype to store: float32 instead of float64, because networks read float32."""
    dtype = np.dtype(observations.dtype)
    return np.dtype(np.float32) if dtype == np.float64 else dtype


def _action_dtype(actions: gym.Space) -> np.dtype:
    return np.dtype(np.int64 if isinstance(actions, gym.spaces.Discrete) else np.float32)


def make_replay(args: Any, envs: VectorEnvs, *, folder: Path | None = None) -> ReplayBuffer:
    """Return a buffer of `--buffer-size` transitions of these environments, in memory or on disk (--replay-storage).

    `folder` is the run's (`run.folder.root`), for memory-mapped files.
    """

    allocate = in_memory if args.replay_storage == "memory" else on_disk(folder)
    spaces = envs.observation_space, envs.action_space
    try:
        if are_stacked_frames(envs.observation_space):
            return FrameReplay(args.buffer_size, *spaces, num_envs=envs.num_envs, allocate=allocate)
        return ReplayBuffer(args.buffer_size, *spaces, allocate=allocate)
    except MemoryError as error:
        raise BadInput(
            f"there is not enough memory for a replay buffer of --buffer-size {args.buffer_size}; lower it, or let it "
            "lie on disk with --replay-storage disk"
        ) from error


_OFFSETS = 1 << 20
"""A reference is the number of a block times this, plus the position of a stack's last frame in the block"""
_REMEMBERED = 8
"""Number of an environment's latest stacks that are found again (n-step transitions store the same ones twice)"""


def are_stacked_frames(space: gym.Space) -> bool:
    """Return whether observations are stacks of grayscale frames: uint8 [frame, height, width]."""
    shape = space.shape or ()
    return space.dtype == np.uint8 and len(shape) == 3 and 2 <= shape[0] <= 16 and min(shape[1:]) > shape[0]


class _FrameBlock:
    """Frames of one environment, in order."""

    def __init__(self, frames: np.ndarray, env: int) -> None:
        self.frames, self.env = frames, env
        self.count = 0
        self.needed_until = 0
        """Number of added transitions from which on none refers to it"""


class FrameStore:
    """Frames in blocks; a stack is a sequence of adjacent frames, referred to by its last one.

    A block is only appended to, and dropped as a whole when no transition needs it. The checkpoint thread can therefore
    read it without synchronization.
    """

    def __init__(self, shape: tuple[int, ...], num_envs: int, capacity: int, allocate: Allocate) -> None:
        self.stack, self._frame_shape = shape[0], shape[1:]
        self._frame_bytes = int(np.prod(self._frame_shape))
        share = min(FRAME_SEGMENT_BYTES // self._frame_bytes, capacity // 8) // num_envs
        self._block_length = max(4 * self.stack, min(share, _OFFSETS))
        self._capacity, self._allocate = capacity, allocate
        self._blocks: dict[int, _FrameBlock] = {}
        self._next_number = 0
        self._mark = new_mark()
        self._current = [-1] * num_envs
        self._recent: list[deque[tuple[bytes, int]]] = [deque(maxlen=_REMEMBERED) for _ in range(num_envs)]
        """For each environment the latest stacks of its block and their references"""

    @property
    def nbytes(self) -> int:
        """Return the bytes of all blocks."""
        return sum(block.frames.nbytes for block in self._blocks.values())

    def put(self, env: int, stack: np.ndarray, added: int) -> int:
        """Store a stack and return its reference; `added` counts the transitions before the one it is for."""
        recent, content = self._recent[env], stack.tobytes()
        last, reference = recent[-1] if recent else (b"", -1)
        if content != last:
            if recent and content[: -self._frame_bytes] == last[self._frame_bytes :]:
                reference = self._append(env, stack, content, 1, added)
            elif (reference := self._find(content, recent)) < 0:
                reference = self._append(env, stack, content, self.stack, added)
        self._blocks[reference // _OFFSETS].needed_until = added + self._capacity + 1
        return reference

    def _find(self, content: bytes, recent: deque[tuple[bytes, int]]) -> int:
        for known, reference in recent:
            if known == content and reference // _OFFSETS in self._blocks:
                return reference
        return -1

    def _append(self, env: int, stack: np.ndarray, content: bytes, count: int, added: int) -> int:
        """Append the last `count` frames of a stack to the environment's block."""
        block = self._blocks.get(self._current[env])
        if block is None or block.count + count > self._block_length:
            self._drop_unused(added)
            block = self._new_block(env)
            count = self.stack  # a stack is never split over two blocks
        block.frames[block.count : block.count + count] = stack[-count:]
        block.count += count
        reference = self._current[env] * _OFFSETS + block.count - 1
        self._recent[env].append((content, reference))
        return reference

    def _new_block(self, env: int) -> _FrameBlock:
        block = _FrameBlock(self._allocate((self._block_length, *self._frame_shape), np.dtype(np.uint8)), env)
        self._current[env] = self._next_number
        self._blocks[self._next_number] = block
        self._next_number += 1
        return block

    def _drop_unused(self, added: int) -> None:
        """Drop the blocks that no transition needs after `added` transitions."""
        current = set(self._current)
        for number in [n for n, block in self._blocks.items() if block.needed_until <= added and n not in current]:
            del self._blocks[number]

    def get(self, reference: int) -> np.ndarray:
        """Return a stack, as a view."""
        number, offset = divmod(reference, _OFFSETS)
        return self._blocks[number].frames[offset - self.stack + 1 : offset + 1]

    def gather(self, references: np.ndarray) -> np.ndarray:
        """Return copies of stacks."""
        stacks = np.empty((len(references), self.stack, *self._frame_shape), dtype=np.uint8)
        for stack, reference in zip(stacks, references.tolist(), strict=True):
            stack[:] = self.get(reference)
        return stacks

    # -- checkpoints

    def facts(self) -> dict[str, Any]:
        """Return the JSON values that `restore` needs."""
        blocks = [[number, block.env, block.count, block.needed_until] for number, block in self._blocks.items()]
        return {
            "mark": self._mark,
            "reels": blocks,
            "length": self._block_length,
            "next": self._next_number,
            "current": list(self._current),
            "envs": len(self._current),
            "recent": [[reference for _, reference in recent] for recent in self._recent],
        }

    def segments(self) -> list[Segment]:
        """Return the blocks as segments."""
        return [
            Segment(f"{self._mark}/pictures/{number}", block.count, [block.frames[: block.count]])
            for number, block in self._blocks.items()
        ]

    def restore(self, facts: Mapping[str, Any], read: Callable[[str, Sequence[np.ndarray]], None]) -> None:
        """Restore the blocks; raise BadInput if the number of environments differs."""
        if facts["envs"] != len(self._current):
            raise BadInput(
                f"the checkpoint's replay buffer was filled by {facts['envs']} environments, this run has "
                f"{len(self._current)}; give the same --num-envs"
            )
        self._block_length, self._next_number, self._current = facts["length"], facts["next"], list(facts["current"])
        self._mark = str(facts["mark"])
        self._blocks.clear()
        for number, env, count, needed_until in facts["reels"]:
            block = self._blocks[number] = _FrameBlock(
                self._allocate((self._block_length, *self._frame_shape), np.dtype(np.uint8)), env
            )
            block.count, block.needed_until = count, needed_until
            read(f"{self._mark}/pictures/{number}", [block.frames[:count]])
        for recent, references in zip(self._recent, facts["recent"], strict=True):
            recent.clear()
            for reference in references:  # stacks of a dropped block are never found again
                known = reference // _OFFSETS in self._blocks
                recent.append((self.get(reference).tobytes() if known else b"", reference))


class FrameReplay(ReplayBuffer):
    """A `ReplayBuffer` for stacked frames that stores each frame once: an eighth of the memory."""

    def __init__(
        self,
        capacity: int,
        observations: gym.Space,
        actions: gym.Space,
        *,
        num_envs: int,
        allocate: Allocate = in_memory,
    ) -> None:
        self._frames = FrameStore(observations.shape or (), num_envs, capacity, allocate)
        self._obs = np.zeros(capacity, dtype=np.int64)
        self._next_obs = np.zeros(capacity, dtype=np.int64)
        super().__init__(capacity, observations, actions, allocate=allocate)

    def _observation_columns(self, space: gym.Space, allocate: Allocate) -> dict[str, np.ndarray]:
        return {"obs": self._obs, "next_obs": self._next_obs}

    @property
    def nbytes(self) -> int:
        """Return the bytes it takes now."""
        return self._frames.nbytes + sum(column.nbytes for column in self._ring.columns.values())

    def _store_observations(self, first: int, obs: np.ndarray, next_obs: np.ndarray) -> None:
        put, added = self._frames.put, self._ring.added - len(obs)
        for env in range(len(obs)):
            row = (first + env) % self.capacity
            self._obs[row] = put(env, obs[env], added + env)
            self._next_obs[row] = put(env, next_obs[env], added + env)

    def obs_at(self, rows: np.ndarray) -> np.ndarray:
        """Return the observations of these rows."""
        return self._frames.gather(self._obs[rows])

    def next_obs_at(self, rows: np.ndarray) -> np.ndarray:
        """Return the next observations of these rows."""
        return self._frames.gather(self._next_obs[rows])

    # -- checkpoints

    def facts(self) -> dict[str, Any]:
        """Return the JSON values that `restore` needs."""
        return {**super().facts(), "pictures": self._frames.facts()}

    def segments(self) -> list[Segment]:
        """Return the content as segments."""
        return super().segments() + self._frames.segments()

    def restore(self, facts: Mapping[str, Any], read: Callable[[str, Sequence[np.ndarray]], None]) -> None:
        """Restore the transitions and frames; raise BadInput if the buffer differs."""
        super().restore(facts, read)
        self._frames.restore(facts["pictures"], read)


class NamedReplay:
    """A replay buffer whose segments are prefixed with a name, for a run with several buffers."""

    def __init__(self, name: str, buffer: SegmentedReplay) -> None:
        self._name, self._buffer = name, buffer

    def facts(self) -> dict[str, Any]:
        """Return the buffer's values."""
        return self._buffer.facts()

    def segments(self) -> list[Segment]:
        """Return the buffer's segments, renamed."""
        return [replace(segment, name=f"{self._name}/{segment.name}") for segment in self._buffer.segments()]

    def restore(self, facts: Mapping[str, Any], read: Callable[[str, Sequence[np.ndarray]], None]) -> None:
        """Restore the buffer."""
        self._buffer.restore(facts, lambda name, columns: read(f"{self._name}/{name}", columns))
