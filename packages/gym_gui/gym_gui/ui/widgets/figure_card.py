"""Small things that show one fact: a card with a number, cards in a grid, the chip of a run's state."""

from __future__ import annotations

from collections.abc import Sequence

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QEvent, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QSizePolicy, QVBoxLayout, QWidget

from gym_gui.ui import theme
from gym_gui.ui.widgets.elided_label import ElidedLabel


class FigureCard(QFrame):
    """A caption, a number in large type, and a word about it."""

    def __init__(self, key: str, caption: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName(f"card_{key}")
        self.setProperty("role", "card")
        self._caption = ElidedLabel(caption)
        self._caption.setProperty("role", "caption")
        self._value = ElidedLabel("–")
        self._value.setObjectName(f"card_{key}_value")
        self._value.setProperty("role", "figure")
        self._note = ElidedLabel()
        self._note.setProperty("role", "caption")
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 8, 12, 8)
        layout.setSpacing(2)
        for label in (self._caption, self._value, self._note):
            layout.addWidget(label)
        layout.addStretch(1)  # beside cards with a word more

    @property
    def value(self) -> str:
        return self._value.text()

    def show_figure(self, caption: str, value: str, note: str = "") -> None:
        if (self._caption.text(), self._value.text(), self._note.text()) == (caption, value, note):
            return  # a run tells of itself several times a second; most figures have not moved
        self._caption.setText(caption)
        self._value.setText(value)
        self._note.setText(note)
        self._note.setVisible(bool(note))
        words = ", ".join(filter(None, (f"{caption}: {value}", note)))
        self.setToolTip(words)
        self.setAccessibleName(words)


class CardGrid(QWidget):
    """Widgets of equal width side by side, in as many columns as there is room for."""

    def __init__(
        self, widgets: Sequence[QWidget] = (), *, least_chars: int = 20, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._least_chars = least_chars
        self._widgets = list(widgets)
        self._columns = 0
        self._layout = QGridLayout(self)
        self._layout.setContentsMargins(0, 0, 0, 0)
        self._layout.setSpacing(8)
        self._arrange()

    def set_widgets(self, widgets: Sequence[QWidget]) -> None:
        """Other widgets than before; those that are no longer shown are hidden, and the caller's to delete."""
        for widget in self._widgets:
            if widget not in widgets:
                widget.hide()
        self._widgets = list(widgets)
        self._columns = 0
        self._arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def minimumSizeHint(self) -> QSize:
        return QSize(self._least_width(), super().minimumSizeHint().height())

    def _least_width(self) -> int:
        return self.fontMetrics().averageCharWidth() * self._least_chars

    def _arrange(self) -> None:
        fitting = max(1, (self.width() + 8) // (self._least_width() + 8))
        columns = min(fitting, max(1, len(self._widgets)))
        rows = -(-len(self._widgets) // columns) if self._widgets else 1
        columns = -(-len(self._widgets) // rows) if self._widgets else 1  # six in rows of three, not of five and one
        if columns == self._columns:
            return
        self._columns = columns
        while self._layout.count():
            self._layout.takeAt(0)
        for column in range(self._layout.columnCount()):
            self._layout.setColumnStretch(column, 0)
        for index, widget in enumerate(self._widgets):
            self._layout.addWidget(widget, index // columns, index % columns)
            widget.show()
            self._layout.setColumnStretch(index % columns, 1)


class StateChip(QWidget):
    """The state of a run in a rounded frame of its colour, with a symbol: `▶ Running`."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("state_chip")
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self._text = ""
        self._run: pb.Run | None = None

    @property
    def text(self) -> str:
        return self._text

    def show_state(self, run: pb.Run, text: str) -> None:
        self._run = run
        if text != self._text:
            self._text = text
            self.setAccessibleName(text)
            self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        metrics = self.fontMetrics()
        return QSize(metrics.horizontalAdvance(self._text) + metrics.height() + 4, metrics.height() + 8)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self.updateGeometry()
        super().changeEvent(event)

    def paintEvent(self, _event: QPaintEvent) -> None:
        if self._run is None:
            return
        colour = theme.colour_of(self._run)
        fill = QColor(colour)
        fill.setAlpha(40)
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(colour)
            painter.setBrush(fill)
            shape = self.rect().adjusted(1, 1, -2, -2)
            painter.drawRoundedRect(shape, shape.height() / 2, shape.height() / 2)
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter, self._text)
