"""The application's icon, drawn: a mosaic of nine stones."""

from __future__ import annotations

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap

from gym_gui.ui import theme

_STONES = (0, 5, 2, 4, 1, 0, 2, 3, 6)
"""Which colour each stone has, row by row"""


def application_icon() -> QIcon:
    icon = QIcon()
    for side in (16, 32, 64, 128):
        icon.addPixmap(_draw(side))
    return icon


def _draw(side: int) -> QPixmap:
    picture = QPixmap(side, side)
    picture.fill(Qt.GlobalColor.transparent)
    painter = QPainter(picture)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    gap = side / 16
    stone = (side - 4 * gap) / 3
    for number, colour in enumerate(_STONES):
        row, column = divmod(number, 3)
        painter.setBrush(QColor(theme.LIGHT.series[colour]))
        place = QRectF(gap + column * (stone + gap), gap + row * (stone + gap), stone, stone)
        painter.drawRoundedRect(place, stone / 6, stone / 6)
    painter.end()
    return picture
