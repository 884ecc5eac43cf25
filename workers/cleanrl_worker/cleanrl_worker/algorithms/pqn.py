"""Parallelised Q-network (Gallici et al. 2024): Q-learning without a replay buffer and without a target network.

Many environments and layer normalisation make up for both. Under the flags and defaults of CleanRL's `pqn.py` and
`pqn_atari_envpool.py`; the recurrent one is in pqn_lstm.py.
Runs alone: python -m cleanrl_worker.algorithms pqn --env-id CartPole-v1
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import as_floats, nature_trunk
from cleanrl_worker.agents.layers import orthogonal
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.acting import ObservationNormaliser, network_dtype
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.common_args import CommonArgs
from cleanrl_worker.training.compiling import compiled
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs, is_image
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.layer_norm_mlp import NumpyLayerNormMlp
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.q_policies import GreedyPolicy, count_actions
from cleanrl_worker.training.radam import RAdam
from cleanrl_worker.training.returns import q_lambda_returns
from cleanrl_worker.training.rollout_state import NEW_EPISODES, restore_into, snapshot_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.schedules import LinearSchedule
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import load_weights


@dataclass(frozen=True)
class Args(CommonArgs):
    """Flags of `pqn`."""

    exp_name: str = "pqn"
    """the name of this experiment"""
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
    """how far returns look ahead: 0 one step, 1 to the end of the rollout"""


@dataclass(frozen=True)
class AtariArgs(Args):
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


RULES = (
    (
        "num_envs * num_steps % num_minibatches == 0",
        "--num-minibatches {num_minibatches} does not divide the batch of {num_envs * num_steps} steps "
        "(--num-envs {num_envs} × --num-steps {num_steps})",
    ),
)
"""What must hold between the flags; text, because a dry run reads it without importing torch"""

MEMORY = {
    "rollout": "num_envs * (num_steps + 1) * (4 * obs_size + 32)",
    "a minibatch and its gradients": "num_envs * num_steps // num_minibatches * 4 * (obs_size + 6 * 204)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

ATARI_MEMORY = {
    "rollout": "num_envs * (num_steps + 1) * (obs_bytes + 32)",
    "a minibatch and its gradients": "num_envs * num_steps // num_minibatches * (obs_bytes + 4 * obs_size + 400000)",
}

CHECKPOINT = "3 * 4 * (120 * (obs_size + 87) + 84 * (actions + 3) + actions) + 8192 * num_envs"
"""Bytes of one checkpoint: weights, RAdam's two moments, the environments"""

ATARI_CHECKPOINT = "3 * 4 * (1730000 + 513 * actions) + num_envs * (2 * obs_bytes + 65536)"

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {"agent.network.0.weight": ("120", "obs_size"), "agent.network.6.weight": ("actions", "84")}
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""

ATARI_SHAPES = {"agent.network.13.weight": ("actions", "512")}


# ---------------------------------------------------------------- network


class QNetwork(nn.Module):
    """For vectors; parameter names and shapes are those of CleanRL's models."""

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
        values: torch.Tensor = self.network(obs)
        return values


