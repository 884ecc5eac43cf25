"""PPO's objective in parts, for the algorithms that put them together in their own way."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch


class PolicyLoss(NamedTuple):
    """The clipped surrogate objective, and how far the policy has moved."""

    loss: torch.Tensor
    old_approx_kl: torch.Tensor
    approx_kl: torch.Tensor
    clip_fraction: torch.Tensor


def policy_loss(log_ratio: torch.Tensor, advantages: torch.Tensor, clip_coef: float) -> PolicyLoss:
    """`log_ratio`: by how much the actions' log-probabilities have changed since they were taken."""
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    loss = -torch.minimum(advantages * ratio, advantages * clipped).mean()
    with torch.no_grad():
        moved = ((ratio - 1).abs() > clip_coef).float().mean()
        return PolicyLoss(loss, -log_ratio.mean(), (ratio - 1 - log_ratio).mean(), moved)


def value_loss(
    values: torch.Tensor, returns: torch.Tensor, earlier: torch.Tensor, clip_coef: float | None
) -> torch.Tensor:
    """Half the squared error; with `clip_coef` the larger one of that and the error of values kept near the earlier."""
    squared_error = (values - returns).square()
    if clip_coef is not None:
        near = earlier + (values - earlier).clamp(-clip_coef, clip_coef)
        squared_error = torch.maximum(squared_error, (near - returns).square())
    return 0.5 * squared_error.mean()


def normalised(advantages: torch.Tensor) -> torch.Tensor:
    """Mean 0, standard deviation 1."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def explained_variance(values: np.ndarray, returns: np.ndarray) -> float:
    """1: the values predicted all of it; 0: none."""
    variance = float(returns.var())
    return 1 - float((returns - values).var()) / variance if variance > 0 else math.nan
