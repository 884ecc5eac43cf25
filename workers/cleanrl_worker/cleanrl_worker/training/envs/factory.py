"""Chooses how environments are stepped: the cheapest way with the same transitions, or the requested one.

native   gymnasium's vectorized CartPole; Procgen and two-player games, which are vectorized
sync     a loop in this process
async    separate processes
ale      ale-py's C++ vector environment for Atari: nearly the same (see ale_vector), only on request
envpool  envpool's environments: others of the same name, only on request or for the *_envpool algorithms
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from cleanrl_worker.errors import BadInput
from cleanrl_worker.fastlane import draw
from cleanrl_worker.training.envs.construction import (
    PIPELINES,
    Atari,
    Plain,
    Procgen,
    TwoPlayers,
    atari_game,
    environment_errors,
    envpool_name,
    native_vector_of,
)
from cleanrl_worker.training.envs.processes import AsyncEnvs
from cleanrl_worker.training.envs.sync import SyncEnvs
from cleanrl_worker.training.envs.vector import EnvState, Step, VectorEnvs

NATIVE_CARTPOLE_FROM = 6
"""Number of environments from which the native vector CartPole costs less per step than a loop over single ones"""


class NativeCartPole:
    """Gymnasium's vectorized CartPole, with the reset moved into the step that ends the episode."""

    def __init__(self, env_id: str, num_envs: int, env_kwargs: Mapping[str, Any] | None = None) -> None:
        env = gym.make_vec(
            env_id, num_envs=num_envs, vectorization_mode="vector_entry_point", **(env_kwargs or {})
        ).unwrapped
        if not isinstance(env, CartPoleVectorEnv):
            raise TypeError(f"{env_id} has no native vector CartPole")
        self._env: Any = env  # gymnasium declares the arrays used here as None
        self._env_id = env_id
        self._drawn: gym.Env | None = None
        self.num_envs = num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space

    def reset(self, seed: int) -> np.ndarray:
        """Begin new episodes and return their observations."""
        return self._env.reset(seed=seed)[0]

    def step(self, actions: np.ndarray) -> Step:
        """Step all environments; ended episodes are reset."""
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
        """Return the state for a checkpoint."""
        env = self._env
        return EnvState(
            {"state": np.array(env.state), "steps": env.steps.copy()},
            {"backend": "native-cartpole", "rng": env.np_random.bit_generator.state},
        )

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Restore a snapshot and return its observations; None for one of another backend."""
        if state.values.get("backend") != "native-cartpole":
            return None
        env = self._env
        env.reset(seed=0)
        env.np_random.bit_generator.state = state.values["rng"]
        env.state = state.arrays["state"].copy()
        env.steps = state.arrays["steps"].copy()
        return env.state.T.astype(np.float32)

    def draw(self, indices: Sequence[int]) -> list[np.ndarray] | str:
        """Return frames of some of the environments, rendered by a single CartPole with their states."""
        if self._drawn is None:
            self._drawn = gym.make(self._env_id, disable_env_checker=True).unwrapped
        frames = []
        for index in indices:
            self._drawn.state = tuple(self._env.state[:, index])  # type: ignore[attr-defined]
            frame, notice = draw(self._drawn)
            if frame is None:
                return notice
            frames.append(frame)
        return frames

    def close(self) -> None:
        """Close the environments."""
        self._env.close()
        if self._drawn is not None:
            self._drawn.close()


ASYNC_FROM = 4
"""Number of Atari games, and of cores, from which processes are faster: a step of a game takes 0.3 ms"""


def make_envs(
    env_id: str,
    num_envs: int,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    pipeline: str = "plain",
    backend: str = "auto",
) -> VectorEnvs:
    """Make the environments to train in."""
    kwargs = dict(env_kwargs or {})
    with environment_errors(env_id):
        check_backend(env_id, kwargs, pipeline, backend)
        if backend == "auto":
            backend = _cheapest(env_id, num_envs, kwargs, pipeline)
        match backend:
            case "native":
                return _native(env_id, num_envs, kwargs, pipeline)
            case "async":
                return AsyncEnvs(env_id, num_envs, kwargs, pipeline=pipeline)
            case "ale":
                return _ale(env_id, num_envs, kwargs, pipeline)
            case "envpool":
                return _envpool(env_id, num_envs, kwargs, pipeline)
        return SyncEnvs(env_id, num_envs, kwargs, pipeline=pipeline)


def check_backend(env_id: str, env_kwargs: Mapping[str, Any], pipeline: str, backend: str) -> None:
    """Raise BadInput if the backend does not support this environment."""
    known = PIPELINES[pipeline]
    if backend not in ("auto", *known.backends):
        offered = ", ".join(("auto", *known.backends))
        raise BadInput(f"--env-backend {backend} is not for the environments of this algorithm; choose {offered}")
    if backend == "native" and isinstance(known, Plain) and not _has_native_cartpole(env_id):
        raise BadInput(f"--env-backend native: {env_id} has no vectorized form of its own; choose sync or async")
    others = sorted(env_kwargs.keys() - {"frameskip", "repeat_action_probability"})
    if backend == "ale" and others:
        raise BadInput(f"--env-backend ale takes no --env-kwargs {', '.join(others)}; choose sync or async")


def _cheapest(env_id: str, num_envs: int, env_kwargs: Mapping[str, Any], pipeline: str) -> str:
    known = PIPELINES[pipeline]
    if isinstance(known, Plain):
        native = num_envs >= NATIVE_CARTPOLE_FROM and not env_kwargs and _has_native_cartpole(env_id)
        return "native" if native else "sync"
    if isinstance(known, Atari):
        return "async" if min(num_envs, len(os.sched_getaffinity(0))) >= ASYNC_FROM else "sync"
    return "native"


def _has_native_cartpole(env_id: str) -> bool:
    return native_vector_of(env_id).endswith("cartpole:CartPoleVectorEnv")


def _native(env_id: str, num_envs: int, env_kwargs: Mapping[str, Any], pipeline: str) -> VectorEnvs:
    known = PIPELINES[pipeline]
    if isinstance(known, Procgen):
        from cleanrl_worker.training.envs.procgen_games import ProcgenEnvs

        return ProcgenEnvs(env_id, num_envs, env_kwargs)
    if isinstance(known, TwoPlayers):
        from cleanrl_worker.training.envs.two_players import TwoPlayerEnvs

        return TwoPlayerEnvs(env_id, num_envs, env_kwargs)
    return NativeCartPole(env_id, num_envs, env_kwargs)


def _ale(env_id: str, num_envs: int, env_kwargs: Mapping[str, Any], pipeline: str) -> VectorEnvs:
    known = PIPELINES[pipeline]
    assert isinstance(known, Atari)
    game = str((gym.spec(atari_game(env_id)).kwargs or {})["game"])
    from cleanrl_worker.training.envs.ale_vector import AleVectorEnvs

    return AleVectorEnvs(
        game,
        num_envs,
        stack=known.stack,
        sticky=known.stickiness(env_id, env_kwargs),
        skip=known.skip(env_kwargs),
        num_threads=min(num_envs, len(os.sched_getaffinity(0))),
    )


def _envpool(env_id: str, num_envs: int, env_kwargs: Mapping[str, Any], pipeline: str) -> VectorEnvs:
    from cleanrl_worker.training.envs.envpool_envs import ATARI, EnvpoolEnvs

    known = PIPELINES[pipeline]
    if not isinstance(known, Atari):
        return EnvpoolEnvs(env_id, num_envs, env_kwargs, is_atari=False)
    options = {**ATARI, **known.for_envpool(env_kwargs)}
    return EnvpoolEnvs(envpool_name(env_id), num_envs, options, is_atari=True)
