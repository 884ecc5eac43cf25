"""DDPG, TD3 and SAC with explicit gradients, for actors and critics of two hidden ReLU layers.

The updates are those of the algorithms' files in half the time or less: autograd builds a graph for every update and,
for the actor's loss, also computes the critic's own gradients. `compare` checks whether they are still the same. Unlike
the rest of this package they run on any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from cleanrl_worker.agents.continuous import LOG_STD_MIDDLE, LOG_STD_REACH, QNetwork
from cleanrl_worker.agents.layers import HALF_LOG_TWO_PI
from cleanrl_worker.training.fast_cpu import first_difference, synthetic_generator
from cleanrl_worker.training.fast_cpu.networks import ReluMlp, Trace
from cleanrl_worker.training.optimizers import Trained
from cleanrl_worker.training.replay import Transitions

TINY = 1e-6
"""Keeps the logarithm finite where tanh has reached 1"""
_SMALL_STEP = 1e-6
"""Adam's step size in the comparison, so that gradients near zero do not become large steps of different signs"""

UpdateStats = dict[str, torch.Tensor]


def compare(learner: Any, fast: Any) -> str:
    """Return what differs between the learner's update and the fast one on a synthetic batch; all state is restored."""
    rng, parts = synthetic_generator(), learner.trained
    saved = {name: [tensor.clone() for tensor in part.tensors()] for name, part in parts.items()}
    rates = {name: part.learning_rate for name, part in parts.items()}
    _fill_synthetic_batch(learner, rng)
    noise = {
        name: [torch.from_numpy(0.05 * rng.standard_normal(len(block), dtype=np.float32)) for block in part.blocks()]
        for name, part in parts.items()
    }
    found: list[dict[str, dict[str, Any]]] = []
    try:
        for update in (_without_autograd(fast.update), learner.update):
            for name, part in parts.items():
                part.learning_rate = _SMALL_STEP
                part.load(saved[name])
                for block, added in zip(part.blocks(), noise[name], strict=True):
                    block += added.to(block.device)
            targets = {name: part.target_block.clone() for name, part in parts.items() if part.target is not None}
            stats = update(True, True)
            found.append(
                {
                    "{}": {name: tensor.detach().clone() for name, tensor in stats.items()},
                    "the gradient of {}": {name: part.adam.gradient.clone() for name, part in parts.items()},
                    "the target of {}": {name: parts[name].target_block - old for name, old in targets.items()},
                }
            )
    finally:
        for name, part in parts.items():
            part.load(saved[name])
            part.parameters.zero_gradients()
            part.learning_rate = rates[name]
    ours, theirs = found
    for sentence, values in theirs.items():
        if name := first_difference(ours[sentence], values):
            return f"{sentence.format(name)} differs"
    return ""


def _without_autograd(update: Any) -> Any:
    return torch.no_grad()(update)


def _fill_synthetic_batch(learner: Any, rng: np.random.Generator) -> None:
    """Fill the batch with terminated and other transitions, and with noise on both sides of every clip."""
    spaces, rows = learner.spaces, learner.args.batch_size
    obs, next_obs = rng.standard_normal((2, rows, spaces.observations), dtype=np.float32)
    actions = rng.uniform(spaces.low, spaces.high, (rows, spaces.actions)).astype(np.float32)
    rewards, ended = rng.standard_normal(rows, dtype=np.float32), np.arange(rows) % 3 == 0
    transitions = Transitions(obs, actions, rewards, learner.synthetic_spread * next_obs, ended)
    learner.batch.fill(transitions, rng, noises=len(learner.batch.noise))
    learner.batch.noise.mul_(learner.synthetic_spread)


