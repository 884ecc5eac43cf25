"""PPO with random network distillation (Burda et al. 2018): the agent is paid for seeing what it could not foresee.

A network is trained to predict what another one, fixed and random, says of each new picture; where it errs, the picture
is new. Two critics: one for the game's rewards, one for curiosity, whose returns do not end with an episode. Under the
flags and defaults of CleanRL's `ppo_rnd_envpool.py`.
Runs alone: python -m cleanrl_worker.algorithms ppo_rnd_envpool --env-id MontezumaRevenge-v5
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from cleanrl_worker.agents.curious import Agent, RNDModel
from cleanrl_worker.agents.layers import categorical_log_probs
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.acting import DistributionPolicy, ObservationNormaliser, network_dtype
from cleanrl_worker.training.adam import FlatAdam
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.clipped_losses import explained_variance, normalised, policy_loss, value_loss
from cleanrl_worker.training.common_args import CommonArgs
from cleanrl_worker.training.compiling import compiled
from cleanrl_worker.training.distributions import Categorical
from cleanrl_worker.training.envs import EpisodeTracker, Step, VectorEnvs, is_image
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.normalisation import RunningMoments
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.q_policies import count_actions
from cleanrl_worker.training.returns import generalised_advantages
from cleanrl_worker.training.rollout_state import NEW_EPISODES, restore_into, snapshot_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import load_weights


@dataclass(frozen=True)
class Args(CommonArgs):
    """Flags of `ppo_rnd_envpool`."""

    exp_name: str = "ppo_rnd_envpool"
    """the name of this experiment"""
    env_id: str = "MontezumaRevenge-v5"
    """Atari game, by envpool's name for it or by Gymnasium's"""
    env_backend: Literal["auto", "native", "sync", "async", "ale", "envpool"] = "envpool"
    total_timesteps: Annotated[int, Range(1)] = 2_000_000_000
    """steps to train for, over all environments; whole iterations only"""
    learning_rate: Annotated[float, Range(0)] = 1e-4
    """Adam's step size (at the start, with anneal_lr)"""
    num_envs: Annotated[int, Range(1)] = 128
    """environments stepped in parallel"""
    num_steps: Annotated[int, Range(1)] = 128
    """steps per environment between two updates"""
    anneal_lr: bool = True
    """let the learning rate fall linearly to zero"""
    gamma: Annotated[float, Range(0, 1)] = 0.999
    """discount factor of the game's rewards"""
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
    """clip the value loss of the game's rewards in the same way"""
    ent_coef: float = 0.001
    """weight of the entropy bonus"""
    vf_coef: Annotated[float, Range(0)] = 0.5
    """weight of the value losses"""
    max_grad_norm: Annotated[float, Range(0)] = 0.5
    """gradients are scaled down to this norm"""
    target_kl: Annotated[float | None, Range(0)] = None
    """stop the epochs of an update early beyond this KL divergence"""

    update_proportion: Annotated[float, Range(0, 1)] = 0.25
    """share of a minibatch that the predictor learns from"""
    int_coef: float = 1.0
    """weight of curiosity in the advantages"""
    ext_coef: float = 2.0
    """weight of the game's rewards in the advantages"""
    int_gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor of curiosity"""
    num_iterations_obs_norm_init: Annotated[int, Range(0)] = 50
    """rollouts of random actions before training, from which the pictures' mean and spread are known; not counted"""

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
    (
        "num_envs * num_steps // num_minibatches >= 2",
        "a minibatch of {num_envs * num_steps // num_minibatches} step is too small: lower --num-minibatches",
    ),
)
"""What must hold between the flags; text, because a dry run reads it without importing torch"""

