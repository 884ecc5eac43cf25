"""Small plots of what a run takes of its machine: CPU, memory, disk, GPUs, over the minutes it has run.

Importing this loads pyqtgraph, which takes a while: import it in a thread first (`import_plots`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyqtgraph as pg
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QEvent, QTimer, Signal
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from gym_gui.ui import theme
from gym_gui.ui.widgets.figure_card import CardGrid
from gym_gui.wording import formats

_MOST_POINTS = 4000
"""Of a curve that are kept; beyond, every second one goes"""
_SHOWN = ("cpu_percent", "memory_mb", "written_mb_s", "disk_mb")


@dataclass
class _Curve:
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, part: pb.MetricCurve) -> None:
        if part.is_reset:
            self.times.clear()
            self.values.clear()
        last = self.times[-1] if self.times else float("-inf")
        for time, value in zip(part.wall_times, part.values, strict=False):
            if time > last:
                self.times.append(time)
                self.values.append(value)
        while len(self.times) > _MOST_POINTS:
            self.times[:], self.values[:] = self.times[::2], self.values[::2]


class _Plot(pg.PlotWidget):  # type: ignore[misc]  # pyqtgraph has no types
    """A picture in a page that scrolls: it does not take the wheel."""

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()


class ResourcePlot(QFrame):
    """One curve with its name and its last value."""

    def __init__(self, name: str, title: str, unit: str, number: int, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName(f"resource_{name}")
        self.setProperty("role", "card")
        self._title, self._unit, self._number = title, unit, number
        self._name = QLabel(title)
        self._name.setProperty("role", "caption")
        self._value = QLabel("–")
        self._value.setObjectName(f"resource_{name}_value")
        self.plot = _Plot(enableMenu=False)
        self.plot.setMouseEnabled(x=False, y=False)
        self.plot.hideButtons()
        self.plot.setFixedHeight(self.fontMetrics().height() * 6)
        self.plot.getAxis("bottom").enableAutoSIPrefix(False)
        self.plot.getAxis("left").enableAutoSIPrefix(False)
        self.plot.getAxis("left").setWidth(self.fontMetrics().averageCharWidth() * 7)
        self.plot.setLimits(yMin=0)
        self.plot.getPlotItem().layout.setContentsMargins(0, self.fontMetrics().height() // 2, 8, 0)
        self._line = self.plot.plot()
        self._line.setClipToView(True)
        head = QHBoxLayout()
        head.addWidget(self._name, 1)
        head.addWidget(self._value)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(10, 6, 6, 4)
        layout.setSpacing(2)
        layout.addLayout(head)
        layout.addWidget(self.plot)
        self._dress()

    def show_curve(self, curve: _Curve, begin: float) -> None:
        minutes = (np.asarray(curve.times) - begin) / 60
        values = np.asarray(curve.values)
        self._line.setData(minutes, values)
        self.plot.setYRange(0, max(float(values.max(initial=0.0)) * 1.1, 1e-3), padding=0)
        if curve.values:
            text = f"{formats.quantity(curve.values[-1])} {self._unit}"
            self._value.setText(text)
            peak = f"{formats.quantity(float(values.max()))} {self._unit}"
            self.setToolTip(self.tr("{name}: now {value}, highest {peak}; over minutes").format(
                name=self._title, value=text, peak=peak))  # fmt: skip
            self.setAccessibleName(self.toolTip())

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.PaletteChange and hasattr(self, "_line"):
            self._dress()
        super().changeEvent(event)

    def _dress(self) -> None:
        colours = theme.colours()
        self.plot.setBackground(colours.surface)
        self._line.setPen(pg.mkPen(colours.curve(self._number), width=1))
        for name in ("left", "bottom"):
            axis = self.plot.getAxis(name)
            axis.setPen(pg.mkPen(colours.border))
            axis.setTextPen(pg.mkPen(colours.muted))


class ResourcePlots(QWidget):
    """The plots that there are curves for, in a grid."""

    grew = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("resource_plots")
        self._curves: dict[str, _Curve] = {}
        self.plots: dict[str, ResourcePlot] = {}
        self._grid = CardGrid(least_chars=34)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self._grid)

    def clear(self) -> None:
        self._curves.clear()
        self._grid.set_widgets([])
        for plot in self.plots.values():
            plot.deleteLater()
        self.plots.clear()

    def add(self, parts: Iterable[pb.MetricCurve]) -> None:
        """What was added to the curves; others than `system/*` are passed over."""
        for part in parts:
            folder, _, name = part.tag.rpartition("/")
            if folder.endswith("system") and (name in _SHOWN or name.startswith("gpu")):
                self._curves.setdefault(name, _Curve()).add(part)
        self._draw()
        if any(name not in self.plots for name in self._order()):
            QTimer.singleShot(0, self, self._make_next)

    def _make_next(self) -> None:
        """One plot at a time, and the window's other business in between: each takes ten milliseconds to build."""
        name = next((name for name in self._order() if name not in self.plots), None)
        if name is None:
            return
        self.plots[name] = ResourcePlot(name, *self._words(name), _colour_number(name))
        self._grid.set_widgets([self.plots[name] for name in self._order() if name in self.plots])
        self._draw()
        QTimer.singleShot(0, self, self._make_next)
        self.grew.emit()

    def _draw(self) -> None:
        begin = min((self._curves[name].times[0] for name in self._order()), default=0.0)
        for name, plot in self.plots.items():
            if name in self._curves:
                plot.show_curve(self._curves[name], begin)

    def _order(self) -> list[str]:
        gpus = sorted(name for name in self._curves if name.startswith("gpu"))
        return [name for name in (*_SHOWN, *gpus) if name in self._curves and self._curves[name].times]

    def _words(self, name: str) -> tuple[str, str]:
        words = {
            "cpu_percent": (self.tr("CPU (100 % is one core)"), "%"),
            "memory_mb": (self.tr("Memory"), "MiB"),
            "written_mb_s": (self.tr("Written to disk"), "MiB/s"),
            "disk_mb": (self.tr("Size of the run folder"), "MiB"),
        }
        if name in words:
            return words[name]
        number, _, what = name.removeprefix("gpu").partition("_")
        if what == "percent":
            return self.tr("GPU {number}").format(number=number), "%"
        return self.tr("Memory of GPU {number}").format(number=number), "MiB"


def _colour_number(name: str) -> int:
    """The same colour for the same thing, whichever curve comes first."""
    return _SHOWN.index(name) if name in _SHOWN else len(_SHOWN) + ("memory" in name)
