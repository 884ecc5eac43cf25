"""Soft actor-critic for discrete actions (Christodoulou 2019; Haarnoja et al. 2018): return and entropy together.

Two critics learn the soft values of all actions, the actor follows the smaller of the two, and the temperature alpha
keeps the policy's entropy near a target. For Atari, under the flags and defaults of CleanRL's `sac_atari.py`.
Runs alone: python -m cleanrl_worker.algorithms sac_atari --env-id BeamRiderNoFrameskip-v4
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.agents.atari import FEATURES, FLAT, as_floats, nature_convolutions
from cleanrl_worker.agents.layers import Layer
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.ranges import Range
from cleanrl_worker.training.adam import FlatAdam
from cleanrl_worker.training.arguments import check_args
from cleanrl_worker.training.common_args import ReplayArgs
from cleanrl_worker.training.compiling import compiled
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs, is_image
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.loop import device_for, train_to_the_end
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.q_policies import TorchValues, count_actions
from cleanrl_worker.training.replay import ReplayBuffer, make_replay
from cleanrl_worker.training.rollout_state import NEW_EPISODES, arrays_of, restore_into, snapshot_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import load_weights


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
    """environments stepped in parallel; updates keep their pace per step"""
    buffer_size: Annotated[int, Range(1)] = 1_000_000
    """transitions the replay buffer holds"""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """discount factor"""
    tau: Annotated[float, Range(0, 1)] = 1.0
    """how far the target critics move towards the others each time: 1 makes them copies"""
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
    """steps between two moves of the target critics"""
    alpha: Annotated[float, Range(0)] = 0.2
    """what entropy is worth, without autotune"""
    autotune: bool = True
    """let alpha follow the entropy, beginning with 1"""
    target_entropy_scale: Annotated[float, Range(0)] = 0.89
    """the entropy autotune aims at, as a share of a random policy's"""


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
    "replay buffer": "buffer_size * 8000",
    "networks": "52 * (1690000 + 513 * actions)",
    "a batch and its gradients": "4 * batch_size * (4 * obs_size + 250000)",
}
"""Bytes that training allocates on top of the process itself; `obs_size` and `actions` are the environment's"""

CHECKPOINT = "44 * (1690000 + 513 * actions) + num_envs * (2 * obs_bytes + 65536)"
"""Bytes of one checkpoint without the replay buffer: five networks, Adam's moments of three, the environments"""

RESUME_NEEDS = ("env_id", "env_kwargs", "num_envs", "buffer_size", "autotune")
"""A checkpoint is refused when it was made with other values of these"""

SHAPES = {"agent.actor.fc_logits.weight": ("actions", "512")}
"""Shapes of the checkpoint's arrays, where it has arrays of these names"""

BLOCK_STEPS = 100
"""Steps between two safe points, and between two points of a chart"""
_ADAM_EPS = 1e-4


# ---------------------------------------------------------------- networks


def _for_relu(layer: Layer) -> Layer:
    """Weights whose size keeps that of what passes through a ReLU (He et al. 2015)."""
    nn.init.kaiming_normal_(layer.weight)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


class Trunk(nn.Module):
    """Stacks of frames to features; actor and critics share its shape and not its weights."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(*nature_convolutions(frames, initialise=_for_relu))
        self.fc1 = _for_relu(nn.Linear(FLAT, FEATURES))

    def features(self, obs: torch.Tensor) -> torch.Tensor:
        pictures = as_floats(obs).contiguous(memory_format=torch.channels_last)
        return functional.relu(self.fc1(self.conv(pictures)))


class Actor(Trunk):
    """Logits of the actions; parameter names and shapes are those of CleanRL's models."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__(frames)
        self.fc_logits = _for_relu(nn.Linear(FEATURES, actions))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc_logits(self.features(obs))
        return logits


