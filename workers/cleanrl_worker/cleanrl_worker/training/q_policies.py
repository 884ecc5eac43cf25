"""Acting by the values of actions: mostly the best one, now and then any."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gymnasium as gym
import numpy as np
import torch

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.acting import ObservationNormaliser

ActionValues = Callable[[np.ndarray], np.ndarray]
"""Observations [row, …] → values [row, action]"""

EVALUATION_EPSILON = 0.05
"""Share of random actions where a policy is to be played as in training and how it was trained is not known"""


class EpsilonGreedy:
    """The random part of some steps to come, drawn all at once: generators are slow for a few numbers."""

    def __init__(self, rng: np.random.Generator, epsilons: np.ndarray, num_envs: int, actions: int) -> None:
        shape = (len(epsilons), num_envs)
        at_random = np.less(rng.random(shape), epsilons[:, None])
        self._random_actions = rng.integers(actions, size=shape)
        self._at_random = at_random
        self._all_at_random: list[bool] = at_random.all(axis=1).tolist()
        self._none_at_random: list[bool] = (~at_random.any(axis=1)).tolist()

    def actions(self, index: int, obs: np.ndarray, values: ActionValues) -> np.ndarray:
        """The actions of one of the steps; the network is asked only where somebody follows it."""
        if self._all_at_random[index]:
            return self._random_actions[index]
        best = values(obs).argmax(axis=1)
        if self._none_at_random[index]:
            return best
        return np.where(self._at_random[index], self._random_actions[index], best)


class TorchValues:
    """Any network, on any device; `forward` gives the values of a batch."""

    def __init__(self, forward: Callable[[torch.Tensor], torch.Tensor], device: torch.device) -> None:
        self._forward, self._device = forward, device

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self._forward(torch.from_numpy(np.ascontiguousarray(obs)).to(self._device)).cpu().numpy()


class GreedyPolicy:
    """A trained network, to be played: the best action, or with a generator at hand now and then any."""

    def __init__(
        self,
        values: ActionValues,
        dtype: np.dtype,
        normaliser: ObservationNormaliser | None = None,
        *,
        epsilon: float = EVALUATION_EPSILON,
    ) -> None:
        self._values, self._dtype, self._normaliser, self._epsilon = values, dtype, normaliser, epsilon

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        seen = self._normaliser(obs) if self._normaliser is not None else obs
        values = self._values(seen.astype(self._dtype, copy=False))
        actions = values.argmax(axis=1)
        for row, rng in enumerate(rngs or ()):
            if rng.random() < self._epsilon:
                actions[row] = rng.integers(values.shape[1])
        return actions

    def consider(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        seen = self._normaliser(obs) if self._normaliser is not None else obs
        return {"action_values": self._values(seen.astype(self._dtype, copy=False))[0]}


def count_actions(algo: str, env_id: str, actions: gym.Space) -> int:
    """How many actions there are to choose from; BadInput where they cannot be counted."""
    if not isinstance(actions, gym.spaces.Discrete):
        raise BadInput(f"{algo} needs discrete actions; {env_id} has {type(actions).__name__} actions")
    return int(actions.n)
