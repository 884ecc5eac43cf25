"""How good is a policy: whole episodes, each with a seed of its own.

Which episodes are played is settled before the first one: number i has seed i. However many environments share the work
and however long some episodes take, the same ones count, so short ones never crowd out long ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.training.envs import make_single, said_of

SEED_OFFSET = 1_000_000
"""Evaluation plays other episodes than training with the same seed did"""
MOST_STEPS = 100_000
"""An environment without a time limit must not hold the run for ever"""
_MOST_ENVS = 64
_LOOK_EVERY = 64
"""Steps between two looks at what was asked of the run"""

Act = Callable[[np.ndarray, Sequence[np.random.Generator]], np.ndarray]
"""Actions for a stack of observations; the generators are those of the episodes they come from"""


@dataclass(frozen=True)
class Evaluation:
    """Returns over the evaluated episodes."""

    episodes: int
    mean_return: float
    std_return: float
    min_return: float
    max_return: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Episode:
    """One episode, over or cut by a limit of the evaluation."""

    index: int
    seed: int
    episode_return: float
    discounted_return: float
    length: int
    cut: str = ""
    """`steps` or `seconds` when a limit of the evaluation ended it"""


@dataclass(frozen=True)
class Limits:
    """When an episode is cut; None or 0: not for that reason."""

    steps: int = MOST_STEPS
    seconds: float = 0.0


class _Player:
    """One environment and the episode it is in."""

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
        """Take one step; the episode, when it ended with it."""
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
    follow: Callable[[Sequence[int]], None] = lambda episodes: None,
) -> list[Episode] | None:
    """Play so many episodes and return them in order; None when asked to stop on the way.

    `follow` is told, before every `act`, the numbers of the episodes it acts in: for policies that remember.
    """
    follow([])
    playing = [_Player(env, gamma, limits or Limits()) for env in envs[:episodes]]
    for index, player in enumerate(playing):
        player.begin(index, seed + index)
    waiting = iter(range(len(playing), episodes))
    finished: list[Episode] = []
    count = 0
    while playing:
        if count % _LOOK_EVERY == 0 and should_stop():
            return None
        count += 1
        follow([player.index for player in playing])
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
    """Step everyone; yields those who go on."""
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
    """Judge a policy that has just been trained with this seed; None when asked to stop on the way."""
    with said_of(env_id):
        envs = [make_single(env_id, env_kwargs, pipeline=pipeline) for _ in range(min(_MOST_ENVS, episodes))]
    try:
        played = play_episodes(
            envs, lambda obs, rngs: act(obs), episodes=episodes, seed=seed + SEED_OFFSET, should_stop=should_stop
        )
    finally:
        for env in envs:
            env.close()
    if played is None:
        return None
    values = np.array([episode.episode_return for episode in played])
    return Evaluation(episodes, float(values.mean()), float(values.std()), float(values.min()), float(values.max()))
