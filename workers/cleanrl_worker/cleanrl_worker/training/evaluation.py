"""Evaluation of a policy over whole episodes, each with its own seed.

The episodes are fixed in advance: number i has seed i. Whatever the number of environments and the lengths of episodes,
the same ones count, so results are not biased towards short episodes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch

from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.training.envs import environment_errors, make_single
from cleanrl_worker.training.policies import set_episodes

SEED_OFFSET = 1_000_000
"""Evaluation episodes differ from training episodes with the same seed"""
MAX_STEPS = 100_000
"""Limit of an episode, for environments without a time limit"""
_MAX_ENVS = 64
_POLL_EVERY = 64
"""Steps between two checks for a requested stop"""

Act = Callable[[np.ndarray, Sequence[np.random.Generator]], np.ndarray]
"""From a batch of observations and the generators of their episodes to actions"""


@dataclass(frozen=True)
class Evaluation:
    """Returns over the evaluated episodes."""

    episodes: int
    mean_return: float
    std_return: float
    min_return: float
    max_return: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Episode:
    """One episode, finished or cut by a limit of the evaluation."""

    index: int
    seed: int
    episode_return: float
    discounted_return: float
    length: int
    cut: str = ""
    """`steps` or `seconds` when a limit of the evaluation ended it"""


@dataclass(frozen=True)
class Limits:
    """When an episode is cut; 0 means no limit."""

    steps: int = MAX_STEPS
    seconds: float = 0.0


class _Player:
    """One environment and its current episode."""

    def __init__(self, env: gym.Env, gamma: float, limits: Limits) -> None:
        self._env, self._gamma, self._limits = env, gamma, limits
        space = env.action_space
        self._first_action = int(space.start) if isinstance(space, gym.spaces.Discrete) else None
        self._bounds = (space.low, space.high) if isinstance(space, gym.spaces.Box) else None

    def begin(self, index: int, seed: int) -> None:
        self.index, self.seed = index, seed
        self.obs = self._env.reset(seed=seed)[0]
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.total = self.discounted = 0.0
        self.length, self._started_at = 0, time.monotonic()

    def step(self, action: Any) -> Episode | None:
        """Take one step; return the episode if it ended."""
        if self._first_action is not None:
            action = int(action) + self._first_action
        elif self._bounds is not None:
            action = np.clip(action, *self._bounds)
        self.obs, reward, terminated, truncated, _ = self._env.step(action)
        self.total += float(reward)
        self.discounted += self._gamma**self.length * float(reward)
        self.length += 1
        cut = "" if terminated or truncated else self._cut()
        if not (terminated or truncated or cut):
            return None
        return Episode(self.index, self.seed, self.total, self.discounted, self.length, cut)

    def _cut(self) -> str:
        if self._limits.steps and self.length >= self._limits.steps:
            return "steps"
        late = self._limits.seconds and time.monotonic() - self._started_at >= self._limits.seconds
        return "seconds" if late else ""


def play_episodes(
    envs: Sequence[gym.Env],
    act: Act,
    *,
    episodes: int,
    seed: int,
    gamma: float = 1.0,
    limits: Limits | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_episode: Callable[[Episode], None] = lambda episode: None,
    set_episodes: Callable[[Sequence[int]], None] = lambda episodes: None,
) -> list[Episode] | None:
    """Play `episodes` episodes and return them in order; None if a stop is requested meanwhile.

    `set_episodes` is called before every `act` with the numbers of its episodes, for recurrent policies.
    """
    set_episodes([])
    playing = [_Player(env, gamma, limits or Limits()) for env in envs[:episodes]]
    for index, player in enumerate(playing):
        player.begin(index, seed + index)
    waiting = iter(range(len(playing), episodes))
    finished: list[Episode] = []
    count = 0
    while playing:
        if count % _POLL_EVERY == 0 and should_stop():
            return None
        count += 1
        set_episodes([player.index for player in playing])
        actions = act(np.stack([player.obs for player in playing]), [player.rng for player in playing])
        playing = list(_step_all(playing, actions, waiting, seed, finished, on_episode))
    return sorted(finished, key=lambda episode: episode.index)


def _step_all(
    playing: Sequence[_Player],
    actions: np.ndarray,
    waiting: Iterator[int],
    seed: int,
    finished: list[Episode],
    on_episode: Callable[[Episode], None],
) -> Iterator[_Player]:
    """Step all players; yield those that continue or begin another episode."""
    for player, action in zip(playing, actions, strict=True):
        episode = player.step(action)
        if episode is not None:
            finished.append(episode)
            on_episode(episode)
            index = next(waiting, None)
            if index is None:
                continue
            player.begin(index, seed + index)
        yield player


def evaluate(
    env_id: str,
    act: Callable[[np.ndarray], np.ndarray],
    *,
    episodes: int,
    seed: int,
    should_stop: Callable[[], bool] = lambda: False,
    env_kwargs: Mapping[str, Any] | None = None,
    pipeline: str = "plain",
) -> Evaluation | None:
    """Evaluate a policy that was trained with this seed; return None if a stop is requested meanwhile."""
    with environment_errors(env_id):
        envs = [make_single(env_id, env_kwargs, pipeline=pipeline) for _ in range(min(_MAX_ENVS, episodes))]
    try:
        played = play_episodes(
            envs, lambda obs, rngs: act(obs), episodes=episodes, seed=seed + SEED_OFFSET, should_stop=should_stop
        )
    finally:
        for env in envs:
            env.close()
    if played is None:
        return None
    return _evaluation(played)


def _evaluation(played: Sequence[Episode]) -> Evaluation:
    values = np.array([episode.episode_return for episode in played])
    return Evaluation(len(played), float(values.mean()), float(values.std()), float(values.min()), float(values.max()))


MAX_ENVS = 16
"""Limit, because they stay open during training"""


class Acts(Protocol):
    """The part of a `Learner` that an evaluation needs."""

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Return the best actions, or actions sampled with `rng`."""


class Evaluator:
    """Evaluates a learner repeatedly, over the same episodes."""

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
        """Return the evaluator for these flags."""
        return cls(
            env_id,
            episodes=args.eval_episodes,
            seed=args.seed,
            pipeline=pipeline,
            deterministic=getattr(args, "eval_deterministic", True),
            env_kwargs=read_env_kwargs(args.env_kwargs),
        )

    def evaluate(self, learner: Acts, should_stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """Evaluate the learner; return None if a stop is requested meanwhile."""
        rng = None if self._deterministic else np.random.Generator(np.random.PCG64(self._seed))
        with preserved_generators():
            if not self._envs:
                self._make_envs()
            played = play_episodes(
                self._envs,
                lambda obs, _: learner.act(obs, rng),
                episodes=self._episodes,
                seed=self._seed,
                should_stop=should_stop,
                set_episodes=partial(set_episodes, learner),
            )
        if played is None:
            return None
        return _evaluation(played)

    def _make_envs(self) -> None:
        with environment_errors(self._env_id):
            for _ in range(min(MAX_ENVS, self._episodes)):
                self._envs.append(make_single(self._env_id, self._env_kwargs, pipeline=self._pipeline))

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()
        self._envs = []


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Restore the global generators of Python, numpy and torch afterwards: environments and networks may use them."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(_cuda_devices()):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def _cuda_devices() -> range:
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return range(torch.cuda.device_count() if in_use else 0)
