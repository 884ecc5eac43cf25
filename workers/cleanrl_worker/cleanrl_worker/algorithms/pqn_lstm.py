"""Parallelised Q-network (Gallici et al. 2024) with an LSTM, for games of which one sees a single picture at a time.

Under the flags and defaults of CleanRL's `pqn_atari_envpool_lstm.py`. It differs from pqn.py in what a recurrent
network asks for: sequences stay whole, so minibatches are made of environments instead of steps; each begins with the
state the network had when the rollout began, and the state is emptied where an episode starts.
Runs alone: python -m cleanrl_worker.algorithms pqn_atari_envpool_lstm --env-id Pong-v5
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.layers import orthogonal
from cleanrl_worker.agents.recurrent import HIDDEN, RecurrentAgent, State, no_memory
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.acting import ObservationNormaliser, network_dtype
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.common_args import CommonArgs
from cleanrl_worker.training.compiling import compiled
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs, is_image
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.q_policies import GreedyPolicy, count_actions
from cleanrl_worker.training.radam import RAdam
from cleanrl_worker.training.remembering import RecurrentPlay, RecurrentPolicy
from cleanrl_worker.training.returns import q_lambda_returns
from cleanrl_worker.training.rollout_state import NEW_EPISODES, restore_into, snapshot_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.schedules import LinearSchedule
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import load_weights


@dataclass(frozen=True)
class Args(CommonArgs):
    """Flags of `pqn_atari_envpool_lstm`."""

    exp_name: str = "pqn_atari_envpool_lstm"
    """the name of this experiment"""
    env_id: str = "Breakout-v5"
    """Atari game, by envpool's name for it or by Gymnasium's"""
    env_backend: Literal["auto", "native", "sync", "async", "ale", "envpool"] = "envpool"
    total_timesteps: Annotated[int, Range(1)] = 10_000_000
    """steps to train for, over all environments; whole iterations only"""
    learning_rate: Annotated[float, Range(0)] = 2.5e-4
    """RAdam's step size (at the start, with anneal_lr)"""
    num_envs: Annotated[int, Range(1)] = 8
    """environments stepped in parallel"""
    num_steps: Annotated[int, Range(1)] = 128
    """steps per environment between two updates: as far back as the network learns to remember"""
    anneal_lr: bool = True
    """let the learning rate fall linearly to zero"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    num_minibatches: Annotated[int, Range(1)] = 4
    """minibatches per epoch, each of whole sequences; must divide num_envs"""
    update_epochs: Annotated[int, Range(1)] = 4
    """passes over each batch"""
    max_grad_norm: Annotated[float, Range(0)] = 0.5
    """gradients are scaled down to this norm"""
    start_e: Annotated[float, Range(0, 1)] = 1
    """share of random actions at the start"""
    end_e: Annotated[float, Range(0, 1)] = 0.01
    """share of random actions after exploration_fraction of the training"""
    exploration_fraction: Annotated[float, Range(0, 1)] = 0.1
    """share of the training in which random actions fall from start_e to end_e"""
    q_lambda: Annotated[float, Range(0, 1)] = 0.65
    """how far returns look ahead: 0 one step, 1 to the end of the rollout"""

    batch_size: int = 0
    """computed: num_envs × num_steps (a value given here is ignored)"""
    minibatch_size: int = 0
    """computed: batch size / num_minibatches (a value given here is ignored)"""
    num_iterations: int = 0
    """computed: total_timesteps / batch size (a value given here is ignored)"""


RULES = (
    (
        "num_envs % num_minibatches == 0",
        "--num-minibatches {num_minibatches} does not divide --num-envs {num_envs}: a recurrent network learns from "
        "whole sequences, so a minibatch is made of environments",
    ),
)
"""What must hold between the flags; text, because a dry run reads it without importing torch"""

MEMORY = {
    "rollout": "num_envs * (num_steps + 1) * (obs_bytes + 4 * actions + 32)",
    "a minibatch and its gradients": "num_envs * num_steps // num_minibatches * (obs_bytes + 4 * obs_size + 450000)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "3 * 4 * (2052000 + 129 * actions) + num_envs * (2 * obs_bytes + 65536)"
"""Bytes of one checkpoint: weights, RAdam's two moments, the environments"""

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {"agent.q_func.weight": ("actions", "128")}
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""


# ---------------------------------------------------------------- network


