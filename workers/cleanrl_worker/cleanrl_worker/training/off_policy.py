"""What DDPG, TD3 and SAC share: one step of the environments, one update from the replay buffer, and so on.

An algorithm file adds its networks and its `update` in torch, and names the fast engine for it. Both read only tensors
at fixed addresses, so they can be compiled or recorded as a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from cleanrl_worker.agents.continuous import ActorCritic
from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.training.checkpointing import TrainingState, load_weights
from cleanrl_worker.training.envs import VectorEnvs
from cleanrl_worker.training.fast_cpu import AUTOGRAD, FAST_CPU, Engine, choose_engine
from cleanrl_worker.training.fast_cpu.actor_critic import UpdateStats, compare
from cleanrl_worker.training.optimizers import Trained, Update, accelerated
from cleanrl_worker.training.policies import ContinuousActing
from cleanrl_worker.training.replay import ReplayBuffer, Transitions
from cleanrl_worker.training.run import BLOCK_STEPS, Learner, RunContext


@dataclass(frozen=True)
class ContinuousSpaces:
    """Vector observations, and vector actions between bounds."""

    observations: int
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, algo: str, env_id: str, observations: gym.Space, actions: gym.Space) -> ContinuousSpaces:
        """Return the sizes and bounds of an environment's spaces; raise BadInput if they are not continuous vectors."""
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
        """Return the number of action dimensions."""
        return len(self.low)

    @property
    def scale(self) -> torch.Tensor:
        """Return half the range of the actions."""
        return torch.from_numpy((self.high - self.low) / 2)

    @property
    def bias(self) -> torch.Tensor:
        """Return the middle of the range of the actions."""
        return torch.from_numpy((self.high + self.low) / 2)


