"""PPO's explicit gradient, for policies and values that are small perceptrons on a CPU.

It computes what autograd does with `ppo_losses` in the algorithm's file, in a quarter of the time: for networks of this
size autograd's overhead dominates. `choose_gradient` compares the two before it is used.

With r = exp(log π(a) − log π_old(a)) and A the advantage, the objective −mean(min(A r, A clip(r))) has the gradient
−A r / n by log π(a), and none where r has left the clip range in the direction A wants. By a categorical policy's
logits log π(a) has the gradient 1[a] − p and its entropy H −p (log p + H); by a normal distribution's mean log π(a) has
z / σ, by log σ it has z² − 1, where z = (a − μ) / σ.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from cleanrl_worker.agents import SharedTrunkAgent
from cleanrl_worker.agents.layers import HALF_LOG_TWO_PI
from cleanrl_worker.training.fast_cpu import (
    CHANGED_FORWARD,
    FAST_CPU,
    Engine,
    choose_engine,
    first_difference,
    perturbed,
    synthetic_generator,
)
from cleanrl_worker.training.optimizers import FlatParameters
from cleanrl_worker.training.policies import NumpyActing

_ROWS = 64
"""Of the synthetic batch"""


def choose_gradient(learner: Any) -> tuple[Any, Engine]:
    """Return the engine for a learner's gradients: this one if it agrees with `learner.autograd`, else the latter."""
    if learner.device.type != "cpu" or learner.args.compile or isinstance(learner.agent, SharedTrunkAgent):
        return learner.autograd, choose_engine(learner, None)
    if not isinstance(learner.acting, NumpyActing):
        return learner.autograd, choose_engine(learner, lambda: CHANGED_FORWARD)
    log_std = "actor_logstd" if hasattr(learner.agent, "actor_logstd") else ""
    fast = FastPpo(learner.parameters, learner.acting, learner.args, log_std)
    engine = choose_engine(learner, lambda: _difference(learner, fast))
    return (fast if engine.name == FAST_CPU else learner.autograd), engine


def _difference(learner: Any, fast: FastPpo) -> str:
    """Return what differs between the two on a synthetic batch; weights and generators stay as they are."""
    rng = synthetic_generator()
    with perturbed(learner.parameters, rng):
        batch, shift = _synthetic_batch(learner, rng)
        losses = fast(batch, shift)
        ours = _gradients(learner)
        columns = [torch.from_numpy(column) for column in vars(batch).values()]
        expected = learner.autograd(columns, None if shift is None else torch.from_numpy(shift))._asdict()
        theirs = _gradients(learner)
    found = {name: getattr(losses, name) for name in expected if hasattr(losses, name)}
    if name := first_difference(found, expected):
        return f"{name} differs"
    name = first_difference(ours, theirs)
    return f"the gradient of {name} differs" if name else ""


def _gradients(learner: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in learner.agent.named_parameters()}


def _synthetic_batch(learner: Any, rng: np.random.Generator) -> tuple[SimpleNamespace, np.ndarray | None]:
    """Return a batch with rows on both sides of every clip and advantages of both signs, and RPO's shift."""
    args, distribution, shape = learner.args, learner.distribution, learner.envs.observation_space.shape
    obs = rng.standard_normal((_ROWS, *shape), dtype=np.float32)
    outputs, values = learner.acting.both(obs)
    actions = distribution.choose(outputs, distribution.noise(rng, (_ROWS,)))
    reach = 2 * args.clip_coef + 0.1
    moved = np.where(rng.random((2, _ROWS)) < 0.2, 0.2 * reach, rng.normal(scale=reach, size=(2, _ROWS)))
    advantages, errors = rng.normal(size=(2, _ROWS))
    old_values = values + moved[1]
    columns = {
        "log_probs": distribution.log_probs(outputs, actions) + moved[0],
        "advantages": advantages,
        "returns": old_values + errors,
        "values": old_values,
    }
    arrays = {name: column.astype(np.float32) for name, column in columns.items()}
    shift = None
    if args.rpo_alpha:
        shift = rng.uniform(-args.rpo_alpha, args.rpo_alpha, outputs.shape).astype(np.float32)
    return SimpleNamespace(obs=obs, actions=actions, **arrays), shift


