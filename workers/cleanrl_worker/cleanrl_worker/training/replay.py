"""Replay buffers: a ring of transitions, sampled uniformly.

A transition is (obs, action, reward, next_obs, terminated), where `next_obs` is what really followed the action, before
any reset: `Step.final_obs`. Truncated episodes are therefore bootstrapped without further care.
"""

from __future__ import annotations

from typing import NamedTuple

import gymnasium as gym
import numpy as np


class Transitions(NamedTuple):
    """A batch, one row per transition."""

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray


class ReplayBuffer:
    """Holds the last `capacity` transitions of all environments together."""

    def __init__(self, capacity: int, observations: gym.Space, actions: gym.Space) -> None:
        discrete = isinstance(actions, gym.spaces.Discrete)
        self.capacity = capacity
        self.arrays = Transitions(
            obs=np.zeros((capacity, *(observations.shape or ())), dtype=observations.dtype),
            actions=np.zeros((capacity, *(actions.shape or ())), dtype=np.int64 if discrete else np.float32),
            rewards=np.zeros(capacity, dtype=np.float32),
            next_obs=np.zeros((capacity, *(observations.shape or ())), dtype=observations.dtype),
            terminated=np.zeros(capacity, dtype=np.float32),
        )
        self.position = 0
        self.size = 0

    def __len__(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def add(
        self, obs: np.ndarray, actions: np.ndarray, rewards: np.ndarray, next_obs: np.ndarray, terminated: np.ndarray
    ) -> None:
        """Store one step of every environment."""
        count = len(rewards)
        end = self.position + count
        rows = slice(self.position, end) if end <= self.capacity else np.arange(self.position, end) % self.capacity
        for array, values in zip(self.arrays, (obs, actions, rewards, next_obs, terminated), strict=True):
            array[rows] = values
        self.position = end % self.capacity
        self.size = min(self.size + count, self.capacity)

    def sample(self, rng: np.random.Generator, batch_size: int) -> Transitions:
        """Rows drawn uniformly, with replacement."""
        rows = rng.integers(self.size, size=batch_size)
        return Transitions(*(array[rows] for array in self.arrays))
