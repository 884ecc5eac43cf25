"""PPO with random network distillation (Burda et al. 2018): an intrinsic reward for observations not seen before.

A network is trained to predict the features that another one, fixed and random, has for each new frame; its error is
the intrinsic reward. Two critics: one for extrinsic returns, one for intrinsic returns, which continue over the ends of
episodes. Under the flags and defaults of CleanRL's `ppo_rnd_envpool.py`.
Runs alone: python -m cleanrl_worker.algorithms ppo_rnd_envpool --env-id MontezumaRevenge-v5
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import nn

from cleanrl_worker.agents import categorical_log_probs
from cleanrl_worker.agents.atari import RNDAgent, RNDModel
from cleanrl_worker.algorithms.ppo import (
    PpoArgs,
    Rollout,
    explained_variance,
    generalized_advantages,
    loss_charts,
    normalized,
    policy_change,
    policy_loss,
    value_loss,
)
from cleanrl_worker.training.args import Range, check_args
from cleanrl_worker.training.checkpointing import TrainingState, Weights, load_weights
from cleanrl_worker.training.envs import EpisodeTracker, Step, VectorEnvs
from cleanrl_worker.training.envs.normalization import RunningMoments
from cleanrl_worker.training.optimizers import FlatAdam, FlatParameters, compiled
from cleanrl_worker.training.policies import Categorical, DistributionPolicy, atari_sizes, network_dtype
from cleanrl_worker.training.run import (
    Learner,
    RunContext,
    TrainResult,
    device_for,
    run_training_loop,
    whole_iterations,
)

# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class Args(PpoArgs):
    """Flags of `ppo_rnd_envpool`."""

    exp_name: str = "ppo_rnd_envpool"
    env_id: str = "MontezumaRevenge-v5"
    """Atari game, by envpool's name for it or by Gymnasium's"""
    env_backend: Literal["auto", "native", "sync", "async", "ale", "envpool"] = "envpool"
    total_timesteps: Annotated[int, Range(1)] = 2_000_000_000
    learning_rate: Annotated[float, Range(0)] = 1e-4
    num_envs: Annotated[int, Range(1)] = 128
    gamma: Annotated[float, Range(0, 1)] = 0.999
    """discount factor of the game's rewards"""
    clip_coef: Annotated[float, Range(0)] = 0.1
    clip_vloss: bool = True
    """clip the value loss of the game's rewards in the same way"""
    ent_coef: float = 0.001
    vf_coef: Annotated[float, Range(0)] = 0.5
    """weight of the value losses"""

    update_proportion: Annotated[float, Range(0, 1)] = 0.25
    """share of a minibatch that the predictor learns from"""
    int_coef: float = 1.0
    """weight of the intrinsic rewards in the advantages"""
    ext_coef: float = 2.0
    """weight of the game's rewards in the advantages"""
    int_gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor of the intrinsic rewards"""
    num_iterations_obs_norm_init: Annotated[int, Range(0)] = 50
    """rollouts of random actions before training, to measure the frames' mean and variance; not counted"""


FRAME_CLIP = 5.0
"""Normalized frames are clipped to ± this many standard deviations"""
CHUNK = 512
"""Frames whose intrinsic rewards are computed at once"""


# ---------------------------------------------------------------- network


class ActorOnly:
    """The actor without the critics, for acting."""

    def __init__(self, agent: RNDAgent, device: torch.device) -> None:
        self._agent, self._device = agent, device

    @torch.inference_mode()
    def policy(self, obs: np.ndarray) -> np.ndarray:
        """Return the logits of the actions."""
        return self._agent(torch.from_numpy(np.ascontiguousarray(obs)).to(self._device))[0].cpu().numpy()


# ---------------------------------------------------------------- the loss


class Batch(NamedTuple):
    """What an update learns from; one row per transition."""

    obs: torch.Tensor
    frames: torch.Tensor
    """the newest frame after the action"""
    actions: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    ext_returns: torch.Tensor
    int_returns: torch.Tensor
    ext_values: torch.Tensor


class Losses(NamedTuple):
    """The loss of a minibatch and its parts."""

    total: torch.Tensor
    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    forward: torch.Tensor
    old_approx_kl: torch.Tensor
    approx_kl: torch.Tensor
    clip_fraction: torch.Tensor


