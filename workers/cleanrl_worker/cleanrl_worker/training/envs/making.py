"""Making a single environment from its id: the package it comes from, and observations an algorithm can use."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np

from cleanrl_worker.errors import BadInput
from cleanrl_worker.requirement_sets.selection import sets_of_environment

_REGISTERED_BY = {"minigrid": "minigrid", "atari": "ale_py", "dm_control": "shimmy"}
"""Requirement sets whose ids exist only once a package was imported"""

_BROUGHT_BY = {
    "ale_py": "atari", "cv2": "atari", "envpool": "envpool", "procgen": "procgen", "gym3": "procgen",
    "pettingzoo": "pettingzoo", "tinyscaler": "pettingzoo", "multi_agent_ale_py": "pettingzoo", "mujoco": "mujoco",
    "minigrid": "minigrid", "shimmy": "dm_control",
}  # fmt: skip

_LEAST_PIXELS = 16
_OF_GRID_WORLDS = {"image", "direction", "mission"}
"""What MiniGrid shows; the image says it all"""


def make_plain(env_id: str, env_kwargs: Mapping[str, Any] | None = None, **options: Any) -> gym.Env:
    """Make one environment whose observations are a box; of grid worlds, what the agent sees."""
    register_family(env_id)
    # The checker looks at every step for mistakes of somebody who writes an environment, at a third of CartPole's cost.
    env = gym.make(env_id, disable_env_checker=True, **(env_kwargs or {}), **options)
    space = env.observation_space
    if isinstance(space, gym.spaces.Box):
        return env
    if isinstance(space, gym.spaces.Dict) and is_image(space.spaces.get("image")) and space.keys() <= _OF_GRID_WORLDS:
        return SeenImage(env)
    if images := list(_image_parts(space)):
        raise BadInput(
            f"{env_id}: its observations hold an image ({', '.join(images)}) beside other parts, and no network here "
            "plays both: register an id of your own whose environment gives the image alone or vectors alone "
            "(gymnasium.wrappers.TransformObservation, FilterObservation), and name it as module:Id-v0"
        )
    if not space.is_np_flattenable:
        raise BadInput(f"{env_id}: observations of type {type(space).__name__} cannot be made a flat vector")
    return gym.wrappers.FlattenObservation(env)


def _image_parts(space: gym.Space, name: str = "") -> Iterator[str]:
    """Name and shape of the images inside a structured observation."""
    parts: Any = ()
    if isinstance(space, gym.spaces.Dict):
        parts = space.spaces.items()
    elif isinstance(space, gym.spaces.Tuple):
        parts = enumerate(space.spaces)
    elif is_image(space) or (len(space.shape or ()) == 3 and sorted(space.shape or ())[1] >= _LEAST_PIXELS):
        yield f"{name} {space.shape}"  # a small board of numbers is none
    for key, part in parts:
        yield from _image_parts(part, f"{name}/{key}" if name else str(key))


def is_image(space: gym.Space | None) -> bool:
    """Whether observations are pictures: bytes of height, width and channels."""
    return isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


class SeenImage(gym.ObservationWrapper):
    """Of a grid world's observation (image, direction, mission) the image alone."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, gym.spaces.Dict)
        self.observation_space = env.observation_space["image"]

    def observation(self, observation: Any) -> Any:
        return observation["image"]


def register_family(env_id: str) -> None:
    """Import the package an id comes from: `package.module:Env-v0`, or a family whose package is known."""
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    elif name not in gym.registry:
        package = next((_REGISTERED_BY[known] for known in sets_of_environment(name) if known in _REGISTERED_BY), None)
        if package is not None:
            importlib.import_module(package)


def native_vector_of(env_id: str) -> str:
    """The entry point of an environment's own vectorised form; empty when it has none."""
    register_family(env_id)
    entry = gym.spec(env_id.rpartition(":")[2]).vector_entry_point
    return entry if isinstance(entry, str) else ""


@contextmanager
def said_of(env_id: str) -> Iterator[None]:
    """Turn what gymnasium raises when an environment cannot be made into a sentence about it."""
    try:
        yield
    except gym.error.DependencyNotInstalled as error:
        raise BadInput(f"{env_id} needs a package that is not installed: {error}{_cure(env_id, error)}") from error
    except (gym.error.Error, ModuleNotFoundError) as error:
        raise BadInput(f"environment {env_id!r} cannot be made: {error}{_cure(env_id, error)}") from error
    except TypeError as error:
        if "got an unexpected keyword argument" not in str(error):
            raise
        raise BadInput(f"environment {env_id!r} cannot be made with these --env-kwargs: {error}") from error


def _cure(env_id: str, error: Exception) -> str:
    """Which requirement set is missing: that of a package that could not be imported, or of the environment."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    needed = [_BROUGHT_BY[package]] if package in _BROUGHT_BY else list(sets_of_environment(env_id))
    is_missing = package or isinstance(error, gym.error.DependencyNotInstalled)
    return f"; install its requirement set: mosaic extras install {','.join(needed)}" if is_missing and needed else ""
