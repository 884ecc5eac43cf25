"""A trained policy, from a checkpoint folder or a file with weights; and the one that knows nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.acting import ObservationNormaliser, Policy
from cleanrl_worker.training.checkpoint import load_state
from cleanrl_worker.training.foreign_model import read_foreign_model


@dataclass(frozen=True)
class TrainedPolicy:
    """Weights, and what is known of the training they come from."""

    algo: str
    path: Path
    weights: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]
    """for the story: step, whether it was a file with weights alone …"""
    args: Mapping[str, Any] = field(default_factory=dict)
    normaliser: ObservationNormaliser | None = None

    @classmethod
    def load(cls, path: Path, algo: str) -> TrainedPolicy:
        """Read it; BadInput with the reason when that is not possible."""
        if path.is_file():
            model = read_foreign_model(path)
            facts = {"step": 0, "weights_only": True, "sha256": model.sha256, "shape": model.shape}
            facts["statistics"] = sorted(model.statistics)
            normaliser = ObservationNormaliser.of(model.part("obs_norm"))
            return cls(algo, path, model.weights_for(algo), facts, dict(model.facts.get("args") or {}), normaliser)
        state = load_state(path, algo)
        normaliser = ObservationNormaliser.of(state.part("obs_norm"))
        facts = {"step": state.step, "weights_only": False}
        return cls(algo, path, state.part("agent"), facts, dict(state.values["args"]), normaliser)

    def for_env(self, module: ModuleType, env_id: str, env: gym.Env[Any, Any]) -> Policy:
        """The policy as it plays this environment; `module` is the algorithm's."""
        if not hasattr(module, "make_policy"):
            raise BadInput(f"policies of {self.algo} cannot be played yet")
        policy: Policy = module.make_policy(
            env_id, env.observation_space, env.action_space, self.weights, normaliser=self.normaliser
        )
        return policy


class RandomPolicy:
    """Draws every action from the action space: what a trained policy has to beat."""

    facts: Mapping[str, Any] = {}
    args: Mapping[str, Any] = {}

    def for_env(self, module: ModuleType, env_id: str, env: gym.Env[Any, Any]) -> Policy:
        return RandomActions(env.action_space)


class RandomActions:
    """Uniform over the action space; each episode draws from a generator of its own."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self._space = space

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        assert rngs is not None, "there is no best action of a policy that acts at random"
        return np.stack([self._draw(rng) for rng in rngs])

    def _draw(self, rng: np.random.Generator) -> Any:
        space = self._space
        if isinstance(space, gym.spaces.Discrete):
            return rng.integers(space.n)  # counted from 0, as a network's are
        if isinstance(space, gym.spaces.Box) and space.is_bounded():
            return rng.uniform(space.low, space.high).astype(space.dtype)
        space.seed(int(rng.integers(2**31)))  # other spaces draw from a generator inside them
        return space.sample()
