"""Phasic policy gradient (Cobbe et al. 2020): a phase of PPO, then a phase in which the values teach the features.

Sharing features between policy and values helps, training them together hurts. So in the policy phase the critic's
gradient stays out of the features; after `n_iteration` rollouts, the auxiliary phase trains a second critic through
them on everything the phase has seen, while the policy is held where it is (behaviour cloning).
Under the flags and defaults of CleanRL's `ppg_procgen.py`; a training is a number of whole phases.
Runs alone: python -m cleanrl_worker.algorithms ppg_procgen --env-id starpilot
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import as_floats
from cleanrl_worker.agents.impala import FEATURES, channels_first, impala_trunk
from cleanrl_worker.agents.layers import categorical_log_probs
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.acting import DistributionPolicy, ObservationNormaliser, TorchActing, network_dtype
from cleanrl_worker.training.adam import FlatAdam
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.clipped_losses import explained_variance, normalised, policy_loss, value_loss
from cleanrl_worker.training.common_args import CommonArgs
from cleanrl_worker.training.compiling import compiled
from cleanrl_worker.training.distributions import Categorical
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs, is_image
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.normalisation import NormalisedEnvs
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.q_policies import count_actions
from cleanrl_worker.training.returns import generalised_advantages
from cleanrl_worker.training.rollout_state import NEW_EPISODES, restore_into, snapshot_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import load_weights


@dataclass(frozen=True)
class Args(CommonArgs):
    """Flags of `ppg_procgen`."""

    exp_name: str = "ppg_procgen"
    """the name of this experiment"""
    env_id: str = "starpilot"
    """Procgen game"""
    total_timesteps: Annotated[int, Range(1)] = 25_000_000
    """steps to train for, over all environments; whole phases only"""
    learning_rate: Annotated[float, Range(0)] = 5e-4
    """Adam's step size (at the start, with anneal_lr)"""
    num_envs: Annotated[int, Range(1)] = 64
    """environments stepped in parallel"""
    num_steps: Annotated[int, Range(1)] = 256
    """steps per environment between two updates"""
    anneal_lr: bool = False
    """let the learning rate fall linearly to zero"""
    gamma: Annotated[float, Range(0, 1)] = 0.999
    """discount factor"""
    gae_lambda: Annotated[float, Range(0, 1)] = 0.95
    """lambda of generalised advantage estimation"""
    num_minibatches: Annotated[int, Range(1)] = 8
    """minibatches per epoch; must divide num_envs × num_steps"""
    adv_norm_fullbatch: bool = True
    """normalise advantages over the whole batch (otherwise they are not normalised)"""
    clip_coef: Annotated[float, Range(0)] = 0.2
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

    n_iteration: Annotated[int, Range(1)] = 32
    """rollouts of a policy phase, after which the auxiliary phase follows"""
    e_policy: Annotated[int, Range(1)] = 1
    """passes over each rollout in the policy phase"""
    v_value: Annotated[int, Range(1, 1)] = 1
    """passes for the values in the policy phase: together with the policy's, so 1 is all there is"""
    e_auxiliary: Annotated[int, Range(0)] = 6
    """passes over all rollouts of the phase in the auxiliary phase"""
    beta_clone: Annotated[float, Range(0)] = 1.0
    """weight of what holds the policy in place in the auxiliary phase"""
    num_aux_rollouts: Annotated[int, Range(1)] = 4
    """sequences of num_steps in a minibatch of the auxiliary phase"""
    n_aux_grad_accum: Annotated[int, Range(1)] = 1
    """minibatches of the auxiliary phase whose gradients are added up before a step"""

    batch_size: int = 0
    """computed: num_envs × num_steps (a value given here is ignored)"""
    minibatch_size: int = 0
    """computed: batch size / num_minibatches (a value given here is ignored)"""
    num_iterations: int = 0
    """computed: total_timesteps / batch size (a value given here is ignored)"""
    num_phases: int = 0
    """computed: total_timesteps / (batch size × n_iteration) (a value given here is ignored)"""
    aux_batch_rollouts: int = 0
    """computed: num_envs × n_iteration (a value given here is ignored)"""


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

