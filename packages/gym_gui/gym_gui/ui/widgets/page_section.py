"""Parts of a long page: a heading with something below it, and a line of text that can be copied."""

from __future__ import annotations

from PySide6.QtCore import QTimer
from PySide6.QtGui import QFont, QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QLabel, QLineEdit, QPushButton, QVBoxLayout, QWidget

from gym_gui.ui.widgets.code_font import CodeFont

_TOLD_MS = 1500


class PageSection(QWidget):
    """A heading and a widget; hidden together."""

    def __init__(self, name: str, title: str, content: QWidget, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName(f"section_{name}")
        self.title = QLabel(title)
        font = QFont(self.title.font())
        font.setBold(True)
        self.title.setFont(font)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 6, 0, 0)
        layout.setSpacing(4)
        layout.addWidget(self.title)
        layout.addWidget(content)
        layout.addStretch(1)  # beside a higher neighbour it stays at the top


class CopyLine(QWidget):
    """One line of text, however long, with a button that copies it."""

    def __init__(self, name: str, accessible: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.field = QLineEdit()
        self.field.setObjectName(f"{name}_text")
        self.field.setReadOnly(True)
        CodeFont(self.field)
        self.field.setAccessibleName(accessible)
        self.button = QPushButton(self.tr("&Copy"))
        self.button.setObjectName(f"{name}_copy")
        self.button.setAccessibleName(self.tr("Copy: {what}").format(what=accessible))
        self.button.clicked.connect(self._copy)
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.field, 1)
        layout.addWidget(self.button)

    @property
    def text(self) -> str:
        return self.field.text()

    def show_text(self, text: str, tip: str = "") -> None:
        if text != self.field.text():
            self.field.setText(text)
            self.field.setCursorPosition(0)
        self.field.setToolTip(tip or text)
        self.button.setEnabled(bool(text))

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.field.text())
        self.button.setText(self.tr("Copied"))
        QTimer.singleShot(_TOLD_MS, self, lambda: self.button.setText(self.tr("&Copy")))
