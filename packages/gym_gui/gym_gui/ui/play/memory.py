"""What the play panels remember between sessions, in QSettings: choices, key maps, game configurations."""

from __future__ import annotations

import json
from typing import Any

from PySide6.QtCore import QSettings

from gym_gui.ui.play.actions import ActionSpace, stem_of
from gym_gui.ui.play.key_maps import KeyMap, default_key_map

_GROUP = "human_panel"


def _settings() -> QSettings:
    return QSettings("MOSAIC", "mosaic")


def recall(name: str, otherwise: Any = None) -> Any:
    """A JSON value that was kept under this name."""
    text = _settings().value(f"{_GROUP}/{name}")
    try:
        return json.loads(text) if isinstance(text, str) else otherwise
    except ValueError:
        return otherwise


def keep(name: str, value: Any) -> None:
    """None and {} are what nobody chose: nothing is kept of them."""
    if value is None or value == {}:
        _settings().remove(f"{_GROUP}/{name}")
    else:
        _settings().setValue(f"{_GROUP}/{name}", json.dumps(value))


def key_map_of(space: ActionSpace) -> KeyMap:
    """The player's own for this game, or the default."""
    kept = recall(_key_name(space))
    found = KeyMap.from_json(kept, space) if isinstance(kept, str) else None
    return found if found is not None else default_key_map(space)


def keep_key_map(space: ActionSpace, key_map: KeyMap) -> None:
    """One that equals the default is forgotten, so that better defaults are not hidden by it."""
    keep(_key_name(space), None if key_map == default_key_map(space) else key_map.to_json())


def _key_name(space: ActionSpace) -> str:
    # A game with other actions (LunarLander, continuous or not) has other keys.
    return f"keys/{stem_of(space.env_id)}-{space.kind}-{len(space.names) or len(space.components)}"
