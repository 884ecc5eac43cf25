"""A replay buffer for stacked pictures that stores every picture once.

An Atari observation is a stack of four pictures of which the next observation repeats three; the transitions of an
episode need one picture each instead of eight. Whether two stacks overlap is found by comparing them, not assumed: what
comes out is byte for byte what went in, however an environment pads the first stack of an episode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.replay import ReplayBuffer
from cleanrl_worker.training.replay_segments import SEGMENT_BYTES, Segment, new_mark
from cleanrl_worker.training.replay_storage import Allocate, in_memory

_OFFSETS = 1 << 20
"""A reference is the number of a reel times this, plus the place in it of a stack's last picture"""
_REMEMBERED = 8
"""Stacks of an environment that are recognised when they come again (n-step transitions name the same ones twice)"""


def are_stacked_pictures(space: gym.Space) -> bool:
    """Whether observations are stacks of grey pictures: bytes of pictures, height, width."""
    shape = space.shape or ()
    return space.dtype == np.uint8 and len(shape) == 3 and 2 <= shape[0] <= 16 and min(shape[1:]) > shape[0]


class _Reel:
    """Pictures of one environment, in the order they were seen."""

    def __init__(self, pictures: np.ndarray, env: int) -> None:
        self.pictures, self.env = pictures, env
        self.count = 0
        self.needed_until = 0
        """How many transitions may have been added before nobody refers to it any more"""


