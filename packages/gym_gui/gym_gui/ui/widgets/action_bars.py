"""What a policy thinks: a bar for each action, the chosen one marked; probabilities, or values."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from gym_gui.ui import theme

_MOST = 24
"""More bars than this nobody reads"""


class ActionBars(QWidget):
    """Names on the left, bars in the middle, figures on the right."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("action_bars")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._names: tuple[str, ...] = ()
        self._values: tuple[float, ...] = ()
        self._chosen = -1
        self._are_probabilities = True
        self.clear()

    def clear(self) -> None:
        self.show_values((), (), -1, are_probabilities=True)

    def show_values(
        self, names: Sequence[str], values: Sequence[float], chosen: int, *, are_probabilities: bool
    ) -> None:
        """`chosen` is a place in `values`."""
        has_other_size = len(values) != len(self._values)
        self._names, self._values = tuple(names[:_MOST]), tuple(values[:_MOST])
        self._chosen, self._are_probabilities = chosen, are_probabilities
        what = self.tr("Action probabilities") if are_probabilities else self.tr("Action values")
        self.setAccessibleName(what)
        told = [f"{name} {self._figure(value)}" for name, value in zip(self._names, self._values, strict=False)]
        self.setAccessibleDescription("; ".join(told))
        self.setVisible(bool(values))
        if has_other_size:
            self.updateGeometry()
        self.update()

    @property
    def values(self) -> tuple[float, ...]:
        return self._values

    def _row(self) -> int:
        return round(self.fontMetrics().height() * 1.4)

    def sizeHint(self) -> QSize:
        return QSize(self.fontMetrics().averageCharWidth() * 40, self._row() * max(1, len(self._values)))

    def minimumSizeHint(self) -> QSize:
        return QSize(self.fontMetrics().averageCharWidth() * 24, self.sizeHint().height())

    def _figure(self, value: float) -> str:
        return f"{100 * value:.1f} %" if self._are_probabilities else f"{value:.3g}"

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._values:
            return
        colours, metrics = theme.colours(), self.fontMetrics()
        painter = QPainter(self)
        names = max(metrics.horizontalAdvance(name) for name in self._names or ("",)) + metrics.height() * 1.6
        figures = metrics.horizontalAdvance("100.0 % ") + 6
        left = min(names, self.width() * 0.45)
        room = max(1.0, self.width() - left - figures)
        low = 0.0 if self._are_probabilities else min(0.0, *self._values)
        high = 1.0 if self._are_probabilities else max(0.0, *self._values)
        span = (high - low) or 1.0
        row = self._row()
        for place, value in enumerate(self._values):
            top = place * row
            is_chosen = place == self._chosen
            name = self._names[place] if place < len(self._names) else str(place)
            painter.setPen(QColor(colours.text if is_chosen else colours.muted))
            mark = "▸ " if is_chosen else "   "
            text = metrics.elidedText(mark + name, Qt.TextElideMode.ElideRight, round(left - 4))
            painter.drawText(QRectF(0, top, left, row), Qt.AlignmentFlag.AlignVCenter, text)
            zero, end = left + room * (0 - low) / span, left + room * (value - low) / span
            bar = QRectF(min(zero, end), top + row * 0.2, max(1.0, abs(end - zero)), row * 0.6)
            painter.fillRect(bar, QColor(colours.accent if is_chosen else colours.border))
            painter.setPen(QColor(colours.text))
            painter.drawText(
                QRectF(left + room, top, figures, row),
                Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, self._figure(value),
            )  # fmt: skip
