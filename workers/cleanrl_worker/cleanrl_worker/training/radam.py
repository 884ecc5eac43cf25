"""Rectified Adam (Liu et al. 2020) for one flat block of parameters: a handful of calls instead of torch's hundred."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from cleanrl_worker.training.parameters import FlatParameters

_LARGEST = float(np.finfo(np.float32).max)
"""A step size beyond it is no number; the weights cease to be finite either way, and the learner says so"""


class RAdam:
    """The arithmetic of `torch.optim.RAdam` without weight decay; a test compares the two.

    `in_numpy` is for gradients that numpy computed, on a CPU: a single torch operation in between costs as much as a
    tenth of a small network's update, because the two libraries then take turns with the processor's caches.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        in_numpy: bool = False,
    ) -> None:
        self._block, self._betas, self._eps = parameters.block, betas, eps
        self._count = 0
        self._mean = torch.zeros_like(self._block.data)
        self._square = torch.zeros_like(self._block.data)
        self._spare = torch.empty_like(self._block.data)
        assert self._block.grad is not None
        tensors = (self._block.data, self._block.grad, self._mean, self._square, self._spare)
        self._arrays = tuple(tensor.numpy() for tensor in tensors) if in_numpy else None

    def step(self, learning_rate: float) -> None:
        """Move the block along the gradient it has."""
        beta1, beta2 = self._betas
        self._count += 1
        rate = min(learning_rate / (1 - beta1**self._count), _LARGEST)
        unbias = 1 - beta2**self._count
        longest = 2 / (1 - beta2) - 1
        length = longest - 2 * self._count * beta2**self._count / unbias
        rectified = length > 5  # before that the variance of the squares is unknown, and Adam's step would be a gamble
        if rectified:
            trust = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            rate *= math.sqrt(trust * unbias)
        if self._arrays is not None:
            self._move_in_numpy(rate, rectified)
        else:
            self._move_in_torch(rate, rectified)

    def _move_in_numpy(self, rate: float, rectified: bool) -> None:
        assert self._arrays is not None
        block, gradient, mean, square, spare = self._arrays
        beta1, beta2 = self._betas
        mean *= np.float32(beta1)
        mean += np.multiply(gradient, np.float32(1 - beta1), out=spare)
        square *= np.float32(beta2)
        np.multiply(gradient, gradient, out=spare)
        spare *= np.float32(1 - beta2)
        square += spare
        if rectified:
            np.sqrt(square, out=spare)
            spare += np.float32(self._eps)
            np.divide(mean, spare, out=spare)
            spare *= np.float32(rate)
        else:
            np.multiply(mean, np.float32(rate), out=spare)
        block -= spare

    @torch.no_grad()
    def _move_in_torch(self, rate: float, rectified: bool) -> None:
        assert self._block.grad is not None
        gradient, block = self._block.grad, self._block.data
        beta1, beta2 = self._betas
        self._mean.lerp_(gradient, 1 - beta1)
        self._square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        if rectified:
            torch.sqrt(self._square, out=self._spare).add_(self._eps)
            block.addcdiv_(self._mean, self._spare, value=-rate)
        else:
            block.add_(self._mean, alpha=-rate)

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint needs, in memory of its own."""
        return {
            "step": np.array(self._count),
            "exp_avg": self._mean.cpu().numpy().copy(),
            "exp_avg_sq": self._square.cpu().numpy().copy(),
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._count = int(arrays["step"].item())
        self._mean.copy_(torch.from_numpy(arrays["exp_avg"]))
        self._square.copy_(torch.from_numpy(arrays["exp_avg_sq"]))
