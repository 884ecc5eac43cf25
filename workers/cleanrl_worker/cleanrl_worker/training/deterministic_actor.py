"""The actor of DDPG and TD3, learning and acting: one action per observation, and noise to explore with."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import numpy as np
import torch

from cleanrl_worker.agents.continuous import Actor
from cleanrl_worker.training.adam import FlatAdam
from cleanrl_worker.training.critics import Critics
from cleanrl_worker.training.numpy_actor import NumpyActor
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.relu_mlp import ReluMlp


class DeterministicActor:
    """An actor with its target network; climbs the slope of its critic (Silver et al. 2014)."""

    def __init__(self, actor: Actor, learning_rate: float) -> None:
        target = deepcopy(actor)
        self.parameters, of_target = FlatParameters(actor), FlatParameters(target)
        self._adam, self._learning_rate = FlatAdam(self.parameters.block), learning_rate
        self._target_block = of_target.block.data
        block, gradient = self._adam.block, self._adam.gradient
        self._actor = ReluMlp(block, gradient, actor.fc1, actor.fc2, actor.fc_mu)
        self._target = ReluMlp(self._target_block, gradient, target.fc1, target.fc2, target.fc_mu)
        self._scale, self._bias = actor.action_scale, actor.action_bias

    def target_actions(self, obs: torch.Tensor) -> torch.Tensor:
        """What the target network would do."""
        return torch.addcmul(self._bias, self._target(obs)[0].tanh_(), self._scale)

    def improve(self, obs: torch.Tensor, critics: Critics) -> torch.Tensor:
        """One step towards actions that the first critic values more; return those values, minus the loss."""
        trace = self._actor.trace(obs)
        squashed = self._actor.outputs(trace)[0].tanh_()
        actions = torch.addcmul(self._bias, squashed, self._scale)
        values, slope = critics.slope_of_first(torch.cat([obs, actions], dim=1), actions.shape[1])
        self._actor.backward(trace, slope * self._scale * (1 - squashed * squashed))
        self._adam.step(self._learning_rate)
        return values

    def move_target(self, share: float) -> None:
        """Let the target network follow; 1 makes it a copy."""
        self._target_block.lerp_(self._adam.block, share)

    # -- checkpoints

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint needs besides the actor itself, in memory of its own."""
        return {**self._adam.arrays(), "targets": self._target_block.cpu().numpy().copy()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._adam.restore(arrays)
        self._target_block.copy_(torch.from_numpy(arrays["targets"].copy()))


class NoisyActing:
    """Acts with numpy, around what the actor says."""

    def __init__(
        self, actor: Actor, parameters: FlatParameters, low: np.ndarray, high: np.ndarray, noise: float
    ) -> None:
        self._outputs = NumpyActor(parameters, "fc1", "fc2", "fc_mu")
        self._scale, self._bias = (part.cpu().numpy().reshape(-1) for part in (actor.action_scale, actor.action_bias))
        self._low, self._high, self._noise = low, high, np.float32(noise) * self._scale

    def best(self, obs: np.ndarray) -> np.ndarray:
        (outputs,) = self._outputs(obs)
        return np.tanh(outputs, out=outputs) * self._scale + self._bias

    def sample(self, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """With standard normal `noise`, one number per number of the actions."""
        return np.minimum(np.maximum(self.best(obs) + noise * self._noise, self._low), self._high)
