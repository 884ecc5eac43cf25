"""The one convention: an ended episode is reset in the same step.

`step` returns the observation to act on next, and for episodes that just ended also the last observation of the old
episode (`final_obs`). No transition between two episodes is ever returned, so whatever an algorithm stores really
happened. Gymnasium's own NEXT_STEP autoreset would add one phantom transition per episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np


class Step(NamedTuple):
    """What one step of all environments gave. The arrays are the caller's to keep, not to write into."""

    obs: np.ndarray
    """To act on next: the first observation of the new episode where one ended"""
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_obs: np.ndarray
    """What followed the action, before any reset"""
    ended: np.ndarray
    """terminated or truncated"""
    raw_rewards: np.ndarray | None = None
    """What the environment paid, where `rewards` are clipped or scaled"""
    over: np.ndarray | None = None
    """Where the game itself is over, if `ended` can also mean a lost life"""


@dataclass(frozen=True)
class EnvState:
    """Everything needed to go on in another process as if nothing had happened."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


class VectorEnvs(Protocol):
    """Several copies of one environment, stepped together."""

    num_envs: int
    observation_space: gym.Space
    action_space: gym.Space

    def reset(self, seed: int) -> np.ndarray: ...

    def step(self, actions: np.ndarray) -> Step: ...

    def snapshot(self) -> EnvState: ...

    def restore(self, state: EnvState) -> np.ndarray | None:
        """Go back to a snapshot and return the observations there; None: this environment cannot."""

    def close(self) -> None: ...


class KeepsState(Protocol):
    """A single environment whose state can be written down, so that no action has to be replayed."""

    def save_state(self) -> EnvState: ...

    def load_state(self, state: EnvState) -> np.ndarray | None:
        """Go on from there and return the observation; None: that is not possible."""


def none_of(count: int) -> np.ndarray:
    """So many times False, shared by all steps in which nothing ended; nobody may write into it."""
    nothing = np.zeros(count, dtype=np.bool_)
    nothing.setflags(write=False)
    return nothing
