"""Draws a `Figure` of the analytics with pyqtgraph: lines, bands, a crosshair, zoom. The command draws the same one.

Importing this loads pyqtgraph, which takes a while.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, QPointF, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from gym_gui.services.analytics.curves import Axis
from gym_gui.services.analytics.figure import Figure
from gym_gui.ui import theme
from gym_gui.ui.presenters.charts import Entry, entries_of
from gym_gui.ui.presenters.live_curves import title_of
from gym_gui.ui.widgets.elided_label import ElidedLabel
from gym_gui.ui.widgets.figure_parts import Look, parts_of
from gym_gui.ui.widgets.plot_layer import PlotLayer
from gym_gui.ui.widgets.plot_parts import ScrolledPlot, Ticks, tick_text, value_text
from gym_gui.wording import formats

_POINTER_MS = 33
_REFINE_MS = 120
"""After this long at one place, what is looked at closely is drawn with more of its points"""
_STEPS_OF_A_WALK = 200
"""With the arrow keys a chart is walked through in so many steps"""


class ChartView(QFrame):
    """One figure. A place on its axis that the pointer or the arrow keys choose is told by `pointed_at`."""

    pointed_at = Signal(object)  # a number on the axis, or None

    def __init__(self, tag: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.tag = tag
        self.setProperty("role", "card")
        self.setObjectName(f"chart_{tag.replace('/', '_')}")
        self.figure: Figure | None = None
        self._axis = Axis.STEP
        self._hidden: Collection[str] = frozenset()
        self._chosen = ""
        self.entries: dict[str, Entry] = {}
        self._mark: float | None = None
        self._pointer: tuple[float, float] | None = None
        self._is_thinned = False
        self._stretch: tuple[float, float] | None = None
        """The part of the axis that is looked at more closely; its points are drawn finer"""
        self._range_rests = QTimer(self, singleShot=True, interval=_REFINE_MS)
        self._range_rests.timeout.connect(self._refine)
        self._pointer_rests = QTimer(self, singleShot=True, interval=_POINTER_MS)
        self._pointer_rests.timeout.connect(self._tell_pointer)
        self._build()
        self._dress()

    # ---------------------------------------------------------------- data

    def show_figure(self, figure: Figure, axis: Axis, hidden: Collection[str] = (), chosen: str = "") -> None:
        """Draw this; `hidden` are keys of entries that are not to be seen, `chosen` is one to bring forward."""
        before = self.figure
        # A longer run is shown in minutes instead of seconds: that is another axis too.
        is_other_space = before is not None and (before.x_label, before.log_x, before.log_y) != (
            figure.x_label, figure.log_x, figure.log_y
        )  # fmt: skip
        self.figure, self._axis = figure, axis
        self.entries = entries_of(figure)
        self._hidden, self._chosen = frozenset(hidden), chosen
        self._bottom.setLogMode(figure.log_x)
        self._left.setLogMode(figure.log_y)
        self._title.setText(figure.title)
        self._x_label.setText(figure.x_label)
        self._draw()
        if is_other_space:
            self._mark = None
            self.reset_zoom()
        self._draw_mark()

    def set_look(self, hidden: Collection[str], chosen: str) -> None:
        """The same figure with other lines in view, or another one in front."""
        if self.figure is not None and (frozenset(hidden), chosen) != (self._hidden, self._chosen):
            self._hidden, self._chosen = frozenset(hidden), chosen
            self._draw()
            self._draw_mark()

    @property
    def keys_in_view(self) -> list[str]:
        """Of the entries whose lines are drawn."""
        return [key for key in self.entries if key not in self._hidden]

    def drawn_points(self) -> int:
        """How many points the lines have that are on the screen."""
        return sum(len(stroke.xs) for stroke in self._layer.strokes)

    def value_at(self, key: str, x: float) -> float | None:
        """What a line says nearest to a place of the axis; None where it has nothing."""
        entry = self.entries.get(key)
        if entry is None or not len(entry.line.x):
            return None
        xs = entry.line.x
        if x < xs[0] or x > xs[-1]:
            near = 0 if x < xs[0] else len(xs) - 1
            # A run that ended earlier has no value there; the edge itself may be missed by a pixel.
            if abs(float(xs[near]) - x) > 0.01 * (float(xs[-1]) - float(xs[0]) or 1.0):
                return None
            return float(entry.line.y[near])
        index = int(np.searchsorted(xs, x))
        if index > 0 and (index == len(xs) or x - xs[index - 1] < xs[index] - x):
            index -= 1
        return float(entry.line.y[index])

    # ---------------------------------------------------------------- drawing

    def _draw(self) -> None:
        assert self.figure is not None
        look = Look(self._hidden, self._chosen, self._stretch)
        fills, strokes, self._is_thinned = parts_of(self.figure, self.entries.values(), look)
        self._layer.show_parts(fills, strokes)

    def _refine(self) -> None:
        if self.figure is None or not self._is_thinned:
            return
        low, high = self.plot.getPlotItem().vb.viewRange()[0]
        if self.figure.log_x:
            low, high = _power(low), _power(high)
        is_whole = self.plot.getPlotItem().vb.autoRangeEnabled()[0] is not False
        wanted = None if is_whole else (low, high)
        if wanted != self._stretch:
            self._stretch = wanted
            self._draw()

    # ---------------------------------------------------------------- reading values

    def mark(self, x: float | None) -> None:
        """Read the lines out at a place of the axis; None: nowhere."""
        self._mark = x
        if x is None:
            self._pointer = None
        self._draw_mark()

    def _draw_mark(self) -> None:
        x = self._mark
        log_x = self.figure is not None and self.figure.log_x
        if x is None or self.figure is None or (log_x and x <= 0):
            self._cross.hide()
            self._value.setText("" if self.figure is None else self.figure.note)
            return
        self._cross.setPos(float(np.log10(x)) if log_x else x)
        self._cross.show()
        if self._axis is Axis.TIME:
            place = f"{self.figure.x_label} {value_text(x)}"
        else:
            place = (self.tr("episode {0}") if self._axis is Axis.EPISODE else self.tr("step {0}")).format(
                formats.count(x)
            )
        key = self.nearest()
        value = self.value_at(key, x) if key else None
        if value is None:
            self._value.setText(place)
        elif len(self.entries) == 1:
            self._value.setText(f"{place}   {value_text(value)}")
        else:
            self._value.setText(f"{place}   {value_text(value)}   {self.entries[key].short}")

    def nearest(self) -> str:
        """The line that the pointer is closest to (with the keyboard: the chosen one, or the first)."""
        x = self._mark
        if x is None:
            return ""
        if self._pointer is None:
            return self._chosen or next(iter(self.keys_in_view), "")
        height = self._pointer[1]
        if self.figure is not None and self.figure.log_y:
            height = _power(height)
        values = {key: self.value_at(key, x) for key in self.keys_in_view}
        found = [(abs(value - height), key) for key, value in values.items() if value is not None]
        return min(found)[1] if found else ""

    def reset_zoom(self) -> None:
        self.plot.enableAutoRange()

    def _pointer_moved(self, place: QPointF) -> None:
        view = self.plot.getPlotItem().vb
        if view.sceneBoundingRect().contains(place):
            there = view.mapSceneToView(place)
            self._pointer = float(there.x()), float(there.y())
            if not self._pointer_rests.isActive():
                self._pointer_rests.start()

    def _tell_pointer(self) -> None:
        if self._pointer is not None and self.figure is not None:
            x = self._pointer[0]
            self.pointed_at.emit(_power(x) if self.figure.log_x else x)

    def leaveEvent(self, event: QEvent) -> None:
        self._pointer_rests.stop()
        self.pointed_at.emit(None)
        super().leaveEvent(event)

    def eventFilter(self, watched: Any, event: QEvent) -> bool:
        """Arrow keys on the plot walk along it, Escape ends it, Home shows everything again."""
        if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent) and self.figure is not None:
            key = event.key()
            if key == Qt.Key.Key_Escape and self._mark is not None:
                self.pointed_at.emit(None)
                return True
            if key == Qt.Key.Key_Home:
                self.reset_zoom()
                return True
            if key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
                self._walk(1 if key == Qt.Key.Key_Right else -1)
                return True
        if event.type() == QEvent.Type.MouseButtonDblClick and isinstance(event, QMouseEvent):
            self.reset_zoom()
            return True
        return super().eventFilter(watched, event)

    def _walk(self, direction: int) -> None:
        low, high = self.plot.getPlotItem().vb.viewRange()[0]
        log_x = self.figure is not None and self.figure.log_x
        here = high if self._mark is None else float(np.log10(self._mark)) if log_x else self._mark
        there = min(max(here + direction * (high - low) / _STEPS_OF_A_WALK, low), high)
        self._pointer = None
        self.pointed_at.emit(_power(there) if log_x else there)

    # ---------------------------------------------------------------- widgets

    def _build(self) -> None:
        self._title = QLabel(title_of(self.tag))
        self._title.setToolTip(self.tag)
        font = self._title.font()
        font.setBold(True)
        self._title.setFont(font)
        self._value = ElidedLabel()
        self._value.setObjectName("chart_value")
        self._value.setAccessibleName(self.tr("Value of {0}").format(title_of(self.tag)))
        self.header = QHBoxLayout()
        self.header.addWidget(self._title)
        self.header.addSpacing(self.fontMetrics().averageCharWidth() * 2)
        self.header.addWidget(self._value, 1)
        self._bottom, self._left = Ticks("bottom", tick_text), Ticks("left", tick_text)
        self.plot = ScrolledPlot(axisItems={"bottom": self._bottom, "left": self._left})
        self.plot.setObjectName("chart_plot")
        self.plot.setAccessibleName(
            self.tr("Chart of {0}; arrow keys read its values, Home shows all of it").format(title_of(self.tag))
        )
        self.plot.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.plot.installEventFilter(self)
        self.plot.viewport().installEventFilter(self)
        self.plot.setMenuEnabled(False)  # its words are English only, and the window has them elsewhere
        self.plot.hideButtons()
        self.plot.setMinimumHeight(self.fontMetrics().height() * 8)
        self._layer = PlotLayer()
        self._layer.setZValue(10)
        self.plot.addItem(self._layer)
        self._cross = pg.InfiniteLine(angle=90, movable=False)
        self._cross.setZValue(50)
        self._cross.hide()
        self.plot.addItem(self._cross, ignoreBounds=True)
        self.plot.scene().sigMouseMoved.connect(self._pointer_moved)
        self.plot.getPlotItem().vb.sigXRangeChanged.connect(lambda *_: self._range_rests.start())
        self._x_label = QLabel()
        self._x_label.setProperty("role", "caption")
        self._x_label.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 6, 8, 4)
        layout.setSpacing(2)
        layout.addLayout(self.header)
        layout.addWidget(self.plot, 1)
        layout.addWidget(self._x_label)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.PaletteChange and hasattr(self, "_x_label"):
            self._dress()
            if self.figure is not None:
                self._draw()
        super().changeEvent(event)

    def _dress(self) -> None:
        colours = theme.colours()
        self.plot.setBackground(colours.surface)
        self._cross.setPen(pg.mkPen(colours.muted, width=1, style=Qt.PenStyle.DashLine))
        for ticks in (self._bottom, self._left):
            ticks.dress(self.font())
        self.plot.showGrid(y=True, alpha=0.3)


def _power(exponent: float) -> float:
    """10 to that; a logarithmic axis can be dragged to where no number is."""
    return float(10.0 ** min(max(exponent, -300.0), 300.0))
