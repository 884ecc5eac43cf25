"""Rainbow (Hessel et al. 2018): a Q-network of return distributions that explores by the noise in its own weights.

Six parts: double Q-learning, prioritised replay, duelling heads, n-step returns, distributions instead of means (C51),
and noisy layers (Fortunato et al. 2018). For Atari, under the flags and defaults of CleanRL's `rainbow_atari.py`.
Runs alone: python -m cleanrl_worker.algorithms rainbow_atari --env-id BreakoutNoFrameskip-v4
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple, NoReturn

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import FLAT, as_floats, as_torch_makes_it, nature_convolutions
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.adam import FlatAdam
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.common_args import ReplayArgs
from cleanrl_worker.training.compiling import compiled
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs, is_image
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.prioritised_replay import PrioritisedReplay
from cleanrl_worker.training.q_policies import count_actions
from cleanrl_worker.training.replay import ReplayBuffer, make_replay
from cleanrl_worker.training.return_distributions import project
from cleanrl_worker.training.rollout_state import NEW_EPISODES, restore_into, snapshot_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.schedules import LinearSchedule
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import load_weights


@dataclass(frozen=True)
class Args(ReplayArgs):
    """Flags of `rainbow_atari`; literals only, because forms and `--describe` read this class without running it."""

    exp_name: str = "rainbow_atari"
    env_id: str = "BreakoutNoFrameskip-v4"
    """Gymnasium id of an Atari game; actions must be discrete, observations four pictures of 84 × 84"""
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
    """how far the target network moves towards the online one (1: it becomes the same)"""
    target_network_frequency: Annotated[int, Range(1)] = 8000
    """steps between two such moves"""
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
    """rewards that are added up before the value of what follows is estimated"""
    prioritized_replay_alpha: Annotated[float, Range(0)] = 0.5
    """how much priorities matter when steps are drawn (0: not at all)"""
    prioritized_replay_beta: Annotated[float, Range(0, 1)] = 0.4
    """how much of that the importance weights undo at the start; it grows to 1"""
    prioritized_replay_eps: Annotated[float, Range(0)] = 1e-06
    """added to a step's loss, so that none is lost for ever"""
    n_atoms: Annotated[int, Range(2)] = 51
    """returns that a distribution is made of"""
    v_min: float = -10
    """the smallest of them"""
    v_max: float = 10
    """the largest of them"""


RULES = (
    ("v_min < v_max", "--v-min {v_min} must be less than --v-max {v_max}"),
    (
        "buffer_size // num_envs > n_step",
        "--buffer-size {buffer_size} is too small: it must hold more than --n-step {n_step} steps of each of "
        "--num-envs {num_envs} environments",
    ),
)
"""What must hold between the flags; text, because a dry run reads it without importing torch"""

RESUME_NEEDS = (
    "env_id", "env_kwargs", "num_envs", "buffer_size", "gamma", "n_step", "n_atoms", "v_min", "v_max",
)  # fmt: skip
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {"agent.advantage_head.2.weight_mu": ("actions * n_atoms", "512"), "agent.support": ("n_atoms",)}
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""

