"""The worlds of the reference worker: a random walk without dependencies, or a Gymnasium environment."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.worker_spec import nearest


class World(Protocol):
    """A world that a run steps."""

    def step(self, rng: random.Random) -> float | None:
        """Take one random action; return the episode's return if it ended with this step, else None."""

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""

    def close(self) -> None:
        """Release resources."""


class Walk:
    """A random walk on a line; every 100 steps are an episode whose return is the distance covered."""

    def __init__(self) -> None:
        self.position = self.steps = self.start = 0

    def step(self, rng: random.Random) -> float | None:
        self.position += 1 if rng.random() < 0.5 else -1
        self.steps += 1
        if self.steps < 100:
            return None
        distance = float(self.position - self.start)
        self.steps, self.start = 0, self.position
        return distance

    def state(self) -> dict[str, Any]:
        return {"position": self.position, "steps": self.steps, "start": self.start}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.position, self.steps, self.start = state["position"], state["steps"], state["start"]

    def close(self) -> None:
        pass


class GymnasiumWorld:
    """Random actions in a Gymnasium environment. After a resume it starts a new episode."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._running = False
        self._return = 0.0

    def step(self, rng: random.Random) -> float | None:
        if not self._running:
            seed = rng.getrandbits(31)
            self._environment.action_space.seed(seed)
            self._environment.reset(seed=seed)
            self._running, self._return = True, 0.0
        _, reward, terminated, truncated, _ = self._environment.step(self._environment.action_space.sample())
        self._return += float(reward)
        self._running = not (terminated or truncated)
        return None if self._running else self._return

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._running = False

    def close(self) -> None:
        self._environment.close()


def make_world(env_id: str) -> World:
    """Return the world of this name, importing Gymnasium only if needed; raise ConfigProblems."""
    if env_id == "none":
        return Walk()
    try:
        import gymnasium
    except ImportError:
        message = "needs the package gymnasium, which is not installed; install it, or use env_id 'none'"
        raise ConfigProblems("the worker config", [Problem("env_id", message)]) from None
    try:
        return GymnasiumWorld(gymnasium.make(env_id))
    except (gymnasium.error.Error, ImportError) as error:
        hint = nearest(env_id, [*gymnasium.registry, "none"])
        message = f"there is no environment {env_id!r}: {error}"
        raise ConfigProblems("the worker config", [Problem("env_id", message, hint)]) from None
