"""Families of environments to browse, and previews of an environment from another process. No Qt.

Installed environments come from the worker's description. For families that need a requirement set it has patterns
only, so their best-known ids are listed here.
"""

from __future__ import annotations

import base64
import fnmatch
import json
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from mosaic_wire.worker_spec import AlgorithmSpec, WorkerSpec

from gym_gui.ui.workers.translation import marked


@dataclass(frozen=True)
class Family:
    """A family: patterns of its ids, its requirement set, and its spaces if they are all alike."""

    title: str
    patterns: tuple[str, ...]
    requirement_set: str = ""
    actions: str = ""
    observations: str = ""
    """Empty: they differ"""
    examples: tuple[str, ...] = ()


_ATARI = "Breakout Pong SpaceInvaders Seaquest Qbert BeamRider Enduro MsPacman Freeway Asterix MontezumaRevenge Boxing"
_PROCGEN = (
    "starpilot coinrun bigfish bossfight caveflyer chaser climber dodgeball fruitbot heist jumper leaper maze miner "
    "ninja plunder"
)
_MUJOCO = (
    "Reacher-* Pusher-* InvertedPendulum-* InvertedDoublePendulum-* HalfCheetah-* Hopper-* "  # codespell:ignore
    "Swimmer-* Walker2d-* Ant-* Humanoid*"
)
_MINIGRID = "Empty-5x5 Empty-8x8 DoorKey-5x5 DoorKey-8x8 FourRooms Dynamic-Obstacles-8x8 KeyCorridorS3R3"
_BABYAI = "GoToRedBall GoToLocal GoTo Open BossLevel"
_TASKS = "cartpole-swingup cheetah-run walker-walk"


def _each(pattern: str, names: str) -> tuple[str, ...]:
    return tuple(pattern.format(name) for name in names.split())


_GAMES = (*_each("{}NoFrameskip-v4", _ATARI), *_each("ALE/{}-v5", _ATARI)[:4])

FAMILIES: tuple[Family, ...] = (
    Family(marked("Classic control"), ("CartPole-*", "MountainCar*", "Pendulum-*", "Acrobot-*"), observations="vector"),
    Family(marked("Toy text"), ("Blackjack-*", "FrozenLake*", "CliffWalking*", "Taxi-*"), actions="discrete"),
    Family("Box2D", ("LunarLander*", "BipedalWalker*", "CarRacing-*"), "box2d"),
    Family("MuJoCo", tuple(_MUJOCO.split()), "mujoco", "continuous", "vector"),
    Family("Atari", ("ALE/*", "*NoFrameskip-v*", "*Deterministic-v*"), "atari", "discrete", "image", _GAMES),
    Family("MiniGrid", ("MiniGrid-*",), "minigrid", "discrete", "image", _each("MiniGrid-{}-v0", _MINIGRID)),
    Family("BabyAI", ("BabyAI-*",), "minigrid", "discrete", "image", _each("BabyAI-{}-v0", _BABYAI)),
    Family("Procgen", ("procgen*", *_PROCGEN.split()), "procgen", "discrete", "image", tuple(_PROCGEN.split())),
    Family("dm_control", ("dm_control/*",), "dm_control", "continuous", "vector", _each("dm_control/{}-v0", _TASKS)),
    Family(
        "PettingZoo",
        ("pettingzoo/*", "[a-z]*_v[0-9]*"),
        "pettingzoo",
        "discrete",
        "image",
        ("pong_v3", "surround_v2", "space_invaders_v2"),
    ),
)
OTHER = Family(marked("Other"), ("*",))


def family_of(env_id: str) -> Family:
    """Return the family of an id; `OTHER` if unknown."""
    name = env_id.rpartition(":")[2]
    for family in FAMILIES:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in family.patterns):
            return family
    return OTHER


def environments_of(spec: WorkerSpec) -> dict[str, tuple[str, ...]]:
    """Return ids by family title: those the worker lists, newest versions first, and known ids of its patterns.

    Families without ids are omitted.
    """
    return dict(_offered(spec.environments, spec.environment_patterns))


@lru_cache(maxsize=16)
def _offered(listed: tuple[str, ...] | None, patterns: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, list[str]] = {}
    for env_id in listed or ():
        found.setdefault(family_of(env_id).title, []).append(env_id)
    if listed is not None:  # a worker without a list accepts any id, so there is nothing to offer
        for family in FAMILIES:
            known = found.setdefault(family.title, [])
            known += [env_id for env_id in family.examples if env_id not in known and _fits_one(env_id, patterns)]
    titles = [family.title for family in (*FAMILIES, OTHER)]
    return tuple((title, tuple(_newest_first(found[title]))) for title in titles if found.get(title))


