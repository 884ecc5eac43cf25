"""Soft actor-critic (Haarnoja et al. 2018): maximizes return plus alpha times the policy's entropy; alpha is learned.

Under the flags and defaults of CleanRL's `sac_continuous_action.py`. As in the paper alpha is updated with the actions
sampled for the actor's update; CleanRL samples others for it.
Runs alone: python -m cleanrl_worker.algorithms sac_continuous_action --env-id Pendulum-v1 --learning-starts 1000
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from gymnasium import Space
from torch import nn

from cleanrl_worker.agents.continuous import ActorCritic, GaussianActor, QNetwork
from cleanrl_worker.agents.layers import HALF_LOG_TWO_PI
from cleanrl_worker.training.args import Range, ReplayArgs, check_args
from cleanrl_worker.training.checkpointing import TrainingState, Weights, load_weights
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.fast_cpu.actor_critic import FastSac, UpdateStats
from cleanrl_worker.training.off_policy import ContinuousSpaces, OffPolicyLearner, actor_weights
from cleanrl_worker.training.optimizers import FlatParameters, Trained
from cleanrl_worker.training.policies import ContinuousPolicy, SampledActing
from cleanrl_worker.training.replay import ReplayBuffer, make_replay
from cleanrl_worker.training.run import RunContext, TrainResult, device_for, run_training_loop

# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class Args(ReplayArgs):
    """Flags of `sac_continuous_action`; literals only, because forms and `--describe` read this class as text."""

    exp_name: str = "sac_continuous_action"
    """the name of this experiment"""
    env_id: str = "Hopper-v4"
    """Gymnasium id, or module:id for one of your own; actions must be vectors between bounds"""
    total_timesteps: Annotated[int, Range(1)] = 1_000_000
    """steps to train for, over all environments"""
    num_envs: Annotated[int, Range(1)] = 1
    """environments stepped in parallel; there is one update for a step of all of them"""
    buffer_size: Annotated[int, Range(1)] = 1_000_000
    """transitions the replay buffer holds"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    tau: Annotated[float, Range(0, 1)] = 0.005
    """how far the target networks move towards the online networks at each update"""
    batch_size: Annotated[int, Range(1)] = 256
    """transitions drawn from the replay buffer for an update"""
    learning_starts: Annotated[int, Range(0)] = 5_000
    """steps with random actions before the first update"""
    policy_lr: Annotated[float, Range(0)] = 3e-4
    """Adam's step size for the actor"""
    q_lr: Annotated[float, Range(0)] = 1e-3
    """Adam's step size for the critics and for alpha"""
    policy_frequency: Annotated[int, Range(1)] = 2
    """every this many updates of the critics, as many updates of the actor follow"""
    target_network_frequency: Annotated[int, Range(1)] = 1
    """updates of the critics between two updates of the target networks"""
    alpha: Annotated[float, Range(0)] = 0.2
    """temperature: weight of the entropy, without autotune"""
    autotune: bool = True
    """learn alpha so that the policy's entropy stays at minus the number of action dimensions"""
    cudagraphs: bool = True
    """on a GPU, record the update once and replay it; without effect on a CPU"""
    gradient: Literal["auto", "autograd", "fast_cpu"] = "auto"
    """what computes gradients (auto: the fast engine where it agrees with the update in the algorithm's file)"""


TINY = 1e-6
"""Keeps the logarithm finite where tanh has reached 1"""


# ---------------------------------------------------------------- the policy


