"""The part of a checkpoint that all learners from rollouts share: weights, generator, environments, episodes.

A learner adds what is its own (optimisers, a recurrent state, normalisers) and takes it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
from torch import nn

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs import EpisodeTracker, VectorEnvs
from cleanrl_worker.training.state import TrainingState

NEW_EPISODES = "new episodes: these environments cannot be restored within one"


class RolloutLearner(Protocol):
    """What is saved of a learner here."""

    args: Any
    envs: VectorEnvs
    episodes: EpisodeTracker
    step: int
    rng: np.random.Generator
    next_obs: np.ndarray

    @property
    def agent(self) -> nn.Module: ...

    def begin_episodes(self) -> None: ...

    def take_weights(self, weights: Mapping[str, np.ndarray], what: str) -> None: ...


def snapshot_of(learner: RolloutLearner, parts: Mapping[str, Mapping[str, np.ndarray]]) -> TrainingState:
    """Everything of this moment; `parts` are the learner's own arrays, in memory of their own, by prefix."""
    envs = learner.envs.snapshot()
    arrays = arrays_of(learner.agent, "agent")
    arrays |= {f"envs.{name}": array for name, array in envs.arrays.items()}
    arrays |= {f"{prefix}.{name}": array for prefix, part in parts.items() for name, array in part.items()}
    arrays["next_obs"] = learner.next_obs.copy()
    values = {
        "args": asdict(learner.args),
        "rng": learner.rng.bit_generator.state,
        "episodes": learner.episodes.snapshot(),
        "envs": dict(envs.values),
    }
    return TrainingState(learner.step, arrays, values)


def restore_into(learner: RolloutLearner, state: TrainingState, needs: Sequence[str]) -> bool:
    """Take it back; False when the environments had to begin new episodes."""
    check_it_fits(learner.args, state.values["args"], needs)
    learner.take_weights(state.part("agent"), "the checkpoint")
    learner.rng.bit_generator.state = state.values["rng"]
    learner.step = state.step
    obs = learner.envs.restore(state.environments())
    learner.episodes.restore(state.values["episodes"], mid_episode=obs is not None)
    if obs is None:
        learner.begin_episodes()
        return False
    learner.next_obs = state.arrays["next_obs"].copy()
    return True


def check_it_fits(args: Any, earlier: Mapping[str, Any], needs: Sequence[str]) -> None:
    """Refuse a checkpoint that was made with other values of these flags."""
    for name in needs:
        then, now = earlier.get(name, getattr(type(args), name)), getattr(args, name)
        if then != now:
            raise BadInput(f"the checkpoint was made with {name}={then!r}, this run has {now!r}")


def arrays_of(module: nn.Module, prefix: str) -> dict[str, np.ndarray]:
    """A network's weights by name, in memory of their own."""
    return {f"{prefix}.{name}": tensor.cpu().numpy().copy() for name, tensor in module.state_dict().items()}
