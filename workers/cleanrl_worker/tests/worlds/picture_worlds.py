"""A small environment that looks like Atari behind its wrappers: stacks of four gray frames of 84 x 84."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

LENGTH = 8
"""Steps of an episode, which a time limit ends"""


class Quadrants(gym.Env):
    """Name the quadrant that is bright in the newest picture; the others show what was bright before."""

    action_space = gym.spaces.Discrete(4)
    observation_space = gym.spaces.Box(0, 255, (4, 84, 84), dtype=np.uint8)
    render_mode = None

    def __init__(self, *, fatal: bool = False) -> None:
        """`fatal`: a wrong answer ends the episode."""
        self._fatal = fatal

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count = 0
        self._pictures = [self._draw()] * 4
        return np.stack(self._pictures), {}

    def step(self, action):
        right = bool(action == self._bright)
        self._count += 1
        self._pictures = [*self._pictures[1:], self._draw()]
        terminated = self._fatal and not right
        return np.stack(self._pictures), float(right), terminated, self._count == LENGTH and not terminated, {}

    def _draw(self):
        self._bright = int(self.np_random.integers(4))
        image = np.zeros((84, 84), dtype=np.uint8)
        down, right = divmod(self._bright, 2)
        image[42 * down : 42 * down + 42, 42 * right : 42 * right + 42] = 255
        return image


for name, arguments in (("Quadrants-v0", {}), ("FatalQuadrants-v0", {"fatal": True})):
    if name not in gym.registry:
        gym.register(name, Quadrants, kwargs=arguments)
