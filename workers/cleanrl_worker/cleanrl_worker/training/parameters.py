"""A module's parameters in one flat block, and small multilayer perceptrons read from it with numpy.

One block makes the optimiser step and the gradient norm a single call, and on a CPU numpy sees the same
memory as torch: acting during a rollout needs no tensor and no copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import nn


class FlatParameters:
    """Moves the parameters of a module, and their gradients, into one tensor each."""

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        device = parameters[0].device
        size = sum(parameter.numel() for parameter in parameters)
        self.block = nn.Parameter(torch.empty(size, device=device))
        self.block.grad = torch.zeros(size, device=device)
        self._on_cpu = device.type == "cpu"
        self._slices: dict[str, tuple[int, torch.Size]] = {}
        offset = 0
        for name, parameter in module.named_parameters():
            end = offset + parameter.numel()
            view = self.block.data[offset:end].view_as(parameter)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.block.grad[offset:end].view_as(parameter)
            self._slices[name] = (offset, parameter.shape)
            offset = end
        on_host = self.block.data.cpu()
        self._host_block = on_host.pin_memory() if device.type == "cuda" else on_host  # a GPU writes there by itself
        self._host = self._host_block.numpy()
        self._host_gradient = self.block.grad.cpu().numpy()

    def zero_gradients(self) -> None:
        assert self.block.grad is not None
        self.block.grad.zero_()

    def clip_gradients(self, max_norm: float) -> None:
        """Scale the gradients down to this norm; the arithmetic of `torch.nn.utils.clip_grad_norm_`."""
        assert self.block.grad is not None
        if self._on_cpu:  # without torch: where numpy made the gradients, going back and forth costs more than this
            gradient = self._host_gradient
            scale = max_norm / (math.sqrt(np.dot(gradient, gradient)) + 1e-6)
            if not scale >= 1:
                with np.errstate(invalid="ignore"):  # infinite gradients become NaN, as torch would have it
                    gradient *= np.float32(scale)
            return
        norm = torch.linalg.vector_norm(self.block.grad)
        self.block.grad.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))

    def refresh_host(self) -> None:
        """Bring numpy's view up to date after the parameters changed; free on a CPU, where it is the same memory."""
        if not self._on_cpu:
            self._host_block.copy_(self.block.data)

    def array(self, name: str) -> np.ndarray:
        """One parameter as numpy sees it."""
        return self._view(self._host, name)

    def gradient(self, name: str) -> np.ndarray:
        """Its gradient; what is written there reaches the optimiser on a CPU only."""
        return self._view(self._host_gradient, name)

    def _view(self, block: np.ndarray, name: str) -> np.ndarray:
        offset, shape = self._slices[name]
        return block[offset : offset + shape.numel()].reshape(shape)


class NumpyMlp:
    """An `nn.Sequential` of Linear layers with Tanh or ReLU between them, for inputs too small to be worth a tensor.

    `trace` and `backward` are the same arithmetic as autograd's, without its overhead; tests compare the two.
    """

    def __init__(self, parameters: FlatParameters, prefix: str, sequential: nn.Sequential) -> None:
        layers = [index for index, layer in enumerate(sequential) if isinstance(layer, nn.Linear)]
        kinds = {type(layer) for layer in sequential if not isinstance(layer, nn.Linear)}
        alternating = [index % 2 == 0 for index in range(len(sequential))]
        if (
            len(sequential) % 2 == 0
            or len(kinds) > 1
            or not kinds <= {nn.Tanh, nn.ReLU}
            or [isinstance(layer, nn.Linear) for layer in sequential] != alternating
        ):
            raise TypeError("only Linear layers with Tanh or with ReLU between them can be run here")
        relu = nn.ReLU in kinds
        self._activate: Callable[[np.ndarray, np.ndarray], Any] = keep_positive if relu else np.tanh
        self._slope = _relu_slope if relu else _tanh_slope
        names = [f"{prefix}.{index}" if prefix else str(index) for index in layers]
        # Transposed views: numpy hands them to BLAS as they are.
        self._weights = [parameters.array(f"{name}.weight").T for name in names]
        self._biases = [parameters.array(f"{name}.bias") for name in names]
        self._hidden = list(zip(self._weights[:-1], self._biases[:-1], strict=True))
        self._weight_gradients = [parameters.gradient(f"{name}.weight") for name in names]
        self._bias_gradients = [parameters.gradient(f"{name}.bias") for name in names]
        self._inputs: list[np.ndarray] = []
        self._ones = np.ones(0, dtype=np.float32)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        hidden = inputs
        for weight, bias in self._hidden:
            hidden = hidden.dot(weight)  # of two matrices the same as `@`, and quicker for small ones
            hidden += bias
            self._activate(hidden, hidden)
        outputs = hidden.dot(self._weights[-1])
        outputs += self._biases[-1]
        return outputs

    def trace(self, inputs: np.ndarray) -> np.ndarray:
        """The same, and remember what `backward` needs."""
        self._inputs = [inputs]
        for weight, bias in self._hidden:
            inputs = inputs.dot(weight)
            inputs += bias
            self._activate(inputs, inputs)
            self._inputs.append(inputs)
        outputs = inputs.dot(self._weights[-1])
        outputs += self._biases[-1]
        return outputs

    def backward(self, gradient: np.ndarray) -> None:
        """From the loss's gradient by the last `trace`'s outputs, set the gradients of every parameter."""
        if len(self._ones) != len(gradient):
            self._ones = np.ones(len(gradient), dtype=np.float32)
        for index in range(len(self._weights) - 1, -1, -1):
            inputs = self._inputs[index]
            np.dot(gradient.T, inputs, out=self._weight_gradients[index])
            # A product with ones: BLAS sums columns several times faster than numpy's `sum`.
            np.dot(self._ones, gradient, out=self._bias_gradients[index])
            if index:
                gradient = gradient.dot(self._weights[index].T)
                gradient *= self._slope(inputs)


def keep_positive(values: np.ndarray, out: np.ndarray) -> None:
    """ReLU."""
    np.maximum(values, _zeros(values.shape), out=out)


@lru_cache(maxsize=8)
def _zeros(shape: tuple[int, ...]) -> np.ndarray:
    """Compared with the number 0, numpy takes up to five times as long."""
    return np.zeros(shape, dtype=np.float32)


def _relu_slope(outputs: np.ndarray) -> np.ndarray:
    return outputs > 0


def _tanh_slope(outputs: np.ndarray) -> np.ndarray:
    slope = outputs * outputs
    np.subtract(1, slope, out=slope)
    return slope
