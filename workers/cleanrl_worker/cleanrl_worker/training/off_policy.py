"""What DDPG, TD3 and SAC share: one step of the environments, one update from the replay buffer, and so on.

An algorithm file adds its networks and its `update`, which reads nothing but fixed tensors: it can be compiled, or
recorded as a CUDA graph, as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from cleanrl_worker.agents.continuous import ActorCritic
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training.compiling import Update, accelerated
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs
from cleanrl_worker.training.numpy_actor import ContinuousActing
from cleanrl_worker.training.parameters import FlatParameters
from cleanrl_worker.training.replay import ReplayBuffer, Transitions
from cleanrl_worker.training.rollout_state import NEW_EPISODES, restore_into, snapshot_of
from cleanrl_worker.training.run_context import RunContext
from cleanrl_worker.training.state import TrainingState
from cleanrl_worker.training.weights import load_weights

BLOCK_STEPS = 100
"""Steps between two safe points, and between two points of a chart"""

Figures = dict[str, torch.Tensor]
"""What an update leaves for `charts`"""


@dataclass(frozen=True)
class ContinuousSpaces:
    """Vectors in, vectors out, between bounds."""

    observations: int
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> ContinuousSpaces:
        """Measure an environment's spaces; BadInput where these algorithms cannot play it."""
        shape = observations.shape or ()
        if len(shape) != 1:
            raise BadInput(f"{algo} needs observations that are vectors; those of {env_id} have shape {shape}")
        if not isinstance(actions, gym.spaces.Box):
            raise BadInput(f"{algo} needs continuous actions; {env_id} has {type(actions).__name__} actions")
        if len(actions.shape) != 1:
            raise BadInput(f"{algo} needs actions that are vectors; those of {env_id} have shape {actions.shape}")
        if not actions.is_bounded():
            raise BadInput(
                f"{algo} needs actions with bounds on both sides; those of {env_id} are between "
                f"{actions.low.min():g} and {actions.high.max():g}: wrap it in gymnasium.wrappers.RescaleAction"
            )
        return cls(shape[0], actions.low.astype(np.float32), actions.high.astype(np.float32))

    @property
    def actions(self) -> int:
        return len(self.low)

    @property
    def scale(self) -> torch.Tensor:
        """Half of the way between the bounds: what tanh's 1 is stretched to."""
        return torch.from_numpy((self.high - self.low) / 2)

    @property
    def bias(self) -> torch.Tensor:
        return torch.from_numpy((self.high + self.low) / 2)


