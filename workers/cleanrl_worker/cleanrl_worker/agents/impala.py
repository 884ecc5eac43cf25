"""The residual network of IMPALA (Espeholt et al. 2018), for Procgen's images and for large Atari agents.

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


class Initialize(Protocol):
    """Initializes a layer. `scale` is 1 for the first convolution of a sequence and less for its residual blocks."""

    def __call__(self, layer: Any, scale: float) -> Any: ...


def torch_default_init(layer: Any, scale: float) -> Any:
    """Leave a layer with the weights torch gave it."""
    return layer


class ResidualBlock(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, channels: int, initialize: Initialize, scale: float) -> None:
        super().__init__()
        each = math.sqrt(scale)
        self.conv0 = initialize(nn.Conv2d(channels, channels, 3, padding=1), each)
        self.conv1 = initialize(nn.Conv2d(channels, channels, 3, padding=1), each)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the images plus the convolutions of them."""
        changes = self.conv1(functional.relu(self.conv0(functional.relu(images))))
        summed: torch.Tensor = images + changes
        return summed


class ConvSequence(nn.Module):
    """A convolution, pooling to half the size, and two residual blocks."""

    def __init__(self, channels: int, outputs: int, initialize: Initialize, scale: float) -> None:
        super().__init__()
        self.conv = initialize(nn.Conv2d(channels, outputs, 3, padding=1), 1.0)
        self.res_block0 = ResidualBlock(outputs, initialize, scale / math.sqrt(_BLOCKS))
        self.res_block1 = ResidualBlock(outputs, initialize, scale / math.sqrt(_BLOCKS))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return images of half the size."""
        halved = functional.max_pool2d(self.conv(images), kernel_size=3, stride=2, padding=1)
        out: torch.Tensor = self.res_block1(self.res_block0(halved))
        return out


def impala_trunk(
    shape: Sequence[int],
    features: int = FEATURES,
    *,
    depths: Sequence[int] = DEPTHS,
    initialize: Initialize = torch_default_init,
) -> list[nn.Module]:
    """Layers for images (channels, height, width), already floats; `nn.Sequential(*impala_trunk(shape), head)`."""
    channels, height, width = shape
    layers: list[nn.Module] = []
    for outputs in depths:
        layers.append(ConvSequence(channels, outputs, initialize, 1 / math.sqrt(len(depths))))
        channels, height, width = outputs, (height + 1) // 2, (width + 1) // 2
    dense = initialize(nn.Linear(channels * height * width, features), _DENSE_SCALE)
    return [*layers, nn.Flatten(), nn.ReLU(), dense, nn.ReLU()]


def channels_first(images: torch.Tensor) -> torch.Tensor:
    """Return images (height, width, channels) as (channels, height, width)."""
    return images.permute(0, 3, 1, 2)


class ImpalaAgent(SharedTrunkAgent):
    """An actor and a critic on the same features; names and shapes are those of CleanRL's `ppo_procgen`."""

    def __init__(
        self, actions: int, image: Sequence[int] = (64, 64, 3), initialize: Initialize = torch_default_init
    ) -> None:
        super().__init__(actions)
        height, width, channels = image
        self.network = nn.Sequential(*impala_trunk((channels, height, width), initialize=initialize))
        self.actor = orthogonal(nn.Linear(FEATURES, actions), POLICY_GAIN)
        self.critic = orthogonal(nn.Linear(FEATURES, 1), 1.0)

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the features of images (height, width, channels)."""
        return self.features_of_images(as_floats(channels_first(obs)))
