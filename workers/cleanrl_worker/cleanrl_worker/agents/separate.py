"""An actor and a critic that share nothing: two perceptrons of 64 and 64 with tanh, for vectors.

Input (B, obs_dim) -> Linear(obs_dim, 64) + Tanh -> Linear(64, 64) + Tanh -> Linear(64, out), once for each.
Parameter names and shapes are those of CleanRL's models.
"""

from __future__ import annotations

import torch
from torch import nn

from cleanrl_worker.agents.layers import POLICY_GAIN, DiscreteAgent, gaussian_log_probs, orthogonal

HIDDEN = 64


def perceptron(inputs: int, outputs: int, output_gain: float) -> nn.Sequential:
    return nn.Sequential(
        orthogonal(nn.Linear(inputs, HIDDEN)),
        nn.Tanh(),
        orthogonal(nn.Linear(HIDDEN, HIDDEN)),
        nn.Tanh(),
        orthogonal(nn.Linear(HIDDEN, outputs), output_gain),
    )


class Agent(DiscreteAgent):
    """Discrete actions, by their logits."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__(actions)
        self.critic = perceptron(observations, 1, output_gain=1.0)
        self.actor = perceptron(observations, actions, output_gain=POLICY_GAIN)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the actions, and values [batch, 1]."""
        return self.actor(obs), self.critic(obs)


class GaussianAgent(nn.Module):
    """Continuous actions: a normal distribution around a mean, as wide in every state."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = perceptron(observations, 1, output_gain=1.0)
        self.actor_mean = perceptron(observations, actions, output_gain=POLICY_GAIN)
        self.actor_logstd = nn.Parameter(torch.zeros(1, actions))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Means of the actions, and values [batch, 1]."""
        return self.actor_mean(obs), self.critic(obs)

    def log_probs(self, means: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each row's action, its log-probability; and the entropy of the policy there."""
        return gaussian_log_probs(means, self.actor_logstd, actions)
