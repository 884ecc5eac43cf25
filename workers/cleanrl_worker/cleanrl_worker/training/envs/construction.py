"""The pipelines between environments and algorithms, by name; the registry assigns one to each algorithm.

plain               the environment itself; grid worlds as the agent's image, other structured observations flattened
atari               frames uint8 (4, 84, 84); one episode per life, signs of rewards, FIRE pressed where a game needs it
atari_single_frame  the same with one frame (1, 84, 84), for recurrent networks
rnd                 as atari, with sticky actions of 0.25 for all ids
procgen             frames uint8 (64, 64, 3) of generated levels; the game's own rewards (see procgen_games)
pettingzoo_atari    both players of a game, uint8 (84, 84, 6) (see two_players)

`make_single` without `training` is for evaluation: the same observations, the game's own rewards, whole games.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym
import numpy as np
from mosaic_extras.environments import sets_of_environment

from cleanrl_worker.errors import BadInput

if TYPE_CHECKING:
    from cleanrl_worker.training.envs.atari import AtariSettings


_REGISTERED_BY = {"minigrid": "minigrid", "atari": "ale_py", "dm_control": "shimmy"}
"""Requirement sets whose ids exist only once a package was imported"""

_BROUGHT_BY = {
    module: name
    for name, modules in (
        ("atari", "ale_py cv2"),
        ("envpool", "envpool"),
        ("procgen", "procgen gym3"),
        ("pettingzoo", "pettingzoo tinyscaler multi_agent_ale_py"),
        ("mujoco", "mujoco"),
        ("minigrid", "minigrid"),
        ("dm_control", "shimmy"),
    )
    for module in modules.split()
}

_MIN_PIXELS = 16
_OF_GRID_WORLDS = {"image", "direction", "mission"}
"""The parts of MiniGrid's observations; only the image is used"""


def make_plain(env_id: str, env_kwargs: Mapping[str, Any] | None = None, **options: Any) -> gym.Env:
    """Make one environment whose observations are a Box; those of grid worlds are the agent's image."""
    register_family(env_id)
    # Gymnasium's environment checker takes a third of CartPole's time per step.
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
    """Yield name and shape of the images inside a structured observation."""
    parts: Any = ()
    if isinstance(space, gym.spaces.Dict):
        parts = space.spaces.items()
    elif isinstance(space, gym.spaces.Tuple):
        parts = enumerate(space.spaces)
    elif is_image(space) or (len(space.shape or ()) == 3 and sorted(space.shape or ())[1] >= _MIN_PIXELS):
        yield f"{name} {space.shape}"  # smaller arrays are boards, not images
    for key, part in parts:
        yield from _image_parts(part, f"{name}/{key}" if name else str(key))


def is_image(space: gym.Space | None) -> bool:
    """Return whether observations are images: uint8 with three axes."""
    return isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


class SeenImage(gym.ObservationWrapper):
    """Reduces a grid world's observation (image, direction, mission) to the image."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, gym.spaces.Dict)
        self.observation_space = env.observation_space["image"]

    def observation(self, observation: Any) -> Any:
        """Return the image."""
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
    """Return the entry point of an environment's vectorized form; empty if it has none."""
    register_family(env_id)
    entry = gym.spec(env_id.rpartition(":")[2]).vector_entry_point
    return entry if isinstance(entry, str) else ""


