"""Names of the actions that environments number."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES: Mapping[str, tuple[str, ...]] = {
    "CartPole": ("push left", "push right"),
    "MountainCar": ("left", "coast", "right"),
    "Acrobot": ("torque −1", "no torque", "torque +1"),
    "LunarLander": ("nothing", "left engine", "main engine", "right engine"),
    "Taxi": ("south", "north", "east", "west", "pick up", "drop off"),
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "CliffWalking": ("up", "right", "down", "left"),
    "CliffWalkingSlippery": ("up", "right", "down", "left"),
    "Blackjack": ("stick", "hit"),
    "CarRacing": ("nothing", "steer right", "steer left", "gas", "brake"),
}
_OF_GRIDS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")


def stem_of(env_id: str) -> str:
    """Return `CartPole` for `gymnasium:CartPole-v1`, `Breakout` for `ALE/Breakout-v5`."""
    name = env_id.rpartition(":")[2].rpartition("/")[2]
    stem, _, version = name.rpartition("-v")
    return stem if stem and version.isdigit() else name


def action_names(env_id: str) -> tuple[str, ...]:
    """Return the names of discrete actions, in their order; empty where they are not known."""
    stem = stem_of(env_id)
    return _OF_GRIDS if stem.startswith(("MiniGrid-", "BabyAI-")) else _NAMES.get(stem, ())


def named_action(env_id: str, action: str) -> str:
    """Return `down (1)` for `1` in FrozenLake-v1; an action without a name as it is."""
    names = action_names(env_id)
    return f"{names[int(action)]} ({action})" if action.isdecimal() and int(action) < len(names) else action
