"""Categorical DQN (Bellemare et al. 2017): Q-learning of whole distributions of returns, over a number of atoms.

Under the flags and defaults of CleanRL's `c51.py` and `c51_atari.py`.
Runs alone: python -m cleanrl_worker.algorithms c51 --env-id CartPole-v1
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
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
from cleanrl_worker.training.categorical_mlp import CategoricalMlp
from cleanrl_worker.training.common_args import ReplayArgs
from cleanrl_worker.training.compiling import compiled
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs, is_image
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.q_policies import ActionValues, EpsilonGreedy, GreedyPolicy, TorchValues, count_actions
from cleanrl_worker.training.replay import ReplayBuffer, Transitions, make_replay
from cleanrl_worker.training.return_distributions import Atoms, project
from cleanrl_worker.training.returns import log_softmax
from cleanrl_worker.training.rollout_state import NEW_EPISODES, arrays_of, restore_into, snapshot_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.schedules import LinearSchedule, times_passed
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import load_weights


@dataclass(frozen=True)
class Args(ReplayArgs):
    """Flags of `c51`; literals only, because forms and `--describe` read this class without running it."""

    exp_name: str = "c51"
    """the name of this experiment"""
    env_id: str = "CartPole-v1"
    """Gymnasium id, or module:id for one of your own; actions must be discrete"""
    total_timesteps: Annotated[int, Range(1)] = 500_000
    """steps to train for, over all environments"""
    learning_rate: Annotated[float, Range(0)] = 2.5e-4
    """Adam's step size"""
    num_envs: Annotated[int, Range(1)] = 1
    """environments stepped in parallel; updates keep their pace per step"""
    n_atoms: Annotated[int, Range(2)] = 101
    """returns that a distribution is made of"""
    v_min: float = -100
    """the smallest of them; smaller returns count as this one"""
    v_max: float = 100
    """the largest of them; larger returns count as this one"""
    buffer_size: Annotated[int, Range(1)] = 10_000
    """transitions the replay buffer holds"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    target_network_frequency: Annotated[int, Range(1)] = 500
    """steps after which the target network becomes a copy of the other"""
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
    """Flags of `c51_atari`."""

    exp_name: str = "c51_atari"
    env_id: str = "BreakoutNoFrameskip-v4"
    """Atari game"""
    total_timesteps: Annotated[int, Range(1)] = 10_000_000
    n_atoms: Annotated[int, Range(2)] = 51
    v_min: float = -10
    v_max: float = 10
    buffer_size: Annotated[int, Range(1)] = 1_000_000
    target_network_frequency: Annotated[int, Range(1)] = 10_000
    batch_size: Annotated[int, Range(1)] = 32
    end_e: Annotated[float, Range(0, 1)] = 0.01
    exploration_fraction: Annotated[float, Range(0, 1)] = 0.1
    learning_starts: Annotated[int, Range(0)] = 80_000
    train_frequency: Annotated[int, Range(1)] = 4


RULES = (
    ("v_min < v_max", "--v-min {v_min} must be less than --v-max {v_max}"),
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
    "networks and a batch": "24 * (120 * (obs_size + 85) + 85 * actions * n_atoms) "
    "+ 8 * batch_size * (2 * obs_size + 300 + 4 * actions * n_atoms)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "16 * (120 * (obs_size + 85) + 85 * actions * n_atoms) + 8192 * num_envs"
"""Bytes of one checkpoint without the replay buffer: two networks, Adam's two moments, the environments"""

ATARI_MEMORY = {
    "replay buffer": "buffer_size * 8000",
    "networks and a batch": "24 * (1690000 + 513 * actions * n_atoms) + batch_size * 400000",
}

ATARI_CHECKPOINT = "16 * (1690000 + 513 * actions * n_atoms) + num_envs * (2 * obs_bytes + 65536)"

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs", "buffer_size", "n_atoms", "v_min", "v_max")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {"agent.network.0.weight": ("120", "obs_size"), "agent.network.4.weight": ("actions * n_atoms", "84")}
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""

ATARI_SHAPES = {"agent.network.9.weight": ("actions * n_atoms", "512")}

BLOCK_STEPS = 100
"""Steps between two safe points, and between two points of a chart"""
PROBE_STEPS = 1_000
"""Steps between two histograms of the predicted returns"""
PROBE_ROWS = 64
"""Observations these are predicted for"""


# ---------------------------------------------------------------- network


