"""The environment of a run: its requirement sets, and how it is made."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from mosaic_extras.environments import sets_of_environment
from mosaic_extras.errors import RequirementSetError
from mosaic_extras.overlays import SetCheck, check_sets, enter
from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.paths import Home
from mosaic_wire.worker_spec import nearest

ENVIRONMENTS = (
    *("FrozenLake-v1", "FrozenLake8x8-v1", "CliffWalking-v1", "CliffWalkingSlippery-v1", "Taxi-v4", "Blackjack-v1"),
    *("CartPole-v1", "MountainCar-v0", "Acrobot-v1"),
)
PATTERNS = ("MiniGrid-*", "BabyAI-*")
_PACKAGES = {"atari": "ale_py", "box2d": "Box2D"}
"""The package of a set that has another name"""
_PAIR = r"\s*[A-Za-z_]\w*\s*=[^=,{}\[\]\"']*"
_PAIRS = re.compile(f"{_PAIR}(,{_PAIR})*")
_CONSTANTS = {"True": True, "False": False, "None": None}


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


def read_env_kwargs(text: str) -> dict[str, Any]:
    """Return arguments of an environment, from JSON or `is_slippery=false,map_name=8x8`; raise ConfigProblems."""
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        if _PAIRS.fullmatch(text):
            pairs = (pair.partition("=") for pair in text.split(","))
            return {name.strip(): _value(written.strip()) for name, _, written in pairs}
        message = f'is not JSON: {error}; write e.g. {{"is_slippery": false}} or is_slippery=false'
        raise ConfigProblems("the worker config", [Problem("env_kwargs", message)]) from None
    if not isinstance(value, dict):
        message = f"must be a JSON object, not {type(value).__name__}"
        raise ConfigProblems("the worker config", [Problem("env_kwargs", message)])
    return value


def _value(text: str) -> Any:
    with suppress(ValueError):
        return _CONSTANTS[text] if text in _CONSTANTS else json.loads(text)
    return text


def make(env_id: str, env_kwargs: Mapping[str, Any], *, renders: bool) -> Any:
    """Return the environment, drawing where it can; raise ConfigProblems when it cannot be created or is not discrete.

    An error of its own code is an answer, whatever it is.
    """
    import gymnasium

    logging.getLogger("gymnasium").setLevel(logging.ERROR)
    options: dict[str, Any] = {**env_kwargs, "disable_env_checker": True}
    try:
        module, _, name = env_id.rpartition(":")
        if module:
            importlib.import_module(module)
        elif "minigrid" in sets_of_environment(name):
            importlib.import_module("minigrid")
        env = _made(gymnasium, env_id, options) if renders else gymnasium.make(env_id, **options)
    except gymnasium.error.UnregisteredEnv as error:
        hint = nearest(env_id, gymnasium.registry)
        raise _refused("env_id", f"there is no environment {env_id!r}: {error}", hint) from None
    except TypeError as error:
        path = "env_kwargs" if "unexpected keyword argument" in str(error) else "env_id"
        raise _refused(path, f"{env_id} cannot be made with these arguments: {error}") from error
    except Exception as error:
        raise _refused("env_id", f"{env_id!r} cannot be made: {type(error).__name__}: {error}") from error
    space: Any = env.action_space
    if type(space).__name__ != "Discrete" or int(space.start) != 0:
        env.close()
        raise _refused("env_id", f"{env_id} has the actions {space}; this worker needs discrete ones from 0")
    return env


def _made(gymnasium: Any, env_id: str, options: Mapping[str, Any]) -> Any:
    try:
        env = gymnasium.make(env_id, **options, render_mode="rgb_array")
        env.reset(seed=0)
        env.render()
    except Exception:  # noqa: BLE001 - drawing may need packages; without it the environment itself may be made
        return gymnasium.make(env_id, **options)
    return env


def _refused(path: str, message: str, hint: str | None = None) -> ConfigProblems:
    return ConfigProblems("the worker config", [Problem(path, message, hint)])
