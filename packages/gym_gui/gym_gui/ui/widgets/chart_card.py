"""One curve in a frame: its title, its last value (or the one under the pointer), and the plot."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from gym_gui.ui import theme
from gym_gui.ui.presenters.live_curves import Curve, Floats, smoothed, title_of
from gym_gui.ui.widgets.plot_parts import ScrolledPlot, Ticks, tick_text, value_text
from gym_gui.wording import formats

_FAINT = 70
"""Opacity (of 255) of a curve behind its smoothed self"""


class Axis(Enum):
    """What a chart's horizontal axis counts."""

    STEP = "step"
    TIME = "time"


class ChartCard(QFrame):
    """Draws one `Curve`. A place on its axis that the pointer or the arrow keys choose is told by `pointed_at`."""

    pointed_at = Signal(object)  # a number on the axis, or None

    def __init__(self, tag: str, number: int, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.tag = tag
        self.setProperty("role", "card")
        self.setObjectName(f"chart_{tag.replace('/', '_')}")
        self._number = number
        self._curve = Curve(tag)
        self._axis = Axis.STEP
        self._xs: Floats = np.empty(0)
        self._ys: Floats = np.empty(0)
        self._mark: int | None = None

        title = QLabel(title_of(tag))
        title.setToolTip(tag)
        font = title.font()
        font.setBold(True)
        title.setFont(font)
        self._value = QLabel()
        self._value.setObjectName("chart_value")
        self._value.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._value.setAccessibleName(self.tr("Value of {0}").format(title_of(tag)))
        header = QHBoxLayout()
        header.addWidget(title)
        header.addWidget(self._value, 1)

        self._bottom, self._left = Ticks("bottom", tick_text), Ticks("left", tick_text)
        self.plot = ScrolledPlot(axisItems={"bottom": self._bottom, "left": self._left})
        self.plot.setObjectName("chart_plot")
        self.plot.setAccessibleName(self.tr("Curve of {0}; arrow keys read its points").format(title_of(tag)))
        self.plot.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.plot.installEventFilter(self)
        self.plot.setMenuEnabled(False)  # its words are English only, and the window has them elsewhere
        self.plot.hideButtons()
        self.plot.setMinimumHeight(self.fontMetrics().height() * 8)
        self._raw = self.plot.plot()
        self._smooth = self.plot.plot()
        for line in (self._raw, self._smooth):
            line.setDownsampling(auto=True, method="peak")
            line.setClipToView(True)
        self._line = pg.InfiniteLine(angle=90, movable=False)
        self._line.hide()
        self.plot.addItem(self._line, ignoreBounds=True)
        self.plot.scene().sigMouseMoved.connect(self._pointer_moved)

        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 6, 8, 6)
        layout.setSpacing(2)
        layout.addLayout(header)
        layout.addWidget(self.plot, 1)
        self._dress()

    # -- data

    def draw(self, curve: Curve, axis: Axis, began_at: float, weight: float) -> None:
        """Show a curve as it is now; with a weight, its moving average over its faint self."""
        self._curve = curve
        if axis is not self._axis:
            self._axis = axis
            self._bottom.write = tick_text if axis is Axis.STEP else formats.duration
            self.mark(None)
            self.reset_zoom()
        self._xs = curve.steps if axis is Axis.STEP else curve.times - began_at
        self._ys = smoothed(curve.values, weight)
        is_smoothed = self._ys is not curve.values
        # A single point has no line: it is a dot.
        self._smooth.setData(self._xs, self._ys, skipFiniteCheck=True, symbol="o" if len(self._xs) == 1 else None)
        self._raw.setVisible(is_smoothed)
        if is_smoothed:
            self._raw.setData(self._xs, curve.values, skipFiniteCheck=True)
        if self._mark is not None:  # the points may have been thinned since
            self.mark(float(self._line.value()))
        self._read_out()

    @property
    def shown(self) -> tuple[Floats, Floats]:
        """What is drawn, for tests and for people who ask."""
        return self._xs, self._ys

    @property
    def value_text(self) -> str:
        return self._value.text()

    # -- reading values

    def mark(self, x: float | None) -> None:
        """Read the curve out at a place on the axis; None: at its end."""
        index = self._curve.nearest(self._xs, x) if x is not None else None
        self._mark = index
        if index is None:
            self._line.hide()
        else:
            self._line.setPos(float(self._xs[index]))
            self._line.show()
        self._read_out()

    def reset_zoom(self) -> None:
        self.plot.enableAutoRange()

    def _read_out(self) -> None:
        if not len(self._ys):
            self._value.setText("")
            return
        index = -1 if self._mark is None or self._mark >= len(self._ys) else self._mark
        text = value_text(float(self._ys[index]))
        if self._mark is not None:
            x = float(self._xs[index])
            at = formats.count(x) if self._axis is Axis.STEP else formats.duration(x)
            place = self.tr("step {0}") if self._axis is Axis.STEP else self.tr("at {0}")
            text = f"{place.format(at)}   {text}"
        self._value.setText(text)

    def _pointer_moved(self, place: QPointF) -> None:
        view = self.plot.getPlotItem().vb
        if view.sceneBoundingRect().contains(place):
            self.pointed_at.emit(float(view.mapSceneToView(place).x()))

    def leaveEvent(self, event: QEvent) -> None:
        self.pointed_at.emit(None)
        super().leaveEvent(event)

    def eventFilter(self, watched: Any, event: QEvent) -> bool:
        """Arrow keys on the plot step from point to point; Escape ends it."""
        if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent) and len(self._xs):
            key = event.key()
            if key == Qt.Key.Key_Escape and self._mark is not None:
                self.pointed_at.emit(None)
                return True
            if key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
                here = len(self._xs) - 1 if self._mark is None else self._mark
                there = here + (1 if key == Qt.Key.Key_Right else -1)
                self.pointed_at.emit(float(self._xs[min(max(there, 0), len(self._xs) - 1)]))
                return True
        return super().eventFilter(watched, event)

    # -- dress

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.PaletteChange and hasattr(self, "_line"):
            self._dress()
        super().changeEvent(event)

    def _dress(self) -> None:
        colours = theme.colours()
        self.plot.setBackground(colours.surface)
        colour = colours.curve(self._number)
        faint = QColor(colour)
        faint.setAlpha(_FAINT)
        # A wider pen than 1 makes Qt draw ten times slower.
        self._smooth.setPen(pg.mkPen(colour, width=1))
        self._raw.setPen(pg.mkPen(faint, width=1))
        self._smooth.setSymbolBrush(colour)
        self._smooth.setSymbolPen(None)
        self._smooth.setSymbolSize(5)
        self._line.setPen(pg.mkPen(colours.muted, width=1, style=Qt.PenStyle.DashLine))
        for ticks in (self._bottom, self._left):
            ticks.dress(self.font())
        self.plot.showGrid(y=True, alpha=0.3)
