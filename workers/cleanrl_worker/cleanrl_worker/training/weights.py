"""Weights from a checkpoint or a file into a network, with a sentence for people when they do not fit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from cleanrl_worker.errors import BadInput

_WRAPPERS = ("module.", "_orig_mod.")
"""What DataParallel and torch.compile put in front of every name"""
_MOST_TOLD = 4
_TELLING = (
    ("network.convolutions.0.weight", "minigrid"),
    ("network.0.conv.weight", "impala"),
    ("network.7.weight", "atari"),
    ("actor_logstd", "gaussian"),
)
"""A parameter that only this network of ppo's has"""


def load_weights(network: nn.Module, weights: Mapping[str, np.ndarray], *, what: str) -> None:
    """Take the weights over, all of them or none; raise BadInput with what does not fit."""
    found = _plain_names(weights)
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    wrong = [f"{name} is missing" for name in expected if name not in found]
    wrong += [f"{name} belongs to another network" for name in found if name not in expected]
    wrong += [
        f"{name} has shape {found[name].shape}, expected {shape}"
        for name, shape in expected.items()
        if name in found and found[name].shape != shape
    ]
    if wrong:
        more = f" and {len(wrong) - _MOST_TOLD} more" if len(wrong) > _MOST_TOLD else ""
        raise BadInput(f"{what} does not fit this algorithm and environment: {'; '.join(wrong[:_MOST_TOLD])}{more}")
    odd = [name for name in expected if not np.isfinite(found[name]).all()]
    if odd:
        raise BadInput(
            f"{what} cannot be used: {len(odd)} of its {len(expected)} arrays ({', '.join(odd[:_MOST_TOLD])}) hold NaN "
            f"or infinite numbers; its file is damaged, or its training diverged"
        )
    with torch.no_grad():  # in place: the parameters are views of one block
        for name, tensor in network.state_dict().items():
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(found[name])))


def _plain_names(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = dict(weights)
    for prefix in _WRAPPERS:
        if names and all(name.startswith(prefix) for name in names):
            names = {name.removeprefix(prefix): array for name, array in names.items()}
    return names


def agent_of(weights: Mapping[str, np.ndarray]) -> str:
    """Which of ppo's networks these weights belong to, by their names."""
    names = _plain_names(weights)
    for name, kind in _TELLING:
        if name in names:
            return kind
    return "mlp" if any(name.startswith("network.") for name in names) else "separate"