class QNetwork(RecurrentAgent):
    """The value of every action, on top of what the LSTM remembers."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__(frames, layer_norm=True)
        self.q_func = orthogonal(nn.Linear(HIDDEN, actions))

    def forward(self, obs: torch.Tensor, state: State, starts: torch.Tensor) -> tuple[torch.Tensor, State]:
        """Values [row, action] and the state afterwards."""
        features, state = self.features(obs, state, starts)
        return self.q_func(features), state


def make_network(algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> QNetwork:
    """The network for these spaces; BadInput when there is none."""
    count, shape = count_actions(algo, env_id, actions), observations.shape or ()
    if not is_image(observations) or shape[1:] != (84, 84):
        raise BadInput(f"{algo} needs pictures of 84 x 84 as observations; those of {env_id} have shape {shape}")
    return QNetwork(shape[0], count)


def make_policy(
    env_id: str,
    observations: gym.Space,
    actions: gym.Space,
    weights: Mapping[str, np.ndarray],
    *,
    algo: str = "pqn_atari_envpool_lstm",
    normaliser: ObservationNormaliser | None = None,
) -> RecurrentPolicy:
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    network = make_network(algo, env_id, observations, actions)
    load_weights(network, weights, what="the policy")
    play = RecurrentPlay(network, HIDDEN, torch.device("cpu"))
    return RecurrentPolicy(GreedyPolicy(play, network_dtype(observations), normaliser), play)


class Sequences(NamedTuple):
    """What an update learns from, [time, environment]."""

    obs: torch.Tensor
    actions: torch.Tensor
    returns: torch.Tensor


def squared_error(
    network: QNetwork, batch: Sequences, environments: torch.Tensor, state: State, starts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the chosen actions' values in some of the environments; and those values' mean.

    `state` is what was remembered of these environments when the rollout began.
    """
    obs, actions, returns = (column[:, environments].flatten(0, 1) for column in batch)
    values, _ = network(obs, state, starts)
    chosen = values.gather(1, actions.unsqueeze(1)).squeeze(1)
    return functional.mse_loss(chosen, returns), chosen.detach().mean()


# ---------------------------------------------------------------- one run


