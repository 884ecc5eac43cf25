"""Running a network while acting: in numpy where it is small enough to be worth it, in torch otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from cleanrl_worker.training.parameters import FlatParameters, NumpyMlp


class Acting(Protocol):
    """An actor-critic for whole batches of observations."""

    def logits(self, obs: np.ndarray) -> np.ndarray: ...

    def values(self, obs: np.ndarray) -> np.ndarray:
        """One per row."""


class NumpyActing:
    """Separate multilayer perceptrons, read from the memory torch trains."""

    def __init__(self, parameters: FlatParameters, agent: nn.Module) -> None:
        assert isinstance(agent.actor, nn.Sequential)
        assert isinstance(agent.critic, nn.Sequential)
        self.logits = NumpyMlp(parameters, "actor", agent.actor)
        self._critic = NumpyMlp(parameters, "critic", agent.critic)

    def values(self, obs: np.ndarray) -> np.ndarray:
        return self._critic(obs)[:, 0]


class TorchActing:
    """Any network whose forward pass gives logits and values."""

    def __init__(self, agent: nn.Module, device: torch.device) -> None:
        self._agent, self._device = agent, device

    def logits(self, obs: np.ndarray) -> np.ndarray:
        return self._forward(obs)[0].cpu().numpy()

    def values(self, obs: np.ndarray) -> np.ndarray:
        return self._forward(obs)[1].squeeze(1).cpu().numpy()

    def _forward(self, obs: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            return self._agent(torch.from_numpy(np.ascontiguousarray(obs)).to(self._device))


class Policy(Protocol):
    """What an evaluation or a person at the other end plays with."""

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        """One action per row: the best one, or sampled with the row's own generator."""


class CategoricalPolicy:
    """Discrete actions by logits; observations pass through the normaliser the network was trained with."""

    def __init__(self, acting: Acting, dtype: np.dtype, normaliser: ObservationNormaliser | None = None) -> None:
        self._acting, self._dtype, self._normaliser = acting, dtype, normaliser

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        seen = self._normaliser(obs) if self._normaliser is not None else obs
        logits = self._acting.logits(seen.astype(self._dtype, copy=False))
        if rngs is not None:
            # Gumbel noise, then the largest: a sample of the categorical distribution.
            logits = logits + np.stack([rng.gumbel(size=logits.shape[1]) for rng in rngs])
        return logits.argmax(axis=1)


class ObservationNormaliser:
    """Running mean and variance as they stood when the checkpoint was written; evaluation must not move them."""

    def __init__(self, mean: np.ndarray, variance: np.ndarray, *, epsilon: float = 1e-8, clip: float = 10.0) -> None:
        self._mean, self._scale, self._clip = mean, np.sqrt(variance + epsilon), clip

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> ObservationNormaliser | None:
        """From the part `obs_norm` of a checkpoint (arrays `mean` and `var`); None when it has none."""
        if not arrays:
            return None
        return cls(arrays["mean"], arrays["var"])

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        return np.clip((obs - self._mean) / self._scale, -self._clip, self._clip).astype(np.float32)


def network_dtype(space: gym.Space) -> np.dtype:
    """What the network is fed with: pictures stay bytes until the network divides them by 255."""
    return np.dtype(np.uint8 if space.dtype == np.uint8 and len(space.shape or ()) == 3 else np.float32)
