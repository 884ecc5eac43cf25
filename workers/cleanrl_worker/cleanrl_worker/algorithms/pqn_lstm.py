"""Parallelized Q-network (Gallici et al. 2024) with an LSTM, for Atari games with a single frame per observation.

Under the flags and defaults of CleanRL's `pqn_atari_envpool_lstm.py`. Unlike pqn.py it keeps sequences whole, so
minibatches consist of environments instead of steps; each sequence begins with the LSTM state at the beginning of the
rollout, and the state is reset where an episode starts.
Runs alone: python -m cleanrl_worker.algorithms pqn_atari_envpool_lstm --env-id Pong-v5
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium import Space
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import HIDDEN, RecurrentAgent, State, initial_state
from cleanrl_worker.agents.layers import orthogonal
from cleanrl_worker.algorithms.pqn import PqnArgs, q_lambda_returns
from cleanrl_worker.training.args import Range, check_args
from cleanrl_worker.training.checkpointing import Weights, load_weights
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.optimizers import FlatParameters, LinearSchedule, RAdam, compiled
from cleanrl_worker.training.policies import (
    GreedyPolicy,
    RecurrentPlay,
    RecurrentPolicy,
    atari_sizes,
    count_actions,
    network_dtype,
)
from cleanrl_worker.training.run import (
    RecurrentLearner,
    RunContext,
    TrainResult,
    device_for,
    run_training_loop,
    whole_iterations,
)

# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class Args(PqnArgs):
    """Flags of `pqn_atari_envpool_lstm`."""

    exp_name: str = "pqn_atari_envpool_lstm"
    env_id: str = "Breakout-v5"
    """Atari game, by envpool's name for it or by Gymnasium's"""
    env_backend: Literal["auto", "native", "sync", "async", "ale", "envpool"] = "envpool"
    total_timesteps: Annotated[int, Range(1)] = 10_000_000
    num_envs: Annotated[int, Range(1)] = 8
    num_steps: Annotated[int, Range(1)] = 128
    """steps per environment between two updates; also the length of backpropagation through time"""
    num_minibatches: Annotated[int, Range(1)] = 4
    """minibatches per epoch, each of whole sequences; must divide num_envs"""
    max_grad_norm: Annotated[float, Range(0)] = 0.5
    end_e: Annotated[float, Range(0, 1)] = 0.01
    exploration_fraction: Annotated[float, Range(0, 1)] = 0.1

    batch_size: int = 0
    """computed: num_envs × num_steps (a value given here is ignored)"""
    minibatch_size: int = 0
    """computed: batch size / num_minibatches (a value given here is ignored)"""
    num_iterations: int = 0
    """computed: total_timesteps / batch size (a value given here is ignored)"""


# ---------------------------------------------------------------- network


class QNetwork(RecurrentAgent):
    """Q-values on top of an LSTM."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__(frames, layer_norm=True)
        self.q_func = orthogonal(nn.Linear(HIDDEN, actions))

    def forward(self, obs: torch.Tensor, state: State, starts: torch.Tensor) -> tuple[torch.Tensor, State]:
        """Return Q-values [row, action] and the next LSTM state."""
        features, state = self.features(obs, state, starts)
        return self.q_func(features), state


