"""Action spaces of games, key maps, and the controls a player holds down. No Qt."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gym_gui.wording.actions import action_names, stem_of

_COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "Pendulum": ("torque",),
    "MountainCarContinuous": ("force",),
    "LunarLander": ("main engine", "side engines"),
    "LunarLanderContinuous": ("main engine", "side engines"),
    "CarRacing": ("steering", "gas", "brake"),
    "BipedalWalker": ("left hip", "left knee", "right hip", "right knee"),
}
_IDLE: Mapping[str, int] = {"MountainCar": 1, "Acrobot": 1, "LunarLander": 0, "CarRacing": 0}

MAX_COMPONENTS = 32
"""Maximum number of sliders"""


@dataclass(frozen=True)
class Component:
    """One component of a vector action."""

    name: str
    low: float
    high: float
    is_whole: bool = False

    @property
    def rest(self) -> float:
        """Return the neutral value."""
        return min(max(0.0, self.low), self.high)


@dataclass(frozen=True)
class ActionSpace:
    """The action space of an environment, as the player uses it."""

    kind: str
    """Discrete, Box, MultiDiscrete, MultiBinary, or another that cannot be played by hand"""
    names: tuple[str, ...] = ()
    """Names of discrete actions"""
    start: int = 0
    components: tuple[Component, ...] = ()
    shape: tuple[int, ...] = ()
    idle: int | None = None
    """The discrete no-op action, if there is one"""
    env_id: str = ""
    meanings: tuple[str, ...] = field(default=())
    """The environment's own names (Atari, MiniGrid)"""

    @property
    def is_discrete(self) -> bool:
        return self.kind == "Discrete"

    @property
    def is_playable(self) -> bool:
        return bool(self.names) or 0 < len(self.components) <= MAX_COMPONENTS

    def actions(self) -> range:
        return range(self.start, self.start + len(self.names))

    def name_of(self, action: Any) -> str:
        """Return the name of an action."""
        if self.is_discrete and isinstance(action, int) and action in self.actions():
            return self.names[action - self.start]
        if isinstance(action, list):
            return ", ".join(f"{value:.2g}" if isinstance(value, int | float) else str(value) for value in action)
        return str(action)

    def rest_vector(self) -> list[float]:
        return [component.rest for component in self.components]

    def as_action(self, vector: Sequence[float]) -> Any:
        """Return a vector in the format of the protocol."""
        limited = [min(max(value, part.low), part.high) for value, part in zip(vector, self.components, strict=True)]
        return [round(value) for value in limited] if self.components[0].is_whole else limited


def read_space(reported: Mapping[str, Any], env_id: str) -> ActionSpace:
    """Return the space from `action_space` and `action_meanings` of an init message or `--describe-environment`."""
    space, stem = reported.get("action_space") or {}, stem_of(env_id)
    meanings = tuple(str(name) for name in reported.get("action_meanings") or ())
    kind = str(space.get("type", ""))
    shape = tuple(int(side) for side in space.get("shape") or ())
    if kind == "Discrete":
        count, start = int(space.get("n", 0)), int(space.get("start", 0))
        return ActionSpace(
            kind,
            _discrete_names(stem, meanings, count, start),
            start,
            shape=shape,
            env_id=env_id,
            meanings=meanings,
            idle=_idle_of(stem, meanings, count, start),
        )
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
    known = action_names(stem)
    return known if len(known) == count else tuple(f"action {start + index}" for index in range(count))


def _idle_of(stem: str, meanings: Sequence[str], count: int, start: int) -> int | None:
    if meanings and meanings[0].upper() == "NOOP":
        return start
    idle = _IDLE.get(stem)
    return start + idle if idle is not None and idle < count and len(action_names(stem)) == count else None


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


WAIT, REPEAT, NOTHING = "wait", "repeat", "nothing"
"""What happens in real time while no key is held: wait, repeat the last action, or take the no-op action"""


