"""Replay buffers: a ring of transitions, sampled uniformly. `make_replay` chooses the one for a run.

A transition is (obs, action, reward, next_obs, terminated), where `next_obs` is what really followed the action, before
any reset: `Step.final_obs`. Truncated episodes are therefore bootstrapped without further care.

For `MEMORY` of an algorithm file (the purpose is called "replay buffer", the dry run adds its disk need by that name):
vectors take `buffer_size * (2 * obs_bytes + 4 * actions + 8)`, stacked pictures `buffer_size * 8000`, see
`frame_replay.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.replay_segments import SEGMENT_BYTES, Segment, new_mark
from cleanrl_worker.training.replay_storage import Allocate, in_memory, on_disk


class Transitions(NamedTuple):
    """A batch, one row per transition."""

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray


class Ring:
    """Columns of equal length whose oldest rows give way to new ones; part of a checkpoint as segments of rows.

    A segment is read by the thread that writes checkpoints while training goes on: whoever is about to overwrite it
    waits until it is on disk.
    """

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        self.columns = dict(columns)
        self.capacity = len(next(iter(self.columns.values())))
        self.position = 0
        """The row that is written next"""
        self.added = 0
        """Rows ever written"""
        row_bytes = sum(array.nbytes for array in self.columns.values()) // self.capacity
        # The one that is being filled is copied at every checkpoint, on the training's thread: none is large.
        self._segment_rows = min(self.capacity, max(1, SEGMENT_BYTES // 4 // row_bytes))
        self._free_until = 0
        """Rows up to here belong to the segment that is being filled, and may be written"""
        self._mark = new_mark()
        self._held: dict[int, threading.Event] = {}
        """Segments that are being saved → set when that is done"""

    @property
    def size(self) -> int:
        return min(self.added, self.capacity)

    def advance(self, count: int) -> int:
        """Make room for so many rows and return the first of them; the caller has written them before `segments`."""
        first, end = self.position, self.position + count
        if end > self._free_until:
            self._enter(first, end)
        self.added += count
        if end < self.capacity:
            self.position = end
        elif end == self.capacity:
            self.position = self._free_until = 0  # what lies at the ring's beginning has not been entered yet
        else:
            self.position = end % self.capacity
        return first

    def rows(self, first: int, count: int) -> slice | np.ndarray:
        """Index of so many rows from `first` on, around the end of the ring."""
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
        columns = {name: [array.dtype.str, list(array.shape[1:])] for name, array in self.columns.items()}
        size = {"capacity": self.capacity, "added": self.added, "rows": self._segment_rows}
        return {**size, "columns": columns, "mark": self._mark}

    def segments(self) -> list[Segment]:
        return [self._segment(start) for start in range(0, self.size, self._segment_rows)]

    def _segment(self, start: int) -> Segment:
        end = min(start + self._segment_rows, self.capacity)
        stamp = self._stamp(start, end)
        columns = [array[start : min(end, self.size)] for array in self.columns.values()]
        if start < self.position < end:  # the one that is being filled
            return Segment(self._name(start), stamp, [column.copy() for column in columns])
        saved = self._held[start // self._segment_rows] = threading.Event()
        return Segment(self._name(start), stamp, columns, release=saved.set)

    def _name(self, start: int) -> str:
        return f"{self._mark}/rows/{start // self._segment_rows}"

    def _stamp(self, start: int, end: int) -> int:
        """How many rows had been added when one of these was last written."""
        lap = self.added - self.position
        return lap + min(end, self.position) if self.position > start else lap - self.capacity + end

    def restore(self, facts: Mapping[str, Any], read: Callable[[str, Sequence[np.ndarray]], None]) -> None:
        mine = self.facts()
        if facts["capacity"] != mine["capacity"]:
            raise BadInput(
                f"the checkpoint's replay buffer has room for {facts['capacity']} transitions and this run's for "
                f"{mine['capacity']}; give the same --buffer-size"
            )
        if facts["columns"] != mine["columns"]:
            raise BadInput(f"the checkpoint's replay buffer holds {facts['columns']}, this run's {mine['columns']}")
        self._segment_rows, self._mark = int(facts["rows"]), str(facts["mark"])
        self.added = int(facts["added"])
        self.position = self._free_until = self.added % self.capacity
        for start in range(0, self.size, self._segment_rows):
            end = min(start + self._segment_rows, self.size)
            read(self._name(start), [array[start:end] for array in self.columns.values()])


class ReplayBuffer:
    """Holds the last `capacity` transitions of all environments together, row by row."""

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
        """The row that the next `add` begins with: one row for each environment, around the end of the ring."""
        return self._ring.position

    @property
    def nbytes(self) -> int:
        """Memory it takes when it is full."""
        return sum(column.nbytes for column in self._ring.columns.values())

    def add(
        self, obs: np.ndarray, actions: np.ndarray, rewards: np.ndarray, next_obs: np.ndarray, terminated: np.ndarray
    ) -> None:
        """Store one step of every environment."""
        count = len(rewards)
        first = self._ring.advance(count)
        self._store_observations(first, obs, next_obs)
        if count == 1:  # a whole number as index costs half of what a slice does
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
        """Rows drawn uniformly, with replacement."""
        return self.take(draw_rows(rng, len(self), batch_size))

    def take(self, rows: np.ndarray) -> Transitions:
        """These rows, in arrays of their own."""
        return Transitions(
            self.obs_at(rows),
            self.actions.take(rows, axis=0),
            self.rewards.take(rows),
            self.next_obs_at(rows),
            self.terminated.take(rows),
        )

    def obs_at(self, rows: np.ndarray) -> np.ndarray:
        """What was seen before the actions of these rows."""
        return self._obs.take(rows, axis=0)

    def next_obs_at(self, rows: np.ndarray) -> np.ndarray:
        """What was seen after them."""
        return self._next_obs.take(rows, axis=0)

    # -- checkpoints, see replay_segments.py

    def facts(self) -> dict[str, Any]:
        return self._ring.facts()

    def segments(self) -> list[Segment]:
        return self._ring.segments()

    def restore(self, facts: Mapping[str, Any], read: Callable[[str, Sequence[np.ndarray]], None]) -> None:
        self._ring.restore(facts, read)


def draw_rows(rng: np.random.Generator, size: int, count: int) -> np.ndarray:
    """Whole numbers below `size`, uniformly; twice as fast as `rng.integers`, which rejects its way to exactness."""
    return (rng.random(count) * size).astype(np.int64)


def _stored_dtype(observations: gym.Space) -> np.dtype:
    """Networks read float32, so that is what is kept; as MuJoCo gives them observations would take twice the room."""
    dtype = np.dtype(observations.dtype)
    return np.dtype(np.float32) if dtype == np.float64 else dtype


def _action_dtype(actions: gym.Space) -> np.dtype:
    return np.dtype(np.int64 if isinstance(actions, gym.spaces.Discrete) else np.float32)


def make_replay(args: Any, envs: VectorEnvs, *, folder: Path | None = None) -> ReplayBuffer:
    """The buffer for `--buffer-size` transitions of these environments, where `--replay-storage` says.

    `folder` is the run's (`run.folder.root`): memory-mapped files belong on its disk.
    """
    from cleanrl_worker.training.frame_replay import FrameReplay, are_stacked_pictures  # which is made of this module

    allocate = in_memory if args.replay_storage == "memory" else on_disk(folder)
    spaces = envs.observation_space, envs.action_space
    try:
        if are_stacked_pictures(envs.observation_space):
            return FrameReplay(args.buffer_size, *spaces, num_envs=envs.num_envs, allocate=allocate)
        return ReplayBuffer(args.buffer_size, *spaces, allocate=allocate)
    except MemoryError as error:
        raise BadInput(
            f"there is not enough memory for a replay buffer of --buffer-size {args.buffer_size}; lower it, or let it "
            "lie on disk with --replay-storage disk"
        ) from error
