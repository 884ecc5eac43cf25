"""Proximal policy optimisation (Schulman et al. 2017) with generalised advantage estimation.

One loop for six of CleanRL's names, under their flags and defaults: `ppo` (vectors, and the small images of grid
worlds), `ppo_continuous_action`, `rpo_continuous_action` (Rahman and Xue 2022: noise on the means while learning),
`ppo_atari`, `ppo_atari_envpool` and `ppo_procgen`. They differ in defaults, network and environments.
Runs alone: python -m cleanrl_worker.algorithms ppo --env-id CartPole-v1
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from cleanrl_worker.agents.atari import AtariAgent
from cleanrl_worker.agents.choice import choose_agent, make_agent
from cleanrl_worker.agents.layers import DiscreteAgent, SharedTrunkAgent
from cleanrl_worker.agents.separate import Agent, GaussianAgent
from cleanrl_worker.errors import TrainingStopped
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.acting import (
    Acting,
    DistributionPolicy,
    NumpyActing,
    ObservationNormaliser,
    TorchActing,
    network_dtype,
)
from cleanrl_worker.training.adam import FlatAdam
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.clipped_losses import explained_variance, normalised, policy_loss, value_loss
from cleanrl_worker.training.common_args import CommonArgs, ModelArgs
from cleanrl_worker.training.distributions import Categorical, DiagonalGaussian, Distribution
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.normalisation import NormalisedEnvs
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.ppo_gradients import ArrayBatch, AutogradGradient, PpoGradient
from cleanrl_worker.training.returns import generalised_advantages
from cleanrl_worker.training.rollout_state import NEW_EPISODES, restore_into, snapshot_of
from cleanrl_worker.training.rollouts import Rollout, shuffled
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import agent_of, load_weights


@dataclass(frozen=True)
class PpoArgs(CommonArgs):
    """What all of them have; the defaults are those of `ppo`."""

    env_id: str = "CartPole-v1"
    """Gymnasium id, or module:id for one of your own"""
    total_timesteps: Annotated[int, Range(1)] = 500_000
    """steps to train for, over all environments; whole iterations only"""
    learning_rate: Annotated[float, Range(0)] = 2.5e-4
    """Adam's step size (at the start, with anneal_lr)"""
    num_envs: Annotated[int, Range(1)] = 4
    """environments stepped in parallel"""
    num_steps: Annotated[int, Range(1)] = 128
    """steps per environment between two updates"""
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

    batch_size: int = 0
    """computed: num_envs × num_steps (a value given here is ignored)"""
    minibatch_size: int = 0
    """computed: batch size / num_minibatches (a value given here is ignored)"""
    num_iterations: int = 0
    """computed: total_timesteps / batch size (a value given here is ignored)"""

    # What only some of them have as a flag, and what is settled by the name.
    agent = "auto"
    normalised = ""
    rpo_alpha = 0.0
    bf16 = False
    cudagraphs = False


@dataclass(frozen=True)
class Args(PpoArgs):
    """Flags of `ppo`; literals only, because forms and `--describe` read this class without running it."""

    exp_name: str = "ppo"
    env_id: str = "CartPole-v1"
    """Gymnasium id, or module:id for one of your own; actions must be discrete, observations vectors or images"""
    agent: Literal["auto", "separate", "mlp", "minigrid"] = "auto"
    """network: separate actor and critic, or one trunk for both (auto: what fits the environment)"""


@dataclass(frozen=True)
class ContinuousArgs(PpoArgs, ModelArgs):
    """Flags of `ppo_continuous_action`."""

    exp_name: str = "ppo_continuous_action"
    env_id: str = "HalfCheetah-v4"
    """Gymnasium id, or module:id for one of your own; actions must be numbers, observations vectors"""
    total_timesteps: Annotated[int, Range(1)] = 1_000_000
    learning_rate: Annotated[float, Range(0)] = 3e-4
    num_envs: Annotated[int, Range(1)] = 1
    num_steps: Annotated[int, Range(1)] = 2048
    num_minibatches: Annotated[int, Range(1)] = 32
    update_epochs: Annotated[int, Range(1)] = 10
    ent_coef: float = 0.0
    cudagraphs: bool = True
    """on a GPU: record an update once and replay it, without the cost of starting each of its kernels"""

    agent = "gaussian"
    normalised = "observations and rewards"