@contextmanager
def environment_errors(env_id: str) -> Iterator[None]:
    """Turn gymnasium's errors for environments that cannot be made into BadInput with a remedy."""
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
    """Return how to install the missing requirement set, by the missing package or by the environment."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    needed = [_BROUGHT_BY[package]] if package in _BROUGHT_BY else list(sets_of_environment(env_id))
    is_missing = package or isinstance(error, gym.error.DependencyNotInstalled)
    return f"; install its requirement set: mosaic extras install {','.join(needed)}" if is_missing and needed else ""


FRAMES_PER_STEP = 4


class Pipeline(Protocol):
    """How one environment is made."""

    @property
    def backends(self) -> tuple[str, ...]:
        """Return the supported backends."""

    def make(self, env_id: str, env_kwargs: Mapping[str, Any], *, training: bool, **options: Any) -> gym.Env:
        """Make one environment for training or evaluation."""


@dataclass(frozen=True)
class Plain:
    """The environment as it is."""

    backends: tuple[str, ...] = ("native", "sync", "async", "envpool")

    def make(self, env_id: str, env_kwargs: Mapping[str, Any], *, training: bool, **options: Any) -> gym.Env:
        """Make one environment for training or evaluation."""
        return make_plain(env_id, env_kwargs, **options)


@dataclass(frozen=True)
class Atari:
    """Games of the Arcade Learning Environment: `*NoFrameskip-v4`, `ALE/*-v5` and, as envpool calls them, `*-v5`."""

    stack: int = 4
    sticky: float | None = None
    backends: tuple[str, ...] = ("sync", "async", "ale", "envpool")

    def stickiness(self, env_id: str, env_kwargs: Mapping[str, Any]) -> float:
        """Return the probability of a repeated action: as requested, of this pipeline, or of the id."""
        if "repeat_action_probability" in env_kwargs:
            return float(env_kwargs["repeat_action_probability"])
        if self.sticky is not None:
            return self.sticky
        name = env_id.rpartition(":")[2]
        # Pong-v5 without ALE/ is envpool's name; envpool's games have no sticky actions.
        implied = gym.spec(atari_game(env_id)).kwargs["repeat_action_probability"] if not _is_envpool_name(name) else 0
        return float(implied)

    def skip(self, env_kwargs: Mapping[str, Any]) -> int:
        """Return the number of frames an action is repeated for: four, or as requested."""
        skip = env_kwargs.get("frameskip", FRAMES_PER_STEP)
        if not isinstance(skip, int) or skip < 1:
            raise BadInput(f"--env-kwargs: frameskip must be a whole number of frames here, not {skip!r}")
        return skip

    def settings(self) -> AtariSettings:
        """Return the settings of the game wrapper."""
        from cleanrl_worker.training.envs.atari import AtariSettings

        return AtariSettings(stack=self.stack, sticky=self.sticky)

    def for_envpool(self, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return envpool's options."""
        sticky = {} if self.sticky is None else {"repeat_action_probability": self.sticky}
        return {"stack_num": self.stack, **sticky, **env_kwargs}

    def make(self, env_id: str, env_kwargs: Mapping[str, Any], *, training: bool, **options: Any) -> gym.Env:
        """Make one environment for training or evaluation."""
        if not training and find_spec("ale_py") is None and find_spec("envpool") is not None:
            from cleanrl_worker.training.envs.envpool_envs import EnvpoolGame

            return EnvpoolGame(envpool_name(env_id), self.for_envpool(env_kwargs), **options)
        game = atari_game(env_id)
        from cleanrl_worker.training.envs.atari import AtariGame

        settings = self.settings()
        sticky = self.stickiness(env_id, env_kwargs)
        skip = self.skip(env_kwargs)
        own = {name: value for name, value in env_kwargs.items() if name != "max_episode_steps"}
        own |= {"frameskip": 1, "repeat_action_probability": 0.0, "obs_type": "grayscale", **options}
        env = gym.make(game, disable_env_checker=True, **own)
        limit = env_kwargs.get("max_episode_steps")
        return AtariGame(env, settings, skip=skip, sticky=sticky, limit=limit, whole_games=not training)


def atari_game(env_id: str) -> str:
    """Return Gymnasium's id of a game; raise BadInput if it is not an Atari game."""
    name = env_id.rpartition(":")[2]
    if _is_envpool_name(name):
        name = f"ALE/{name}"
    register_family(name)
    entry = gym.spec(name).entry_point
    if not (isinstance(entry, str) and entry.startswith("ale_py.")):
        raise BadInput(f"{env_id} is not an Atari game; write an id like PongNoFrameskip-v4 or ALE/Pong-v5")
    return name


def envpool_name(env_id: str) -> str:
    """Return envpool's id of a game, like Pong-v5."""
    name = env_id.rpartition(":")[2].removeprefix("ALE/")
    return f"{name.removesuffix('NoFrameskip-v4')}-v5" if name.endswith("NoFrameskip-v4") else name


def _is_envpool_name(name: str) -> bool:
    return name.endswith("-v5") and "/" not in name


@dataclass(frozen=True)
class Procgen:
    """Procgen's games, which are vectorized."""

    backends: tuple[str, ...] = ("native",)

    def make(self, env_id: str, env_kwargs: Mapping[str, Any], *, training: bool, **options: Any) -> gym.Env:
        """Make one environment for training or evaluation."""
        from cleanrl_worker.training.envs.procgen_games import ProcgenGame

        return ProcgenGame(env_id, env_kwargs, **options)


@dataclass(frozen=True)
class TwoPlayers:
    """PettingZoo's two-player Atari games; a single game is against a random player."""

    backends: tuple[str, ...] = ("native",)

    def make(self, env_id: str, env_kwargs: Mapping[str, Any], *, training: bool, **options: Any) -> gym.Env:
        """Make one environment for training or evaluation."""
        from cleanrl_worker.training.envs.two_players import AgainstRandom

        return AgainstRandom(env_id, env_kwargs, **options)


PIPELINES: dict[str, Pipeline] = {
    "plain": Plain(),
    "atari": Atari(),
    "atari_single_frame": Atari(stack=1),
    "rnd": Atari(sticky=0.25),
    "procgen": Procgen(),
    "pettingzoo_atari": TwoPlayers(),
}


def make_single(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    pipeline: str = "plain",
    training: bool = False,
    **options: Any,
) -> gym.Env:
    """Make one environment with the observations of this pipeline, for training or (by default) for evaluation."""
    return PIPELINES[pipeline].make(env_id, env_kwargs or {}, training=training, **options)
