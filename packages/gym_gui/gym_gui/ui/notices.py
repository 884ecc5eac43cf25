"""Which notes a person wants when a run ends, kept between sessions."""

from __future__ import annotations

from PySide6.QtCore import QSettings


def tray_notes_wanted() -> bool:
    """Whether the system tray may speak while the window is in the background."""
    return bool(_settings().value("tray", True, type=bool))


def want_tray_notes(wanted: bool) -> None:
    _settings().setValue("tray", wanted)


def window_notes_wanted() -> bool:
    """Whether a note appears in the corner of the window when a run completes; failures always do."""
    return bool(_settings().value("window", True, type=bool))


def want_window_notes(wanted: bool) -> None:
    _settings().setValue("window", wanted)


def _settings() -> QSettings:
    settings = QSettings("MOSAIC", "mosaic")
    settings.beginGroup("notices")
    return settings
