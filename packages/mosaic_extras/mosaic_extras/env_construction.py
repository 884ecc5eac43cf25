"""Construction of Gymnasium environments, with errors that name the remedy."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import Any

from mosaic_wire.env_kwargs import mistyped_switch, parse_env_kwargs
from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.worker_spec import nearest

from mosaic_extras.environments import sets_of_environment

_REGISTERING = {"atari": "ale_py", "minigrid": "minigrid"}
"""Requirement sets whose package registers its ids when it is imported"""


def read_env_kwargs(given: Any) -> dict[str, Any]:
    """Return `env_kwargs` of a worker config, an object or text; raise ConfigProblems."""
    if isinstance(given, Mapping):
        return dict(given)
    try:
        return parse_env_kwargs(str(given or ""))
    except ValueError as error:
        raise _refused("env_kwargs", str(error)) from None


def register(env_id: str) -> None:
    """Import the package of an id: `package.module:Env-v0`, or a family whose package is known."""
    import gymnasium

    logging.getLogger("gymnasium").setLevel(logging.ERROR)
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    elif name not in gymnasium.registry:
        for brought in sets_of_environment(name):
            if brought in _REGISTERING:
                importlib.import_module(_REGISTERING[brought])


def make_env(
    env_id: str,
    env_kwargs: Mapping[str, Any],
    *,
    renders: bool = True,
    remedy: str = "",
    kwargs_path: str = "env_kwargs",
) -> Any:
    """Return the environment, with RGB frames if it can render; raise ConfigProblems if it cannot be created.

    `remedy` is appended to errors that a missing package may have caused.
    """
    import gymnasium

    # The checker would test every step for errors of the environment's author.
    options: dict[str, Any] = {**env_kwargs, "disable_env_checker": True}
    try:
        register(env_id)
        if env_id in gymnasium.registry and (wrong := mistyped_switch(gymnasium.registry[env_id], env_kwargs)):
            raise _refused(kwargs_path, wrong)
        return _made(env_id, options) if renders else gymnasium.make(env_id, **options)
    except ConfigProblems:
        raise
    except gymnasium.error.UnregisteredEnv as error:
        hint = nearest(env_id, gymnasium.registry)
        raise _refused("env_id", f"there is no environment {env_id!r}: {error}{remedy}", hint) from None
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise _refused("env_id", f"environment {env_id!r} cannot be made: {error}") from error
        raise _refused(kwargs_path, f"{env_id} cannot be made with these arguments: {error}") from error
    except Exception as error:  # the boundary to other people's code: whatever it raises is the answer
        message = f"environment {env_id!r} cannot be made: {type(error).__name__}: {error}{remedy}"
        raise _refused("env_id", message) from error


def _made(env_id: str, options: Mapping[str, Any]) -> Any:
    import gymnasium

    try:
        env = gymnasium.make(env_id, **options, render_mode="rgb_array")
        env.reset(seed=0)
        env.render()
    except Exception:  # noqa: BLE001 - rendering may need packages; without it the environment itself may be made
        return gymnasium.make(env_id, **options)
    return env


def _refused(path: str, message: str, hint: str | None = None) -> ConfigProblems:
    return ConfigProblems("the worker config", [Problem(path, message, hint)])
