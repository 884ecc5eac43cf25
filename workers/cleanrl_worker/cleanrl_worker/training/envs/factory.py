"""Chooses how environments are stepped: the cheapest way that gives the same transitions, or the one asked for.

native   gymnasium's vectorised CartPole; Procgen and two-player games, which come in numbers anyway
sync     a loop in this process
async    processes of their own
ale      ale-py's C++ vector environment, for Atari: nearly the same (see ale_vector), only when asked for
envpool  envpool's environments: others by the same name, only when asked for or for the *_envpool algorithms
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs.convention import VectorEnvs
from cleanrl_worker.training.envs.making import native_vector_of, said_of
from cleanrl_worker.training.envs.native import NATIVE_CARTPOLE_FROM, NativeCartPole
from cleanrl_worker.training.envs.pipelines import (
    PIPELINES,
    Atari,
    Plain,
    Procgen,
    TwoPlayers,
    atari_game,
    envpool_name,
)
from cleanrl_worker.training.envs.processes import AsyncEnvs
from cleanrl_worker.training.envs.sync import SyncEnvs

ASYNC_FROM = 4
"""From this many Atari games, and cores, on: a game costs a third of a millisecond a step, a process a tenth of that"""


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
    with said_of(env_id):
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
    """Refuse a backend that cannot serve this environment."""
    known = PIPELINES[pipeline]
    if backend not in ("auto", *known.backends):
        offered = ", ".join(("auto", *known.backends))
        raise BadInput(f"--env-backend {backend} is not for the environments of this algorithm; choose {offered}")
    if backend == "native" and isinstance(known, Plain) and not _has_native_cartpole(env_id):
        raise BadInput(f"--env-backend native: {env_id} has no vectorised form of its own; choose sync or async")
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
        game, num_envs, stack=known.stack, sticky=known.stickiness(env_id, env_kwargs), skip=known.skip(env_kwargs),
        num_threads=min(num_envs, len(os.sched_getaffinity(0))),
    )  # fmt: skip


def _envpool(env_id: str, num_envs: int, env_kwargs: Mapping[str, Any], pipeline: str) -> VectorEnvs:
    from cleanrl_worker.training.envs.envpool_envs import ATARI, EnvpoolEnvs

    known = PIPELINES[pipeline]
    if not isinstance(known, Atari):
        return EnvpoolEnvs(env_id, num_envs, env_kwargs, is_atari=False)
    options = {**ATARI, **known.for_envpool(env_kwargs)}
    return EnvpoolEnvs(envpool_name(env_id), num_envs, options, is_atari=True)
