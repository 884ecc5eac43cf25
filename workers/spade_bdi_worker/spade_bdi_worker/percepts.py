"""What an agent perceives, as symbols: toy text, MiniGrid and BabyAI, and classic control through tile coding.

A percept is a tuple of a name and its arguments; a word is an atom of AgentSpeak, a Text a string.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Percept = tuple[Any, ...]


class Text(str):
    """An argument that is a string, not an atom."""

    __slots__ = ()


@dataclass(frozen=True)
class Sight:
    """What is perceived now, and percepts that last until their place is seen again."""

    now: Sequence[Percept]
    lasting: Sequence[Percept] = ()
    key: int = 0
    """How many arguments of a lasting percept say what it is about"""
    lasting_name: str = ""


class Eyes(Protocol):
    """Turns observations into percepts."""

    actions: Sequence[str]
    """Names of the actions, in their order; may be empty"""

    def see(self, observation: Any) -> Sight:
        """Return the percepts of an observation."""


class NotSymbolic(ValueError):
    """There is no symbolic form of these observations."""


def eyes_of(env: Any, *, tilings: int, bins: int) -> Eyes:
    """Return the eyes for an environment; raise NotSymbolic."""
    if hasattr(env.unwrapped, "gen_obs_grid"):
        return GridEyes(env.unwrapped)
    space = env.observation_space
    kind = type(space).__name__
    if kind == "Discrete":
        return StateEyes(env)
    if kind in ("Tuple", "MultiDiscrete", "MultiBinary"):
        return TupleEyes(env)
    if kind == "Box" and len(space.shape) == 1 and space.shape[0] <= _MOST_DIMENSIONS:
        return TileEyes(env, tilings=tilings, bins=bins)
    raise NotSymbolic(f"observations {space} have no symbolic form; choose toy text, MiniGrid or classic control")


# ---------------------------------------------------------------- toy text

_ACTIONS = {
    "FrozenLakeEnv": ("left", "down", "right", "up"),
    "CliffWalkingEnv": ("up", "right", "down", "left"),
    "TaxiEnv": ("south", "north", "east", "west", "pickup", "dropoff"),
    "BlackjackEnv": ("stick", "hit"),
    "CartPoleEnv": ("left", "right"),
    "MountainCarEnv": ("left", "coast", "right"),
    "AcrobotEnv": ("clockwise", "rest", "counterclockwise"),
}


def _actions_of(env: Any) -> Sequence[str]:
    return _ACTIONS.get(type(env.unwrapped).__name__, ())


class StateEyes:
    """`state(S)`; on a map also `at(X, Y)`, in the taxi what its state consists of."""

    def __init__(self, env: Any) -> None:
        self.actions = _actions_of(env)
        world = env.unwrapped
        self._columns = int(getattr(world, "ncol", 0) or (getattr(world, "shape", None) or (0, 0))[1])
        self._decode = getattr(world, "decode", None)

    def see(self, observation: Any) -> Sight:
        state = int(observation)
        if self._decode is not None:
            row, column, passenger, destination = map(int, self._decode(state))
            facts: tuple[Percept, ...] = (("passenger", passenger), ("destination", destination))
            return Sight((("state", state), ("at", column, row), *facts))
        if self._columns:
            return Sight((("state", state), ("at", state % self._columns, state // self._columns)))
        return Sight((("state", state),))


class TupleEyes:
    """`state("12,3,0")`, for spaces of several numbers."""

    def __init__(self, env: Any) -> None:
        self.actions = _actions_of(env)

    def see(self, observation: Any) -> Sight:
        return Sight((("state", Text(",".join(str(int(value)) for value in observation))),))


# ---------------------------------------------------------------- classic control

_MOST_DIMENSIONS = 8


class TileEyes:
    """`state([…])`, one tile of every tiling, and `reading(I, V)` for every number.

    Unbounded numbers are squashed into (-1, 1).
    """

    def __init__(self, env: Any, *, tilings: int, bins: int) -> None:
        self.actions = _actions_of(env)
        self._tilings, self._bins = tilings, bins
        space = env.observation_space
        pairs = zip(map(float, space.low), map(float, space.high), strict=True)
        # float32's largest number means "unbounded" in some environments
        self._bounds = [pair if max(map(abs, pair)) < 1e6 else None for pair in pairs]

    def see(self, observation: Any) -> Sight:
        values = [float(value) for value in observation]
        if not all(map(math.isfinite, values)):
            raise ValueError(f"the observation {values} is not finite")
        scaled = [self._scaled(value, bounds) for value, bounds in zip(values, self._bounds, strict=True)]
        readings = (("reading", index, round(value, 4)) for index, value in enumerate(values))
        return Sight((("state", self._tiles(scaled)), *readings))

    def _scaled(self, value: float, bounds: tuple[float, float] | None) -> float:
        if bounds is None:
            return (value / (1 + abs(value)) + 1) / 2
        low, high = bounds
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def _tiles(self, scaled: Sequence[float]) -> tuple[int, ...]:
        """Return a number for the tile of every tiling; tilings are displaced by odd fractions of a tile."""
        tiles = []
        for tiling in range(self._tilings):
            tile = tiling
            for index, value in enumerate(scaled):
                shift = ((2 * index + 1) * tiling / self._tilings) % 1
                tile = tile * (self._bins + 1) + int(value * self._bins + shift)
            tiles.append(tile * self._tilings + tiling)
        return tuple(tiles)


# ---------------------------------------------------------------- MiniGrid and BabyAI

_FACING = ("east", "south", "west", "north")
_GOAL = ("reach", "goal", "any")
_KIND = r"(?:(?P<color>red|green|blue|purple|yellow|grey) )?(?P<kind>key|ball|box|door|object)"
_TASKS = {
    "go_to": re.compile(rf"\bgo to (?:a|the) {_KIND}"),
    "pick_up": re.compile(rf"\b(?:pick up|get|fetch|go get|go fetch) (?:a|the) {_KIND}"),
    "open": re.compile(rf"\bopen (?:a|the) {_KIND}"),
}


class GridEyes:
    """`at`, `facing`, `carrying`, `task`, `state`, and what is seen of the map: `cell(X, Y, Kind, Color)`."""

    actions: Sequence[str] = ("left", "right", "forward", "pickup", "drop", "toggle", "done")

    def __init__(self, world: Any) -> None:
        self._world = world

    def see(self, observation: Any) -> Sight:
        world = self._world
        x, y = map(int, world.agent_pos)
        facing = _FACING[int(world.agent_dir)]
        held = (world.carrying.type, world.carrying.color) if world.carrying is not None else ("nothing", "none")
        mission = str(observation["mission"]) if isinstance(observation, dict) else ""
        cells = self._visible()
        now = (("at", x, y), ("facing", facing), ("carrying", *held), ("task", *task_of(mission)))
        # Only what changes what can be done; a table over all that is seen would never meet a state again.
        doors = ",".join(f"{cell[1]}:{cell[2]}:{cell[3]}" for cell in cells if cell[3].endswith("door"))
        state = ("state", Text(f"{x},{y},{facing},{held[0]}.{held[1]};{doors};{mission}"))
        return Sight((*now, state), cells, key=2, lasting_name="cell")

    def _visible(self) -> list[Percept]:
        """Return the visible cells in the coordinates of the map."""
        world = self._world
        _, mask = world.gen_obs_grid()
        left, top, right, bottom = world.get_view_exts()
        cells: list[Percept] = []
        for x in range(max(0, left), min(world.width, right)):
            for y in range(max(0, top), min(world.height, bottom)):
                if (place := world.relative_coords(x, y)) is not None and mask[place]:
                    cells.append(("cell", x, y, *_kind_of(world.grid.get(x, y))))
        return cells


def _kind_of(thing: Any) -> tuple[str, str]:
    if thing is None:
        return "empty", "none"
    if thing.type == "door":
        state = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
        return f"{state}_door", thing.color
    return thing.type, thing.color


def task_of(mission: str) -> tuple[str, str, str]:
    """Return verb, kind and color of a mission; the goal square where it names nothing else."""
    for verb, pattern in _TASKS.items():
        if (match := pattern.search(mission)) is not None and "goal" not in mission:
            return verb, match["kind"].replace("object", "any"), match["color"] or "any"
    return _GOAL
