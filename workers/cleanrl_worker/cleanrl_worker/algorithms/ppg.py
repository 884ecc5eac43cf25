"""Phasic policy gradient (Cobbe et al. 2020): a policy phase of PPO, then an auxiliary phase for the shared features.

Sharing features between policy and values helps, training them together hurts. In the policy phase the critic's
gradient does not reach the features; after `n_iteration` rollouts, the auxiliary phase trains features and a second
critic on all of them, while a cloning loss keeps the policy as it is.
Under the flags and defaults of CleanRL's `ppg_procgen.py`; training consists of whole phases.
Runs alone: python -m cleanrl_worker.algorithms ppg_procgen --env-id starpilot
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium import Space
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents import DiscreteAgent
from cleanrl_worker.agents.atari import as_floats
from cleanrl_worker.agents.impala import FEATURES, channels_first, impala_trunk
from cleanrl_worker.algorithms.ppo import (
    Batch,
    explained_variance,
    generalized_advantages,
    loss_charts,
    normalized,
    ppo_losses,
)
from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.args import CommonArgs, Range, check_args
from cleanrl_worker.training.checkpointing import TrainingState, Weights, load_weights
from cleanrl_worker.training.envs import NormalizedEnvs, is_image
from cleanrl_worker.training.optimizers import FlatAdam, FlatParameters, compiled
from cleanrl_worker.training.policies import Categorical, DistributionPolicy, TorchActing, count_actions, network_dtype
from cleanrl_worker.training.run import Learner, RunContext, TrainResult, device_for, run_training_loop

# ---------------------------------------------------------------- flags


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
    """lambda of generalized advantage estimation"""
    num_minibatches: Annotated[int, Range(1)] = 8
    """minibatches per epoch; must divide num_envs × num_steps"""
    adv_norm_fullbatch: bool = True
    """normalize advantages over the whole batch (otherwise they are not normalized)"""
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
    """rollouts of a policy phase, before the auxiliary phase"""
    e_policy: Annotated[int, Range(1)] = 1
    """passes over each rollout in the policy phase"""
    v_value: Annotated[int, Range(1, 1)] = 1
    """passes for the values in the policy phase: they are trained together with the policy, so only 1"""
    e_auxiliary: Annotated[int, Range(0)] = 6
    """passes over all rollouts of the phase in the auxiliary phase"""
    beta_clone: Annotated[float, Range(0)] = 1.0
    """weight of the cloning loss of the auxiliary phase, which keeps the policy as it is"""
    num_aux_rollouts: Annotated[int, Range(1)] = 4
    """sequences of num_steps in a minibatch of the auxiliary phase"""
    n_aux_grad_accum: Annotated[int, Range(1)] = 1
    """minibatches of the auxiliary phase whose gradients are accumulated for a step"""

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

    norm_adv = False  # not per minibatch: see adv_norm_fullbatch


# ---------------------------------------------------------------- network


def scaled_rows(layer: Any, scale: float) -> Any:
    """Initialize a layer: the weights of every output have this norm, biases are zero."""
    with torch.no_grad():
        norms = layer.weight.flatten(1).norm(dim=1)
        layer.weight.mul_((scale / norms).view(-1, *(1,) * (layer.weight.dim() - 1)))
        layer.bias.zero_()
    return layer


class Agent(DiscreteAgent):
    """A policy and two critics on IMPALA's features; parameter names and shapes are those of CleanRL's models."""

    def __init__(self, actions: int, image: tuple[int, ...] = (64, 64, 3)) -> None:
        super().__init__(actions)
        height, width, channels = image
        self.network = nn.Sequential(*impala_trunk((channels, height, width), initialize=scaled_rows))
        self.actor = scaled_rows(nn.Linear(FEATURES, actions), 0.1)
        self.critic = scaled_rows(nn.Linear(FEATURES, 1), 0.1)
        self.aux_critic = scaled_rows(nn.Linear(FEATURES, 1), 0.1)

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the features of images."""
        features: torch.Tensor = self.network(as_floats(channels_first(obs)))
        return features

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits of the actions, and values [batch, 1] whose gradient does not reach the features."""
        features = self.features(obs)
        return self.actor(features), self.critic(features.detach())

    def with_auxiliary(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits, values, and the auxiliary critic's values, whose gradient reaches the features."""
        features = self.features(obs)
        values, auxiliary = self.critic(features.detach()), self.aux_critic(features)
        return self.actor(features), values.squeeze(1), auxiliary.squeeze(1)


