"""Deep Q-network (Mnih et al. 2015): Q-learning from a replay buffer, with a target network that follows slowly.

Under the flags and defaults of CleanRL's `dqn.py` and `dqn_atari.py`.
Runs alone: python -m cleanrl_worker.algorithms dqn --env-id CartPole-v1
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import as_floats, as_torch_makes_it, nature_trunk
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.acting import ObservationNormaliser, network_dtype
from cleanrl_worker.training.adam import FlatAdam
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.common_args import ReplayArgs
from cleanrl_worker.training.compiling import compiled
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs, is_image
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.parameters import FlatParameters, NumpyMlp
from cleanrl_worker.training.q_policies import ActionValues, EpsilonGreedy, GreedyPolicy, TorchValues, count_actions
from cleanrl_worker.training.replay import ReplayBuffer, Transitions, make_replay
from cleanrl_worker.training.rollout_state import NEW_EPISODES, arrays_of, restore_into, snapshot_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.schedules import LinearSchedule, times_passed
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import load_weights


@dataclass(frozen=True)
class Args(ReplayArgs):
    """Flags of `dqn`; literals only, because forms and `--describe` read this class without running it."""

    exp_name: str = "dqn"
    """the name of this experiment"""
    env_id: str = "CartPole-v1"
    """Gymnasium id, or module:id for one of your own; actions must be discrete"""
    total_timesteps: Annotated[int, Range(1)] = 500_000
    """steps to train for, over all environments"""
    learning_rate: Annotated[float, Range(0)] = 2.5e-4
    """Adam's step size"""
    num_envs: Annotated[int, Range(1)] = 1
    """environments stepped in parallel; updates keep their pace per step"""
    buffer_size: Annotated[int, Range(1)] = 10_000
    """transitions the replay buffer holds"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    tau: Annotated[float, Range(0, 1)] = 1.0
    """how far the target network moves towards the other each time: 1 makes it a copy"""
    target_network_frequency: Annotated[int, Range(1)] = 500
    """steps between two moves of the target network"""
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


@dataclass(frozen=True)
class AtariArgs(Args):
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


RULES = (
    (
        "batch_size <= buffer_size",
        "--buffer-size {buffer_size} is smaller than a batch of {batch_size}: raise it, or lower --batch-size",
    ),
    (
        "num_envs <= buffer_size",
        "--buffer-size {buffer_size} does not hold one step of {num_envs} environments: raise it, or lower --num-envs",
    ),
)
"""What must hold between the flags; text, because a dry run reads it without importing torch"""

MEMORY = {
    "replay buffer": "buffer_size * (2 * obs_bytes + 16)",
    "networks and a batch": "24 * (120 * (obs_size + 85) + 85 * actions) + 8 * batch_size * (2 * obs_size + 300)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "16 * (120 * (obs_size + 85) + 85 * actions) + 8192 * num_envs"
"""Bytes of one checkpoint without the replay buffer: two networks, Adam's two moments, the environments"""

ATARI_MEMORY = {
    "replay buffer": "buffer_size * 8000",
    "networks and a batch": "24 * (1690000 + 513 * actions) + batch_size * 400000",
}

ATARI_CHECKPOINT = "16 * (1690000 + 513 * actions) + num_envs * (2 * obs_bytes + 65536)"

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs", "buffer_size")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {"agent.network.0.weight": ("120", "obs_size"), "agent.network.4.weight": ("actions", "84")}
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""

ATARI_SHAPES = {"agent.network.9.weight": ("actions", "512")}

BLOCK_STEPS = 100
"""Steps between two safe points, and between two points of a chart"""


# ---------------------------------------------------------------- network


class QNetwork(nn.Module):
    """The value of every action, for vectors; parameter names and shapes are those of CleanRL's models."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(observations, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, actions)
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.network(obs)
        return values


class AtariQNetwork(nn.Module):
    """The same for stacks of frames of 84 x 84."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(*nature_trunk(frames, initialise=as_torch_makes_it), nn.Linear(512, actions))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.network(as_floats(obs))
        return values