def rnd_losses(agent: RNDAgent, rnd: RNDModel, batch: Batch, distilled: torch.Tensor, args: Args) -> Losses:
    """Return PPO's loss with two critics, plus the predictor's error on the rows where `distilled` is 1.

    The batch's frames are already normalized.
    """
    logits, ext_values, int_values = agent(batch.obs)
    log_probs, entropies = categorical_log_probs(logits, batch.actions)
    advantages = normalized(batch.advantages) if args.norm_adv else batch.advantages
    log_ratio = log_probs - batch.log_probs
    policy = policy_loss(log_ratio, advantages, args.clip_coef)
    ext_loss = value_loss(ext_values, batch.ext_returns, batch.ext_values, args.clip_coef if args.clip_vloss else None)
    value = ext_loss + value_loss(int_values, batch.int_returns, int_values, None)
    errors = rnd(batch.frames).mean(dim=1)
    forward = (errors * distilled).sum() / distilled.sum().clamp(min=1)
    entropy = entropies.mean()
    total = policy - args.ent_coef * entropy + args.vf_coef * value + forward
    return Losses(total, policy, value, entropy, forward, *policy_change(log_ratio, args.clip_coef))


class IntrinsicRewardScale:
    """Divides intrinsic rewards by the standard deviation of their discounted returns."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self._gamma = gamma
        self._sums = np.zeros(num_envs)
        self._moments = RunningMoments(())

    def scaled(self, rewards: np.ndarray) -> np.ndarray:
        """Return the scaled rewards of one rollout, [time, environment]; returns continue over the ends of episodes."""
        sums = np.empty(rewards.shape)
        for t, reward in enumerate(rewards):
            self._sums = sums[t] = self._gamma * self._sums + reward
        self._moments.add(sums.reshape(-1))
        return (rewards / np.sqrt(self._moments.var)).astype(np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return copies of what a checkpoint needs."""
        return {**self._moments.arrays(), "sums": self._sums.copy()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Load what `arrays` returned."""
        self._moments.restore(arrays)
        self._sums = arrays["sums"].copy()


# ---------------------------------------------------------------- rollout, update, loop


class RndRollout(Rollout):
    """Buffers of one iteration, [time, environment], with frames and intrinsic values.

    `truncations` hold the extrinsic values of the last observations.
    """

    def __init__(self, num_steps: int, num_envs: int, observations: Space, distribution: Categorical) -> None:
        super().__init__(num_steps, num_envs, observations, distribution)
        self.frames = np.zeros((num_steps, num_envs, 1, *self.obs.shape[3:]), dtype=self.obs.dtype)
        """the newest frame after each action, before any reset"""
        self.ext_values, self.int_values = self.values, np.zeros_like(self.values)


class RndLearner(Learner):
    """The state of a run: first rollouts of random actions, then iterations of collect and update."""

    def __init__(self, args: Args, envs: VectorEnvs, device: torch.device, *, total: int) -> None:
        super().__init__(args, envs, device)
        self.total = total
        sizes = atari_sizes(args.exp_name, args.env_id, envs.observation_space, envs.action_space)
        self.agent = RNDAgent(*sizes).to(device)
        self.rnd = RNDModel().to(device)
        self.parameters = FlatParameters(nn.ModuleList([self.agent, self.rnd.predictor]))
        self.adam = FlatAdam(self.parameters.block, eps=1e-5)
        self.losses = compiled(rnd_losses, enabled=args.compile)
        self.distribution = Categorical(sizes[1])
        self.acting = ActorOnly(self.agent, device)
        self.rollout = RndRollout(args.num_steps, args.num_envs, envs.observation_space, self.distribution)
        self.frame_moments = RunningMoments(self.rollout.frames.shape[2:])
        self.reward_scale = IntrinsicRewardScale(args.num_envs, args.int_gamma)
        self.warmups = 0
        """Rollouts of random actions so far"""
        self.next_obs = np.zeros_like(self.rollout.obs[0])

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Return the best actions, or actions sampled with `rng`."""
        outputs = self.acting.policy(obs.astype(self.next_obs.dtype, copy=False))
        if rng is None:
            return self.distribution.best(outputs)
        return self.distribution.choose(outputs, self.distribution.noise(rng, outputs.shape[:1]))

    def learn(self, run: RunContext) -> None:
        """Run one iteration; before the first one, rollouts of random actions, one per call."""
        if self.warmups < self.args.num_iterations_obs_norm_init:
            self.warm_up(run)
            return
        learning_rate = self.learning_rate()
        self.collect(run)
        charts = self.update(*self.batch(), learning_rate)
        charts |= {"charts/learning_rate": learning_rate, "charts/SPS": run.steps_per_second(self.step)}
        run.writer.add_scalars(charts, self.step)

    def warm_up(self, run: RunContext) -> None:
        """Measure the frames' mean and variance over a rollout of random actions, without learning from it."""
        actions = self.rng.integers(self.distribution.outputs, size=self.rollout.rewards.shape)
        for t in range(self.args.num_steps):
            step = self.envs.step(actions[t])
            self.episodes.add(step)
            self.frame_moments.add(self._newest(step))
            self.next_obs = step.obs.astype(self.next_obs.dtype)
            run.report_alive()
        self.warmups += 1
        if self.warmups == self.args.num_iterations_obs_norm_init:
            running = {**self.episodes.snapshot(), "recent": [], "episodes": 0}
            self.episodes = EpisodeTracker(self.args.num_envs)
            self.episodes.restore(running, mid_episode=True)

    def _newest(self, step: Step) -> np.ndarray:
        return step.final_obs[:, -1:].astype(self.rollout.frames.dtype, copy=False)

    @torch.inference_mode()
    def _forward(self, obs: np.ndarray) -> list[np.ndarray]:
        return [part.cpu().numpy() for part in self.agent(torch.from_numpy(obs).to(self.device))]

    def collect(self, run: RunContext) -> None:
        """Play num_steps in every environment."""
        args, rollout = self.args, self.rollout
        noise = self.distribution.noise(self.rng, rollout.rewards.shape)
        rollout.truncations.clear()
        rollout.obs[0] = self.next_obs
        for t in range(args.num_steps):
            logits, rollout.ext_values[t], rollout.int_values[t] = self._forward(rollout.obs[t])
            actions = self.distribution.choose(logits, noise[t])
            step = self.envs.step(actions)
            self.step += args.num_envs
            rollout.outputs[t], rollout.actions[t], rollout.rewards[t] = logits, actions, step.rewards
            rollout.terminated[t], rollout.ended[t] = step.terminated, step.ended
            rollout.obs[t + 1], rollout.frames[t] = step.obs, self._newest(step)
            self.chart_episodes(step, run)
            cut = np.flatnonzero(step.truncated & ~step.terminated)
            if len(cut):
                rollout.truncations.append((t, cut, self._forward(step.final_obs[cut].astype(rollout.obs.dtype))[1]))
        _, rollout.ext_values[-1], rollout.int_values[-1] = self._forward(rollout.obs[-1])
        self.next_obs = rollout.obs[-1].copy()

    def _normalized_frames(self, frames: torch.Tensor) -> torch.Tensor:
        mean, deviation = (
            torch.from_numpy(array.astype(np.float32)).to(self.device)
            for array in (self.frame_moments.mean, np.sqrt(self.frame_moments.var))
        )
        return ((frames.float() - mean) / deviation).clamp(-FRAME_CLIP, FRAME_CLIP)

    @torch.inference_mode()
    def intrinsic_rewards(self) -> np.ndarray:
        """Return the predictor's error on each frame of the rollout, [time, environment]."""
        frames = self.rollout.frames
        found = [
            0.5 * self.rnd(self._normalized_frames(chunk.to(self.device))).sum(dim=1).cpu()
            for chunk in torch.from_numpy(frames.reshape(-1, *frames.shape[2:])).split(CHUNK)  # type: ignore[no-untyped-call]
        ]
        return torch.cat(found).numpy().reshape(self.rollout.rewards.shape)

    def batch(self) -> tuple[Batch, dict[str, float]]:
        """Return the rollout as rows, with the weighted sum of both advantages, and its charts."""
        args, rollout = self.args, self.rollout
        raw_int_rewards = self.intrinsic_rewards()
        for frames in rollout.frames:  # one time step at a time: all at once would take gigabytes
            self.frame_moments.add(frames)
        int_rewards = self.reward_scale.scaled(raw_int_rewards)

        ext_values, next_ext_values = rollout.ext_values[:-1], rollout.ext_values[1:].copy()
        for t, cut, last_values in rollout.truncations:
            next_ext_values[t, cut] = last_values
        ext_advantages = generalized_advantages(
            rollout.rewards, ext_values, next_ext_values, rollout.terminated, rollout.ended, args.gamma, args.gae_lambda
        )
        # Intrinsic returns continue after an episode ends, so that dying to see something new has a cost.
        int_values, never = rollout.int_values[:-1], np.zeros_like(rollout.ended)
        int_advantages = generalized_advantages(
            int_rewards, int_values, rollout.int_values[1:], never, never, args.int_gamma, args.gae_lambda
        )
        advantages = args.int_coef * int_advantages + args.ext_coef * ext_advantages
        log_probs = self.distribution.log_probs(rollout.outputs, rollout.actions)
        columns = (
            rollout.obs[:-1],
            rollout.frames,
            rollout.actions,
            log_probs,
            advantages.astype(np.float32),
            ext_advantages + ext_values,
            int_advantages + int_values,
            ext_values,
        )
        flat = (column.reshape(-1, *column.shape[2:]) for column in columns)
        charts = {
            "charts/curiosity_reward": float(raw_int_rewards.mean()),
            "losses/explained_variance": explained_variance(ext_values, ext_advantages + ext_values),
        }
        return Batch(*(torch.from_numpy(column) for column in flat)), charts

    def _minibatches(self, batch: Batch) -> Iterator[Batch]:
        """Yield the minibatches of one epoch; each is copied to the device when needed, to save its memory."""
        order = torch.from_numpy(self.rng.permutation(len(batch.actions)))
        for rows in order.reshape(self.args.num_minibatches, -1):
            minibatch = Batch(*(column[rows].to(self.device) for column in batch))
            yield minibatch._replace(frames=self._normalized_frames(minibatch.frames))

    def update(self, batch: Batch, charts: Mapping[str, float], learning_rate: float) -> dict[str, float]:
        """Run epochs of minibatch updates; return the charts."""
        args = self.args
        clip_fractions = []
        for _ in range(args.update_epochs):
            for minibatch in self._minibatches(batch):
                distilled = self.rng.random(len(minibatch.actions), dtype=np.float32) < args.update_proportion
                chosen = torch.from_numpy(distilled).to(self.device, torch.float32)
                losses = self.losses(self.agent, self.rnd, minibatch, chosen, args)
                self.parameters.backward(losses.total)
                self.parameters.clip_gradients(args.max_grad_norm)
                self.adam.step(learning_rate)
                clip_fractions.append(losses.clip_fraction)
            if args.target_kl is not None and losses.approx_kl.item() > args.target_kl:
                break
        self.parameters.refresh_host()
        self.stop_unless_finite(losses.total.item(), self.rollout.rewards)
        return {**charts, **loss_charts(losses, clip_fractions), "losses/fwd_loss": losses.forward.item()}

    # -- checkpoints

    @property
    def optimizers(self) -> Mapping[str, Any]:
        """Return the optimizers by their names in checkpoints."""
        return {"adam": self.adam}

    def own_arrays(self) -> dict[str, Mapping[str, np.ndarray]]:
        """Return copies of what a checkpoint needs besides the agent, by prefix."""
        return {
            **super().own_arrays(),
            "rnd": {name: tensor.cpu().numpy().copy() for name, tensor in self.rnd.state_dict().items()},
            "frames": self.frame_moments.arrays(),
            "curiosity": self.reward_scale.arrays(),
            "warmups": {"done": np.array(self.warmups)},
        }

    def restore(self, state: TrainingState) -> str:
        """Continue from a snapshot; return how the environments were restored."""
        environments = super().restore(state)
        load_weights(self.rnd, state.part("rnd"), what="the checkpoint")
        self.parameters.refresh_host()
        self.frame_moments.restore(state.part("frames"))
        self.reward_scale.restore(state.part("curiosity"))
        self.warmups = int(state.part("warmups")["done"])
        return environments


# ---------------------------------------------------------------- policy and run


NAME = Args.exp_name


def make_policy(
    env_id: str, observations: Space, actions: Space, weights: Weights, *, algo: str = NAME, normalizer: Any = None
) -> DistributionPolicy:
    """Return the policy with these weights; raise BadInput when they do not fit the environment."""
    frames, count = atari_sizes(algo, env_id, observations, actions)
    agent = RNDAgent(frames, count)
    load_weights(agent, weights, what="the policy")
    acting = ActorOnly(agent, torch.device("cpu"))
    return DistributionPolicy(acting, Categorical(count), network_dtype(observations), normalizer)


def train(args: Args, run: RunContext) -> TrainResult:
    """Train until the steps are used up, the return is reached or a stop is requested; then evaluate."""
    check_args(args)
    total = whole_iterations(args)
    learner = RndLearner(args, run.make_envs(args), device_for(args), total=total)
    return run_training_loop(learner, run, total=total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
