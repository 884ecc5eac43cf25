"""PPO for two-player Atari by self-play (Schulman et al. 2017; one network is both players, Terry et al. 2020).

Each game gives two rows of every batch, one for each player; what a player sees says which of the two it is. Flags and
defaults are those of CleanRL's file. Evaluation plays the first player against one who presses buttons at random.
Runs alone: python -m cleanrl_worker.algorithms ppo_pettingzoo_ma_atari --env-id pong_v3
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch.nn import functional

from cleanrl_worker.agents.atari import AtariAgent
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.acting import DistributionPolicy, ObservationNormaliser, TorchActing, network_dtype
from cleanrl_worker.training.adam import FlatAdam
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.common_args import CommonArgs
from cleanrl_worker.training.compiling import compiled
from cleanrl_worker.training.distributions import Categorical
from cleanrl_worker.training.envs import EpisodeTracker, Step, VectorEnvs
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.returns import generalised_advantages
from cleanrl_worker.training.rollout_state import NEW_EPISODES, restore_into, snapshot_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import load_weights


@dataclass(frozen=True)
class Args(CommonArgs):
    """Flags; literals only, because forms and `--describe` read this class without running it."""

    exp_name: str = "ppo_pettingzoo_ma_atari"
    env_id: str = "pong_v3"
    """PettingZoo's name of a two-player Atari game"""
    total_timesteps: Annotated[int, Range(1)] = 20_000_000
    """steps to train for, over all players; whole iterations only"""
    learning_rate: Annotated[float, Range(0)] = 2.5e-4
    """Adam's step size (at the start, with anneal_lr)"""
    num_envs: Annotated[int, Range(2)] = 16
    """players, two for each game that is played in parallel"""
    num_steps: Annotated[int, Range(1)] = 128
    """steps per player between two updates"""
    anneal_lr: bool = True
    """let the learning rate fall linearly to zero"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    gae_lambda: Annotated[float, Range(0, 1)] = 0.95
    """lambda of generalised advantage estimation"""
    num_minibatches: Annotated[int, Range(1)] = 4
    """minibatches per epoch; must divide num_envs × num_steps"""
    update_epochs: Annotated[int, Range(1)] = 4
    """passes over each batch"""
    norm_adv: bool = True
    """normalise advantages per minibatch"""
    clip_coef: Annotated[float, Range(0)] = 0.1
    """how far the policy may move before its objective is clipped"""
    clip_vloss: bool = True
    """clip the value loss in the same way"""
    ent_coef: float = 0.01
    """weight of the entropy bonus"""
    vf_coef: Annotated[float, Range(0)] = 0.5
    """weight of the value loss"""
    max_grad_norm: Annotated[float, Range(0)] = 0.5
    """gradients are scaled down to this norm"""
    target_kl: Annotated[float | None, Range(0)] = None
    """stop the epochs of an update early beyond this KL divergence"""


RULES = (
    ("num_envs % 2 == 0", "--num-envs {num_envs}: each game has two players, so the number must be even"),
    (
        "num_envs * num_steps % num_minibatches == 0",
        "--num-minibatches {num_minibatches} does not divide the batch of {num_envs * num_steps} steps "
        "(--num-envs {num_envs} × --num-steps {num_steps})",
    ),
    (
        "num_envs * num_steps // num_minibatches >= 2",
        "a minibatch of {num_envs * num_steps // num_minibatches} step is too small: lower --num-minibatches",
    ),
)
"""What must hold between the flags; text, because a dry run reads it without importing torch"""

MEMORY = {
    "rollout and its shuffled copy": "2 * num_envs * (num_steps + 1) * (obs_bytes + 4 * actions + 24)",
    "a minibatch and its gradients": "num_envs * num_steps // num_minibatches * (4 * obs_size + 250000)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "3 * 4 * (1688000 + 513 * (actions + 1)) + num_envs * (2 * obs_bytes + 65536)"
"""Bytes of one checkpoint: weights, Adam's two moments, the games"""

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {"agent.actor.weight": ("actions", "512")}
"""Shapes of the checkpoint's arrays"""


# ---------------------------------------------------------------- network


class PlayersAgent(AtariAgent):
    """The Atari network, with the channels last; the planes that say which player one is are channels, too."""

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        return super().features(obs.permute(0, 3, 1, 2))


def agent_for(env_id: str, observations: gym.Space, actions: gym.Space, algo: str) -> PlayersAgent:
    """Build the network for these spaces; BadInput when it cannot play them."""
    shape = observations.shape or ()
    if not isinstance(actions, gym.spaces.Discrete) or len(shape) != 3 or shape[:2] != (84, 84):
        raise BadInput(f"{algo} plays two-player Atari games; {env_id} has observations of shape {shape}")
    return PlayersAgent(int(actions.n), shape[2])


