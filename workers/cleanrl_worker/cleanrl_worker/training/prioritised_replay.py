"""Prioritised replay of n-step transitions (Schaul et al. 2016; the sampling of Rainbow).

Steps are stored once, in a ring (`replay.py`); what n steps from a row gave is added up when the row is drawn. A row
can be drawn once the steps after it are known: n of them, or those up to the end of its episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from cleanrl_worker.training.replay import ReplayBuffer

_WIDTH = 64
"""Children of a node: wide, because numpy adds up 64 numbers as quickly as two"""


class SumTree:
    """Numbers that are not negative, and the sums of more and more of them, to draw rows in proportion to them.

    Sums are added up anew from what stands below them, so they depend on the numbers alone and not on their history.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._levels = [np.zeros(_padded(size), dtype=np.float64)]
        while len(self._levels[-1]) > _WIDTH:
            self._levels.append(np.zeros(_padded(len(self._levels[-1]) // _WIDTH), dtype=np.float64))
        self._nodes = [level.reshape(-1, _WIDTH) for level in self._levels]

    @property
    def values(self) -> np.ndarray:
        """The numbers themselves; change them with `put` only."""
        return self._levels[0][: self._size]

    @property
    def total(self) -> float:
        return float(self._levels[-1].sum())

    @property
    def nbytes(self) -> int:
        return sum(level.nbytes for level in self._levels)

    def put(self, rows: np.ndarray, values: np.ndarray | float) -> None:
        """Set the numbers of these rows; of a row that is named twice, the last one counts."""
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
        """For each target from 0 to `total` the row within whose share it falls; never one whose number is 0."""
        found = np.zeros(len(targets), dtype=np.int64)
        left = np.asarray(targets, dtype=np.float64)
        for nodes in reversed(self._nodes):
            reached = nodes[found].cumsum(axis=1)
            # The sums of two levels differ by rounding: a target must not fall behind the last share.
            left = np.minimum(left, np.nextafter(reached[:, -1], 0.0))
            child = (reached <= left[:, None]).sum(axis=1)
            before = np.take_along_axis(reached, np.maximum(child - 1, 0)[:, None], axis=1)[:, 0]
            left = np.maximum(left - np.where(child > 0, before, 0.0), 0.0)
            found = found * _WIDTH + child
        return found


def _padded(size: int) -> int:
    return -(-size // _WIDTH) * _WIDTH


class NStepBatch(NamedTuple):
    """Rows as they were drawn, each with what followed it."""

    obs: np.ndarray
    actions: np.ndarray
    returns: np.ndarray
    """Discounted rewards of up to n steps, of one episode only"""
    next_obs: np.ndarray
    """Where those steps led, before any reset"""
    discounts: np.ndarray
    """What a value there counts: gamma to the number of steps; 0 where the episode terminated"""
    weights: np.ndarray
    """Importance weights, the largest of the batch is 1"""
    rows: np.ndarray
    """For `prioritise`"""


class PrioritisedReplay:
    """Draws rows of a buffer in proportion to their priorities; new ones count as the most surprising so far.

    Every `add` of the buffer stores one step of each environment, so the step that follows a row in its environment is
    `num_envs` rows later: the buffer's capacity must be a multiple of that.
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
        """How many of an environment's last rows cannot be drawn yet"""
        self._largest = 1.0

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes + self._tree.nbytes + self._ended.nbytes

    @property
    def ready(self) -> bool:
        """Whether there is a row that can be drawn."""
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
        """Rows whose future is settled by the step at `rows`; they wait no longer."""
        offsets = []
        for back in range(self._n_step):
            # The oldest of n, or all that wait when the episode is over.
            settled = (self._waiting > back) & (ended | (back == self._n_step - 1))
            offsets.append(rows[settled] - back * self._num_envs)
        self._waiting[ended | (self._waiting == self._n_step)] -= 1
        self._waiting[ended] = 0
        return np.concatenate(offsets) % self.buffer.capacity

    def break_off(self) -> None:
        """The running episodes will not be continued: what was stored of them ends here, as at a time limit."""
        if len(self.buffer):
            rows = (self.buffer.position - self._num_envs + np.arange(self._num_envs)) % self.buffer.capacity
            self._ended[rows] = True
            known = self._rows_known(rows, np.ones(self._num_envs, dtype=np.bool_))
            self._tree.put(known, self._largest)

    def sample(self, rng: np.random.Generator, batch_size: int, beta: float) -> NStepBatch:
        """Rows in proportion to their priorities, one from each of `batch_size` equal shares of the sum."""
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
            goes_on = ~self._ended[last]
            last = np.where(goes_on, (last + self._num_envs) % self.buffer.capacity, last)
            returns += np.where(goes_on, power * rewards[last], 0.0)
            steps += goes_on
        return NStepBatch(
            obs=self.buffer.obs_at(rows),
            actions=self.buffer.actions[rows],
            returns=returns.astype(np.float32),
            next_obs=self.buffer.next_obs_at(last),
            discounts=(self._powers[steps] * (1 - self.buffer.terminated[last])).astype(np.float32),
            weights=(weights / weights.max()).astype(np.float32),
            rows=rows,
        )

    def prioritise(self, rows: np.ndarray, losses: np.ndarray) -> None:
        """Say how wrong the network was about these rows."""
        priorities = (np.abs(losses.astype(np.float64)) + self._epsilon) ** self._alpha
        self._largest = max(self._largest, float(priorities.max()))
        self._tree.put(rows, priorities)

    # -- checkpoints; the buffer has its own way there

    def snapshot(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays in memory of their own, and values."""
        count = len(self.buffer)
        arrays = {"priorities": self._tree.values[:count].copy(), "ended": self._ended[:count].copy()}
        return arrays, {"waiting": self._waiting.tolist(), "largest": self._largest}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Take them back, after the buffer has its rows again; where it came back empty, so is this."""
        count = len(self.buffer)
        self._largest = float(values["largest"])
        if not count:
            return
        priorities = np.zeros(self.buffer.capacity)
        priorities[:count] = arrays["priorities"][:count]
        self._tree.fill(priorities)
        self._ended[:count] = arrays["ended"][:count]
        self._waiting[:] = values["waiting"]
