"""The convention of all vector environments: an ended episode is reset in the same step (SAME_STEP autoreset).

`step` returns the observation to act on next, and for ended episodes also their last observation (`final_obs`). No
transition between two episodes is ever returned. Gymnasium's NEXT_STEP autoreset would add one invalid transition per
episode.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np


class Step(NamedTuple):
    """The result of one step of all environments. Callers may keep the arrays, but not write to them."""

    obs: np.ndarray
    """The observations to act on next: the first of the new episode where one ended"""
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_obs: np.ndarray
    """The next observations before any reset"""
    ended: np.ndarray
    """terminated or truncated"""
    raw_rewards: np.ndarray | None = None
    """The environment's rewards, where `rewards` are clipped or scaled"""
    over: np.ndarray | None = None
    """Where the whole game ended, if `ended` can also mean a lost life"""


@dataclass(frozen=True)
class EnvState:
    """Everything needed to continue exactly in another process."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


class VectorEnvs(Protocol):
    """Several copies of one environment, stepped together."""

    num_envs: int
    observation_space: gym.Space
    action_space: gym.Space

    def reset(self, seed: int) -> np.ndarray:
        """Begin new episodes and return their observations."""

    def step(self, actions: np.ndarray) -> Step:
        """Step all environments; ended episodes are reset."""

    def snapshot(self) -> EnvState:
        """Return the state for a checkpoint."""

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Restore a snapshot and return its observations; None if that is not possible."""

    def close(self) -> None:
        """Close the environments."""


class KeepsState(Protocol):
    """A single environment whose state can be saved, so that actions need not be replayed."""

    def save_state(self) -> EnvState:
        """Return the state."""

    def load_state(self, state: EnvState) -> np.ndarray | None:
        """Restore the state and return the observation; None if that is not possible."""


def none_of(count: int) -> np.ndarray:
    """Return a read-only array of False, shared by all steps in which no episode ended."""
    nothing = np.zeros(count, dtype=np.bool_)
    nothing.setflags(write=False)
    return nothing


_WEIGHT = 0.1
LINES_EVERY_S = 0.5


class EpisodeLines:
    """Prints returns of ended episodes as CleanRL does, at most twice a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_at = -math.inf

    def __call__(self, scalars: Mapping[str, float], step: int) -> None:
        episodic_return = scalars.get("charts/episodic_return")
        if episodic_return is None or (now := self._clock()) < self._due_at:
            return
        self._due_at = now + LINES_EVERY_S
        with suppress(OSError):  # the event file reports a full disk
            sys.stdout.write(f"global_step={step}, episodic_return={round(float(episodic_return), 4)}\n")
            sys.stdout.flush()


class EpisodeTracker:
    """Returns and lengths of the running episodes, and the last hundred that ended."""

    def __init__(self, num_envs: int) -> None:
        self._returns = [0.0] * num_envs
        self._steps = 0
        self._first_steps = [0] * num_envs
        """The step at which each running episode began: cheaper than counting all lengths in every step"""
        self._recent: deque[float] = deque(maxlen=100)
        self.episodes = 0
        self.smoothed_return = 0.0
        """Exponential moving average, for viewers only"""

    def add(self, step: Step) -> list[tuple[float, int]]:
        """Count one step; return (return, length) of the episodes that ended with it."""
        # Python floats are faster than a small array.
        rewards = step.rewards if step.raw_rewards is None else step.raw_rewards
        returns = self._returns
        for index, reward in enumerate(rewards.tolist()):
            returns[index] += reward
        self._steps += 1
        over = step.ended if step.over is None else step.over
        if not np.count_nonzero(over):  # four times faster than any()
            return []
        finished = []
        for index in np.flatnonzero(over).tolist():
            finished.append((returns[index], self._steps - self._first_steps[index]))
            returns[index], self._first_steps[index] = 0.0, self._steps
        self._recent.extend(episode_return for episode_return, _ in finished)
        for episode_return, _ in finished:
            self.smoothed_return += _WEIGHT * (episode_return - self.smoothed_return)
        self.episodes += len(finished)
        return finished

    @property
    def mean_return(self) -> float | None:
        """Return the mean over the last hundred episodes (fewer at the beginning); None before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def has_reached(self, episode_return: float | None) -> bool:
        """Return whether a full hundred episodes average at least this return."""
        mean = self.mean_return
        return episode_return is not None and mean is not None and len(self._recent) == 100 and mean >= episode_return

    def snapshot(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "returns": list(self._returns),
            "lengths": [self._steps - first for first in self._first_steps],
            "recent": list(self._recent),
            "episodes": self.episodes,
        }

    def restore(self, state: Mapping[str, Any], *, mid_episode: bool) -> None:
        """Restore the counts; without `mid_episode` the running episodes start at zero."""
        if mid_episode:
            self._returns = list(state["returns"])
            self._first_steps = [self._steps - length for length in state["lengths"]]
        self._recent.extend(state["recent"])
        self.episodes = int(state["episodes"])
