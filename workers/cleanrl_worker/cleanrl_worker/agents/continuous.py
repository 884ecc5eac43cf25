"""Networks for continuous actions: an actor and the critics that judge it; names and shapes are CleanRL's.

Input (B, obs_dim), for critics with the actions beside it -> Linear(…, 256) + ReLU -> Linear(256, 256) + ReLU -> heads.
"""

from __future__ import annotations

import torch
from torch import nn

HIDDEN = 256
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
"""A Gaussian actor's standard deviations lie between e⁻⁵ and e²"""
LOG_STD_MIDDLE, LOG_STD_REACH = 0.5 * (LOG_STD_MAX + LOG_STD_MIN), 0.5 * (LOG_STD_MAX - LOG_STD_MIN)
"""Their logarithms are the first of these plus the second times a tanh"""


class QNetwork(nn.Module):
    """The value of an action."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(observations + actions, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, HIDDEN)
        self.fc3 = nn.Linear(HIDDEN, 1)

    def forward(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.fc1(torch.cat([obs, actions], dim=1)))
        values: torch.Tensor = self.fc3(torch.relu(self.fc2(hidden)))
        return values


class Actor(nn.Module):
    """One action per observation. `scale` and `bias` stretch what tanh gives to the bounds of the actions."""

    action_scale: torch.Tensor
    action_bias: torch.Tensor

    def __init__(self, observations: int, actions: int, scale: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        self.fc1 = nn.Linear(observations, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, HIDDEN)
        self.fc_mu = nn.Linear(HIDDEN, actions)
        self.register_buffer("action_scale", scale.clone())
        self.register_buffer("action_bias", bias.clone())

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.fc2(torch.relu(self.fc1(obs))))
        actions: torch.Tensor = torch.tanh(self.fc_mu(hidden)) * self.action_scale + self.action_bias
        return actions


class GaussianActor(nn.Module):
    """A distribution of actions: a Gaussian, squashed by tanh and stretched to the bounds."""

    action_scale: torch.Tensor
    action_bias: torch.Tensor

    def __init__(self, observations: int, actions: int, scale: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        self.fc1 = nn.Linear(observations, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, HIDDEN)
        self.fc_mean = nn.Linear(HIDDEN, actions)
        self.fc_logstd = nn.Linear(HIDDEN, actions)
        self.register_buffer("action_scale", scale.clone())
        self.register_buffer("action_bias", bias.clone())

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and logarithm of the standard deviation, before the squashing."""
        hidden = torch.relu(self.fc2(torch.relu(self.fc1(obs))))
        return self.fc_mean(hidden), LOG_STD_MIDDLE + LOG_STD_REACH * torch.tanh(self.fc_logstd(hidden))


class ActorCritic(nn.Module):
    """An actor and one or two critics, under the names that checkpoints and charts have for them."""

    qf1: QNetwork

    def __init__(self, actor: nn.Module, *critics: QNetwork) -> None:
        super().__init__()
        self.actor = actor
        for number, critic in enumerate(critics, start=1):
            self.add_module(f"qf{number}", critic)

    @property
    def critics(self) -> nn.ModuleList:
        return nn.ModuleList(module for name, module in self.named_children() if name != "actor")
