"""The residual network of IMPALA (Espeholt et al. 2018), for Procgen's pictures and for large Atari agents.

Three sequences of 16, 32 and 32 channels, each Conv2d(3) -> max pool by two -> two residual blocks; then
Flatten + ReLU -> Linear(256) + ReLU. Attribute names give the parameters the names CleanRL's models have.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import as_floats
from cleanrl_worker.agents.layers import POLICY_GAIN, SharedTrunkAgent, orthogonal

FEATURES = 256
DEPTHS = (16, 32, 32)
_BLOCKS = 2
_DENSE_SCALE = 1.4


class Initialise(Protocol):
    """Sets a new layer's weights. `scale` is what a residual network's depth asks for: 1 for the first convolution of
    a sequence, less for its blocks, so that their sums stay of one size.
    """

    def __call__(self, layer: Any, scale: float) -> Any: ...


def as_torch_makes_it(layer: Any, scale: float) -> Any:
    """Leave a layer with the weights torch gave it."""
    return layer


class ResidualBlock(nn.Module):
    """Two convolutions on top of what came in."""

    def __init__(self, channels: int, initialise: Initialise, scale: float) -> None:
        super().__init__()
        each = math.sqrt(scale)
        self.conv0 = initialise(nn.Conv2d(channels, channels, 3, padding=1), each)
        self.conv1 = initialise(nn.Conv2d(channels, channels, 3, padding=1), each)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        changes = self.conv1(functional.relu(self.conv0(functional.relu(pictures))))
        summed: torch.Tensor = pictures + changes
        return summed


class ConvSequence(nn.Module):
    """Half the side, other channels, then the blocks."""

    def __init__(self, channels: int, outputs: int, initialise: Initialise, scale: float) -> None:
        super().__init__()
        self.conv = initialise(nn.Conv2d(channels, outputs, 3, padding=1), 1.0)
        self.res_block0 = ResidualBlock(outputs, initialise, scale / math.sqrt(_BLOCKS))
        self.res_block1 = ResidualBlock(outputs, initialise, scale / math.sqrt(_BLOCKS))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        halved = functional.max_pool2d(self.conv(pictures), kernel_size=3, stride=2, padding=1)
        out: torch.Tensor = self.res_block1(self.res_block0(halved))
        return out


def impala_trunk(
    shape: Sequence[int],
    features: int = FEATURES,
    *,
    depths: Sequence[int] = DEPTHS,
    initialise: Initialise = as_torch_makes_it,
) -> list[nn.Module]:
    """Layers for pictures (channels, height, width), already floats; `nn.Sequential(*impala_trunk(shape), head)`."""
    channels, height, width = shape
    layers: list[nn.Module] = []
    for outputs in depths:
        layers.append(ConvSequence(channels, outputs, initialise, 1 / math.sqrt(len(depths))))
        channels, height, width = outputs, (height + 1) // 2, (width + 1) // 2
    dense = initialise(nn.Linear(channels * height * width, features), _DENSE_SCALE)
    return [*layers, nn.Flatten(), nn.ReLU(), dense, nn.ReLU()]


def channels_first(pictures: torch.Tensor) -> torch.Tensor:
    """Procgen's pictures come as (height, width, channels)."""
    return pictures.permute(0, 3, 1, 2)


class ImpalaAgent(SharedTrunkAgent):
    """An actor and a critic on the same features; names and shapes are those of CleanRL's `ppo_procgen`."""

    def __init__(
        self, actions: int, image: Sequence[int] = (64, 64, 3), initialise: Initialise = as_torch_makes_it
    ) -> None:
        super().__init__(actions)
        height, width, channels = image
        self.network = nn.Sequential(*impala_trunk((channels, height, width), initialise=initialise))
        self.actor = orthogonal(nn.Linear(FEATURES, actions), POLICY_GAIN)
        self.critic = orthogonal(nn.Linear(FEATURES, 1), 1.0)

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        return self.features_of_pictures(as_floats(channels_first(obs)))