@dataclass(frozen=True)
class RpoArgs(ContinuousArgs):
    """Flags of `rpo_continuous_action`."""

    exp_name: str = "rpo_continuous_action"
    total_timesteps: Annotated[int, Range(1)] = 8_000_000
    rpo_alpha: Annotated[float, Range(0)] = 0.5
    """while learning, the means of the policy are moved by up to this much at random"""


@dataclass(frozen=True)
class AtariArgs(PpoArgs):
    """Flags of `ppo_atari`."""

    exp_name: str = "ppo_atari"
    env_id: str = "BreakoutNoFrameskip-v4"
    """Atari game"""
    total_timesteps: Annotated[int, Range(1)] = 10_000_000
    num_envs: Annotated[int, Range(1)] = 8
    clip_coef: Annotated[float, Range(0)] = 0.1
    bf16: bool = False
    """compute the convolutions in bfloat16: half the time where the processor (or GPU) has instructions for it"""

    agent = "atari"


@dataclass(frozen=True)
class EnvpoolArgs(AtariArgs):
    """Flags of `ppo_atari_envpool`."""

    exp_name: str = "ppo_atari_envpool"
    env_id: str = "Breakout-v5"
    """Atari game, by envpool's name for it or by Gymnasium's"""
    env_backend: Literal["auto", "native", "sync", "async", "ale", "envpool"] = "envpool"


@dataclass(frozen=True)
class ProcgenArgs(PpoArgs):
    """Flags of `ppo_procgen`."""

    exp_name: str = "ppo_procgen"
    env_id: str = "starpilot"
    """Procgen game"""
    total_timesteps: Annotated[int, Range(1)] = 25_000_000
    learning_rate: Annotated[float, Range(0)] = 5e-4
    num_envs: Annotated[int, Range(1)] = 64
    num_steps: Annotated[int, Range(1)] = 256
    anneal_lr: bool = False
    gamma: Annotated[float, Range(0, 1)] = 0.999
    num_minibatches: Annotated[int, Range(1)] = 8
    update_epochs: Annotated[int, Range(1)] = 3
    bf16: bool = False
    """compute the convolutions in bfloat16: half the time where the processor (or GPU) has instructions for it"""

    agent = "impala"
    normalised = "rewards"


_NETWORKS = {preset.exp_name: preset.agent for preset in (ContinuousArgs, RpoArgs, AtariArgs, EnvpoolArgs, ProcgenArgs)}
"""Of the names that have only one"""

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
    "rollout": "num_envs * (num_steps + 1) * (4 * obs_size + 4 * actions + 24)",
    "batch and its gradients": "num_envs * num_steps * (4 * obs_size + 8 * 64)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

ATARI_MEMORY = {
    "rollout and its shuffled copy": "2 * num_envs * (num_steps + 1) * (obs_bytes + 4 * actions + 24)",
    "a minibatch and its gradients": "num_envs * num_steps // num_minibatches * (4 * obs_size + 250000)",
}
ENVPOOL_MEMORY = {
    "rollout and its shuffled copy": "2 * num_envs * (num_steps + 1) * (obs_bytes + 4 * actions + 24)",
    "a minibatch and its gradients": "num_envs * num_steps // num_minibatches * (4 * obs_size + 250000)",
}
PROCGEN_MEMORY = {
    "rollout and its shuffled copy": "2 * num_envs * (num_steps + 1) * (obs_bytes + 4 * actions + 24)",
    "a minibatch and its gradients": "num_envs * num_steps // num_minibatches * (4 * obs_size + 1800000)",
}

CHECKPOINT = "3 * 4 * (2 * 64 * (obs_size + 65) + 65 * (actions + 1)) + 8192 * num_envs"
"""Bytes of one checkpoint: weights, Adam's two moments, the environments"""
ATARI_CHECKPOINT = "3 * 4 * (1684000 + 513 * (actions + 1)) + num_envs * (2 * obs_bytes + 65536)"
ENVPOOL_CHECKPOINT = "3 * 4 * (1684000 + 513 * (actions + 1)) + 2 * num_envs * obs_bytes"
PROCGEN_CHECKPOINT = "3 * 4 * (622000 + 257 * (actions + 1)) + 2 * num_envs * obs_bytes"

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {
    "agent.actor.0.weight": ("64", "obs_size"), "agent.actor.4.weight": ("actions", "64"),
    "agent.actor_mean.0.weight": ("64", "obs_size"), "agent.actor_mean.4.weight": ("actions", "64"),
}  # fmt: skip
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""
ATARI_SHAPES = {"agent.actor.weight": ("actions", "512")}
ENVPOOL_SHAPES = {"agent.actor.weight": ("actions", "512")}
PROCGEN_SHAPES = {"agent.actor.weight": ("actions", "256")}

