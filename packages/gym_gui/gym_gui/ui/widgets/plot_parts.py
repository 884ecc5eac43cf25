"""What every plot of the window is made of: ticks as the rest of the window writes numbers, a wheel that scrolls pages.

Importing this loads pyqtgraph, which takes a while.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import Qt
from PySide6.QtGui import QFont, QWheelEvent

from gym_gui.ui import theme
from gym_gui.wording import formats


class Ticks(pg.AxisItem):  # type: ignore[misc]  # pyqtgraph has no types
    """Numbers as the rest of the window writes them."""

    def __init__(self, orientation: str, write: Callable[[float], str]) -> None:
        super().__init__(orientation)
        self.write = write
        self.enableAutoSIPrefix(False)
        self.setStyle(maxTickLevel=0)  # the finer ticks have lines too, and drawing those took a third of an update

    def tickStrings(self, values: list[float], _scale: float, _spacing: float) -> list[str]:
        return [self.write(float(10.0 ** min(value, 300.0)) if self.logMode else value) for value in values]

    def logTickValues(
        self, lowest: float, highest: float, _size: float, _usual: list[tuple[float, list[float]]]
    ) -> list[tuple[float, list[float]]]:
        """Powers of ten, and between them as many round numbers as there is room for."""
        decades = highest - lowest
        first, last = math.floor(lowest), math.ceil(highest)
        digits = (1,) if decades > 4 else (1, 3) if decades > 2 else (1, 2, 5) if decades > 0.7 else range(1, 10)
        stride = max(1, round(decades / 8))
        values = [
            power + float(np.log10(digit)) for power in range(first, last + 1, stride) for digit in digits
        ]  # fmt: skip
        return [(1.0, [value for value in values if lowest < value < highest])]

    def dress(self, font: QFont) -> None:
        """In the colours of the theme."""
        colours = theme.colours()
        self.setPen(pg.mkPen(colours.border))
        self.setTextPen(pg.mkPen(colours.muted))
        self.setTickFont(font)


class ScrolledPlot(pg.PlotWidget):  # type: ignore[misc]
    """A plot in a page that scrolls: the wheel belongs to the page, with Ctrl to the plot."""

    def wheelEvent(self, event: QWheelEvent) -> None:
        if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            super().wheelEvent(event)
        else:
            event.ignore()


def tick_text(value: float) -> str:
    """2500 → 2500, 50000 → 50k: a tick is a round number and needs no more digits than it has."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.6g}{unit}"
    return f"{value:.6g}"


def value_text(value: float) -> str:
    """A value of a curve; small ones keep their digits."""
    if not math.isfinite(value):
        return str(value)
    return formats.quantity(value) if value == 0 or abs(value) >= 0.001 else f"{value:.2e}"
