"""Which key does what in a game: defaults for the well-known ones, and what a player made of them. No Qt.

Keys have the names that Qt writes (`Left`, `Space`, `A`). A binding of several keys (`Up+Space`) wins over those of
one while all of them are held. In games with vector actions a binding sets one component while it is held.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gym_gui.ui.play.actions import ActionSpace, stem_of

WAIT, REPEAT, NOTHING = "wait", "repeat", "nothing"
"""What happens in real time while no key is held: no step, the last action again, or the one that does nothing"""


@dataclass(frozen=True)
class Binding:
    """Keys, and what they do: an action, or a value for one component."""

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
    """All bindings of a game."""

    bindings: tuple[Binding, ...] = ()
    idle: str = WAIT

    def bound_keys(self) -> set[str]:
        return {key for binding in self.bindings for key in binding.keys}

    def text_for(self, action: int) -> str:
        """The keys of an action, for a button's label."""
        return " / ".join(binding.text for binding in self.bindings if binding.action == action)

    def text_for_component(self, component: int) -> str:
        found = sorted((b for b in self.bindings if b.component == component), key=lambda b: b.value)
        return " / ".join(binding.text for binding in found)

    def action_for(self, held: Sequence[str], space: ActionSpace, last: Any = None) -> Any:
        """What the held keys (in the order they went down) mean; None: nothing is done."""
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
        """What is done in real time while nothing is held."""
        if self.idle == WAIT:
            return None
        if self.idle == REPEAT:
            return last
        return space.idle if space.is_discrete else space.as_action(space.rest_vector())

    def with_binding(self, old: Binding | None, new: Binding | None) -> KeyMap:
        """Another map: `old` replaced by `new`, or removed, or `new` added; keys of `new` do nothing else any more."""
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
        """What was stored, if it still fits the game; otherwise None."""
        try:
            document = json.loads(text)
            bindings = tuple(
                Binding(
                    tuple(str(key) for key in entry["keys"]), entry.get("action"), entry.get("component"),
                    float(entry.get("value", 0.0)),
                )
                for entry in document["bindings"]
            )  # fmt: skip
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
    "left": ("Left",), "right": ("Right",), "forward": ("Up",), "pickup": ("P", "PgUp"), "drop": ("D", "PgDown"),
    "toggle": ("Space", "T"), "done": ("Return",),
}  # fmt: skip
_ATARI_KEYS = {"UP": "Up", "DOWN": "Down", "LEFT": "Left", "RIGHT": "Right", "FIRE": "Space"}
_CONTINUOUS: Mapping[str, Sequence[tuple[str, int, float]]] = {
    "Pendulum": (("Left", 0, 2.0), ("Right", 0, -2.0)),  # torque turns it against the clock
    "LunarLander": (("Up", 0, 1.0), ("Left", 1, -1.0), ("Right", 1, 1.0)),
    "LunarLanderContinuous": (("Up", 0, 1.0), ("Left", 1, -1.0), ("Right", 1, 1.0)),
    "CarRacing": (("Left", 0, -1.0), ("Right", 0, 1.0), ("Up", 1, 1.0), ("Down", 2, 0.8), ("Space", 2, 0.8)),
}
_PAIRS = (("Left", "Right"), ("Down", "Up"), ("A", "D"), ("S", "W"), ("F", "H"), ("G", "T"), ("J", "L"), ("K", "I"))
"""Keys that lower and raise the components of other vectors, in order"""
_DIGITS = "1234567890"

TURN_BASED = ("Taxi", "FrozenLake", "CliffWalking", "Blackjack")


def is_turn_based(env_id: str) -> bool:
    """Games that wait for the player unless told otherwise."""
    return stem_of(env_id) in TURN_BASED or env_id.rpartition(":")[2].startswith(("MiniGrid-", "BabyAI-"))


def default_key_map(space: ActionSpace) -> KeyMap:
    """What the keys do before anybody changed them."""
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
    """Atari and MiniGrid name their actions."""
    found: list[Binding] = []
    for action, meaning in zip(space.actions(), space.meanings, strict=False):
        if meaning in _MINIGRID:
            found += [Binding((key,), action) for key in _MINIGRID[meaning]]
        elif meaning.isupper() and (keys := _atari_keys(meaning)):
            found.append(Binding(keys, action))
    return found


def _atari_keys(meaning: str) -> tuple[str, ...]:
    """`UPRIGHTFIRE` → Up, Right, Space."""
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
    """Keys that stand for two things."""
    seen: set[tuple[str, ...]] = set()
    return [binding.text for binding in bindings if binding.keys in seen or seen.add(binding.keys)]  # type: ignore[func-returns-value]