AGENTS = {"separate": "vector", "mlp": "vector", "minigrid": "image"}
"""The observations that each --agent plays; `auto` finds the right one"""

CONTINUOUS_NORMALISES_OBSERVATIONS = True
RPO_NORMALISES_OBSERVATIONS = True
"""Their weights are worth nothing without the normaliser's statistics; a file that lacks them is refused"""

LARGEST_IMAGE = 32
"""Cells of a grid world's side; larger images are pictures, for which `ppo` has no network of its own accord"""


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


def ppo_losses(
    agent: DiscreteAgent | GaussianAgent, batch: Batch, args: PpoArgs, shift: torch.Tensor | None = None
) -> Losses:
    """The clipped surrogate objective, the value loss and the entropy bonus of one minibatch.

    `shift` is RPO's noise on the means.
    """
    outputs, predictions = agent(batch.obs)
    if shift is not None:
        outputs = outputs + shift
    log_probs, entropies = agent.log_probs(outputs, batch.actions)
    advantages = normalised(batch.advantages) if args.norm_adv else batch.advantages
    policy = policy_loss(log_probs - batch.log_probs, advantages, args.clip_coef)
    clip_coef = args.clip_coef if args.clip_vloss else None
    value = value_loss(predictions.squeeze(1), batch.returns, batch.values, clip_coef)
    entropy = entropies.mean()
    total = policy.loss - args.ent_coef * entropy + args.vf_coef * value
    return Losses(total, policy.loss, value, entropy, policy.old_approx_kl, policy.approx_kl, policy.clip_fraction)


# ---------------------------------------------------------------- one run


