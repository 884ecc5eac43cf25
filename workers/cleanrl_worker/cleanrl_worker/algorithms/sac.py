"""Soft actor-critic (Haarnoja et al. 2018): rewards and the policy's entropy together, weighed by a temperature alpha
that is learned, too.

Under the flags and defaults of CleanRL's `sac_continuous_action.py`. As in the paper alpha learns from the actions the
actor has just been judged by; CleanRL draws others for it.
Runs alone: python -m cleanrl_worker.algorithms sac_continuous_action --env-id Pendulum-v1 --learning-starts 1000
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from cleanrl_worker.agents.continuous import LOG_STD_MIDDLE, LOG_STD_REACH, ActorCritic, GaussianActor, QNetwork
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.acting import ObservationNormaliser
from cleanrl_worker.training.adam import FlatAdam
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.common_args import ReplayArgs
from cleanrl_worker.training.critics import Critics
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.numpy_actor import ContinuousPolicy, NumpyActor
from cleanrl_worker.training.off_policy import ContinuousSpaces, Figures, OffPolicyLearner, actor_weights
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.relu_mlp import ReluMlp, Trace
from cleanrl_worker.training.replay import ReplayBuffer, make_replay
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import load_weights


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
    """how far the target networks move towards the others each time"""
    batch_size: Annotated[int, Range(1)] = 256
    """transitions drawn from the replay buffer for an update"""
    learning_starts: Annotated[int, Range(0)] = 5_000
    """steps with random actions before the first update"""
    policy_lr: Annotated[float, Range(0)] = 3e-4
    """Adam's step size for the actor"""
    q_lr: Annotated[float, Range(0)] = 1e-3
    """Adam's step size for the critics and for alpha"""
    policy_frequency: Annotated[int, Range(1)] = 2
    """every so many updates of the critics the actor has as many of its own"""
    target_network_frequency: Annotated[int, Range(1)] = 1
    """updates of the critics between two moves of the target networks"""
    alpha: Annotated[float, Range(0)] = 0.2
    """what entropy is worth; with autotune this is learned instead"""
    autotune: bool = True
    """learn alpha so that the policy keeps an entropy of minus the number of actions"""
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
    "networks": "24 * (768 * obs_size + 1024 * actions + 198912)",
    "batch": "4 * batch_size * (3 * obs_size + (4 + policy_frequency) * actions + 2560)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "16 * (768 * obs_size + 1024 * actions + 198912) + num_envs * (8192 + 4096 * actions)"
"""Bytes of one checkpoint without the replay buffer: networks, target networks, Adam's two moments, environments"""

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs", "buffer_size")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {
    "agent.actor.fc1.weight": ("256", "obs_size"),
    "agent.actor.fc_mean.weight": ("actions", "256"),
    "agent.qf1.fc1.weight": ("256", "obs_size + actions"),
    "agent.qf2.fc1.weight": ("256", "obs_size + actions"),
}
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
TINY = 1e-6
"""Keeps the logarithm finite where tanh has reached 1"""


# ---------------------------------------------------------------- the policy


class Sample(NamedTuple):
    """Actions drawn for a batch, and what the way back needs."""

    actions: torch.Tensor
    log_probs: torch.Tensor
    """[batch, 1]"""
    trace: Trace
    within: torch.Tensor
    """where the logarithm of the standard deviation lies between its limits: -1 … 1"""
    deviation: torch.Tensor
    """standard deviation × noise"""
    squashed: torch.Tensor
    density: torch.Tensor
    """how much tanh and the stretching to the bounds spread the actions at this place"""


