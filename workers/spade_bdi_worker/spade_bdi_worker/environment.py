"""The environment of a run: its requirement sets, and how it is made."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mosaic_extras.env_construction import make_env
from mosaic_extras.environments import sets_of_environment
from mosaic_extras.errors import RequirementSetError
from mosaic_extras.overlays import SetCheck, check_sets, enter
from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.paths import Home

ENVIRONMENTS = (
    *("FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1", "CliffWalkingSlippery-v1", "Taxi-v4", "Blackjack-v1"),
    *("CartPole-v1", "MountainCar-v0", "Acrobot-v1"),
)
PATTERNS = ("MiniGrid-*", "BabyAI-*")
_PACKAGES = {"atari": "ale_py", "box2d": "Box2D"}
"""The package of a set that has another name"""


def sets_of(engine: str, env_id: str) -> tuple[str, ...]:
    """Return the requirement sets of a run; () when this process can import what they bring."""
    sets = (engine, *sets_of_environment(env_id))
    lacking = any(importlib.util.find_spec(_PACKAGES.get(name, name)) is None for name in sets)
    return sets if lacking else ()


def missing_sets(home: Home, sets: Sequence[str]) -> SetCheck | None:
    """Return what is wrong with these sets, None when they are ready; raise ConfigProblems."""
    try:
        answer = check_sets(home, sets)
    except RequirementSetError as error:
        raise ConfigProblems("the worker config", [Problem("env_id", str(error))]) from None
    return None if answer.is_ready else answer


def enter_sets(home: Home, sets: Sequence[str]) -> None:
    """Continue in a process that has these sets; return when this one has them."""
    if sets:
        enter(home, sets, "spade_bdi_worker.cli", sys.argv[1:])


def make(env_id: str, env_kwargs: Mapping[str, Any], *, renders: bool) -> Any:
    """Return the environment; raise ConfigProblems when it cannot be created or its actions are not discrete."""
    env = make_env(env_id, env_kwargs, renders=renders)
    space: Any = env.action_space
    if type(space).__name__ != "Discrete" or int(space.start) != 0:
        env.close()
        message = f"{env_id} has the actions {space}; this worker needs discrete ones from 0"
        raise ConfigProblems("the worker config", [Problem("env_id", message)])
    return env