class PpoLearner:
    """The state of a run and the two halves of an iteration: collect, then update."""

    def __init__(self, args: PpoArgs, envs: VectorEnvs, device: torch.device, *, agent: str = "separate") -> None:
        self.args = args
        self.envs = envs
        self.device = device
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        spaces = (envs.observation_space, envs.action_space)
        self.agent = make_agent(agent, args.env_id, *spaces, algo=type(args).exp_name).to(device)
        if isinstance(self.agent, SharedTrunkAgent):
            self.agent.bf16 = args.bf16
        self.parameters = FlatParameters(self.agent)
        self.adam = FlatAdam(self.parameters.block, eps=1e-5)
        self.acting, self.distribution = acting_with(self.agent, self.parameters, device)
        self.gradient = self._choose_gradient()
        self.rollout = Rollout(args.num_steps, args.num_envs, envs.observation_space, self.distribution)
        self.next_obs = np.zeros_like(self.rollout.obs[0])
        self.episodes = EpisodeTracker(args.num_envs)
        self.step = 0
        batch_size = args.num_envs * args.num_steps
        self.total = args.total_timesteps // batch_size * batch_size

    def _choose_gradient(self) -> PpoGradient | AutogradGradient:
        """By hand for small perceptrons on a CPU; autograd for everything else."""
        args, agent = self.args, self.agent
        if isinstance(self.acting, NumpyActing) and self.device.type == "cpu" and not args.compile:
            log_std = "actor_logstd" if isinstance(agent, GaussianAgent) else ""
            return PpoGradient(self.parameters, self.acting, args, log_std)

        def losses_of(*columns: torch.Tensor) -> Losses:  # and the shift, where there is one
            count = len(Batch._fields)
            return ppo_losses(agent, Batch(*columns[:count]), args, *columns[count:])

        return AutogradGradient(
            self.parameters, losses_of, self.device, compile=args.compile, cudagraphs=args.cudagraphs
        )

    def begin_episodes(self) -> None:
        self.next_obs = self.envs.reset(self.args.seed + self.step).astype(self.next_obs.dtype)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        normaliser = self.envs.normaliser() if isinstance(self.envs, NormalisedEnvs) else None
        seen = obs if normaliser is None else normaliser(obs)
        outputs = self.acting.policy(seen.astype(self.next_obs.dtype, copy=False))
        if rng is None:
            return self.distribution.best(outputs)
        return self.distribution.choose(outputs, self.distribution.noise(rng, outputs.shape[:1]))

    def learn(self, run: RunContext) -> None:
        learning_rate = self.args.learning_rate
        if self.args.anneal_lr:
            learning_rate *= 1 - self.step / self.total
        self.collect(run)
        charts = self.update(self.batch(), learning_rate)
        charts |= {"charts/learning_rate": learning_rate, "charts/SPS": run.steps_per_second(self.step)}
        run.writer.add_scalars(charts, self.step)

    def collect(self, run: RunContext) -> None:
        """Play num_steps in every environment."""
        args, rollout, acting, distribution = self.args, self.rollout, self.acting, self.distribution
        noise = distribution.noise(self.rng, rollout.rewards.shape)
        rollout.truncations.clear()
        rollout.obs[0] = self.next_obs
        for t in range(args.num_steps):
            if acting.shared:
                outputs, rollout.values[t] = acting.both(rollout.obs[t])
            else:
                outputs = acting.policy(rollout.obs[t])
            actions = distribution.choose(outputs, noise[t])
            step = self.envs.step(actions)
            self.step += args.num_envs
            rollout.outputs[t] = outputs
            rollout.actions[t] = actions
            rollout.rewards[t] = step.rewards
            rollout.terminated[t] = step.terminated
            rollout.ended[t] = step.ended
            rollout.obs[t + 1] = step.obs
            for episode_return, length in self.episodes.add(step):
                run.writer.add_scalars(
                    {"charts/episodic_return": episode_return, "charts/episodic_length": length}, self.step
                )
            if np.count_nonzero(step.truncated):  # `any` takes six times as long
                cut = np.flatnonzero(step.truncated & ~step.terminated)
                rollout.truncations.append((t, cut, step.final_obs[cut].astype(rollout.obs.dtype)))
        self.next_obs = rollout.obs[-1].copy()

    def batch(self) -> ArrayBatch:
        """The rollout as rows, with advantages, returns and the log-probabilities the actions had."""
        args, rollout = self.args, self.rollout
        obs = rollout.obs.reshape(-1, *rollout.obs.shape[2:])
        if self.acting.shared:
            rollout.values[-1] = self.acting.values(rollout.obs[-1])
        else:
            rollout.values[:] = self.acting.values(obs).reshape(rollout.values.shape)
        values, next_values = rollout.values[:-1], rollout.values[1:].copy()
        for t, cut, last_obs in rollout.truncations:
            next_values[t, cut] = self.acting.values(last_obs)
        advantages = generalised_advantages(
            rollout.rewards, values, next_values, rollout.terminated, rollout.ended, args.gamma, args.gae_lambda
        )
        log_probs = self.distribution.log_probs(rollout.outputs, rollout.actions)
        actions = rollout.actions.reshape(-1, *self.distribution.action_shape)
        columns = (log_probs, advantages, advantages + values, values)
        return ArrayBatch(obs[: -args.num_envs], actions, *(column.reshape(-1) for column in columns))

    @np.errstate(all="ignore")  # what is not finite is spoken of at the end
    def update(self, batch: ArrayBatch, learning_rate: float) -> dict[str, float]:
        """Several epochs of minibatch descent; return what the charts show."""
        args = self.args
        count = len(batch.actions)
        size = count // args.num_minibatches
        clip_fractions: list[Any] = []
        for columns in self._shuffled(batch):
            for start in range(0, count, size):
                minibatch = type(columns)(*(column[start : start + size] for column in columns))
                losses = self.gradient(minibatch, self._shift(size))
                self.parameters.clip_gradients(args.max_grad_norm)
                self.adam.step(learning_rate)
                clip_fractions.append(losses.clip_fraction + 0)  # a recorded update overwrites what it returned
            if args.target_kl is not None and losses.approx_kl > args.target_kl:
                break
        self.parameters.refresh_host()
        charts = {
            "losses/value_loss": float(losses.value),
            "losses/policy_loss": float(losses.policy),
            "losses/entropy": float(losses.entropy),
            "losses/old_approx_kl": float(losses.old_approx_kl),
            "losses/approx_kl": float(losses.approx_kl),
            "losses/clipfrac": float(sum(clip_fractions)) / len(clip_fractions),
            "losses/explained_variance": explained_variance(batch.values, batch.returns),
        }
        self._check_finite(float(losses.total), batch)
        return charts

    def _shuffled(self, batch: ArrayBatch) -> Iterator[Any]:
        """The batch once for every epoch, each time in another order."""
        orders = (self.rng.permutation(len(batch.actions)) for _ in range(self.args.update_epochs))
        if isinstance(self.gradient, PpoGradient):
            return (ArrayBatch(*(column[order] for column in batch)) for order in orders)
        epochs = shuffled(batch, orders, self.device, stacked_frames=isinstance(self.agent, AtariAgent))
        return (Batch(*columns) for columns in epochs)

    def _shift(self, size: int) -> Any:
        """RPO's noise on the means; None for all the others."""
        alpha = self.args.rpo_alpha
        if not alpha:
            return None
        shift = self.rng.uniform(-alpha, alpha, (size, self.distribution.outputs)).astype(np.float32)
        return shift if isinstance(self.gradient, PpoGradient) else torch.from_numpy(shift).to(self.device)

    def _check_finite(self, loss: float, batch: ArrayBatch) -> None:
        """Before anything of this iteration is saved: a checkpoint of such weights would be worth nothing."""
        if math.isfinite(loss) and math.isfinite(float(self.parameters.block.data.sum())):
            return
        cause = "lower --learning-rate"
        if not (np.isfinite(batch.obs).all() and np.isfinite(self.rollout.rewards).all()):
            cause = "the environment gave observations or rewards that are not finite"
        raise TrainingStopped(f"loss or weights are not finite at step {self.step}: {cause}")

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        """Everything learning depends on, between two iterations."""
        state = snapshot_of(self, {"adam": self.adam.arrays()})
        if isinstance(self.envs, NormalisedEnvs):
            return replace(state, arrays={**state.arrays, **self.envs.norm_arrays()})
        return state

    def restore(self, state: TrainingState) -> str:
        """Go on from a snapshot; return how the environments were brought back."""
        if isinstance(self.envs, NormalisedEnvs):
            self.envs.take_norm(state.part("obs_norm"), state.part("return_norm"))
        exact = restore_into(self, state, RESUME_NEEDS)
        if moments := state.part("adam"):
            self.adam.restore(moments)
        return "exact" if exact else NEW_EPISODES

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        load_weights(self.agent, weights, what=what)
        self.parameters.refresh_host()

    def model(self) -> Mapping[str, torch.Tensor]:
        return self.agent.state_dict()


