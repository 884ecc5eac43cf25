"""Soft actor-critic for discrete actions (Christodoulou 2019; Haarnoja et al. 2018).

Two critics learn the soft Q-values of all actions, the actor maximizes the smaller of the two, and the temperature
alpha keeps the policy's entropy near a target. For Atari, under the flags and defaults of CleanRL's `sac_atari.py`.
Runs alone: python -m cleanrl_worker.algorithms sac_atari --env-id BeamRiderNoFrameskip-v4
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import FEATURES, FLAT, as_floats, nature_convolutions
from cleanrl_worker.agents.layers import Layer
from cleanrl_worker.errors import TrainingStopped
from cleanrl_worker.training.args import Range, ReplayArgs, check_args
from cleanrl_worker.training.checkpointing import TrainingState, Weights, arrays_of, load_weights
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.optimizers import FlatAdam, FlatParameters, compiled
from cleanrl_worker.training.policies import TorchValues, atari_sizes
from cleanrl_worker.training.replay import ReplayBuffer, make_replay
from cleanrl_worker.training.run import BLOCK_STEPS, Learner, RunContext, TrainResult, device_for, run_training_loop

# ---------------------------------------------------------------- flags


@dataclass(frozen=True)
class Args(ReplayArgs):
    """Flags of `sac_atari`; literals only, because forms and `--describe` read this class without running it."""

    exp_name: str = "sac_atari"
    """the name of this experiment"""
    env_id: str = "BeamRiderNoFrameskip-v4"
    """Atari game"""
    total_timesteps: Annotated[int, Range(1)] = 5_000_000
    """steps to train for, over all environments"""
    num_envs: Annotated[int, Range(1)] = 1
    """environments stepped in parallel; the number of updates per step stays the same"""
    buffer_size: Annotated[int, Range(1)] = 1_000_000
    """transitions the replay buffer holds"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    tau: Annotated[float, Range(0, 1)] = 1.0
    """how far the target critics move towards the critics at each update: 1 makes them copies"""
    batch_size: Annotated[int, Range(1)] = 64
    """transitions drawn from the replay buffer for an update"""
    learning_starts: Annotated[int, Range(0)] = 20_000
    """steps before the first update, with random actions"""
    policy_lr: Annotated[float, Range(0)] = 3e-4
    """Adam's step size for the actor"""
    q_lr: Annotated[float, Range(0)] = 3e-4
    """Adam's step size for the critics and for alpha"""
    update_frequency: Annotated[int, Range(1)] = 4
    """steps between two updates"""
    target_network_frequency: Annotated[int, Range(1)] = 8000
    """steps between two updates of the target critics"""
    alpha: Annotated[float, Range(0)] = 0.2
    """temperature: weight of the entropy, without autotune"""
    autotune: bool = True
    """learn alpha so that the entropy stays near its target; it begins at 1"""
    target_entropy_scale: Annotated[float, Range(0)] = 0.89
    """target entropy of autotune, as a share of the uniform policy's"""


_ADAM_EPS = 1e-4


# ---------------------------------------------------------------- networks


def _kaiming(layer: Layer) -> Layer:
    """Initialize a layer for ReLU (He et al. 2015), without bias."""
    nn.init.kaiming_normal_(layer.weight)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


class Trunk(nn.Module):
    """From stacks of frames to features; actor and critics have one each."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(*nature_convolutions(frames, initialize=_kaiming))
        self.fc1 = _kaiming(nn.Linear(FLAT, FEATURES))

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the features of images."""
        images = as_floats(obs).contiguous(memory_format=torch.channels_last)
        return functional.relu(self.fc1(self.conv(images)))


class Actor(Trunk):
    """Logits of the actions; parameter names and shapes are those of CleanRL's models."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__(frames)
        self.fc_logits = _kaiming(nn.Linear(FEATURES, actions))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the logits of the actions."""
        logits: torch.Tensor = self.fc_logits(self.features(obs))
        return logits


