"""Actors and critics for continuous actions; names and shapes are CleanRL's.

Input (B, obs_dim), for critics with the actions beside it -> Linear(…, 256) + ReLU -> Linear(256, 256) + ReLU -> heads.
"""

from __future__ import annotations

import torch
from torch import nn

HIDDEN = 256
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
"""A Gaussian actor's standard deviations lie between e⁻⁵ and e²"""
LOG_STD_MIDDLE, LOG_STD_REACH = 0.5 * (LOG_STD_MAX + LOG_STD_MIN), 0.5 * (LOG_STD_MAX - LOG_STD_MIN)
"""log std = MIDDLE + REACH * tanh(output)"""


class QNetwork(nn.Module):
    """The value of an action."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(observations + actions, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, HIDDEN)
        self.fc3 = nn.Linear(HIDDEN, 1)

    def forward(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return the value of each row: [batch, 1]."""
        hidden = torch.relu(self.fc1(torch.cat([obs, actions], dim=1)))
        values: torch.Tensor = self.fc3(torch.relu(self.fc2(hidden)))
        return values


class BoundedActor(nn.Module):
    """Two hidden layers; `action_scale` and `action_bias` map tanh to the bounds of the actions."""

    action_scale: torch.Tensor
    action_bias: torch.Tensor

    def __init__(self, observations: int, scale: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        self.fc1 = nn.Linear(observations, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, HIDDEN)
        self.register_buffer("action_scale", scale.clone())
        self.register_buffer("action_bias", bias.clone())

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the last hidden layer."""
        return torch.relu(self.fc2(torch.relu(self.fc1(obs))))


class Actor(BoundedActor):
    """A deterministic actor."""

    def __init__(self, observations: int, actions: int, scale: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__(observations, scale, bias)
        self.fc_mu = nn.Linear(HIDDEN, actions)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return one action per row."""
        return torch.tanh(self.fc_mu(self.features(obs))) * self.action_scale + self.action_bias


class GaussianActor(BoundedActor):
    """A Gaussian actor, squashed by tanh and scaled to the bounds."""

    def __init__(self, observations: int, actions: int, scale: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__(observations, scale, bias)
        self.fc_mean = nn.Linear(HIDDEN, actions)
        self.fc_logstd = nn.Linear(HIDDEN, actions)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mean and log standard deviation, before the squashing."""
        hidden = self.features(obs)
        return self.fc_mean(hidden), LOG_STD_MIDDLE + LOG_STD_REACH * torch.tanh(self.fc_logstd(hidden))


class ActorCritic(nn.Module):
    """An actor and one or two critics, under their names in checkpoints and charts."""

    qf1: QNetwork

    def __init__(self, actor: nn.Module, *critics: QNetwork) -> None:
        super().__init__()
        self.actor = actor
        for number, critic in enumerate(critics, start=1):
            self.add_module(f"qf{number}", critic)

    @property
    def critics(self) -> nn.ModuleList:
        """Return the critics."""
        return nn.ModuleList(module for name, module in self.named_children() if name != "actor")
