"""What lies between an environment and the algorithm, by name; the registry says which name goes with which algorithm.

plain               the environment itself; grid worlds as the image the agent sees, other structured observations flat
atari               pictures uint8 (4, 84, 84); a life an episode, rewards as signs, FIRE pressed where the game waits
atari_single_frame  the same with one picture (1, 84, 84), for recurrent networks
rnd                 as atari, with sticky actions of 0.25 whatever the id says
procgen             pictures uint8 (64, 64, 3) of generated levels; the game's own rewards (see procgen_games)
pettingzoo_atari    both players of a game, uint8 (84, 84, 6) (see two_players)

`make_single` without `training` is for evaluation: the same observations, the game's own rewards, whole games.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym

from cleanrl_worker.errors import BadInput
from cleanrl_worker.training.envs.making import make_plain, register_family

if TYPE_CHECKING:
    from cleanrl_worker.training.envs.atari import AtariSettings


FRAMES_PER_STEP = 4


class Pipeline(Protocol):
    """How one environment is made."""

    @property
    def backends(self) -> tuple[str, ...]:
        """What can step it."""

    def make(self, env_id: str, env_kwargs: Mapping[str, Any], *, training: bool, **options: Any) -> gym.Env: ...


@dataclass(frozen=True)
class Plain:
    """The environment as it is."""

    backends: tuple[str, ...] = ("native", "sync", "async", "envpool")

    def make(self, env_id: str, env_kwargs: Mapping[str, Any], *, training: bool, **options: Any) -> gym.Env:
        return make_plain(env_id, env_kwargs, **options)


@dataclass(frozen=True)
class Atari:
    """Games of the Arcade Learning Environment: `*NoFrameskip-v4`, `ALE/*-v5` and, as envpool calls them, `*-v5`."""

    stack: int = 4
    sticky: float | None = None
    backends: tuple[str, ...] = ("sync", "async", "ale", "envpool")

    def stickiness(self, env_id: str, env_kwargs: Mapping[str, Any]) -> float:
        """How likely a frame repeats the last action: as asked, as this pipeline has it, or as the id implies."""
        if "repeat_action_probability" in env_kwargs:
            return float(env_kwargs["repeat_action_probability"])
        if self.sticky is not None:
            return self.sticky
        name = env_id.rpartition(":")[2]
        # Pong-v5 without ALE/ is envpool's name for the game, and envpool's has none.
        implied = gym.spec(atari_game(env_id)).kwargs["repeat_action_probability"] if not _is_envpool_name(name) else 0
        return float(implied)

    def skip(self, env_kwargs: Mapping[str, Any]) -> int:
        """Frames an action is held for: four, or as asked."""
        skip = env_kwargs.get("frameskip", FRAMES_PER_STEP)
        if not isinstance(skip, int) or skip < 1:
            raise BadInput(f"--env-kwargs: frameskip must be a whole number of frames here, not {skip!r}")
        return skip

    def settings(self) -> AtariSettings:
        from cleanrl_worker.training.envs.atari import AtariSettings

        return AtariSettings(stack=self.stack, sticky=self.sticky)

    def for_envpool(self, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What envpool is to be told of it."""
        sticky = {} if self.sticky is None else {"repeat_action_probability": self.sticky}
        return {"stack_num": self.stack, **sticky, **env_kwargs}

    def make(self, env_id: str, env_kwargs: Mapping[str, Any], *, training: bool, **options: Any) -> gym.Env:
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
    """Gymnasium's id of a game; BadInput when it is none."""
    name = env_id.rpartition(":")[2]
    if _is_envpool_name(name):
        name = f"ALE/{name}"
    register_family(name)
    entry = gym.spec(name).entry_point
    if not (isinstance(entry, str) and entry.startswith("ale_py.")):
        raise BadInput(f"{env_id} is not an Atari game; write an id like PongNoFrameskip-v4 or ALE/Pong-v5")
    return name


def envpool_name(env_id: str) -> str:
    """What envpool calls a game: Pong-v5."""
    name = env_id.rpartition(":")[2].removeprefix("ALE/")
    return f"{name.removesuffix('NoFrameskip-v4')}-v5" if name.endswith("NoFrameskip-v4") else name


def _is_envpool_name(name: str) -> bool:
    return name.endswith("-v5") and "/" not in name


@dataclass(frozen=True)
class Procgen:
    """Procgen's games, which come in numbers."""

    backends: tuple[str, ...] = ("native",)

    def make(self, env_id: str, env_kwargs: Mapping[str, Any], *, training: bool, **options: Any) -> gym.Env:
        from cleanrl_worker.training.envs.procgen_games import ProcgenGame

        return ProcgenGame(env_id, env_kwargs, **options)


@dataclass(frozen=True)
class TwoPlayers:
    """PettingZoo's two-player Atari games; a single one is against a random player."""

    backends: tuple[str, ...] = ("native",)

    def make(self, env_id: str, env_kwargs: Mapping[str, Any], *, training: bool, **options: Any) -> gym.Env:
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
    """Make one environment with the observations of this pipeline: to train in, or (by default) to be judged in."""
    return PIPELINES[pipeline].make(env_id, env_kwargs or {}, training=training, **options)