@dataclass(frozen=True)
class Binding:
    """Keys and the action, or the value of a component, that they are bound to."""

    keys: tuple[str, ...]
    action: int | None = None
    component: int | None = None
    value: float = 0.0

    @property
    def text(self) -> str:
        return "+".join(self.keys)

    def to_json(self) -> dict[str, Any]:
        target = {"action": self.action} if self.component is None else {"component": self.component}
        return {"keys": list(self.keys), **target, **({"value": self.value} if self.component is not None else {})}


@dataclass(frozen=True)
class KeyMap:
    """All key bindings of a game."""

    bindings: tuple[Binding, ...] = ()
    idle: str = WAIT

    def bound_keys(self) -> set[str]:
        return {key for binding in self.bindings for key in binding.keys}

    def text_for(self, action: int) -> str:
        """Return the keys of an action, for the label of a button."""
        return " / ".join(binding.text for binding in self.bindings if binding.action == action)

    def text_for_component(self, component: int) -> str:
        found = sorted((b for b in self.bindings if b.component == component), key=lambda b: b.value)
        return " / ".join(binding.text for binding in found)

    def action_for(self, held: Sequence[str], space: ActionSpace, last: Any = None) -> Any:
        """Return the action for the held keys (in the order they were pressed); None: no step."""
        fitting = [binding for binding in self.bindings if set(binding.keys) <= set(held)]
        if space.is_discrete:
            if fitting:
                newest = {key: place for place, key in enumerate(held)}
                best = max(fitting, key=lambda b: (len(b.keys), max(newest[key] for key in b.keys)))
                return best.action
        elif fitting:
            vector = space.rest_vector()
            for binding in fitting:
                if binding.component is not None and binding.component < len(vector):
                    vector[binding.component] = binding.value
            return space.as_action(vector)
        return None if held and not space.components else self.idle_action(space, last)

    def idle_action(self, space: ActionSpace, last: Any = None) -> Any:
        """Return the action that real time takes while no key is held."""
        if self.idle == WAIT:
            return None
        if self.idle == REPEAT:
            return last
        return space.idle if space.is_discrete else space.as_action(space.rest_vector())

    def with_binding(self, old: Binding | None, new: Binding | None) -> KeyMap:
        """Return a copy with `old` replaced or removed, or `new` added; keys of `new` are unbound elsewhere."""
        kept = [known for known in self.bindings if known != old and (new is None or known.keys != new.keys)]
        if new is None:
            return replace(self, bindings=tuple(kept))
        place = self.bindings.index(old) if old in self.bindings else len(kept)
        kept.insert(min(place, len(kept)), new)
        return replace(self, bindings=tuple(kept))

    def to_json(self) -> str:
        return json.dumps({"bindings": [binding.to_json() for binding in self.bindings], "idle": self.idle})

    @classmethod
    def from_json(cls, text: str, space: ActionSpace) -> KeyMap | None:
        """Return the stored key map if it fits the game, else None."""
        try:
            document = json.loads(text)
            bindings = tuple(
                Binding(
                    tuple(str(key) for key in entry["keys"]),
                    entry.get("action"),
                    entry.get("component"),
                    float(entry.get("value", 0.0)),
                )
                for entry in document["bindings"]
            )
            idle = document["idle"]
        except (ValueError, KeyError, TypeError):
            return None
        fits = idle in (WAIT, REPEAT, NOTHING) and all(_fits(binding, space) for binding in bindings)
        return cls(bindings, idle) if fits else None


def _fits(binding: Binding, space: ActionSpace) -> bool:
    if not binding.keys:
        return False
    if space.is_discrete:
        return isinstance(binding.action, int) and binding.action in space.actions()
    return isinstance(binding.component, int) and 0 <= binding.component < len(space.components)


# ---------------------------------------------------------------------- defaults

