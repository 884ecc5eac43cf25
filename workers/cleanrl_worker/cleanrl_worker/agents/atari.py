"""The convolutional network of Mnih et al. (2015, "Nature"), used by most Atari agents.

Input (B, 4, 84, 84) uint8, / 255
  -> Conv2d(4, 32, 8, stride 4) + ReLU -> Conv2d(32, 64, 4, stride 2) + ReLU -> Conv2d(64, 64, 3) + ReLU
  -> Flatten -> Linear(3136, 512) + ReLU

The functions return lists of layers: the parameters of `nn.Sequential(*nature_trunk(), head)` are named as in CleanRL's
models.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Protocol

import torch
from torch import nn

from cleanrl_worker.agents.layers import POLICY_GAIN, Layer, SharedTrunkAgent, orthogonal

FEATURES = 512
FLAT = 64 * 7 * 7
"""Outputs of the convolutions for an image of 84 x 84"""
_CONVOLUTIONS = ((32, 8, 4, 20), (64, 4, 2, 9), (64, 3, 1, 7))
"""Channels, kernel, stride, and the side of the image that comes out"""


class Initialize(Protocol):
    """Sets a new layer's weights and returns it: `orthogonal`, or `torch_default_init`."""

    def __call__(self, layer: Layer, /) -> Layer: ...


def torch_default_init(layer: Layer) -> Layer:
    """Leave a layer with the weights torch gave it."""
    return layer


def as_floats(images: torch.Tensor) -> torch.Tensor:
    """Return uint8 images as floats between 0 and 1, in the channels-last memory format.

    With it the gradient of the first convolution takes a quarter of the time on a CPU.
    """
    return images.contiguous(memory_format=torch.channels_last).float().div_(255.0)


def nature_convolutions(
    channels: int = 4, *, initialize: Initialize = orthogonal, layer_norm: bool = False
) -> list[nn.Module]:
    """Return three convolutions, flattened to `FLAT` outputs; with `layer_norm` each is normalized before its ReLU."""
    layers: list[nn.Module] = []
    for outputs, kernel, stride, side in _CONVOLUTIONS:
        layers.append(initialize(nn.Conv2d(channels, outputs, kernel, stride=stride)))
        if layer_norm:
            layers.append(nn.LayerNorm([outputs, side, side]))
        layers.append(nn.ReLU())
        channels = outputs
    return [*layers, nn.Flatten()]


def nature_trunk(
    channels: int = 4, features: int = FEATURES, *, initialize: Initialize = orthogonal, layer_norm: bool = False
) -> list[nn.Module]:
    """Return the convolutions and one dense layer."""
    dense: list[nn.Module] = [initialize(nn.Linear(FLAT, features))]
    if layer_norm:
        dense.append(nn.LayerNorm(features))
    return [*nature_convolutions(channels, initialize=initialize, layer_norm=layer_norm), *dense, nn.ReLU()]


class AtariAgent(SharedTrunkAgent):
    """An actor and a critic on the same features; names and shapes are those of CleanRL's `ppo_atari`."""

    def __init__(self, actions: int, channels: int = 4) -> None:
        super().__init__(actions)
        self.network = nn.Sequential(*nature_trunk(channels))
        self.actor = orthogonal(nn.Linear(FEATURES, actions), POLICY_GAIN)
        self.critic = orthogonal(nn.Linear(FEATURES, 1), 1.0)

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the features of stacked frames."""
        return self.features_of_images(as_floats(obs))


class RNDAgent(nn.Module):
    """An actor and two critics: one for extrinsic, one for intrinsic rewards."""

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
        """Return logits of the actions, extrinsic values and intrinsic values (one per row)."""
        hidden = self.network(as_floats(obs))
        features = self.extra_layer(hidden) + hidden
        return self.actor(hidden), self.critic_ext(features).squeeze(1), self.critic_int(features).squeeze(1)


class RNDModel(nn.Module):
    """The predictor and the fixed random network, for single normalized frames."""

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
        """Return the squared errors of the prediction: [row, feature]."""
        squared: torch.Tensor = (self.predictor(frames) - self.target(frames)).square()
        return squared


def _leaky_convolutions() -> list[nn.Module]:
    return [nn.LeakyReLU() if isinstance(layer, nn.ReLU) else layer for layer in nature_convolutions(1)]


HIDDEN = 128

State = tuple[torch.Tensor, torch.Tensor]
"""Hidden state and cell state, each [1, environments, HIDDEN]"""


class RecurrentAgent(nn.Module):
    """Convolutions followed by an LSTM."""

    def __init__(self, frames: int, *, layer_norm: bool = False) -> None:
        super().__init__()
        self.network = nn.Sequential(*nature_trunk(frames, layer_norm=layer_norm))
        self.lstm = nn.LSTM(FEATURES, HIDDEN)
        for name, parameter in self.lstm.named_parameters():
            if "weight" in name:
                nn.init.orthogonal_(parameter, 1.0)
            else:
                nn.init.zeros_(parameter)

    def features(self, obs: torch.Tensor, state: State, starts: torch.Tensor) -> tuple[torch.Tensor, State]:
        """Return features [time × environments, HIDDEN] and the next state.

        `obs` has all environments of the first step, then all of the second, and so on. Where `starts`
        [time, environments] is set, the state is reset first. `starts` stays on the CPU.
        """
        seen = self.network(as_floats(obs)).reshape(*starts.shape, FEATURES)
        # The LSTM runs in one call between two steps at which some episode begins.
        bounds = [0, *(t for t in starts.any(dim=1).nonzero().flatten().tolist() if t), len(starts)]
        outputs = []
        for begin, end in pairwise(bounds):
            kept = (~starts[begin]).to(seen.device, seen.dtype).unsqueeze(1)
            found, state = self.lstm(seen[begin:end], (state[0] * kept, state[1] * kept))
            outputs.append(found)
        return torch.cat(outputs).flatten(0, 1), state


def initial_state(environments: int, device: torch.device) -> State:
    """Return the LSTM state at the start of an episode."""
    zeros = torch.zeros(1, environments, HIDDEN, device=device)
    return zeros, zeros.clone()