def make_network(algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> QNetwork:
    """Build the network for these spaces; raise BadInput when there is none."""
    return QNetwork(*atari_sizes(algo, env_id, observations, actions, needs="images"))


# ---------------------------------------------------------------- the loss (the returns are PQN's)


class Sequences(NamedTuple):
    """What an update learns from, [time, environment]."""

    obs: torch.Tensor
    actions: torch.Tensor
    returns: torch.Tensor


def squared_error(
    network: QNetwork, batch: Sequences, environments: torch.Tensor, state: State, starts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean squared error and the mean predicted Q-value of some of the environments.

    `state` is the LSTM state of these environments at the beginning of the rollout.
    """
    obs, actions, returns = (column[:, environments].flatten(0, 1) for column in batch)
    values, _ = network(obs, state, starts)
    chosen = values.gather(1, actions.unsqueeze(1)).squeeze(1)
    return functional.mse_loss(chosen, returns), chosen.detach().mean()


# ---------------------------------------------------------------- rollout, update, loop


class RecurrentPqnLearner(RecurrentLearner):
    """The state of a run and the two halves of an iteration: collect, then update."""

    def __init__(self, args: Args, envs: VectorEnvs, device: torch.device, *, total: int) -> None:
        super().__init__(args, envs, device)
        self.total = total
        self.agent = make_network(args.exp_name, args.env_id, envs.observation_space, envs.action_space).to(device)
        self.parameters = FlatParameters(self.agent)
        self.optimizer = RAdam(self.parameters)
        self.error = compiled(squared_error, enabled=args.compile)
        self.play = RecurrentPlay(self.agent, HIDDEN, device)
        self.epsilon = LinearSchedule(args.start_e, args.end_e, args.exploration_fraction * total)
        self._actions = count_actions(args.exp_name, args.env_id, envs.action_space)
        dtype, shape = network_dtype(envs.observation_space), envs.observation_space.shape or ()
        self._obs = np.zeros((args.num_steps + 1, args.num_envs, *shape), dtype=dtype)
        self._starts = np.ones((args.num_steps + 1, args.num_envs), dtype=np.bool_)
        self.next_obs = np.zeros_like(self._obs[0])
        self.next_starts = np.ones(args.num_envs, dtype=np.bool_)
        self.lstm_state = initial_state(args.num_envs, device)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Return the best actions, or actions sampled with `rng`."""
        greedy = self.play(obs.astype(self.next_obs.dtype, copy=False)).argmax(axis=1)
        if rng is None:
            return greedy
        return np.where(rng.random(len(obs)) < self.args.end_e, rng.integers(self._actions, size=len(obs)), greedy)

    def learn(self, run: RunContext) -> None:
        """Collect a rollout, then update the network with it."""
        learning_rate = self.learning_rate()
        epsilon, before = self.epsilon(self.step), self.lstm_state
        charts = self.update(self.collect(run), before, learning_rate)
        charts |= {"charts/learning_rate": learning_rate, "charts/epsilon": epsilon}
        run.writer.add_scalars(charts | {"charts/SPS": run.steps_per_second(self.step)}, self.step)

    @torch.inference_mode()
    def _forward(self, obs: np.ndarray, state: State, starts: np.ndarray) -> tuple[np.ndarray, State]:
        """Return the Q-values of one step, and the next LSTM state."""
        values, state = self.agent(torch.from_numpy(obs).to(self.device), state, torch.from_numpy(starts[None]))
        return values.cpu().numpy(), state

    def collect(self, run: RunContext) -> Sequences:
        """Play num_steps in every environment; the values computed for acting also give the returns."""
        args, shape = self.args, (self.args.num_steps, self.args.num_envs)
        epsilons = self.epsilon.over(self.step + np.arange(args.num_steps) * args.num_envs)
        explores = self.rng.random(shape) < epsilons[:, None]
        actions = self.rng.integers(self._actions, size=shape)
        rewards = np.empty(shape, dtype=np.float32)
        best = np.empty((args.num_steps + 1, args.num_envs), dtype=np.float32)
        terminated, ended = np.empty(shape, dtype=np.bool_), np.empty(shape, dtype=np.bool_)
        truncations: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._obs[0], self._starts[0] = self.next_obs, self.next_starts
        for t in range(args.num_steps):
            values, self.lstm_state = self._forward(self._obs[t], self.lstm_state, self._starts[t])
            best[t] = values.max(axis=1)
            np.copyto(actions[t], values.argmax(axis=1), where=~explores[t])
            step = self.envs.step(actions[t])
            self.step += args.num_envs
            rewards[t], terminated[t], ended[t] = step.rewards, step.terminated, step.ended
            self._obs[t + 1], self._starts[t + 1] = step.obs, step.ended
            self.chart_episodes(step, run)
            cut = np.flatnonzero(step.truncated & ~step.terminated)
            if len(cut):  # bootstrap from the last observation, with the LSTM state of the episode
                hidden, cell = (part[:, cut] for part in self.lstm_state)
                last_obs = step.final_obs[cut].astype(self._obs.dtype)
                last_values, _ = self._forward(last_obs, (hidden, cell), np.zeros(len(cut), dtype=np.bool_))
                truncations.append((t, cut, last_values.max(axis=1)))
        best[-1] = self._forward(self._obs[-1], self.lstm_state, self._starts[-1])[0].max(axis=1)
        self.next_obs, self.next_starts = self._obs[-1].copy(), self._starts[-1].copy()
        next_values = best[1:].copy()
        for t, cut, last_best in truncations:
            next_values[t, cut] = last_best
        returns = q_lambda_returns(rewards, next_values, terminated, ended, args.gamma, args.q_lambda)
        columns = (self._obs[:-1], actions, returns.astype(np.float32, copy=False))
        return Sequences(*(torch.from_numpy(column).to(self.device) for column in columns))

    def update(self, batch: Sequences, before: State, learning_rate: float) -> dict[str, float]:
        """Run epochs of updates, each minibatch some of the environments; return the charts."""
        args = self.args
        starts = torch.from_numpy(self._starts[:-1].copy())
        for _ in range(args.update_epochs):
            order = torch.from_numpy(self.rng.permutation(args.num_envs))
            for chosen in order.reshape(args.num_minibatches, -1):
                on_device = chosen.to(self.device)
                state = (before[0][:, on_device].clone(), before[1][:, on_device].clone())
                loss, values = self.error(self.agent, batch, on_device, state, starts[:, chosen])
                self.parameters.backward(loss)
                self.parameters.clip_gradients(args.max_grad_norm)
                self.optimizer.step(learning_rate)
        self.parameters.refresh_host()
        blame = "the environment gave rewards that are not finite, or --learning-rate is too high"
        self.stop_unless_finite(loss.item(), batch.returns.cpu().numpy(), blame=blame)
        return {"losses/td_loss": loss.item(), "losses/q_values": values.item()}

    # -- checkpoints

    @property
    def optimizers(self) -> Mapping[str, Any]:
        """Return the optimizers by their names in checkpoints."""
        return {"radam": self.optimizer}


# ---------------------------------------------------------------- policy and run


NAME = Args.exp_name


def make_policy(
    env_id: str, observations: Space, actions: Space, weights: Weights, *, algo: str = NAME, normalizer: Any = None
) -> RecurrentPolicy:
    """Return the policy with these weights; raise BadInput when they do not fit the environment."""
    network = make_network(algo, env_id, observations, actions)
    load_weights(network, weights, what="the policy")
    play = RecurrentPlay(network, HIDDEN, torch.device("cpu"))
    return RecurrentPolicy(GreedyPolicy(play, network_dtype(observations), normalizer), play)


def train(args: Args, run: RunContext) -> TrainResult:
    """Train until the steps are used up, the return is reached or a stop is requested; then evaluate."""
    check_args(args)
    total = whole_iterations(args)
    learner = RecurrentPqnLearner(args, run.make_envs(args), device_for(args), total=total)
    return run_training_loop(learner, run, total=total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
