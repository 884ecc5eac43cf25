"""A button of a panel with its key, which works while the panel has the focus."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QPushButton, QWidget


def command_button(panel: QWidget, name: str, text: str, keys: str, act: Callable[[], object]) -> QPushButton:
    """Without keys it is a button only."""
    button = QPushButton(text)
    button.setObjectName(name)
    plain = text.replace("&", "")
    button.setAccessibleName(plain)
    button.clicked.connect(act)
    if keys:
        button.setToolTip(f"{plain} ({keys})")
        shortcut = QShortcut(QKeySequence(keys), panel)
        shortcut.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        shortcut.activated.connect(button.click)
    return button
