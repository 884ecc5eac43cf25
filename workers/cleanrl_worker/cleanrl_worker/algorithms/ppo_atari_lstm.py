"""PPO (Schulman et al. 2017) with an LSTM, for games of which one sees a single picture at a time.

Under the flags and defaults of CleanRL's `ppo_atari_lstm.py`. It differs from ppo.py in what a recurrent network asks
for: sequences stay whole, so minibatches are made of environments instead of steps; each begins with the state the
network had when the rollout began, and the state is emptied where an episode starts.
Runs alone: python -m cleanrl_worker.algorithms ppo_atari_lstm --env-id PongNoFrameskip-v4
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from cleanrl_worker.agents.layers import POLICY_GAIN, categorical_log_probs, orthogonal
from cleanrl_worker.agents.recurrent import HIDDEN, RecurrentAgent, State, no_memory
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.acting import DistributionPolicy, ObservationNormaliser, network_dtype
from cleanrl_worker.training.adam import FlatAdam
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.clipped_losses import explained_variance, normalised, policy_loss, value_loss
from cleanrl_worker.training.common_args import CommonArgs
from cleanrl_worker.training.compiling import compiled
from cleanrl_worker.training.distributions import Categorical
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs, is_image
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.q_policies import count_actions
from cleanrl_worker.training.remembering import RecurrentPlay, RecurrentPolicy
from cleanrl_worker.training.returns import generalised_advantages
from cleanrl_worker.training.rollout_state import NEW_EPISODES, restore_into, snapshot_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import load_weights


@dataclass(frozen=True)
class Args(CommonArgs):
    """Flags of `ppo_atari_lstm`."""

    exp_name: str = "ppo_atari_lstm"
    """the name of this experiment"""
    env_id: str = "BreakoutNoFrameskip-v4"
    """Atari game"""
    total_timesteps: Annotated[int, Range(1)] = 10_000_000
    """steps to train for, over all environments; whole iterations only"""
    learning_rate: Annotated[float, Range(0)] = 2.5e-4
    """Adam's step size (at the start, with anneal_lr)"""
    num_envs: Annotated[int, Range(1)] = 8
    """environments stepped in parallel"""
    num_steps: Annotated[int, Range(1)] = 128
    """steps per environment between two updates: as far back as the network learns to remember"""
    anneal_lr: bool = True
    """let the learning rate fall linearly to zero"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    gae_lambda: Annotated[float, Range(0, 1)] = 0.95
    """lambda of generalised advantage estimation"""
    num_minibatches: Annotated[int, Range(1)] = 4
    """minibatches per epoch, each of whole sequences; must divide num_envs"""
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
    (
        "num_envs * num_steps // num_minibatches >= 2",
        "a minibatch of {num_envs * num_steps // num_minibatches} step is too small: lower --num-minibatches",
    ),
)
"""What must hold between the flags; text, because a dry run reads it without importing torch"""

MEMORY = {
    "rollout": "num_envs * (num_steps + 1) * (obs_bytes + 4 * actions + 32)",
    "a minibatch and its gradients": "num_envs * num_steps // num_minibatches * (obs_bytes + 4 * obs_size + 280000)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "3 * 4 * (2007000 + 129 * (actions + 1)) + num_envs * (2 * obs_bytes + 65536)"
"""Bytes of one checkpoint: weights, Adam's two moments, the environments"""

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {"agent.actor.weight": ("actions", "128")}
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""


# ---------------------------------------------------------------- network


