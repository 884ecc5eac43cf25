"""Families of environments: what a person browses when they do not know an id by heart. No Qt.

What is installed comes from the worker's description; of families that a requirement set brings later, the description
has patterns only, so their best-known ids are listed here.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec

from gym_gui.ui.workers.words import PRESENTERS, QT_TRANSLATE_NOOP


@dataclass(frozen=True)
class Family:
    """One family: how its ids look, which set brings it, and what its spaces are where all of them agree."""

    title: str
    patterns: tuple[str, ...]
    requirement_set: str = ""
    actions: str = ""
    observations: str = ""
    """Empty: they differ, or depend on the environment"""
    examples: tuple[str, ...] = ()


_ATARI = (
    "Breakout", "Pong", "SpaceInvaders", "Seaquest", "Qbert", "BeamRider", "Enduro", "MsPacman", "Freeway", "Asterix",
    "MontezumaRevenge", "Boxing",
)  # fmt: skip
_PROCGEN = (
    "starpilot", "coinrun", "bigfish", "bossfight", "caveflyer", "chaser", "climber", "dodgeball", "fruitbot", "heist",
    "jumper", "leaper", "maze", "miner", "ninja", "plunder",
)  # fmt: skip

FAMILIES: tuple[Family, ...] = (
    Family(
        QT_TRANSLATE_NOOP(PRESENTERS, "Classic control"),
        ("CartPole-*", "MountainCar*", "Pendulum-*", "Acrobot-*"), observations="vector",
    ),
    Family(
        QT_TRANSLATE_NOOP(PRESENTERS, "Toy text"),
        ("Blackjack-*", "FrozenLake*", "CliffWalking*", "Taxi-*"), actions="discrete",
    ),
    Family("Box2D", ("LunarLander*", "BipedalWalker*", "CarRacing-*"), "box2d"),
    Family(
        "MuJoCo",
        ("Reacher-*", "Pusher-*", "InvertedPendulum-*", "InvertedDoublePendulum-*", "HalfCheetah-*",  # codespell:ignore
         "Hopper-*", "Swimmer-*", "Walker2d-*", "Ant-*", "Humanoid*"),
        "mujoco", "continuous", "vector",
    ),
    Family(
        "Atari", ("ALE/*", "*NoFrameskip-v*", "*Deterministic-v*"), "atari", "discrete", "image",
        tuple(f"{name}NoFrameskip-v4" for name in _ATARI) + tuple(f"ALE/{name}-v5" for name in _ATARI[:4]),
    ),
    Family(
        "MiniGrid", ("MiniGrid-*",), "minigrid", "discrete", "image",
        ("MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-8x8-v0", "MiniGrid-DoorKey-5x5-v0", "MiniGrid-DoorKey-8x8-v0",
         "MiniGrid-FourRooms-v0", "MiniGrid-Dynamic-Obstacles-8x8-v0", "MiniGrid-KeyCorridorS3R3-v0"),
    ),
    Family(
        "BabyAI", ("BabyAI-*",), "minigrid", "discrete", "image",
        ("BabyAI-GoToRedBall-v0", "BabyAI-GoToLocal-v0", "BabyAI-GoTo-v0", "BabyAI-Open-v0", "BabyAI-BossLevel-v0"),
    ),
    Family("Procgen", ("procgen*", *_PROCGEN), "procgen", "discrete", "image", _PROCGEN),
    Family(
        "dm_control", ("dm_control/*",), "dm_control", "continuous", "vector",
        ("dm_control/cartpole-swingup-v0", "dm_control/cheetah-run-v0", "dm_control/walker-walk-v0"),
    ),
    Family(
        "PettingZoo", ("pettingzoo/*", "[a-z]*_v[0-9]*"), "pettingzoo", "discrete", "image",
        ("pong_v3", "surround_v2", "space_invaders_v2"),
    ),
)  # fmt: skip
OTHER = Family(QT_TRANSLATE_NOOP(PRESENTERS, "Other"), ("*",))


def family_of(env_id: str) -> Family:
    """The family an id looks like; `OTHER` for one that nobody here knows."""
    name = env_id.rpartition(":")[2]
    for family in FAMILIES:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in family.patterns):
            return family
    return OTHER


def environments_of(spec: WorkerSpec) -> dict[str, tuple[str, ...]]:
    """Ids to offer, by the family's title: what the worker lists, newest versions first, and known ids of its patterns.

    Families of which there is nothing are left out.
    """
    return dict(_offered(spec.environments, spec.environment_patterns))


@lru_cache(maxsize=16)
def _offered(
    listed: tuple[str, ...] | None, patterns: tuple[str, ...]
) -> tuple[tuple[str, tuple[str, ...]], ...]:  # fmt: skip
    found: dict[str, list[str]] = {}
    for env_id in listed or ():
        found.setdefault(family_of(env_id).title, []).append(env_id)
    if listed is not None:  # a worker without a list takes anything; what to offer nobody knows
        for family in FAMILIES:
            known = found.setdefault(family.title, [])
            known += [env_id for env_id in family.examples if env_id not in known and _fits_one(env_id, patterns)]
    titles = [family.title for family in (*FAMILIES, OTHER)]
    return tuple((title, tuple(_newest_first(found[title]))) for title in titles if found.get(title))


def _fits_one(env_id: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(env_id, pattern) for pattern in patterns)


def _newest_first(ids: Iterable[str]) -> list[str]:
    """Within a name the highest version stands in front; names keep their order."""
    places: dict[str, int] = {}
    order = []
    for env_id in ids:
        stem, _, version = env_id.rpartition("-v")
        stem = stem or env_id
        number = int(version) if re.fullmatch(r"\d+", version) else 0
        order.append((places.setdefault(stem, len(places)), -number, env_id))
    return [env_id for _, _, env_id in sorted(order)]


def fits(algorithm: AlgorithmSpec, actions: str, observations: str) -> bool:
    """Whether an algorithm can learn in an environment with these spaces; what is not known does not exclude it."""
    return (not actions or not algorithm.action_spaces or actions in algorithm.action_spaces) and (
        not observations or not algorithm.observation_spaces or observations in algorithm.observation_spaces
    )
