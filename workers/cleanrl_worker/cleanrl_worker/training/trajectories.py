"""Expert trajectories in a file: what somebody saw, did and got, step by step, for algorithms that learn from it.

A safetensors file of these arrays, for E episodes of T₁ … T_E steps whose observations are stacks of k pictures:

frames      uint8 [Σ(Tᵢ + k), height, width]   per episode its first stack, then the picture after each action
lengths     int64 [E]                          T₁ … T_E
actions     int64 [ΣTᵢ]
rewards     float32 [ΣTᵢ]                      as a learner gets them (Atari: -1, 0 or 1)
terminated  uint8 [E]                          1: the episode ended there; 0: it was cut
returns     float32 [games]                    what whole games paid; a game may be several episodes (lives)

`tools/record_trajectories.py` writes one with any trained policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from mosaic_wire.files import chosen_file
from mosaic_wire.manifest import sha256_of_file
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.frame_replay import FrameReplay
from cleanrl_worker.training.replay import ReplayBuffer

_KINDS = {"frames": "u", "lengths": "i", "actions": "i", "rewards": "f", "terminated": "u", "returns": "f"}


class ExpertStep(NamedTuple):
    """One step, with the leading axis of one environment."""

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray


@dataclass(frozen=True)
class Trajectories:
    """The arrays of a file, see above."""

    frames: np.ndarray
    lengths: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    returns: np.ndarray
    sha256: str = ""
    """of the file they were read from"""

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def stack(self) -> int:
        """Pictures in an observation."""
        return (len(self.frames) - len(self.actions)) // max(1, len(self.lengths))

    @classmethod
    def read(cls, path: Path, observations: gym.Space, actions: gym.Space) -> Trajectories:
        """Read a file for an environment of these spaces; BadInput with the reason when it cannot be used."""
        try:
            arrays = load_file(path)
            digest = sha256_of_file(path, opener=chosen_file)
        except (OSError, SafetensorError) as error:
            said = error.strerror if isinstance(error, OSError) else error
            raise BadInput(f"the trajectories {path} cannot be read: {said or error}") from error
        if wrong := [name for name in _KINDS if name not in arrays or arrays[name].dtype.kind != _KINDS[name]]:
            raise BadInput(f"{path} holds no trajectories: {', '.join(wrong)} missing or of another type")
        found = cls(**{name: arrays[name] for name in _KINDS}, sha256=digest)
        if reason := found._misfit(observations, actions):
            raise BadInput(f"the trajectories {path} cannot be used: {reason}")
        return found

    def _misfit(self, observations: gym.Space, actions: gym.Space) -> str:
        steps, episodes = len(self.actions), len(self.lengths)
        if not steps or not len(self.returns):
            return "they hold no step or no return of a game"
        if (
            int(self.lengths.sum()) != steps
            or int(self.lengths.min()) < 1
            or len(self.rewards) != steps
            or len(self.terminated) != episodes
            or len(self.frames) != steps + episodes * self.stack
        ):
            return "their arrays do not have the lengths that belong together"
        shape = (self.stack, *self.frames.shape[1:])
        if shape != observations.shape:
            return f"their observations have shape {shape}, those of the environment {observations.shape}"
        count = int(actions.n) if isinstance(actions, gym.spaces.Discrete) else 0
        if not 0 <= int(self.actions.min()) <= int(self.actions.max()) < count:
            return f"they have action {int(self.actions.max())}, the environment {count} actions"
        return ""

    def steps(self) -> Iterator[ExpertStep]:
        """All of them in order, as a learner would have stored them."""
        picture, row = 0, 0
        for length, ends in zip(self.lengths.tolist(), self.terminated.tolist(), strict=True):
            for step in range(length):
                seen = self.frames[None, picture : picture + self.stack + 1]
                over = np.array([ends and step == length - 1], dtype=np.float32)
                yield ExpertStep(
                    seen[:, :-1], self.actions[row : row + 1], self.rewards[row : row + 1], seen[:, 1:], over
                )
                picture, row = picture + 1, row + 1
            picture += self.stack

    def as_replay(self, observations: gym.Space, actions: gym.Space) -> ReplayBuffer:
        """A replay buffer that holds all of them."""
        buffer = FrameReplay(len(self), observations, actions, num_envs=1)
        for step in self.steps():
            buffer.add(*step)
        return buffer

    def write(self, path: Path) -> None:
        save_file({name: np.ascontiguousarray(getattr(self, name)) for name in _KINDS}, path)


class Recorder:
    """Collects the steps of one environment into trajectories."""

    def __init__(self) -> None:
        self._frames: list[np.ndarray] = []
        self._lengths: list[int] = []
        self._actions: list[int] = []
        self._rewards: list[float] = []
        self._terminated: list[bool] = []
        self.returns: list[float] = []
        self._began_at = 0

    def add(
        self, obs: np.ndarray, action: int, reward: float, next_obs: np.ndarray, *, terminated: bool, ended: bool
    ) -> None:
        """One step; an episode begins after one that ended."""
        if self._began_at == len(self._actions):
            self._frames.extend(obs)
        self._frames.append(next_obs[-1].copy())
        self._actions.append(action)
        self._rewards.append(reward)
        if ended:
            self._lengths.append(len(self._actions) - self._began_at)
            self._terminated.append(terminated)
            self._began_at = len(self._actions)

    def trajectories(self) -> Trajectories:
        """What was collected up to the last end of an episode."""
        steps = self._began_at
        stack = (len(self._frames) - len(self._actions)) // (len(self._lengths) + (steps < len(self._actions)))
        return Trajectories(
            frames=np.stack(self._frames[: steps + stack * len(self._lengths)]),
            lengths=np.array(self._lengths, dtype=np.int64),
            actions=np.array(self._actions[:steps], dtype=np.int64),
            rewards=np.array(self._rewards[:steps], dtype=np.float32),
            terminated=np.array(self._terminated, dtype=np.uint8),
            returns=np.array(self.returns, dtype=np.float32),
        )
