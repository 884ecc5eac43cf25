"""One line of text that ends in … where there is no room; the whole of it is in the tool tip."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

_LEAST_CHARS = 8


class ElidedLabel(QLabel):
    """A label that never asks for more room than its place has."""

    def __init__(self, text: str = "", parent: QWidget | None = None) -> None:
        super().__init__(text, parent)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setTextFormat(Qt.TextFormat.PlainText)

    def show_text(self, text: str) -> None:
        if text != self.text():
            self.setText(text)
            self.setToolTip(text)

    def minimumSizeHint(self) -> QSize:
        return QSize(self.fontMetrics().averageCharWidth() * _LEAST_CHARS, super().minimumSizeHint().height())

    def sizeHint(self) -> QSize:
        # Labels side by side share the room evenly, whatever they say.
        return self.minimumSizeHint()

    def paintEvent(self, _event: QPaintEvent) -> None:
        with QPainter(self) as painter:
            room = self.contentsRect()
            text = self.fontMetrics().elidedText(self.text(), Qt.TextElideMode.ElideRight, room.width())
            painter.setPen(self.palette().color(self.foregroundRole()))
            painter.drawText(room, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, text)