def make_network(algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> nn.Module:
    """The network for these spaces; BadInput when there is none."""
    count, shape = count_actions(algo, env_id, actions), observations.shape or ()
    if is_image(observations) and shape[1:] == (84, 84):
        return AtariQNetwork(shape[0], count)
    if len(shape) != 1:
        raise BadInput(
            f"{algo} needs vectors or stacked frames of 84 x 84 as observations; those of {env_id} have shape {shape}"
        )
    return QNetwork(shape[0], count)


def make_policy(
    env_id: str,
    observations: gym.Space,
    actions: gym.Space,
    weights: Mapping[str, np.ndarray],
    *,
    algo: str = "dqn",
    normaliser: ObservationNormaliser | None = None,
) -> GreedyPolicy:
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    network = make_network(algo, env_id, observations, actions)
    load_weights(network, weights, what="the policy")
    values = values_of(network, FlatParameters(network), torch.device("cpu"))
    return GreedyPolicy(values, network_dtype(observations), normaliser)


def values_of(network: nn.Module, parameters: FlatParameters, device: torch.device) -> ActionValues:
    if isinstance(network, QNetwork):
        return NumpyMlp(parameters, "network", network.network)
    return TorchValues(network, device)


# ---------------------------------------------------------------- the update


class TdGradient(Protocol):
    """The gradient of the squared TD error, by whatever means."""

    def descend(self, batch: Transitions) -> None:
        """Leave the gradient of this batch in the block of parameters."""

    def losses(self) -> tuple[float, float]:
        """Of the last batch: the squared error, and the values that were predicted, on average."""


class NumpyTdGradient:
    """For a small network on a CPU: derived by hand, because tensors would cost more than the arithmetic."""

    def __init__(
        self, agent: QNetwork, parameters: FlatParameters, target: QNetwork, of_target: FlatParameters, gamma: float
    ) -> None:
        self._network = NumpyMlp(parameters, "network", agent.network)
        self._target = NumpyMlp(of_target, "network", target.network)
        self._gamma = np.float32(gamma)

    def descend(self, batch: Transitions) -> None:
        count = len(batch.actions)
        wanted = self._target(batch.next_obs).max(axis=1)
        wanted *= self._gamma * (1 - batch.terminated)
        wanted += batch.rewards
        values = self._network.trace(batch.obs)
        # Where the chosen actions' values lie in the flat array of all.
        chosen = batch.actions + np.arange(0, values.size, values.shape[1])
        self._predicted = values.reshape(-1)[chosen]
        self._error = self._predicted - wanted
        # d/dq of mean((q - wanted)²): only the chosen actions have a share in it.
        gradient = np.zeros_like(values)
        gradient.reshape(-1)[chosen] = self._error * np.float32(2 / count)
        self._network.backward(gradient)

    def losses(self) -> tuple[float, float]:
        return float(np.square(self._error).mean()), float(self._predicted.mean())


class TorchTdGradient:
    """For any network on any device, by autograd."""

    def __init__(
        self, agent: nn.Module, parameters: FlatParameters, target: nn.Module, args: Args, device: torch.device
    ) -> None:
        self._agent, self._parameters, self._target, self._gamma = agent, parameters, target, args.gamma
        self._device = device
        self._td = compiled(self._td_loss, wanted=args.compile)

    def descend(self, batch: Transitions) -> None:
        self._loss, self._predicted = self._td(*(torch.from_numpy(array).to(self._device) for array in batch))
        self._parameters.zero_gradients()
        self._loss.backward()  # type: ignore[no-untyped-call]

    def losses(self) -> tuple[float, float]:
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
            wanted = rewards + self._gamma * (1 - terminated) * self._target(next_obs).amax(dim=1)
        predicted = self._agent(obs).gather(1, actions.unsqueeze(1)).squeeze(1)
        return functional.mse_loss(predicted, wanted), predicted.detach().mean()


# ---------------------------------------------------------------- one run


class DqnLearner:
    """The state of a run: act, store, and every few steps learn from what is stored."""

    def __init__(self, args: Args, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device) -> None:
        self.args, self.envs, self.buffer = args, envs, buffer
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        spaces = (envs.observation_space, envs.action_space)
        self.agent = make_network(args.exp_name, args.env_id, *spaces).to(device)
        self.target = make_network(args.exp_name, args.env_id, *spaces).to(device)
        self.parameters, self._of_target = FlatParameters(self.agent), FlatParameters(self.target)
        self._move_target(1.0)
        self.optimizer = FlatAdam(self.parameters.block)
        self.values = values_of(self.agent, self.parameters, device)
        self.gradient = self._choose_gradient(device)
        self.episodes = EpisodeTracker(args.num_envs)
        self.epsilon = LinearSchedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps)
        self.step = 0
        self._actions = count_actions(args.exp_name, args.env_id, envs.action_space)
        self._dtype = network_dtype(envs.observation_space)
        self._acts_in_numpy = isinstance(self.agent, QNetwork)
        self.next_obs = np.zeros(0)

    def _choose_gradient(self, device: torch.device) -> TdGradient:
        agent, target = self.agent, self.target
        on_cpu = device.type == "cpu" and not self.args.compile
        if on_cpu and isinstance(agent, QNetwork) and isinstance(target, QNetwork):
            return NumpyTdGradient(agent, self.parameters, target, self._of_target, self.args.gamma)
        return TorchTdGradient(agent, self.parameters, target, self.args, device)

    def begin_episodes(self) -> None:
        self.next_obs = self.envs.reset(self.args.seed + self.step)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        greedy = self.values(self._as_seen(obs)).argmax(axis=1)
        if rng is None:
            return greedy
        return np.where(rng.random(len(obs)) < self.args.end_e, rng.integers(self._actions, size=len(obs)), greedy)

    @np.errstate(all="ignore")  # what is not finite is told in one sentence at the end
    def learn(self, run: RunContext) -> None:
        """Go on to the next multiple of BLOCK_STEPS."""
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
            for episode_return, length in self.episodes.add(step):
                run.writer.add_scalars(
                    {"charts/episodic_return": episode_return, "charts/episodic_length": length}, self.step
                )
            for _ in range(updates[index]):
                self.gradient.descend(self._sample())
                self.optimizer.step(args.learning_rate)
                if self._acts_in_numpy:
                    self.parameters.refresh_host()
            if moves[index]:
                self._move_target(args.tau)
        self.next_obs = obs
        charts = {
            "charts/epsilon": self.epsilon(self.step),
            "charts/replay_size": len(self.buffer),
            "charts/replay_bytes": self.buffer.nbytes,
            "charts/SPS": run.steps_per_second(self.step),
        }
        if any(updates):
            charts["losses/td_loss"], charts["losses/q_values"] = losses = self.gradient.losses()
            self._check_finite(losses)
        run.writer.add_scalars(charts, self.step)

    def _as_seen(self, obs: np.ndarray) -> np.ndarray:
        """Observations as the network takes them; the replay buffer has them as the environment gives them."""
        return obs if obs.dtype == self._dtype else obs.astype(self._dtype)

    def _sample(self) -> Transitions:
        batch = self.buffer.sample(self.rng, self.args.batch_size)
        return batch._replace(obs=self._as_seen(batch.obs), next_obs=self._as_seen(batch.next_obs))

    def _due(self, steps: np.ndarray) -> tuple[list[int], list[int]]:
        """How many updates follow each of these steps, and how many moves of the target network.

        A run that resumes without its replay buffer has to fill it first, as at the beginning.
        """
        args, after = self.args, steps + self.args.num_envs
        stored = len(self.buffer) + after - self.step
        learns = (after > args.learning_starts) & (stored >= min(args.learning_starts, args.buffer_size))
        updates = times_passed(args.train_frequency, steps, after) * learns
        return updates.tolist(), (times_passed(args.target_network_frequency, steps, after) * learns).tolist()

    def _move_target(self, share: float) -> None:
        self._of_target.block.data.lerp_(self.parameters.block.data, share)

    def _check_finite(self, losses: tuple[float, float]) -> None:
        """Before anything of this block is saved: a checkpoint of such weights would be worth nothing."""
        if math.isfinite(sum(losses) + self.parameters.block.data.sum().item()):
            return
        cause = "lower --learning-rate"
        if not all(np.isfinite(array).all() for array in self._sample()):
            cause = "the environment gave observations or rewards that are not finite"
        raise TrainingStopped(f"loss or weights are not finite at step {self.step}: {cause}")

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        state = snapshot_of(self, {"adam": self.optimizer.arrays()})
        return replace(state, arrays={**state.arrays, **arrays_of(self.target, "target")}, replay=self.buffer)

    def restore(self, state: TrainingState) -> str:
        exact = restore_into(self, state, RESUME_NEEDS)
        load_weights(self.target, state.part("target"), what="the checkpoint")
        self.optimizer.restore(state.part("adam"))
        state.restore_replay(self.buffer)
        return "exact" if exact else NEW_EPISODES

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        load_weights(self.agent, weights, what=what)
        self.parameters.refresh_host()
        self._move_target(1.0)

    def model(self) -> Any:
        return self.agent.state_dict()


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check_args(args, RULES)
    envs = run.make_envs(args)
    learner = DqnLearner(args, envs, make_replay(args, envs, folder=run.folder.root), device_for(args))
    return train_to_the_end(learner, run, total=args.total_timesteps)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("dqn", Args, train)