class ArrayLosses:
    """The losses of a minibatch, mostly computed on access; the fields are those of `ppo.Losses`."""

    def __init__(
        self,
        args: Any,
        policy: _Categorical | _Gaussian,
        advantages: np.ndarray,
        log_ratio: np.ndarray,
        ratio: np.ndarray,
        outside: np.ndarray,
        squared_errors: np.ndarray,
    ) -> None:
        self._args, self._policy, self._advantages = args, policy, advantages
        self._log_ratio, self._ratio, self._squared_errors = log_ratio, ratio, squared_errors
        self.clip_fraction = np.count_nonzero(outside) / len(outside)

    @property
    def policy(self) -> float:
        """Return the clipped surrogate objective."""
        coefficient = self._args.clip_coef
        clipped = np.clip(self._ratio, 1 - coefficient, 1 + coefficient)
        return -float(np.minimum(self._advantages * self._ratio, self._advantages * clipped).mean())

    @property
    def value(self) -> float:
        """Return the value loss."""
        return 0.5 * float(self._squared_errors.mean())

    @property
    def entropy(self) -> float:
        """Return the mean entropy."""
        return self._policy.entropy

    @property
    def total(self) -> float:
        """Return the loss."""
        return self.policy - self._args.ent_coef * self.entropy + self._args.vf_coef * self.value

    @property
    def old_approx_kl(self) -> float:
        """Return -mean(log ratio)."""
        return -float(self._log_ratio.mean())

    @property
    def approx_kl(self) -> float:
        """Return mean(ratio - 1 - log ratio)."""
        return float((self._ratio - 1 - self._log_ratio).mean())


class _Categorical:
    """Log-probabilities and entropy of a categorical policy, and their gradient with respect to the logits."""

    def __init__(self, logits: np.ndarray, actions: np.ndarray) -> None:
        # Column by column: for a few actions this is faster than a reduction along the axis.
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
        """Return the gradient with respect to the logits from those of log-probabilities and entropies."""
        gradient = self._probs * -by_log_prob[:, None]
        gradient[self._chosen] += by_log_prob
        if by_entropy:
            gradient -= by_entropy * self._probs * (self._log_probs + self._entropies[:, None])
        return gradient


class _Gaussian:
    """The same for normal distributions, with a standard deviation that does not depend on the state."""

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
        """Return the gradient with respect to the means; that of the log standard deviation is set in place."""
        np.subtract(by_log_prob @ self._squares, by_log_prob.sum(), out=self._log_std_gradient)
        self._log_std_gradient += by_entropy * len(by_log_prob)
        return self._distances * by_log_prob[:, None] * self._inverse_std


class FastPpo:
    """Sets the gradients of all parameters from a minibatch of arrays, without autograd."""

    def __init__(self, parameters: FlatParameters, acting: NumpyActing, args: Any, log_std: str = "") -> None:
        """`log_std` names the parameter of the log standard deviations; without it actions are discrete."""
        self._actor, self._critic, self._args = acting.policy, acting.critic, args
        self._spread = (parameters.array(log_std)[0], parameters.gradient(log_std)[0]) if log_std else None

    def __call__(self, batch: Any, shift: np.ndarray | None = None) -> ArrayLosses:
        """Set the gradients and return the losses; `shift` is added to the outputs (RPO's noise on the means)."""
        args, coefficient, count = self._args, self._args.clip_coef, len(batch.obs)
        outputs = self._actor.trace(batch.obs)
        if shift is not None:
            outputs += shift
        policy: _Categorical | _Gaussian
        if self._spread is None:
            policy = _Categorical(outputs, batch.actions)
        else:
            policy = _Gaussian(outputs, batch.actions, *self._spread)

        advantages = batch.advantages
        if args.norm_adv:
            centered = advantages - advantages.sum() / count
            advantages = centered / (math.sqrt(centered.dot(centered) / (count - 1)) + 1e-8)
        log_ratio = policy.log_probs - batch.log_probs
        ratio = np.exp(log_ratio)
        beyond = ratio - 1
        outside = np.abs(beyond) > coefficient
        by_log_prob = advantages * ratio
        by_log_prob *= np.where(outside & (beyond * advantages > 0), 0, np.float32(-1 / count))
        self._actor.backward(policy.gradient(by_log_prob, -args.ent_coef / count))

        values = self._critic.trace(batch.obs)[:, 0]
        errors = values - batch.returns
        squared_errors = errors * errors
        if args.clip_vloss:
            moved = values - batch.values
            allowed = np.minimum(np.maximum(moved, -coefficient), coefficient)
            clipped = batch.values + allowed
            clipped -= batch.returns
            clipped *= clipped
            errors *= (allowed == moved) | (clipped <= squared_errors)
            squared_errors = np.maximum(squared_errors, clipped)
        errors *= args.vf_coef / count
        self._critic.backward(errors[:, None])
        return ArrayLosses(args, policy, advantages, log_ratio, ratio, outside, squared_errors)
