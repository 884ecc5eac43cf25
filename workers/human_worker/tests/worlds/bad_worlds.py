"""Environments that go wrong, each in its own way."""

from __future__ import annotations

import os
import signal

import gymnasium as gym
import numpy as np


class Breaking(gym.Env):
    """Raises at the third step, or ends its process."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, render_mode=None, how: str = "raise"):
        self.render_mode, self._how, self._steps = render_mode, how, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self._steps += 1
        if self._steps == 3:
            if self._how == "kill":
                os.kill(os.getpid(), signal.SIGSEGV)
            raise RuntimeError("the floor gave way")
        return np.full(2, self._steps / 10, np.float32), 1.0, False, False, {}

    def render(self):
        return np.full((20, 30, 3), 10 * self._steps, np.uint8)


gym.register("Breaking-v0", entry_point=Breaking)