def _fits_one(env_id: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(env_id, pattern) for pattern in patterns)


def _newest_first(ids: Iterable[str]) -> list[str]:
    """Put the highest version of each name first; keep the order of names."""
    places: dict[str, int] = {}
    order = []
    for env_id in ids:
        stem, _, version = env_id.rpartition("-v")
        stem = stem or env_id
        number = int(version) if re.fullmatch(r"\d+", version) else 0
        order.append((places.setdefault(stem, len(places)), -number, env_id))
    return [env_id for _, _, env_id in sorted(order)]


def fits(algorithm: AlgorithmSpec, actions: str, observations: str) -> bool:
    """Return whether an algorithm supports these spaces; unknown ones do not exclude it."""
    return (not actions or not algorithm.action_spaces or actions in algorithm.action_spaces) and (
        not observations or not algorithm.observation_spaces or observations in algorithm.observation_spaces
    )


TIMEOUT_S = 60.0
_MAX_PIXELS = 240

_QUESTION = """
import base64, json, os, sys, warnings
warnings.simplefilter("ignore")
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # some environments print while they are made
import logging
logging.disable(logging.WARNING)
import gymnasium
from gymnasium import spaces
def kind(space):
    if isinstance(space, spaces.Box):
        return {1: "vector", 3: "image"}.get(len(space.shape), "other")
    names = ((spaces.Discrete, "discrete"), (spaces.MultiDiscrete, "multi_discrete"), (spaces.Dict, "dict"))
    return next((name for type_, name in names if isinstance(space, type_)), type(space).__name__.lower())
def text(space):
    if isinstance(space, spaces.Box):
        return f"Box{tuple(int(side) for side in space.shape)}"
    return str(space)[:80]
env_id, most = sys.argv[1], int(sys.argv[2])
answers = {}
def inspect(render_mode):
    env = gymnasium.make(env_id, render_mode=render_mode)
    action = "continuous" if isinstance(env.action_space, spaces.Box) else kind(env.action_space)
    answers.update(actions=action, observations=kind(env.observation_space), action_text=text(env.action_space),
                observation_text=text(env.observation_space))
    return env
try:
    env = inspect("rgb_array")
    env.reset(seed=1)
    frame = env.render()
    stride = max(1, -(-max(frame.shape[:2]) // most))
    frame = frame[::stride, ::stride, :3].astype("uint8")
    answers.update(height=frame.shape[0], width=frame.shape[1], pixels=base64.b64encode(frame.tobytes()).decode())
except Exception as error:
    try:
        if not answers:
            inspect(None)
    except Exception as error:
        answers["problem"] = f"{type(error).__name__}: {error}"
with answer:
    answer.write(json.dumps(answers))
os._exit(0)  # what a renderer leaves behind must not hang the end
"""


@dataclass(frozen=True)
class EnvironmentPreview:
    """Spaces and a frame of an environment, or the problem."""

    env_id: str
    actions: str = ""
    """discrete, continuous …; empty: unknown"""
    observations: str = ""
    action_text: str = ""
    observation_text: str = ""
    pixels: bytes = b""
    """RGB, `width` × `height`; empty: none"""
    width: int = 0
    height: int = 0
    problem: str = ""


def inspect_environment(python: str, env_id: str) -> EnvironmentPreview:
    """Construct the environment with this interpreter and return its spaces and a frame."""
    quiet = {"SDL_VIDEODRIVER": "dummy", "CUDA_VISIBLE_DEVICES": "", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    variables = {**os.environ, **quiet}
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION, env_id, str(_MAX_PIXELS)],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env=variables,
            cwd="/",
        )
        reported = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return EnvironmentPreview(env_id, problem=f"it could not be constructed within {TIMEOUT_S:g} s")
    except OSError as error:
        return EnvironmentPreview(env_id, problem=f"{python} cannot be started: {error.strerror or error}")
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
        return EnvironmentPreview(
            env_id, problem=f"its construction exited with code {done.returncode}: {last[0][:300]}"
        )
    pixels = base64.b64decode(reported.pop("pixels", ""))
    problem = " ".join(str(reported.pop("problem", "")).split())[:300]
    return EnvironmentPreview(env_id, pixels=pixels, problem=problem, **reported)