class SoftQNetwork(Trunk):
    """The soft Q-value of every action."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__(frames)
        self.fc_q = _kaiming(nn.Linear(FEATURES, actions))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the Q-value of every action."""
        values: torch.Tensor = self.fc_q(self.features(obs))
        return values


class Critics(nn.Module):
    """Two critics; the smaller of their values counts, against overestimation."""

    def __init__(self, qf1: SoftQNetwork, qf2: SoftQNetwork) -> None:
        super().__init__()
        self.qf1, self.qf2 = qf1, qf2

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values of both critics."""
        return self.qf1(obs), self.qf2(obs)


class SoftAgent(nn.Module):
    """Actor and critics, under their names in checkpoints."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__()
        self.actor = Actor(frames, actions)
        self.qf1, self.qf2 = SoftQNetwork(frames, actions), SoftQNetwork(frames, actions)


class SoftPolicy:
    """The most likely action, or one sampled as in training."""

    def __init__(self, actor: Actor, device: torch.device) -> None:
        self._logits = TorchValues(actor, device)

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        """Return the best actions, or actions sampled with `rng`."""
        logits = self._logits(obs)
        if rngs is not None:
            # Gumbel-max trick: a sample of the categorical distribution.
            logits = logits + np.stack([rng.gumbel(size=logits.shape[1]) for rng in rngs])
        return logits.argmax(axis=1)


# ---------------------------------------------------------------- the losses


class Batch(NamedTuple):
    """`Transitions` as tensors."""

    obs: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    next_obs: torch.Tensor
    terminated: torch.Tensor


class CriticLosses(NamedTuple):
    """The losses of both critics, and their mean predicted values."""

    qf1: torch.Tensor
    qf2: torch.Tensor
    qf1_values: torch.Tensor
    qf2_values: torch.Tensor


class ActorLosses(NamedTuple):
    """The actor's loss, and how far its entropy is below the target."""

    actor: torch.Tensor
    entropy_gap: torch.Tensor
    """Expected log-probability plus the target entropy, divided by the number of actions"""


def critic_losses(
    actor: Actor, critics: Critics, targets: Critics, batch: Batch, alpha: torch.Tensor, gamma: float
) -> CriticLosses:
    """Return squared errors against the soft value of the next state, an expectation over all actions."""
    with torch.no_grad():
        log_probs = functional.log_softmax(actor(batch.next_obs), dim=1)
        smaller = torch.minimum(*targets(batch.next_obs))
        following = (log_probs.exp() * (smaller - alpha * log_probs)).sum(dim=1)
        td_targets = batch.rewards + gamma * (1 - batch.terminated) * following
    index = batch.actions.unsqueeze(1)
    first, second = (values.gather(1, index).squeeze(1) for values in critics(batch.obs))
    return CriticLosses(
        functional.mse_loss(first, td_targets),
        functional.mse_loss(second, td_targets),
        first.detach().mean(),
        second.detach().mean(),
    )


def actor_losses(
    actor: Actor, critics: Critics, obs: torch.Tensor, alpha: torch.Tensor, target_entropy: float
) -> ActorLosses:
    """Return the actor's loss, E[α log π - min Q], and its entropy gap.

    Both are means over actions, as in CleanRL; sums would make the gradients `actions` times larger, which with Adam's
    epsilon of 1e-4 changes the steps.
    """
    log_probs = functional.log_softmax(actor(obs), dim=1)
    probs = log_probs.exp()
    with torch.no_grad():
        smaller = torch.minimum(*critics(obs))
    loss = (probs * (alpha * log_probs - smaller)).mean()
    with torch.no_grad():
        entropy_gap = (probs * (log_probs + target_entropy)).mean()
    return ActorLosses(loss, entropy_gap)


# ---------------------------------------------------------------- rollout, update, loop


