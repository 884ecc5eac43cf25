"""Parallelized Q-network (Gallici et al. 2024): Q-learning without a replay buffer and without a target network.

Many environments and layer normalization replace both. Under the flags and defaults of CleanRL's `pqn.py` and
`pqn_atari_envpool.py`; the recurrent variant is in pqn_lstm.py.
Runs alone: python -m cleanrl_worker.algorithms pqn --env-id CartPole-v1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium import Space
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents import orthogonal
from cleanrl_worker.agents.atari import as_floats, nature_trunk
from cleanrl_worker.training.args import CommonArgs, Range, check_args
from cleanrl_worker.training.checkpointing import Weights, load_weights
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.fast_cpu import AUTOGRAD, FAST_CPU, agreeing
from cleanrl_worker.training.fast_cpu.networks import NumpyLayerNormMlp
from cleanrl_worker.training.fast_cpu.q_learning import FastPqn, choose_gradient
from cleanrl_worker.training.optimizers import FlatParameters, LinearSchedule, RAdam, compiled
from cleanrl_worker.training.policies import (
    ActionValues,
    GreedyPolicy,
    TorchValues,
    count_actions,
    network_dtype,
    network_sizes,
)
from cleanrl_worker.training.run import (
    Learner,
    RunContext,
    TrainResult,
    device_for,
    run_training_loop,
    whole_iterations,
)

# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class PqnArgs(CommonArgs):
    """Flags of all variants of PQN, with the defaults of `pqn`."""

    env_id: str = "CartPole-v1"
    """Gymnasium id, or module:id for one of your own; actions must be discrete"""
    total_timesteps: Annotated[int, Range(1)] = 500_000
    """steps to train for, over all environments; whole iterations only"""
    learning_rate: Annotated[float, Range(0)] = 2.5e-4
    """RAdam's step size (at the start, with anneal_lr)"""
    num_envs: Annotated[int, Range(1)] = 4
    """environments stepped in parallel"""
    num_steps: Annotated[int, Range(1)] = 128
    """steps per environment between two updates"""
    num_minibatches: Annotated[int, Range(1)] = 4
    """minibatches per epoch; must divide num_envs × num_steps"""
    update_epochs: Annotated[int, Range(1)] = 4
    """passes over each batch"""
    anneal_lr: bool = True
    """let the learning rate fall linearly to zero"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    start_e: Annotated[float, Range(0, 1)] = 1
    """share of random actions at the start"""
    end_e: Annotated[float, Range(0, 1)] = 0.05
    """share of random actions after exploration_fraction of the training"""
    exploration_fraction: Annotated[float, Range(0, 1)] = 0.5
    """share of the training in which random actions fall from start_e to end_e"""
    max_grad_norm: Annotated[float, Range(0)] = 10.0
    """gradients are scaled down to this norm"""
    q_lambda: Annotated[float, Range(0, 1)] = 0.65
    """lambda of Q(lambda) returns: 0 one step, 1 to the end of the rollout"""

    gradient = "auto"  # a flag where the network is small


@dataclass(frozen=True)
class Args(PqnArgs):
    """Flags of `pqn`."""

    exp_name: str = "pqn"
    gradient: Literal["auto", "autograd", "fast_cpu"] = "auto"
    """what computes gradients (auto: the fast CPU engine where it agrees with the loss in the algorithm's file)"""


@dataclass(frozen=True)
class AtariArgs(PqnArgs):
    """Flags of `pqn_atari_envpool`."""

    exp_name: str = "pqn_atari_envpool"
    env_id: str = "Breakout-v5"
    """Atari game, by envpool's name for it or by Gymnasium's"""
    env_backend: Literal["auto", "native", "sync", "async", "ale", "envpool"] = "envpool"
    total_timesteps: Annotated[int, Range(1)] = 10_000_000
    num_envs: Annotated[int, Range(1)] = 8
    end_e: Annotated[float, Range(0, 1)] = 0.01
    exploration_fraction: Annotated[float, Range(0, 1)] = 0.1

    batch_size: int = 0
    """computed: num_envs × num_steps (a value given here is ignored)"""
    minibatch_size: int = 0
    """computed: batch size / num_minibatches (a value given here is ignored)"""
    num_iterations: int = 0
    """computed: total_timesteps / batch size (a value given here is ignored)"""


# ---------------------------------------------------------------- networks


class QNetwork(nn.Module):
    """Q-values for vector observations; parameter names and shapes are those of CleanRL's models."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            orthogonal(nn.Linear(observations, 120)),
            nn.LayerNorm(120),
            nn.ReLU(),
            orthogonal(nn.Linear(120, 84)),
            nn.LayerNorm(84),
            nn.ReLU(),
            orthogonal(nn.Linear(84, actions)),
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the Q-value of every action."""
        values: torch.Tensor = self.network(obs)
        return values


class AtariQNetwork(nn.Module):
    """Q-values for stacks of frames of 84 x 84."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(*nature_trunk(frames, layer_norm=True), orthogonal(nn.Linear(512, actions)))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the Q-value of every action."""
        values: torch.Tensor = self.network(as_floats(obs))
        return values


def make_network(algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> nn.Module:
    """Build the network for these spaces; raise BadInput when there is none."""
    is_stack, inputs, count = network_sizes(algo, env_id, observations, actions)
    return AtariQNetwork(inputs, count) if is_stack else QNetwork(inputs, count)


def values_of(network: Any, parameters: FlatParameters, device: torch.device) -> ActionValues:
    """Return a function from observations to Q-values: in numpy if that gives what the network does, else in torch."""

    def make() -> NumpyLayerNormMlp:
        return NumpyLayerNormMlp(parameters, "network", network.network)

    fast = agreeing(network, parameters, make, NumpyLayerNormMlp.__call__, network)
    return fast or TorchValues(network, device)


# ---------------------------------------------------------------- the loss


class Batch(NamedTuple):
    """What an update learns from; one row per transition: arrays of the rollout, tensors for autograd."""

    obs: Any
    actions: Any
    returns: Any


class TorchGradient:
    """Gradients of any network on any device, by autograd; for a small one on a CPU `FastPqn`, if it gives the same."""

    def __init__(self, network: nn.Module, parameters: FlatParameters, device: torch.device, compile_it: bool) -> None:
        self._network, self._parameters, self._device = network, parameters, device
        self._error = compiled(self._squared_error, enabled=compile_it)

    def minibatches(self, batch: Batch, order: np.ndarray, count: int) -> Iterator[Batch]:
        """Yield the batch in this order, as `count` minibatches of tensors."""
        tensors = [torch.from_numpy(array).to(self._device) for array in batch]
        for rows in torch.from_numpy(order).to(self._device).reshape(count, -1):
            yield Batch(*(tensor[rows] for tensor in tensors))

    def backward(self, batch: Batch) -> None:
        """Set the parameters' gradients for this minibatch."""
        self._loss, self._predicted = self._error(*(torch.as_tensor(column, device=self._device) for column in batch))
        self._parameters.backward(self._loss)

    def losses(self) -> tuple[float, float]:
        """Return the mean squared error and the mean predicted Q-value of the last minibatch."""
        return self._loss.item(), self._predicted.item()

    def _squared_error(
        self, obs: torch.Tensor, actions: torch.Tensor, returns: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = self._network(obs).gather(1, actions.unsqueeze(1)).squeeze(1)
        return functional.mse_loss(chosen, returns), chosen.detach().mean()


# ---------------------------------------------------------------- returns


def q_lambda_returns(
    rewards: np.ndarray,
    next_values: np.ndarray,
    terminated: np.ndarray,
    ended: np.ndarray,
    gamma: float,
    q_lambda: float,
) -> np.ndarray:
    """Return Q(lambda) returns over [time, environment]; `next_values` are the greedy values before any reset.

    Where an episode or the rollout ends, the return is the one-step return.
    """
    bootstrap = gamma * next_values * ~terminated
    returns = rewards + bootstrap
    weights = q_lambda * ~ended
    for t in range(len(returns) - 2, -1, -1):
        returns[t] += weights[t] * (gamma * returns[t + 1] - bootstrap[t])
    return returns


# ---------------------------------------------------------------- rollout, update, loop


class PqnLearner(Learner):
    """The state of a run and the two halves of an iteration: collect, then update."""

    def __init__(self, args: Args, envs: VectorEnvs, device: torch.device, *, total: int) -> None:
        super().__init__(args, envs, device)
        self.total = total
        spaces = (envs.observation_space, envs.action_space)
        self.agent = make_network(args.exp_name, args.env_id, *spaces).to(device)
        self.parameters = FlatParameters(self.agent)
        self.values = values_of(self.agent, self.parameters, device)
        self.autograd = TorchGradient(self.agent, self.parameters, device, args.compile)
        self.gradient, self.engine = choose_gradient(self, Batch)
        self.optimizer = RAdam(self.parameters, in_numpy=self.engine.name == FAST_CPU)
        # start_e + (end_e - start_e) · step / duration, after that end_e
        self.epsilon = LinearSchedule(args.start_e, args.end_e, args.exploration_fraction * total)
        self._actions = count_actions(args.exp_name, args.env_id, envs.action_space)
        dtype, shape = network_dtype(envs.observation_space), envs.observation_space.shape or ()
        self._obs = np.zeros((args.num_steps + 1, args.num_envs, *shape), dtype=dtype)
        self.next_obs = np.zeros_like(self._obs[0])

    def make_fast_gradient(self) -> FastPqn:
        """Return the gradients of a network that runs in numpy."""
        assert isinstance(self.values, NumpyLayerNormMlp)
        return FastPqn(self.values)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Return the best actions, or actions sampled with `rng`."""
        greedy = self.values(obs.astype(self.next_obs.dtype, copy=False)).argmax(axis=1)
        if rng is None:
            return greedy
        return np.where(rng.random(len(obs)) < self.args.end_e, rng.integers(self._actions, size=len(obs)), greedy)

    def learn(self, run: RunContext) -> None:
        """Collect a rollout, then update the network with it."""
        learning_rate = self.learning_rate()
        epsilon = self.epsilon(self.step)
        charts = self.update(self.collect(run), learning_rate)
        charts |= {"charts/learning_rate": learning_rate, "charts/epsilon": epsilon}
        run.writer.add_scalars(charts | {"charts/SPS": run.steps_per_second(self.step)}, self.step)

    def collect(self, run: RunContext) -> Batch:
        """Play num_steps in every environment; the values computed for acting also give the returns."""
        args, shape = self.args, (self.args.num_steps, self.args.num_envs)
        # Drawn for the whole rollout at once: a generator is slow per call.
        epsilons = self.epsilon.over(self.step + np.arange(args.num_steps) * args.num_envs)
        follows = self.rng.random(shape) >= epsilons[:, None]
        actions = self.rng.integers(self._actions, size=shape)
        rewards = np.empty(shape, dtype=np.float32)
        values = np.empty((args.num_steps + 1, args.num_envs, self._actions), dtype=np.float32)
        terminated, ended = np.empty(shape, dtype=np.bool_), np.empty(shape, dtype=np.bool_)
        truncations = []
        self._obs[0] = self.next_obs
        # The weights stay as they are while it plays.
        values_of = self.values.frozen() if isinstance(self.values, NumpyLayerNormMlp) else self.values
        for t in range(args.num_steps):
            values[t] = values_of(self._obs[t])
            np.copyto(actions[t], values[t].argmax(axis=1), where=follows[t])
            step = self.envs.step(actions[t])
            self.step += args.num_envs
            self._obs[t + 1] = step.obs
            rewards[t], terminated[t], ended[t] = step.rewards, step.terminated, step.ended
            self.chart_episodes(step, run)
            if np.count_nonzero(step.truncated):
                cut = np.flatnonzero(step.truncated & ~step.terminated)
                truncations.append((t, cut, step.final_obs[cut].astype(self._obs.dtype)))
        values[-1] = values_of(self._obs[-1])
        next_values = values[1:].max(axis=2)
        for t, cut, last_obs in truncations:
            next_values[t, cut] = self.values(last_obs).max(axis=1) if len(cut) else 0
        returns = q_lambda_returns(rewards, next_values, terminated, ended, args.gamma, args.q_lambda)
        self.next_obs = self._obs[-1].copy()
        obs = self._obs[:-1].reshape(-1, *self._obs.shape[2:])
        return Batch(obs, actions.reshape(-1), returns.reshape(-1).astype(np.float32, copy=False))

    def update(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        """Run epochs of minibatch updates; return the charts."""
        args = self.args
        with np.errstate(all="ignore"):  # `stop_unless_finite` reports it
            for _ in range(args.update_epochs):
                order = self.rng.permutation(len(batch.actions))
                for minibatch in self.gradient.minibatches(batch, order, args.num_minibatches):
                    self.gradient.backward(minibatch)
                    self.parameters.clip_gradients(args.max_grad_norm)
                    self.optimizer.step(learning_rate)
        self.parameters.refresh_host()
        blame = "the environment gave observations or rewards that are not finite, or --learning-rate is high"
        loss, values = self.gradient.losses()
        self.stop_unless_finite(loss, batch.obs, batch.returns, blame=blame)
        return {"losses/td_loss": loss, "losses/q_values": values}

    # -- checkpoints

    @property
    def optimizers(self) -> Mapping[str, Any]:
        """Return the optimizers by their names in checkpoints."""
        return {"radam": self.optimizer}

    def use_autograd(self) -> None:
        """Compute gradients by autograd from here on."""
        self.gradient, self.engine = self.autograd, replace(self.engine, name=AUTOGRAD)
        self.optimizer = RAdam(self.parameters)


# ---------------------------------------------------------------- policy and run


NAME = Args.exp_name


def make_policy(
    env_id: str, observations: Space, actions: Space, weights: Weights, *, algo: str = NAME, normalizer: Any = None
) -> GreedyPolicy:
    """Return the policy with these weights; raise BadInput when they do not fit the environment."""
    network = make_network(algo, env_id, observations, actions)
    load_weights(network, weights, what="the policy")
    values = values_of(network, FlatParameters(network), torch.device("cpu"))
    return GreedyPolicy(values, network_dtype(observations), normalizer)


def train(args: Args, run: RunContext) -> TrainResult:
    """Train until the steps are used up, the return is reached or a stop is requested; then evaluate."""
    check_args(args)
    device = device_for(args)
    total = whole_iterations(args)
    learner = PqnLearner(args, run.make_envs(args), device, total=total)
    return run_training_loop(learner, run, total=total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
