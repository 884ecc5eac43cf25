"""Two hidden ReLU layers with their gradients written out, in torch, for batches on any device.

Autograd builds a graph for every update and, when an actor climbs its critic's slope, also computes the critic's own
gradients, which nobody asks for. Here only what is asked for is computed; tests compare it with autograd.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import nn


class Trace(NamedTuple):
    """What a forward pass leaves for the way back."""

    inputs: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor

    def rows(self, chosen: torch.Tensor) -> Trace:
        """Some rows of the batch."""
        return Trace(*(part.index_select(0, chosen) for part in self))


class ReluMlp:
    """Reads and writes the parameters of Linear layers, and their gradients, in the blocks that FlatParameters made."""

    def __init__(
        self, block: torch.Tensor, gradient: torch.Tensor, first: nn.Linear, second: nn.Linear, *heads: nn.Linear
    ) -> None:
        self._first, self._second, *self._heads = (_Affine(block, gradient, each) for each in (first, second, *heads))

    def trace(self, inputs: torch.Tensor) -> Trace:
        """Both hidden layers."""
        first = self._first(inputs).relu_()
        return Trace(inputs, first, self._second(first).relu_())

    def outputs(self, trace: Trace) -> tuple[torch.Tensor, ...]:
        """What each head makes of them."""
        return tuple(head(trace.second) for head in self._heads)

    def __call__(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.outputs(self.trace(inputs))

    def backward(self, trace: Trace, *gradients: torch.Tensor) -> None:
        """From the loss's gradient by each head's outputs, set the gradients of every parameter."""
        for head, gradient in zip(self._heads, gradients, strict=True):
            torch.mm(gradient.T, trace.second, out=head.weight_gradient)
            torch.sum(gradient, dim=0, out=head.bias_gradient)
        second = self._through_heads(trace, gradients)
        torch.mm(second.T, trace.first, out=self._second.weight_gradient)
        torch.sum(second, dim=0, out=self._second.bias_gradient)
        first = _through_relu(torch.mm(second, self._second.weight), trace.first)
        _narrow_product(first.T, trace.inputs, out=self._first.weight_gradient)
        torch.sum(first, dim=0, out=self._first.bias_gradient)

    def input_gradient(self, trace: Trace, *gradients: torch.Tensor, last: int) -> torch.Tensor:
        """The loss's gradient by the last so many columns of the inputs; that of the parameters is left alone."""
        second = self._through_heads(trace, gradients)
        first = _through_relu(torch.mm(second, self._second.weight), trace.first)
        weight = self._first.weight[:, -last:]
        return _narrow_product(first, weight, out=first.new_empty(len(first), last))

    def _through_heads(self, trace: Trace, gradients: tuple[torch.Tensor, ...]) -> torch.Tensor:
        hidden = torch.mm(gradients[0], self._heads[0].weight)
        for head, gradient in zip(self._heads[1:], gradients[1:], strict=True):
            hidden.addmm_(gradient, head.weight)
        return _through_relu(hidden, trace.second)


class _Affine:
    """One Linear layer: views of the blocks, as its own parameters are."""

    def __init__(self, block: torch.Tensor, gradient: torch.Tensor, layer: nn.Linear) -> None:
        self.weight, self.bias = _like(block, layer.weight), _like(block, layer.bias)
        self.weight_gradient, self.bias_gradient = _like(gradient, layer.weight), _like(gradient, layer.bias)
        self._transposed = self.weight.T

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, inputs, self._transposed)


def _like(block: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The part of a block that lies as this parameter does in its own."""
    assert parameter.untyped_storage().size() == block.untyped_storage().size(), "FlatParameters has put it there"
    start = int(parameter.storage_offset())
    return block[start : start + parameter.numel()].view(parameter.shape)


def _through_relu(gradient: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Zero where the output is; in place, in one pass."""
    return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


def _narrow_product(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """A product whose result has few columns: on a CPU numpy's BLAS takes a tenth of the time torch's takes for it."""
    if out.device.type != "cpu" or torch.compiler.is_compiling():
        return torch.mm(left, right, out=out)
    np.matmul(left.numpy(), right.numpy(), out=out.numpy())
    return out
