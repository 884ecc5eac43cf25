"""Deep deterministic policy gradient (Lillicrap et al. 2016): Q-learning with an actor that maximizes the critic.

Under the flags and defaults of CleanRL's `ddpg_continuous_action.py`.
Runs alone: python -m cleanrl_worker.algorithms ddpg_continuous_action --env-id Pendulum-v1 --learning-starts 1000
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from gymnasium import Space

from cleanrl_worker.agents.continuous import Actor, ActorCritic, QNetwork
from cleanrl_worker.training.args import Range, ReplayArgs, check_args
from cleanrl_worker.training.checkpointing import Weights, load_weights
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.fast_cpu.actor_critic import FastDdpg, UpdateStats
from cleanrl_worker.training.off_policy import ContinuousSpaces, OffPolicyLearner, actor_weights
from cleanrl_worker.training.optimizers import FlatParameters, Trained
from cleanrl_worker.training.policies import ContinuousPolicy, NoisyActing
from cleanrl_worker.training.replay import ReplayBuffer, make_replay
from cleanrl_worker.training.run import RunContext, TrainResult, device_for, run_training_loop

# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class DdpgArgs(ReplayArgs):
    """Flags of DDPG and TD3."""

    env_id: str = "Hopper-v4"
    """Gymnasium id, or module:id for one of your own; actions must be vectors between bounds"""
    total_timesteps: Annotated[int, Range(1)] = 1_000_000
    """steps to train for, over all environments"""
    learning_rate: Annotated[float, Range(0)] = 3e-4
    """Adam's step size, for actor and critics"""
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
    exploration_noise: Annotated[float, Range(0)] = 0.1
    """standard deviation of the noise on actions, as a share of half their range"""
    learning_starts: Annotated[int, Range(0)] = 25_000
    """steps with random actions before the first update"""
    policy_frequency: Annotated[int, Range(1)] = 2
    """updates of the critics per update of the actor and of the target networks"""
    cudagraphs: bool = True
    """on a GPU, record the update once and replay it; without effect on a CPU"""
    gradient: Literal["auto", "autograd", "fast_cpu"] = "auto"
    """what computes gradients (auto: the fast engine where it agrees with the update in the algorithm's file)"""


@dataclass(frozen=True)
class Args(DdpgArgs):
    """Flags of `ddpg_continuous_action`; literals only, because forms and `--describe` read this class as text."""

    exp_name: str = "ddpg_continuous_action"


# ---------------------------------------------------------------- network


def make_actor(spaces: ContinuousSpaces) -> Actor:
    """Build the actor for these spaces."""
    # CleanRL's DDPG has scale and bias with one row per environment, and one environment.
    return Actor(spaces.observations, spaces.actions, spaces.scale.unsqueeze(0), spaces.bias.unsqueeze(0))


# ---------------------------------------------------------------- losses, update (rollout, loop: OffPolicyLearner)


class DdpgLearner(OffPolicyLearner):
    """The state of a run: an actor, a critic, and a target network of each."""

    def __init__(self, args: Args, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device) -> None:
        super().__init__(args, envs, buffer, device, max_noises=0)
        spaces = self.spaces
        actor, critic = make_actor(spaces), QNetwork(spaces.observations, spaces.actions)
        self.agent = ActorCritic(actor, critic).to(device)
        self.actor = Trained(actor, args.learning_rate)
        self.critics = Trained(self.agent.critics, args.learning_rate)
        self.acting = NoisyActing(actor, self.actor.parameters, spaces.low, spaces.high, args.exploration_noise)
        self.choose_engine(FastDdpg)

    def noises(self, policy: bool) -> int:
        """Return the number of noise samples per transition of an update: none."""
        return 0

    def update(self, policy: bool, targets: bool) -> UpdateStats:
        """Update the critic, and if due the actor and the target networks."""
        args, batch = self.args, self.batch
        # -- the critic: y = r + γ (1 - terminated) Q'(s', μ'(s')); `batch.discounts` is γ (1 - terminated)
        with torch.no_grad():
            (target_critic,) = self.critics.target
            next_values = target_critic(batch.next_obs, self.actor.target(batch.next_obs))
            td_targets = batch.rewards + batch.discounts * next_values
        values = self.agent.qf1(batch.obs, batch.actions)
        errors = values - td_targets
        self.critics.minimize(errors.square().mean())
        stats = {"qf1_values": values, "qf1_errors": errors}
        # -- the actor: maximize Q(s, μ(s))
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
    learner = DdpgLearner(args, envs, make_replay(args, envs, folder=run.folder.root), device_for(args))
    return run_training_loop(learner, run, total=args.total_timesteps)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
