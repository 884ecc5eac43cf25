"""`MinigridCNN` and `MinigridAgent`: for the 7x7x3 images a MiniGrid or BabyAI agent sees.

Input (B, 7, 7, 3) uint8
  -> permute to (B, 3, 7, 7), / 255
  -> Conv2d(3, 32, 3, padding=1) + ReLU -> Conv2d(32, 64, 3, padding=1) + ReLU -> Conv2d(64, 64, 3, padding=1) + ReLU
  -> Flatten -> Linear(3136, 128)

then actor and critic, each Linear(128, 128) -> ReLU -> Linear(128, out). Other image sizes change the 3136.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from cleanrl_worker.agents.layers import POLICY_GAIN, SharedTrunkAgent, orthogonal

FEATURES = 128
SEEN = (7, 7, 3)


class MinigridCNN(nn.Module):
    """From images (height, width, channels) to features."""

    def __init__(self, image: Sequence[int] = SEEN, features: int = FEATURES) -> None:
        super().__init__()
        height, width, channels = image
        self.convolutions = nn.Sequential(
            orthogonal(nn.Conv2d(channels, 32, 3, padding=1)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 3, padding=1)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3, padding=1)),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.linear = orthogonal(nn.Linear(64 * height * width, features))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features of images."""
        channels_first = images.permute(0, 3, 1, 2).float() / 255.0
        features: torch.Tensor = self.linear(self.convolutions(channels_first))
        return features


class MinigridAgent(SharedTrunkAgent):
    """The features and two heads."""

    def __init__(self, actions: int, image: Sequence[int] = SEEN) -> None:
        super().__init__(actions)
        self.network = MinigridCNN(image)
        self.actor = _head(actions, POLICY_GAIN)
        self.critic = _head(1, 1.0)


def _head(outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(
        orthogonal(nn.Linear(FEATURES, FEATURES)), nn.ReLU(), orthogonal(nn.Linear(FEATURES, outputs), gain)
    )
