"""The gradient of PPO's objective: by autograd, or by hand where policy and values are small perceptrons on a CPU.

By hand it is the same arithmetic as `ppo_losses` followed by autograd, in a quarter of the time: for networks of this
size autograd spends most of it on bookkeeping. A test compares the two for every switch.

With r = exp(log π(a) − log π_old(a)) and A the advantage, the objective −mean(min(A r, A clip(r))) has the gradient
−A r / n by log π(a), and none where r has left the clip range in the direction A wants. By a categorical policy's
logits log π(a) has the gradient 1[a] − p and its entropy H −p (log p + H); by a normal distribution's mean log π(a) has
z / σ, by log σ it has z² − 1, where z = (a − μ) / σ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from cleanrl_worker.training.acting import NumpyActing
from cleanrl_worker.training.compiling import CudaGraph, compiled
from cleanrl_worker.training.distributions import HALF_LOG_TWO_PI
from cleanrl_worker.training.parameters import FlatParameters


class ArrayBatch(NamedTuple):
    """What an update learns from; one row per transition."""

    obs: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    advantages: np.ndarray
    returns: np.ndarray
    values: np.ndarray


class Switches(Protocol):
    """The flags that the objective depends on."""

    @property
    def norm_adv(self) -> bool: ...
    @property
    def clip_coef(self) -> float: ...
    @property
    def clip_vloss(self) -> bool: ...
    @property
    def ent_coef(self) -> float: ...
    @property
    def vf_coef(self) -> float: ...


class ArrayLosses:
    """What a minibatch lost; most of it is worked out only when somebody asks."""

    def __init__(
        self, switches: Switches, policy: _Categorical | _Gaussian, advantages: np.ndarray, log_ratio: np.ndarray,
        ratio: np.ndarray, outside: np.ndarray, squared_errors: np.ndarray,
    ) -> None:  # fmt: skip
        self._switches, self._policy, self._advantages = switches, policy, advantages
        self._log_ratio, self._ratio, self._squared_errors = log_ratio, ratio, squared_errors
        self.clip_fraction = np.count_nonzero(outside) / len(outside)

    @property
    def policy(self) -> float:
        coefficient = self._switches.clip_coef
        clipped = np.clip(self._ratio, 1 - coefficient, 1 + coefficient)
        return -float(np.minimum(self._advantages * self._ratio, self._advantages * clipped).mean())

    @property
    def value(self) -> float:
        return 0.5 * float(self._squared_errors.mean())

    @property
    def entropy(self) -> float:
        return self._policy.entropy

    @property
    def total(self) -> float:
        return self.policy - self._switches.ent_coef * self.entropy + self._switches.vf_coef * self.value

    @property
    def old_approx_kl(self) -> float:
        return -float(self._log_ratio.mean())

    @property
    def approx_kl(self) -> float:
        return float((self._ratio - 1 - self._log_ratio).mean())


class _Categorical:
    """Of logits: the actions' log-probabilities and the mean entropy, then the gradient by the logits."""

    def __init__(self, logits: np.ndarray, actions: np.ndarray) -> None:
        # The columns one after another: for the few there are this is quicker than reductions along an axis.
        largest = logits[:, 0]
        for column in logits.T[1:]:
            largest = np.maximum(largest, column)
        log_probs = logits - largest[:, None]
        probs = np.exp(log_probs)
        ones = np.ones(logits.shape[1], dtype=logits.dtype)
        log_probs -= np.log(probs @ ones)[:, None]
        np.exp(log_probs, out=probs)
        self._chosen = np.arange(len(actions)), actions
        self._probs, self._log_probs = probs, log_probs
        self._entropies = -((probs * log_probs) @ ones)
        self.log_probs = log_probs[self._chosen]

    @property
    def entropy(self) -> float:
        return float(self._entropies.mean())

    def gradient(self, by_log_prob: np.ndarray, by_entropy: float) -> np.ndarray:
        """By the logits, from the gradients by each row's log-probability and by each row's entropy."""
        gradient = self._probs * -by_log_prob[:, None]
        gradient[self._chosen] += by_log_prob
        if by_entropy:
            gradient -= by_entropy * self._probs * (self._log_probs + self._entropies[:, None])
        return gradient


