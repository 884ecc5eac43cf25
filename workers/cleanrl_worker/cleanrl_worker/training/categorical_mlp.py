"""A small network of return distributions in numpy, read from the memory torch trains; forwards and backwards.

Its last layer has one output per action and atom, but a loss looks at one action of every row. Rows that are sorted by
their actions are dealt with action by action, and the outputs nobody asks for are never computed.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from torch import nn

from cleanrl_worker.training.parameters import FlatParameters, NumpyMlp, keep_positive
from cleanrl_worker.training.return_distributions import Atoms


class CategoricalMlp:
    """An `nn.Sequential` of Linear and ReLU layers whose outputs are logits of `atoms`, action after action.

    `trace` and `backward` are the same arithmetic as autograd's, without its overhead; tests compare the two.
    """

    def __init__(self, parameters: FlatParameters, prefix: str, sequential: nn.Sequential, atoms: Atoms) -> None:
        if not isinstance(sequential[-2], nn.ReLU):
            raise TypeError("only networks with ReLU before their last layer can be run here")
        self.atoms = atoms
        self._trunk = NumpyMlp(parameters, prefix, nn.Sequential(*list(sequential)[:-2]))
        last = f"{prefix}.{len(sequential) - 1}"
        self._weight, self._bias = parameters.array(f"{last}.weight"), parameters.array(f"{last}.bias")
        count = len(atoms.values)
        by_action = (-1, count, self._weight.shape[1])
        self._weights, self._biases = self._weight.reshape(by_action), self._bias.reshape(-1, count)
        self._weight_gradients = parameters.gradient(f"{last}.weight").reshape(by_action)
        self._bias_gradients = parameters.gradient(f"{last}.bias").reshape(-1, count)
        self.actions = len(self._weights)
        self._borders = np.arange(self.actions + 1)
        self._groups: list[slice] = []
        self._ones = np.ones(0, dtype=np.float32)

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """Expected returns [row, action]."""
        return self.weights(obs)[2].reshape(len(obs), self.actions)

    def weights(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`Atoms.weights` of all actions: the first row's, one after another, then the second row's …"""
        hidden = self._trunk(obs)
        keep_positive(hidden, hidden)
        logits = hidden.dot(self._weight.T)
        logits += self._bias
        return self.atoms.weights(logits.reshape(-1, len(self.atoms.values)))

    def trace(self, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Logits [row, atom] of one action for every row, and remember what `backward` needs; `actions` are sorted."""
        self._groups = [slice(*ends) for ends in pairwise(actions.searchsorted(self._borders).tolist())]
        self._features = self._trunk.trace(obs)
        keep_positive(self._features, self._features)
        logits = np.empty((len(obs), len(self.atoms.values)), dtype=np.float32)
        for rows, weight, bias in zip(self._groups, self._weights, self._biases, strict=True):
            np.dot(self._features[rows], weight.T, out=logits[rows])
            logits[rows] += bias
        return logits

    def backward(self, gradient: np.ndarray) -> None:
        """From the loss's gradient by the last `trace`'s logits, set the gradients of every parameter."""
        if len(self._ones) != len(gradient):
            self._ones = np.ones(len(gradient), dtype=np.float32)
        behind = np.empty_like(self._features)
        for action, rows in enumerate(self._groups):
            part = gradient[rows]
            np.dot(part.T, self._features[rows], out=self._weight_gradients[action])
            np.dot(self._ones[rows], part, out=self._bias_gradients[action])  # a sum, and faster than one
            np.dot(part, self._weights[action], out=behind[rows])
        behind *= self._features > 0
        self._trunk.backward(behind)
