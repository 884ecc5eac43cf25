"""Where the window and its docks were, kept between sessions under the version of the layout.

A layout of another version is not restored: its docks may not exist any more. `reset` forgets everything.
"""

from __future__ import annotations

from PySide6.QtCore import QByteArray, QSettings
from PySide6.QtWidgets import QMainWindow, QWidget

LAYOUT_VERSION = 1
"""Count it up whenever a dock or tool bar is added, renamed or removed"""

_GROUP = "window"


def _settings() -> QSettings:
    settings = QSettings("MOSAIC", "mosaic")
    settings.beginGroup(_GROUP)
    return settings


def save(window: QWidget, docks: QMainWindow) -> None:
    """Note the window's place and the docks' arrangement."""
    settings = _settings()
    settings.setValue("version", LAYOUT_VERSION)
    settings.setValue("geometry", window.saveGeometry())
    settings.setValue("docks", docks.saveState(LAYOUT_VERSION))


def restore_geometry(window: QWidget) -> bool:
    """Put the window where it was; False when nothing of this version is known."""
    settings = _settings()
    if not _is_ours(settings):
        return False
    geometry = settings.value("geometry")
    return isinstance(geometry, QByteArray) and window.restoreGeometry(geometry)


def restore_docks(docks: QMainWindow) -> bool:
    """Put the docks where they were; False when they stay as they are."""
    settings = _settings()
    if not _is_ours(settings):
        return False
    state = settings.value("docks")
    return isinstance(state, QByteArray) and docks.restoreState(state, LAYOUT_VERSION)


def reset() -> None:
    """Forget the layout (not the theme, nor what other parts keep)."""
    _settings().remove("")


def _is_ours(settings: QSettings) -> bool:
    return str(settings.value("version")) == str(LAYOUT_VERSION)
