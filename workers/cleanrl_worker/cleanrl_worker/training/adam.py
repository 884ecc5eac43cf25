"""Adam (Kingma and Ba 2015) for one flat block of parameters, without what torch's optimiser does around its kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn


class FlatAdam:
    """`torch.optim.Adam(fused=True)` to the bit, for a sixth of its cost per step where the network is small."""

    def __init__(self, block: nn.Parameter, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        assert block.grad is not None, "FlatParameters has made the gradient"
        self._betas, self._eps = betas, eps
        self._block, self._gradient = block.data, block.grad
        self._mean, self._square = torch.zeros_like(block.data), torch.zeros_like(block.data)
        self._count = torch.zeros((), device=block.device)
        on_cpu = block.device.type == "cpu"
        # On a CPU numpy counts in the same memory, for a tenth of what a tensor would take.
        self._counter: Any = self._count.numpy() if on_cpu else self._count
        tensors = (self._block, self._gradient, self._mean, self._square)
        self._blocks, self._gradients, self._means, self._squares = (
            [tensor] if on_cpu else _pieces(tensor) for tensor in tensors
        )
        self._counts = [self._count] * len(self._blocks)

    def step(self, learning_rate: float) -> None:
        """Move the block along the gradient it has."""
        if torch.compiler.is_compiling():  # which cannot look into the kernel, and makes one of its own of this
            self._step_written_out(learning_rate)
            return
        self._counter += 1
        # The kernel behind torch's own optimiser; its public entrances take five times as long to reach it.
        torch._fused_adam_(
            self._blocks, self._gradients, self._means, self._squares, [], self._counts,
            lr=learning_rate, beta1=self._betas[0], beta2=self._betas[1], weight_decay=0.0, eps=self._eps,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    def _step_written_out(self, learning_rate: float) -> None:
        block, gradient, mean, square, count = self._block, self._gradient, self._mean, self._square, self._count
        first, second = self._betas
        count.add_(1)
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        size = learning_rate / (1 - first**count)
        block.sub_(size * mean / (square.sqrt() / (1 - second**count).sqrt() + self._eps))

    @property
    def block(self) -> torch.Tensor:
        """What is moved; whoever is to be compiled together with `step` must use this very tensor, or views of it."""
        return self._block

    @property
    def gradient(self) -> torch.Tensor:
        return self._gradient

    def arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint needs, in memory of its own."""
        parts = {"step": self._count, "exp_avg": self._mean, "exp_avg_sq": self._square}
        return {name: part.cpu().numpy().copy() for name, part in parts.items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        for name, part in (("step", self._count), ("exp_avg", self._mean), ("exp_avg_sq", self._square)):
            part.copy_(torch.from_numpy(arrays[name].copy()).reshape(part.shape))  # a count comes back as [1]


def _pieces(block: torch.Tensor) -> list[torch.Tensor]:
    """At most 32 views that begin at multiples of 16 bytes.

    Of a whole tensor the kernel gives every 65,536 numbers to one of a GPU's processors and lets the others idle: 36 µs
    for two critics on an H200, in pieces 8.
    """
    return list(torch.split(block, 4 * -(-len(block) // 128)))
