"""The convolutional network of Mnih et al. (2015, "Nature"), which most Atari agents stand on.

Input (B, 4, 84, 84) uint8, / 255
  -> Conv2d(4, 32, 8, stride 4) + ReLU -> Conv2d(32, 64, 4, stride 2) + ReLU -> Conv2d(64, 64, 3) + ReLU
  -> Flatten -> Linear(3136, 512) + ReLU

The functions return lists of layers: the parameters of `nn.Sequential(*nature_trunk(), head)` are named as in CleanRL's
models.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from cleanrl_worker.agents.layers import POLICY_GAIN, Layer, SharedTrunkAgent, orthogonal

FEATURES = 512
FLAT = 64 * 7 * 7
"""What the convolutions leave of a picture of 84 x 84"""
_CONVOLUTIONS = ((32, 8, 4, 20), (64, 4, 2, 9), (64, 3, 1, 7))
"""Channels, kernel, stride, and the side of the picture that comes out"""


class Initialise(Protocol):
    """Sets a new layer's weights and returns it: `orthogonal`, or `as_torch_makes_it`."""

    def __call__(self, layer: Layer, /) -> Layer: ...


def as_torch_makes_it(layer: Layer) -> Layer:
    """Leave a layer with the weights torch gave it."""
    return layer


def as_floats(pictures: torch.Tensor) -> torch.Tensor:
    """Bytes to numbers between 0 and 1, with a pixel's channels side by side in memory.

    In that order the gradient of the first convolution takes a quarter of the time, on a CPU; nothing else changes.
    """
    return pictures.contiguous(memory_format=torch.channels_last).float().div_(255.0)


def nature_convolutions(
    channels: int = 4, *, initialise: Initialise = orthogonal, layer_norm: bool = False
) -> list[nn.Module]:
    """Three convolutions, flattened to `FLAT` numbers; with `layer_norm` each is normalised before its ReLU."""
    layers: list[nn.Module] = []
    for outputs, kernel, stride, side in _CONVOLUTIONS:
        layers.append(initialise(nn.Conv2d(channels, outputs, kernel, stride=stride)))
        if layer_norm:
            layers.append(nn.LayerNorm([outputs, side, side]))
        layers.append(nn.ReLU())
        channels = outputs
    return [*layers, nn.Flatten()]


def nature_trunk(
    channels: int = 4, features: int = FEATURES, *, initialise: Initialise = orthogonal, layer_norm: bool = False
) -> list[nn.Module]:
    """The convolutions and one dense layer on top."""
    dense: list[nn.Module] = [initialise(nn.Linear(FLAT, features))]
    if layer_norm:
        dense.append(nn.LayerNorm(features))
    return [*nature_convolutions(channels, initialise=initialise, layer_norm=layer_norm), *dense, nn.ReLU()]


class AtariAgent(SharedTrunkAgent):
    """An actor and a critic on the same features; names and shapes are those of CleanRL's `ppo_atari`."""

    def __init__(self, actions: int, channels: int = 4) -> None:
        super().__init__(actions)
        self.network = nn.Sequential(*nature_trunk(channels))
        self.actor = orthogonal(nn.Linear(FEATURES, actions), POLICY_GAIN)
        self.critic = orthogonal(nn.Linear(FEATURES, 1), 1.0)

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        return self.features_of_pictures(as_floats(obs))
