"""Plots of a study: history, slices, parallel coordinates, importances. A click on a point selects its trial.

Importing this loads pyqtgraph, which takes a while.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QEvent, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from gym_gui.services.analytics.studies.study import Kind, Study, TrialState
from gym_gui.ui import theme
from gym_gui.ui.charts.plot import ScrolledPlot
from gym_gui.ui.studies.rows import Floats, Parallel, is_log, on_scale, parameter_text

_POINT = 7
_MANY_POINTS = 2000
_SMALL_POINT = 4
_RING = 13


class StudyPlot(ScrolledPlot):
    """A plot that follows the theme; `mark` shows the selected trial."""

    trial_selected = Signal(int)  # its number
    _is_themed = False

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.PaletteChange and self._is_themed:
            self.apply_theme()
        super().changeEvent(event)

    def apply_theme(self) -> None:
        self._is_themed = True
        super().apply_theme()

    def mark(self, row: int | None) -> None:
        raise NotImplementedError


class _PointsPlot(StudyPlot):
    """Trials as points; pruned ones are hollow and of another shape. A ring is around the selected one."""

    def __init__(self, name: str, parent: QWidget | None = None) -> None:
        super().__init__(name, parent)
        self._xs, self._ys = np.empty(0), np.empty(0)
        self._pruned = pg.ScatterPlotItem(size=_POINT, symbol="t1", pxMode=True)
        self._complete = pg.ScatterPlotItem(size=_POINT, symbol="o", pxMode=True)
        self._ring = pg.ScatterPlotItem(size=_RING, brush=None)
        self._ring.setZValue(20)
        for points in (self._pruned, self._complete):
            points.sigClicked.connect(lambda _item, points, *_: self.trial_selected.emit(int(points[0].data())))
        for item in (self._pruned, self._complete, self._ring):
            self.addItem(item)

    def apply_theme(self) -> None:
        super().apply_theme()
        colors = theme.colors()
        faint = QColor(colors.accent)
        faint.setAlpha(150)
        self._pruned.setPen(pg.mkPen(colors.warning, width=1))
        self._pruned.setBrush(pg.mkBrush(None))
        self._complete.setPen(pg.mkPen(None))
        self._complete.setBrush(pg.mkBrush(faint))
        self._ring.setPen(pg.mkPen(colors.text, width=1))

    def _show_points(self, study: Study, xs: Floats, ys: Floats, x_label: str, y_label: str) -> None:
        self._xs, self._ys = xs, ys
        for points, state in ((self._pruned, TrialState.PRUNED), (self._complete, TrialState.COMPLETE)):
            rows = np.flatnonzero((study.states == state.value) & np.isfinite(xs) & np.isfinite(ys))
            points.setSize(_SMALL_POINT if len(study) > _MANY_POINTS else _POINT)
            points.setData(xs[rows], ys[rows], data=study.numbers[rows])
        self.bottom.setLabel(x_label, color=theme.colors().muted)
        self.left.setLabel(y_label, color=theme.colors().muted)

    def mark(self, row: int | None) -> None:
        place = [] if row is None or row >= len(self._xs) else [float(self._xs[row]), float(self._ys[row])]
        is_visible = bool(place) and np.isfinite(place).all()
        self._ring.setData(*([place[0]], [place[1]]) if is_visible else ([], []))


class HistoryPlot(_PointsPlot):
    """Each trial's value over its number, and the best so far."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("study_history", parent)
        self.setAccessibleName(self.tr("Values of the trials over their numbers, and the best so far"))
        self._best = self.plot(stepMode="right")
        self._best.setZValue(-1)
        self.apply_theme()

    def apply_theme(self) -> None:
        super().apply_theme()
        self._best.setPen(pg.mkPen(theme.colors().good, width=1))

    def show_study(self, study: Study, objective: int, title: str) -> None:
        numbers, best = study.numbers.astype(np.float64), study.best_so_far(objective)
        known = np.isfinite(best)
        self._best.setData(numbers[known], best[known])
        self._show_points(study, numbers, study.values[:, objective], self.tr("Trial"), title)