class Agent(RecurrentAgent):
    """An actor and a critic on top of what the LSTM remembers."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__(frames)
        self.actor = orthogonal(nn.Linear(HIDDEN, actions), POLICY_GAIN)
        self.critic = orthogonal(nn.Linear(HIDDEN, 1), 1.0)

    def forward(
        self, obs: torch.Tensor, state: State, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, State]:
        """Logits of the actions, values (one per row), and the state afterwards."""
        features, state = self.features(obs, state, starts)
        return self.actor(features), self.critic(features).squeeze(1), state

    def logits(self, obs: torch.Tensor, state: State, starts: torch.Tensor) -> tuple[torch.Tensor, State]:
        """For playing, where nobody asks for values."""
        features, state = self.features(obs, state, starts)
        return self.actor(features), state


def make_agent(algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> Agent:
    """The network for these spaces; BadInput when there is none."""
    count, shape = count_actions(algo, env_id, actions), observations.shape or ()
    if not is_image(observations) or shape[1:] != (84, 84):
        raise BadInput(f"{algo} needs pictures of 84 x 84 as observations; those of {env_id} have shape {shape}")
    return Agent(shape[0], count)


def make_policy(
    env_id: str,
    observations: gym.Space,
    actions: gym.Space,
    weights: Mapping[str, np.ndarray],
    *,
    algo: str = "ppo_atari_lstm",
    normaliser: ObservationNormaliser | None = None,
) -> RecurrentPolicy:
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    agent = make_agent(algo, env_id, observations, actions)
    load_weights(agent, weights, what="the policy")
    play = RecurrentPlay(agent.logits, HIDDEN, torch.device("cpu"))
    distribution = Categorical(count_actions(algo, env_id, actions))
    return RecurrentPolicy(DistributionPolicy(play, distribution, network_dtype(observations), normaliser), play)


# ---------------------------------------------------------------- the objective


class Sequences(NamedTuple):
    """What an update learns from, [time, environment]."""

    obs: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    values: torch.Tensor

    def of(self, environments: torch.Tensor) -> Sequences:
        """Some of the environments, as rows: all of them at the first moment, then at the second, and so on."""
        return Sequences(*(column[:, environments].flatten(0, 1) for column in self))


class Losses(NamedTuple):
    total: torch.Tensor
    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    old_approx_kl: torch.Tensor
    approx_kl: torch.Tensor
    clip_fraction: torch.Tensor


def recurrent_losses(agent: Agent, batch: Sequences, state: State, starts: torch.Tensor, args: Args) -> Losses:
    """PPO's objective for whole sequences; `state` is what was remembered when they began."""
    logits, values, _ = agent(batch.obs, state, starts)
    log_probs, entropies = categorical_log_probs(logits, batch.actions)
    advantages = normalised(batch.advantages) if args.norm_adv else batch.advantages
    policy = policy_loss(log_probs - batch.log_probs, advantages, args.clip_coef)
    value = value_loss(values, batch.returns, batch.values, args.clip_coef if args.clip_vloss else None)
    entropy = entropies.mean()
    total = policy.loss - args.ent_coef * entropy + args.vf_coef * value
    return Losses(total, policy.loss, value, entropy, policy.old_approx_kl, policy.approx_kl, policy.clip_fraction)


# ---------------------------------------------------------------- one run


class Rollout:
    """Buffers of one iteration, [time, environment]; made once and overwritten."""

    def __init__(self, num_steps: int, num_envs: int, observations: gym.Space, actions: int) -> None:
        shape = (num_steps, num_envs)
        self.obs = np.zeros((num_steps + 1, num_envs, *(observations.shape or ())), dtype=network_dtype(observations))
        self.starts = np.ones((num_steps + 1, num_envs), dtype=np.bool_)
        """where an episode begins with the observation of that moment"""
        self.logits = np.zeros((*shape, actions), dtype=np.float32)
        self.values = np.zeros((num_steps + 1, num_envs), dtype=np.float32)
        self.actions = np.zeros(shape, dtype=np.int64)
        self.rewards = np.zeros(shape, dtype=np.float32)
        self.terminated = np.zeros(shape, dtype=np.bool_)
        self.ended = np.zeros(shape, dtype=np.bool_)


