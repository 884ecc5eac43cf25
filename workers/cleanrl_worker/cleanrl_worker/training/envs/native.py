"""Environments that come vectorised: gymnasium's CartPole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from cleanrl_worker.fastlane import draw
from cleanrl_worker.training.envs.convention import EnvState, Step

NATIVE_CARTPOLE_FROM = 6
"""From this many environments on the native vector CartPole costs less per step than a loop over single ones"""


class NativeCartPole:
    """Gymnasium's vectorised CartPole, with the reset moved into the step that ends the episode."""

    def __init__(self, env_id: str, num_envs: int, env_kwargs: Mapping[str, Any] | None = None) -> None:
        env = gym.make_vec(
            env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **(env_kwargs or {})
        ).unwrapped
        if not isinstance(env, CartPoleVectorEnv):
            raise TypeError(f"{env_id} has no native vector CartPole")
        self._env: Any = env  # its arrays are read and set here; gymnasium declares them as None
        self._env_id = env_id
        self._drawn: gym.Env | None = None
        self.num_envs = num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space

    def reset(self, seed: int) -> np.ndarray:
        return self._env.reset(seed=seed)[0]

    def step(self, actions: np.ndarray) -> Step:
        env = self._env
        final_obs, rewards, terminated, truncated, _ = env.step(actions)
        ended = env.prev_done
        if not np.count_nonzero(ended):
            return Step(final_obs, rewards, terminated, truncated, final_obs, ended)
        obs = final_obs.copy()
        env.state[:, ended] = env.np_random.uniform(env.low, env.high, size=(4, int(ended.sum())))
        env.steps[ended] = 0
        obs[ended] = env.state[:, ended].T
        env.prev_done = np.zeros(self.num_envs, dtype=np.bool_)
        return Step(obs, rewards, terminated, truncated, final_obs, ended)

    def snapshot(self) -> EnvState:
        env = self._env
        return EnvState(
            {"state": np.array(env.state), "steps": env.steps.copy()},
            {"backend": "native-cartpole", "rng": env.np_random.bit_generator.state},
        )

    def restore(self, state: EnvState) -> np.ndarray | None:
        if state.values.get("backend") != "native-cartpole":
            return None
        env = self._env
        env.reset(seed=0)
        env.np_random.bit_generator.state = state.values["rng"]
        env.state = state.arrays["state"].copy()
        env.steps = state.arrays["steps"].copy()
        return env.state.T.astype(np.float32)

    def draw(self, indices: Sequence[int]) -> list[np.ndarray] | str:
        """Pictures of some of them, drawn by a single CartPole that is put in their places."""
        if self._drawn is None:
            self._drawn = gym.make(self._env_id, disable_env_checker=True).unwrapped
        pictures = []
        for index in indices:
            self._drawn.state = tuple(self._env.state[:, index])  # type: ignore[attr-defined]
            picture, notice = draw(self._drawn)
            if picture is None:
                return notice
            pictures.append(picture)
        return pictures

    def close(self) -> None:
        self._env.close()
        if self._drawn is not None:
            self._drawn.close()
