"""Procgen's games: generated levels, frames uint8 (64, 64, 3), rewards as the game pays them.

They come in numbers only and begin the next level by themselves in the step that ends one, so the last frame of a
level is never seen: `final_obs` of an ended episode is the first frame of the next. Every end counts as a termination
(a level's time limit is not reported), so nothing is bootstrapped from it. Their state can be read and set: resume is
exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from procgen import ProcgenGym3Env

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs.vector import EnvState, Step, none_of

DEFAULTS = {"num_levels": 0, "start_level": 0, "distribution_mode": "easy"}
"""All levels there are, of the easy kind: what CleanRL's scripts ask for"""


class ProcgenEnvs:
    """So many copies of one game, each on levels of its own."""

    def __init__(self, game: str, num_envs: int, env_kwargs: Mapping[str, Any]) -> None:
        self._game, self._kwargs = game, {**DEFAULTS, **env_kwargs}
        self.num_envs = num_envs
        self._make(0)
        self.observation_space: gym.Space = gym.spaces.Box(0, 255, (64, 64, 3), dtype=np.uint8)
        self.action_space: gym.Space = gym.spaces.Discrete(15)
        self._nothing_cut = none_of(num_envs)

    def _make(self, seed: int) -> None:
        try:
            # Seeds are taken when it is made, and no later.
            self._env: Any = ProcgenGym3Env(num=self.num_envs, env_name=self._game, rand_seed=seed, **self._kwargs)
        except (TypeError, ValueError, AssertionError, KeyError) as error:
            raise BadInput(f"procgen cannot make {self._game!r} with {self._kwargs}: {error}") from error

    def reset(self, seed: int) -> np.ndarray:
        """Begin new episodes and return their observations."""
        self._make(seed % 2**31)
        return self._see()[1]

    def step(self, actions: np.ndarray) -> Step:
        """Step all environments; ended episodes are reset."""
        self._env.act(actions.astype(np.int32))
        rewards, obs, first = self._see()
        return Step(obs, rewards, first, self._nothing_cut, obs, first)

    def _see(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rewards, seen, first = self._env.observe()
        return np.array(rewards, dtype=np.float32), np.array(seen["rgb"]), np.array(first, dtype=np.bool_)

    def snapshot(self) -> EnvState:
        """Return the state for a checkpoint."""
        states = self._env.callmethod("get_state")
        arrays = {f"game.{index}": np.frombuffer(state, dtype=np.uint8).copy() for index, state in enumerate(states)}
        return EnvState({"obs": self._see()[1], **arrays}, {"backend": "procgen", "count": self.num_envs})

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Restore a snapshot and return its observations; None if that is not possible."""
        if state.values.get("backend") != "procgen" or state.values["count"] != self.num_envs:
            return None
        self._see()
        self._env.callmethod("set_state", [state.arrays[f"game.{index}"].tobytes() for index in range(self.num_envs)])
        obs = self._see()[1]
        return obs if np.array_equal(obs, state.arrays["obs"]) else None

    def close(self) -> None:
        """Close the environments."""
        self._env.close()


class ProcgenGame(gym.Env):
    """One game, for evaluation: a seed begins it anew."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, game: str, env_kwargs: Mapping[str, Any], *, render_mode: str | None = None) -> None:
        self._envs = ProcgenEnvs(game, 1, env_kwargs)
        self.observation_space, self.action_space = self._envs.observation_space, self._envs.action_space
        self.render_mode = render_mode
        self._obs = np.zeros((64, 64, 3), dtype=np.uint8)
        self._has_begun = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a level; without a seed it has begun by itself when the last one ended."""
        super().reset(seed=seed)
        if seed is not None or not self._has_begun:
            self._obs = self._envs.reset(seed if seed is not None else int(self.np_random.integers(2**31)))[0]
            self._has_begun = True
        return self._obs, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step of the game."""
        step = self._envs.step(np.array([action]))
        self._obs = step.obs[0]
        return self._obs, float(step.rewards[0]), bool(step.terminated[0]), False, {}

    def render(self) -> np.ndarray:
        """Return what the agent sees."""
        return self._obs

    def close(self) -> None:
        """Close the game."""
        self._envs.close()