def actor_weights(weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the actor's weights out of those of all networks."""
    return {name.removeprefix("actor."): array for name, array in weights.items() if name.startswith("actor.")}


class StagedBatch:
    """The tensors an update reads, at fixed addresses: filled on the host, copied to a GPU at once."""

    def __init__(self, size: int, spaces: ContinuousSpaces, noises: int, gamma: float, device: torch.device) -> None:
        obs_size, action_size = spaces.observations, spaces.actions
        shapes = ((size, obs_size + action_size), (size, obs_size), (size, 1), (size, 1), (noises, size, action_size))
        self._host = torch.zeros(sum(math.prod(shape) for shape in shapes), pin_memory=device.type == "cuda")
        self._block = self._host.to(device)
        self._sent = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.inputs, self.next_obs, self.rewards, self.discounts, self.noise = _split(self._block, shapes)
        """Observations and actions concatenated; discounts are 0 after a termination; noise is [sample, row, action]"""
        self.obs, self.actions = self.inputs[:, :obs_size], self.inputs[:, obs_size:]
        inputs, next_obs, rewards, discounts, noise = (part.numpy() for part in _split(self._host, shapes))
        obs, actions = inputs[:, :obs_size], inputs[:, obs_size:]
        self._columns = Transitions(obs, actions, rewards[:, 0], next_obs, discounts[:, 0])
        self._noise, self._gamma = noise, np.float32(gamma)

    def fill(self, transitions: Transitions, rng: np.random.Generator, *, noises: int) -> None:
        """Copy a batch, and draw the standard normal noise of its update."""
        if self._sent is not None:
            self._sent.synchronize()  # wait for the copy of the previous batch
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


class OffPolicyLearner(Learner):
    """The state of a run. A subclass makes the networks and defines the update."""

    agent: ActorCritic
    actor: Trained
    critics: Trained
    acting: ContinuousActing
    fast: Any
    """The same update as `update`, with explicit gradients"""
    engine: Engine
    synthetic_spread = 1.0
    """Standard deviation of noise and next observations in the comparison of both engines"""

    def __init__(
        self, args: Any, envs: VectorEnvs, buffer: ReplayBuffer, device: torch.device, *, max_noises: int
    ) -> None:
        super().__init__(args, envs, device)
        self.buffer = buffer
        self.spaces = ContinuousSpaces.of(args.exp_name, args.env_id, envs.observation_space, envs.action_space)
        self.batch = StagedBatch(args.batch_size, self.spaces, max_noises, args.gamma, device)
        self.next_obs = np.zeros(0)

    def choose_engine(self, make_fast: Callable[[Any], Any]) -> None:
        """Choose the fast engine if it agrees with `update`; called when the networks and `acting` exist."""

        def compared() -> str:
            self.fast = make_fast(self)
            return compare(self, self.fast) if self.acting.in_numpy else "the actor's actions differ"

        self.engine = choose_engine(self, compared)
        self.update_for = cache(self._accelerated_update)

    def use_autograd(self) -> None:
        """Compute gradients by autograd from here on."""
        self.engine = replace(self.engine, name=AUTOGRAD)
        self.update_for = cache(self._accelerated_update)

    @property
    def trained(self) -> dict[str, Trained]:
        """Return the trained networks by their names in checkpoints."""
        return {"critics": self.critics, "actor": self.actor}

    # -- defined by the algorithm

    def due(self, count: int) -> tuple[bool, bool]:
        """Return whether update number `count` includes the policy, and whether the target networks."""
        policy = count % self.args.policy_frequency == 0
        return policy, policy

    def noises(self, policy: bool) -> int:
        """Return the number of noise samples per transition of an update."""
        raise NotImplementedError

    def update(self, policy: bool, targets: bool) -> UpdateStats:
        """Update from `self.batch`; return what `charts` needs."""
        raise NotImplementedError

    # -- acting and learning

    def act(self, obs: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
        """Return the best actions, or actions sampled with `rng`."""
        seen = obs.astype(np.float32, copy=False)
        if rng is None:
            return self.acting.best(seen)
        return self.acting.sample(seen, self._draw(rng, len(obs)))

    def _draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return rng.standard_normal((rows, self.spaces.actions), dtype=np.float32)

    def learn(self, run: RunContext) -> None:
        """Act and update until the next multiple of BLOCK_STEPS."""
        until = min((self.step // BLOCK_STEPS + 1) * BLOCK_STEPS, self.args.total_timesteps)
        stats: UpdateStats = {}
        while self.step < until:
            self._step_envs(run)
            if self._can_learn():
                stats |= self._update_once()
        charts = self.charts(stats) if stats else {}
        self._check_finite(charts)
        charts |= self.replay_charts(self.buffer, run)
        run.writer.add_scalars(charts, self.step)

    def _step_envs(self, run: RunContext) -> None:
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
        self.chart_episodes(step, run)

    def _can_learn(self) -> bool:
        """Return whether learning may begin; a run resumed without its replay buffer fills it first, too."""
        args = self.args
        return self.step > args.learning_starts and len(self.buffer) >= min(args.learning_starts, args.buffer_size)

    def _update_once(self) -> UpdateStats:
        policy, targets = self.due(self.step // self.envs.num_envs)
        transitions = self.buffer.sample(self.rng, self.args.batch_size)
        self.batch.fill(transitions, self.rng, noises=self.noises(policy))
        stats = self.update_for(policy, targets)()
        if policy:
            self.actor.parameters.refresh_host()
        return stats

    def _accelerated_update(self, policy: bool, targets: bool) -> Update[UpdateStats]:
        is_fast = self.engine.name == FAST_CPU
        update = accelerated(
            partial(self.fast.update if is_fast else self.update, policy, targets),
            self.device,
            compile=self.args.compile,
            cudagraphs=self.args.cudagraphs,
        )
        if not is_fast:
            return update
        # Without autograd; torch.compile supports only no_grad.
        return (torch.no_grad if self.args.compile else torch.inference_mode)()(update)

    def charts(self, stats: UpdateStats) -> dict[str, float]:
        """Return the charts of the last updates, under CleanRL's names."""
        means = {name: float(tensor.mean()) for name, tensor in stats.items() if not name.endswith("_errors")}
        losses = {
            name.replace("_errors", "_loss"): float(tensor.square().mean())
            for name, tensor in stats.items()
            if name.endswith("_errors")
        }
        charts = {name: means[name] for name in means if name.startswith("qf")} | losses
        if len(losses) > 1:
            charts["qf_loss"] = sum(losses.values()) / len(losses)
        if "actor_values" in means:
            charts["actor_loss"] = -means["actor_values"]
        renamed = {"actor_losses": "actor_loss", "alpha": "alpha", "alpha_loss": "alpha_loss"}
        charts |= {chart: means[name] for name, chart in renamed.items() if name in means}
        return {f"losses/{name}": value for name, value in charts.items()}

    def _check_finite(self, charts: Mapping[str, float]) -> None:
        """Stop before anything is saved: a checkpoint of such weights would be useless."""
        values = [*charts.values(), *(float(weight.sum()) for weight in self.agent.state_dict().values())]
        if not all(math.isfinite(value) for value in values):
            raise self._not_finite()

    def _not_finite(self) -> TrainingStopped:
        return TrainingStopped(f"loss or weights are not finite at step {self.step}: {self.remedy}")

    # -- checkpoints

    @property
    def optimizers(self) -> Mapping[str, Trained]:
        """Return the trained networks, which save optimizer and target network, by their names in checkpoints."""
        return self.trained

    def snapshot(self) -> TrainingState:
        """Return everything learning depends on, with the replay buffer."""
        return replace(super().snapshot(), replay=self.buffer)

    def restore(self, state: TrainingState) -> str:
        """Continue from a snapshot; return how the environments were restored."""
        environments = super().restore(state)
        state.restore_replay(self.buffer)
        return environments

    def load_agent(self, weights: Mapping[str, np.ndarray], what: str) -> None:
        """Load the networks' weights; the target networks become copies."""
        load_weights(self.agent, weights, what=what)
        self.actor.parameters.refresh_host()
        for part in self.trained.values():
            part.move_target(1.0)

    def model(self) -> Any:
        """Return the actor's state dict, then the critics', as CleanRL's files have them."""
        return tuple(module.state_dict() for module in self.agent.children())
