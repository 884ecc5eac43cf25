"""Rainbow (Hessel et al. 2018): DQN with six extensions.

Double Q-learning, prioritized replay, dueling heads, n-step returns, distributional returns (C51) and noisy layers for
exploration (Fortunato et al. 2018). For Atari, under the flags and defaults of CleanRL's `rainbow_atari.py`.
Runs alone: python -m cleanrl_worker.algorithms rainbow_atari --env-id BreakoutNoFrameskip-v4
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium import Space
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import FLAT, as_floats, nature_convolutions, torch_default_init
from cleanrl_worker.algorithms.c51 import project
from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.args import Range, ReplayArgs, check_args
from cleanrl_worker.training.checkpointing import NEW_EPISODES, TrainingState, Weights, load_weights
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.optimizers import FlatAdam, FlatParameters, LinearSchedule, compiled
from cleanrl_worker.training.policies import atari_sizes
from cleanrl_worker.training.prioritized_replay import PrioritizedReplay
from cleanrl_worker.training.replay import ReplayBuffer, make_replay
from cleanrl_worker.training.run import BLOCK_STEPS, Learner, RunContext, TrainResult, device_for, run_training_loop

# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class Args(ReplayArgs):
    """Flags of `rainbow_atari`; literals only, because forms and `--describe` read this class without running it."""

    exp_name: str = "rainbow_atari"
    env_id: str = "BreakoutNoFrameskip-v4"
    """Gymnasium id of an Atari game; actions must be discrete, observations four images of 84 × 84"""
    total_timesteps: Annotated[int, Range(1)] = 10_000_000
    """steps to train for, over all environments"""
    learning_rate: Annotated[float, Range(0)] = 6.25e-05
    """Adam's step size"""
    num_envs: Annotated[int, Range(1)] = 1
    """environments stepped in parallel"""
    buffer_size: Annotated[int, Range(2)] = 1_000_000
    """steps the replay buffer holds, over all environments"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    tau: Annotated[float, Range(0, 1)] = 1.0
    """how far the target network moves towards the online network at each update: 1 makes it a copy"""
    target_network_frequency: Annotated[int, Range(1)] = 8000
    """steps between two updates of the target network"""
    batch_size: Annotated[int, Range(1)] = 32
    """steps drawn from the replay buffer per update"""
    start_e: Annotated[float, Range(0, 1)] = 1
    """accepted because CleanRL has it; without effect, noisy layers explore"""
    end_e: Annotated[float, Range(0, 1)] = 0.01
    """accepted because CleanRL has it; without effect, noisy layers explore"""
    exploration_fraction: Annotated[float, Range(0, 1)] = 0.1
    """accepted because CleanRL has it; without effect, noisy layers explore"""
    learning_starts: Annotated[int, Range(0)] = 80_000
    """steps before the first update"""
    train_frequency: Annotated[int, Range(1)] = 4
    """steps between two updates"""
    n_step: Annotated[int, Range(1, 1000)] = 3
    """rewards in an n-step return, before the value of the next state is bootstrapped"""
    prioritized_replay_alpha: Annotated[float, Range(0)] = 0.5
    """exponent of the priorities (0: sample uniformly)"""
    prioritized_replay_beta: Annotated[float, Range(0, 1)] = 0.4
    """exponent of the importance weights at the start; it grows to 1"""
    prioritized_replay_eps: Annotated[float, Range(0)] = 1e-06
    """added to a step's loss, so that its priority is never 0"""
    n_atoms: Annotated[int, Range(2)] = 51
    """number of atoms (returns) of a distribution"""
    v_min: float = -10
    """the smallest atom"""
    v_max: float = 10
    """the largest atom"""


PROBE_STEPS = 1_000
"""Steps between two histograms of the predicted returns"""
PROBE_ROWS = 32
"""Observations that the histograms average over"""
HIDDEN = 512


# ---------------------------------------------------------------- network