class SoftActor:
    """The squashed Gaussian: a = scale · tanh(x) + bias with x = mean + std · noise."""

    def __init__(self, actor: GaussianActor, learning_rate: float) -> None:
        self.parameters = FlatParameters(actor)
        self.adam, self._learning_rate = FlatAdam(self.parameters.block), learning_rate
        layers = (actor.fc1, actor.fc2, actor.fc_mean, actor.fc_logstd)
        self._network = ReluMlp(self.adam.block, self.adam.gradient, *layers)
        self._scale, self._bias = actor.action_scale, actor.action_bias

    def sample(self, obs: torch.Tensor, noise: torch.Tensor) -> Sample:
        """Actions and their log-probabilities: log N(x) - Σ log(scale · (1 - tanh² x))."""
        trace = self._network.trace(obs)
        mean, within = self._network.outputs(trace)
        log_std = LOG_STD_MIDDLE + LOG_STD_REACH * within.tanh_()
        deviation = log_std.exp() * noise
        squashed = (mean + deviation).tanh_()
        density = self._scale * (1 - squashed * squashed) + TINY
        surprise = log_std.addcmul_(noise, noise, value=0.5) + density.log()
        log_probs = -surprise.sum(dim=1, keepdim=True) - noise.shape[1] * HALF_LOG_TWO_PI
        return Sample(
            squashed * self._scale + self._bias, log_probs, trace, within, deviation, squashed, density
        )  # fmt: skip

    def improve(self, sample: Sample, slope: torch.Tensor, alpha: torch.Tensor) -> None:
        """One step down mean(α log π(a|s) - Q(s, a)); `slope` is the gradient of the second part by the actions."""
        share = alpha / len(slope)
        steepness = 1 - sample.squashed * sample.squashed
        # By x: actions move with it, and so does -log(density); its derivative by tanh(x) is 2 scale tanh(x) / density.
        towards = slope + share * 2 * sample.squashed / sample.density
        by_mean = towards * self._scale * steepness
        by_log_std = by_mean * sample.deviation - share
        by_output = by_log_std * LOG_STD_REACH * (1 - sample.within * sample.within)
        self._network.backward(sample.trace, by_mean, by_output)
        self.adam.step(self._learning_rate)


class Temperature:
    """Alpha: a number, or learned so that the policy's entropy stays at a target."""

    def __init__(self, args: Args, actions: int, device: torch.device) -> None:
        self._learned, self._learning_rate, self._target_entropy = args.autotune, args.q_lr, -float(actions)
        self.log_alpha = nn.Parameter(torch.zeros(1, device=device))
        self.log_alpha.grad = torch.zeros(1, device=device)
        self._fixed = torch.full((1,), args.alpha, device=device)
        self.adam = FlatAdam(self.log_alpha)

    def __call__(self) -> torch.Tensor:
        return self.adam.block.exp() if self._learned else self._fixed

    def follow(self, log_probs: torch.Tensor) -> Figures:
        """One step down mean(-α (log π + target entropy)), whose derivative by log α is itself."""
        if not self._learned:
            return {"alpha": self._fixed}
        loss = -self() * (log_probs.mean() + self._target_entropy)
        self.adam.gradient.copy_(loss)
        self.adam.step(self._learning_rate)
        return {"alpha": self(), "alpha_loss": loss}


