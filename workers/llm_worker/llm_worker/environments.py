"""Making environments: their requirement sets, their arguments, and an error that says what to do."""

from __future__ import annotations

import importlib
import json
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mosaic_extras.environments import sets_of_environment
from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.worker_spec import nearest

_REGISTERING = {"atari": "ale_py", "minigrid": "minigrid"}
"""Requirement sets whose package registers its ids when it is imported"""
_PAIR = r"\s*[A-Za-z_]\w*\s*=[^=,{}\[\]\"']*"
_PAIRS = re.compile(f"{_PAIR}(,{_PAIR})*")
_CONSTANTS = {"True": True, "False": False, "None": None}


def read_env_kwargs(given: Any) -> dict[str, Any]:
    """Return arguments of the environment: an object, its JSON, or `is_slippery=false,map_name=8x8`."""
    value = given or {}
    if isinstance(given, str) and given:
        try:
            value = json.loads(given)
        except ValueError as error:
            if not _PAIRS.fullmatch(given):
                message = f"is not JSON: {error}; write '{{\"is_slippery\": false}}' or is_slippery=false"
                raise _refused("env_kwargs", message) from None
            pairs = (pair.partition("=") for pair in given.split(","))
            value = {name.strip(): _value(text.strip()) for name, _, text in pairs}
    if not isinstance(value, dict):
        raise _refused("env_kwargs", f"must be a JSON object, not {type(value).__name__}")
    return value


def _value(text: str) -> Any:
    """Return a number, true, false, null or a plain text."""
    with suppress(ValueError):
        return _CONSTANTS[text] if text in _CONSTANTS else json.loads(text)
    return text


def make(env_id: str, env_kwargs: Mapping[str, Any]) -> Any:
    """Return the environment, with RGB frames if it can render; raise ConfigProblems if it cannot be created."""
    import gymnasium

    logging.getLogger("gymnasium").setLevel(logging.ERROR)
    # The checker would test every step for errors of the environment's author.
    options: dict[str, Any] = {**env_kwargs, "disable_env_checker": True}
    try:
        module, _, name = env_id.rpartition(":")
        if module:
            importlib.import_module(module)
        for brought in sets_of_environment(name):
            if name not in gymnasium.registry and brought in _REGISTERING:
                importlib.import_module(_REGISTERING[brought])
        try:
            env = gymnasium.make(name, **options, render_mode="rgb_array")
            env.reset(seed=0)
            env.render()
        except Exception:  # noqa: BLE001 - rendering may need packages; play without it
            env = gymnasium.make(name, **options)
        return env
    except gymnasium.error.UnregisteredEnv as error:
        hint = nearest(env_id, gymnasium.registry)
        raise _refused("env_id", f"there is no environment {env_id!r}: {error}", hint) from None
    except TypeError as error:
        raise _refused("env_kwargs", f"{env_id} cannot be made with these arguments: {error}") from error
    except Exception as error:  # the boundary to other people's code: whatever it raises is the answer
        raise _refused("env_id", f"environment {env_id!r} cannot be made: {type(error).__name__}: {error}") from error


def _refused(path: str, message: str, hint: str | None = None) -> ConfigProblems:
    return ConfigProblems("the worker config", [Problem(path, message, hint)])