class RecurrentPqnLearner:
    """The state of a run and the two halves of an iteration: collect, then update."""

    def __init__(self, args: Args, envs: VectorEnvs, device: torch.device, *, total: int) -> None:
        self.args, self.envs, self.device, self.total = args, envs, device, total
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        self.agent = make_network(args.exp_name, args.env_id, envs.observation_space, envs.action_space).to(device)
        self.parameters = FlatParameters(self.agent)
        self.optimizer = RAdam(self.parameters)
        self.error = compiled(squared_error, wanted=args.compile)
        self.play = RecurrentPlay(self.agent, HIDDEN, device)
        self.episodes = EpisodeTracker(args.num_envs)
        self.step = 0
        self.epsilon = LinearSchedule(args.start_e, args.end_e, args.exploration_fraction * total)
        self._actions = count_actions(args.exp_name, args.env_id, envs.action_space)
        dtype, shape = network_dtype(envs.observation_space), envs.observation_space.shape or ()
        self._obs = np.zeros((args.num_steps + 1, args.num_envs, *shape), dtype=dtype)
        self._starts = np.ones((args.num_steps + 1, args.num_envs), dtype=np.bool_)
        self.next_obs = np.zeros_like(self._obs[0])
        self.next_starts = np.ones(args.num_envs, dtype=np.bool_)
        self.memory = no_memory(args.num_envs, device)

    def begin_episodes(self) -> None:
        self.next_obs = self.envs.reset(self.args.seed + self.step).astype(self.next_obs.dtype)
        self.next_starts[:] = True

    def follow(self, episodes: Sequence[int]) -> None:
        self.play.follow(episodes)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        greedy = self.play(obs.astype(self.next_obs.dtype, copy=False)).argmax(axis=1)
        if rng is None:
            return greedy
        return np.where(rng.random(len(obs)) < self.args.end_e, rng.integers(self._actions, size=len(obs)), greedy)

    def learn(self, run: RunContext) -> None:
        """One iteration."""
        learning_rate = self.args.learning_rate
        if self.args.anneal_lr:
            learning_rate *= 1 - self.step / self.total
        epsilon, before = self.epsilon(self.step), self.memory
        charts = self.update(self.collect(run), before, learning_rate)
        charts |= {"charts/learning_rate": learning_rate, "charts/epsilon": epsilon}
        run.writer.add_scalars(charts | {"charts/SPS": run.steps_per_second(self.step)}, self.step)

    @torch.inference_mode()
    def _look(self, obs: np.ndarray, state: State, starts: np.ndarray) -> tuple[np.ndarray, State]:
        """Values of one moment, and what is remembered after it."""
        values, state = self.agent(torch.from_numpy(obs).to(self.device), state, torch.from_numpy(starts[None]))
        return values.cpu().numpy(), state

    def collect(self, run: RunContext) -> Sequences:
        """Play num_steps in every environment; most of what the returns need is known from acting."""
        args, shape = self.args, (self.args.num_steps, self.args.num_envs)
        epsilons = self.epsilon.over(self.step + np.arange(args.num_steps) * args.num_envs)
        explores = self.rng.random(shape) < epsilons[:, None]
        actions = self.rng.integers(self._actions, size=shape)
        rewards = np.empty(shape, dtype=np.float32)
        best = np.empty((args.num_steps + 1, args.num_envs), dtype=np.float32)
        terminated, ended = np.empty(shape, dtype=np.bool_), np.empty(shape, dtype=np.bool_)
        beyond: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._obs[0], self._starts[0] = self.next_obs, self.next_starts
        for t in range(args.num_steps):
            values, self.memory = self._look(self._obs[t], self.memory, self._starts[t])
            best[t] = values.max(axis=1)
            np.copyto(actions[t], values.argmax(axis=1), where=~explores[t])
            step = self.envs.step(actions[t])
            self.step += args.num_envs
            rewards[t], terminated[t], ended[t] = step.rewards, step.terminated, step.ended
            self._obs[t + 1], self._starts[t + 1] = step.obs, step.ended
            for episode_return, length in self.episodes.add(step):
                run.writer.add_scalars(
                    {"charts/episodic_return": episode_return, "charts/episodic_length": length}, self.step
                )
            cut = np.flatnonzero(step.truncated & ~step.terminated)
            if len(cut):  # worth what lies beyond the limit, seen with what is remembered of the episode
                hidden, cell = (part[:, cut] for part in self.memory)
                last_obs = step.final_obs[cut].astype(self._obs.dtype)
                last_values, _ = self._look(last_obs, (hidden, cell), np.zeros(len(cut), dtype=np.bool_))
                beyond.append((t, cut, last_values.max(axis=1)))
        best[-1] = self._look(self._obs[-1], self.memory, self._starts[-1])[0].max(axis=1)
        self.next_obs, self.next_starts = self._obs[-1].copy(), self._starts[-1].copy()
        next_values = best[1:].copy()
        for t, cut, last_best in beyond:
            next_values[t, cut] = last_best
        returns = q_lambda_returns(rewards, next_values, terminated, ended, args.gamma, args.q_lambda)
        columns = (self._obs[:-1], actions, returns.astype(np.float32, copy=False))
        return Sequences(*(torch.from_numpy(column).to(self.device) for column in columns))

    def update(self, batch: Sequences, before: State, learning_rate: float) -> dict[str, float]:
        """Several epochs of descent, a few environments at a time; return what the charts show."""
        args = self.args
        starts = torch.from_numpy(self._starts[:-1].copy())
        for _ in range(args.update_epochs):
            order = torch.from_numpy(self.rng.permutation(args.num_envs))
            for chosen in order.reshape(args.num_minibatches, -1):
                on_device = chosen.to(self.device)
                state = (before[0][:, on_device].clone(), before[1][:, on_device].clone())
                loss, values = self.error(self.agent, batch, on_device, state, starts[:, chosen])
                self.parameters.zero_gradients()
                loss.backward()  # type: ignore[no-untyped-call]
                self.parameters.clip_gradients(args.max_grad_norm)
                self.optimizer.step(learning_rate)
        self.parameters.refresh_host()
        # Before anything of this iteration is saved: a checkpoint of such weights would be worth nothing.
        if not (math.isfinite(loss.item()) and math.isfinite(self.parameters.block.data.sum().item())):
            cause = "lower --learning-rate"
            if not batch.returns.isfinite().all():
                cause = "the environment gave rewards that are not finite, or --learning-rate is too high"
            raise TrainingStopped(f"loss or weights are not finite at step {self.step}: {cause}")
        return {"losses/td_loss": loss.item(), "losses/q_values": values.item()}

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        hidden, cell = (part.cpu().numpy().copy() for part in self.memory)
        memory = {"hidden": hidden, "cell": cell, "starts": self.next_starts.copy()}
        return snapshot_of(self, {"radam": self.optimizer.arrays(), "memory": memory})

    def restore(self, state: TrainingState) -> str:
        exact = restore_into(self, state, RESUME_NEEDS)
        self.optimizer.restore(state.part("radam"))
        if not exact:
            return NEW_EPISODES
        memory = state.part("memory")
        hidden, cell = (torch.from_numpy(memory[name].copy()).to(self.device) for name in ("hidden", "cell"))
        self.memory, self.next_starts = (hidden, cell), memory["starts"].copy()
        return "exact"

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        load_weights(self.agent, weights, what=what)
        self.parameters.refresh_host()

    def model(self) -> Any:
        return self.agent.state_dict()


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check_args(args, RULES)
    batch_size = args.num_envs * args.num_steps
    total = args.total_timesteps // batch_size * batch_size
    learner = RecurrentPqnLearner(args, run.make_envs(args), device_for(args), total=total)
    return train_to_the_end(learner, run, total=total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("pqn_atari_envpool_lstm", Args, train)
