"""Twin delayed DDPG (Fujimoto et al. 2018): DDPG with the smaller of two critics, noise on target actions, and an actor
that is updated less often than the critics.

Under the flags and defaults of CleanRL's `td3_continuous_action.py`.
Runs alone: python -m cleanrl_worker.algorithms td3_continuous_action --env-id Pendulum-v1 --learning-starts 1000
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from gymnasium import Space

from cleanrl_worker.agents.continuous import Actor, ActorCritic, QNetwork
from cleanrl_worker.algorithms.ddpg import DdpgArgs
from cleanrl_worker.training.args import Range, check_args
from cleanrl_worker.training.checkpointing import Weights, load_weights
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.fast_cpu.actor_critic import FastTd3, UpdateStats
from cleanrl_worker.training.off_policy import ContinuousSpaces, OffPolicyLearner, actor_weights
from cleanrl_worker.training.optimizers import FlatParameters, Trained
from cleanrl_worker.training.policies import ContinuousPolicy, NoisyActing
from cleanrl_worker.training.replay import ReplayBuffer, make_replay
from cleanrl_worker.training.run import RunContext, TrainResult, device_for, run_training_loop

# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class Args(DdpgArgs):
    """Flags of `td3_continuous_action`; literals only, because forms and `--describe` read this class as text."""

    exp_name: str = "td3_continuous_action"
    policy_noise: Annotated[float, Range(0)] = 0.2
    """standard deviation of the noise on the target actor's actions, as a share of half their range"""
    noise_clip: Annotated[float, Range(0)] = 0.5
    """bound of that noise, as the same share"""


# ---------------------------------------------------------------- network


def make_actor(spaces: ContinuousSpaces) -> Actor:
    """Build the actor for these spaces."""
    return Actor(spaces.observations, spaces.actions, spaces.scale, spaces.bias)


# ---------------------------------------------------------------- losses, update (rollout, loop: OffPolicyLearner)


class Td3Learner(OffPolicyLearner):
    """The state of a run: an actor, two critics, and a target network of each."""

    synthetic_spread = 3.0  # reaches beyond --noise-clip and the bounds of the actions

    def __init__(self, args: Args, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device) -> None:
        super().__init__(args, envs, buffer, device, max_noises=1)
        spaces = self.spaces
        actor = make_actor(spaces)
        critics = [QNetwork(spaces.observations, spaces.actions) for _ in range(2)]
        self.agent = ActorCritic(actor, *critics).to(device)
        self.actor = Trained(actor, args.learning_rate)
        self.critics = Trained(self.agent.critics, args.learning_rate)
        self.low, self.high = (torch.from_numpy(bound).to(device) for bound in (spaces.low, spaces.high))
        self.scale = spaces.scale.to(device)
        self.acting = NoisyActing(actor, self.actor.parameters, spaces.low, spaces.high, args.exploration_noise)
        self.choose_engine(FastTd3)

    def noises(self, policy: bool) -> int:
        """Return the number of noise samples per transition of an update: one, for the target actions."""
        return 1

    def update(self, policy: bool, targets: bool) -> UpdateStats:
        """Update the critics, and if due the actor and the target networks."""
        args, batch = self.args, self.batch
        # -- the critics: y = r + γ (1 - terminated) min Q'(s', a'), where a' is μ'(s') with clipped noise;
        # `batch.discounts` is γ (1 - terminated)
        with torch.no_grad():
            noise = (args.policy_noise * batch.noise[0]).clamp(-args.noise_clip, args.noise_clip)
            next_actions = (self.actor.target(batch.next_obs) + noise * self.scale).clamp(self.low, self.high)
            next_values = torch.minimum(*(critic(batch.next_obs, next_actions) for critic in self.critics.target))
            td_targets = batch.rewards + batch.discounts * next_values
        qf1_values, qf2_values = (critic(batch.obs, batch.actions) for critic in self.agent.critics)
        qf1_errors, qf2_errors = qf1_values - td_targets, qf2_values - td_targets
        self.critics.minimize(qf1_errors.square().mean() + qf2_errors.square().mean())
        stats = {"qf1_values": qf1_values, "qf1_errors": qf1_errors, "qf2_values": qf2_values, "qf2_errors": qf2_errors}
        # -- the actor: maximize Q₁(s, μ(s))
        if policy:
            stats["actor_values"] = self.agent.qf1(batch.obs, self.agent.actor(batch.obs))
            self.actor.minimize(-stats["actor_values"].mean())
        if targets:
            self.critics.move_target(args.tau)
            self.actor.move_target(args.tau)
        return {name: tensor.detach() for name, tensor in stats.items()}


# ---------------------------------------------------------------- policy and run


NAME = Args.exp_name


def make_policy(
    env_id: str, observations: Space, actions: Space, weights: Weights, *, algo: str = NAME, normalizer: Any = None
) -> ContinuousPolicy:
    """Return the policy with these weights; raise BadInput when they do not fit the environment."""
    spaces = ContinuousSpaces.of(algo, env_id, observations, actions)
    actor = make_actor(spaces)
    load_weights(actor, actor_weights(weights), what="the policy")
    acting = NoisyActing(actor, FlatParameters(actor), spaces.low, spaces.high, Args.exploration_noise)
    return ContinuousPolicy(acting, spaces.actions, normalizer)


def train(args: Args, run: RunContext) -> TrainResult:
    """Train until the steps are used up, the return is reached or a stop is requested; then evaluate."""
    check_args(args)
    envs = run.make_envs(args)
    learner = Td3Learner(args, envs, make_replay(args, envs, folder=run.folder.root), device_for(args))
    return run_training_loop(learner, run, total=args.total_timesteps)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