def make_policy(
    env_id: str, observations: gym.Space, actions: gym.Space, weights: Mapping[str, np.ndarray],
    *, algo: str = "ppo_pettingzoo_ma_atari", normaliser: ObservationNormaliser | None = None,
) -> DistributionPolicy:  # fmt: skip
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    agent = agent_for(env_id, observations, actions, algo)
    load_weights(agent, weights, what="the policy")
    acting, distribution = TorchActing(agent, torch.device("cpu")), Categorical(agent.actions)
    return DistributionPolicy(acting, distribution, network_dtype(observations), normaliser)


# ---------------------------------------------------------------- the objective


class Batch(NamedTuple):
    """What an update learns from; one row per transition."""

    obs: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    values: torch.Tensor


class Losses(NamedTuple):
    total: torch.Tensor
    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    old_approx_kl: torch.Tensor
    approx_kl: torch.Tensor
    clip_fraction: torch.Tensor


def ppo_losses(agent: torch.nn.Module, batch: Batch, args: Args) -> Losses:
    """The clipped surrogate objective, the value loss and the entropy bonus of one minibatch."""
    logits, predictions = agent(batch.obs)
    log_probs = functional.log_softmax(logits, dim=1)
    entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
    log_ratio = log_probs.gather(1, batch.actions.unsqueeze(1)).squeeze(1) - batch.log_probs
    ratio = log_ratio.exp()
    advantages = batch.advantages
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy = -torch.minimum(advantages * ratio, advantages * clipped_ratio).mean()

    values = predictions.squeeze(1)
    squared_error = (values - batch.returns).square()
    if args.clip_vloss:
        clipped = batch.values + (values - batch.values).clamp(-args.clip_coef, args.clip_coef)
        squared_error = torch.maximum(squared_error, (clipped - batch.returns).square())
    value = 0.5 * squared_error.mean()

    total = policy - args.ent_coef * entropy + args.vf_coef * value
    with torch.no_grad():
        old_approx_kl = -log_ratio.mean()
        approx_kl = (ratio - 1 - log_ratio).mean()
        clip_fraction = ((ratio - 1).abs() > args.clip_coef).float().mean()
    return Losses(total, policy, value, entropy, old_approx_kl, approx_kl, clip_fraction)


# ---------------------------------------------------------------- one run


class Rollout:
    """Buffers of one iteration, [time, player]; made once and overwritten."""

    def __init__(self, num_steps: int, num_envs: int, observations: gym.Space, actions: int) -> None:
        shape = (num_steps, num_envs)
        self.obs = np.zeros((num_steps + 1, num_envs, *(observations.shape or ())), dtype=network_dtype(observations))
        self.logits = np.zeros((*shape, actions), dtype=np.float32)
        self.actions = np.zeros(shape, dtype=np.int64)
        self.values = np.zeros((num_steps + 1, num_envs), dtype=np.float32)
        self.rewards = np.zeros(shape, dtype=np.float32)
        self.terminated = np.zeros(shape, dtype=np.bool_)
        self.ended = np.zeros(shape, dtype=np.bool_)
        self.truncations: list[tuple[int, np.ndarray, np.ndarray]] = []
        """(time, players, their last observations) where a time limit ended games"""


