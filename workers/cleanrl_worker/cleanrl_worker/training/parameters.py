"""A module's parameters in one flat block, and small multilayer perceptrons read from it with numpy.

One block makes the optimiser step and the gradient norm a single call, and on a CPU numpy sees the same
memory as torch: acting during a rollout needs no tensor and no copy.
"""

from __future__ import annotations

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
        self._host = self.block.data.cpu().numpy()
        self._host_gradient = self.block.grad.cpu().numpy()

    def zero_gradients(self) -> None:
        assert self.block.grad is not None
        self.block.grad.zero_()

    def clip_gradients(self, max_norm: float) -> None:
        """Scale the gradients down to this norm; the arithmetic of `torch.nn.utils.clip_grad_norm_`."""
        assert self.block.grad is not None
        norm = torch.linalg.vector_norm(self.block.grad)
        self.block.grad.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))

    def refresh_host(self) -> None:
        """Bring numpy's view up to date after the parameters changed; free on a CPU, where it is the same memory."""
        if not self._on_cpu:
            self._host[:] = self.block.data.cpu().numpy()

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
        self._relu = nn.ReLU in kinds
        names = [f"{prefix}.{index}" if prefix else str(index) for index in layers]
        # Transposed views: numpy hands them to BLAS as they are.
        self._weights = [parameters.array(f"{name}.weight").T for name in names]
        self._biases = [parameters.array(f"{name}.bias") for name in names]
        self._weight_gradients = [parameters.gradient(f"{name}.weight") for name in names]
        self._bias_gradients = [parameters.gradient(f"{name}.bias") for name in names]
        self._inputs: list[np.ndarray] = []

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        hidden = inputs
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            hidden = hidden @ weight
            hidden += bias
            self._activate(hidden)
        return hidden @ self._weights[-1] + self._biases[-1]

    def _activate(self, hidden: np.ndarray) -> None:
        if self._relu:
            np.maximum(hidden, 0, out=hidden)
        else:
            np.tanh(hidden, out=hidden)

    def trace(self, inputs: np.ndarray) -> np.ndarray:
        """The same, and remember what `backward` needs."""
        self._inputs = [inputs]
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            hidden = self._inputs[-1] @ weight
            hidden += bias
            self._activate(hidden)
            self._inputs.append(hidden)
        return self._inputs[-1] @ self._weights[-1] + self._biases[-1]

    def backward(self, gradient: np.ndarray) -> None:
        """From the loss's gradient by the last `trace`'s outputs, set the gradients of every parameter."""
        for index in range(len(self._weights) - 1, -1, -1):
            inputs = self._inputs[index]
            np.matmul(gradient.T, inputs, out=self._weight_gradients[index])
            gradient.sum(axis=0, out=self._bias_gradients[index])
            if index:
                gradient = gradient @ self._weights[index].T
                gradient *= inputs > 0 if self._relu else 1 - inputs * inputs
