"""Perceptrons with layer normalisation, read from the memory torch trains: forwards and backwards in numpy.

What `NumpyMlp` is for plain stacks. Sums are products with a vector of ones, which BLAS does several times faster than
numpy's reductions, and a maximum with an array of zeros costs a third of one with the number 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import nn

from cleanrl_worker.training.parameters import FlatParameters


class NumpyLayerNormMlp:
    """An `nn.Sequential` of Linear, LayerNorm and ReLU in turn, and a Linear layer at the end.

    `trace` and `backward` are the same arithmetic as autograd's, without its overhead; tests compare the two.
    """

    def __init__(self, parameters: FlatParameters, prefix: str, sequential: nn.Sequential) -> None:
        hidden = len(sequential) // 3
        expected = [nn.Linear, nn.LayerNorm, nn.ReLU] * hidden + [nn.Linear]
        if [type(layer) for layer in sequential] != expected:
            raise TypeError("only Linear, LayerNorm and ReLU layers in turn, with a Linear one at the end, run here")
        self._layers = [_NormalisedLayer(parameters, prefix, sequential, 3 * index) for index in range(hidden)]
        last = f"{prefix}.{3 * hidden}" if prefix else str(3 * hidden)
        self._weight = parameters.array(f"{last}.weight").T
        self._bias = parameters.array(f"{last}.bias")
        self._weight_gradient = parameters.gradient(f"{last}.weight")
        self._bias_gradient = parameters.gradient(f"{last}.bias")
        self._features = np.empty(0)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        for layer in self._layers:
            inputs = layer(inputs)
        return inputs @ self._weight + self._bias

    def frozen(self) -> FrozenLayerNormMlp:
        """The network as it is now, for many small batches: quicker, and blind to what is learned later."""
        layers = [layer.frozen() for layer in self._layers]
        return FrozenLayerNormMlp(layers, self._weight.copy(), self._bias.copy())

    def trace(self, inputs: np.ndarray) -> np.ndarray:
        """The same, and remember what `backward` needs."""
        for layer in self._layers:
            inputs = layer.trace(inputs)
        self._features = inputs
        return inputs @ self._weight + self._bias

    def backward(self, gradient: np.ndarray) -> None:
        """From the loss's gradient by the last `trace`'s outputs, set the gradients of every parameter."""
        np.matmul(gradient.T, self._features, out=self._weight_gradient)
        gradient.sum(axis=0, out=self._bias_gradient)
        ones = np.ones(len(gradient), dtype=np.float32)
        for index in range(len(self._layers) - 1, -1, -1):
            following = self._layers[index + 1].weight if index + 1 < len(self._layers) else self._weight
            gradient = self._layers[index].backward(gradient @ following.T, ones)


class FrozenLayer(NamedTuple):
    """A hidden layer as it was at one moment."""

    weight: np.ndarray
    bias: np.ndarray
    average: np.ndarray
    epsilon: np.float32
    gain: np.ndarray
    shift: np.ndarray


class FrozenLayerNormMlp:
    """For batches of one size: its arrays are made once."""

    def __init__(self, layers: Sequence[FrozenLayer], weight: np.ndarray, bias: np.ndarray) -> None:
        self._layers, self._weight, self._bias = layers, weight, bias
        self._spare: list[tuple[np.ndarray, ...]] = []

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        if not self._spare or len(self._spare[0][0]) != len(inputs):
            shapes = [(len(inputs), len(layer.bias)) for layer in self._layers]
            self._spare = [
                (np.empty(shape, np.float32), np.empty(shape, np.float32), np.zeros(shape, np.float32))
                for shape in shapes
            ]
        for layer, (hidden, squares, zeros) in zip(self._layers, self._spare, strict=True):
            np.matmul(inputs, layer.weight, out=hidden)
            hidden += layer.bias
            deviation = np.multiply(hidden, hidden, out=squares) @ layer.average
            deviation += layer.epsilon
            hidden /= np.sqrt(deviation, out=deviation)
            hidden *= layer.gain
            hidden += layer.shift
            inputs = np.maximum(hidden, zeros, out=hidden)
        return inputs @ self._weight + self._bias


class _NormalisedLayer:
    """Linear, then LayerNorm, then ReLU."""

    def __init__(self, parameters: FlatParameters, prefix: str, sequential: nn.Sequential, index: int) -> None:
        norm = sequential[index + 1]
        assert isinstance(norm, nn.LayerNorm)
        linear, scale = (f"{prefix}.{at}" if prefix else str(at) for at in (index, index + 1))
        self.weight = parameters.array(f"{linear}.weight").T
        self._bias = parameters.array(f"{linear}.bias")
        self._gain, self._shift = parameters.array(f"{scale}.weight"), parameters.array(f"{scale}.bias")
        self._gradients = [
            parameters.gradient(f"{name}.{part}") for name in (linear, scale) for part in ("weight", "bias")
        ]
        self._epsilon = np.float32(norm.eps)
        width = len(self._bias)
        self._average = np.full((width, 1), 1 / width, dtype=np.float32)
        self._zeros = np.zeros((0, width), dtype=np.float32)
        self._inputs = self._normalised = self._deviation = self._outputs = np.empty(0)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        hidden = self._normalise(inputs)[0]
        hidden *= self._gain
        hidden += self._shift
        return self._rectify(hidden)

    def trace(self, inputs: np.ndarray) -> np.ndarray:
        self._inputs = inputs
        self._normalised, self._deviation = self._normalise(inputs)
        outputs = self._normalised * self._gain
        outputs += self._shift
        self._outputs = self._rectify(outputs)
        return self._outputs

    def _rectify(self, hidden: np.ndarray) -> np.ndarray:
        if len(self._zeros) < len(hidden):
            self._zeros = np.zeros_like(hidden)
        return np.maximum(hidden, self._zeros[: len(hidden)], out=hidden)

    def frozen(self) -> FrozenLayer:
        # Weights and biases that sum up to zero give outputs that do: centring costs nothing any more.
        weight = self.weight - self.weight @ self._average
        bias = self._bias - self._bias.mean()
        return FrozenLayer(weight, bias, self._average, self._epsilon, self._gain.copy(), self._shift.copy())

    def _normalise(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of mean 0 and variance 1, and what they were divided by."""
        hidden = inputs @ self.weight
        hidden += self._bias
        hidden -= hidden @ self._average
        deviation = (hidden * hidden) @ self._average
        deviation += self._epsilon
        np.sqrt(deviation, out=deviation)
        hidden /= deviation
        return hidden, deviation

    def backward(self, gradient: np.ndarray, ones: np.ndarray) -> np.ndarray:
        """Set this layer's gradients; return the gradient by what its linear part gave."""
        weight, bias, gain, shift = self._gradients
        gradient *= self._outputs > 0
        np.dot(ones, gradient, out=shift)
        product = gradient * self._normalised
        np.dot(ones, product, out=gain)
        # Through the normalisation: what shifts or stretches a whole row has no effect on its outcome.
        average = self._average * self._gain[:, None]
        along, mean = product @ average, gradient @ average
        gradient *= self._gain
        gradient -= mean
        gradient -= np.multiply(self._normalised, along, out=product)
        gradient /= self._deviation
        np.matmul(gradient.T, self._inputs, out=weight)
        np.dot(ones, gradient, out=bias)
        return gradient
