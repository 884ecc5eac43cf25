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
        self._host = self.block.data.numpy() if self._on_cpu else self.block.data.cpu().numpy()

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
        offset, shape = self._slices[name]
        return self._host[offset : offset + shape.numel()].reshape(shape)


class NumpyMlp:
    """The forward pass of an `nn.Sequential` of Linear and Tanh, for inputs too small to be worth a tensor."""

    def __init__(self, parameters: FlatParameters, prefix: str, sequential: nn.Sequential) -> None:
        layers = [index for index, layer in enumerate(sequential) if isinstance(layer, nn.Linear)]
        expected = [nn.Linear, nn.Tanh] * (len(layers) - 1) + [nn.Linear]
        if [type(layer) for layer in sequential] != expected:
            raise TypeError("only Linear layers with Tanh between them can be run here")
        # Transposed views: numpy hands them to BLAS as they are.
        self._weights = [parameters.array(f"{prefix}.{index}.weight").T for index in layers]
        self._biases = [parameters.array(f"{prefix}.{index}.bias") for index in layers]

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        hidden = inputs
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            hidden = hidden @ weight
            hidden += bias
            np.tanh(hidden, out=hidden)
        return hidden @ self._weights[-1] + self._biases[-1]
