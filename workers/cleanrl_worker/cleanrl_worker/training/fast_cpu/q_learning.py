"""DQN, C51 and PQN with explicit gradients, for small networks on a CPU, where tensors cost more than the arithmetic.

They are the gradients of the losses in the algorithms' files; `choose_gradient` compares them before they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np

from cleanrl_worker.training.fast_cpu import (
    CHANGED_FORWARD,
    FAST_CPU,
    Engine,
    choose_engine,
    first_difference,
    perturbed,
    synthetic_generator,
)
from cleanrl_worker.training.fast_cpu.networks import CategoricalMlp, NumpyLayerNormMlp, NumpyMlp
from cleanrl_worker.training.optimizers import FlatParameters
from cleanrl_worker.training.policies import TorchValues, log_softmax
from cleanrl_worker.training.replay import Transitions

_ROWS = 64
"""Of the synthetic batch"""


class QGradient(Protocol):
    """Sets the gradient of a loss of predicted Q-values."""

    def backward(self, batch: Any) -> None:
        """Set the parameters' gradients for this batch."""

    def losses(self) -> tuple[float, float]:
        """Return the loss and the mean predicted Q-value of the last batch."""


def choose_gradient(learner: Any, batch_type: Any, *targets: FlatParameters) -> tuple[Any, Engine]:
    """Return the engine for a learner's gradients: the fast one if it agrees with `learner.autograd`, else the latter.

    `batch_type` is the named tuple both learn from; `targets` are the parameters of a target network.
    """
    is_small = len(learner.envs.observation_space.shape) == 1
    if learner.device.type != "cpu" or learner.args.compile or not is_small:
        return learner.autograd, choose_engine(learner, None)
    if isinstance(learner.values, TorchValues):
        return learner.autograd, choose_engine(learner, lambda: CHANGED_FORWARD)
    fast = learner.make_fast_gradient()
    engine = choose_engine(learner, lambda: _difference(learner, fast, batch_type, targets))
    return (fast if engine.name == FAST_CPU else learner.autograd), engine


def _difference(learner: Any, fast: QGradient, batch_type: Any, targets: Sequence[FlatParameters]) -> str:
    """Return what differs between the two on a synthetic batch; weights and generators stay as they are."""
    rng = synthetic_generator()
    columns = _synthetic_columns(learner, rng)
    batch = batch_type(**{name: columns[name] for name in batch_type._fields})
    with ExitStack() as stack:
        for parameters in (learner.parameters, *targets):
            stack.enter_context(perturbed(parameters, rng))
        found = []
        for gradient in (fast, learner.autograd):
            gradient.backward(batch)
            loss, predicted = gradient.losses()
            gradients = {name: parameter.grad.clone() for name, parameter in learner.agent.named_parameters()}
            found.append(({"the loss": loss, "the mean of the predicted Q-values": predicted}, gradients))
    (ours, our_gradients), (theirs, their_gradients) = found
    if name := first_difference(ours, theirs):
        return f"{name} differs"
    name = first_difference(our_gradients, their_gradients)
    return f"the gradient of {name} differs" if name else ""


