"""Deep deterministic policy gradient (Lillicrap et al. 2016): a critic learns by Q-learning, an actor climbs its slope.

Under the flags and defaults of CleanRL's `ddpg_continuous_action.py`.
Runs alone: python -m cleanrl_worker.algorithms ddpg_continuous_action --env-id Pendulum-v1 --learning-starts 1000
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import gymnasium as gym
import numpy as np
import torch

from cleanrl_worker.agents.continuous import Actor, ActorCritic, QNetwork
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.acting import ObservationNormaliser
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.common_args import ReplayArgs
from cleanrl_worker.training.critics import Critics
from cleanrl_worker.training.deterministic_actor import DeterministicActor, NoisyActing
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.numpy_actor import ContinuousPolicy
from cleanrl_worker.training.off_policy import ContinuousSpaces, Figures, OffPolicyLearner, actor_weights
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.replay import ReplayBuffer, make_replay
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import load_weights


@dataclass(frozen=True)
class Args(ReplayArgs):
    """Flags of `ddpg_continuous_action`; literals only, because forms and `--describe` read this class as text."""

    exp_name: str = "ddpg_continuous_action"
    """the name of this experiment"""
    env_id: str = "Hopper-v4"
    """Gymnasium id, or module:id for one of your own; actions must be vectors between bounds"""
    total_timesteps: Annotated[int, Range(1)] = 1_000_000
    """steps to train for, over all environments"""
    learning_rate: Annotated[float, Range(0)] = 3e-4
    """Adam's step size, for actor and critic"""
    num_envs: Annotated[int, Range(1)] = 1
    """environments stepped in parallel; there is one update for a step of all of them"""
    buffer_size: Annotated[int, Range(1)] = 1_000_000
    """transitions the replay buffer holds"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    tau: Annotated[float, Range(0, 1)] = 0.005
    """how far the target networks move towards the others each time"""
    batch_size: Annotated[int, Range(1)] = 256
    """transitions drawn from the replay buffer for an update"""
    exploration_noise: Annotated[float, Range(0)] = 0.1
    """standard deviation of the noise on actions, as a share of half the way between their bounds"""
    learning_starts: Annotated[int, Range(0)] = 25_000
    """steps with random actions before the first update"""
    policy_frequency: Annotated[int, Range(1)] = 2
    """updates of the critic for each of the actor and of the target networks"""
    cudagraphs: bool = True
    """on a GPU, record the update once and replay it; without effect on a CPU"""


RULES = (
    (
        "batch_size <= buffer_size",
        "--buffer-size {buffer_size} is smaller than a batch of {batch_size}: raise it, or lower --batch-size",
    ),
    (
        "num_envs <= buffer_size",
        "--buffer-size {buffer_size} does not hold one step of {num_envs} environments: raise it, or lower --num-envs",
    ),
)
"""What must hold between the flags; text, because a dry run reads it without importing torch"""

MEMORY = {
    "replay buffer": "buffer_size * (8 * obs_size + 4 * actions + 8)",
    "networks": "24 * (512 * (obs_size + actions) + 132608 + 256 * actions)",
    "batch": "4 * batch_size * (3 * obs_size + 4 * actions + 2048)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "16 * (512 * (obs_size + actions) + 132608 + 256 * actions) + num_envs * (8192 + 4096 * actions)"
"""Bytes of one checkpoint without the replay buffer: networks, target networks, Adam's two moments, environments"""

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs", "buffer_size")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {
    "agent.actor.fc1.weight": ("256", "obs_size"),
    "agent.actor.fc_mu.weight": ("actions", "256"),
    "agent.qf1.fc1.weight": ("256", "obs_size + actions"),
}
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""


def make_actor(spaces: ContinuousSpaces) -> Actor:
    # CleanRL's DDPG has these two with one row per environment, and one environment.
    return Actor(spaces.observations, spaces.actions, spaces.scale.unsqueeze(0), spaces.bias.unsqueeze(0))


def make_policy(
    env_id: str,
    observations: gym.Space,
    actions: gym.Space,
    weights: Mapping[str, np.ndarray],
    *,
    algo: str = "ddpg_continuous_action",
    normaliser: ObservationNormaliser | None = None,
) -> ContinuousPolicy:
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    spaces = ContinuousSpaces.of(algo, env_id, observations, actions)
    actor = make_actor(spaces)
    load_weights(actor, actor_weights(weights), what="the policy")
    acting = NoisyActing(actor, FlatParameters(actor), spaces.low, spaces.high, Args.exploration_noise)
    return ContinuousPolicy(acting, spaces.actions, normaliser)


class DdpgLearner(OffPolicyLearner):
    """The state of a run: an actor, a critic, and a target network of each."""

    resume_needs = RESUME_NEEDS

    def __init__(self, args: Args, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device) -> None:
        super().__init__(args, envs, buffer, device, most_noises=0)
        spaces = self.spaces
        actor, critic = make_actor(spaces), QNetwork(spaces.observations, spaces.actions)
        self.agent = ActorCritic(actor, critic).to(device)
        self.actor = DeterministicActor(actor, args.learning_rate)
        self.critics = Critics(self.agent.critics, args.learning_rate)
        self.actor_parameters = self.actor.parameters
        self.acting = NoisyActing(actor, self.actor_parameters, spaces.low, spaces.high, args.exploration_noise)

    def due(self, count: int) -> tuple[bool, bool]:
        policy = count % self.args.policy_frequency == 0
        return policy, policy

    def noises(self, policy: bool) -> int:
        return 0

    def update(self, policy: bool, targets: bool) -> Figures:
        args, batch = self.args, self.batch
        # -- the critic: y = r + γ Q'(s', μ'(s'))
        next_actions = self.actor.target_actions(batch.next_obs)
        next_values = self.critics.target_values(torch.cat([batch.next_obs, next_actions], dim=1))
        wanted = torch.addcmul(batch.rewards, batch.discounts, next_values)
        figures = self.critics.fit(batch.inputs, wanted)
        # -- the actor: up the critic's slope, ∇ Q(s, μ(s))
        if policy:
            figures["actor_values"] = self.actor.improve(batch.obs, self.critics)
        if targets:
            self.critics.move_targets(args.tau)
            self.actor.move_target(args.tau)
        return figures

    def charts(self, figures: Figures) -> dict[str, float]:
        charts = self.critics.charts(figures)
        if "actor_values" in figures:
            charts["losses/actor_loss"] = -float(figures["actor_values"].mean())
        return charts

    def copy_to_targets(self) -> None:
        self.critics.move_targets(1.0)
        self.actor.move_target(1.0)

    def own_arrays(self) -> dict[str, Mapping[str, np.ndarray]]:
        return {"critics": self.critics.arrays(), "actor": self.actor.arrays()}

    def restore_own(self, state: TrainingState) -> None:
        self.critics.restore(state.part("critics"))
        self.actor.restore(state.part("actor"))


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check_args(args, RULES)
    envs = run.make_envs(args)
    learner = DdpgLearner(args, envs, make_replay(args, envs, folder=run.folder.root), device_for(args))
    return train_to_the_end(learner, run, total=args.total_timesteps)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("ddpg_continuous_action", Args, train)
