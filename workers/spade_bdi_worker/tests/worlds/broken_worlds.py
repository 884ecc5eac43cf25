"""Environments that go wrong; tests name them as `broken_worlds:Breaking-v0`."""

from __future__ import annotations

import gymnasium
from gymnasium.spaces import Box, Discrete


class Breaking(gymnasium.Env):
    observation_space, action_space = Discrete(4), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left = 3
        return 0, {}

    def step(self, action):
        self._left -= 1
        if not self._left:
            raise ZeroDivisionError("the floor gave way")
        return 1, 0.0, False, False, {}


class Continuous(Breaking):
    action_space = Box(0.0, 1.0, (1,))


class Painting(Breaking):
    observation_space = Box(0, 255, (8, 8, 3), "uint8")


for kind in (Breaking, Continuous, Painting):
    gymnasium.register(f"{kind.__name__}-v0", kind)