def acting_with(
    agent: DiscreteAgent | GaussianAgent, parameters: FlatParameters, device: torch.device
) -> tuple[Acting, Distribution]:
    """How the network is run while acting, and what its outputs mean."""
    if isinstance(agent, GaussianAgent):
        return NumpyActing(parameters, agent), DiagonalGaussian(parameters.array("actor_logstd"))
    acting = NumpyActing(parameters, agent) if isinstance(agent, Agent) else TorchActing(agent, device)
    return acting, Categorical(agent.actions)


def make_policy(
    env_id: str, observations: gym.Space, actions: gym.Space, weights: Mapping[str, np.ndarray],
    *, algo: str = "ppo", normaliser: ObservationNormaliser | None = None,
) -> DistributionPolicy:  # fmt: skip
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    kind = _NETWORKS.get(algo, "auto")
    agent = make_agent(agent_of(weights) if kind == "auto" else kind, env_id, observations, actions, algo=algo)
    load_weights(agent, weights, what="the policy")
    acting, distribution = acting_with(agent, FlatParameters(agent), torch.device("cpu"))
    return DistributionPolicy(acting, distribution, network_dtype(observations), normaliser)


def check(args: PpoArgs) -> None:
    """Refuse values that no run can be made of."""
    check_args(args, RULES)


def train(args: PpoArgs, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check(args)
    device = device_for(args)
    envs = run.make_envs(args)
    if args.normalised:
        whole = "observations" in args.normalised
        envs = NormalisedEnvs(envs, args.gamma, observations=whole, zero_after_end=not whole)
    weights = run.weights()
    kind = choose_agent(args.agent, envs.observation_space, in_curriculum=run.curriculum is not None)
    learner = PpoLearner(args, envs, device, agent=agent_of(weights) if weights and args.agent == "auto" else kind)
    return train_to_the_end(learner, run, total=learner.total)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("ppo", Args, train)