class FrameStore:
    """Pictures on reels; a stack is a run of neighbouring pictures and is named by its last one.

    A reel is only ever appended to. When no transition needs it any more it is dropped as a whole, so the thread that
    writes checkpoints may read what it likes: it has nobody to wait for.
    """

    def __init__(self, shape: tuple[int, ...], num_envs: int, capacity: int, allocate: Allocate) -> None:
        self.stack, self._picture = shape[0], shape[1:]
        self._picture_bytes = int(np.prod(self._picture))
        share = min(SEGMENT_BYTES // self._picture_bytes, capacity // 8) // num_envs
        self._reel_length = max(4 * self.stack, min(share, _OFFSETS))
        self._capacity, self._allocate = capacity, allocate
        self._reels: dict[int, _Reel] = {}
        self._next_number = 0
        self._mark = new_mark()
        self._current = [-1] * num_envs
        self._recent: list[deque[tuple[bytes, int]]] = [deque(maxlen=_REMEMBERED) for _ in range(num_envs)]
        """For each environment the latest stacks on its reel and their references"""

    @property
    def nbytes(self) -> int:
        return sum(reel.pictures.nbytes for reel in self._reels.values())

    def put(self, env: int, stack: np.ndarray, added: int) -> int:
        """Store a stack and return its reference; `added` counts the transitions before the one it is for."""
        recent, content = self._recent[env], stack.tobytes()
        last, reference = recent[-1] if recent else (b"", -1)
        if content != last:
            if recent and content[: -self._picture_bytes] == last[self._picture_bytes :]:
                reference = self._append(env, stack, content, 1, added)
            elif (reference := self._find(content, recent)) < 0:
                reference = self._append(env, stack, content, self.stack, added)
        self._reels[reference // _OFFSETS].needed_until = added + self._capacity + 1
        return reference

    def _find(self, content: bytes, recent: deque[tuple[bytes, int]]) -> int:
        for known, reference in recent:
            if known == content and reference // _OFFSETS in self._reels:
                return reference
        return -1

    def _append(self, env: int, stack: np.ndarray, content: bytes, count: int, added: int) -> int:
        """Put the last `count` pictures of a stack on the environment's reel."""
        reel = self._reels.get(self._current[env])
        if reel is None or reel.count + count > self._reel_length:
            self._forget(added)
            reel = self._new_reel(env)
            count = self.stack  # no stack is spread over two reels
        reel.pictures[reel.count : reel.count + count] = stack[-count:]
        reel.count += count
        reference = self._current[env] * _OFFSETS + reel.count - 1
        self._recent[env].append((content, reference))
        return reference

    def _new_reel(self, env: int) -> _Reel:
        reel = _Reel(self._allocate((self._reel_length, *self._picture), np.dtype(np.uint8)), env)
        self._current[env] = self._next_number
        self._reels[self._next_number] = reel
        self._next_number += 1
        return reel

    def _forget(self, added: int) -> None:
        """Drop the reels that no transition needs now that so many have been added."""
        current = set(self._current)
        for number in [n for n, reel in self._reels.items() if reel.needed_until <= added and n not in current]:
            del self._reels[number]

    def get(self, reference: int) -> np.ndarray:
        """A stack, as a view."""
        number, offset = divmod(reference, _OFFSETS)
        return self._reels[number].pictures[offset - self.stack + 1 : offset + 1]

    def gather(self, references: np.ndarray) -> np.ndarray:
        """Stacks in an array of their own."""
        stacks = np.empty((len(references), self.stack, *self._picture), dtype=np.uint8)
        for stack, reference in zip(stacks, references.tolist(), strict=True):
            stack[:] = self.get(reference)
        return stacks

    # -- checkpoints

    def facts(self) -> dict[str, Any]:
        reels = [[number, reel.env, reel.count, reel.needed_until] for number, reel in self._reels.items()]
        return {
            "mark": self._mark, "reels": reels, "length": self._reel_length, "next": self._next_number,
            "current": list(self._current), "envs": len(self._current),
            "recent": [[reference for _, reference in recent] for recent in self._recent],
        }  # fmt: skip

    def segments(self) -> list[Segment]:
        return [
            Segment(f"{self._mark}/pictures/{number}", reel.count, [reel.pictures[: reel.count]])
            for number, reel in self._reels.items()
        ]

    def restore(self, facts: Mapping[str, Any], read: Callable[[str, Sequence[np.ndarray]], None]) -> None:
        if facts["envs"] != len(self._current):
            raise BadInput(
                f"the checkpoint's replay buffer was filled by {facts['envs']} environments, this run has "
                f"{len(self._current)}; give the same --num-envs"
            )
        self._reel_length, self._next_number, self._current = facts["length"], facts["next"], list(facts["current"])
        self._mark = str(facts["mark"])
        self._reels.clear()
        for number, env, count, needed_until in facts["reels"]:
            reel = self._reels[number] = _Reel(
                self._allocate((self._reel_length, *self._picture), np.dtype(np.uint8)), env
            )
            reel.count, reel.needed_until = count, needed_until
            read(f"{self._mark}/pictures/{number}", [reel.pictures[:count]])
        for recent, references in zip(self._recent, facts["recent"], strict=True):
            recent.clear()
            for reference in references:  # of a reel that was dropped nothing is recognised, before and now
                known = reference // _OFFSETS in self._reels
                recent.append((self.get(reference).tobytes() if known else b"", reference))


class FrameReplay(ReplayBuffer):
    """A `ReplayBuffer` for stacked pictures; everything it gives is the same, in an eighth of the memory."""

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
        """Memory it takes now."""
        return self._frames.nbytes + sum(column.nbytes for column in self._ring.columns.values())

    def _store_observations(self, first: int, obs: np.ndarray, next_obs: np.ndarray) -> None:
        put, added = self._frames.put, self._ring.added - len(obs)
        for env in range(len(obs)):
            row = (first + env) % self.capacity
            self._obs[row] = put(env, obs[env], added + env)
            self._next_obs[row] = put(env, next_obs[env], added + env)

    def obs_at(self, rows: np.ndarray) -> np.ndarray:
        return self._frames.gather(self._obs[rows])

    def next_obs_at(self, rows: np.ndarray) -> np.ndarray:
        return self._frames.gather(self._next_obs[rows])

    # -- checkpoints

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "pictures": self._frames.facts()}

    def segments(self) -> list[Segment]:
        return super().segments() + self._frames.segments()

    def restore(self, facts: Mapping[str, Any], read: Callable[[str, Sequence[np.ndarray]], None]) -> None:
        super().restore(facts, read)
        self._frames.restore(facts["pictures"], read)
