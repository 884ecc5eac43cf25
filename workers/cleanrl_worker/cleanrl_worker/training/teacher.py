"""Somebody to learn from: a Q-network that was trained before."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from cleanrl_worker.agents.atari import FEATURES, as_floats, as_torch_makes_it, nature_trunk
from cleanrl_worker.errors import BadInput
from cleanrl_worker.modes.checkpoints import find_checkpoint
from cleanrl_worker.training.checkpoint import load_state
from cleanrl_worker.training.foreign_model import read_foreign_model
from cleanrl_worker.training.weights import load_weights


class TeacherNetwork(nn.Module):
    """The network of `dqn_atari`; it does not learn any more."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(*nature_trunk(frames, initialise=as_torch_makes_it), nn.Linear(FEATURES, actions))
        self.requires_grad_(False)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.network(as_floats(obs).contiguous(memory_format=torch.channels_last))
        return values


def load_teacher(place: str, algo: str, frames: int, actions: int) -> TeacherNetwork:
    """The network of a checkpoint folder, a run or a .cleanrl_model; BadInput when it is not there or another."""
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
    """Tells one teacher from another: its weights, and the SHA-256 of the trajectories."""
    digest = hashlib.sha256(trajectories.encode())
    for tensor in teacher.state_dict().values() if teacher is not None else ():
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
    return digest.hexdigest()