class SlicePlot(_PointsPlot):
    """Each trial's value over one of its parameters."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("study_slice", parent)
        self.setAccessibleName(self.tr("Values of the trials over one parameter"))
        self.apply_theme()

    def show_study(self, study: Study, objective: int, name: str, title: str) -> None:
        parameter = study.parameters[name]
        choices = parameter.latest.choices if parameter.latest.kind is Kind.CATEGORICAL else ()
        self.bottom.setLogMode(is_log(parameter))
        ticks = [(float(place), parameter_text(choice)) for place, choice in enumerate(choices)]
        self.bottom.setTicks([ticks] if choices else None)
        self._show_points(study, on_scale(parameter, parameter.internal), study.values[:, objective], name, title)
        if choices:
            self.setXRange(-0.5, len(choices) - 0.5, padding=0)
        else:
            self.enableAutoRange()


class ParallelPlot(StudyPlot):
    """A line for each of the best trials, over upright axes: the objective, then the parameters."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("study_parallel", parent)
        self.setAccessibleName(self.tr("Parallel coordinates: a line for each of the best trials"))
        self._parallel: Parallel | None = None
        self._lines: list[Any] = []
        self._axes: list[Any] = []
        self._texts: list[Any] = []
        self._chosen = self.plot(connect="finite")
        self._chosen.setZValue(10)
        self.hideAxis("left")
        self.setMouseEnabled(x=False, y=False)
        self.apply_theme()

    def apply_theme(self) -> None:
        super().apply_theme()
        self.showGrid(y=False)
        if self._parallel is not None:
            self.show_parallel(self._parallel)

    def show_parallel(self, parallel: Parallel) -> None:
        self._parallel = parallel
        colors = theme.colors()
        for item in (*self._lines, *self._axes, *self._texts):
            self.removeItem(item)
        self._lines, self._axes, self._texts = [], [], []
        for number, rows in enumerate(parallel.shades):
            share = (number + 1) / len(parallel.shades)
            line = self.plot(*parallel.lines(rows), connect="finite", skipFiniteCheck=False)
            line.setPen(pg.mkPen(_between(colors.border, colors.accent, share), width=1))
            self._lines.append(line)
        for place, axis in enumerate(parallel.axes):
            upright = self.plot([place, place], [0.0, 1.0])
            upright.setPen(pg.mkPen(colors.muted, width=1))
            self._axes.append(upright)
            for mark in axis.marks:
                text = pg.TextItem(mark.text, color=colors.text, fill=pg.mkBrush(_translucent(colors.surface)))
                text.setAnchor((0.0, 1.0 if mark.place < 0.02 else 0.0 if mark.place > 0.98 else 0.5))
                text.setFont(self.font())
                text.setPos(place, mark.place)
                text.setZValue(15)
                self.addItem(text)
                self._texts.append(text)
        self._chosen.setPen(pg.mkPen(colors.bad, width=1))
        self._name_axes()
        self.setXRange(-0.45, len(parallel.axes) - 1 + 0.6, padding=0)
        self.setYRange(-0.03, 1.03, padding=0)

    def mark(self, row: int | None) -> None:
        """Draw one trial above all other trials."""
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
        room = round(self.width() / max(1, len(axes)) * 0.95)
        middle = Qt.TextElideMode.ElideMiddle
        titles = [self.fontMetrics().elidedText(axis.title, middle, room) for axis in axes]
        self.bottom.setTicks([[(float(place), title) for place, title in enumerate(titles)]])


def _between(one: str, other: str, share: float) -> QColor:
    first, second = (np.array(QColor(color).getRgb()) for color in (one, other))
    return QColor(*(round(part) for part in first + (second - first) * share))


def _translucent(color: str) -> QColor:
    found = QColor(color)
    found.setAlpha(170)
    return found


_MAX_BARS = 30


class ImportanceBars(QWidget):
    """How much each parameter matters, as bars; the largest is on top, long names are in the tool tip."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("study_importances")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.shares: dict[str, float] = {}
        self.show_shares({})

    def show_shares(self, shares: dict[str, float]) -> None:
        self.shares = dict(sorted(shares.items(), key=lambda item: -item[1])[:_MAX_BARS])
        listed = ", ".join(f"{name} {share:.0%}" for name, share in self.shares.items())
        self.setAccessibleName(self.tr("Importance of the parameters: {shares}").format(shares=listed))
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
        colors, metrics, line = theme.colors(), self.fontMetrics(), self._line()
        names = min(max(map(metrics.horizontalAdvance, self.shares)) + 8, round(self.width() * 0.4))
        numbers = metrics.horizontalAdvance("100.0 %") + 8
        room = max(10.0, self.width() - names - numbers - 8.0)
        largest = max(self.shares.values()) or 1.0
        for place, (name, share) in enumerate(self.shares.items()):
            top = place * line
            text = metrics.elidedText(name, Qt.TextElideMode.ElideMiddle, names - 8)
            painter.setPen(QColor(colors.text))
            side = Qt.AlignmentFlag.AlignVCenter
            painter.drawText(QRectF(0, top, names - 8, line), side | Qt.AlignmentFlag.AlignRight, text)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(colors.accent))
            width = max(2.0, room * share / largest)
            painter.drawRoundedRect(QRectF(names, top + line * 0.2, width, line * 0.6), 2, 2)
            painter.setPen(QColor(colors.muted))
            painter.drawText(QRectF(names + width + 6, top, numbers, line), side, f"{share:.1%}".replace("%", " %"))
        painter.end()