class SelfPlayLearner:
    """The state of a run and the two halves of an iteration: collect, then update."""

    def __init__(self, args: Args, envs: VectorEnvs, device: torch.device) -> None:
        self.args, self.envs, self.device = args, envs, device
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        self.agent = agent_for(args.env_id, envs.observation_space, envs.action_space, args.exp_name).to(device)
        self.parameters = FlatParameters(self.agent)
        self.adam = FlatAdam(self.parameters.block, eps=1e-5)
        self.acting = TorchActing(self.agent, device)
        self.losses = compiled(ppo_losses, wanted=args.compile)
        self.distribution = Categorical(self.agent.actions)
        self.rollout = Rollout(args.num_steps, args.num_envs, envs.observation_space, self.agent.actions)
        self.next_obs = np.zeros_like(self.rollout.obs[0])
        self.episodes = EpisodeTracker(args.num_envs)
        self.step = 0
        batch_size = args.num_envs * args.num_steps
        self.total = args.total_timesteps // batch_size * batch_size

    def begin_episodes(self) -> None:
        self.next_obs = self.envs.reset(self.args.seed + self.step).astype(self.next_obs.dtype)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        logits = self.acting.policy(obs.astype(self.next_obs.dtype, copy=False))
        if rng is None:
            return self.distribution.best(logits)
        return self.distribution.choose(logits, self.distribution.noise(rng, logits.shape[:1]))

    def learn(self, run: RunContext) -> None:
        learning_rate = self.args.learning_rate
        if self.args.anneal_lr:
            learning_rate *= 1 - self.step / self.total
        self.collect(run)
        charts = self.update(self.batch(), learning_rate)
        charts |= {"charts/learning_rate": learning_rate, "charts/SPS": run.steps_per_second(self.step)}
        run.writer.add_scalars(charts, self.step)

    def collect(self, run: RunContext) -> None:
        """Play num_steps in every game, both players with the same network."""
        args, rollout = self.args, self.rollout
        noise = self.distribution.noise(self.rng, rollout.rewards.shape)
        rollout.truncations.clear()
        rollout.obs[0] = self.next_obs
        for t in range(args.num_steps):
            logits, rollout.values[t] = self.acting.both(rollout.obs[t])
            actions = self.distribution.choose(logits, noise[t])
            step = self.envs.step(actions)
            self.step += args.num_envs
            rollout.logits[t] = logits
            rollout.actions[t] = actions
            rollout.rewards[t] = step.rewards
            rollout.terminated[t] = step.terminated
            rollout.ended[t] = step.ended
            rollout.obs[t + 1] = step.obs
            self._chart_games(step, run)
            if step.truncated.any():
                cut = np.flatnonzero(step.truncated & ~step.terminated)
                rollout.truncations.append((t, cut, step.final_obs[cut].astype(rollout.obs.dtype)))
        self.next_obs = rollout.obs[-1].copy()

    def _chart_games(self, step: Step, run: RunContext) -> None:
        """Both players' returns under names of their own, as CleanRL has them: what one wins the other may lose."""
        finished = self.episodes.add(step)
        for row, (episode_return, length) in zip(np.flatnonzero(step.ended), finished, strict=True):
            figures = {f"charts/episodic_return-player{row % 2}": episode_return}
            if row % 2 == 0:
                figures |= {"charts/episodic_return": episode_return, "charts/episodic_length": float(length)}
            run.writer.add_scalars(figures, self.step)

    def batch(self) -> Batch:
        """The rollout as rows, with advantages, returns and the log-probabilities the actions had."""
        args, rollout = self.args, self.rollout
        rollout.values[-1] = self.acting.values(rollout.obs[-1])
        values, next_values = rollout.values[:-1], rollout.values[1:].copy()
        for t, cut, last_obs in rollout.truncations:
            next_values[t, cut] = self.acting.values(last_obs)
        advantages = generalised_advantages(
            rollout.rewards, values, next_values, rollout.terminated, rollout.ended, args.gamma, args.gae_lambda
        )
        log_probs = self.distribution.log_probs(rollout.logits, rollout.actions)
        columns = (rollout.actions, log_probs, advantages, advantages + values, values)
        obs = rollout.obs[:-1].reshape(-1, *rollout.obs.shape[2:])
        rows = (obs, *(column.reshape(-1) for column in columns))
        return Batch(*(torch.from_numpy(array).to(self.device) for array in rows))

    def update(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        """Several epochs of minibatch descent; return what the charts show."""
        args = self.args
        count = len(batch.actions)
        size = count // args.num_minibatches
        clip_fractions = []
        for _ in range(args.update_epochs):
            order = torch.from_numpy(self.rng.permutation(count)).to(self.device)
            shuffled = [column[order] for column in batch]
            for start in range(0, count, size):
                losses = self.losses(self.agent, Batch(*(column[start : start + size] for column in shuffled)), args)
                self.parameters.zero_gradients()
                losses.total.backward()  # type: ignore[no-untyped-call]
                self.parameters.clip_gradients(args.max_grad_norm)
                self.adam.step(learning_rate)
                clip_fractions.append(losses.clip_fraction)
            if args.target_kl is not None and losses.approx_kl.item() > args.target_kl:
                break
        self.parameters.refresh_host()
        # Before anything of this iteration is saved: a checkpoint of such weights would be worth nothing.
        if not math.isfinite(losses.total.item() + float(self.parameters.block.data.sum())):
            raise TrainingStopped(f"loss or weights are not finite at step {self.step}: lower --learning-rate")
        variance = batch.returns.var(correction=0)
        explained = 1 - (batch.returns - batch.values).var(correction=0) / variance
        return {
            "losses/value_loss": losses.value.item(),
            "losses/policy_loss": losses.policy.item(),
            "losses/entropy": losses.entropy.item(),
            "losses/old_approx_kl": losses.old_approx_kl.item(),
            "losses/approx_kl": losses.approx_kl.item(),
            "losses/clipfrac": torch.stack(clip_fractions).mean().item(),
            "losses/explained_variance": explained.item() if variance > 0 else math.nan,
        }

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        """Everything learning depends on, between two iterations."""
        return snapshot_of(self, {"adam": self.adam.arrays()})

    def restore(self, state: TrainingState) -> str:
        """Go on from a snapshot; return how the games were brought back."""
        exact = restore_into(self, state, RESUME_NEEDS)
        self.adam.restore(state.part("adam"))
        return "exact" if exact else NEW_EPISODES

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        load_weights(self.agent, weights, what=what)
        self.parameters.refresh_host()

    def model(self) -> Mapping[str, torch.Tensor]:
        return self.agent.state_dict()


def check(args: Args) -> None:
    """Refuse values that no run can be made of."""
    check_args(args, RULES)


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check(args)
    device = device_for(args)
    learner = SelfPlayLearner(args, run.make_envs(args), device)
    return train_to_the_end(learner, run, total=learner.total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("ppo_pettingzoo_ma_atari", Args, train)
