"""Plots of a study: how it went, and where the good values lie. A click on a point chooses its trial.

Importing this loads pyqtgraph, which takes a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QWidget

from gym_gui.services.analytics.studies import Study, TrialState
from gym_gui.services.analytics.studies.distributions import Kind
from gym_gui.ui import theme
from gym_gui.ui.presenters.study_plots import Floats, Parallel, is_log, on_scale
from gym_gui.ui.presenters.study_rows import value_text
from gym_gui.ui.widgets.plot_parts import ScrolledPlot, Ticks, tick_text

_POINT = 7
_MANY_POINTS = 2000
_SMALL_POINT = 4
_RING = 13


class StudyPlot(ScrolledPlot):
    """What they have in common: dress, a ring around the chosen trial, words for those who do not see it."""

    trial_chosen = Signal(int)  # its number
    _is_dressed = False

    def __init__(self, name: str, accessible: str, parent: QWidget | None = None) -> None:
        self.bottom, self.left = Ticks("bottom", tick_text), Ticks("left", tick_text)
        super().__init__(parent, axisItems={"bottom": self.bottom, "left": self.left})
        self.setObjectName(name)
        self.setAccessibleName(accessible)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMenuEnabled(False)
        self.hideButtons()
        self._ring = pg.ScatterPlotItem(size=_RING, brush=None)
        self._ring.setZValue(20)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.PaletteChange and self._is_dressed:
            self.dress()
        super().changeEvent(event)

    def dress(self) -> None:
        """In the colours of the theme."""
        self._is_dressed = True
        colours = theme.colours()
        self.setBackground(colours.surface)
        for ticks in (self.bottom, self.left):
            ticks.dress(self.font())
        self.showGrid(y=True, alpha=0.3)
        self._ring.setPen(pg.mkPen(colours.text, width=1))

    def _say(self, axis: Ticks, text: str) -> None:
        axis.setLabel(text, color=theme.colours().muted)


class _Points:
    """The trials of one state as points; hollow and of another shape where they were not completed."""

    def __init__(self, plot: StudyPlot, state: TrialState, symbol: str, colour: str, *, is_hollow: bool) -> None:
        self.state, self._colour, self._is_hollow = state, colour, is_hollow
        self.item = pg.ScatterPlotItem(size=_POINT, symbol=symbol, pxMode=True)
        plot.addItem(self.item)
        self.item.sigClicked.connect(lambda _item, points, *_: plot.trial_chosen.emit(int(points[0].data())))

    def dress(self) -> None:
        colour = QColor(getattr(theme.colours(), self._colour))
        faint = QColor(colour)
        faint.setAlpha(150)
        self.item.setPen(pg.mkPen(colour, width=1) if self._is_hollow else pg.mkPen(None))
        self.item.setBrush(pg.mkBrush(None) if self._is_hollow else pg.mkBrush(faint))

    def draw(self, study: Study, xs: Floats, ys: Floats) -> None:
        rows = np.flatnonzero((study.states == self.state.value) & np.isfinite(xs) & np.isfinite(ys))
        self.item.setSize(_SMALL_POINT if len(study) > _MANY_POINTS else _POINT)
        self.item.setData(xs[rows], ys[rows], data=study.numbers[rows])


def _both_points(plot: StudyPlot) -> tuple[_Points, _Points]:
    return (
        _Points(plot, TrialState.PRUNED, "t1", "warning", is_hollow=True),
        _Points(plot, TrialState.COMPLETE, "o", "accent", is_hollow=False),
    )


class HistoryPlot(StudyPlot):
    """Each trial's value over its number, and the best so far."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("study_history", "", parent)
        self.setAccessibleName(self.tr("Values of the trials over their numbers, and the best so far"))
        self._best = self.plot(stepMode="right")
        self._points = _both_points(self)
        self.addItem(self._ring)
        self.dress()

    def dress(self) -> None:
        super().dress()
        colours = theme.colours()
        self._best.setPen(pg.mkPen(colours.good, width=1))
        for points in self._points:
            points.dress()
        self._say(self.bottom, self.tr("Trial"))

    def show_study(self, study: Study, objective: int, title: str) -> None:
        numbers, values = study.numbers.astype(np.float64), study.values[:, objective]
        best = study.best_so_far(objective)
        known = np.isfinite(best)
        self._best.setData(numbers[known], best[known])
        for points in self._points:
            points.draw(study, numbers, values)
        self._say(self.left, title)

    def mark(self, study: Study, objective: int, row: int | None) -> None:
        value = float(study.values[row, objective]) if row is not None else np.nan
        has = row is not None and np.isfinite(value)
        self._ring.setData([float(study.numbers[row])] if has else [], [value] if has else [])