class RecurrentPpoLearner:
    """The state of a run and the two halves of an iteration: collect, then update."""

    def __init__(self, args: Args, envs: VectorEnvs, device: torch.device, *, total: int) -> None:
        self.args, self.envs, self.device, self.total = args, envs, device, total
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        self.agent = make_agent(args.exp_name, args.env_id, envs.observation_space, envs.action_space).to(device)
        self.parameters = FlatParameters(self.agent)
        self.adam = FlatAdam(self.parameters.block, eps=1e-5)
        self.distribution = Categorical(count_actions(args.exp_name, args.env_id, envs.action_space))
        self.losses = compiled(recurrent_losses, wanted=args.compile)
        self.play = RecurrentPlay(self.agent.logits, HIDDEN, device)
        self.rollout = Rollout(args.num_steps, args.num_envs, envs.observation_space, self.distribution.outputs)
        self.episodes = EpisodeTracker(args.num_envs)
        self.step = 0
        self.next_obs = np.zeros_like(self.rollout.obs[0])
        self.next_starts = np.ones(args.num_envs, dtype=np.bool_)
        self.memory = no_memory(args.num_envs, device)

    def begin_episodes(self) -> None:
        self.next_obs = self.envs.reset(self.args.seed + self.step).astype(self.next_obs.dtype)
        self.next_starts[:] = True

    def follow(self, episodes: Sequence[int]) -> None:
        self.play.follow(episodes)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        outputs = self.play(obs.astype(self.next_obs.dtype, copy=False))
        if rng is None:
            return self.distribution.best(outputs)
        return self.distribution.choose(outputs, self.distribution.noise(rng, outputs.shape[:1]))

    def learn(self, run: RunContext) -> None:
        """One iteration."""
        learning_rate = self.args.learning_rate
        if self.args.anneal_lr:
            learning_rate *= 1 - self.step / self.total
        before = self.memory
        charts = self.update(self.collect(run), before, learning_rate)
        charts |= {"charts/learning_rate": learning_rate, "charts/SPS": run.steps_per_second(self.step)}
        run.writer.add_scalars(charts, self.step)

    @torch.inference_mode()
    def _look(self, obs: np.ndarray, state: State, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, State]:
        """Logits and values of one moment, and what is remembered after it."""
        seen = torch.from_numpy(obs).to(self.device)
        logits, values, state = self.agent(seen, state, torch.from_numpy(starts[None]))
        return logits.cpu().numpy(), values.cpu().numpy(), state

    def collect(self, run: RunContext) -> Sequences:
        """Play num_steps in every environment."""
        args, rollout = self.args, self.rollout
        noise = self.distribution.noise(self.rng, rollout.rewards.shape)
        beyond: list[tuple[int, np.ndarray, np.ndarray]] = []
        rollout.obs[0], rollout.starts[0] = self.next_obs, self.next_starts
        for t in range(args.num_steps):
            logits, rollout.values[t], self.memory = self._look(rollout.obs[t], self.memory, rollout.starts[t])
            actions = self.distribution.choose(logits, noise[t])
            step = self.envs.step(actions)
            self.step += args.num_envs
            rollout.logits[t], rollout.actions[t], rollout.rewards[t] = logits, actions, step.rewards
            rollout.terminated[t], rollout.ended[t] = step.terminated, step.ended
            rollout.obs[t + 1], rollout.starts[t + 1] = step.obs, step.ended
            for episode_return, length in self.episodes.add(step):
                run.writer.add_scalars(
                    {"charts/episodic_return": episode_return, "charts/episodic_length": length}, self.step
                )
            cut = np.flatnonzero(step.truncated & ~step.terminated)
            if len(cut):  # worth what lies beyond the limit, seen with what is remembered of the episode
                hidden, cell = (part[:, cut] for part in self.memory)
                last_obs = step.final_obs[cut].astype(rollout.obs.dtype)
                beyond.append((t, cut, self._look(last_obs, (hidden, cell), np.zeros(len(cut), dtype=np.bool_))[1]))
        rollout.values[-1] = self._look(rollout.obs[-1], self.memory, rollout.starts[-1])[1]
        self.next_obs, self.next_starts = rollout.obs[-1].copy(), rollout.starts[-1].copy()
        values, next_values = rollout.values[:-1], rollout.values[1:].copy()
        for t, cut, last_values in beyond:
            next_values[t, cut] = last_values
        advantages = generalised_advantages(
            rollout.rewards, values, next_values, rollout.terminated, rollout.ended, args.gamma, args.gae_lambda
        )
        log_probs = self.distribution.log_probs(rollout.logits, rollout.actions)
        columns = (rollout.obs[:-1], rollout.actions, log_probs, advantages, advantages + values, values)
        return Sequences(*(torch.from_numpy(column).to(self.device) for column in columns))

    def update(self, batch: Sequences, before: State, learning_rate: float) -> dict[str, float]:
        """Several epochs of descent, a few environments at a time; return what the charts show."""
        args = self.args
        starts = torch.from_numpy(self.rollout.starts[:-1].copy())
        clip_fractions = []
        for _ in range(args.update_epochs):
            order = torch.from_numpy(self.rng.permutation(args.num_envs))
            for chosen in order.reshape(args.num_minibatches, -1):
                on_device = chosen.to(self.device)
                state = (before[0][:, on_device].clone(), before[1][:, on_device].clone())
                losses = self.losses(self.agent, batch.of(on_device), state, starts[:, chosen], args)
                self.parameters.zero_gradients()
                losses.total.backward()  # type: ignore[no-untyped-call]
                self.parameters.clip_gradients(args.max_grad_norm)
                self.adam.step(learning_rate)
                clip_fractions.append(losses.clip_fraction)
            if args.target_kl is not None and losses.approx_kl.item() > args.target_kl:
                break
        self.parameters.refresh_host()
        # Before anything of this iteration is saved: a checkpoint of such weights would be worth nothing.
        if not (math.isfinite(losses.total.item()) and math.isfinite(self.parameters.block.data.sum().item())):
            cause = "lower --learning-rate"
            if not np.isfinite(self.rollout.rewards).all():
                cause = "the environment gave rewards that are not finite"
            raise TrainingStopped(f"loss or weights are not finite at step {self.step}: {cause}")
        returns, values = batch.returns.cpu().numpy(), batch.values.cpu().numpy()
        return {
            "losses/value_loss": losses.value.item(),
            "losses/policy_loss": losses.policy.item(),
            "losses/entropy": losses.entropy.item(),
            "losses/old_approx_kl": losses.old_approx_kl.item(),
            "losses/approx_kl": losses.approx_kl.item(),
            "losses/clipfrac": torch.stack(clip_fractions).mean().item(),
            "losses/explained_variance": explained_variance(values, returns),
        }

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        hidden, cell = (part.cpu().numpy().copy() for part in self.memory)
        memory = {"hidden": hidden, "cell": cell, "starts": self.next_starts.copy()}
        return snapshot_of(self, {"adam": self.adam.arrays(), "memory": memory})

    def restore(self, state: TrainingState) -> str:
        exact = restore_into(self, state, RESUME_NEEDS)
        self.adam.restore(state.part("adam"))
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
    learner = RecurrentPpoLearner(args, run.make_envs(args), device_for(args), total=total)
    return train_to_the_end(learner, run, total=total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("ppo_atari_lstm", Args, train)
