"""envpool's environments: all steps in C++ threads.

Atari games come with envpool's own preprocessing under the options CleanRL's scripts give it: a life an episode, signs
of rewards, a game begins after up to 30 frames of nothing and one of FIRE. It cannot be restored within an episode: a
resumed run begins new games.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import envpool
import gymnasium as gym
import numpy as np

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs.vector import EnvState, Step

ATARI = {"episodic_life": True, "reward_clip": True}
"""A life an episode, rewards as signs: what CleanRL's scripts ask for"""


class EnvpoolEnvs:
    """envpool under our convention: its reset, which would be a step of its own, happens in the step that ends."""

    def __init__(self, env_id: str, num_envs: int, options: Mapping[str, Any], *, is_atari: bool) -> None:
        if env_id not in envpool.list_all_envs():
            raise BadInput(f"envpool has no environment {env_id!r}; its Atari games are called like Pong-v5")
        self._env_id, self._options, self._is_atari = env_id, dict(options), is_atari
        self.num_envs = num_envs
        self._env: Any = None
        made = self._make(0)
        self.observation_space: gym.Space = made.observation_space
        self.action_space: gym.Space = made.action_space
        self._action_dtype = np.int32 if isinstance(self.action_space, gym.spaces.Discrete) else np.float64

    def _make(self, seed: int) -> Any:
        self.close()
        # Seeds are taken when it is made, and no later.
        self._env = envpool.make(
            self._env_id, env_type="gymnasium", num_envs=self.num_envs, seed=seed % 2**31, **self._options
        )
        return self._env

    def reset(self, seed: int) -> np.ndarray:
        """Begin new episodes and return their observations."""
        self._make(seed)
        obs: np.ndarray = self._env.reset()[0]
        return obs

    def step(self, actions: np.ndarray) -> Step:
        """Step all environments; ended episodes are reset."""
        actions = actions.astype(self._action_dtype)
        final_obs, rewards, terminated, truncated, info = self._env.step(actions)
        ended = terminated | truncated
        raw_rewards = over = None
        if self._is_atari:
            raw_rewards = info["reward"].astype(np.float32)
            over = (info["terminated"] != 0) | truncated
        obs = final_obs
        if np.count_nonzero(ended):
            # A step of those that ended, and of no other, is their reset; its action is not looked at.
            rows = np.flatnonzero(ended).astype(np.int32)
            obs = final_obs.copy()
            obs[rows] = self._env.step(actions[rows], rows)[0]
        return Step(obs, rewards.astype(np.float32), terminated, truncated, final_obs, ended, raw_rewards, over)

    def snapshot(self) -> EnvState:
        """Return an empty state: the games cannot be saved."""
        return EnvState({}, {"backend": "envpool"})

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Never: what its threads are at cannot be read."""
        return None

    def close(self) -> None:
        """Close the environments."""
        if self._env is not None:
            self._env.close()
            self._env = None


class EnvpoolGame(gym.Env):
    """One of envpool's Atari games, for evaluation where envpool is all there is: the game's rewards, whole games.

    Between two lives envpool does the same as between two episodes of training.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, env_id: str, options: Mapping[str, Any], *, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._envs = EnvpoolEnvs(env_id, 1, {**ATARI, **options}, is_atari=True)
        self.observation_space, self.action_space = self._envs.observation_space, self._envs.action_space
        self._obs: np.ndarray | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a game; without a seed it has begun by itself when the last one ended."""
        super().reset(seed=seed)
        if seed is not None or self._obs is None:
            self._obs = self._envs.reset(seed if seed is not None else int(self.np_random.integers(2**31)))[0]
        return self._obs, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step of the game."""
        step = self._envs.step(np.array([action]))
        assert step.raw_rewards is not None
        assert step.over is not None
        self._obs = step.obs[0]
        cut = bool(step.truncated[0])
        return self._obs, float(step.raw_rewards[0]), bool(step.over[0]) and not cut, cut, {}

    def render(self) -> np.ndarray:
        """What the agent sees, for envpool draws nothing else: its newest frame."""
        assert self._obs is not None
        gray: np.ndarray = self._obs[-1]
        return np.repeat(gray[:, :, None], 3, axis=2)

    def close(self) -> None:
        """Close the game."""
        self._envs.close()