class FastCritics:
    """One or two Q-networks in one block of parameters; their inputs are observations and actions concatenated.

    Each has matrix products of 256 × 256 × 256 in both passes. As one batched product those of two critics would take
    longer on a CPU (840 µs instead of 2 × 340), so they are evaluated one after the other.
    """

    def __init__(self, critics: Trained) -> None:
        assert critics.target is not None
        self._step = critics.step
        adam = critics.adam
        self._critics = _relu_mlps(critics.network, adam.block, adam.gradient)
        self._targets = _relu_mlps(critics.target, critics.target_block, adam.gradient)  # their gradient is unused

    def target_values(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the smallest value of the target networks: [batch, 1]."""
        values = [critic(inputs)[0] for critic in self._targets]
        return values[0] if len(values) == 1 else torch.minimum(*values)

    def fit(self, inputs: torch.Tensor, td_targets: torch.Tensor) -> UpdateStats:
        """Take one step on the mean squared errors; return errors and values of each critic."""
        stats: UpdateStats = {}
        for number, critic in enumerate(self._critics, start=1):
            trace = critic.trace(inputs)
            (values,) = critic.outputs(trace)
            errors = values - td_targets
            critic.backward(trace, errors * (2 / len(errors)))
            stats |= {f"qf{number}_values": values, f"qf{number}_errors": errors}
        self._step()
        return stats

    def slope_of_first(self, inputs: torch.Tensor, actions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first critic's values, and the gradient of minus their mean with respect to the actions."""
        trace = self._critics[0].trace(inputs)
        (values,) = self._critics[0].outputs(trace)
        down = torch.full_like(values, -1 / len(values))
        return values, self._critics[0].input_gradient(trace, down, last=actions)

    def slope_of_least(self, inputs: torch.Tensor, actions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the smaller value of each row, and the gradient of minus their mean with respect to the actions."""
        traces = [critic.trace(inputs) for critic in self._critics]
        values = [critic.outputs(trace)[0] for critic, trace in zip(self._critics, traces, strict=True)]
        is_first = values[0] <= values[1]
        # Row selections have dynamic shapes, which compiled code and CUDA graphs do not support.
        fixed = inputs.device.type != "cpu" or torch.compiler.is_compiling()
        slope = (self._slope_of_all if fixed else self._slope_of_own)(traces, (is_first, ~is_first), actions)
        return torch.minimum(*values), slope

    def _slope_of_own(self, traces: Sequence[Trace], shares: Sequence[torch.Tensor], actions: int) -> torch.Tensor:
        """Return the gradient, each critic evaluated only for the rows where its value is the smaller one."""
        slope = shares[0].new_empty((len(shares[0]), actions), dtype=torch.float32)
        down = torch.full((len(slope), 1), -1 / len(slope))
        for critic, trace, share in zip(self._critics, traces, shares, strict=True):
            rows = share.squeeze(1).nonzero().squeeze(1)
            if len(rows):
                slope[rows] = critic.input_gradient(trace.rows(rows), down[: len(rows)], last=actions)
        return slope

    def _slope_of_all(self, traces: Sequence[Trace], shares: Sequence[torch.Tensor], actions: int) -> torch.Tensor:
        """Return the same with both critics evaluated for all rows."""
        first, second = (
            critic.input_gradient(trace, share * (-1 / len(share)), last=actions)
            for critic, trace, share in zip(self._critics, traces, shares, strict=True)
        )
        return first + second


def _relu_mlps(networks: Any, block: torch.Tensor, gradient: torch.Tensor) -> list[ReluMlp]:
    found = []
    for network in networks:
        assert isinstance(network, QNetwork)
        found.append(ReluMlp(block, gradient, network.fc1, network.fc2, network.fc3))
    return found


# ---------------------------------------------------------------- DDPG and TD3


class FastActor:
    """A deterministic actor and its policy gradient (Silver et al. 2014)."""

    def __init__(self, actor: Trained) -> None:
        network: Any = actor.network
        target: Any = actor.target
        adam, self._step = actor.adam, actor.step
        self._actor = ReluMlp(adam.block, adam.gradient, network.fc1, network.fc2, network.fc_mu)
        self._target = ReluMlp(actor.target_block, adam.gradient, target.fc1, target.fc2, target.fc_mu)
        self._scale, self._bias = network.action_scale, network.action_bias

    def target_actions(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the target network's actions."""
        return torch.addcmul(self._bias, self._target(obs)[0].tanh_(), self._scale)

    def improve(self, obs: torch.Tensor, critics: FastCritics) -> torch.Tensor:
        """Take one step on minus the first critic's mean value; return its values."""
        trace = self._actor.trace(obs)
        squashed = self._actor.outputs(trace)[0].tanh_()
        actions = torch.addcmul(self._bias, squashed, self._scale)
        values, slope = critics.slope_of_first(torch.cat([obs, actions], dim=1), actions.shape[1])
        self._actor.backward(trace, slope * self._scale * (1 - squashed * squashed))
        self._step()
        return values


class FastDdpg:
    """The update of `DdpgLearner`."""

    def __init__(self, learner: Any) -> None:
        self._learner = learner
        self.critics, self.actor = FastCritics(learner.critics), FastActor(learner.actor)

    def next_actions(self) -> torch.Tensor:
        """Return the actions of the target values."""
        return self.actor.target_actions(self._learner.batch.next_obs)

    def update(self, policy: bool, targets: bool) -> UpdateStats:
        """Update from the learner's batch."""
        learner, batch = self._learner, self._learner.batch
        next_values = self.critics.target_values(torch.cat([batch.next_obs, self.next_actions()], dim=1))
        stats = self.critics.fit(batch.inputs, torch.addcmul(batch.rewards, batch.discounts, next_values))
        if policy:
            stats["actor_values"] = self.actor.improve(batch.obs, self.critics)
        if targets:
            learner.critics.move_target(learner.args.tau)
            learner.actor.move_target(learner.args.tau)
        return stats


class FastTd3(FastDdpg):
    """The update of `Td3Learner`."""

    def next_actions(self) -> torch.Tensor:
        """Return the target actor's actions with clipped noise, within the bounds."""
        learner, args = self._learner, self._learner.args
        noise = (args.policy_noise * learner.batch.noise[0]).clamp_(-args.noise_clip, args.noise_clip)
        return torch.clamp(super().next_actions().addcmul_(noise, learner.scale), learner.low, learner.high)


# ---------------------------------------------------------------- SAC


class Sample(NamedTuple):
    """Actions sampled for a batch, and what the backward pass needs."""

    actions: torch.Tensor
    log_probs: torch.Tensor
    """[batch, 1]"""
    trace: Trace
    within: torch.Tensor
    """tanh output for the log standard deviation: -1 … 1 over its range"""
    deviation: torch.Tensor
    """standard deviation × noise"""
    squashed: torch.Tensor
    density: torch.Tensor
    """derivative of the action with respect to x: scale · (1 - tanh² x), plus TINY"""


class FastSoftActor:
    """The squashed Gaussian: a = scale · tanh(x) + bias with x = mean + std · noise."""

    def __init__(self, actor: Trained) -> None:
        network: Any = actor.network
        adam, self._step = actor.adam, actor.step
        layers = (network.fc1, network.fc2, network.fc_mean, network.fc_logstd)
        self._network = ReluMlp(adam.block, adam.gradient, *layers)
        self._scale, self._bias = network.action_scale, network.action_bias

    def sample(self, obs: torch.Tensor, noise: torch.Tensor) -> Sample:
        """Return actions and their log-probabilities: log N(x) - Σ log(scale · (1 - tanh² x))."""
        trace = self._network.trace(obs)
        mean, within = self._network.outputs(trace)
        log_std = LOG_STD_MIDDLE + LOG_STD_REACH * within.tanh_()
        deviation = log_std.exp() * noise
        squashed = (mean + deviation).tanh_()
        density = self._scale * (1 - squashed * squashed) + TINY
        negative_log_probs = log_std.addcmul_(noise, noise, value=0.5) + density.log()
        log_probs = -negative_log_probs.sum(dim=1, keepdim=True) - noise.shape[1] * HALF_LOG_TWO_PI
        actions = squashed * self._scale + self._bias
        return Sample(actions, log_probs, trace, within, deviation, squashed, density)

    def improve(self, sample: Sample, slope: torch.Tensor, alpha: torch.Tensor) -> None:
        """Take one step on mean(α log π(a|s) - Q(s, a)); `slope` is the gradient of the second part w.r.t. actions."""
        share = alpha / len(slope)
        tanh_slope = 1 - sample.squashed * sample.squashed
        # x changes the actions and -log(density), whose derivative by tanh(x) is 2 scale tanh(x) / density.
        by_action = slope + share * 2 * sample.squashed / sample.density
        by_mean = by_action * self._scale * tanh_slope
        by_log_std = by_mean * sample.deviation - share
        by_output = by_log_std * LOG_STD_REACH * (1 - sample.within * sample.within)
        self._network.backward(sample.trace, by_mean, by_output)
        self._step()


class FastSac:
    """The update of `SacLearner`."""

    def __init__(self, learner: Any) -> None:
        self._learner = learner
        self.critics, self.actor = FastCritics(learner.critics), FastSoftActor(learner.actor)

    def _alpha(self) -> torch.Tensor:
        learner = self._learner
        alpha: torch.Tensor = learner.temperature.adam.block.exp() if learner.args.autotune else learner.fixed_alpha
        return alpha

    def update(self, policy: bool, targets: bool) -> UpdateStats:
        """Update from the learner's batch."""
        learner, args, batch = self._learner, self._learner.args, self._learner.batch
        following = self.actor.sample(batch.next_obs, batch.noise[0])
        next_values = self.critics.target_values(torch.cat([batch.next_obs, following.actions], dim=1))
        soft_values = torch.addcmul(next_values, self._alpha(), following.log_probs, value=-1)
        stats = self.critics.fit(batch.inputs, torch.addcmul(batch.rewards, batch.discounts, soft_values))
        for draw in range(args.policy_frequency if policy else 0):
            stats |= self.improve_policy(batch.obs, batch.noise[1 + draw])
        if targets:
            learner.critics.move_target(args.tau)
        return stats

    def improve_policy(self, obs: torch.Tensor, noise: torch.Tensor) -> UpdateStats:
        """Take one step on α log π(a|s) - min Q(s, a), then one on the temperature's loss."""
        sample, alpha = self.actor.sample(obs, noise), self._alpha()
        inputs = torch.cat([obs, sample.actions], dim=1)
        values, slope = self.critics.slope_of_least(inputs, self._learner.spaces.actions)
        self.actor.improve(sample, slope, alpha)
        return {"actor_losses": alpha * sample.log_probs - values, **self._update_alpha(sample.log_probs)}

    def _update_alpha(self, log_probs: torch.Tensor) -> UpdateStats:
        """Take one step on mean(-α (log π + target entropy)), which equals its derivative with respect to log α."""
        learner = self._learner
        if not learner.args.autotune:
            return {"alpha": learner.fixed_alpha}
        loss = -self._alpha() * (log_probs.mean() + learner.target_entropy)
        learner.temperature.adam.gradient.copy_(loss)
        learner.temperature.step()
        return {"alpha": self._alpha(), "alpha_loss": loss}