_DISCRETE: Mapping[str, Mapping[str, int]] = {
    "CartPole": {"Left": 0, "Right": 1, "A": 0, "D": 1},
    "MountainCar": {"Left": 0, "Down": 1, "Right": 2, "A": 0, "S": 1, "D": 2},
    "Acrobot": {"Left": 0, "Down": 1, "Right": 2, "A": 0, "S": 1, "D": 2},
    "LunarLander": {"Left": 1, "Up": 2, "Right": 3, "Down": 0, "A": 1, "W": 2, "D": 3},
    "Taxi": {"Down": 0, "Up": 1, "Right": 2, "Left": 3, "P": 4, "Space": 4, "D": 5, "Return": 5},
    "FrozenLake": {"Left": 0, "Down": 1, "Right": 2, "Up": 3, "A": 0, "S": 1, "D": 2, "W": 3},
    "CliffWalking": {"Up": 0, "Right": 1, "Down": 2, "Left": 3, "W": 0, "D": 1, "S": 2, "A": 3},
    "Blackjack": {"S": 0, "Left": 0, "H": 1, "Right": 1},
    "CarRacing": {"Right": 1, "Left": 2, "Up": 3, "Down": 4, "D": 1, "A": 2, "W": 3, "S": 4},
}
_MINIGRID: Mapping[str, tuple[str, ...]] = {
    "left": ("Left",),
    "right": ("Right",),
    "forward": ("Up",),
    "pickup": ("P", "PgUp"),
    "drop": ("D", "PgDown"),
    "toggle": ("Space", "T"),
    "done": ("Return",),
}
_ATARI_KEYS = {"UP": "Up", "DOWN": "Down", "LEFT": "Left", "RIGHT": "Right", "FIRE": "Space"}
_CONTINUOUS: Mapping[str, Sequence[tuple[str, int, float]]] = {
    "Pendulum": (("Left", 0, 2.0), ("Right", 0, -2.0)),  # positive torque is counterclockwise
    "LunarLander": (("Up", 0, 1.0), ("Left", 1, -1.0), ("Right", 1, 1.0)),
    "LunarLanderContinuous": (("Up", 0, 1.0), ("Left", 1, -1.0), ("Right", 1, 1.0)),
    "CarRacing": (("Left", 0, -1.0), ("Right", 0, 1.0), ("Up", 1, 1.0), ("Down", 2, 0.8), ("Space", 2, 0.8)),
}
_PAIRS = (("Left", "Right"), ("Down", "Up"), ("A", "D"), ("S", "W"), ("F", "H"), ("G", "T"), ("J", "L"), ("K", "I"))
"""Keys that decrease and increase the components of other vectors, in order"""
_DIGITS = "1234567890"

TURN_BASED = ("Taxi", "FrozenLake", "CliffWalking", "Blackjack")


def is_turn_based(env_id: str) -> bool:
    """Return whether the game waits for the player by default."""
    return stem_of(env_id) in TURN_BASED or env_id.rpartition(":")[2].startswith(("MiniGrid-", "BabyAI-"))


def default_key_map(space: ActionSpace) -> KeyMap:
    """Return the default key map of a game."""
    stem = stem_of(space.env_id)
    if not space.is_discrete:
        return KeyMap(_vector_bindings(stem, space), NOTHING)
    named = _from_names(space)
    if named:
        return KeyMap(tuple(named), NOTHING if space.idle is not None else WAIT)
    known = _DISCRETE.get(stem, {})
    if known and max(known.values()) < len(space.names):
        bindings = tuple(Binding((key,), space.start + action) for key, action in known.items())
        idle = NOTHING if space.idle is not None else WAIT if stem in TURN_BASED else REPEAT
        return KeyMap(bindings, idle)
    bindings = tuple(Binding((key,), action) for key, action in zip(_DIGITS, space.actions(), strict=False))
    return KeyMap(bindings, WAIT)