class SoftQNetwork(Trunk):
    """The soft values of the actions."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__(frames)
        self.fc_q = _for_relu(nn.Linear(FEATURES, actions))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.fc_q(self.features(obs))
        return values


class Critics(nn.Module):
    """Both of them: what one overestimates, the other may not."""

    def __init__(self, qf1: SoftQNetwork, qf2: SoftQNetwork) -> None:
        super().__init__()
        self.qf1, self.qf2 = qf1, qf2

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.qf1(obs), self.qf2(obs)


class SoftAgent(nn.Module):
    """All that is learned, under the names that checkpoints have for it."""

    def __init__(self, frames: int, actions: int) -> None:
        super().__init__()
        self.actor = Actor(frames, actions)
        self.qf1, self.qf2 = SoftQNetwork(frames, actions), SoftQNetwork(frames, actions)


def sizes_of(algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> tuple[int, int]:
    """(frames, actions) the networks are made for; BadInput when they cannot play these spaces."""
    count, shape = count_actions(algo, env_id, actions), observations.shape or ()
    if not is_image(observations) or shape[1:] != (84, 84):
        raise BadInput(f"{algo} needs stacked frames of 84 x 84 as observations; those of {env_id} have shape {shape}")
    return shape[0], count


class SoftPolicy:
    """Plays the likeliest action, or one drawn as in training."""

    def __init__(self, actor: Actor, device: torch.device) -> None:
        self._logits = TorchValues(actor, device)

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        logits = self._logits(obs)
        if rngs is not None:
            # Gumbel noise, then the largest: a sample of the categorical distribution.
            logits = logits + np.stack([rng.gumbel(size=logits.shape[1]) for rng in rngs])
        return logits.argmax(axis=1)


def make_policy(
    env_id: str, observations: gym.Space, actions: gym.Space, weights: Mapping[str, np.ndarray], *,
    algo: str = "sac_atari", normaliser: Any = None,
) -> SoftPolicy:  # fmt: skip
    """The policy these weights are, to be played; BadInput when they do not fit the environment."""
    actor = Actor(*sizes_of(algo, env_id, observations, actions))
    own = {name.removeprefix("actor."): array for name, array in weights.items() if name.startswith("actor.")}
    load_weights(actor, own or weights, what="the policy")
    return SoftPolicy(actor, torch.device("cpu"))


# ---------------------------------------------------------------- arithmetic


class Batch(NamedTuple):
    """`Transitions` as tensors."""

    obs: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    next_obs: torch.Tensor
    terminated: torch.Tensor


class CriticLosses(NamedTuple):
    qf1: torch.Tensor
    qf2: torch.Tensor
    qf1_values: torch.Tensor
    qf2_values: torch.Tensor


class ActorLosses(NamedTuple):
    actor: torch.Tensor
    excess: torch.Tensor
    """Expected log-probability plus the target entropy, by the number of actions: positive where the policy is surer
    than it should be"""


def critic_losses(
    actor: Actor, critics: Critics, targets: Critics, batch: Batch, alpha: torch.Tensor, gamma: float
) -> CriticLosses:
    """Squared errors against the soft value of what followed, taken over all actions instead of a sampled one."""
    with torch.no_grad():
        log_probs = functional.log_softmax(actor(batch.next_obs), dim=1)
        smaller = torch.minimum(*targets(batch.next_obs))
        following = (log_probs.exp() * (smaller - alpha * log_probs)).sum(dim=1)
        wanted = batch.rewards + gamma * (1 - batch.terminated) * following
    index = batch.actions.unsqueeze(1)
    first, second = (values.gather(1, index).squeeze(1) for values in critics(batch.obs))
    return CriticLosses(
        functional.mse_loss(first, wanted), functional.mse_loss(second, wanted),
        first.detach().mean(), second.detach().mean(),
    )  # fmt: skip


def actor_losses(
    actor: Actor, critics: Critics, obs: torch.Tensor, alpha: torch.Tensor, target_entropy: float
) -> ActorLosses:
    """What the policy loses in soft value, and by how much it misses the target entropy.

    Both are means over actions, too, as CleanRL has them; sums would make the gradients `actions` times larger, which
    Adam's epsilon of 1e-4 lets through.
    """
    log_probs = functional.log_softmax(actor(obs), dim=1)
    probs = log_probs.exp()
    with torch.no_grad():
        smaller = torch.minimum(*critics(obs))
    loss = (probs * (alpha * log_probs - smaller)).mean()
    with torch.no_grad():
        excess = (probs * (log_probs + target_entropy)).mean()
    return ActorLosses(loss, excess)


# ---------------------------------------------------------------- one run


class SacLearner:
    """The state of a run: act, store, and every few steps learn from what is stored."""

    def __init__(self, args: Args, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device) -> None:
        self.args, self.envs, self.buffer, self.device = args, envs, buffer, device
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)
        frames, actions = sizes_of(args.exp_name, args.env_id, envs.observation_space, envs.action_space)
        self.agent = SoftAgent(frames, actions).to(device)
        self.actor, self.critics = self.agent.actor, Critics(self.agent.qf1, self.agent.qf2)
        self.targets = Critics(SoftQNetwork(frames, actions), SoftQNetwork(frames, actions)).to(device)
        self._of_actor, self._of_critics = FlatParameters(self.actor), FlatParameters(self.critics)
        self._of_targets = FlatParameters(self.targets)
        self._move_targets(1.0)
        self.log_alpha = nn.Parameter(torch.zeros(1, device=device))
        self.log_alpha.grad = torch.zeros(1, device=device)
        self._adams = {
            "adam_actor": FlatAdam(self._of_actor.block, eps=_ADAM_EPS),
            "adam_critics": FlatAdam(self._of_critics.block, eps=_ADAM_EPS),
            "adam_alpha": FlatAdam(self.log_alpha, eps=_ADAM_EPS),
        }
        self._critic_losses = compiled(critic_losses, wanted=args.compile)
        self._actor_losses = compiled(actor_losses, wanted=args.compile)
        self._target_entropy = args.target_entropy_scale * math.log(actions)
        self._actions = actions
        self._policy = SoftPolicy(self.actor, device)
        self.episodes = EpisodeTracker(args.num_envs)
        self.step = 0
        self.next_obs = np.zeros(0, dtype=np.uint8)

    @property
    def alpha(self) -> torch.Tensor:
        if self.args.autotune:
            return self.log_alpha.detach().exp()
        return torch.full_like(self.log_alpha.data, self.args.alpha)

    def begin_episodes(self) -> None:
        self.next_obs = self.envs.reset(self.args.seed + self.step)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        return self._policy.act(obs, None if rng is None else [rng] * len(obs))

    def learn(self, run: RunContext) -> None:
        """Go on to the next multiple of BLOCK_STEPS."""
        args = self.args
        until = min((self.step // BLOCK_STEPS + 1) * BLOCK_STEPS, args.total_timesteps)
        charts: dict[str, Any] = {}
        while self.step < until:
            before = self.step
            self._play_one_step(run)
            if not self._has_enough():
                continue
            for _ in range(self.step // args.update_frequency - before // args.update_frequency):
                charts = self.update()
            if self.step // args.target_network_frequency > before // args.target_network_frequency:
                self._move_targets(args.tau)
        if charts:
            charts = {f"losses/{name}": float(value) for name, value in charts.items()}
            self._check_finite(charts["losses/qf_loss"] + charts["losses/actor_loss"])
        charts |= {
            "charts/replay_size": len(self.buffer),
            "charts/replay_bytes": self.buffer.nbytes,
            "charts/SPS": run.steps_per_second(self.step),
        }
        run.writer.add_scalars(charts, self.step)

    def _play_one_step(self, run: RunContext) -> None:
        obs, num_envs = self.next_obs, self.args.num_envs
        if self.step < self.args.learning_starts:
            actions = self.rng.integers(self._actions, size=num_envs)
        else:
            actions = self._policy.act(obs, [self.rng] * num_envs)
        step = self.envs.step(actions)
        self.buffer.add(obs, actions, step.rewards, step.final_obs, step.terminated)
        self.next_obs = step.obs
        self.step += num_envs
        for episode_return, length in self.episodes.add(step):
            run.writer.add_scalars(
                {"charts/episodic_return": episode_return, "charts/episodic_length": length}, self.step
            )

    def _has_enough(self) -> bool:
        """Tell whether learning may begin; a run that resumes without its replay buffer has to fill it first, too."""
        args = self.args
        return self.step > args.learning_starts and len(self.buffer) >= min(args.learning_starts, args.buffer_size)

    def update(self) -> dict[str, Any]:
        """One step for the critics, the actor and alpha on the same batch; return what the charts show."""
        args, alpha = self.args, self.alpha
        drawn = self.buffer.sample(self.rng, args.batch_size)
        batch = Batch(*(torch.from_numpy(array).to(self.device) for array in drawn))
        of_critics = self._critic_losses(self.actor, self.critics, self.targets, batch, alpha, args.gamma)
        self._of_critics.zero_gradients()
        (of_critics.qf1 + of_critics.qf2).backward()  # type: ignore[no-untyped-call]
        self._adams["adam_critics"].step(args.q_lr)

        of_actor = self._actor_losses(self.actor, self.critics, batch.obs, alpha, self._target_entropy)
        self._of_actor.zero_gradients()
        of_actor.actor.backward()  # type: ignore[no-untyped-call]
        self._adams["adam_actor"].step(args.policy_lr)
        qf1, qf2 = of_critics.qf1.detach(), of_critics.qf2.detach()
        charts = {
            "qf1_values": of_critics.qf1_values, "qf2_values": of_critics.qf2_values,
            "qf1_loss": qf1, "qf2_loss": qf2, "qf_loss": (qf1 + qf2) / 2,
            "actor_loss": of_actor.actor.detach(), "alpha": alpha,
        }  # fmt: skip
        if args.autotune:
            # alpha_loss = -alpha · excess, which is its own derivative by log alpha.
            charts["alpha_loss"] = -alpha * of_actor.excess
            assert self.log_alpha.grad is not None
            self.log_alpha.grad.copy_(charts["alpha_loss"])
            self._adams["adam_alpha"].step(args.q_lr)
        return charts

    def _move_targets(self, share: float) -> None:
        self._of_targets.block.data.lerp_(self._of_critics.block.data, share)

    def _check_finite(self, loss: float) -> None:
        """Before anything of this block is saved: a checkpoint of such weights would be worth nothing."""
        weights = self._of_actor.block.data.sum() + self._of_critics.block.data.sum() + self.log_alpha.data.sum()
        if not (math.isfinite(loss) and math.isfinite(weights)):
            raise TrainingStopped(f"loss or weights are not finite at step {self.step}: lower --q-lr and --policy-lr")

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        state = snapshot_of(self, {name: adam.arrays() for name, adam in self._adams.items()})
        arrays = {**state.arrays, **arrays_of(self.targets, "targets")}
        arrays["log_alpha"] = self.log_alpha.data.cpu().numpy().copy()
        return replace(state, arrays=arrays, replay=self.buffer)

    def restore(self, state: TrainingState) -> str:
        exact = restore_into(self, state, RESUME_NEEDS)
        load_weights(self.targets, state.part("targets"), what="the checkpoint")
        self.log_alpha.data.copy_(torch.from_numpy(state.arrays["log_alpha"].copy()))
        for name, adam in self._adams.items():
            adam.restore(state.part(name))
        state.restore_replay(self.buffer)
        return "exact" if exact else NEW_EPISODES

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        load_weights(self.agent, weights, what=what)
        self._move_targets(1.0)

    def model(self) -> Any:
        """The actor's state dict, then the critics', as CleanRL's TD3 writes them; its `sac_atari` writes nothing."""
        return tuple(module.state_dict() for module in self.agent.children())


def train(args: Args, run: RunContext) -> Evaluation | None:
    """Train until the steps are used up, the return is reached or somebody asks to stop; then evaluate."""
    check_args(args, RULES)
    envs = run.make_envs(args)
    learner = SacLearner(args, envs, make_replay(args, envs, folder=run.folder.root), device_for(args))
    return train_to_the_end(learner, run, total=args.total_timesteps)


if __name__ == "__main__":
    from cleanrl_worker.training.standalone import run_alone

    run_alone("sac_atari", Args, train)
