"""Prioritized replay of n-step transitions (Schaul et al. 2016; the sampling of Rainbow).

Steps are stored once, in a ring (`replay.py`); n-step returns are computed when a row is sampled. A row can be sampled
when the steps after it are known: n of them, or those up to the end of its episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from cleanrl_worker.training.replay import ReplayBuffer

_WIDTH = 64
"""Children of a node: many, because numpy sums 64 numbers as fast as two"""


class SumTree:
    """A sum tree of non-negative numbers, to sample rows in proportion to them.

    Sums are recomputed from the level below, so they depend on the numbers alone and not on their history.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._levels = [np.zeros(_padded(size), dtype=np.float64)]
        while len(self._levels[-1]) > _WIDTH:
            self._levels.append(np.zeros(_padded(len(self._levels[-1]) // _WIDTH), dtype=np.float64))
        self._nodes = [level.reshape(-1, _WIDTH) for level in self._levels]

    @property
    def values(self) -> np.ndarray:
        """Return the numbers; change them with `put` only."""
        return self._levels[0][: self._size]

    @property
    def total(self) -> float:
        """Return the sum of all numbers."""
        return float(self._levels[-1].sum())

    @property
    def nbytes(self) -> int:
        """Return the bytes of all levels."""
        return sum(level.nbytes for level in self._levels)

    def put(self, rows: np.ndarray, values: np.ndarray | float) -> None:
        """Set the numbers of these rows; for a row given twice, the last number counts."""
        self._levels[0][rows] = values
        for below, above in zip(self._nodes[:-1], self._levels[1:], strict=True):
            rows = rows // _WIDTH
            above[rows] = below[rows].sum(axis=1)

    def fill(self, values: np.ndarray) -> None:
        """Set all of them."""
        self._levels[0][: self._size] = values
        for below, above in zip(self._nodes[:-1], self._levels[1:], strict=True):
            above[: len(below)] = below.sum(axis=1)

    def find(self, targets: np.ndarray) -> np.ndarray:
        """Return for each target in [0, total] the row whose interval contains it; never one whose number is 0."""
        found = np.zeros(len(targets), dtype=np.int64)
        left = np.asarray(targets, dtype=np.float64)
        for nodes in reversed(self._nodes):
            reached = nodes[found].cumsum(axis=1)
            # The sums of two levels differ by rounding: a target must not exceed the last interval.
            left = np.minimum(left, np.nextafter(reached[:, -1], 0.0))
            child = (reached <= left[:, None]).sum(axis=1)
            before = np.take_along_axis(reached, np.maximum(child - 1, 0)[:, None], axis=1)[:, 0]
            left = np.maximum(left - np.where(child > 0, before, 0.0), 0.0)
            found = found * _WIDTH + child
        return found


def _padded(size: int) -> int:
    return -(-size // _WIDTH) * _WIDTH


class NStepBatch(NamedTuple):
    """A sampled batch with n-step returns."""

    obs: np.ndarray
    actions: np.ndarray
    returns: np.ndarray
    """Discounted rewards of up to n steps, of one episode only"""
    next_obs: np.ndarray
    """Observations after those steps, before any reset"""
    discounts: np.ndarray
    """Discount of the value there: gamma to the number of steps; 0 after a termination"""
    weights: np.ndarray
    """Importance weights, divided by the batch's largest"""
    rows: np.ndarray
    """Row indices, for `prioritize`"""


class PrioritizedReplay:
    """Samples rows of a buffer in proportion to their priorities; new rows have the largest priority so far.

    Every `add` of the buffer stores one step of each environment, so the next step of a row's environment is `num_envs`
    rows later: the buffer's capacity must be a multiple of that.
    """

    def __init__(
        self, buffer: ReplayBuffer, num_envs: int, *, n_step: int, gamma: float, alpha: float, epsilon: float
    ) -> None:
        if buffer.capacity % num_envs or buffer.capacity <= n_step * num_envs:
            raise ValueError(f"{buffer.capacity} rows are no room for {n_step} steps of {num_envs} environments")
        self.buffer = buffer
        self._num_envs, self._n_step, self._alpha, self._epsilon = num_envs, n_step, alpha, epsilon
        self._powers = gamma ** np.arange(n_step + 1, dtype=np.float64)
        self._tree = SumTree(buffer.capacity)
        self._ended = np.zeros(buffer.capacity, dtype=np.bool_)
        self._waiting = np.zeros(num_envs, dtype=np.int64)
        """Number of each environment's last rows that cannot be sampled yet"""
        self._largest = 1.0

    @property
    def nbytes(self) -> int:
        """Return the bytes of buffer and priorities."""
        return self.buffer.nbytes + self._tree.nbytes + self._ended.nbytes

    @property
    def ready(self) -> bool:
        """Return whether there is a row that can be sampled."""
        return self._tree.total > 0

    def add(
        self,
        obs: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        next_obs: np.ndarray,
        terminated: np.ndarray,
        ended: np.ndarray,
    ) -> None:
        """Store one step of every environment; `next_obs` is what followed the action, before any reset."""
        rows = self.buffer.position + np.arange(self._num_envs)
        self.buffer.add(obs, actions, rewards, next_obs, terminated)
        self._ended[rows] = ended
        self._waiting += 1
        known = self._rows_known(rows, ended)
        changed = np.concatenate([rows, known])
        self._tree.put(changed, np.repeat((0.0, self._largest), (len(rows), len(known))))

    def _rows_known(self, rows: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Return the rows whose n-step return is known after the step at `rows`, and stop waiting for them."""
        offsets = []
        for back in range(self._n_step):
            # The oldest of n, or all waiting rows if the episode ended.
            is_known = (self._waiting > back) & (ended | (back == self._n_step - 1))
            offsets.append(rows[is_known] - back * self._num_envs)
        self._waiting[ended | (self._waiting == self._n_step)] -= 1
        self._waiting[ended] = 0
        return np.concatenate(offsets) % self.buffer.capacity

    def end_episodes(self) -> None:
        """Treat the running episodes as truncated: they will not be continued."""
        if len(self.buffer):
            rows = (self.buffer.position - self._num_envs + np.arange(self._num_envs)) % self.buffer.capacity
            self._ended[rows] = True
            known = self._rows_known(rows, np.ones(self._num_envs, dtype=np.bool_))
            self._tree.put(known, self._largest)

    def sample(self, rng: np.random.Generator, batch_size: int, beta: float) -> NStepBatch:
        """Return rows sampled in proportion to their priorities, one from each of `batch_size` equal intervals."""
        total = self._tree.total
        if total <= 0:
            raise ValueError("nothing can be drawn yet")
        targets = (np.arange(batch_size) + rng.random(batch_size)) * (total / batch_size)
        rows = self._tree.find(targets)
        weights = (self._tree.values[rows] / total) ** -beta
        rewards = self.buffer.rewards
        returns = rewards[rows].astype(np.float64)
        last, steps = rows, np.ones(batch_size, dtype=np.int64)
        for power in self._powers[1:-1]:
            has_next = ~self._ended[last]
            last = np.where(has_next, (last + self._num_envs) % self.buffer.capacity, last)
            returns += np.where(has_next, power * rewards[last], 0.0)
            steps += has_next
        return NStepBatch(
            obs=self.buffer.obs_at(rows),
            actions=self.buffer.actions[rows],
            returns=returns.astype(np.float32),
            next_obs=self.buffer.next_obs_at(last),
            discounts=(self._powers[steps] * (1 - self.buffer.terminated[last])).astype(np.float32),
            weights=(weights / weights.max()).astype(np.float32),
            rows=rows,
        )

    def prioritize(self, rows: np.ndarray, losses: np.ndarray) -> None:
        """Set the priorities of these rows by their losses."""
        priorities = (np.abs(losses.astype(np.float64)) + self._epsilon) ** self._alpha
        self._largest = max(self._largest, float(priorities.max()))
        self._tree.put(rows, priorities)

    # -- checkpoints; the buffer is saved separately

    def snapshot(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return copied arrays, and values."""
        count = len(self.buffer)
        arrays = {"priorities": self._tree.values[:count].copy(), "ended": self._ended[:count].copy()}
        return arrays, {"waiting": self._waiting.tolist(), "largest": self._largest}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Load what `snapshot` returned, after the buffer was restored; an empty buffer has no priorities."""
        count = len(self.buffer)
        self._largest = float(values["largest"])
        if not count:
            return
        priorities = np.zeros(self.buffer.capacity)
        priorities[:count] = arrays["priorities"][:count]
        self._tree.fill(priorities)
        self._ended[:count] = arrays["ended"][:count]
        self._waiting[:] = values["waiting"]