class QNetwork(nn.Module):
    """For every action the logits of its returns, for vectors; parameter names and shapes are those of CleanRL."""

    atoms: torch.Tensor

    def __init__(self, observations: int, actions: int, atoms: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("atoms", atoms)
        self.network = nn.Sequential(
            nn.Linear(observations, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, actions * len(atoms))
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Logits [row, action, atom]."""
        return self.network(obs).unflatten(1, (-1, len(self.atoms)))


class AtariQNetwork(nn.Module):
    """The same for stacks of frames of 84 x 84."""

    atoms: torch.Tensor

    def __init__(self, frames: int, actions: int, atoms: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("atoms", atoms)
        head = nn.Linear(512, actions * len(atoms))
        self.network = nn.Sequential(*nature_trunk(frames, initialise=as_torch_makes_it), head)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.network(as_floats(obs)).unflatten(1, (-1, len(self.atoms)))


Network = QNetwork | AtariQNetwork


def make_network(
    algo: str, env_id: str, observations: gym.Space, actions: gym.Space, atoms: torch.Tensor
) -> QNetwork | AtariQNetwork:
    """The network for these spaces; BadInput when there is none."""
    count, shape = count_actions(algo, env_id, actions), observations.shape or ()
    if is_image(observations) and shape[1:] == (84, 84):
        return AtariQNetwork(shape[0], count, atoms)
    if len(shape) != 1:
        raise BadInput(
            f"{algo} needs vectors or stacked frames of 84 x 84 as observations; those of {env_id} have shape {shape}"
        )
    return QNetwork(shape[0], count, atoms)


def make_policy(
    env_id: str,
    observations: gym.Space,
    actions: gym.Space,
    weights: Mapping[str, np.ndarray],
    *,
    algo: str = "c51",
    normaliser: ObservationNormaliser | None = None,
) -> GreedyPolicy:
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    atoms = torch.from_numpy(np.array(weights.get("atoms", np.zeros(2)), dtype=np.float32))
    network = make_network(algo, env_id, observations, actions, atoms)
    load_weights(network, weights, what="the policy")
    if not (len(atoms) >= 2 and atoms[0] < atoms[-1]):
        raise BadInput("the policy's atoms are not returns in rising order; it cannot be played")
    values = values_of(network, FlatParameters(network), torch.device("cpu"))
    return GreedyPolicy(values, network_dtype(observations), normaliser)


def expected_returns(network: Network, obs: torch.Tensor) -> torch.Tensor:
    """[row, action]"""
    return functional.softmax(network(obs), dim=2) @ network.atoms


def in_numpy(network: QNetwork, parameters: FlatParameters) -> CategoricalMlp:
    return CategoricalMlp(parameters, "network", network.network, Atoms(network.atoms.cpu().numpy()))


def values_of(network: Network, parameters: FlatParameters, device: torch.device) -> ActionValues:
    if isinstance(network, QNetwork):
        return in_numpy(network, parameters)
    return TorchValues(lambda obs: expected_returns(network, obs), device)


# ---------------------------------------------------------------- the update


class CrossEntropyGradient(Protocol):
    """The gradient of the cross-entropy of predicted distributions, by whatever means."""

    def descend(self, batch: Transitions) -> None:
        """Leave the gradient of this batch in the block of parameters."""

    def losses(self) -> tuple[float, float]:
        """Of the last batch: the cross-entropy, and the values that were predicted, on average."""


class NumpyGradient:
    """For a small network on a CPU: derived by hand, because tensors would cost more than the arithmetic."""

    def __init__(self, network: CategoricalMlp, target: CategoricalMlp, gamma: float) -> None:
        self._network, self._target, self._gamma = network, target, np.float32(gamma)

    def descend(self, batch: Transitions) -> None:
        atoms, count = self._network.atoms, len(batch.actions)
        order = batch.actions.argsort(kind="stable")
        batch = Transitions(*[array.take(order, axis=0) for array in batch])
        weights, sums, values = self._target.weights(batch.next_obs)
        best = np.arange(0, len(values), self._target.actions) + values.reshape(count, -1).argmax(axis=1)
        following = weights.take(best, axis=0)
        following /= sums.take(best)[:, None]
        self._wanted = atoms.project(following, batch.rewards, self._gamma * (1 - batch.terminated))

        self._logits = self._network.trace(batch.obs, batch.actions)
        gradient, sums, self._values = atoms.weights(self._logits)
        # d/dlogits of mean(-Σ wanted · log p) is (p - wanted) / count.
        gradient /= sums[:, None]
        gradient -= self._wanted
        gradient *= np.float32(1 / count)
        self._network.backward(gradient)

    def losses(self) -> tuple[float, float]:
        cross_entropy = -(self._wanted * log_softmax(self._logits)).sum(axis=1)
        return float(cross_entropy.mean()), float(self._values.mean())


class TorchGradient:
    """For any network on any device, by autograd."""

    def __init__(
        self, agent: Network, parameters: FlatParameters, target: Network, args: Args, device: torch.device
    ) -> None:
        self._agent, self._parameters, self._target, self._gamma = agent, parameters, target, args.gamma
        self._device = device
        self._entropy = compiled(self._cross_entropy, wanted=args.compile)

    def descend(self, batch: Transitions) -> None:
        self._loss, self._predicted = self._entropy(*(torch.from_numpy(array).to(self._device) for array in batch))
        self._parameters.zero_gradients()
        self._loss.backward()  # type: ignore[no-untyped-call]

    def losses(self) -> tuple[float, float]:
        return self._loss.item(), self._predicted.item()

    def _cross_entropy(
        self,
        obs: torch.Tensor,
        actions: torch.Tensor,
        rewards: torch.Tensor,
        next_obs: torch.Tensor,
        terminated: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        atoms, rows = self._agent.atoms, torch.arange(len(actions), device=self._device)
        with torch.no_grad():
            probabilities = functional.softmax(self._target(next_obs), dim=2)
            following = probabilities[rows, (probabilities @ atoms).argmax(dim=1)]
            wanted = project(following, rewards, self._gamma * (1 - terminated), atoms)
        predicted = functional.log_softmax(self._agent(obs)[rows, actions], dim=1)
        return -(wanted * predicted).sum(dim=1).mean(), (predicted.detach().exp() @ atoms).mean()


# ---------------------------------------------------------------- one run


class C51Learner:
    """The state of a run: act, store, and every few steps learn from what is stored."""

    def __init__(self, args: Args, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device) -> None:
        self.args, self.envs, self.buffer = args, envs, buffer
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        spaces = (envs.observation_space, envs.action_space)
        atoms = torch.linspace(args.v_min, args.v_max, args.n_atoms)
        self.agent = make_network(args.exp_name, args.env_id, *spaces, atoms).to(device)
        self.target = make_network(args.exp_name, args.env_id, *spaces, atoms.clone()).to(device)
        self.parameters, self._of_target = FlatParameters(self.agent), FlatParameters(self.target)
        self._copy_to_target()
        self.optimizer = FlatAdam(self.parameters.block, eps=0.01 / args.batch_size)
        self.values = values_of(self.agent, self.parameters, device)
        self.gradient = self._choose_gradient(device)
        self.episodes = EpisodeTracker(args.num_envs)
        self.epsilon = LinearSchedule(args.start_e, args.end_e, args.exploration_fraction * args.total_timesteps)
        self.step = 0
        self._actions = count_actions(args.exp_name, args.env_id, envs.action_space)
        self._dtype = network_dtype(envs.observation_space)
        self._acts_in_numpy = isinstance(self.agent, QNetwork)
        self.next_obs = np.zeros(0)
        self.probe: np.ndarray | None = None
        """Observations whose predicted returns are charted: the first ones that were learned from"""

    def _choose_gradient(self, device: torch.device) -> CrossEntropyGradient:
        on_cpu = device.type == "cpu" and not self.args.compile
        if on_cpu and isinstance(self.values, CategoricalMlp) and isinstance(self.target, QNetwork):
            return NumpyGradient(self.values, in_numpy(self.target, self._of_target), self.args.gamma)
        return TorchGradient(self.agent, self.parameters, self.target, self.args, device)

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
        updates, copies = self._due(steps)
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
                batch = self._sample()
                if self.probe is None:
                    self.probe = batch.obs[:PROBE_ROWS].copy()
                self.gradient.descend(batch)
                self.optimizer.step(args.learning_rate)
                if self._acts_in_numpy:
                    self.parameters.refresh_host()
            if copies[index]:
                self._copy_to_target()
        self.next_obs = obs
        charts = {
            "charts/epsilon": self.epsilon(self.step),
            "charts/replay_size": len(self.buffer),
            "charts/replay_bytes": self.buffer.nbytes,
            "charts/SPS": run.steps_per_second(self.step),
        }
        if any(updates):
            charts["losses/loss"], charts["losses/q_values"] = losses = self.gradient.losses()
            self._check_finite(losses)
            if self.probe is not None and self.step // PROBE_STEPS > steps[0] // PROBE_STEPS:
                self._chart_probe(run, self.probe)
        run.writer.add_scalars(charts, self.step)

    def _as_seen(self, obs: np.ndarray) -> np.ndarray:
        """Observations as the network takes them; the replay buffer has them as the environment gives them."""
        return obs if obs.dtype == self._dtype else obs.astype(self._dtype)

    def _sample(self) -> Transitions:
        batch = self.buffer.sample(self.rng, self.args.batch_size)
        return batch._replace(obs=self._as_seen(batch.obs), next_obs=self._as_seen(batch.next_obs))

    def _due(self, steps: np.ndarray) -> tuple[list[int], list[int]]:
        """How many updates follow each of these steps, and how many copies to the target network.

        A run that resumes without its replay buffer has to fill it first, as at the beginning.
        """
        args, after = self.args, steps + self.args.num_envs
        stored = len(self.buffer) + after - self.step
        learns = (after > args.learning_starts) & (stored >= min(args.learning_starts, args.buffer_size))
        updates = times_passed(args.train_frequency, steps, after) * learns
        return updates.tolist(), (times_passed(args.target_network_frequency, steps, after) * learns).tolist()

    def _copy_to_target(self) -> None:
        self._of_target.block.data.copy_(self.parameters.block.data)

    def _check_finite(self, losses: tuple[float, float]) -> None:
        """Before anything of this block is saved: a checkpoint of such weights would be worth nothing."""
        if math.isfinite(sum(losses) + self.parameters.block.data.sum().item()):
            return
        cause = "lower --learning-rate"
        if not all(np.isfinite(array).all() for array in self._sample()):
            cause = "the environment gave observations or rewards that are not finite"
        raise TrainingStopped(f"loss or weights are not finite at step {self.step}: {cause}")

    def predicted_returns(self, obs: np.ndarray) -> np.ndarray:
        """The distribution of returns that the best actions are expected to have, on average over observations."""
        with torch.no_grad():
            probabilities = functional.softmax(self.agent(torch.from_numpy(obs).to(self.agent.atoms.device)), dim=2)
            best = (probabilities @ self.agent.atoms).argmax(dim=1)
            return probabilities[torch.arange(len(best), device=best.device), best].mean(dim=0).cpu().numpy()

    def _chart_probe(self, run: RunContext, probe: np.ndarray) -> None:
        atoms = self.agent.atoms.cpu().numpy()
        run.writer.add_histogram("charts/predicted_returns", atoms, self.predicted_returns(probe), self.step)

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        state = snapshot_of(self, {"adam": self.optimizer.arrays()})
        arrays = {**state.arrays, **arrays_of(self.target, "target")}
        if self.probe is not None:
            arrays["probe"] = self.probe
        return replace(state, arrays=arrays, replay=self.buffer)

    def restore(self, state: TrainingState) -> str:
        exact = restore_into(self, state, RESUME_NEEDS)
        load_weights(self.target, state.part("target"), what="the checkpoint")
        self.optimizer.restore(state.part("adam"))
        self.probe = state.arrays.get("probe")
        state.restore_replay(self.buffer)
        return "exact" if exact else NEW_EPISODES

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        atoms = self.agent.atoms.cpu().numpy()
        if "atoms" in weights and not np.array_equal(weights["atoms"], atoms):
            theirs = weights["atoms"]
            raise BadInput(
                f"{what} has {len(theirs)} atoms from {theirs[0]:g} to {theirs[-1]:g}; give the same "
                "--n-atoms, --v-min and --v-max"
            )
        load_weights(self.agent, weights, what=what)
        self.parameters.refresh_host()
        self._copy_to_target()

    def model(self) -> Any:
        """CleanRL's file has the flags beside the weights, because atoms are needed to play it."""
        return {"model_weights": self.agent.state_dict(), "args": asdict(self.args)}


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check_args(args, RULES)
    envs = run.make_envs(args)
    learner = C51Learner(args, envs, make_replay(args, envs, folder=run.folder.root), device_for(args))
    return train_to_the_end(learner, run, total=args.total_timesteps)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("c51", Args, train)
