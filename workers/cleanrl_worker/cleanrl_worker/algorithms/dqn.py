"""Deep Q-network (Mnih et al. 2015): Q-learning from a replay buffer, with a target network that is updated rarely.

Under the flags and defaults of CleanRL's `dqn.py` and `dqn_atari.py`.
Runs alone: python -m cleanrl_worker.algorithms dqn --env-id CartPole-v1
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import torch
from gymnasium import Space
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import as_floats, nature_trunk, torch_default_init
from cleanrl_worker.training.args import Range, ReplayArgs, check_args
from cleanrl_worker.training.checkpointing import TrainingState, Weights, arrays_of, load_weights
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.fast_cpu import AUTOGRAD, agreeing
from cleanrl_worker.training.fast_cpu.networks import NumpyMlp
from cleanrl_worker.training.fast_cpu.q_learning import FastDqn, QGradient, choose_gradient
from cleanrl_worker.training.optimizers import FlatAdam, FlatParameters, LinearSchedule, compiled, times_passed
from cleanrl_worker.training.policies import (
    ActionValues,
    EpsilonGreedy,
    GreedyPolicy,
    TorchValues,
    count_actions,
    network_dtype,
    network_sizes,
)
from cleanrl_worker.training.replay import ReplayBuffer, Transitions, make_replay
from cleanrl_worker.training.run import BLOCK_STEPS, Learner, RunContext, TrainResult, device_for, run_training_loop

# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class QArgs(ReplayArgs):
    """Flags of all variants of DQN, with the defaults of `dqn`."""

    env_id: str = "CartPole-v1"
    """Gymnasium id, or module:id for one of your own; actions must be discrete"""
    total_timesteps: Annotated[int, Range(1)] = 500_000
    """steps to train for, over all environments"""
    learning_rate: Annotated[float, Range(0)] = 2.5e-4
    """Adam's step size"""
    num_envs: Annotated[int, Range(1)] = 1
    """environments stepped in parallel; the number of updates per step stays the same"""
    buffer_size: Annotated[int, Range(1)] = 10_000
    """transitions the replay buffer holds"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    target_network_frequency: Annotated[int, Range(1)] = 500
    """steps between two updates of the target network"""
    batch_size: Annotated[int, Range(1)] = 128
    """transitions drawn from the replay buffer for an update"""
    start_e: Annotated[float, Range(0, 1)] = 1
    """share of random actions at the start"""
    end_e: Annotated[float, Range(0, 1)] = 0.05
    """share of random actions after exploration_fraction of the training"""
    exploration_fraction: Annotated[float, Range(0, 1)] = 0.5
    """share of the training in which random actions fall from start_e to end_e"""
    learning_starts: Annotated[int, Range(0)] = 10_000
    """steps before the first update"""
    train_frequency: Annotated[int, Range(1)] = 10
    """steps between two updates"""

    gradient = "auto"  # a flag where the network is small


@dataclass(frozen=True)
class DqnArgs(QArgs):
    """Flags of `dqn` and `dqn_atari`."""

    tau: Annotated[float, Range(0, 1)] = 1.0
    """how far the target network moves towards the online network at each update: 1 makes it a copy"""


@dataclass(frozen=True)
class Args(DqnArgs):
    """Flags of `dqn`; literals only, because forms and `--describe` read this class without running it."""

    exp_name: str = "dqn"
    gradient: Literal["auto", "autograd", "fast_cpu"] = "auto"
    """what computes gradients (auto: the fast CPU engine where it agrees with the loss in the algorithm's file)"""


@dataclass(frozen=True)
class AtariArgs(DqnArgs):
    """Flags of `dqn_atari`."""

    exp_name: str = "dqn_atari"
    env_id: str = "BreakoutNoFrameskip-v4"
    """Atari game"""
    total_timesteps: Annotated[int, Range(1)] = 10_000_000
    learning_rate: Annotated[float, Range(0)] = 1e-4
    buffer_size: Annotated[int, Range(1)] = 1_000_000
    target_network_frequency: Annotated[int, Range(1)] = 1_000
    batch_size: Annotated[int, Range(1)] = 32
    end_e: Annotated[float, Range(0, 1)] = 0.01
    exploration_fraction: Annotated[float, Range(0, 1)] = 0.1
    learning_starts: Annotated[int, Range(0)] = 80_000
    train_frequency: Annotated[int, Range(1)] = 4


# ---------------------------------------------------------------- networks


class QNetwork(nn.Module):
    """Q-values for vector observations; parameter names and shapes are those of CleanRL's models."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(observations, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, actions)
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the Q-value of every action."""
        values: torch.Tensor = self.network(obs)
        return values


class AtariQNetwork(nn.Module):
    """Q-values for stacks of frames of 84 x 84."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(*nature_trunk(frames, initialize=torch_default_init), nn.Linear(512, actions))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the Q-value of every action."""
        values: torch.Tensor = self.network(as_floats(obs))
        return values


def make_network(algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> nn.Module:
    """Build the network for these spaces; raise BadInput when there is none."""
    is_stack, inputs, count = network_sizes(algo, env_id, observations, actions)
    return AtariQNetwork(inputs, count) if is_stack else QNetwork(inputs, count)


def numpy_network(network: Any, parameters: FlatParameters) -> NumpyMlp:
    """Return a small network in numpy."""
    return NumpyMlp(parameters, "network", network.network)


def values_of(network: nn.Module, parameters: FlatParameters, device: torch.device) -> ActionValues:
    """Return a function from observations to Q-values: in numpy if that gives what the network does, else in torch."""
    fast = agreeing(network, parameters, lambda: numpy_network(network, parameters), NumpyMlp.__call__, network)
    return fast or TorchValues(network, device)


# ---------------------------------------------------------------- the loss


class TorchTdGradient:
    """Gradients of any network on any device, by autograd; for a small one on a CPU `FastDqn`, if it gives the same."""

    def __init__(
        self, agent: nn.Module, parameters: FlatParameters, target: nn.Module, args: Args, device: torch.device
    ) -> None:
        self._agent, self._parameters, self._target, self._gamma = agent, parameters, target, args.gamma
        self._device = device
        self._td = compiled(self._td_loss, enabled=args.compile)

    def backward(self, batch: Transitions) -> None:
        """Set the parameters' gradients for this batch."""
        self._loss, self._predicted = self._td(*(torch.from_numpy(array).to(self._device) for array in batch))
        self._parameters.backward(self._loss)

    def losses(self) -> tuple[float, float]:
        """Return the mean squared error and the mean predicted Q-value of the last batch."""
        return self._loss.item(), self._predicted.item()

    def _td_loss(
        self,
        obs: torch.Tensor,
        actions: torch.Tensor,
        rewards: torch.Tensor,
        next_obs: torch.Tensor,
        terminated: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            td_targets = rewards + self._gamma * (1 - terminated) * self._target(next_obs).amax(dim=1)
        predicted = self._agent(obs).gather(1, actions.unsqueeze(1)).squeeze(1)
        return functional.mse_loss(predicted, td_targets), predicted.detach().mean()


# ---------------------------------------------------------------- rollout, update, loop


class DqnLearner(Learner):
    """The state of a run: act, store transitions, and every few steps update from a sampled batch."""

    loss_chart = "losses/td_loss"

    def __init__(self, args: Any, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device) -> None:
        super().__init__(args, envs, device)
        self.buffer = buffer
        self.agent: Any = self.make_network().to(device)
        self.target: Any = self.make_network().to(device)
        self.parameters, self.target_parameters = FlatParameters(self.agent), FlatParameters(self.target)
        self._move_target(1.0)
        self.optimizer = FlatAdam(self.parameters.block)
        self.values = self.make_values(device)
        self.autograd = self.make_gradient(device)
        self.gradient, self.engine = choose_gradient(self, Transitions, self.target_parameters)
        # start_e + (end_e - start_e) · step / duration, after that end_e
        self.epsilon = LinearSchedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps)
        self._actions = count_actions(args.exp_name, args.env_id, envs.action_space)
        self._dtype = network_dtype(envs.observation_space)
        self._acts_in_numpy = not isinstance(self.values, TorchValues)
        self.next_obs = np.zeros(0)

    def make_network(self) -> nn.Module:
        """Build a network for the environments."""
        spaces = (self.envs.observation_space, self.envs.action_space)
        return make_network(self.args.exp_name, self.args.env_id, *spaces)

    def make_values(self, device: torch.device) -> ActionValues:
        """Return the function that computes Q-values while acting."""
        return values_of(self.agent, self.parameters, device)

    def make_gradient(self, device: torch.device) -> QGradient:
        """Return the gradients of the loss by autograd."""
        return TorchTdGradient(self.agent, self.parameters, self.target, self.args, device)

    def make_fast_gradient(self) -> QGradient:
        """Return the gradients of a network that runs in numpy."""
        agent = numpy_network(self.agent, self.parameters)
        return FastDqn(agent, numpy_network(self.target, self.target_parameters), self.args.gamma)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Return the best actions, or actions sampled with `rng`."""
        greedy = self.values(self._as_seen(obs)).argmax(axis=1)
        if rng is None:
            return greedy
        return np.where(rng.random(len(obs)) < self.args.end_e, rng.integers(self._actions, size=len(obs)), greedy)

    @np.errstate(all="ignore")  # `stop_unless_finite` reports it at the end
    def learn(self, run: RunContext) -> None:
        """Act and update until the next multiple of BLOCK_STEPS."""
        args, num_envs = self.args, self.args.num_envs
        steps = np.arange(self.step, min((self.step // BLOCK_STEPS + 1) * BLOCK_STEPS, args.total_timesteps), num_envs)
        exploring = EpsilonGreedy(self.rng, self.epsilon.over(steps), num_envs, self._actions)
        updates, moves = self._due(steps)
        obs = self.next_obs
        for index in range(len(steps)):
            actions = exploring.actions(index, self._as_seen(obs), self.values)
            step = self.envs.step(actions)
            self.buffer.add(obs, actions, step.rewards, step.final_obs, step.terminated)
            obs = step.obs
            self.step += num_envs
            self.chart_episodes(step, run)
            for _ in range(updates[index]):
                self.gradient.backward(self._sample())
                self.optimizer.step(args.learning_rate)
                if self._acts_in_numpy:
                    self.parameters.refresh_host()
            if moves[index]:
                self._move_target(args.tau)
        self.next_obs = obs
        charts = {"charts/epsilon": self.epsilon(self.step), **self.replay_charts(self.buffer, run)}
        if any(updates):
            charts[self.loss_chart], charts["losses/q_values"] = losses = self.gradient.losses()
            if not math.isfinite(sum(losses) + self.parameters.block.data.sum().item()):
                blame = "the environment gave observations or rewards that are not finite"
                self.stop_unless_finite(math.nan, *self._sample(), blame=blame)
            self.write_extra_charts(int(steps[0]), run)
        run.writer.add_scalars(charts, self.step)

    def write_extra_charts(self, first_step: int, run: RunContext) -> None:
        """Write further charts of a variant, after a block of steps that began at `first_step`."""

    def _as_seen(self, obs: np.ndarray) -> np.ndarray:
        """Return observations in the network's dtype; the replay buffer stores the environment's."""
        return obs if obs.dtype == self._dtype else obs.astype(self._dtype)

    def _sample(self) -> Transitions:
        batch = self.buffer.sample(self.rng, self.args.batch_size)
        return batch._replace(obs=self._as_seen(batch.obs), next_obs=self._as_seen(batch.next_obs))

    def _due(self, steps: np.ndarray) -> tuple[list[int], list[int]]:
        """Return the number of updates, and of target network updates, after each of these steps.

        A run resumed without its replay buffer fills it before it learns, as at the beginning.
        """
        args, after = self.args, steps + self.args.num_envs
        stored = len(self.buffer) + after - self.step
        learns = (after > args.learning_starts) & (stored >= min(args.learning_starts, args.buffer_size))
        updates = times_passed(args.train_frequency, steps, after) * learns
        return updates.tolist(), (times_passed(args.target_network_frequency, steps, after) * learns).tolist()

    def _move_target(self, share: float) -> None:
        self.target_parameters.block.data.lerp_(self.parameters.block.data, share)

    # -- checkpoints

    @property
    def optimizers(self) -> Mapping[str, Any]:
        """Return the optimizers by their names in checkpoints."""
        return {"adam": self.optimizer}

    def snapshot(self) -> TrainingState:
        """Return everything learning depends on, with the replay buffer."""
        state = super().snapshot()
        return replace(state, arrays={**state.arrays, **arrays_of(self.target, "target")}, replay=self.buffer)

    def restore(self, state: TrainingState) -> str:
        """Continue from a snapshot; return how the environments were restored."""
        environments = super().restore(state)
        load_weights(self.target, state.part("target"), what="the checkpoint")
        state.restore_replay(self.buffer)
        return environments

    def load_agent(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        """Load the network's weights; the target network becomes a copy."""
        super().load_agent(weights, what)
        self._move_target(1.0)

    def use_autograd(self) -> None:
        """Compute gradients by autograd from here on."""
        self.gradient, self.engine = self.autograd, replace(self.engine, name=AUTOGRAD)


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
    envs = run.make_envs(args)
    learner = DqnLearner(args, envs, make_replay(args, envs, folder=run.folder.root), device_for(args))
    return run_training_loop(learner, run, total=args.total_timesteps)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
