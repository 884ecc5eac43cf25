"""Categorical DQN (Bellemare et al. 2017): Q-learning of whole distributions of returns, over a number of atoms.

Under the flags and defaults of CleanRL's `c51.py` and `c51_atari.py`.
Runs alone: python -m cleanrl_worker.algorithms c51 --env-id CartPole-v1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import torch
from gymnasium import Space
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import as_floats, nature_trunk, torch_default_init
from cleanrl_worker.algorithms.dqn import DqnLearner, QArgs
from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.args import Range, check_args
from cleanrl_worker.training.checkpointing import TrainingState, Weights, load_weights
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.fast_cpu import agreeing
from cleanrl_worker.training.fast_cpu.networks import CategoricalMlp
from cleanrl_worker.training.fast_cpu.q_learning import FastC51, QGradient
from cleanrl_worker.training.optimizers import FlatAdam, FlatParameters, compiled
from cleanrl_worker.training.policies import ActionValues, GreedyPolicy, TorchValues, network_dtype, network_sizes
from cleanrl_worker.training.replay import ReplayBuffer, Transitions, make_replay
from cleanrl_worker.training.run import RunContext, TrainResult, device_for, run_training_loop

# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class C51Args(QArgs):
    """Flags of `c51` and `c51_atari`."""

    n_atoms: Annotated[int, Range(2)] = 101
    """number of atoms (returns) of a distribution"""
    v_min: float = -100
    """the smallest atom; smaller returns count as this one"""
    v_max: float = 100
    """the largest atom; larger returns count as this one"""
    target_network_frequency: Annotated[int, Range(1)] = 500
    """steps between two copies of the online network to the target network"""

    tau = 1.0  # the target network becomes a copy


@dataclass(frozen=True)
class Args(C51Args):
    """Flags of `c51`; literals only, because forms and `--describe` read this class without running it."""

    exp_name: str = "c51"
    gradient: Literal["auto", "autograd", "fast_cpu"] = "auto"
    """what computes gradients (auto: the fast CPU engine where it agrees with the loss in the algorithm's file)"""


@dataclass(frozen=True)
class AtariArgs(C51Args):
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


PROBE_STEPS = 1_000
"""Steps between two histograms of the predicted returns"""
PROBE_ROWS = 64
"""Observations that the histograms average over"""


# ---------------------------------------------------------------- networks


class QNetwork(nn.Module):
    """Logits of each action's returns, for vectors; parameter names and shapes are those of CleanRL's models."""

    atoms: torch.Tensor

    def __init__(self, observations: int, actions: int, atoms: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("atoms", atoms)
        self.network = nn.Sequential(
            nn.Linear(observations, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, actions * len(atoms))
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return logits [row, action, atom]."""
        return self.network(obs).unflatten(1, (-1, len(self.atoms)))


class AtariQNetwork(nn.Module):
    """Logits of each action's returns, for stacks of frames of 84 x 84."""

    atoms: torch.Tensor

    def __init__(self, frames: int, actions: int, atoms: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("atoms", atoms)
        head = nn.Linear(512, actions * len(atoms))
        self.network = nn.Sequential(*nature_trunk(frames, initialize=torch_default_init), head)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return logits [row, action, atom]."""
        return self.network(as_floats(obs)).unflatten(1, (-1, len(self.atoms)))


Network = QNetwork | AtariQNetwork


def make_network(algo: str, env_id: str, observations: gym.Space, actions: gym.Space, atoms: torch.Tensor) -> Network:
    """Build the network for these spaces; raise BadInput when there is none."""
    is_stack, inputs, count = network_sizes(algo, env_id, observations, actions)
    return AtariQNetwork(inputs, count, atoms) if is_stack else QNetwork(inputs, count, atoms)


def expected_returns(network: Network, obs: torch.Tensor) -> torch.Tensor:
    """Return the mean of each action's distribution: [row, action]."""
    return functional.softmax(network(obs), dim=2) @ network.atoms


def numpy_network(network: Any, parameters: FlatParameters) -> CategoricalMlp:
    """Return a small network in numpy."""
    return CategoricalMlp(parameters, "network", network.network, network.atoms.cpu().numpy())


def values_of(network: Network, parameters: FlatParameters, device: torch.device) -> ActionValues:
    """Return a function from observations to Q-values: in numpy if that gives what the network does, else in torch."""

    def returns(obs: torch.Tensor) -> torch.Tensor:
        return expected_returns(network, obs)

    fast = agreeing(network, parameters, lambda: numpy_network(network, parameters), CategoricalMlp.__call__, returns)
    return fast or TorchValues(returns, device)


# ---------------------------------------------------------------- the loss


def project(
    probabilities: torch.Tensor, rewards: torch.Tensor, discounts: torch.Tensor, atoms: torch.Tensor
) -> torch.Tensor:
    """Return the distributions [row, atom] of reward + discount * return, projected onto the atoms.

    Sums over all pairs of atoms: the order of `scatter_add_` on a GPU varies, so a run could not be repeated exactly.
    """
    count = len(atoms)
    moved = (rewards.unsqueeze(1) + discounts.unsqueeze(1) * atoms).clamp(atoms[0], atoms[-1])
    positions = (moved - atoms[0]) * ((count - 1) / (atoms[-1] - atoms[0]))
    places = torch.arange(count, device=atoms.device)
    shares = (1 - (positions.unsqueeze(2) - places).abs()).clamp(min=0)  # [row, from atom, to atom]
    return (probabilities.unsqueeze(2) * shares).sum(dim=1)


class TorchGradient:
    """Gradients of any network on any device, by autograd; for a small one on a CPU `FastC51`, if it gives the same."""

    def __init__(
        self, agent: Network, parameters: FlatParameters, target: Network, args: Args, device: torch.device
    ) -> None:
        self._agent, self._parameters, self._target, self._gamma = agent, parameters, target, args.gamma
        self._device = device
        self._entropy = compiled(self._cross_entropy, enabled=args.compile)

    def backward(self, batch: Transitions) -> None:
        """Set the parameters' gradients for this batch."""
        self._loss, self._predicted = self._entropy(*(torch.from_numpy(array).to(self._device) for array in batch))
        self._parameters.backward(self._loss)

    def losses(self) -> tuple[float, float]:
        """Return the cross-entropy and the mean predicted Q-value of the last batch."""
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
            target_probs = project(following, rewards, self._gamma * (1 - terminated), atoms)
        predicted = functional.log_softmax(self._agent(obs)[rows, actions], dim=1)
        return -(target_probs * predicted).sum(dim=1).mean(), (predicted.detach().exp() @ atoms).mean()


# ---------------------------------------------------------------- rollout, update, loop


class C51Learner(DqnLearner):
    """DQN whose network predicts distributions of returns."""

    loss_chart = "losses/loss"

    def __init__(self, args: Args, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device) -> None:
        super().__init__(args, envs, buffer, device)
        self.optimizer = FlatAdam(self.parameters.block, eps=0.01 / args.batch_size)
        self.probe: np.ndarray | None = None
        """Observations whose predicted returns are charted: some of the first batch"""

    def make_network(self) -> Network:
        """Build a network for the environments and the atoms."""
        args, envs = self.args, self.envs
        atoms = torch.linspace(args.v_min, args.v_max, args.n_atoms)
        return make_network(args.exp_name, args.env_id, envs.observation_space, envs.action_space, atoms)

    def make_values(self, device: torch.device) -> ActionValues:
        """Return the function that computes expected returns while acting."""
        return values_of(self.agent, self.parameters, device)

    def make_gradient(self, device: torch.device) -> QGradient:
        """Return the gradients of the loss by autograd."""
        return TorchGradient(self.agent, self.parameters, self.target, self.args, device)

    def make_fast_gradient(self) -> QGradient:
        """Return the gradients of a network that runs in numpy."""
        agent = numpy_network(self.agent, self.parameters)
        return FastC51(agent, numpy_network(self.target, self.target_parameters), self.args.gamma)

    def _sample(self) -> Transitions:
        batch = super()._sample()
        if self.probe is None:
            self.probe = batch.obs[:PROBE_ROWS].copy()
        return batch

    def predicted_returns(self, obs: np.ndarray) -> np.ndarray:
        """Return the distribution of returns predicted for the greedy actions, averaged over observations."""
        with torch.no_grad():
            probabilities = functional.softmax(self.agent(torch.from_numpy(obs).to(self.agent.atoms.device)), dim=2)
            best = (probabilities @ self.agent.atoms).argmax(dim=1)
            return probabilities[torch.arange(len(best), device=best.device), best].mean(dim=0).cpu().numpy()

    def write_extra_charts(self, first_step: int, run: RunContext) -> None:
        """Write a histogram of the probe's predicted returns every PROBE_STEPS."""
        if self.probe is not None and self.step // PROBE_STEPS > first_step // PROBE_STEPS:
            atoms = self.agent.atoms.cpu().numpy()
            run.writer.add_histogram("charts/predicted_returns", atoms, self.predicted_returns(self.probe), self.step)

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        """Return everything learning depends on."""
        state = super().snapshot()
        return state if self.probe is None else replace(state, arrays={**state.arrays, "probe": self.probe})

    def restore(self, state: TrainingState) -> str:
        """Continue from a snapshot; return how the environments were restored."""
        self.probe = state.arrays.get("probe")
        return super().restore(state)

    def load_agent(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        """Load the network's weights; raise BadInput if they are for other atoms."""
        atoms = self.agent.atoms.cpu().numpy()
        if "atoms" in weights and not np.array_equal(weights["atoms"], atoms):
            theirs = weights["atoms"]
            raise BadInput(
                f"{what} has {len(theirs)} atoms from {theirs[0]:g} to {theirs[-1]:g}; give the same "
                "--n-atoms, --v-min and --v-max"
            )
        super().load_agent(weights, what)

    def model(self) -> Any:
        """Return the weights and the flags, as CleanRL's file has them: the atoms are needed to play it."""
        return {"model_weights": self.agent.state_dict(), "args": asdict(self.args)}


# ---------------------------------------------------------------- policy and run


NAME = Args.exp_name


def make_policy(
    env_id: str, observations: Space, actions: Space, weights: Weights, *, algo: str = NAME, normalizer: Any = None
) -> GreedyPolicy:
    """Return the policy with these weights; raise BadInput when they do not fit the environment."""
    atoms = torch.from_numpy(np.array(weights.get("atoms", np.zeros(2)), dtype=np.float32))
    network = make_network(algo, env_id, observations, actions, atoms)
    load_weights(network, weights, what="the policy")
    if not (len(atoms) >= 2 and atoms[0] < atoms[-1]):
        raise BadInput("the policy's atoms are not returns in rising order; it cannot be played")
    values = values_of(network, FlatParameters(network), torch.device("cpu"))
    return GreedyPolicy(values, network_dtype(observations), normalizer)


def train(args: Args, run: RunContext) -> TrainResult:
    """Train until the steps are used up, the return is reached or a stop is requested; then evaluate."""
    check_args(args)
    envs = run.make_envs(args)
    learner = C51Learner(args, envs, make_replay(args, envs, folder=run.folder.root), device_for(args))
    return run_training_loop(learner, run, total=args.total_timesteps)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
