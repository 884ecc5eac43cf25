"""Small environments with continuous actions: aim at what is seen, and one that breaks."""

from __future__ import annotations

import gymnasium as gym
import numpy as np


class Aim(gym.Env):
    """Do what you see, stretched to bounds that are not symmetric; four steps an episode, ended by a time limit."""

    action_space = gym.spaces.Box(np.array([-1, 0], dtype=np.float32), np.array([1, 4], dtype=np.float32))
    observation_space = gym.spaces.Box(-1, 1, (2,), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return self._show(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        missed = (action - np.array([0, 2])) / np.array([1, 2]) - self._seen
        self._count += 1
        return self._show(), -float(np.abs(missed).sum()), False, self._count == 4, {}

    def _show(self):
        self._seen = self.np_random.uniform(-0.8, 0.8, size=2)
        return self._seen


class Walk(gym.Env):
    """Observation = steps taken; terminates after 3 steps where the action was positive, is cut after 5 otherwise."""

    action_space = gym.spaces.Box(-1, 1, (1,), dtype=np.float32)
    observation_space = gym.spaces.Box(0, 100, (1,), dtype=np.float32)

    def __init__(self, broken_at: int = 0) -> None:
        self._steps, self._broken_at = 0, broken_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        self._count += 1
        self._steps += 1
        terminated = bool(action[0] > 0 and self._count == 3)
        seen = np.nan if self._steps == self._broken_at else self._count
        return np.full(1, seen, dtype=np.float32), 1.0, terminated, self._count == 5 and not terminated, {}


class Unbounded(Walk):
    """Actions without bounds on one side."""

    action_space = gym.spaces.Box(0, np.inf, (1,), dtype=np.float32)


class Grid(Walk):
    """Actions that are a table."""

    action_space = gym.spaces.Box(-1, 1, (2, 2), dtype=np.float32)


for name, entry in (("Aim-v0", Aim), ("Walk-v0", Walk), ("Unbounded-v0", Unbounded), ("Grid-v0", Grid)):
    if name not in gym.registry:
        gym.register(name, entry)
