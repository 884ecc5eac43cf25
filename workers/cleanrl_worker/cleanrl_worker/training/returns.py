"""Advantages and log-probabilities of a rollout, in numpy."""

from __future__ import annotations

import numpy as np


def generalised_advantages(
    rewards: np.ndarray,
    values: np.ndarray,
    next_values: np.ndarray,
    terminated: np.ndarray,
    ended: np.ndarray,
    gamma: float,
    gae_lambda: float,
) -> np.ndarray:
    """GAE over [time, environment]; `next_values` are of the state each action led to, before any reset.

    A termination has no future value; a truncation has, so it is bootstrapped. Both cut the sum.
    """
    deltas = rewards + gamma * next_values * ~terminated - values
    decay = (gamma * gae_lambda * ~ended).astype(deltas.dtype)
    advantages = np.empty_like(deltas)
    following = np.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        following = deltas[t] + decay[t] * following
        advantages[t] = following
    return advantages


def q_lambda_returns(
    rewards: np.ndarray,
    next_values: np.ndarray,
    terminated: np.ndarray,
    ended: np.ndarray,
    gamma: float,
    q_lambda: float,
) -> np.ndarray:
    """Q(lambda) over [time, environment]; `next_values` are the best action's in the state each action led to.

    Where an episode or the rollout ends there is nothing further to mix in: there the best action's value is all.
    """
    steps_on = gamma * next_values * ~terminated
    returns = rewards + steps_on
    mixed = q_lambda * ~ended
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += mixed[t] * (gamma * returns[t + 1] - steps_on[t])
    return returns


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities of the last axis."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