def _synthetic_columns(learner: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return terminated and other transitions, with small rewards and with some beyond the usual."""
    spaces = learner.envs
    obs, next_obs = rng.standard_normal((2, _ROWS, *spaces.observation_space.shape), dtype=np.float32)
    rewards, returns = rng.standard_normal((2, _ROWS), dtype=np.float32)
    rewards[::2] *= 10
    actions = rng.integers(spaces.action_space.n, size=_ROWS)
    terminated = (np.arange(_ROWS) % 3 == 0).astype(np.float32)
    return {
        "obs": obs,
        "actions": actions,
        "rewards": rewards,
        "returns": 10 * returns,
        "next_obs": next_obs,
        "terminated": terminated,
    }


class FastDqn:
    """The gradient of the squared TD error of DQN."""

    def __init__(self, agent: NumpyMlp, target: NumpyMlp, gamma: float) -> None:
        self._agent, self._target, self._gamma = agent, target, np.float32(gamma)

    def backward(self, batch: Transitions) -> None:
        """Set the parameters' gradients for this batch."""
        count = len(batch.actions)
        td_targets = self._target(batch.next_obs).max(axis=1)
        td_targets *= self._gamma * (1 - batch.terminated)
        td_targets += batch.rewards
        values = self._agent.trace(batch.obs)
        # Indices of the chosen actions' values in the flattened array.
        chosen = batch.actions + np.arange(0, values.size, values.shape[1])
        self._predicted = values.reshape(-1)[chosen]
        self._error = self._predicted - td_targets
        # d/dq mean((q - td_targets)²): zero for all actions but the chosen ones.
        gradient = np.zeros_like(values)
        gradient.reshape(-1)[chosen] = self._error * np.float32(2 / count)
        self._agent.backward(gradient)

    def losses(self) -> tuple[float, float]:
        """Return the mean squared error and the mean predicted Q-value of the last batch."""
        return float(np.square(self._error).mean()), float(self._predicted.mean())


class FastC51:
    """The gradient of the cross-entropy of C51."""

    def __init__(self, network: CategoricalMlp, target: CategoricalMlp, gamma: float) -> None:
        self._network, self._target, self._gamma = network, target, np.float32(gamma)

    def backward(self, batch: Transitions) -> None:
        """Set the parameters' gradients for this batch."""
        atoms, count = self._network.atoms, len(batch.actions)
        order = batch.actions.argsort(kind="stable")
        batch = Transitions(*[array.take(order, axis=0) for array in batch])
        weights, sums, values = self._target.weights(batch.next_obs)
        best = np.arange(0, len(values), self._target.actions) + values.reshape(count, -1).argmax(axis=1)
        following = weights.take(best, axis=0)
        following /= sums.take(best)[:, None]
        self._target_probs = atoms.project(following, batch.rewards, self._gamma * (1 - batch.terminated))

        self._logits = self._network.trace(batch.obs, batch.actions)
        gradient, sums, self._values = atoms.weights(self._logits)
        # d/dlogits of mean(-Σ target_probs · log p) is (p - target_probs) / count.
        gradient /= sums[:, None]
        gradient -= self._target_probs
        gradient *= np.float32(1 / count)
        self._network.backward(gradient)

    def losses(self) -> tuple[float, float]:
        """Return the cross-entropy and the mean predicted Q-value of the last batch."""
        cross_entropy = -(self._target_probs * log_softmax(self._logits)).sum(axis=1)
        return float(cross_entropy.mean()), float(self._values.mean())


class FastPqn:
    """The gradient of the squared error of PQN."""

    def __init__(self, network: NumpyLayerNormMlp) -> None:
        self._network = network

    def minibatches(self, batch: Any, order: np.ndarray, count: int) -> Iterator[Any]:
        """Yield the batch in this order, as `count` minibatches."""
        return (
            type(batch)(*columns) for columns in zip(*(np.split(array[order], count) for array in batch), strict=True)
        )

    def backward(self, batch: Any) -> None:
        """Set the parameters' gradients for this minibatch."""
        values = self._network.trace(batch.obs)
        # Indices of the chosen actions' values in the flattened array.
        chosen = batch.actions + np.arange(0, values.size, values.shape[1])
        self._predicted = values.reshape(-1)[chosen]
        self._error = self._predicted - batch.returns
        gradient = np.zeros_like(values)
        gradient.reshape(-1)[chosen] = self._error * np.float32(2 / len(self._error))
        self._network.backward(gradient)

    def losses(self) -> tuple[float, float]:
        """Return the mean squared error and the mean predicted Q-value of the last minibatch."""
        return float(np.dot(self._error, self._error) / len(self._error)), float(self._predicted.mean())