class SacLearner(Learner):
    """The state of a run: act, store transitions, and every few steps update from a sampled batch."""

    remedy = "lower --q-lr and --policy-lr"

    def __init__(self, args: Args, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device) -> None:
        super().__init__(args, envs, device)
        self.buffer = buffer
        frames, actions = atari_sizes(args.exp_name, args.env_id, envs.observation_space, envs.action_space)
        self.agent = SoftAgent(frames, actions).to(device)
        self.actor, self.critics = self.agent.actor, Critics(self.agent.qf1, self.agent.qf2)
        self.targets = Critics(SoftQNetwork(frames, actions), SoftQNetwork(frames, actions)).to(device)
        self._actor_parameters, self._critic_parameters = FlatParameters(self.actor), FlatParameters(self.critics)
        self._target_parameters = FlatParameters(self.targets)
        self._move_targets(1.0)
        self.log_alpha = nn.Parameter(torch.zeros(1, device=device))
        self.log_alpha.grad = torch.zeros(1, device=device)
        self._adams = {
            "adam_actor": FlatAdam(self._actor_parameters.block, eps=_ADAM_EPS),
            "adam_critics": FlatAdam(self._critic_parameters.block, eps=_ADAM_EPS),
            "adam_alpha": FlatAdam(self.log_alpha, eps=_ADAM_EPS),
        }
        self._critic_losses = compiled(critic_losses, enabled=args.compile)
        self._actor_losses = compiled(actor_losses, enabled=args.compile)
        self._target_entropy = args.target_entropy_scale * math.log(actions)
        self._actions = actions
        self._policy = SoftPolicy(self.actor, device)
        self.next_obs = np.zeros(0, dtype=np.uint8)

    @property
    def alpha(self) -> torch.Tensor:
        """Return the temperature."""
        if self.args.autotune:
            return self.log_alpha.detach().exp()
        return torch.full_like(self.log_alpha.data, self.args.alpha)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Return the best actions, or actions sampled with `rng`."""
        return self._policy.act(obs, None if rng is None else [rng] * len(obs))

    def learn(self, run: RunContext) -> None:
        """Act and update until the next multiple of BLOCK_STEPS."""
        args = self.args
        until = min((self.step // BLOCK_STEPS + 1) * BLOCK_STEPS, args.total_timesteps)
        charts: dict[str, Any] = {}
        while self.step < until:
            before = self.step
            self._step_envs(run)
            if not self._can_learn():
                continue
            for _ in range(self.step // args.update_frequency - before // args.update_frequency):
                charts = self.update()
            if self.step // args.target_network_frequency > before // args.target_network_frequency:
                self._move_targets(args.tau)
        if charts:
            charts = {f"losses/{name}": float(value) for name, value in charts.items()}
            self._check_finite(charts["losses/qf_loss"] + charts["losses/actor_loss"])
        charts |= self.replay_charts(self.buffer, run)
        run.writer.add_scalars(charts, self.step)

    def _step_envs(self, run: RunContext) -> None:
        obs, num_envs = self.next_obs, self.args.num_envs
        if self.step < self.args.learning_starts:
            actions = self.rng.integers(self._actions, size=num_envs)
        else:
            actions = self._policy.act(obs, [self.rng] * num_envs)
        step = self.envs.step(actions)
        self.buffer.add(obs, actions, step.rewards, step.final_obs, step.terminated)
        self.next_obs = step.obs
        self.step += num_envs
        self.chart_episodes(step, run)

    def _can_learn(self) -> bool:
        """Return whether learning may begin; a run resumed without its replay buffer fills it first, too."""
        args = self.args
        return self.step > args.learning_starts and len(self.buffer) >= min(args.learning_starts, args.buffer_size)

    def update(self) -> dict[str, Any]:
        """Take one step for the critics, the actor and alpha on the same batch; return the charts."""
        args, alpha = self.args, self.alpha
        drawn = self.buffer.sample(self.rng, args.batch_size)
        batch = Batch(*(torch.from_numpy(array).to(self.device) for array in drawn))
        of_critics = self._critic_losses(self.actor, self.critics, self.targets, batch, alpha, args.gamma)
        self._critic_parameters.backward(of_critics.qf1 + of_critics.qf2)
        self._adams["adam_critics"].step(args.q_lr)

        of_actor = self._actor_losses(self.actor, self.critics, batch.obs, alpha, self._target_entropy)
        self._actor_parameters.backward(of_actor.actor)
        self._adams["adam_actor"].step(args.policy_lr)
        qf1, qf2 = of_critics.qf1.detach(), of_critics.qf2.detach()
        charts = {
            "qf1_values": of_critics.qf1_values,
            "qf2_values": of_critics.qf2_values,
            "qf1_loss": qf1,
            "qf2_loss": qf2,
            "qf_loss": (qf1 + qf2) / 2,
            "actor_loss": of_actor.actor.detach(),
            "alpha": alpha,
        }
        if args.autotune:
            # alpha_loss = -alpha · entropy_gap, which equals its derivative with respect to log alpha.
            charts["alpha_loss"] = -alpha * of_actor.entropy_gap
            assert self.log_alpha.grad is not None
            self.log_alpha.grad.copy_(charts["alpha_loss"])
            self._adams["adam_alpha"].step(args.q_lr)
        return charts

    def _move_targets(self, share: float) -> None:
        self._target_parameters.block.data.lerp_(self._critic_parameters.block.data, share)

    def _check_finite(self, loss: float) -> None:
        """Stop before anything is saved: a checkpoint of such weights would be useless."""
        blocks = (self._actor_parameters.block, self._critic_parameters.block, self.log_alpha)
        if not (math.isfinite(loss) and math.isfinite(sum(block.data.sum() for block in blocks))):
            raise TrainingStopped(f"loss or weights are not finite at step {self.step}: {self.remedy}")

    # -- checkpoints

    @property
    def optimizers(self) -> Mapping[str, Any]:
        """Return the optimizers by their names in checkpoints."""
        return self._adams

    def snapshot(self) -> TrainingState:
        """Return everything learning depends on, with the replay buffer."""
        state = super().snapshot()
        arrays = {**state.arrays, **arrays_of(self.targets, "targets")}
        arrays["log_alpha"] = self.log_alpha.data.cpu().numpy().copy()
        return replace(state, arrays=arrays, replay=self.buffer)

    def restore(self, state: TrainingState) -> str:
        """Continue from a snapshot; return how the environments were restored."""
        environments = super().restore(state)
        load_weights(self.targets, state.part("targets"), what="the checkpoint")
        self.log_alpha.data.copy_(torch.from_numpy(state.arrays["log_alpha"].copy()))
        state.restore_replay(self.buffer)
        return environments

    def load_agent(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        """Load the networks' weights; the target networks become copies."""
        load_weights(self.agent, weights, what=what)
        self._move_targets(1.0)

    def model(self) -> Any:
        """Return the actor's state dict, then the critics', as CleanRL's TD3 does; its `sac_atari` saves no model."""
        return tuple(module.state_dict() for module in self.agent.children())


# ---------------------------------------------------------------- policy and run


NAME = Args.exp_name


def make_policy(
    env_id: str, observations: Space, actions: Space, weights: Weights, *, algo: str = NAME, normalizer: Any = None
) -> SoftPolicy:
    """Return the policy with these weights; raise BadInput when they do not fit the environment."""
    actor = Actor(*atari_sizes(algo, env_id, observations, actions))
    own = {name.removeprefix("actor."): array for name, array in weights.items() if name.startswith("actor.")}
    load_weights(actor, own or weights, what="the policy")
    return SoftPolicy(actor, torch.device("cpu"))


def train(args: Args, run: RunContext) -> TrainResult:
    """Train until the steps are used up, the return is reached or a stop is requested; then evaluate."""
    check_args(args)
    envs = run.make_envs(args)
    learner = SacLearner(args, envs, make_replay(args, envs, folder=run.folder.root), device_for(args))
    return run_training_loop(learner, run, total=args.total_timesteps)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone(NAME, Args, train)
