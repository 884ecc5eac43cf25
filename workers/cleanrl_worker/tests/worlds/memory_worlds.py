"""A small environment that needs memory: single images of 84 x 84."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

LENGTH = 8
"""Steps of an episode, which a time limit ends"""


class Recall(gym.Env):
    """Name the half that was bright one picture ago; for the first picture of an episode every answer is right."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(0, 255, (1, 84, 84), dtype=np.uint8)
    render_mode = None

    def __init__(self, *, fatal: bool = False) -> None:
        """`fatal`: a wrong answer ends the episode."""
        self._fatal = fatal

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._count, self._seen_before = 0, None
        return self._draw(), {}

    def step(self, action):
        right = self._seen_before in (None, int(action))
        self._seen_before = self._bright
        self._count += 1
        terminated = self._fatal and not right
        return self._draw(), float(right), terminated, self._count == LENGTH and not terminated, {}

    def _draw(self):
        self._bright = int(self.np_random.integers(2))
        image = np.zeros((1, 84, 84), dtype=np.uint8)
        image[0, :, 42 * self._bright : 42 * self._bright + 42] = 255
        return image


for name, arguments in (("Recall-v0", {}), ("FatalRecall-v0", {"fatal": True})):
    if name not in gym.registry:
        gym.register(name, Recall, kwargs=arguments)