def sample(actor: Any, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a = scale · tanh(x) + bias with x = mean + std · noise, and log π(a) [batch, 1].

    log π(a) = log N(x) - Σ log(scale · (1 - tanh² x)). The actor bounds log std = -1.5 + 3.5 · tanh(output): -5 … 2.
    """
    mean, log_std = actor(obs)
    squashed = torch.tanh(mean + log_std.exp() * noise)
    density = actor.action_scale * (1 - squashed.square()) + TINY
    log_probs = -0.5 * noise.square() - log_std - HALF_LOG_TWO_PI - density.log()
    return squashed * actor.action_scale + actor.action_bias, log_probs.sum(dim=1, keepdim=True)


class Temperature(nn.Module):
    """The learned logarithm of alpha."""

    def __init__(self) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.zeros(1))


def make_actor(spaces: ContinuousSpaces) -> GaussianActor:
    """Build the actor for these spaces."""
    return GaussianActor(spaces.observations, spaces.actions, spaces.scale, spaces.bias)


# ---------------------------------------------------------------- losses, update (rollout, loop: OffPolicyLearner)


class SacLearner(OffPolicyLearner):
    """The state of a run: an actor, two critics with target networks, and the temperature."""

    remedy = "lower --q-lr and --policy-lr"

    def __init__(self, args: Args, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device) -> None:
        super().__init__(args, envs, buffer, device, max_noises=1 + args.policy_frequency)
        spaces = self.spaces
        actor = make_actor(spaces)
        critics = [QNetwork(spaces.observations, spaces.actions) for _ in range(2)]
        self.agent = ActorCritic(actor, *critics).to(device)
        self.actor = Trained(actor, args.policy_lr, with_target=False)
        self.critics = Trained(self.agent.critics, args.q_lr)
        self.log_alpha = Temperature().to(device)
        self.temperature = Trained(self.log_alpha, args.q_lr, with_target=False)
        self.fixed_alpha = torch.full((1,), args.alpha, device=device)
        self.target_entropy = -float(spaces.actions)
        self.acting = SampledActing(actor, self.actor.parameters, sample, spaces.actions)
        self.choose_engine(FastSac)

    @property
    def trained(self) -> dict[str, Trained]:
        """Return the trained networks by their names in checkpoints."""
        return {"critics": self.critics, "actor": self.actor, "alpha": self.temperature}

    def due(self, count: int) -> tuple[bool, bool]:
        """Return whether update number `count` includes the policy, and whether the target networks."""
        return count % self.args.policy_frequency == 0, count % self.args.target_network_frequency == 0

    def noises(self, policy: bool) -> int:
        """Return the number of noise samples per transition: one for the critics, one for each update of the actor."""
        return 1 + self.args.policy_frequency if policy else 1

    def alpha(self) -> torch.Tensor:
        """Return the temperature."""
        return self.log_alpha.log_alpha.exp() if self.args.autotune else self.fixed_alpha

    def update(self, policy: bool, targets: bool) -> UpdateStats:
        """Update the critics, and if due actor, temperature and target networks."""
        args, batch, agent = self.args, self.batch, self.agent
        # -- the critics: y = r + γ (1 - terminated) (min Q'(s', a') - α log π(a'|s'));
        # `batch.discounts` is γ (1 - terminated)
        with torch.no_grad():
            next_actions, next_log_probs = sample(agent.actor, batch.next_obs, batch.noise[0])
            next_values = torch.minimum(*(critic(batch.next_obs, next_actions) for critic in self.critics.target))
            td_targets = batch.rewards + batch.discounts * (next_values - self.alpha() * next_log_probs)
        qf1_values, qf2_values = (critic(batch.obs, batch.actions) for critic in agent.critics)
        qf1_errors, qf2_errors = qf1_values - td_targets, qf2_values - td_targets
        self.critics.minimize(qf1_errors.square().mean() + qf2_errors.square().mean())
        stats = {"qf1_values": qf1_values, "qf1_errors": qf1_errors, "qf2_values": qf2_values, "qf2_errors": qf2_errors}
        # -- the actor, once for each update of the critics since its last: minimize α log π(a|s) - min Q(s, a)
        for draw in range(args.policy_frequency if policy else 0):
            actions, log_probs = sample(agent.actor, batch.obs, batch.noise[1 + draw])
            values = torch.minimum(*(critic(batch.obs, actions) for critic in agent.critics))
            stats["actor_losses"] = self.alpha().detach() * log_probs - values
            self.actor.minimize(stats["actor_losses"].mean())
            # -- the temperature: minimize -α (log π + target entropy)
            if args.autotune:
                stats["alpha_loss"] = -self.alpha() * (log_probs.detach().mean() + self.target_entropy)
                self.temperature.minimize(stats["alpha_loss"])
            stats["alpha"] = self.alpha()
        if targets:
            self.critics.move_target(args.tau)
        return {name: tensor.detach() for name, tensor in stats.items()}

    def own_arrays(self) -> dict[str, Mapping[str, np.ndarray]]:
        """Return copies of what a checkpoint needs besides the networks, by prefix."""
        found = super().own_arrays()
        log_alpha = self.log_alpha.log_alpha.detach().cpu().numpy().copy()
        return {**found, "alpha": {**found["alpha"], "log_alpha": log_alpha}}

    def restore(self, state: TrainingState) -> str:
        """Continue from a snapshot; return how the environments were restored."""
        environments = super().restore(state)
        self.temperature.adam.block.copy_(torch.from_numpy(state.part("alpha")["log_alpha"].copy()))
        return environments


# ---------------------------------------------------------------- policy and run


NAME = Args.exp_name


def make_policy(
    env_id: str, observations: Space, actions: Space, weights: Weights, *, algo: str = NAME, normalizer: Any = None
) -> ContinuousPolicy:
    """Return the policy with these weights; raise BadInput when they do not fit the environment."""
    spaces = ContinuousSpaces.of(algo, env_id, observations, actions)
    actor = make_actor(spaces)
    load_weights(actor, actor_weights(weights), what="the policy")
    acting = SampledActing(actor, FlatParameters(actor), sample, spaces.actions)
    return ContinuousPolicy(acting, spaces.actions, normalizer)


def train(args: Args, run: RunContext) -> TrainResult:
    """Train until the steps are used up, the return is reached or a stop is requested; then evaluate."""
    check_args(args)
    envs = run.make_envs(args)
    learner = SacLearner(args, envs, make_replay(args, envs, folder=run.folder.root), device_for(args))
    return run_training_loop(learner, run, total=args.total_timesteps)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
