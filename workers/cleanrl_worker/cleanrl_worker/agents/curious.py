"""The networks of random network distillation (Burda et al. 2018): an agent with two critics, and a measure of novelty.

The agent sees stacks of pictures, the predictor and the random network it is to predict see single ones. Parameter
names and shapes are those of CleanRL's `ppo_rnd_envpool`.
"""

from __future__ import annotations

import torch
from torch import nn

from cleanrl_worker.agents.atari import FLAT, as_floats, nature_convolutions
from cleanrl_worker.agents.layers import orthogonal


class Agent(nn.Module):
    """An actor and two critics: one for the game's rewards, one for curiosity."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            *nature_convolutions(frames),
            orthogonal(nn.Linear(FLAT, 256)),
            nn.ReLU(),
            orthogonal(nn.Linear(256, 448)),
            nn.ReLU(),
        )
        self.extra_layer = nn.Sequential(orthogonal(nn.Linear(448, 448), 0.1), nn.ReLU())
        self.actor = nn.Sequential(
            orthogonal(nn.Linear(448, 448), 0.01), nn.ReLU(), orthogonal(nn.Linear(448, actions), 0.01)
        )
        self.critic_ext = orthogonal(nn.Linear(448, 1), 0.01)
        self.critic_int = orthogonal(nn.Linear(448, 1), 0.01)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits of the actions, values of the game's rewards and of curiosity (one per row)."""
        hidden = self.network(as_floats(obs))
        features = self.extra_layer(hidden) + hidden
        return self.actor(hidden), self.critic_ext(features).squeeze(1), self.critic_int(features).squeeze(1)


class RNDModel(nn.Module):
    """The predictor and the random network it is to predict, for single pictures, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.predictor = nn.Sequential(
            *_leaky_convolutions(),
            orthogonal(nn.Linear(FLAT, 512)),
            nn.ReLU(),
            orthogonal(nn.Linear(512, 512)),
            nn.ReLU(),
            orthogonal(nn.Linear(512, 512)),
        )
        self.target = nn.Sequential(*_leaky_convolutions(), orthogonal(nn.Linear(FLAT, 512)))
        self.target.requires_grad_(False)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """How far the prediction is off: squared differences [row, feature]."""
        squared: torch.Tensor = (self.predictor(frames) - self.target(frames)).square()
        return squared


def _leaky_convolutions() -> list[nn.Module]:
    return [nn.LeakyReLU() if isinstance(layer, nn.ReLU) else layer for layer in nature_convolutions(1)]