class NoisyLinear(nn.Module):
    """A dense layer with factorised Gaussian noise of a learned scale on its weights.

    The names are those of CleanRL's models; `*_epsilon` are written for them, and not read.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound, sigma = 1 / math.sqrt(inputs), 0.5 / math.sqrt(inputs)
        self.weight_mu = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma))
        self.bias_mu = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma))
        self.register_buffer("weight_epsilon", torch.zeros(outputs, inputs))
        self.register_buffer("bias_epsilon", torch.zeros(outputs))
        self.noise_size = inputs + outputs
        self._inputs = inputs

    def forward(self, inputs: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        """Return the outputs; `noise` is one row for all inputs or one for each, None means the mean weights."""
        means = functional.linear(inputs, self.weight_mu, self.bias_mu)
        if noise is None:
            return means
        # (W ∘ out inᵀ) x = out ∘ W (in ∘ x): the noisy weights need not be computed.
        into, out = noise[..., : self._inputs], noise[..., self._inputs :]
        return means + functional.linear(inputs * into, self.weight_sigma, self.bias_sigma) * out

    def store_noise(self, noise: torch.Tensor) -> None:
        """Store the noise in the buffers that checkpoints and models hold."""
        into, out = noise[: self._inputs], noise[self._inputs :]
        self.get_buffer("weight_epsilon").copy_(torch.outer(out, into))
        self.get_buffer("bias_epsilon").copy_(out)


class NoisyHead(nn.Sequential):
    """Two noisy layers with a ReLU between them."""

    def __init__(self, outputs: int) -> None:
        super().__init__(NoisyLinear(FLAT, HIDDEN), nn.ReLU(), NoisyLinear(HIDDEN, outputs))
        self.layers: tuple[NoisyLinear, NoisyLinear] = (self[0], self[2])  # type: ignore[assignment]
        self.noise_sizes = [layer.noise_size for layer in self.layers]

    def forward(self, features: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        """Return the outputs; without noise those of the mean weights."""
        first, second = torch.split(noise, self.noise_sizes, dim=-1) if noise is not None else (None, None)
        hidden = functional.relu(self.layers[0](features, first))
        out: torch.Tensor = self.layers[1](hidden, second)
        return out


class Network(nn.Module):
    """Return distributions of every action; parameter names and shapes are those of CleanRL's models."""

    support: torch.Tensor

    def __init__(self, channels: int, actions: int, support: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("support", support)
        self.network = nn.Sequential(*nature_convolutions(channels, initialize=torch_default_init))
        self.value_head = NoisyHead(len(support))
        self.advantage_head = NoisyHead(len(support) * actions)
        self._shape = (actions, len(support))
        self._noise_sizes = [sum(self.value_head.noise_sizes), sum(self.advantage_head.noise_sizes)]

    @property
    def noise_size(self) -> int:
        """Return how many noise variables the layers have."""
        return sum(self._noise_sizes)

    def forward(self, obs: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        """Return log-probabilities [batch, actions, atoms]; without noise those of the mean weights."""
        features = self.network(as_floats(obs).contiguous(memory_format=torch.channels_last))
        for_values, for_advantages = (
            torch.split(noise, self._noise_sizes, dim=-1) if noise is not None else (None, None)
        )
        values = self.value_head(features, for_values)
        advantages = self.advantage_head(features, for_advantages).view(-1, *self._shape)
        logits = values.unsqueeze(1) + advantages - advantages.mean(dim=1, keepdim=True)
        return functional.log_softmax(logits, dim=2)

    def q_values(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return the means of the distributions [batch, actions]."""
        return log_probs.exp() @ self.support

    def store_noise(self, noise: torch.Tensor) -> None:
        """Store the noise in the buffers that CleanRL's models have for it."""
        layers = (*self.value_head.layers, *self.advantage_head.layers)
        for layer, part in zip(layers, torch.split(noise, [layer.noise_size for layer in layers]), strict=True):
            layer.store_noise(part)


def draw_noise(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return factorised noise f(x) = sgn(x) √|x| of standard normal x."""
    normal = rng.standard_normal(size, dtype=np.float32)
    return np.copysign(np.sqrt(np.abs(normal)), normal)


def make_network(
    env_id: str, observations: gym.Space, actions: gym.Space, support: torch.Tensor, *, algo: str = "rainbow_atari"
) -> Network:
    """Build the network for these spaces; raise BadInput when there is none."""
    return Network(*atari_sizes(algo, env_id, observations, actions), support)


class RainbowPolicy:
    """The greedy policy of the mean weights; when sampled, each row has noise from its own generator."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        """Return the best actions, or actions sampled with `rng`."""
        noise = np.stack([draw_noise(rng, self._network.noise_size) for rng in rngs]) if rngs is not None else None
        return best_actions(self._network, obs, noise)


@torch.inference_mode()
def best_actions(network: Network, obs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
    """Return the greedy actions; `noise` is one row for all observations or one for each."""
    device = network.support.device
    drawn = torch.from_numpy(noise).to(device) if noise is not None else None
    log_probs = network(torch.from_numpy(np.ascontiguousarray(obs)).to(device), drawn)
    return network.q_values(log_probs).argmax(dim=1).cpu().numpy()


# ---------------------------------------------------------------- the loss


class Batch(NamedTuple):
    """A sampled batch: `NStepBatch` as tensors."""

    obs: torch.Tensor
    actions: torch.Tensor
    returns: torch.Tensor
    next_obs: torch.Tensor
    discounts: torch.Tensor
    weights: torch.Tensor


class Losses(NamedTuple):
    """The loss of a minibatch and its parts."""

    total: torch.Tensor
    """Cross-entropy weighted by importance: what is minimized"""
    kl: torch.Tensor
    """Kullback-Leibler divergence of each row: its priority"""
    q_values: torch.Tensor


def rainbow_losses(
    network: Network, target: Network, batch: Batch, noise: torch.Tensor, target_noise: torch.Tensor
) -> Losses:
    """Return the cross-entropy to the projected target distributions (C51) with double Q-learning.

    The online network chooses the next action, the target network gives its distribution.
    """
    rows = torch.arange(len(batch.actions), device=batch.actions.device)
    with torch.no_grad():
        best = network.q_values(network(batch.next_obs, noise)).argmax(dim=1)
        following = target(batch.next_obs, target_noise)[rows, best].exp()
        target_probs = project(following, batch.returns, batch.discounts, network.support)
    predicted = network(batch.obs, noise)[rows, batch.actions]
    cross_entropy = -(target_probs * predicted).sum(dim=1)
    kl = cross_entropy.detach() + torch.xlogy(target_probs, target_probs).sum(dim=1)
    q_values = predicted.detach().exp() @ network.support
    return Losses((batch.weights * cross_entropy).mean(), kl, q_values.mean())


# ---------------------------------------------------------------- rollout, update, loop


class RainbowLearner(Learner):
    """The state of a run: act, store transitions, and every few steps update from a sampled batch."""

    def __init__(self, args: Args, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device) -> None:
        super().__init__(args, envs, device)
        spaces = (args.env_id, envs.observation_space, envs.action_space)
        support = torch.linspace(args.v_min, args.v_max, args.n_atoms)
        self.agent = make_network(*spaces, support).to(device)
        self.target = make_network(*spaces, support).to(device)
        self.parameters, self._target_parameters = FlatParameters(self.agent), FlatParameters(self.target)
        self._move_target(1.0)
        self.optimizer = FlatAdam(self.parameters.block, eps=1.5e-4)
        self._losses = compiled(rainbow_losses, enabled=args.compile)
        self.replay = PrioritizedReplay(
            buffer,
            args.num_envs,
            n_step=args.n_step,
            gamma=args.gamma,
            alpha=args.prioritized_replay_alpha,
            epsilon=args.prioritized_replay_eps,
        )
        self.beta = LinearSchedule(args.prioritized_replay_beta, 1.0, args.total_timesteps)
        self.noise = draw_noise(self.rng, self.agent.noise_size)
        self.next_obs = np.zeros(0, dtype=np.uint8)
        self.probe = np.zeros(0, dtype=np.uint8)
        """Observations whose predicted returns are charted; empty before the first batch"""

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Return the best actions, or actions sampled with `rng`."""
        return RainbowPolicy(self.agent).act(obs, None if rng is None else [rng] * len(obs))

    def learn(self, run: RunContext) -> None:
        """Act and update until the next multiple of BLOCK_STEPS."""
        args = self.args
        until = min((self.step // BLOCK_STEPS + 1) * BLOCK_STEPS, args.total_timesteps)
        first_step, losses = self.step, None
        while self.step < until:
            before = self.step
            self._step_envs(run)
            for _ in range(self.step // args.train_frequency - before // args.train_frequency):
                self.noise = draw_noise(self.rng, self.agent.noise_size)
                if self._can_learn():
                    losses = self.update()
            is_due = self.step // args.target_network_frequency > before // args.target_network_frequency
            if is_due and self._can_learn():
                self._move_target(args.tau)
        charts = {
            "charts/beta": self.beta(self.step),
            "charts/replay_size": len(self.replay.buffer),
            "charts/replay_bytes": self.replay.nbytes,
            "charts/SPS": run.steps_per_second(self.step),
        }
        if losses is not None:
            charts |= {"losses/td_loss": losses.total.item(), "losses/q_values": losses.q_values.item()}
            self.stop_unless_finite(charts["losses/td_loss"])
            if self.step // PROBE_STEPS > first_step // PROBE_STEPS:
                self._chart_probe(run)
        run.writer.add_scalars(charts, self.step)

    def _step_envs(self, run: RunContext) -> None:
        obs = self.next_obs
        actions = best_actions(self.agent, obs, self.noise)
        step = self.envs.step(actions)
        self.replay.add(obs, actions, step.rewards, step.final_obs, step.terminated, step.ended)
        self.next_obs = step.obs
        self.step += self.args.num_envs
        self.chart_episodes(step, run)

    def _can_learn(self) -> bool:
        """Return whether learning may begin; a run resumed without its replay buffer fills it first, too."""
        args, buffer = self.args, self.replay.buffer
        filled = len(buffer) >= min(args.learning_starts, buffer.capacity) and self.replay.ready
        return filled and self.step > args.learning_starts

    def update(self) -> Losses:
        """Take one gradient step on a sampled batch, then update its priorities."""
        args = self.args
        drawn = self.replay.sample(self.rng, args.batch_size, self.beta(self.step))
        noises = (self.noise, draw_noise(self.rng, self.agent.noise_size))
        if not self.probe.size:
            self.probe = drawn.obs[:PROBE_ROWS].copy()
        batch = Batch(*(torch.from_numpy(array).to(self.device) for array in drawn[:-1]))
        losses = self._losses(
            self.agent, self.target, batch, *(torch.from_numpy(noise).to(self.device) for noise in noises)
        )
        self.parameters.backward(losses.total)
        self.optimizer.step(args.learning_rate)
        kl = losses.kl.cpu().numpy()
        if not np.isfinite(kl).all():
            self.stop_unless_finite(math.nan)
        self.replay.prioritize(drawn.rows, kl)
        return Losses(losses.total.detach(), *losses[1:])

    def _move_target(self, share: float) -> None:
        self._target_parameters.block.data.lerp_(self.parameters.block.data, share)

    @torch.inference_mode()
    def predicted_returns(self, obs: np.ndarray) -> np.ndarray:
        """Return the distribution of returns that the mean weights predict for the greedy actions, on average."""
        log_probs = self.agent(torch.from_numpy(obs).to(self.device), None)
        best = self.agent.q_values(log_probs).argmax(dim=1)
        return log_probs[torch.arange(len(best)), best].exp().mean(dim=0).cpu().numpy()

    def _chart_probe(self, run: RunContext) -> None:
        support = self.agent.support.cpu().numpy()
        run.writer.add_histogram("charts/predicted_returns", support, self.predicted_returns(self.probe), self.step)

    # -- checkpoints

    @property
    def optimizers(self) -> Mapping[str, Any]:
        """Return the optimizers by their names in checkpoints."""
        return {"adam": self.optimizer}

    def own_arrays(self) -> dict[str, Mapping[str, np.ndarray]]:
        """Return copies of what a checkpoint needs besides the network, by prefix."""
        target = {"block": self._target_parameters.block.data.cpu().numpy().copy()}
        rainbow = {"noise": self.noise.copy(), "probe": self.probe.copy()}
        return {**super().own_arrays(), "target": target, "rainbow": rainbow}

    def snapshot(self) -> TrainingState:
        """Return everything learning depends on, with the replay buffer and its priorities."""
        self.agent.store_noise(torch.from_numpy(self.noise).to(self.device))
        state, (priorities, facts) = super().snapshot(), self.replay.snapshot()
        priorities = {f"priorities.{name}": array for name, array in priorities.items()}
        values = {**state.values, "priorities": facts}
        return replace(state, arrays={**state.arrays, **priorities}, values=values, replay=self.replay.buffer)

    def restore(self, state: TrainingState) -> str:
        """Continue from a snapshot; return how the environments were restored."""
        environments = super().restore(state)
        self._target_parameters.block.data.copy_(torch.from_numpy(state.arrays["target.block"].copy()))
        self.noise, self.probe = (state.arrays[f"rainbow.{name}"].copy() for name in ("noise", "probe"))
        state.restore_replay(self.replay.buffer)
        self.replay.restore(state.part("priorities"), state.values["priorities"])
        if environments == NEW_EPISODES:
            self.replay.end_episodes()
        return environments

    def load_agent(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        """Load the network's weights; raise BadInput if they are for other atoms."""
        theirs = weights.get("support")
        if theirs is not None and not np.array_equal(theirs, self.agent.support.cpu().numpy()):
            raise BadInput(
                f"{what} has {len(theirs)} atoms from {theirs[0]:g} to {theirs[-1]:g}; give the same "
                "--n-atoms, --v-min and --v-max"
            )
        load_weights(self.agent, weights, what=what)
        self._move_target(1.0)

    def model(self) -> Any:
        """Return what CleanRL's model file holds."""
        self.agent.store_noise(torch.from_numpy(self.noise).to(self.device))
        return self.agent.state_dict()


# ---------------------------------------------------------------- policy and run


NAME = Args.exp_name


def make_policy(
    env_id: str, observations: Space, actions: Space, weights: Weights, *, algo: str = NAME, normalizer: Any = None
) -> RainbowPolicy:
    """Return the policy with these weights; raise BadInput when they do not fit the environment."""
    support = weights.get("support", np.zeros(0, dtype=np.float32))
    network = make_network(env_id, observations, actions, torch.from_numpy(np.array(support)), algo=algo)
    load_weights(network, weights, what="the policy")
    return RainbowPolicy(network)


def train(args: Args, run: RunContext) -> TrainResult:
    """Train until the steps are used up, the return is reached or a stop is requested; then evaluate."""
    check_args(args)
    envs = run.make_envs(args)
    whole_steps = replace(args, buffer_size=args.buffer_size // args.num_envs * args.num_envs)
    learner = RainbowLearner(args, envs, make_replay(whole_steps, envs, folder=run.folder.root), device_for(args))
    return run_training_loop(learner, run, total=args.total_timesteps)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