MEMORY = {
    "rollout": "num_envs * (num_steps + 1) * (obs_bytes + 7056 + 4 * actions + 48)",
    "a minibatch and its gradients": "num_envs * num_steps // num_minibatches * (obs_bytes + 4 * obs_size + 700000)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "3 * 4 * (3600000 + 449 * actions) + 6800000 + 16 * 7056 + num_envs * (2 * obs_bytes + 65536)"
"""Bytes of one checkpoint: agent and predictor with Adam's two moments, the random network, the environments"""

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {"agent.actor.2.weight": ("actions", "448")}
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""

FRAME_CLIP = 5.0
"""Pictures are clipped to so many standard deviations before the two networks see them"""
CHUNK = 512
"""Pictures judged at once after a rollout"""


# ---------------------------------------------------------------- playing


def make_agent(algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> Agent:
    """The network for these spaces; BadInput when there is none."""
    count, shape = count_actions(algo, env_id, actions), observations.shape or ()
    if not is_image(observations) or shape[1:] != (84, 84):
        raise BadInput(f"{algo} needs stacked frames of 84 x 84 as observations; those of {env_id} have shape {shape}")
    return Agent(shape[0], count)


class Playing:
    """The actor alone, for policies."""

    def __init__(self, agent: Agent, device: torch.device) -> None:
        self._agent, self._device = agent, device

    @torch.inference_mode()
    def policy(self, obs: np.ndarray) -> np.ndarray:
        return self._agent(torch.from_numpy(np.ascontiguousarray(obs)).to(self._device))[0].cpu().numpy()


def make_policy(
    env_id: str,
    observations: gym.Space,
    actions: gym.Space,
    weights: Mapping[str, np.ndarray],
    *,
    algo: str = "ppo_rnd_envpool",
    normaliser: ObservationNormaliser | None = None,
) -> DistributionPolicy:
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    agent = make_agent(algo, env_id, observations, actions)
    load_weights(agent, weights, what="the policy")
    distribution = Categorical(count_actions(algo, env_id, actions))
    return DistributionPolicy(
        Playing(agent, torch.device("cpu")), distribution, network_dtype(observations), normaliser
    )


# ---------------------------------------------------------------- arithmetic


class Batch(NamedTuple):
    """What an update learns from; one row per transition."""

    obs: torch.Tensor
    frames: torch.Tensor
    """the newest picture after the action"""
    actions: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    ext_returns: torch.Tensor
    int_returns: torch.Tensor
    ext_values: torch.Tensor


class Losses(NamedTuple):
    total: torch.Tensor
    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    forward: torch.Tensor
    old_approx_kl: torch.Tensor
    approx_kl: torch.Tensor
    clip_fraction: torch.Tensor


def rnd_losses(agent: Agent, rnd: RNDModel, batch: Batch, distilled: torch.Tensor, args: Args) -> Losses:
    """PPO's objective with two critics, and the predictor's error on the rows that are `distilled` (0 or 1).

    The batch's frames are normalised already.
    """
    logits, ext_values, int_values = agent(batch.obs)
    log_probs, entropies = categorical_log_probs(logits, batch.actions)
    advantages = normalised(batch.advantages) if args.norm_adv else batch.advantages
    policy = policy_loss(log_probs - batch.log_probs, advantages, args.clip_coef)
    ext_loss = value_loss(ext_values, batch.ext_returns, batch.ext_values, args.clip_coef if args.clip_vloss else None)
    value = ext_loss + value_loss(int_values, batch.int_returns, int_values, None)
    errors = rnd(batch.frames).mean(dim=1)
    forward = (errors * distilled).sum() / distilled.sum().clamp(min=1)
    entropy = entropies.mean()
    total = policy.loss - args.ent_coef * entropy + args.vf_coef * value + forward
    return Losses(
        total, policy.loss, value, entropy, forward, policy.old_approx_kl, policy.approx_kl, policy.clip_fraction
    )


class Curiosity:
    """Scales intrinsic rewards by the spread of their discounted sums, so that they mean the same all along."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self._gamma = gamma
        self._sums = np.zeros(num_envs)
        self._moments = RunningMoments(())

    def scaled(self, rewards: np.ndarray) -> np.ndarray:
        """Of one rollout, [time, environment]; episodes do not matter."""
        sums = np.empty(rewards.shape)
        for t, reward in enumerate(rewards):
            self._sums = sums[t] = self._gamma * self._sums + reward
        self._moments.add(sums.reshape(-1))
        return (rewards / np.sqrt(self._moments.var)).astype(np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        return {**self._moments.arrays(), "sums": self._sums.copy()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._moments.restore(arrays)
        self._sums = arrays["sums"].copy()


# ---------------------------------------------------------------- one run


class Rollout:
    """Buffers of one iteration, [time, environment]; made once and overwritten."""

    def __init__(self, num_steps: int, num_envs: int, observations: gym.Space, actions: int) -> None:
        shape, of_obs = (num_steps, num_envs), observations.shape or ()
        self.obs = np.zeros((num_steps + 1, num_envs, *of_obs), dtype=network_dtype(observations))
        self.frames = np.zeros((*shape, 1, *of_obs[1:]), dtype=self.obs.dtype)
        """the newest picture after each action, before any reset"""
        self.logits = np.zeros((*shape, actions), dtype=np.float32)
        self.ext_values = np.zeros((num_steps + 1, num_envs), dtype=np.float32)
        self.int_values = np.zeros((num_steps + 1, num_envs), dtype=np.float32)
        self.actions = np.zeros(shape, dtype=np.int64)
        self.rewards = np.zeros(shape, dtype=np.float32)
        self.terminated = np.zeros(shape, dtype=np.bool_)
        self.ended = np.zeros(shape, dtype=np.bool_)


class RndLearner:
    """The state of a run: first some rollouts at random, then iterations of collect and update."""

    def __init__(self, args: Args, envs: VectorEnvs, device: torch.device, *, total: int) -> None:
        self.args, self.envs, self.device, self.total = args, envs, device, total
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        self.agent = make_agent(args.exp_name, args.env_id, envs.observation_space, envs.action_space).to(device)
        self.rnd = RNDModel().to(device)
        self.parameters = FlatParameters(nn.ModuleList([self.agent, self.rnd.predictor]))
        self.adam = FlatAdam(self.parameters.block, eps=1e-5)
        self.losses = compiled(rnd_losses, wanted=args.compile)
        self.distribution = Categorical(count_actions(args.exp_name, args.env_id, envs.action_space))
        self.playing = Playing(self.agent, device)
        self.rollout = Rollout(args.num_steps, args.num_envs, envs.observation_space, self.distribution.outputs)
        self.frame_moments = RunningMoments(self.rollout.frames.shape[2:])
        self.curiosity = Curiosity(args.num_envs, args.int_gamma)
        self.warmups = 0
        """rollouts of random actions so far"""
        self.episodes = EpisodeTracker(args.num_envs)
        self.step = 0
        self.next_obs = np.zeros_like(self.rollout.obs[0])

    def begin_episodes(self) -> None:
        self.next_obs = self.envs.reset(self.args.seed + self.step).astype(self.next_obs.dtype)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        outputs = self.playing.policy(obs.astype(self.next_obs.dtype, copy=False))
        if rng is None:
            return self.distribution.best(outputs)
        return self.distribution.choose(outputs, self.distribution.noise(rng, outputs.shape[:1]))

    def learn(self, run: RunContext) -> None:
        """One iteration; before the first of them, one rollout at random a time."""
        if self.warmups < self.args.num_iterations_obs_norm_init:
            self.warm_up(run)
            return
        learning_rate = self.args.learning_rate
        if self.args.anneal_lr:
            learning_rate *= 1 - self.step / self.total
        self.collect(run)
        charts = self.update(*self.batch(), learning_rate)
        charts |= {"charts/learning_rate": learning_rate, "charts/SPS": run.steps_per_second(self.step)}
        run.writer.add_scalars(charts, self.step)

    def warm_up(self, run: RunContext) -> None:
        """Look at what random actions lead to; nothing of it is learned from or counted."""
        actions = self.rng.integers(self.distribution.outputs, size=self.rollout.rewards.shape)
        for t in range(self.args.num_steps):
            step = self.envs.step(actions[t])
            self.episodes.add(step)
            self.frame_moments.add(self._newest(step))
            self.next_obs = step.obs.astype(self.next_obs.dtype)
            run.say_alive()
        self.warmups += 1
        if self.warmups == self.args.num_iterations_obs_norm_init:
            running = {**self.episodes.snapshot(), "recent": [], "episodes": 0}
            self.episodes = EpisodeTracker(self.args.num_envs)
            self.episodes.restore(running, mid_episode=True)

    def _newest(self, step: Step) -> np.ndarray:
        return step.final_obs[:, -1:].astype(self.rollout.frames.dtype, copy=False)

    @torch.inference_mode()
    def _look(self, obs: np.ndarray) -> list[np.ndarray]:
        return [part.cpu().numpy() for part in self.agent(torch.from_numpy(obs).to(self.device))]

    def collect(self, run: RunContext) -> None:
        """Play num_steps in every environment."""
        args, rollout = self.args, self.rollout
        noise = self.distribution.noise(self.rng, rollout.rewards.shape)
        self._beyond: list[tuple[int, np.ndarray, np.ndarray]] = []
        rollout.obs[0] = self.next_obs
        for t in range(args.num_steps):
            logits, rollout.ext_values[t], rollout.int_values[t] = self._look(rollout.obs[t])
            actions = self.distribution.choose(logits, noise[t])
            step = self.envs.step(actions)
            self.step += args.num_envs
            rollout.logits[t], rollout.actions[t], rollout.rewards[t] = logits, actions, step.rewards
            rollout.terminated[t], rollout.ended[t] = step.terminated, step.ended
            rollout.obs[t + 1], rollout.frames[t] = step.obs, self._newest(step)
            for episode_return, length in self.episodes.add(step):
                run.writer.add_scalars(
                    {"charts/episodic_return": episode_return, "charts/episodic_length": length}, self.step
                )
            cut = np.flatnonzero(step.truncated & ~step.terminated)
            if len(cut):
                self._beyond.append((t, cut, self._look(step.final_obs[cut].astype(rollout.obs.dtype))[1]))
        _, rollout.ext_values[-1], rollout.int_values[-1] = self._look(rollout.obs[-1])
        self.next_obs = rollout.obs[-1].copy()

    def _normalised_frames(self, frames: torch.Tensor) -> torch.Tensor:
        mean, deviation = (
            torch.from_numpy(array.astype(np.float32)).to(self.device)
            for array in (self.frame_moments.mean, np.sqrt(self.frame_moments.var))
        )
        return ((frames.float() - mean) / deviation).clamp(-FRAME_CLIP, FRAME_CLIP)

    @torch.inference_mode()
    def surprise(self) -> np.ndarray:
        """How wrong the predictor was about each picture of the rollout, [time, environment]."""
        frames = self.rollout.frames
        found = [
            0.5 * self.rnd(self._normalised_frames(chunk.to(self.device))).sum(dim=1).cpu()
            for chunk in torch.from_numpy(frames.reshape(-1, *frames.shape[2:])).split(CHUNK)  # type: ignore[no-untyped-call]
        ]
        return torch.cat(found).numpy().reshape(self.rollout.rewards.shape)

    def batch(self) -> tuple[Batch, dict[str, float]]:
        """The rollout as rows, with advantages of both kinds put together; and what the charts show of it."""
        args, rollout = self.args, self.rollout
        surprise = self.surprise()
        for frames in rollout.frames:  # a moment at a time: all at once would take gigabytes
            self.frame_moments.add(frames)
        int_rewards = self.curiosity.scaled(surprise)

        ext_values, next_ext_values = rollout.ext_values[:-1], rollout.ext_values[1:].copy()
        for t, cut, last_values in self._beyond:
            next_ext_values[t, cut] = last_values
        ext_advantages = generalised_advantages(
            rollout.rewards, ext_values, next_ext_values, rollout.terminated, rollout.ended, args.gamma, args.gae_lambda
        )
        # Curiosity does not end with an episode: to die in order to see something new is not free.
        int_values, never = rollout.int_values[:-1], np.zeros_like(rollout.ended)
        int_advantages = generalised_advantages(
            int_rewards, int_values, rollout.int_values[1:], never, never, args.int_gamma, args.gae_lambda
        )
        advantages = args.int_coef * int_advantages + args.ext_coef * ext_advantages
        log_probs = self.distribution.log_probs(rollout.logits, rollout.actions)
        columns = (
            rollout.obs[:-1], rollout.frames, rollout.actions, log_probs, advantages.astype(np.float32),
            ext_advantages + ext_values, int_advantages + int_values, ext_values,
        )  # fmt: skip
        flat = (column.reshape(-1, *column.shape[2:]) for column in columns)
        charts = {
            "charts/curiosity_reward": float(surprise.mean()),
            "losses/explained_variance": explained_variance(ext_values, ext_advantages + ext_values),
        }
        return Batch(*(torch.from_numpy(column) for column in flat)), charts

    def _minibatches(self, batch: Batch) -> Iterator[Batch]:
        """One epoch; a minibatch at a time goes to the device, for pictures fill it quickly."""
        order = torch.from_numpy(self.rng.permutation(len(batch.actions)))
        for rows in order.reshape(self.args.num_minibatches, -1):
            minibatch = Batch(*(column[rows].to(self.device) for column in batch))
            yield minibatch._replace(frames=self._normalised_frames(minibatch.frames))

    def update(self, batch: Batch, charts: Mapping[str, float], learning_rate: float) -> dict[str, float]:
        """Several epochs of minibatch descent; return what the charts show."""
        args = self.args
        clip_fractions = []
        for _ in range(args.update_epochs):
            for minibatch in self._minibatches(batch):
                distilled = self.rng.random(len(minibatch.actions), dtype=np.float32) < args.update_proportion
                chosen = torch.from_numpy(distilled).to(self.device, torch.float32)
                losses = self.losses(self.agent, self.rnd, minibatch, chosen, args)
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
        return {
            **charts,
            "losses/value_loss": losses.value.item(),
            "losses/policy_loss": losses.policy.item(),
            "losses/entropy": losses.entropy.item(),
            "losses/fwd_loss": losses.forward.item(),
            "losses/old_approx_kl": losses.old_approx_kl.item(),
            "losses/approx_kl": losses.approx_kl.item(),
            "losses/clipfrac": torch.stack(clip_fractions).mean().item(),
        }

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        rnd = {name: tensor.cpu().numpy().copy() for name, tensor in self.rnd.state_dict().items()}
        parts = {
            "adam": self.adam.arrays(), "rnd": rnd, "frames": self.frame_moments.arrays(),
            "curiosity": self.curiosity.arrays(), "warmups": {"done": np.array(self.warmups)},
        }  # fmt: skip
        return snapshot_of(self, parts)

    def restore(self, state: TrainingState) -> str:
        exact = restore_into(self, state, RESUME_NEEDS)
        load_weights(self.rnd, state.part("rnd"), what="the checkpoint")
        self.parameters.refresh_host()
        self.adam.restore(state.part("adam"))
        self.frame_moments.restore(state.part("frames"))
        self.curiosity.restore(state.part("curiosity"))
        self.warmups = int(state.part("warmups")["done"])
        return "exact" if exact else NEW_EPISODES

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        """The agent's; what surprises it is found anew."""
        load_weights(self.agent, weights, what=what)
        self.parameters.refresh_host()

    def model(self) -> Any:
        return self.agent.state_dict()


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check_args(args, RULES)
    batch_size = args.num_envs * args.num_steps
    total = args.total_timesteps // batch_size * batch_size
    learner = RndLearner(args, run.make_envs(args), device_for(args), total=total)
    return train_to_the_end(learner, run, total=total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("ppo_rnd_envpool", Args, train)
