"""A trained policy, from a checkpoint folder or a file with weights; and the random one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.env_kwargs import read_env_kwargs
from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.channel import Channel
from cleanrl_worker.training.checkpointing import load_state
from cleanrl_worker.training.envs import ObservationNormalizer
from cleanrl_worker.training.foreign_model import read_foreign_model
from cleanrl_worker.training.policies import Policy


@dataclass(frozen=True)
class TrainedPolicy:
    """Weights, and what is known of the training they come from."""

    algo: str
    path: Path
    weights: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]
    """for the history: step, whether it was a file with weights alone …"""
    args: Mapping[str, Any] = field(default_factory=dict)
    normalizer: ObservationNormalizer | None = None

    @classmethod
    def load(cls, path: Path, algo: str) -> TrainedPolicy:
        """Read a policy; raise BadInput with the reason when that is not possible."""
        if path.is_file():
            model = read_foreign_model(path)
            facts = {"step": 0, "weights_only": True, "sha256": model.sha256, "shape": model.shape}
            facts["statistics"] = sorted(model.statistics)
            normalizer = ObservationNormalizer.of(model.part("obs_norm"))
            return cls(algo, path, model.weights_for(algo), facts, dict(model.facts.get("args") or {}), normalizer)
        state = load_state(path, algo)
        normalizer = ObservationNormalizer.of(state.part("obs_norm"))
        facts = {"step": state.step, "weights_only": False}
        return cls(algo, path, state.part("agent"), facts, dict(state.values["args"]), normalizer)

    def for_env(self, module: ModuleType, env_id: str, env: gym.Env[Any, Any]) -> Policy:
        """Return the policy for this environment; `module` is the algorithm's."""
        if not hasattr(module, "make_policy"):
            raise BadInput(f"policies of {self.algo} cannot be played yet")
        policy: Policy = module.make_policy(
            env_id, env.observation_space, env.action_space, self.weights, normalizer=self.normalizer
        )
        return policy


def load_policy(
    source: str | None, algo: str, args: Any, channel: Channel, *, purpose: str
) -> tuple[TrainedPolicy | None, dict[str, Any]]:
    """Load the policy of a run, if it has one, and report it.

    Return it with the environment's arguments: those of the run, else those of the policy's training.
    """
    env_kwargs = read_env_kwargs(args.env_kwargs)
    if not source:
        return None, env_kwargs
    trained = TrainedPolicy.load(Path(source), algo)
    channel.send("checkpoint_loaded", {"path": source, "for": purpose, **trained.facts})
    return trained, env_kwargs or read_env_kwargs(str(trained.args.get("env_kwargs") or "{}"))


class RandomActions:
    """Act uniformly over the action space, the baseline for a policy; each episode has a generator of its own."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self._space = space

    def act(self, obs: np.ndarray, rngs: Sequence[np.random.Generator] | None) -> np.ndarray:
        """Return an action for each episode."""
        assert rngs is not None, "a random policy has no best action"
        return np.stack([self._draw(rng) for rng in rngs])

    def _draw(self, rng: np.random.Generator) -> Any:
        space = self._space
        if isinstance(space, gym.spaces.Discrete):
            return rng.integers(space.n)  # counted from 0, as a network's are
        if isinstance(space, gym.spaces.Box) and space.is_bounded():
            return rng.uniform(space.low, space.high).astype(space.dtype)
        space.seed(int(rng.integers(2**31)))  # other spaces draw from a generator inside them
        return space.sample()
