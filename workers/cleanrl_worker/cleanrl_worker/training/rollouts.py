"""What a policy met on its way: the buffers of one iteration, and their rows in ever new orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import gymnasium as gym
import numpy as np
import torch

from cleanrl_worker.training.acting import network_dtype
from cleanrl_worker.training.distributions import Distribution


class Rollout:
    """Buffers of one iteration, [time, environment]; made once and overwritten."""

    def __init__(self, num_steps: int, num_envs: int, observations: gym.Space, distribution: Distribution) -> None:
        shape = (num_steps, num_envs)
        self.obs = np.zeros((num_steps + 1, num_envs, *(observations.shape or ())), dtype=network_dtype(observations))
        self.outputs = np.zeros((*shape, distribution.outputs), dtype=np.float32)
        self.actions = np.zeros((*shape, *distribution.action_shape), dtype=distribution.action_dtype)
        self.values = np.zeros((num_steps + 1, num_envs), dtype=np.float32)
        self.rewards = np.zeros(shape, dtype=np.float32)
        self.terminated = np.zeros(shape, dtype=np.bool_)
        self.ended = np.zeros(shape, dtype=np.bool_)
        self.truncations: list[tuple[int, np.ndarray, np.ndarray]] = []
        """(time, environments, their last observations) where a time limit ended episodes"""


def shuffled(
    columns: Sequence[np.ndarray], orders: Iterator[np.ndarray], device: torch.device, *, stacked_frames: bool = False
) -> Iterator[list[torch.Tensor]]:
    """All rows once for every order, on the device.

    With `stacked_frames` the first column are pictures (channels, height, width); they come with a pixel's channels
    side by side in memory, as convolutions want them: turned once, not in every epoch.
    """
    tensors = [torch.from_numpy(column).to(device) for column in columns]
    if stacked_frames:
        tensors[0] = tensors[0].permute(0, 2, 3, 1)
    rows = [tensor.reshape(len(tensor), -1) for tensor in tensors]  # whole rows are copied several times faster
    for order in orders:
        indices = torch.from_numpy(order).to(device)
        epoch = [row.index_select(0, indices).view(tensor.shape) for row, tensor in zip(rows, tensors, strict=True)]
        if stacked_frames:
            epoch[0] = epoch[0].permute(0, 3, 1, 2)
        yield epoch
