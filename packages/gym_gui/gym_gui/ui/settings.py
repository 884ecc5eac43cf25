"""What the window stores between sessions, in one group per part."""

from __future__ import annotations

from typing import Literal

from PySide6.QtCore import QSettings


def stored(group: str) -> QSettings:
    """Return the settings of one part of the window."""
    settings = QSettings("MOSAIC", "mosaic")
    settings.beginGroup(group)
    return settings


def notifies(place: Literal["tray", "window"]) -> bool:
    """Return whether a completed run is announced there; failures always are, in the window."""
    return bool(stored("notices").value(place, True, type=bool))


def set_notifies(place: Literal["tray", "window"], enabled: bool) -> None:
    stored("notices").setValue(place, enabled)
