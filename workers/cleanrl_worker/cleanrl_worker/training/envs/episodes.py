"""Returns and lengths of episodes, counted beside the algorithm."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from cleanrl_worker.training.envs.convention import Step

_WEIGHT = 0.1
LINES_EVERY_S = 0.5


class EpisodeLines:
    """Prints ended episodes as CleanRL does, the first at once and then at most a few a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_at = -math.inf

    def __call__(self, figures: Mapping[str, float], step: int) -> None:
        episodic_return = figures.get("charts/episodic_return")
        if episodic_return is None or (now := self._clock()) < self._due_at:
            return
        self._due_at = now + LINES_EVERY_S
        with suppress(OSError):  # a full disk is for the event file to report
            sys.stdout.write(f"global_step={step}, episodic_return={round(float(episodic_return), 4)}\n")
            sys.stdout.flush()


class EpisodeTracker:
    """Returns and lengths of the running episodes, and the last hundred that ended."""

    def __init__(self, num_envs: int) -> None:
        self._returns = [0.0] * num_envs
        self._steps = 0
        self._begun = [0] * num_envs
        """At which step each running episode began: counting all of them in every step would cost more"""
        self._recent: deque[float] = deque(maxlen=100)
        self.episodes = 0
        self.smoothed_return = 0.0
        """Exponentially, for people who watch; nothing is learned from it"""

    def add(self, step: Step) -> list[tuple[float, int]]:
        """Count one step; return (return, length) of the episodes that ended with it."""
        # A few plain numbers are quicker than an array of them.
        rewards = step.rewards if step.raw_rewards is None else step.raw_rewards
        returns = self._returns
        for index, reward in enumerate(rewards.tolist()):
            returns[index] += reward
        self._steps += 1
        over = step.ended if step.over is None else step.over
        if not np.count_nonzero(over):  # four times as quick as any()
            return []
        finished = []
        for index in np.flatnonzero(over).tolist():
            finished.append((returns[index], self._steps - self._begun[index]))
            returns[index], self._begun[index] = 0.0, self._steps
        self._recent.extend(episode_return for episode_return, _ in finished)
        for episode_return, _ in finished:
            self.smoothed_return += _WEIGHT * (episode_return - self.smoothed_return)
        self.episodes += len(finished)
        return finished

    @property
    def mean_return(self) -> float | None:
        """Mean over the last hundred episodes (fewer at the beginning); None before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def has_reached(self, episode_return: float | None) -> bool:
        """Tell whether a full hundred episodes average at least this return."""
        mean = self.mean_return
        return episode_return is not None and mean is not None and len(self._recent) == 100 and mean >= episode_return

    def snapshot(self) -> dict[str, Any]:
        return {
            "returns": list(self._returns), "lengths": [self._steps - begun for begun in self._begun],
            "recent": list(self._recent), "episodes": self.episodes,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any], *, mid_episode: bool) -> None:
        """Take the counts back; without `mid_episode` the running episodes start anew."""
        if mid_episode:
            self._returns = list(state["returns"])
            self._begun = [self._steps - length for length in state["lengths"]]
        self._recent.extend(state["recent"])
        self.episodes = int(state["episodes"])
