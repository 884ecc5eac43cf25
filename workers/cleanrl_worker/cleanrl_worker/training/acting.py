"""Running a network while acting: in numpy where it is small enough to be worth it, in torch otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.distributions import Categorical, Distribution
from cleanrl_worker.training.parameters import FlatParameters, NumpyMlp
from cleanrl_worker.training.returns import log_softmax


class Actor(Protocol):
    """A policy's network."""

    @property
    def policy(self) -> Callable[[np.ndarray], np.ndarray]:
        """What the policy says of each row of observations: logits of the actions, or their means."""


class Acting(Actor, Protocol):
    """An actor-critic for whole batches of observations."""

    shared: bool
    """Policy and values come out of one pass; otherwise values are cheaper for a whole rollout at once"""

    def values(self, obs: np.ndarray) -> np.ndarray:
        """One per row."""

    def both(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...


class NumpyActing:
    """Separate multilayer perceptrons, read from the memory torch trains."""

    shared = False

    def __init__(self, parameters: FlatParameters, agent: nn.Module) -> None:
        name = "actor" if hasattr(agent, "actor") else "actor_mean"
        actor, critic = getattr(agent, name), agent.critic
        assert isinstance(actor, nn.Sequential)
        assert isinstance(critic, nn.Sequential)
        self.policy = NumpyMlp(parameters, name, actor)
        self.critic = NumpyMlp(parameters, "critic", critic)

    def values(self, obs: np.ndarray) -> np.ndarray:
        return self.critic(obs)[:, 0]

    def both(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.policy(obs), self.values(obs)


class TorchActing:
    """Any network whose forward pass gives what the policy says, and values."""

    shared = True

    def __init__(self, agent: nn.Module, device: torch.device) -> None:
        self._agent, self._device = agent, device

    def policy(self, obs: np.ndarray) -> np.ndarray:
        return self.both(obs)[0]

    def values(self, obs: np.ndarray) -> np.ndarray:
        return self.both(obs)[1]

    @torch.inference_mode()
    def both(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        outputs, values = self._agent(torch.from_numpy(obs).to(self._device))
        return outputs.cpu().numpy(), values.squeeze(1).cpu().numpy()


class Policy(Protocol):
    """What an evaluation or a person at the other end plays with."""

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        """One action per row: the best one, or sampled with the row's own generator."""


@runtime_checkable
class Considering(Protocol):
    """A policy that can say what it thinks of one observation, for somebody who watches it."""

    def consider(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        """`action_probabilities` or `action_values`, one for each action, and `value`: those that it knows."""


def considered(policy: Policy, obs: np.ndarray) -> dict[str, np.ndarray]:
    """What the policy says of the first of these observations; nothing where it cannot."""
    return policy.consider(obs) if isinstance(policy, Considering) else {}


class DistributionPolicy:
    """A network and what its outputs mean; observations pass through the normaliser it was trained with."""

    def __init__(
        self,
        acting: Actor,
        distribution: Distribution,
        dtype: np.dtype,
        normaliser: ObservationNormaliser | None = None,
    ) -> None:
        self._acting, self._distribution, self._dtype, self._normaliser = acting, distribution, dtype, normaliser

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        seen = self._normaliser(obs) if self._normaliser is not None else obs
        outputs = self._acting.policy(seen.astype(self._dtype, copy=False))
        if rngs is None:
            return self._distribution.best(outputs)
        return self._distribution.choose(outputs, np.stack([self._distribution.noise(rng, ()) for rng in rngs]))

    def consider(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        seen = (self._normaliser(obs) if self._normaliser is not None else obs).astype(self._dtype, copy=False)
        told = {}
        if isinstance(self._distribution, Categorical):
            told["action_probabilities"] = np.exp(log_softmax(self._acting.policy(seen)))[0]
        if hasattr(self._acting, "values"):
            told["value"] = self._acting.values(seen)[0]
        return told


class ObservationNormaliser:
    """Running mean and variance as they stood when the checkpoint was written; evaluation must not move them."""

    def __init__(self, mean: np.ndarray, variance: np.ndarray, *, epsilon: float = 1e-8, clip: float = 10.0) -> None:
        self._mean, self._scale, self._clip = mean, np.sqrt(variance + epsilon), clip

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray]) -> ObservationNormaliser | None:
        """From the part `obs_norm` of a checkpoint (arrays `mean` and `var`); None when it has none."""
        if not arrays:
            return None
        if not all(np.isfinite(arrays[name]).all() for name in ("mean", "var")):
            raise BadInput("the statistics of the policy's observations hold NaN or infinite numbers; it is damaged")
        return cls(arrays["mean"], arrays["var"])

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        return np.clip((obs - self._mean) / self._scale, -self._clip, self._clip).astype(np.float32)


def network_dtype(space: gym.Space) -> np.dtype:
    """What the network is fed with: pictures stay bytes until the network divides them by 255."""
    return np.dtype(np.uint8 if space.dtype == np.uint8 and len(space.shape or ()) == 3 else np.float32)