class SquashedActing:
    """Acts with numpy as the Gaussian says."""

    def __init__(self, actor: GaussianActor, parameters: FlatParameters) -> None:
        self._outputs = NumpyActor(parameters, "fc1", "fc2", "fc_mean", "fc_logstd")
        self._scale, self._bias = actor.action_scale.cpu().numpy(), actor.action_bias.cpu().numpy()

    def best(self, obs: np.ndarray) -> np.ndarray:
        return np.tanh(self._outputs(obs)[0]) * self._scale + self._bias

    def sample(self, obs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        mean, within = self._outputs(obs)
        log_std = LOG_STD_MIDDLE + LOG_STD_REACH * np.tanh(within)
        return np.tanh(mean + np.exp(log_std) * noise) * self._scale + self._bias


def make_actor(spaces: ContinuousSpaces) -> GaussianActor:
    return GaussianActor(spaces.observations, spaces.actions, spaces.scale, spaces.bias)


def make_policy(
    env_id: str,
    observations: gym.Space,
    actions: gym.Space,
    weights: Mapping[str, np.ndarray],
    *,
    algo: str = "sac_continuous_action",
    normaliser: ObservationNormaliser | None = None,
) -> ContinuousPolicy:
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    spaces = ContinuousSpaces.of(algo, env_id, observations, actions)
    actor = make_actor(spaces)
    load_weights(actor, actor_weights(weights), what="the policy")
    return ContinuousPolicy(SquashedActing(actor, FlatParameters(actor)), spaces.actions, normaliser)


# ---------------------------------------------------------------- one run


class SacLearner(OffPolicyLearner):
    """The state of a run: an actor, two critics with target networks, and the temperature."""

    resume_needs = RESUME_NEEDS
    cure = "lower --q-lr and --policy-lr"

    def __init__(self, args: Args, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device) -> None:
        super().__init__(args, envs, buffer, device, most_noises=1 + args.policy_frequency)
        spaces = self.spaces
        actor = make_actor(spaces)
        critics = [QNetwork(spaces.observations, spaces.actions) for _ in range(2)]
        self.agent = ActorCritic(actor, *critics).to(device)
        self.actor = SoftActor(actor, args.policy_lr)
        self.critics = Critics(self.agent.critics, args.q_lr)
        self.alpha = Temperature(args, spaces.actions, device)
        self.actor_parameters = self.actor.parameters
        self.acting = SquashedActing(actor, self.actor_parameters)

    def due(self, count: int) -> tuple[bool, bool]:
        return count % self.args.policy_frequency == 0, count % self.args.target_network_frequency == 0

    def noises(self, policy: bool) -> int:
        return 1 + self.args.policy_frequency if policy else 1

    def update(self, policy: bool, targets: bool) -> Figures:
        args, batch = self.args, self.batch
        # -- the critics: y = r + γ (min Q'(s', a') - α log π(a'|s'))
        following = self.actor.sample(batch.next_obs, batch.noise[0])
        next_values = self.critics.target_values(torch.cat([batch.next_obs, following.actions], dim=1))
        soft_values = torch.addcmul(next_values, self.alpha(), following.log_probs, value=-1)
        wanted = torch.addcmul(batch.rewards, batch.discounts, soft_values)
        figures = self.critics.fit(batch.inputs, wanted)
        # -- the actor, as often as it was waited for it
        for draw in range(args.policy_frequency if policy else 0):
            figures |= self._improve_policy(batch.obs, batch.noise[1 + draw])
        if targets:
            self.critics.move_targets(args.tau)
        return figures

    def _improve_policy(self, obs: torch.Tensor, noise: torch.Tensor) -> Figures:
        """Down α log π(a|s) - min Q(s, a), then the temperature."""
        sample, alpha = self.actor.sample(obs, noise), self.alpha()
        values, slope = self.critics.slope_of_least(torch.cat([obs, sample.actions], dim=1), self.spaces.actions)
        self.actor.improve(sample, slope, alpha)
        return {"actor_losses": alpha * sample.log_probs - values, **self.alpha.follow(sample.log_probs)}

    def charts(self, figures: Figures) -> dict[str, float]:
        charts = self.critics.charts(figures)
        for name, of in (("actor_loss", "actor_losses"), ("alpha", "alpha"), ("alpha_loss", "alpha_loss")):
            if of in figures:
                charts[f"losses/{name}"] = float(figures[of].mean())
        return charts

    def copy_to_targets(self) -> None:
        self.critics.move_targets(1.0)

    def own_arrays(self) -> dict[str, Mapping[str, np.ndarray]]:
        alpha = {**self.alpha.adam.arrays(), "log_alpha": self.alpha.log_alpha.data.cpu().numpy().copy()}
        return {"critics": self.critics.arrays(), "actor": self.actor.adam.arrays(), "alpha": alpha}

    def restore_own(self, state: TrainingState) -> None:
        self.critics.restore(state.part("critics"))
        self.actor.adam.restore(state.part("actor"))
        alpha = state.part("alpha")
        self.alpha.adam.restore(alpha)
        self.alpha.log_alpha.data.copy_(torch.from_numpy(alpha["log_alpha"].copy()))


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check_args(args, RULES)
    envs = run.make_envs(args)
    learner = SacLearner(args, envs, make_replay(args, envs, folder=run.folder.root), device_for(args))
    return train_to_the_end(learner, run, total=args.total_timesteps)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("sac_continuous_action", Args, train)
