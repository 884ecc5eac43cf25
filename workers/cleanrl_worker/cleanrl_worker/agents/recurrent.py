"""Atari agents that see one picture at a time and remember: the Nature network, then an LSTM.

Input (time × environments, 1, 84, 84) uint8, / 255 -> Nature trunk -> 512 features -> LSTM(512, 128).
Agents add their heads; parameter names and shapes are those of CleanRL's recurrent models.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from cleanrl_worker.agents.atari import FEATURES, as_floats, nature_trunk

HIDDEN = 128

State = tuple[torch.Tensor, torch.Tensor]
"""Hidden state and cell state, each [1, environments, HIDDEN]"""


class RecurrentAgent(nn.Module):
    """Features that depend on everything seen since the episode began."""

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
        """[time × environments, HIDDEN] and the state afterwards.

        `obs` has all environments of the first moment, then all of the second, and so on; `starts` [time, environments]
        says where an episode begins: there the state is emptied first. It stays on the CPU, whatever the device.
        """
        seen = self.network(as_floats(obs)).reshape(*starts.shape, FEATURES)
        # From one moment at which some episode begins to the next the LSTM runs without a stop.
        bounds = [0, *(t for t in starts.any(dim=1).nonzero().flatten().tolist() if t), len(starts)]
        outputs = []
        for begin, end in pairwise(bounds):
            kept = (~starts[begin]).to(seen.device, seen.dtype).unsqueeze(1)
            found, state = self.lstm(seen[begin:end], (state[0] * kept, state[1] * kept))
            outputs.append(found)
        return torch.cat(outputs).flatten(0, 1), state


def no_memory(environments: int, device: torch.device) -> State:
    """The state in which an episode begins."""
    zeros = torch.zeros(1, environments, HIDDEN, device=device)
    return zeros, zeros.clone()
