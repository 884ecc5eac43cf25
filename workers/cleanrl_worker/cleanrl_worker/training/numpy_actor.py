"""Acting for continuous actions in numpy: for a row or a few, tensors would cost more than the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from cleanrl_worker.training.acting import ObservationNormaliser
from cleanrl_worker.training.parameters import FlatParameters


class NumpyActor:
    """Two hidden ReLU layers and their heads, read from the memory torch trains (or its copy on the host)."""

    def __init__(self, parameters: FlatParameters, first: str, second: str, *heads: str) -> None:
        self._hidden = [_layer(parameters, name) for name in (first, second)]
        self._heads = [_layer(parameters, name) for name in heads]

    def __call__(self, obs: np.ndarray) -> list[np.ndarray]:
        hidden = obs
        for weight, bias in self._hidden:
            hidden = hidden @ weight
            hidden += bias
            np.maximum(hidden, 0, out=hidden)
        return [hidden @ weight + bias for weight, bias in self._heads]


def _layer(parameters: FlatParameters, name: str) -> tuple[np.ndarray, np.ndarray]:
    return parameters.array(f"{name}.weight").T, parameters.array(f"{name}.bias")


class ContinuousActing(Protocol):
    """Actions for a batch of observations, in float32."""

    def best(self, obs: np.ndarray) -> np.ndarray: ...

    def sample(self, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """With standard normal `noise` of the actions' shape."""


class ContinuousPolicy:
    """A trained actor, to be played; observations pass through the normaliser it was trained with, if any."""

    def __init__(self, acting: ContinuousActing, actions: int, normaliser: ObservationNormaliser | None = None) -> None:
        self._acting, self._actions, self._normaliser = acting, actions, normaliser

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        seen = (self._normaliser(obs) if self._normaliser is not None else obs).astype(np.float32, copy=False)
        if rngs is None:
            return self._acting.best(seen)
        noise = np.stack([rng.standard_normal(self._actions, dtype=np.float32) for rng in rngs])
        return self._acting.sample(seen, noise)
