"""The playable environments: gymnasium's own, and those of requirement sets.

A set is an interpreter that sees this environment's packages and its own. To play one of its games the worker starts
itself again in it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from mosaic_extras.env_construction import make_env
from mosaic_extras.environments import sets_of_environment
from mosaic_extras.overlays import check_sets, enter
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.interactive import describe_space, facts_about, plain
from mosaic_wire.paths import Home

_TIMEOUT_S = 60.0


_PACKAGES = {"atari": "ale_py", "minigrid": "minigrid", "box2d": "Box2D", "mujoco": "mujoco"}
"""Requirement sets with playable environments, and the package that each brings"""
_REGISTERING = ("atari", "minigrid")
"""Those whose package registers its ids when it is imported"""
PATTERNS = ("ALE/*", "MiniGrid-*", "BabyAI-*")
"""Ids that are registered when their package is imported"""

_FAMILIES = {
    "classic_control": "Classic control",
    "toy_text": "Toy text",
    "box2d": "Box2D",
    "mujoco": "MuJoCo",
    "ale_py": "Atari",
    "minigrid": "MiniGrid",
    "babyai": "BabyAI",
}
_VERSION = re.compile(r"-v(\d+)$")


@dataclass(frozen=True)
class Playable:
    """An environment in a list."""

    env_id: str
    family: str
    needs: str = ""
    """The requirement set that has to be installed first; empty if it is playable now"""
    is_newest: bool = True
    """Whether it is the latest installed version"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def set_of(env_id: str) -> str:
    """Return the requirement set that provides this environment; empty for gymnasium's own and unknown ones."""
    return next((name for name in sets_of_environment(env_id) if name in _PACKAGES), "")


def is_importable(name: str) -> bool:
    """Return whether this process can import the package of a set."""
    return importlib.util.find_spec(_PACKAGES[name]) is not None


def enter_overlay(home: Home, env_id: str, argv: Sequence[str]) -> None:
    """Replace this process by one where the environment is installed; return if it is installed here or nowhere."""
    brought = set_of(env_id)
    # Where it is not installed, creating the environment reports what is missing.
    if brought and not is_importable(brought) and check_sets(home, [brought]).is_ready:
        enter(home, [brought], "human_worker.cli", argv)


def remedy(env_id: str) -> str:
    """Return how to install what an environment needs, or an empty text."""
    brought = set_of(env_id)
    missing = brought and not is_importable(brought)
    return f"; install its requirement set: mosaic extras install {brought}" if missing else ""


# ---------------------------------------------------------------------- listing


def base_ids() -> tuple[str, ...]:
    """Return the ids in gymnasium's registry that can be created here or in an overlay."""
    return tuple(name for name, spec in _registry().items() if _is_usable(name, spec.entry_point))


def _registry() -> Mapping[str, Any]:
    import gymnasium

    logging.getLogger("gymnasium").setLevel(logging.ERROR)
    return gymnasium.registry


def _is_usable(name: str, entry_point: object) -> bool:
    # phys2d and tabular need JAX; GymV… are stubs that only raise.
    return isinstance(entry_point, str) and not name.startswith(("phys2d/", "tabular/", "GymV"))


def family_of(env_id: str, entry_point: object) -> str:
    entry = str(entry_point).lower()
    if env_id.startswith("BabyAI-"):
        return "BabyAI"
    return next((family for part, family in _FAMILIES.items() if part in entry), "Other")


def list_environments(home: Home) -> list[Playable]:
    """Return every environment that is playable now or after an installation."""
    missing = {name for name in _PACKAGES if not is_importable(name) and not check_sets(home, [name]).is_ready}
    found = {env_id: family_of(env_id, _registry()[env_id].entry_point) for env_id in base_ids()}
    needs = {env_id: brought for env_id in found if (brought := set_of(env_id)) in missing}
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="list") as pool:
        for ids in pool.map(lambda name: _ids_of(home, name), _REGISTERING):
            found |= ids
    newest = _newest(found)
    return [
        Playable(env_id, family, needs.get(env_id, ""), env_id in newest) for env_id, family in sorted(found.items())
    ]


def _newest(env_ids: Mapping[str, str]) -> set[str]:
    versions: dict[str, tuple[int, str]] = {}
    for env_id in env_ids:
        stem, version = _VERSION.sub("", env_id), _VERSION.search(env_id)
        candidate = (int(version[1]) if version else 0, env_id)
        versions[stem] = max(versions.get(stem, (-1, "")), candidate)
    return {env_id for _, env_id in versions.values()}


def _ids_of(home: Home, name: str) -> dict[str, str]:
    """Return the ids that a set registers, queried in its own interpreter and cached with its overlay."""
    package = _PACKAGES[name]
    if is_importable(name):
        importlib.import_module(package)
        return ids_registered_by(package)
    answer = check_sets(home, [name])
    if not answer.is_ready or answer.python is None:
        return {}
    kept = home.cache / "environments" / f"human-{name}-{answer.overlays[0].key}.json"
    try:
        return {str(env_id): str(family) for env_id, family in read_json_object(kept).items()}
    except (OSError, ValueError):
        pass
    argv = [str(answer.python), "-m", "human_worker.environments", package]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=True)
        ids = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return {}  # a set that does not answer must not hide other sets
    try:
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json_atomically(kept, ids)
    except OSError:
        pass  # asked again next time
    return dict(ids)


def ids_registered_by(package: str) -> dict[str, str]:
    """Return the ids that an imported package has registered, with their families."""
    return {
        env_id: family_of(env_id, spec.entry_point)
        for env_id, spec in _registry().items()
        if str(spec.entry_point).startswith(package) and (package != "ale_py" or env_id.startswith("ALE/"))
    }


# ---------------------------------------------------------------- arguments of environments


_NOT_OFFERED = ("self", "render_mode", "game")
_CHOICES: Mapping[str, tuple[Any, ...]] = {"map_name": ("4x4", "8x8"), "obs_type": ("rgb", "grayscale", "ram")}


def make(env_id: str, env_kwargs: Mapping[str, Any]) -> Any:
    """Return the environment, with RGB frames if it can render; raise ConfigProblems if it cannot be created."""
    return make_env(env_id, env_kwargs, remedy=remedy(env_id), kwargs_path="extras.env_kwargs")


def describe_environment(env_id: str, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a form and a key map need; raise ConfigProblems."""
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
    """Return the parameters of its class: name, kind (bool, int, float, str or json), default, choices."""
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


if __name__ == "__main__":
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some packages print while they are imported
    importlib.import_module(sys.argv[1])
    with answer:
        answer.write(json.dumps(ids_registered_by(sys.argv[1])) + "\n")
