"""Playing with a network that remembers: a state per episode, empty at its start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from cleanrl_worker.training.acting import Policy


@runtime_checkable
class Remembering(Protocol):
    """A policy (or a learner) that must be told whose observations it is given."""

    def follow(self, episodes: Sequence[int]) -> None:
        """The rows of the next `act` belong to these episodes; one that was not among the last is at its start."""


def tell_episodes(policy: object, episodes: Sequence[int]) -> None:
    """Say which episodes come next, if it matters to this policy; none of them: whatever comes begins anew."""
    if isinstance(policy, Remembering):
        policy.follow(episodes)


Recurrent = Callable[
    [torch.Tensor, tuple[torch.Tensor, torch.Tensor], torch.Tensor],
    tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]],
]
"""(observations, state, where episodes start) → (outputs, state afterwards)"""


class RecurrentPlay:
    """Runs a recurrent network one step at a time; rows come and go with their episodes."""

    def __init__(self, forward: Recurrent, hidden: int, device: torch.device) -> None:
        self._forward, self._device, self._hidden = forward, device, hidden
        self._episodes: list[int] = []
        self._state = np.zeros((2, 1, 0, hidden), dtype=np.float32)

    def follow(self, episodes: Sequence[int]) -> None:
        state = np.zeros((2, 1, len(episodes), self._hidden), dtype=np.float32)
        known = {episode: row for row, episode in enumerate(self._episodes)}
        for row, episode in enumerate(episodes):
            if episode in known:
                state[:, :, row] = self._state[:, :, known[episode]]
        self._episodes, self._state = list(episodes), state

    @torch.inference_mode()
    def __call__(self, obs: np.ndarray) -> np.ndarray:
        if len(obs) != len(self._episodes):  # nobody said whose they are: they begin
            self.follow([])
            self.follow(range(len(obs)))
        hidden, cell = (torch.from_numpy(array).to(self._device) for array in self._state)
        seen = torch.from_numpy(np.ascontiguousarray(obs)).to(self._device)
        outputs, state = self._forward(seen, (hidden, cell), torch.zeros(1, len(obs), dtype=torch.bool))
        self._state = np.stack([part.cpu().numpy() for part in state])
        return outputs.cpu().numpy()

    def policy(self, obs: np.ndarray) -> np.ndarray:
        """The same under the name a `DistributionPolicy` has for it."""
        return self(obs)


class RecurrentPolicy:
    """A policy whose network is a `RecurrentPlay`."""

    def __init__(self, policy: Policy, play: RecurrentPlay) -> None:
        self.act, self.follow = policy.act, play.follow