class SlicePlot(StudyPlot):
    """Each trial's value over one of its parameters."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("study_slice", "", parent)
        self.setAccessibleName(self.tr("Values of the trials over one parameter"))
        self._points = _both_points(self)
        self.addItem(self._ring)
        self._xs: Floats = np.empty(0)
        self.dress()

    def dress(self) -> None:
        super().dress()
        for points in self._points:
            points.dress()

    def show_study(self, study: Study, objective: int, name: str, title: str) -> None:
        parameter = study.parameters[name]
        is_choice = parameter.latest.kind is Kind.CATEGORICAL
        self.bottom.setLogMode(is_log(parameter))
        self.bottom.setTicks(
            [[(float(place), value_text(choice)) for place, choice in enumerate(parameter.latest.choices)]]
            if is_choice
            else None
        )
        self._xs = on_scale(parameter, parameter.internal)
        for points in self._points:
            points.draw(study, self._xs, study.values[:, objective])
        if is_choice:
            self.setXRange(-0.5, len(parameter.latest.choices) - 0.5, padding=0)
        else:
            self.enableAutoRange()
        self._say(self.bottom, name)
        self._say(self.left, title)

    def mark(self, study: Study, objective: int, row: int | None) -> None:
        has = row is not None and row < len(self._xs) and np.isfinite(self._xs[row])
        value = float(study.values[row, objective]) if has and row is not None else np.nan
        has = has and bool(np.isfinite(value))
        self._ring.setData([float(self._xs[row])] if has else [], [value] if has else [])


class ParallelPlot(StudyPlot):
    """A line for each of the best trials, over upright axes: the objective, then the parameters."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("study_parallel", "", parent)
        self.setAccessibleName(self.tr("Parallel coordinates: a line for each of the best trials"))
        self._parallel: Parallel | None = None
        self._lines: list[Any] = []
        self._axes: list[Any] = []
        self._texts: list[Any] = []
        self._chosen = self.plot(connect="finite")
        self._chosen.setZValue(10)
        self.hideAxis("left")
        self.setMouseEnabled(x=False, y=False)
        self.dress()

    def dress(self) -> None:
        super().dress()
        self.showGrid(y=False)
        if self._parallel is not None:
            self.show_parallel(self._parallel)

    def show_parallel(self, parallel: Parallel) -> None:
        self._parallel = parallel
        colours = theme.colours()
        for item in (*self._lines, *self._axes, *self._texts):
            self.removeItem(item)
        self._lines, self._axes, self._texts = [], [], []
        for number, rows in enumerate(parallel.shades):
            share = (number + 1) / len(parallel.shades)
            line = self.plot(*parallel.lines(rows), connect="finite", skipFiniteCheck=False)
            line.setPen(pg.mkPen(_between(colours.border, colours.accent, share), width=1))
            self._lines.append(line)
        for place, axis in enumerate(parallel.axes):
            upright = self.plot([place, place], [0.0, 1.0])
            upright.setPen(pg.mkPen(colours.muted, width=1))
            self._axes.append(upright)
            for mark in axis.marks:
                text = pg.TextItem(mark.text, color=colours.text, fill=pg.mkBrush(_see_through(colours.surface)))
                text.setAnchor((0.0, 1.0 if mark.place < 0.02 else 0.0 if mark.place > 0.98 else 0.5))
                text.setFont(self.font())
                text.setPos(place, mark.place)
                text.setZValue(15)
                self.addItem(text)
                self._texts.append(text)
        self._chosen.setPen(pg.mkPen(colours.bad, width=1))
        self._name_axes()
        self.setXRange(-0.45, len(parallel.axes) - 1 + 0.6, padding=0)
        self.setYRange(-0.03, 1.03, padding=0)

    def mark(self, row: int | None) -> None:
        """Draw one trial above the others."""
        if row is None or self._parallel is None:
            self._chosen.setData([], [])
        else:
            self._chosen.setData(*self._parallel.line(row))

    def resizeEvent(self, event: Any) -> None:
        super().resizeEvent(event)
        if getattr(self, "_parallel", None) is not None:
            self._name_axes()

    def _name_axes(self) -> None:
        assert self._parallel is not None
        axes = self._parallel.axes
        room = self.width() / max(1, len(axes)) * 0.95
        metrics = self.fontMetrics()
        self.bottom.setTicks(
            [[(float(place), metrics.elidedText(axis.title, Qt.TextElideMode.ElideMiddle, round(room)))
              for place, axis in enumerate(axes)]]
        )  # fmt: skip


def _between(one: str, other: str, share: float) -> QColor:
    first, second = QColor(one), QColor(other)
    return QColor(*(round(a + (b - a) * share) for a, b in zip(_parts(first), _parts(second), strict=True)))


def _parts(colour: QColor) -> Iterable[int]:
    return colour.red(), colour.green(), colour.blue()


def _see_through(colour: str) -> QColor:
    found = QColor(colour)
    found.setAlpha(170)
    return found
