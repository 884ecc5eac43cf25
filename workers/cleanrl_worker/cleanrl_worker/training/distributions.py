"""How a policy's outputs become actions, in numpy: one of several by logits, or numbers around their means."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from cleanrl_worker.training.returns import log_softmax

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Distribution(Protocol):
    """What a rollout needs. `noise` is drawn for many steps at once; together with the outputs it settles an action."""

    outputs: int
    action_dtype: np.dtype

    @property
    def action_shape(self) -> tuple[int, ...]: ...

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """[*shape, outputs]"""

    def choose(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Sampled actions."""

    def best(self, outputs: np.ndarray) -> np.ndarray:
        """The most likely actions."""

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Of each action, the logarithm of its probability (density)."""


class Categorical:
    """One of several actions; the outputs are logits."""

    action_shape = ()
    action_dtype = np.dtype(np.int64)

    def __init__(self, actions: int) -> None:
        self.outputs = actions

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        # Gumbel noise on the logits, then the largest: a sample of the categorical distribution.
        return rng.gumbel(size=(*shape, self.outputs)).astype(np.float32)

    def choose(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return (outputs + noise).argmax(axis=-1)

    def best(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.argmax(axis=-1)

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        return np.take_along_axis(log_softmax(outputs), actions[..., None], axis=-1)[..., 0]


class DiagonalGaussian:
    """Numbers, each normally distributed around its mean; the outputs are the means."""

    action_dtype = np.dtype(np.float32)

    def __init__(self, log_std: np.ndarray) -> None:
        """`log_std` is a view of the parameters: it changes as they are trained."""
        self._log_std = log_std.reshape(-1)
        self.outputs = len(self._log_std)
        self.action_shape = (self.outputs,)

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.standard_normal((*shape, self.outputs), dtype=np.float32) * np.exp(self._log_std)

    def choose(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return outputs + noise

    def best(self, outputs: np.ndarray) -> np.ndarray:
        return outputs

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        distances = (actions - outputs) * np.exp(-self._log_std)
        return (-0.5 * distances * distances - self._log_std - HALF_LOG_TWO_PI).sum(axis=-1)