def _from_names(space: ActionSpace) -> list[Binding]:
    """Return bindings by the names of actions (Atari, MiniGrid)."""
    found: list[Binding] = []
    for action, meaning in zip(space.actions(), space.meanings, strict=False):
        if meaning in _MINIGRID:
            found += [Binding((key,), action) for key in _MINIGRID[meaning]]
        elif meaning.isupper() and (keys := _atari_keys(meaning)):
            found.append(Binding(keys, action))
    return found


def _atari_keys(meaning: str) -> tuple[str, ...]:
    """Return the keys of an action: Up, Right, Space for `UPRIGHTFIRE`."""
    keys: list[str] = []
    while meaning:
        part = next((part for part in _ATARI_KEYS if meaning.startswith(part)), None)
        if part is None:
            return ()
        keys.append(_ATARI_KEYS[part])
        meaning = meaning.removeprefix(part)
    return tuple(keys)


def _vector_bindings(stem: str, space: ActionSpace) -> tuple[Binding, ...]:
    known = _CONTINUOUS.get(stem, ())
    if known and max(component for _, component, _ in known) < len(space.components):
        return tuple(Binding((key,), component=component, value=value) for key, component, value in known)
    found: list[Binding] = []
    for index, (part, (lower, higher)) in enumerate(zip(space.components, _PAIRS, strict=False)):
        if part.low < part.rest:
            found.append(Binding((lower,), component=index, value=part.low))
        if part.high > part.rest:
            found.append(Binding((higher,), component=index, value=part.high))
    return tuple(found)


def conflicts(bindings: Iterable[Binding]) -> list[str]:
    """Return the keys that are bound twice."""
    seen: set[tuple[str, ...]] = set()
    return [binding.text for binding in bindings if binding.keys in seen or seen.add(binding.keys)]  # type: ignore[func-returns-value]


class Controls:
    """The controls that are held. Turn by turn, a press is a step; in real time each tick reads the current action."""

    def __init__(self, space: ActionSpace | None = None, key_map: KeyMap | None = None) -> None:
        self.space = space or ActionSpace("")
        self.key_map = key_map or KeyMap()
        self.vector: list[float] = self.space.rest_vector()
        """Values of the sliders"""
        self._held: list[str] = []
        self._button: Any = None
        self.last: Any = None
        """The last action"""

    def press(self, key: str) -> Any:
        """Note a pressed key; return the action it takes turn by turn, None for an unbound key."""
        if key not in self.key_map.bound_keys():
            return None
        if key not in self._held:
            self._held.append(key)
        return self._from_keys()

    def release(self, key: str) -> None:
        if key in self._held:
            self._held.remove(key)

    def hold_button(self, action: Any) -> None:
        """Note that a button on the screen is held; None: released."""
        self._button = action

    def release_all(self) -> None:
        """Release everything: the player moved the focus."""
        self._held.clear()
        self._button = None

    @property
    def held(self) -> tuple[str, ...]:
        return tuple(self._held)

    def current(self) -> Any:
        """Return the current action in real time; None: no step."""
        if self._button is not None:
            return self._button
        if self._held:
            return self._from_keys()
        if self.space.components and not self.space.is_discrete:
            return self.space.as_action(self.vector)
        return self.key_map.idle_action(self.space, self.last)

    def chosen(self) -> Any:
        """Return the action of the Step button: held keys, the sliders, or the no-op action."""
        found = self.current()
        if found is not None or not self.space.is_discrete:
            return found
        return self.space.idle if self.space.idle is not None else self.last

    def _from_keys(self) -> Any:
        if self.space.is_discrete:
            return self.key_map.action_for(self._held, self.space, self.last)
        vector = list(self.vector)
        is_bound = False
        for binding in self.key_map.bindings:
            if set(binding.keys) <= set(self._held) and binding.component is not None:
                vector[binding.component] = binding.value
                is_bound = True
        return self.space.as_action(vector) if is_bound else None
