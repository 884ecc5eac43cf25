"""Expert trajectories in a file: observations, actions and rewards, for algorithms that learn from them.

A safetensors file of these arrays, for E episodes of T₁ … T_E steps whose observations are stacks of k images:

frames      uint8 [Σ(Tᵢ + k), height, width]   per episode its first stack, then the image after each action
lengths     int64 [E]                          T₁ … T_E
actions     int64 [ΣTᵢ]
rewards     float32 [ΣTᵢ]                      as a learner gets them (Atari: -1, 0 or 1)
terminated  uint8 [E]                          1: the episode ended there; 0: it was cut
returns     float32 [games]                    what whole games paid; a game may be several episodes (lives)

`tools/record_trajectories.py` writes one with any trained policy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch
from mosaic_wire.files import chosen_file
from mosaic_wire.manifest import sha256_of_file
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import nn

from cleanrl_worker.agents.atari import FEATURES, as_floats, nature_trunk, torch_default_init
from cleanrl_worker.errors import BadInput
from cleanrl_worker.modes.checkpoints import find_checkpoint
from cleanrl_worker.training.checkpointing import load_state, load_weights
from cleanrl_worker.training.foreign_model import read_foreign_model
from cleanrl_worker.training.replay import FrameReplay, ReplayBuffer

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
        """Images in an observation."""
        return (len(self.frames) - len(self.actions)) // max(1, len(self.lengths))

    @classmethod
    def read(cls, path: Path, observations: gym.Space, actions: gym.Space) -> Trajectories:
        """Read a file for an environment of these spaces; BadInput with the reason when it cannot be used."""
        try:
            arrays = load_file(path)
            digest = sha256_of_file(path, opener=chosen_file)
        except (OSError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BadInput(f"the trajectories {path} cannot be read: {reason or error}") from error
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
        """Yield the steps in order, as a learner would have stored them."""
        frame, row = 0, 0
        for length, ends in zip(self.lengths.tolist(), self.terminated.tolist(), strict=True):
            for step in range(length):
                seen = self.frames[None, frame : frame + self.stack + 1]
                over = np.array([ends and step == length - 1], dtype=np.float32)
                yield ExpertStep(
                    seen[:, :-1], self.actions[row : row + 1], self.rewards[row : row + 1], seen[:, 1:], over
                )
                frame, row = frame + 1, row + 1
            frame += self.stack

    def as_replay(self, observations: gym.Space, actions: gym.Space) -> ReplayBuffer:
        """Return a replay buffer with all steps."""
        buffer = FrameReplay(len(self), observations, actions, num_envs=1)
        for step in self.steps():
            buffer.add(*step)
        return buffer

    def write(self, path: Path) -> None:
        """Write the file."""
        save_file({name: np.ascontiguousarray(getattr(self, name)) for name in _KINDS}, path)


class TrajectoryRecorder:
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
        """Add one step; after an ended episode the next one begins."""
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
        """Return the completed episodes."""
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


class TeacherNetwork(nn.Module):
    """The network of `dqn_atari`, not trained."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(*nature_trunk(frames, initialize=torch_default_init), nn.Linear(FEATURES, actions))
        self.requires_grad_(False)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the Q-value of every action."""
        values: torch.Tensor = self.network(as_floats(obs).contiguous(memory_format=torch.channels_last))
        return values


def load_teacher(place: str, algo: str, frames: int, actions: int) -> TeacherNetwork:
    """Return the network of a checkpoint folder, a run or a .cleanrl_model; raise BadInput if it does not fit."""
    if algo != "dqn_atari":
        raise BadInput(f"--teacher-model-exp-name {algo}: only a dqn_atari can be the teacher")
    teacher = TeacherNetwork(frames, actions)
    load_weights(teacher, _weights(place, algo), what="the teacher")
    return teacher


def _weights(place: str, algo: str) -> Mapping[str, np.ndarray]:
    source = find_checkpoint({"checkpoint_path": place})
    if source is None:
        raise BadInput("there is no teacher; give a checkpoint folder, a run id or a .cleanrl_model file")
    if source.weights_only:
        return read_foreign_model(source.path).single_network(algo)
    return load_state(source.path, algo).part("agent")


def fingerprint(teacher: nn.Module | None, trajectories: str) -> str:
    """Return a hash of the teacher's weights and the trajectories."""
    digest = hashlib.sha256(trajectories.encode())
    for tensor in teacher.state_dict().values() if teacher is not None else ():
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
    return digest.hexdigest()