def actor_weights(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of all networks' weights those of the actor."""
    return {name.removeprefix("actor."): array for name, array in weights.items() if name.startswith("actor.")}


class StagedBatch:
    """The tensors an update reads, always in the same memory: filled on the host, sent to a GPU in one copy."""

    def __init__(self, size: int, spaces: ContinuousSpaces, noises: int, gamma: float, device: torch.device) -> None:
        seen, done = spaces.observations, spaces.actions
        shapes = ((size, seen + done), (size, seen), (size, 1), (size, 1), (noises, size, done))
        self._host = torch.zeros(sum(math.prod(shape) for shape in shapes), pin_memory=device.type == "cuda")
        self._block = self._host.to(device)
        self._sent = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.inputs, self.next_obs, self.rewards, self.discounts, self.noise = _split(self._block, shapes)
        """Observations and actions side by side; discounts are 0 where nothing follows; noise is [draw, row, action]"""
        self.obs = self.inputs[:, :seen]
        inputs, next_obs, rewards, discounts, noise = (part.numpy() for part in _split(self._host, shapes))
        self._columns = Transitions(inputs[:, :seen], inputs[:, seen:], rewards[:, 0], next_obs, discounts[:, 0])
        self._noise, self._gamma = noise, np.float32(gamma)

    def fill(self, transitions: Transitions, rng: np.random.Generator, *, noises: int) -> None:
        """Take a batch over, and draw the standard normal noise its update needs."""
        if self._sent is not None:
            self._sent.synchronize()  # the copy of the batch before this one
        for column, values in zip(self._columns, transitions, strict=True):
            column[...] = values
        discounts = self._columns.terminated
        np.subtract(1, discounts, out=discounts)
        discounts *= self._gamma
        if noises:
            rng.standard_normal(dtype=np.float32, out=self._noise[:noises])
        if self._sent is not None:
            self._block.copy_(self._host, non_blocking=True)
            self._sent.record()


def _split(block: torch.Tensor, shapes: tuple[tuple[int, ...], ...]) -> list[torch.Tensor]:
    parts = torch.split(block, [math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


class OffPolicyLearner:
    """The state of a run. A subclass makes the networks and says what an update is."""

    agent: ActorCritic
    actor_parameters: FlatParameters
    acting: ContinuousActing
    resume_needs: tuple[str, ...]
    cure = "lower --learning-rate"
    """What helps against numbers that are not finite"""

    def __init__(
        self, args: Any, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device, *, most_noises: int
    ) -> None:
        self.args, self.envs, self.buffer, self.device = args, envs, buffer, device
        self.spaces = ContinuousSpaces.of(args.exp_name, args.env_id, envs.observation_space, envs.action_space)
        self.rng = np.random.Generator(np.random.PCG64(args.seed))
        torch.manual_seed(args.seed)  # the networks are made after this
        self.batch = StagedBatch(args.batch_size, self.spaces, most_noises, args.gamma, device)
        self.update_for = cache(self._accelerated_update)
        self.episodes = EpisodeTracker(envs.num_envs)
        self.step = 0
        self.next_obs = np.zeros(0)

    # -- for the algorithm to say

    def due(self, count: int) -> tuple[bool, bool]:
        """Whether the policy and whether the target networks move in this update; `count` numbers the updates."""
        raise NotImplementedError

    def noises(self, policy: bool) -> int:
        """How many draws of noise an update needs."""
        raise NotImplementedError

    def update(self, policy: bool, targets: bool) -> Figures:
        """Learn from `self.batch`."""
        raise NotImplementedError

    def charts(self, figures: Figures) -> dict[str, float]:
        """What the last updates left, as charts."""
        raise NotImplementedError

    def own_arrays(self) -> dict[str, Mapping[str, np.ndarray]]:
        """What a checkpoint needs besides the networks, by prefix."""
        raise NotImplementedError

    def restore_own(self, state: TrainingState) -> None:
        raise NotImplementedError

    def copy_to_targets(self) -> None:
        """Make the target networks equal to the others."""
        raise NotImplementedError

    # -- acting and learning

    def begin_episodes(self) -> None:
        self.next_obs = self.envs.reset(self.args.seed + self.step)

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        seen = obs.astype(np.float32, copy=False)
        if rng is None:
            return self.acting.best(seen)
        return self.acting.sample(seen, self._draw(rng, len(obs)))

    def _draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return rng.standard_normal((rows, self.spaces.actions), dtype=np.float32)

    def learn(self, run: RunContext) -> None:
        """Go on to the next multiple of BLOCK_STEPS."""
        until = min((self.step // BLOCK_STEPS + 1) * BLOCK_STEPS, self.args.total_timesteps)
        figures: Figures = {}
        while self.step < until:
            self._take_step(run)
            if self._has_enough():
                figures |= self._update_once()
        charts = self.charts(figures) if figures else {}
        self._check_finite(charts)
        charts |= {
            "charts/replay_size": len(self.buffer),
            "charts/replay_bytes": self.buffer.nbytes,
            "charts/SPS": run.steps_per_second(self.step),
        }
        run.writer.add_scalars(charts, self.step)

    def _take_step(self, run: RunContext) -> None:
        obs = self.next_obs
        if self.step < self.args.learning_starts:
            share = self.rng.random((len(obs), self.spaces.actions), dtype=np.float32)
            actions = self.spaces.low + share * (self.spaces.high - self.spaces.low)
        else:
            actions = self.acting.sample(obs.astype(np.float32, copy=False), self._draw(self.rng, len(obs)))
            if not np.isfinite(actions).all():
                raise self._not_finite()
        step = self.envs.step(actions)
        self.step += self.envs.num_envs
        if not (np.isfinite(step.final_obs).all() and np.isfinite(step.rewards).all()):
            raise TrainingStopped(
                f"the environment gave an observation or a reward that is not finite at step {self.step}; "
                "nothing can be learned from it: correct the environment"
            )
        self.buffer.add(obs, actions, step.rewards, step.final_obs, step.terminated)
        self.next_obs = step.obs
        for episode_return, length in self.episodes.add(step):
            charts = {"charts/episodic_return": episode_return, "charts/episodic_length": length}
            run.writer.add_scalars(charts, self.step)

    def _has_enough(self) -> bool:
        """Tell whether learning may begin; a run that resumes without its replay buffer has to fill it first, too."""
        args = self.args
        return self.step > args.learning_starts and len(self.buffer) >= min(args.learning_starts, args.buffer_size)

    def _update_once(self) -> Figures:
        policy, targets = self.due(self.step // self.envs.num_envs)
        transitions = self.buffer.sample(self.rng, self.args.batch_size)
        self.batch.fill(transitions, self.rng, noises=self.noises(policy))
        figures = self.update_for(policy, targets)()
        if policy:
            self.actor_parameters.refresh_host()
        return figures

    def _accelerated_update(self, policy: bool, targets: bool) -> Update[Figures]:
        update = accelerated(
            partial(self.update, policy, targets),
            self.device,
            compile=self.args.compile,
            cudagraphs=self.args.cudagraphs,
        )
        # Without autograd's bookkeeping; torch.compile knows only the milder way to do without it.
        return (torch.no_grad if self.args.compile else torch.inference_mode)()(update)

    def _check_finite(self, charts: Mapping[str, float]) -> None:
        """Before anything of this block is saved: a checkpoint of such weights would be worth nothing."""
        numbers = [*charts.values(), *(float(weight.sum()) for weight in self.agent.state_dict().values())]
        if not all(math.isfinite(number) for number in numbers):
            raise self._not_finite()

    def _not_finite(self) -> TrainingStopped:
        return TrainingStopped(f"loss or weights are not finite at step {self.step}: {self.cure}")

    # -- checkpoints

    def snapshot(self) -> TrainingState:
        return replace(snapshot_of(self, self.own_arrays()), replay=self.buffer)

    def restore(self, state: TrainingState) -> str:
        exact = restore_into(self, state, self.resume_needs)
        self.restore_own(state)
        state.restore_replay(self.buffer)
        return "exact" if exact else NEW_EPISODES

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        load_weights(self.agent, weights, what=what)
        self.actor_parameters.refresh_host()
        self.copy_to_targets()

    def model(self) -> Any:
        """The actor's state dict, then the critics', as CleanRL's files have them."""
        return tuple(module.state_dict() for module in self.agent.children())
