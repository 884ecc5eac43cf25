"""What an environment can be made with: the parameters of its class, their defaults, and what they may be."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
from mosaic_wire.errors import ConfigProblems, Problem
from mosaic_wire.interactive import describe_space, facts_about, plain
from mosaic_wire.worker_spec import nearest

from human_worker.environments import cure, register

_NOT_OFFERED = ("self", "render_mode", "game")
_CHOICES: Mapping[str, tuple[Any, ...]] = {"map_name": ("4x4", "8x8"), "obs_type": ("rgb", "grayscale", "ram")}


def make(env_id: str, env_kwargs: Mapping[str, Any]) -> Any:
    """The environment, with pictures where it can draw them; ConfigProblems says why it cannot be made."""
    # The checker looks at every step for mistakes of somebody who writes an environment.
    options: dict[str, Any] = {**env_kwargs, "disable_env_checker": True}
    try:
        register(env_id)
        try:
            env = gymnasium.make(env_id, **options, render_mode="rgb_array")
            env.reset(seed=0)
            env.render()
        except Exception:  # noqa: BLE001 - drawing needs packages of many kinds; without them it is played blind
            env = gymnasium.make(env_id, **options)
        return env
    except gymnasium.error.UnregisteredEnv as error:
        hint = nearest(env_id, gymnasium.registry)
        raise _refused("env_id", f"there is no environment {env_id!r}: {error}{cure(env_id)}", hint) from None
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise _refused("env_id", f"environment {env_id!r} cannot be made: {error}") from error
        raise _refused("extras.env_kwargs", f"{env_id} cannot be made with these arguments: {error}") from error
    except Exception as error:  # the boundary to other people's code: whatever it raises is the answer
        words = f"environment {env_id!r} cannot be made: {type(error).__name__}: {error}{cure(env_id)}"
        raise _refused("env_id", words) from error


def _refused(path: str, message: str, hint: str | None = None) -> ConfigProblems:
    return ConfigProblems("the worker config", [Problem(path, message, hint)])


def describe_environment(env_id: str, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What a form and a key map need to know about it; raises ConfigProblems."""
    env = make(env_id, env_kwargs)
    try:
        return {
            "env_id": env_id,
            "action_space": describe_space(env.action_space),
            "observation_space": describe_space(env.observation_space),
            "draws": env.render_mode == "rgb_array",
            **facts_about(env),
            "arguments": arguments_of(env),
        }
    finally:
        env.close()


def arguments_of(env: Any) -> list[dict[str, Any]]:
    """The parameters of its class: name, kind (bool, int, float, str or json), default, choices."""
    spec = env.spec
    given = dict(spec.kwargs) if spec is not None else {}
    found = []
    for name, parameter in _parameters_of(_class_of(env)).items():
        if name in _NOT_OFFERED or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty and name not in given:
            continue
        default = given.get(name, None if parameter.default is parameter.empty else parameter.default)
        choices = _choices_of(env, name)
        found.append({"name": name, "kind": _kind_of(default), "default": plain(default), "choices": list(choices)})
    return found


def _parameters_of(made: type) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(made.__init__).parameters  # type: ignore[misc]  # only looked at


def _class_of(env: Any) -> type:
    entry = env.spec.entry_point if env.spec is not None else None
    if isinstance(entry, str):
        module, _, name = entry.partition(":")
        made = getattr(importlib.import_module(module), name, None)
        if inspect.isclass(made):
            return made
    return type(env.unwrapped)


def _kind_of(default: Any) -> str:
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float"), (str, "str")):
        if isinstance(default, kind):
            return name
    return "json"


def _choices_of(env: Any, name: str) -> tuple[Any, ...]:
    ale = getattr(env.unwrapped, "ale", None)
    if ale is not None and name in ("mode", "difficulty"):
        found = ale.getAvailableModes() if name == "mode" else ale.getAvailableDifficulties()
        return tuple(int(number) for number in found)
    return _CHOICES.get(name, ()) if name != "map_name" or "FrozenLake" in type(env.unwrapped).__name__ else ()