class _Gaussian:
    """The same of means, with a spread that does not depend on the state."""

    def __init__(self, means: np.ndarray, actions: np.ndarray, log_std: np.ndarray, log_std_gradient: np.ndarray):
        self._inverse_std = np.exp(-log_std)
        self._distances = (actions - means) * self._inverse_std
        self._log_std_gradient = log_std_gradient
        squares = self._distances * self._distances
        self._squares = squares
        self.log_probs = squares @ np.full(squares.shape[1], -0.5, dtype=squares.dtype)
        self.log_probs -= float(log_std.sum()) + HALF_LOG_TWO_PI * len(log_std)
        self.entropy = float(log_std.sum()) + (0.5 + HALF_LOG_TWO_PI) * len(log_std)

    def gradient(self, by_log_prob: np.ndarray, by_entropy: float) -> np.ndarray:
        """By the means; the gradient by the spread is written where the optimiser finds it."""
        np.subtract(by_log_prob @ self._squares, by_log_prob.sum(), out=self._log_std_gradient)
        self._log_std_gradient += by_entropy * len(by_log_prob)
        return self._distances * by_log_prob[:, None] * self._inverse_std


class PpoGradient:
    """Sets the gradients of all parameters from a minibatch; what autograd does elsewhere."""

    def __init__(self, parameters: FlatParameters, acting: NumpyActing, switches: Switches, log_std: str = "") -> None:
        """`log_std` names the parameter of a normal distribution's spread; without it actions are discrete."""
        self._actor, self._critic, self._switches = acting.policy, acting.critic, switches
        self._spread = (parameters.array(log_std)[0], parameters.gradient(log_std)[0]) if log_std else None

    def __call__(self, batch: ArrayBatch, shift: np.ndarray | None = None) -> ArrayLosses:
        """`shift` is added to the policy's outputs (RPO's noise on the means)."""
        switches, coefficient, count = self._switches, self._switches.clip_coef, len(batch.obs)
        outputs = self._actor.trace(batch.obs)
        if shift is not None:
            outputs += shift
        policy: _Categorical | _Gaussian
        if self._spread is None:
            policy = _Categorical(outputs, batch.actions)
        else:
            policy = _Gaussian(outputs, batch.actions, *self._spread)

        advantages = batch.advantages
        if switches.norm_adv:
            centred = advantages - advantages.sum() / count
            advantages = centred / (math.sqrt(centred.dot(centred) / (count - 1)) + 1e-8)
        log_ratio = policy.log_probs - batch.log_probs
        ratio = np.exp(log_ratio)
        beyond = ratio - 1
        outside = np.abs(beyond) > coefficient
        by_log_prob = advantages * ratio
        by_log_prob *= np.where(outside & (beyond * advantages > 0), 0, np.float32(-1 / count))
        self._actor.backward(policy.gradient(by_log_prob, -switches.ent_coef / count))

        values = self._critic.trace(batch.obs)[:, 0]
        errors = values - batch.returns
        squared_errors = errors * errors
        if switches.clip_vloss:
            moved = values - batch.values
            allowed = np.minimum(np.maximum(moved, -coefficient), coefficient)
            clipped = batch.values + allowed
            clipped -= batch.returns
            clipped *= clipped
            errors *= (allowed == moved) | (clipped <= squared_errors)
            squared_errors = np.maximum(squared_errors, clipped)
        errors *= switches.vf_coef / count
        self._critic.backward(errors[:, None])
        return ArrayLosses(switches, policy, advantages, log_ratio, ratio, outside, squared_errors)


class AutogradGradient:
    """The same by autograd, for any network; compiled, or recorded as a CUDA graph, where that is wished for."""

    def __init__(
        self,
        parameters: FlatParameters,
        losses_of: Callable[..., Any],
        device: torch.device,
        *,
        compile: bool,
        cudagraphs: bool,
    ) -> None:
        self._parameters, self._losses_of = parameters, compiled(losses_of, wanted=compile)
        self._recorded = CudaGraph(self._from_fixed) if cudagraphs and device.type == "cuda" else None
        self._fixed: list[torch.Tensor] = []
        """Where a recorded update finds its minibatch"""

    def __call__(self, columns: Sequence[torch.Tensor], shift: torch.Tensor | None = None) -> Any:
        given = columns if shift is None else (*columns, shift)
        if self._recorded is None:
            return self._backward(given)
        if not self._fixed:
            self._fixed = [tensor.clone() for tensor in given]
        for kept, new in zip(self._fixed, given, strict=True):
            kept.copy_(new)
        return self._recorded()

    def _from_fixed(self) -> Any:
        return self._backward(self._fixed)

    def _backward(self, given: Sequence[torch.Tensor]) -> Any:
        losses = self._losses_of(*given)
        self._parameters.zero_gradients()
        losses.total.backward()
        return type(losses)(*(loss.detach() for loss in losses))
