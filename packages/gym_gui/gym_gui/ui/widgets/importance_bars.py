"""How much each parameter mattered, as bars with their names and shares written beside them."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from gym_gui.ui import theme

_MOST = 30


class ImportanceBars(QWidget):
    """The largest share above; names that are too long are in the tool tip."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("study_importances")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.shares: dict[str, float] = {}
        self.show_shares({})

    def show_shares(self, shares: dict[str, float]) -> None:
        self.shares = dict(sorted(shares.items(), key=lambda item: -item[1])[:_MOST])
        told = ", ".join(f"{name} {share:.0%}" for name, share in self.shares.items())
        self.setAccessibleName(self.tr("Importance of the parameters: {shares}").format(shares=told))
        self.setToolTip("\n".join(f"{name}   {share:.1%}" for name, share in self.shares.items()))
        self.updateGeometry()
        self.update()

    def _line(self) -> int:
        return round(self.fontMetrics().height() * 1.9)

    def sizeHint(self) -> QSize:
        return QSize(self.fontMetrics().averageCharWidth() * 40, self._line() * max(1, len(self.shares)))

    def minimumSizeHint(self) -> QSize:
        return QSize(self.fontMetrics().averageCharWidth() * 20, self.sizeHint().height())

    def changeEvent(self, event: QEvent) -> None:
        if event.type() in (QEvent.Type.PaletteChange, QEvent.Type.FontChange):
            self.update()
        super().changeEvent(event)

    def paintEvent(self, _event: QPaintEvent) -> None:
        if not self.shares:
            return
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        colours, metrics, line = theme.colours(), self.fontMetrics(), self._line()
        names = min(max(map(metrics.horizontalAdvance, self.shares)) + 8, round(self.width() * 0.4))
        numbers = metrics.horizontalAdvance("100.0 %") + 8
        room = max(10.0, self.width() - names - numbers - 8.0)
        largest = max(self.shares.values()) or 1.0
        for place, (name, share) in enumerate(self.shares.items()):
            top = place * line
            text = metrics.elidedText(name, Qt.TextElideMode.ElideMiddle, names - 8)
            painter.setPen(QColor(colours.text))
            side = Qt.AlignmentFlag.AlignVCenter
            painter.drawText(QRectF(0, top, names - 8, line), side | Qt.AlignmentFlag.AlignRight, text)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(colours.accent))
            width = max(2.0, room * share / largest)
            painter.drawRoundedRect(QRectF(names, top + line * 0.2, width, line * 0.6), 2, 2)
            painter.setPen(QColor(colours.muted))
            painter.drawText(QRectF(names + width + 6, top, numbers, line), side, f"{share:.1%}".replace("%", " %"))
        painter.end()
