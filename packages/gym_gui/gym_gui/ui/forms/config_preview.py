"""What a form would send: the JSON, and the command line that does the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mosaic_wire.redaction import redact_document, secret_values
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

from gym_gui.ui import theme


class TextPreview(QWidget):
    """A read-only text in a fixed-width font, a remark above it and a button that copies it."""

    def __init__(self, name: str, title: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._text = QPlainTextEdit(self)
        self._text.setObjectName(name)
        self._text.setAccessibleName(title)
        self._text.setReadOnly(True)
        self._text.setFont(theme.monospace())
        self._text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self._text.setTabChangesFocus(True)
        self._remark = QLabel(self)
        self._remark.setObjectName(f"{name}_remark")
        self._remark.setProperty("role", "caption")
        self._remark.setWordWrap(True)
        copy = QPushButton(self.tr("&Copy"), self)
        copy.setObjectName(f"{name}_copy")
        copy.setAccessibleName(self.tr("Copy {what}").format(what=title))
        copy.clicked.connect(lambda: QGuiApplication.clipboard().setText(self.text))
        layout = QVBoxLayout(self)
        top = QHBoxLayout()
        top.addWidget(self._remark, 1)
        top.addWidget(copy)
        layout.addLayout(top)
        layout.addWidget(self._text, 1)

    @property
    def text(self) -> str:
        return self._text.toPlainText()

    @property
    def remark(self) -> str:
        return self._remark.text()

    def show_text(self, text: str, remark: str = "") -> None:
        if text != self.text:
            place = self._text.verticalScrollBar().value()
            self._text.setPlainText(text)
            self._text.verticalScrollBar().setValue(place)
        self._remark.setText(remark)


def shown_json(configs: Sequence[Mapping[str, Any]]) -> str:
    """The first config, readable and without secrets."""
    if not configs:
        return ""
    first = configs[0]
    return json.dumps(redact_document(first, secret_values(first)), indent=2, ensure_ascii=False)
