"""Small environments for tests: grid worlds with pictures, a joystick, and a family of one spaces in two lengths."""

from __future__ import annotations

import random

import gymnasium as gym
import numpy as np


class Corridor(gym.Env):
    """Walk right to the end of a corridor; the picture shows where the agent stands, as MiniGrid's would."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Dict(
        {
            "image": gym.spaces.Box(0, 255, (7, 7, 3), dtype=np.uint8),
            "direction": gym.spaces.Discrete(4),
            "mission": gym.spaces.Text(32),
        }
    )

    def __init__(self, length: int = 3, render_mode: str | None = None) -> None:
        self.render_mode, self._length = render_mode, length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._at, self._count = int(self.np_random.integers(2)), 0
        return self._see(), {}

    def step(self, action):
        self._at = max(0, self._at + (1 if action == 1 else -1))
        self._count += 1
        arrived = self._at >= self._length
        return self._see(), 1.0 - 0.05 * self._count if arrived else 0.0, arrived, self._count >= 4 * self._length, {}

    def _see(self):
        image = np.zeros((7, 7, 3), dtype=np.uint8)
        image[3, min(self._at, 6)] = (10, 5, 0)
        return {"image": image, "direction": 0, "mission": "goright"}

    def render(self):
        return np.full((4, 6, 3), 40 * self._at % 256, dtype=np.uint8)


class Joystick(gym.Env):
    """Continuous actions: push towards zero; ends after three steps."""

    action_space = gym.spaces.Box(-1, 1, (2,), dtype=np.float32)
    observation_space = gym.spaces.Box(-10, 10, (2,), dtype=np.float32)
    render_mode = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._place, self._count = self.np_random.normal(size=2).astype(np.float32), 0
        return self._place.copy(), {}

    def step(self, action):
        self._place = self._place + np.asarray(action, dtype=np.float32)
        self._count += 1
        return self._place.copy(), -float(np.abs(self._place).sum()), False, self._count == 3, {}


class LegacyJoystick(Joystick):
    """As environments were written before numpy had generators."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.np_random = np.random.RandomState(seed)
        self._place, self._count = self.np_random.normal(size=2).astype(np.float32), 0
        return self._place.copy(), {}


class HomemadeJoystick(Joystick):
    """Draws with Python's own generator, which no library may seed."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    @property
    def np_random(self):
        return self._random

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._random.seed(seed)
        self._place, self._count = np.array([self._random.random(), 0], dtype=np.float32), 0
        return self._place.copy(), {}


class OtherShape(Corridor):
    """Does not fit the others."""

    action_space = gym.spaces.Discrete(5)


for name, entry, arguments in (
    ("CorridorShort-v0", Corridor, {"length": 2}),
    ("CorridorLong-v0", Corridor, {"length": 4}),
    ("Joystick-v0", Joystick, {}),
    ("LegacyJoystick-v0", LegacyJoystick, {}),
    ("HomemadeJoystick-v0", HomemadeJoystick, {}),
    ("OtherShape-v0", OtherShape, {}),
):
    if name not in gym.registry:
        gym.register(name, entry, kwargs=arguments)
