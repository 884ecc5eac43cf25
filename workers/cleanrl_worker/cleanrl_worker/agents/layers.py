"""Orthogonal initialization, log-probabilities, and the base classes of agents."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional

GAIN = math.sqrt(2)
"""Of hidden layers"""
POLICY_GAIN = 0.01
"""Of a policy's last layer: small, so that the first policy is nearly uniform"""
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float = GAIN) -> Layer:
    """Initialize a layer: orthogonal weights of this gain, no bias."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def categorical_log_probs(logits: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probability of each row's action, and the entropy of each row."""
    log_probs = functional.log_softmax(logits, dim=1)
    chosen = log_probs.gather(1, actions.unsqueeze(1)).squeeze(1)
    return chosen, -(log_probs.exp() * log_probs).sum(dim=1)


def gaussian_log_probs(
    means: torch.Tensor, log_std: torch.Tensor, actions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same for independent normal distributions."""
    distances = (actions - means) * torch.exp(-log_std)
    log_probs = (-0.5 * distances.square() - log_std - HALF_LOG_TWO_PI).sum(dim=1)
    entropy = (log_std + 0.5 + HALF_LOG_TWO_PI).sum(dim=1)
    return log_probs, entropy.expand(len(means))


class DiscreteAgent(nn.Module):
    """An actor-critic whose policy are logits."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.actions = actions

    def log_probs(self, logits: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probability of each row's action, and the entropy of each row."""
        return categorical_log_probs(logits, actions)


class SharedTrunkAgent(DiscreteAgent):
    """An actor and a critic on top of the same features; subclasses set `network`, `actor` and `critic`, and those that
    see images define how `features` are made of them.
    """

    network: nn.Module
    actor: nn.Module
    critic: nn.Module
    bf16 = False

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits of the actions, and values [batch, 1]."""
        features = self.features(obs)
        return self.actor(features), self.critic(features)

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the features of observations."""
        features: torch.Tensor = self.network(obs)
        return features

    def features_of_images(self, images: torch.Tensor) -> torch.Tensor:
        """Return the trunk's output, computed in bfloat16 if requested; weights and heads are float32."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bf16):
            features: torch.Tensor = self.network(images)
        return features.float()

    def get_value(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the values, under the name of CleanRL's agents."""
        values: torch.Tensor = self.critic(self.features(obs))
        return values

    def get_action_and_value(
        self, obs: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return action (sampled unless given), log-probability, entropy and value, as CleanRL's agents do."""
        logits, values = self(obs)
        policy = torch.distributions.Categorical(logits=logits)
        if action is None:
            action = policy.sample()  # type: ignore[no-untyped-call]
        return action, policy.log_prob(action), policy.entropy(), values  # type: ignore[no-untyped-call]