class AtariQNetwork(nn.Module):
    """For stacks of frames of 84 x 84."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(*nature_trunk(frames, layer_norm=True), orthogonal(nn.Linear(512, actions)))

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
    algo: str = "pqn",
    normaliser: ObservationNormaliser | None = None,
) -> GreedyPolicy:
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    network = make_network(algo, env_id, observations, actions)
    load_weights(network, weights, what="the policy")
    values = values_with(network, FlatParameters(network), torch.device("cpu"))
    return GreedyPolicy(values, network_dtype(observations), normaliser)


# ---------------------------------------------------------------- the network at work


class ActionValues(Protocol):
    """Values for acting, gradients for learning."""

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        """The value of every action, a row per observation."""

    def frozen(self) -> Callable[[np.ndarray], np.ndarray]:
        """The same for a rollout, during which nothing is learned."""

    def minibatches(self, batch: Batch, order: np.ndarray, count: int) -> Iterable[tuple[Any, ...]]:
        """The batch in this order, in so many parts."""

    def descend(self, *minibatch: Any) -> tuple[Any, Any]:
        """Leave the gradient of its squared error in the block; return the error's mean, and the values'."""


class Batch(NamedTuple):
    """What an update learns from; one row per transition."""

    obs: np.ndarray
    actions: np.ndarray
    returns: np.ndarray


class NumpyValues:
    """A small network on a CPU: by hand, because tensors would cost more than the arithmetic."""

    def __init__(self, network: QNetwork, parameters: FlatParameters) -> None:
        self._mlp = NumpyLayerNormMlp(parameters, "network", network.network)

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        return self._mlp(obs)

    def frozen(self) -> Callable[[np.ndarray], np.ndarray]:
        return self._mlp.frozen()

    def minibatches(self, batch: Batch, order: np.ndarray, count: int) -> Iterable[tuple[Any, ...]]:
        return zip(*(np.split(array[order], count) for array in batch), strict=True)

    def descend(self, *minibatch: Any) -> tuple[Any, Any]:
        obs, actions, returns = minibatch
        values = self._mlp.trace(obs)
        # Where the chosen actions' values lie in the flat array of all.
        places = actions + np.arange(0, values.size, values.shape[1])
        chosen = values.reshape(-1)[places]
        error = chosen - returns
        gradient = np.zeros_like(values)
        gradient.reshape(-1)[places] = error * np.float32(2 / len(error))
        self._mlp.backward(gradient)
        return np.dot(error, error) / len(error), chosen.mean()


class TorchValues:
    """Any network, on any device."""

    def __init__(self, network: nn.Module, parameters: FlatParameters, device: torch.device, compile_it: bool) -> None:
        self._network, self._parameters, self._device = network, parameters, device
        self._error = compiled(self._squared_error, wanted=compile_it)

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self._network(torch.from_numpy(np.ascontiguousarray(obs)).to(self._device)).cpu().numpy()

    def frozen(self) -> Callable[[np.ndarray], np.ndarray]:
        return self

    def minibatches(self, batch: Batch, order: np.ndarray, count: int) -> Iterable[tuple[Any, ...]]:
        tensors = [torch.from_numpy(array).to(self._device) for array in batch]
        for rows in torch.from_numpy(order).to(self._device).reshape(count, -1):
            yield tuple(tensor[rows] for tensor in tensors)

    def descend(self, *minibatch: Any) -> tuple[Any, Any]:
        loss, values = self._error(*minibatch)
        self._parameters.zero_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach(), values

    def _squared_error(
        self, obs: torch.Tensor, actions: torch.Tensor, returns: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = self._network(obs).gather(1, actions.unsqueeze(1)).squeeze(1)
        return functional.mse_loss(chosen, returns), chosen.detach().mean()


def values_with(
    network: nn.Module, parameters: FlatParameters, device: torch.device, *, compile_it: bool = False
) -> ActionValues:
    if isinstance(network, QNetwork) and device.type == "cpu" and not compile_it:
        return NumpyValues(network, parameters)
    return TorchValues(network, parameters, device, compile_it)


# ---------------------------------------------------------------- one run


class PqnLearner:
    """The state of a run and the two halves of an iteration: collect, then update."""

    def __init__(self, args: Args, envs: VectorEnvs, device: torch.device, *, total: int) -> None:
        self.args, self.envs, self.total = args, envs, total
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        spaces = (envs.observation_space, envs.action_space)
        self.agent = make_network(args.exp_name, args.env_id, *spaces).to(device)
        self.parameters = FlatParameters(self.agent)
        self.values = values_with(self.agent, self.parameters, device, compile_it=args.compile)
        self.optimizer = RAdam(self.parameters, in_numpy=isinstance(self.values, NumpyValues))
        self.episodes = EpisodeTracker(args.num_envs)
        self.step = 0
        self.epsilon = LinearSchedule(args.start_e, args.end_e, args.exploration_fraction * total)
        self._actions = count_actions(args.exp_name, args.env_id, envs.action_space)
        dtype, shape = network_dtype(envs.observation_space), envs.observation_space.shape or ()
        self._obs = np.zeros((args.num_steps + 1, args.num_envs, *shape), dtype=dtype)
        self.next_obs = np.zeros_like(self._obs[0])

    def begin_episodes(self) -> None:
        self.next_obs = self.envs.reset(self.args.seed + self.step).astype(self.next_obs.dtype)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        greedy = self.values(obs.astype(self.next_obs.dtype, copy=False)).argmax(axis=1)
        if rng is None:
            return greedy
        return np.where(rng.random(len(obs)) < self.args.end_e, rng.integers(self._actions, size=len(obs)), greedy)

    def learn(self, run: RunContext) -> None:
        """One iteration."""
        learning_rate = self.args.learning_rate
        if self.args.anneal_lr:
            learning_rate *= 1 - self.step / self.total
        epsilon = self.epsilon(self.step)
        charts = self.update(self.collect(run), learning_rate)
        charts |= {"charts/learning_rate": learning_rate, "charts/epsilon": epsilon}
        run.writer.add_scalars(charts | {"charts/SPS": run.steps_per_second(self.step)}, self.step)

    def collect(self, run: RunContext) -> Batch:
        """Play num_steps in every environment; most of what the returns need is known from acting."""
        args, shape = self.args, (self.args.num_steps, self.args.num_envs)
        # Drawn for the whole rollout at once: generators are slow for a few numbers.
        epsilons = self.epsilon.over(self.step + np.arange(args.num_steps) * args.num_envs)
        follows = self.rng.random(shape) >= epsilons[:, None]
        actions = self.rng.integers(self._actions, size=shape)
        rewards = np.empty(shape, dtype=np.float32)
        values = np.empty((args.num_steps + 1, args.num_envs, self._actions), dtype=np.float32)
        terminated, ended = np.empty(shape, dtype=np.bool_), np.empty(shape, dtype=np.bool_)
        truncations = []
        self._obs[0], values_of = self.next_obs, self.values.frozen()
        for t in range(args.num_steps):
            values[t] = values_of(self._obs[t])
            np.copyto(actions[t], values[t].argmax(axis=1), where=follows[t])
            step = self.envs.step(actions[t])
            self.step += args.num_envs
            self._obs[t + 1] = step.obs
            rewards[t], terminated[t], ended[t] = step.rewards, step.terminated, step.ended
            for episode_return, length in self.episodes.add(step):
                charts = {"charts/episodic_return": episode_return, "charts/episodic_length": length}
                run.writer.add_scalars(charts, self.step)
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
        """Several epochs of minibatch descent; return what the charts show."""
        args = self.args
        with np.errstate(all="ignore"):  # what is not finite is told in one sentence below
            for _ in range(args.update_epochs):
                order = self.rng.permutation(len(batch.actions))
                for minibatch in self.values.minibatches(batch, order, args.num_minibatches):
                    loss, values = self.values.descend(*minibatch)
                    self.parameters.clip_gradients(args.max_grad_norm)
                    self.optimizer.step(learning_rate)
        self.parameters.refresh_host()
        # Before anything of this iteration is saved: a checkpoint of such weights would be worth nothing.
        if not (math.isfinite(loss) and math.isfinite(self.parameters.block.data.sum())):
            cause = "lower --learning-rate"
            if not (np.isfinite(batch.obs).all() and np.isfinite(batch.returns).all()):
                cause = "the environment gave observations or rewards that are not finite, or --learning-rate is high"
            raise TrainingStopped(f"loss or weights are not finite at step {self.step}: {cause}")
        return {"losses/td_loss": float(loss), "losses/q_values": float(values)}

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        return snapshot_of(self, {"radam": self.optimizer.arrays()})

    def restore(self, state: TrainingState) -> str:
        exact = restore_into(self, state, RESUME_NEEDS)
        self.optimizer.restore(state.part("radam"))
        return "exact" if exact else NEW_EPISODES

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        load_weights(self.agent, weights, what=what)
        self.parameters.refresh_host()

    def model(self) -> Any:
        return self.agent.state_dict()


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check_args(args, RULES)
    device = device_for(args)
    batch_size = args.num_envs * args.num_steps
    total = args.total_timesteps // batch_size * batch_size
    learner = PqnLearner(args, run.make_envs(args), device, total=total)
    return train_to_the_end(learner, run, total=total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("pqn", Args, train)