NOTES = (
    (
        "total_timesteps >= num_envs * num_steps * n_iteration",
        "--total-timesteps {total_timesteps} is less than one phase of {num_envs * num_steps * n_iteration} steps "
        "(--num-envs {num_envs} × --num-steps {num_steps} × --n-iteration {n_iteration}): nothing will be trained",
    ),
    (
        "num_envs * n_iteration % (num_aux_rollouts * n_aux_grad_accum) == 0",
        "the {num_envs * n_iteration} sequences of a phase (--num-envs × --n-iteration) are not a multiple of "
        "{num_aux_rollouts * n_aux_grad_accum} (--num-aux-rollouts × --n-aux-grad-accum): the last minibatch of a pass "
        "is smaller, and gradients that no step follows count in the next pass",
    ),
)
"""What a run is told about its flags and can be run with"""

MEMORY = {
    "rollouts of a phase": "(n_iteration + 1) * num_envs * num_steps * (obs_bytes + 4 * actions + 32)",
    "a minibatch and its gradients": "num_envs * num_steps // num_minibatches * (4 * obs_size + 1800000)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "3 * 4 * (622000 + 257 * (actions + 2)) + (n_iteration - 1) * num_envs * num_steps * (obs_bytes + 4)"
"""Bytes of one checkpoint, at most: weights, Adam's two moments, and within a phase the rollouts it has had so far"""

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs", "num_steps", "n_iteration")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {"agent.actor.weight": ("actions", "256")}
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""


# ---------------------------------------------------------------- network


def scaled_rows(layer: Any, scale: float) -> Any:
    """Initialise a layer: every output's weights have this norm, no bias."""
    with torch.no_grad():
        norms = layer.weight.flatten(1).norm(dim=1)
        layer.weight.mul_((scale / norms).view(-1, *(1,) * (layer.weight.dim() - 1)))
        layer.bias.zero_()
    return layer


class Agent(nn.Module):
    """A policy and two critics on IMPALA's features; parameter names and shapes are those of CleanRL's models."""

    def __init__(self, actions: int, image: tuple[int, ...] = (64, 64, 3)) -> None:
        super().__init__()
        height, width, channels = image
        self.network = nn.Sequential(*impala_trunk((channels, height, width), initialise=scaled_rows))
        self.actor = scaled_rows(nn.Linear(FEATURES, actions), 0.1)
        self.critic = scaled_rows(nn.Linear(FEATURES, 1), 0.1)
        self.aux_critic = scaled_rows(nn.Linear(FEATURES, 1), 0.1)

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.network(as_floats(channels_first(obs)))
        return features

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the actions, and values [batch, 1] that leave the features alone."""
        features = self.features(obs)
        return self.actor(features), self.critic(features.detach())

    def with_auxiliary(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits, values, and the auxiliary critic's values, which do teach the features (one per row)."""
        features = self.features(obs)
        values, auxiliary = self.critic(features.detach()), self.aux_critic(features)
        return self.actor(features), values.squeeze(1), auxiliary.squeeze(1)


def make_agent(algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> Agent:
    """The network for these spaces; BadInput when there is none."""
    count, shape = count_actions(algo, env_id, actions), observations.shape or ()
    if not is_image(observations) or shape[-1] > 4 or min(shape[:2]) < 8:
        raise BadInput(
            f"{algo} needs pictures (height, width, channels) as observations; those of {env_id} have shape {shape}"
        )
    return Agent(count, shape)


def make_policy(
    env_id: str,
    observations: gym.Space,
    actions: gym.Space,
    weights: Mapping[str, np.ndarray],
    *,
    algo: str = "ppg_procgen",
    normaliser: ObservationNormaliser | None = None,
) -> DistributionPolicy:
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    agent = make_agent(algo, env_id, observations, actions)
    load_weights(agent, weights, what="the policy")
    distribution = Categorical(count_actions(algo, env_id, actions))
    acting = TorchActing(agent, torch.device("cpu"))
    return DistributionPolicy(acting, distribution, network_dtype(observations), normaliser)


# ---------------------------------------------------------------- arithmetic


class Batch(NamedTuple):
    """What the policy phase learns from; one row per transition."""

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


def policy_phase_losses(agent: Agent, batch: Batch, args: Args) -> Losses:
    """PPO's objective; the critic learns from features as they are."""
    logits, values = agent(batch.obs)
    log_probs, entropies = categorical_log_probs(logits, batch.actions)
    policy = policy_loss(log_probs - batch.log_probs, batch.advantages, args.clip_coef)
    value = value_loss(values.squeeze(1), batch.returns, batch.values, args.clip_coef if args.clip_vloss else None)
    entropy = entropies.mean()
    total = policy.loss - args.ent_coef * entropy + args.vf_coef * value
    return Losses(total, policy.loss, value, entropy, policy.old_approx_kl, policy.approx_kl, policy.clip_fraction)


class AuxiliaryLosses(NamedTuple):
    total: torch.Tensor
    auxiliary_value: torch.Tensor
    clone: torch.Tensor
    value: torch.Tensor


def auxiliary_losses(
    agent: Agent, obs: torch.Tensor, returns: torch.Tensor, old_logits: torch.Tensor, beta_clone: float
) -> AuxiliaryLosses:
    """Both critics' errors, and how far the policy has left the one it was when the phase began."""
    logits, values, auxiliary = agent.with_auxiliary(obs)
    old_log_probs = functional.log_softmax(old_logits, dim=1)
    distance = old_log_probs - functional.log_softmax(logits, dim=1)
    clone = (old_log_probs.exp() * distance).sum(dim=1).mean()
    auxiliary_value = 0.5 * (auxiliary - returns).square().mean()
    value = 0.5 * (values - returns).square().mean()
    return AuxiliaryLosses(auxiliary_value + beta_clone * clone + value, auxiliary_value, clone, value)


class Kept(NamedTuple):
    """What the auxiliary phase needs of a rollout; never written to again, so that checkpoints need no copy."""

    obs: np.ndarray
    returns: np.ndarray


# ---------------------------------------------------------------- one run


class PpgLearner:
    """The state of a run: iterations of PPO, and after every `n_iteration` of them the auxiliary phase."""

    def __init__(self, args: Args, envs: NormalisedEnvs, device: torch.device, *, total: int) -> None:
        self.args, self.device, self.total = args, device, total
        self.envs: VectorEnvs = envs
        self._normalised = envs
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        self.agent = make_agent(args.exp_name, args.env_id, envs.observation_space, envs.action_space).to(device)
        self.parameters = FlatParameters(self.agent)
        self.adam = FlatAdam(self.parameters.block)
        self.losses = compiled(policy_phase_losses, wanted=args.compile)
        self.auxiliary_losses = compiled(auxiliary_losses, wanted=args.compile)
        self.distribution = Categorical(count_actions(args.exp_name, args.env_id, envs.action_space))
        self.acting = TorchActing(self.agent, device)
        self.kept: list[Kept] = []
        """the rollouts of this phase"""
        self.episodes = EpisodeTracker(args.num_envs)
        self.step = 0
        self._dtype = network_dtype(envs.observation_space)
        self.next_obs = np.zeros((args.num_envs, *(envs.observation_space.shape or ())), dtype=self._dtype)
        self._rewound: TrainingState | None = None

    def begin_episodes(self) -> None:
        self.next_obs = self.envs.reset(self.args.seed + self.step).astype(self._dtype)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        outputs = self.acting.policy(obs.astype(self._dtype, copy=False))
        if rng is None:
            return self.distribution.best(outputs)
        return self.distribution.choose(outputs, self.distribution.noise(rng, outputs.shape[:1]))

    def learn(self, run: RunContext) -> None:
        """One iteration of the policy phase; with the last of them goes the auxiliary phase.

        That one can take long. Asked to stop on the way, the run goes back to where this iteration began: what
        auxiliary phases have done so far is not worth a form of checkpoint of its own.
        """
        learning_rate = self.args.learning_rate
        if self.args.anneal_lr:
            learning_rate *= 1 - self.step / self.total
        is_last = len(self.kept) + 1 == self.args.n_iteration
        before = self.snapshot() if is_last else None
        batch, rewards = self.collect(run)
        charts = self.update(batch, rewards, learning_rate)
        if before is not None:
            found = self.auxiliary_phase(run, before, learning_rate)
            if found is None:
                self.step, self._rewound = before.step, before
                return
            charts |= found
        charts |= {"charts/learning_rate": learning_rate, "charts/SPS": run.steps_per_second(self.step)}
        run.writer.add_scalars(charts, self.step)

    # -- policy phase

    def collect(self, run: RunContext) -> tuple[Batch, np.ndarray]:
        """Play num_steps in every environment; return the rollout as rows, and its rewards."""
        args, shape = self.args, (self.args.num_steps, self.args.num_envs)
        noise = self.distribution.noise(self.rng, shape)
        obs = np.empty((*shape, *self.next_obs.shape[1:]), dtype=self._dtype)
        logits = np.empty((*shape, self.distribution.outputs), dtype=np.float32)
        values = np.empty((args.num_steps + 1, args.num_envs), dtype=np.float32)
        actions, rewards = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32)
        terminated, ended = np.empty(shape, dtype=np.bool_), np.empty(shape, dtype=np.bool_)
        beyond: list[tuple[int, np.ndarray, np.ndarray]] = []
        for t in range(args.num_steps):
            obs[t] = self.next_obs
            logits[t], values[t] = self.acting.both(self.next_obs)
            actions[t] = self.distribution.choose(logits[t], noise[t])
            step = self.envs.step(actions[t])
            self.step += args.num_envs
            rewards[t], terminated[t], ended[t] = step.rewards, step.terminated, step.ended
            self.next_obs = step.obs.astype(self._dtype, copy=False)
            for episode_return, length in self.episodes.add(step):
                run.writer.add_scalars(
                    {"charts/episodic_return": episode_return, "charts/episodic_length": length}, self.step
                )
            cut = np.flatnonzero(step.truncated & ~step.terminated)
            if len(cut):
                beyond.append((t, cut, self.acting.values(step.final_obs[cut].astype(self._dtype))))
        values[-1] = self.acting.values(self.next_obs)
        next_values = values[1:].copy()
        for t, cut, last_values in beyond:
            next_values[t, cut] = last_values
        advantages = generalised_advantages(
            rewards, values[:-1], next_values, terminated, ended, args.gamma, args.gae_lambda
        )
        returns = advantages + values[:-1]
        self.kept.append(Kept(obs, returns))
        log_probs = self.distribution.log_probs(logits, actions)
        columns = (obs, actions, log_probs, advantages, returns, values[:-1])
        rows = (torch.from_numpy(column.reshape(-1, *column.shape[2:])).to(self.device) for column in columns)
        batch = Batch(*rows)
        if args.adv_norm_fullbatch:
            batch = batch._replace(advantages=normalised(batch.advantages))
        return batch, rewards

    def update(self, batch: Batch, rewards: np.ndarray, learning_rate: float) -> dict[str, float]:
        """Minibatch descent on one rollout; return what the charts show."""
        args = self.args
        clip_fractions = []
        for _ in range(args.e_policy):
            order = torch.from_numpy(self.rng.permutation(len(batch.actions))).to(self.device)
            for rows in order.reshape(args.num_minibatches, -1):
                losses = self.losses(self.agent, Batch(*(column[rows] for column in batch)), args)
                self.parameters.zero_gradients()
                losses.total.backward()  # type: ignore[no-untyped-call]
                self._descend(learning_rate)
                clip_fractions.append(losses.clip_fraction)
            if args.target_kl is not None and losses.approx_kl.item() > args.target_kl:
                break
        self._check_finite(losses.total, rewards)
        return {
            "losses/value_loss": losses.value.item(),
            "losses/policy_loss": losses.policy.item(),
            "losses/entropy": losses.entropy.item(),
            "losses/old_approx_kl": losses.old_approx_kl.item(),
            "losses/approx_kl": losses.approx_kl.item(),
            "losses/clipfrac": torch.stack(clip_fractions).mean().item(),
            "losses/explained_variance": explained_variance(batch.values.cpu().numpy(), batch.returns.cpu().numpy()),
        }

    def _descend(self, learning_rate: float) -> None:
        self.parameters.clip_gradients(self.args.max_grad_norm)
        self.adam.step(learning_rate)

    def _check_finite(self, loss: torch.Tensor, rewards: np.ndarray) -> None:
        """Before anything of this iteration is saved: a checkpoint of such weights would be worth nothing."""
        self.parameters.refresh_host()
        if not (math.isfinite(loss.item()) and math.isfinite(self.parameters.block.data.sum().item())):
            cause = "lower --learning-rate"
            if not np.isfinite(rewards).all():
                cause = "the environment gave rewards that are not finite"
            raise TrainingStopped(f"loss or weights are not finite at step {self.step}: {cause}")

    # -- auxiliary phase

    def auxiliary_phase(self, run: RunContext, before: TrainingState, learning_rate: float) -> dict[str, float] | None:
        """Distil the returns of the whole phase into the features; None when asked to stop on the way."""
        args = self.args
        old_logits = []
        for rollout in self.kept:
            if self._must_stop(run, before):
                return None
            old_logits.append(np.stack([self.acting.policy(obs) for obs in rollout.obs]))
        sequences = len(self.kept) * args.num_envs
        self.parameters.zero_gradients()
        charts: dict[str, float] = {}
        for _ in range(args.e_auxiliary):
            order = self.rng.permutation(sequences)
            for number, start in enumerate(range(0, sequences, args.num_aux_rollouts), start=1):
                if self._must_stop(run, before):
                    return None
                part = order[start : start + args.num_aux_rollouts]
                obs, returns, logits = self._sequences(part, old_logits)
                losses = self.auxiliary_losses(self.agent, obs, returns, logits, args.beta_clone)
                (losses.total / args.n_aux_grad_accum).backward()  # type: ignore[no-untyped-call]
                if number % args.n_aux_grad_accum == 0:
                    self._descend(learning_rate)
                    self.parameters.zero_gradients()
            charts = {
                "losses/aux/aux_value_loss": losses.auxiliary_value.item(),
                "losses/aux/kl_loss": losses.clone.item(),
                "losses/aux/real_value_loss": losses.value.item(),
            }
            self._check_finite(losses.total, self.kept[-1].returns)
        self.kept = []
        return charts

    def _must_stop(self, run: RunContext, before: TrainingState) -> bool:
        run.say_alive()
        return run.should_stop(before.step, lambda: before)

    def _sequences(self, chosen: np.ndarray, old_logits: list[np.ndarray]) -> list[torch.Tensor]:
        """Pictures, returns and the logits of the policy as it was, of some of the phase's sequences, as rows."""
        places = [divmod(int(number), self.args.num_envs) for number in chosen]
        columns = (
            [self.kept[iteration].obs[:, env] for iteration, env in places],
            [self.kept[iteration].returns[:, env] for iteration, env in places],
            [old_logits[iteration][:, env] for iteration, env in places],
        )
        return [torch.from_numpy(np.concatenate(column)).to(self.device) for column in columns]

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        if self._rewound is not None:
            return self._rewound
        kept = {f"obs.{index}": rollout.obs for index, rollout in enumerate(self.kept)}
        kept |= {f"returns.{index}": rollout.returns for index, rollout in enumerate(self.kept)}
        state = snapshot_of(self, {"adam": self.adam.arrays(), "kept": kept})
        return replace(state, arrays={**state.arrays, **self._normalised.norm_arrays()})

    def restore(self, state: TrainingState) -> str:
        self._normalised.take_norm(state.part("obs_norm"), state.part("return_norm"))
        exact = restore_into(self, state, RESUME_NEEDS)
        self.adam.restore(state.part("adam"))
        kept = state.part("kept")
        count = sum(name.startswith("obs.") for name in kept)
        self.kept = [Kept(kept[f"obs.{index}"], kept[f"returns.{index}"]) for index in range(count)]
        return "exact" if exact else NEW_EPISODES

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        load_weights(self.agent, weights, what=what)
        self.parameters.refresh_host()

    def model(self) -> Any:
        return self.agent.state_dict()


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check_args(args, RULES)
    phase = args.num_envs * args.num_steps * args.n_iteration
    total = args.total_timesteps // phase * phase
    envs = NormalisedEnvs(run.make_envs(args), args.gamma, observations=False, zero_after_end=True)
    learner = PpgLearner(args, envs, device_for(args), total=total)
    return train_to_the_end(learner, run, total=total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("ppg_procgen", Args, train)