def make_agent(algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> Agent:
    """Build the network for these spaces; raise BadInput when there is none."""
    count, shape = count_actions(algo, env_id, actions), observations.shape or ()
    if not is_image(observations) or shape[-1] > 4 or min(shape[:2]) < 8:
        raise BadInput(
            f"{algo} needs images (height, width, channels) as observations; those of {env_id} have shape {shape}"
        )
    return Agent(count, shape)


# ---------------------------------------------------------------- the auxiliary loss (the policy phase's is PPO's)


class AuxiliaryLosses(NamedTuple):
    """The loss of a minibatch of the auxiliary phase and its parts."""

    total: torch.Tensor
    auxiliary_value: torch.Tensor
    clone: torch.Tensor
    value: torch.Tensor


def auxiliary_losses(
    agent: Agent, obs: torch.Tensor, returns: torch.Tensor, old_logits: torch.Tensor, beta_clone: float
) -> AuxiliaryLosses:
    """Return both critics' squared errors, and the KL divergence from the policy at the beginning of the phase."""
    logits, values, auxiliary = agent.with_auxiliary(obs)
    old_log_probs = functional.log_softmax(old_logits, dim=1)
    distance = old_log_probs - functional.log_softmax(logits, dim=1)
    clone = (old_log_probs.exp() * distance).sum(dim=1).mean()
    auxiliary_value = 0.5 * (auxiliary - returns).square().mean()
    value = 0.5 * (values - returns).square().mean()
    return AuxiliaryLosses(auxiliary_value + beta_clone * clone + value, auxiliary_value, clone, value)


class PhaseRollout(NamedTuple):
    """What the auxiliary phase needs of a rollout; read-only, so checkpoints need no copy."""

    obs: np.ndarray
    returns: np.ndarray


# ---------------------------------------------------------------- rollout, update, loop


class PpgLearner(Learner):
    """The state of a run: iterations of PPO, and after every `n_iteration` of them the auxiliary phase."""

    def __init__(self, args: Args, envs: NormalizedEnvs, device: torch.device, *, total: int) -> None:
        super().__init__(args, envs, device)
        self.total = total
        self._normalized = envs
        self.agent = make_agent(args.exp_name, args.env_id, envs.observation_space, envs.action_space).to(device)
        self.parameters = FlatParameters(self.agent)
        self.adam = FlatAdam(self.parameters.block)
        self.losses = compiled(ppo_losses, enabled=args.compile)
        self.auxiliary_losses = compiled(auxiliary_losses, enabled=args.compile)
        self.distribution = Categorical(count_actions(args.exp_name, args.env_id, envs.action_space))
        self.acting = TorchActing(self.agent, device)
        self.rollouts: list[PhaseRollout] = []
        """Those of this phase"""
        self._dtype = network_dtype(envs.observation_space)
        self.next_obs = np.zeros((args.num_envs, *(envs.observation_space.shape or ())), dtype=self._dtype)
        self._rewound: TrainingState | None = None

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Return the best actions, or actions sampled with `rng`."""
        outputs = self.acting.policy(obs.astype(self._dtype, copy=False))
        if rng is None:
            return self.distribution.best(outputs)
        return self.distribution.choose(outputs, self.distribution.noise(rng, outputs.shape[:1]))

    def learn(self, run: RunContext) -> None:
        """Run one iteration of the policy phase, after the last of them also the auxiliary phase.

        When a stop is requested during the auxiliary phase, the run is set back to where this iteration began: there
        are no checkpoints within that phase.
        """
        learning_rate = self.learning_rate()
        is_last = len(self.rollouts) + 1 == self.args.n_iteration
        before = self.snapshot() if is_last else None
        batch, rewards = self.collect(run)
        charts = self.update(batch, rewards, learning_rate)
        if before is not None:
            auxiliary_charts = self.auxiliary_phase(run, before, learning_rate)
            if auxiliary_charts is None:
                self.step, self._rewound = before.step, before
                return
            charts |= auxiliary_charts
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
        truncations: list[tuple[int, np.ndarray, np.ndarray]] = []
        for t in range(args.num_steps):
            obs[t] = self.next_obs
            logits[t], values[t] = self.acting.both(self.next_obs)
            actions[t] = self.distribution.choose(logits[t], noise[t])
            step = self.envs.step(actions[t])
            self.step += args.num_envs
            rewards[t], terminated[t], ended[t] = step.rewards, step.terminated, step.ended
            self.next_obs = step.obs.astype(self._dtype, copy=False)
            self.chart_episodes(step, run)
            cut = np.flatnonzero(step.truncated & ~step.terminated)
            if len(cut):
                truncations.append((t, cut, self.acting.values(step.final_obs[cut].astype(self._dtype))))
        values[-1] = self.acting.values(self.next_obs)
        next_values = values[1:].copy()
        for t, cut, last_values in truncations:
            next_values[t, cut] = last_values
        advantages = generalized_advantages(
            rewards, values[:-1], next_values, terminated, ended, args.gamma, args.gae_lambda
        )
        returns = advantages + values[:-1]
        self.rollouts.append(PhaseRollout(obs, returns))
        log_probs = self.distribution.log_probs(logits, actions)
        columns = (obs, actions, log_probs, advantages, returns, values[:-1])
        rows = (torch.from_numpy(column.reshape(-1, *column.shape[2:])).to(self.device) for column in columns)
        batch = Batch(*rows)
        if args.adv_norm_fullbatch:
            batch = batch._replace(advantages=normalized(batch.advantages))
        return batch, rewards

    def update(self, batch: Batch, rewards: np.ndarray, learning_rate: float) -> dict[str, float]:
        """Run epochs of minibatch updates on one rollout; return the charts."""
        args = self.args
        clip_fractions = []
        for _ in range(args.e_policy):
            order = torch.from_numpy(self.rng.permutation(len(batch.actions))).to(self.device)
            for rows in order.reshape(args.num_minibatches, -1):
                losses = self.losses(self.agent, Batch(*(column[rows] for column in batch)), args)
                self.parameters.backward(losses.total)
                self._descend(learning_rate)
                clip_fractions.append(losses.clip_fraction)
            if args.target_kl is not None and losses.approx_kl.item() > args.target_kl:
                break
        self.parameters.refresh_host()
        self.stop_unless_finite(losses.total.item(), rewards)
        return {
            **loss_charts(losses, clip_fractions),
            "losses/explained_variance": explained_variance(batch.values.cpu().numpy(), batch.returns.cpu().numpy()),
        }

    def _descend(self, learning_rate: float) -> None:
        self.parameters.clip_gradients(self.args.max_grad_norm)
        self.adam.step(learning_rate)

    # -- auxiliary phase

    def auxiliary_phase(self, run: RunContext, before: TrainingState, learning_rate: float) -> dict[str, float] | None:
        """Train features and auxiliary critic on the whole phase; return None if a stop is requested."""
        args = self.args
        old_logits = []
        for rollout in self.rollouts:
            if self._must_stop(run, before):
                return None
            old_logits.append(np.stack([self.acting.policy(obs) for obs in rollout.obs]))
        sequences = len(self.rollouts) * args.num_envs
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
                (losses.total / args.n_aux_grad_accum).backward()
                if number % args.n_aux_grad_accum == 0:
                    self._descend(learning_rate)
                    self.parameters.zero_gradients()
            charts = {
                "losses/aux/aux_value_loss": losses.auxiliary_value.item(),
                "losses/aux/kl_loss": losses.clone.item(),
                "losses/aux/real_value_loss": losses.value.item(),
            }
            self.parameters.refresh_host()
            self.stop_unless_finite(losses.total.item(), self.rollouts[-1].returns)
        self.rollouts = []
        return charts

    def _must_stop(self, run: RunContext, before: TrainingState) -> bool:
        run.report_alive()
        return run.should_stop(before.step, lambda: before)

    def _sequences(self, chosen: np.ndarray, old_logits: list[np.ndarray]) -> list[torch.Tensor]:
        """Return observations, returns and old logits of some of the phase's sequences, as rows."""
        places = [divmod(int(number), self.args.num_envs) for number in chosen]
        columns = (
            [self.rollouts[iteration].obs[:, env] for iteration, env in places],
            [self.rollouts[iteration].returns[:, env] for iteration, env in places],
            [old_logits[iteration][:, env] for iteration, env in places],
        )
        return [torch.from_numpy(np.concatenate(column)).to(self.device) for column in columns]

    # -- checkpoints

    @property
    def optimizers(self) -> Mapping[str, Any]:
        """Return the optimizers by their names in checkpoints."""
        return {"adam": self.adam}

    def own_arrays(self) -> dict[str, Mapping[str, np.ndarray]]:
        """Return what a checkpoint needs besides the network, by prefix."""
        kept = {f"obs.{index}": rollout.obs for index, rollout in enumerate(self.rollouts)}
        kept |= {f"returns.{index}": rollout.returns for index, rollout in enumerate(self.rollouts)}
        return {**super().own_arrays(), "kept": kept}

    def snapshot(self) -> TrainingState:
        """Return everything learning depends on, with the normalizer's statistics."""
        if self._rewound is not None:
            return self._rewound
        state = super().snapshot()
        return replace(state, arrays={**state.arrays, **self._normalized.norm_arrays()})

    def restore(self, state: TrainingState) -> str:
        """Continue from a snapshot; return how the environments were restored."""
        self._normalized.load_norm(state.part("obs_norm"), state.part("return_norm"))
        environments = super().restore(state)
        kept = state.part("kept")
        count = sum(name.startswith("obs.") for name in kept)
        self.rollouts = [PhaseRollout(kept[f"obs.{index}"], kept[f"returns.{index}"]) for index in range(count)]
        return environments


# ---------------------------------------------------------------- policy and run


NAME = Args.exp_name


def make_policy(
    env_id: str, observations: Space, actions: Space, weights: Weights, *, algo: str = NAME, normalizer: Any = None
) -> DistributionPolicy:
    """Return the policy with these weights; raise BadInput when they do not fit the environment."""
    agent = make_agent(algo, env_id, observations, actions)
    load_weights(agent, weights, what="the policy")
    distribution = Categorical(count_actions(algo, env_id, actions))
    acting = TorchActing(agent, torch.device("cpu"))
    return DistributionPolicy(acting, distribution, network_dtype(observations), normalizer)


def train(args: Args, run: RunContext) -> TrainResult:
    """Train until the steps are used up, the return is reached or a stop is requested; then evaluate."""
    check_args(args)
    phase = args.num_envs * args.num_steps * args.n_iteration
    total = args.total_timesteps // phase * phase
    envs = NormalizedEnvs(run.make_envs(args), args.gamma, observations=False, zero_after_end=True)
    learner = PpgLearner(args, envs, device_for(args), total=total)
    return run_training_loop(learner, run, total=total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
