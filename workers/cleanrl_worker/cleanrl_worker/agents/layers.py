"""Orthogonally initialised layers, and what every agent with a shared trunk can do."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import nn

GAIN = math.sqrt(2)
"""Of hidden layers"""
POLICY_GAIN = 0.01
"""Of a policy's last layer: small, so that the first policy is nearly uniform"""

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float = GAIN) -> Layer:
    """Initialise a layer: orthogonal weights of this gain, no bias."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class SharedTrunkAgent(nn.Module):
    """An actor and a critic on top of the same features; subclasses set `network`, `actor` and `critic`."""

    network: nn.Module
    actor: nn.Module
    critic: nn.Module

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the actions, and values [batch, 1]."""
        features = self.network(obs)
        return self.actor(features), self.critic(features)

    def get_value(self, obs: torch.Tensor) -> torch.Tensor:
        """Values alone, under the name CleanRL's agents have for it."""
        values: torch.Tensor = self.critic(self.network(obs))
        return values

    def get_action_and_value(
        self, obs: torch.Tensor, action: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Action (sampled unless given), its log-probability, entropy and value, as CleanRL's agents return them."""
        logits, values = self(obs)
        policy = torch.distributions.Categorical(logits=logits)
        if action is None:
            action = policy.sample()  # type: ignore[no-untyped-call]
        return action, policy.log_prob(action), policy.entropy(), values  # type: ignore[no-untyped-call]
