"""Asks before something that cannot be undone, without stopping the window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtWidgets import QMessageBox, QWidget


def confirm(
    parent: QWidget, question: str, details: str, *, yes: str, on_yes: Callable[[], Any], is_dangerous: bool = True
) -> QMessageBox:
    """Show the question and return at once; `on_yes` is called if the button `yes` is clicked. Escape means no."""
    icon = QMessageBox.Icon.Warning if is_dangerous else QMessageBox.Icon.Question
    box = QMessageBox(icon, QCoreApplication.translate("Confirm", "MOSAIC"), question, parent=parent)
    box.setObjectName("confirm")
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setInformativeText(details)
    agree = box.addButton(
        yes, QMessageBox.ButtonRole.DestructiveRole if is_dangerous else QMessageBox.ButtonRole.AcceptRole
    )
    agree.setObjectName("confirm_yes")
    refuse = box.addButton(QMessageBox.StandardButton.Cancel)
    box.setEscapeButton(refuse)
    box.setDefaultButton(refuse if is_dangerous else agree)
    agree.clicked.connect(lambda: on_yes())
    box.open()
    return box
