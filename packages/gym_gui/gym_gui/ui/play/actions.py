"""What can be done in an environment, in words: names of its actions, what «nothing» is, how a vector is set. No Qt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_NAMES: Mapping[str, tuple[str, ...]] = {
    "CartPole": ("push left", "push right"),
    "MountainCar": ("left", "coast", "right"),
    "Acrobot": ("torque −1", "no torque", "torque +1"),
    "LunarLander": ("nothing", "left engine", "main engine", "right engine"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
    "FrozenLake": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Blackjack": ("stick", "hit"),
    "CarRacing": ("nothing", "steer right", "steer left", "gas", "brake"),
}
_COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "Pendulum": ("torque",),
    "MountainCarContinuous": ("force",),
    "LunarLander": ("main engine", "side engines"),
    "LunarLanderContinuous": ("main engine", "side engines"),
    "CarRacing": ("steering", "gas", "brake"),
    "BipedalWalker": ("left hip", "left knee", "right hip", "right knee"),
}
_IDLE: Mapping[str, int] = {"MountainCar": 1, "Acrobot": 1, "LunarLander": 0, "CarRacing": 0}

MOST_COMPONENTS = 32
"""Sliders a person can be asked to look at"""


def stem_of(env_id: str) -> str:
    """`CartPole` of `gymnasium:CartPole-v1`, `Breakout` of `ALE/Breakout-v5`, `DoorKey` … are not needed further."""
    name = env_id.rpartition(":")[2].rpartition("/")[2]
    stem, _, version = name.rpartition("-v")
    return stem if stem and version.isdigit() else name


@dataclass(frozen=True)
class Component:
    """One number of a vector action."""

    name: str
    low: float
    high: float
    is_whole: bool = False

    @property
    def rest(self) -> float:
        """Where it is while nobody moves it."""
        return min(max(0.0, self.low), self.high)


@dataclass(frozen=True)
class ActionSpace:
    """The actions of an environment, as a player meets them."""

    kind: str
    """Discrete, Box, MultiDiscrete, MultiBinary, or another that cannot be played by hand"""
    names: tuple[str, ...] = ()
    """Discrete: one for each action"""
    start: int = 0
    components: tuple[Component, ...] = ()
    shape: tuple[int, ...] = ()
    idle: int | None = None
    """Discrete: the action that does nothing, where there is one"""
    env_id: str = ""
    meanings: tuple[str, ...] = field(default=())
    """As the environment itself calls them (Atari, MiniGrid)"""

    @property
    def is_discrete(self) -> bool:
        return self.kind == "Discrete"

    @property
    def is_playable(self) -> bool:
        return bool(self.names) or 0 < len(self.components) <= MOST_COMPONENTS

    def actions(self) -> range:
        return range(self.start, self.start + len(self.names))

    def name_of(self, action: Any) -> str:
        """Words for an action that was taken."""
        if self.is_discrete and isinstance(action, int) and action in self.actions():
            return self.names[action - self.start]
        if isinstance(action, list):
            return ", ".join(f"{value:.2g}" if isinstance(value, int | float) else str(value) for value in action)
        return str(action)

    def rest_vector(self) -> list[float]:
        return [component.rest for component in self.components]

    def as_action(self, vector: Sequence[float]) -> Any:
        """A vector as the protocol takes it."""
        limited = [min(max(value, part.low), part.high) for value, part in zip(vector, self.components, strict=True)]
        return [round(value) for value in limited] if self.components[0].is_whole else limited


def read_space(told: Mapping[str, Any], env_id: str) -> ActionSpace:
    """From `action_space` and `action_meanings` of a greeting (or of `--describe-environment`)."""
    space, stem = told.get("action_space") or {}, stem_of(env_id)
    meanings = tuple(str(name) for name in told.get("action_meanings") or ())
    kind = str(space.get("type", ""))
    shape = tuple(int(side) for side in space.get("shape") or ())
    if kind == "Discrete":
        count, start = int(space.get("n", 0)), int(space.get("start", 0))
        return ActionSpace(
            kind, _discrete_names(stem, meanings, count, start), start, shape=shape, env_id=env_id, meanings=meanings,
            idle=_idle_of(stem, meanings, count, start),
        )  # fmt: skip
    components: list[Component] = []
    if kind == "Box" and "low" in space:
        bounds = zip(_flat(space["low"]), _flat(space["high"]), strict=True)
        components = [
            Component(_component_name(stem, index), -1.0 if low is None else low, 1.0 if high is None else high)
            for index, (low, high) in enumerate(bounds)
        ]
    elif kind in ("MultiDiscrete", "MultiBinary"):
        counts = _flat(space.get("nvec") or [2] * _size(shape))
        components = [
            Component(_component_name(stem, index), 0.0, float(count) - 1, is_whole=True)
            for index, count in enumerate(counts)
            if count is not None
        ]
    return ActionSpace(kind, components=tuple(components), shape=shape, env_id=env_id)


def _discrete_names(stem: str, meanings: Sequence[str], count: int, start: int) -> tuple[str, ...]:
    if len(meanings) >= count:
        return tuple(name.lower().replace("_", " ") for name in meanings[:count])
    known = _NAMES.get(stem, ())
    return known if len(known) == count else tuple(f"action {start + index}" for index in range(count))


def _idle_of(stem: str, meanings: Sequence[str], count: int, start: int) -> int | None:
    if meanings and meanings[0].upper() == "NOOP":
        return start
    idle = _IDLE.get(stem)
    return start + idle if idle is not None and idle < count and len(_NAMES[stem]) == count else None


def _component_name(stem: str, index: int) -> str:
    known = _COMPONENTS.get(stem, ())
    return known[index] if index < len(known) else f"component {index}"


def _flat(value: Any) -> list[float | None]:
    if isinstance(value, list):
        return [number for item in value for number in _flat(item)]
    return [None if value is None else float(value)]


def _size(shape: Sequence[int]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size
