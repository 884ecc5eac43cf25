"""A learner judged while it trains and afterwards: in environments of its own, without touching what training draws."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch

from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.training.envs import make_single, said_of
from cleanrl_worker.training.evaluation import SEED_OFFSET, Evaluation, play_episodes
from cleanrl_worker.training.remembering import tell_episodes

MOST_ENVS = 16
"""They stay open as long as training goes on"""


class Acts(Protocol):
    """What is judged of a `Learner`; a `Remembering` one is told which episodes it acts in."""

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray: ...


class Evaluator:
    """Plays the same episodes every time it is asked; what differs is the policy."""

    def __init__(
        self,
        env_id: str,
        *,
        episodes: int,
        seed: int,
        deterministic: bool = True,
        env_kwargs: Mapping[str, Any] | None = None,
        pipeline: str = "plain",
    ) -> None:
        self._env_id, self._env_kwargs, self._pipeline = env_id, env_kwargs, pipeline
        self._episodes, self._seed, self._deterministic = episodes, seed + SEED_OFFSET, deterministic
        self._envs: list[gym.Env] = []

    @classmethod
    def of(cls, args: Any, env_id: str, pipeline: str) -> Evaluator:
        """As the flags say."""
        return cls(
            env_id, episodes=args.eval_episodes, seed=args.seed, pipeline=pipeline,
            deterministic=getattr(args, "eval_deterministic", True), env_kwargs=read_env_kwargs(args.env_kwargs),
        )  # fmt: skip

    def judge(self, learner: Acts, should_stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """Returns over the episodes; None when asked to stop on the way."""
        rng = None if self._deterministic else np.random.Generator(np.random.PCG64(self._seed))
        with undisturbed_generators():
            if not self._envs:
                self._make_envs()
            played = play_episodes(
                self._envs, lambda obs, _: learner.act(obs, rng), episodes=self._episodes, seed=self._seed,
                should_stop=should_stop, follow=partial(tell_episodes, learner),
            )  # fmt: skip
        if played is None:
            return None
        values = np.array([episode.episode_return for episode in played])
        figures = values.mean(), values.std(), values.min(), values.max()
        return Evaluation(self._episodes, *(float(figure) for figure in figures))

    def _make_envs(self) -> None:
        with said_of(self._env_id):
            for _ in range(min(MOST_ENVS, self._episodes)):
                self._envs.append(make_single(self._env_id, self._env_kwargs, pipeline=self._pipeline))

    def close(self) -> None:
        for env in self._envs:
            env.close()
        self._envs = []


@contextmanager
def undisturbed_generators() -> Iterator[None]:
    """Leave the process' own random streams as they were: an environment or a network may draw from them."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(_cuda_devices()):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def _cuda_devices() -> range:
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return range(torch.cuda.device_count() if in_use else 0)