MEMORY = {
    "replay buffer": "buffer_size * 8017",
    "networks": "28 * (6600000 + 1026 * n_atoms * (actions + 1))",
    "a batch and its gradients": "4 * batch_size * (3 * obs_size + 150000)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "20 * (6600000 + 1026 * n_atoms * (actions + 1)) + buffer_size * 9 + num_envs * (2 * obs_bytes + 65536)"
"""Bytes of one checkpoint without the replay buffer: two networks, Adam's two moments, priorities, the environments"""

BLOCK_STEPS = 100
"""Steps between two safe points, and between two points of a chart"""
PROBE_STEPS = 1_000
"""Steps between two histograms of the predicted returns"""
PROBE_ROWS = 32
"""Observations these are predicted for"""
HIDDEN = 512


# ---------------------------------------------------------------- network


class NoisyLinear(nn.Module):
    """A dense layer whose weights are a mean and a learned amount of noise, a product of one number per input and one
    per output (factorised Gaussian noise).

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
        """`noise` is one row for all inputs or one for each; None: the mean weights."""
        means = functional.linear(inputs, self.weight_mu, self.bias_mu)
        if noise is None:
            return means
        # (W ∘ out inᵀ) x = out ∘ W (in ∘ x): the noisy weights themselves are never made.
        into, out = noise[..., : self._inputs], noise[..., self._inputs :]
        return means + functional.linear(inputs * into, self.weight_sigma, self.bias_sigma) * out

    def write_down(self, noise: torch.Tensor) -> None:
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
        first, second = torch.split(noise, self.noise_sizes, dim=-1) if noise is not None else (None, None)
        hidden = functional.relu(self.layers[0](features, first))
        out: torch.Tensor = self.layers[1](hidden, second)
        return out


class Network(nn.Module):
    """The distribution of returns of every action; parameter names and shapes are those of CleanRL's models."""

    support: torch.Tensor

    def __init__(self, channels: int, actions: int, support: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("support", support)
        self.network = nn.Sequential(*nature_convolutions(channels, initialise=as_torch_makes_it))
        self.value_head = NoisyHead(len(support))
        self.advantage_head = NoisyHead(len(support) * actions)
        self._shape = (actions, len(support))
        self._noise_sizes = [sum(self.value_head.noise_sizes), sum(self.advantage_head.noise_sizes)]

    @property
    def noise_size(self) -> int:
        return sum(self._noise_sizes)

    def forward(self, obs: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
        """Logarithms of the probabilities [batch, actions, atoms]; without noise those of the mean weights."""
        features = self.network(as_floats(obs).contiguous(memory_format=torch.channels_last))
        for_values, for_advantages = (
            torch.split(noise, self._noise_sizes, dim=-1) if noise is not None else (None, None)
        )
        values = self.value_head(features, for_values)
        advantages = self.advantage_head(features, for_advantages).view(-1, *self._shape)
        logits = values.unsqueeze(1) + advantages - advantages.mean(dim=1, keepdim=True)
        return functional.log_softmax(logits, dim=2)

    def q_values(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Means of the distributions [batch, actions]."""
        return log_probs.exp() @ self.support

    def write_down(self, noise: torch.Tensor) -> None:
        """Put the noise where CleanRL's models have it."""
        layers = (*self.value_head.layers, *self.advantage_head.layers)
        for layer, part in zip(layers, torch.split(noise, [layer.noise_size for layer in layers]), strict=True):
            layer.write_down(part)


def draw_noise(rng: np.random.Generator, size: int) -> np.ndarray:
    """Normal numbers, each replaced by the root of its size: products of two are then about as large as one was."""
    normal = rng.standard_normal(size, dtype=np.float32)
    return np.copysign(np.sqrt(np.abs(normal)), normal)


def make_network(
    env_id: str, observations: gym.Space, actions: gym.Space, support: torch.Tensor, *, algo: str = "rainbow_atari"
) -> Network:
    """The network for these spaces; BadInput when it cannot play them."""
    count, shape = count_actions(algo, env_id, actions), observations.shape or ()
    if not is_image(observations) or shape[1:] != (84, 84):
        raise BadInput(f"{algo} needs stacked frames of 84 x 84 as observations; those of {env_id} have shape {shape}")
    return Network(shape[0], count, support)


class RainbowPolicy:
    """Plays the best action of the mean weights; sampled, each row has noise of its own generator."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        noise = np.stack([draw_noise(rng, self._network.noise_size) for rng in rngs]) if rngs is not None else None
        return best_actions(self._network, obs, noise)


@torch.inference_mode()
def best_actions(network: Network, obs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
    """The actions of the largest mean returns; `noise` is one row for all observations or one for each."""
    device = network.support.device
    drawn = torch.from_numpy(noise).to(device) if noise is not None else None
    log_probs = network(torch.from_numpy(np.ascontiguousarray(obs)).to(device), drawn)
    return network.q_values(log_probs).argmax(dim=1).cpu().numpy()


def make_policy(
    env_id: str, observations: gym.Space, actions: gym.Space, weights: Mapping[str, np.ndarray], *,
    algo: str = "rainbow_atari", normaliser: Any = None,
) -> RainbowPolicy:  # fmt: skip
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    support = weights.get("support", np.zeros(0, dtype=np.float32))
    network = make_network(env_id, observations, actions, torch.from_numpy(np.array(support)), algo=algo)
    load_weights(network, weights, what="the policy")
    return RainbowPolicy(network)


# ---------------------------------------------------------------- arithmetic


class Batch(NamedTuple):
    """What an update learns from; `NStepBatch` as tensors."""

    obs: torch.Tensor
    actions: torch.Tensor
    returns: torch.Tensor
    next_obs: torch.Tensor
    discounts: torch.Tensor
    weights: torch.Tensor


class Losses(NamedTuple):
    total: torch.Tensor
    """Cross-entropy, weighted: what is minimised"""
    surprise: torch.Tensor
    """Kullback-Leibler divergence of each row: what it is prioritised by"""
    q_values: torch.Tensor


def rainbow_losses(
    network: Network, target: Network, batch: Batch, noise: torch.Tensor, target_noise: torch.Tensor
) -> Losses:
    """How far the predicted distributions are from what followed; the best next action is the online network's
    choice, its distribution the target network's.
    """
    rows = torch.arange(len(batch.actions), device=batch.actions.device)
    with torch.no_grad():
        best = network.q_values(network(batch.next_obs, noise)).argmax(dim=1)
        following = target(batch.next_obs, target_noise)[rows, best].exp()
        wanted = project(following, batch.returns, batch.discounts, network.support)
    predicted = network(batch.obs, noise)[rows, batch.actions]
    cross_entropy = -(wanted * predicted).sum(dim=1)
    surprise = cross_entropy.detach() + torch.xlogy(wanted, wanted).sum(dim=1)
    q_values = predicted.detach().exp() @ network.support
    return Losses((batch.weights * cross_entropy).mean(), surprise, q_values.mean())


# ---------------------------------------------------------------- one run


class RainbowLearner:
    """The state of a run: act, store, and every few steps learn from what is stored."""

    def __init__(self, args: Args, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device) -> None:
        self.args, self.envs, self.device = args, envs, device
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        spaces = (args.env_id, envs.observation_space, envs.action_space)
        support = torch.linspace(args.v_min, args.v_max, args.n_atoms)
        self.agent = make_network(*spaces, support).to(device)
        self.target = make_network(*spaces, support).to(device)
        self.parameters, self._of_target = FlatParameters(self.agent), FlatParameters(self.target)
        self._move_target(1.0)
        self.optimizer = FlatAdam(self.parameters.block, eps=1.5e-4)
        self._losses = compiled(rainbow_losses, wanted=args.compile)
        self.replay = PrioritisedReplay(
            buffer, args.num_envs, n_step=args.n_step, gamma=args.gamma,
            alpha=args.prioritized_replay_alpha, epsilon=args.prioritized_replay_eps,
        )  # fmt: skip
        self.beta = LinearSchedule(args.prioritized_replay_beta, 1.0, args.total_timesteps)
        self.noise = draw_noise(self.rng, self.agent.noise_size)
        self.episodes = EpisodeTracker(args.num_envs)
        self.step = 0
        self.next_obs = np.zeros(0, dtype=np.uint8)
        self.probe = np.zeros(0, dtype=np.uint8)
        """Observations whose predicted returns are charted; empty before the first update"""

    def begin_episodes(self) -> None:
        self.next_obs = self.envs.reset(self.args.seed + self.step)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        return RainbowPolicy(self.agent).act(obs, None if rng is None else [rng] * len(obs))

    def learn(self, run: RunContext) -> None:
        """Go on to the next multiple of BLOCK_STEPS."""
        args = self.args
        until = min((self.step // BLOCK_STEPS + 1) * BLOCK_STEPS, args.total_timesteps)
        began_at, losses = self.step, None
        while self.step < until:
            before = self.step
            self._play_one_step(run)
            for _ in range(self.step // args.train_frequency - before // args.train_frequency):
                self.noise = draw_noise(self.rng, self.agent.noise_size)
                if self._has_enough():
                    losses = self.update()
            is_due = self.step // args.target_network_frequency > before // args.target_network_frequency
            if is_due and self._has_enough():
                self._move_target(args.tau)
        charts = {
            "charts/beta": self.beta(self.step),
            "charts/replay_size": len(self.replay.buffer),
            "charts/replay_bytes": self.replay.nbytes,
            "charts/SPS": run.steps_per_second(self.step),
        }
        if losses is not None:
            charts |= {"losses/td_loss": losses.total.item(), "losses/q_values": losses.q_values.item()}
            self._check_finite()
            if self.step // PROBE_STEPS > began_at // PROBE_STEPS:
                self._chart_probe(run)
        run.writer.add_scalars(charts, self.step)

    def _play_one_step(self, run: RunContext) -> None:
        obs = self.next_obs
        actions = best_actions(self.agent, obs, self.noise)
        step = self.envs.step(actions)
        self.replay.add(obs, actions, step.rewards, step.final_obs, step.terminated, step.ended)
        self.next_obs = step.obs
        self.step += self.args.num_envs
        for episode_return, length in self.episodes.add(step):
            run.writer.add_scalars(
                {"charts/episodic_return": episode_return, "charts/episodic_length": length}, self.step
            )

    def _has_enough(self) -> bool:
        """Tell whether learning may begin; a run that resumes without its replay buffer has to fill it first, too."""
        args, buffer = self.args, self.replay.buffer
        filled = len(buffer) >= min(args.learning_starts, buffer.capacity) and self.replay.ready
        return filled and self.step > args.learning_starts

    def update(self) -> Losses:
        """One step of gradient descent on a batch of the replay buffer, whose priorities it then renews."""
        args = self.args
        drawn = self.replay.sample(self.rng, args.batch_size, self.beta(self.step))
        noises = (self.noise, draw_noise(self.rng, self.agent.noise_size))
        if not self.probe.size:
            self.probe = drawn.obs[:PROBE_ROWS].copy()
        batch = Batch(*(torch.from_numpy(array).to(self.device) for array in drawn[:-1]))
        losses = self._losses(
            self.agent, self.target, batch, *(torch.from_numpy(noise).to(self.device) for noise in noises)
        )
        self.parameters.zero_gradients()
        losses.total.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step(args.learning_rate)
        surprise = losses.surprise.cpu().numpy()
        if not np.isfinite(surprise).all():
            self._stop_at_what_is_not_finite()
        self.replay.prioritise(drawn.rows, surprise)
        return Losses(losses.total.detach(), *losses[1:])

    def _move_target(self, share: float) -> None:
        self._of_target.block.data.lerp_(self.parameters.block.data, share)

    def _check_finite(self) -> None:
        """Before anything of this block is saved: a checkpoint of such weights would be worth nothing."""
        if not math.isfinite(self.parameters.block.data.sum()):
            self._stop_at_what_is_not_finite()

    def _stop_at_what_is_not_finite(self) -> NoReturn:
        raise TrainingStopped(f"loss or weights are not finite at step {self.step}: lower --learning-rate")

    @torch.inference_mode()
    def predicted_returns(self, obs: np.ndarray) -> np.ndarray:
        """The distribution of returns that the mean weights expect of the best actions, on average over these rows."""
        log_probs = self.agent(torch.from_numpy(obs).to(self.device), None)
        best = self.agent.q_values(log_probs).argmax(dim=1)
        return log_probs[torch.arange(len(best)), best].exp().mean(dim=0).cpu().numpy()

    def _chart_probe(self, run: RunContext) -> None:
        support = self.agent.support.cpu().numpy()
        run.writer.add_histogram("charts/predicted_returns", support, self.predicted_returns(self.probe), self.step)

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        self.agent.write_down(torch.from_numpy(self.noise).to(self.device))
        priorities, facts = self.replay.snapshot()
        own = {"noise": self.noise.copy(), "probe": self.probe.copy()}
        state = snapshot_of(self, {"adam": self.optimizer.arrays(), "priorities": priorities, "rainbow": own})
        target = {"target.block": self._of_target.block.data.cpu().numpy().copy()}
        return replace(
            state,
            arrays={**state.arrays, **target},
            values={**state.values, "priorities": facts},
            replay=self.replay.buffer,
        )

    def restore(self, state: TrainingState) -> str:
        exact = restore_into(self, state, RESUME_NEEDS)
        self._of_target.block.data.copy_(torch.from_numpy(state.arrays["target.block"].copy()))
        self.optimizer.restore(state.part("adam"))
        self.noise, self.probe = (state.arrays[f"rainbow.{name}"].copy() for name in ("noise", "probe"))
        state.restore_replay(self.replay.buffer)
        self.replay.restore(state.part("priorities"), state.values["priorities"])
        if not exact:
            self.replay.break_off()
        return "exact" if exact else NEW_EPISODES

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        theirs = weights.get("support")
        if theirs is not None and not np.array_equal(theirs, self.agent.support.cpu().numpy()):
            raise BadInput(
                f"{what} has {len(theirs)} atoms from {theirs[0]:g} to {theirs[-1]:g}; give the same "
                "--n-atoms, --v-min and --v-max"
            )
        load_weights(self.agent, weights, what=what)
        self._move_target(1.0)

    def model(self) -> Any:
        self.agent.write_down(torch.from_numpy(self.noise).to(self.device))
        return self.agent.state_dict()


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check_args(args, RULES)
    envs = run.make_envs(args)
    whole_steps = replace(args, buffer_size=args.buffer_size // args.num_envs * args.num_envs)
    learner = RainbowLearner(args, envs, make_replay(whole_steps, envs, folder=run.folder.root), device_for(args))
    return train_to_the_end(learner, run, total=args.total_timesteps)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("rainbow_atari", Args, train)
