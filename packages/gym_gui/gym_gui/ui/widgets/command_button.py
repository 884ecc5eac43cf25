"""Buttons with a name for tests and one for screen readers; some have a key that works while the panel has focus."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QPushButton, QWidget


def named_button(name: str, text: str, accessible: str) -> QPushButton:
    """A button whose label alone does not say what it does."""
    button = QPushButton(text)
    button.setObjectName(name)
    button.setAccessibleName(accessible)
    return button


def command_button(panel: QWidget, name: str, text: str, keys: str, act: Callable[[], object]) -> QPushButton:
    """Without keys it is a button only."""
    plain = text.replace("&", "")
    button = named_button(name, text, plain)
    button.clicked.connect(act)
    if keys:
        button.setToolTip(f"{plain} ({keys})")
        shortcut = QShortcut(QKeySequence(keys), panel)
        shortcut.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        shortcut.activated.connect(button.click)
    return button
