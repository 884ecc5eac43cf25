"""Draw a `Figure` of the analytics with pyqtgraph: lines, bands, a crosshair, zoom. `mosaic plot` draws the same one.

Importing this loads pyqtgraph, which takes a third of a second: import it in a thread first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QPainterPath, QPen, QPixmap, QTransform, QWheelEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QStyleOptionGraphicsItem, QVBoxLayout, QWidget

from gym_gui.services.analytics.curves import Axis, Floats
from gym_gui.services.analytics.figure import Figure, Line
from gym_gui.ui import theme
from gym_gui.ui.charts.curves import Entry, drawn_part, entries_of, key_by_runs, points_drawn, title_of
from gym_gui.ui.widgets.parts import CardGrid, ElidedLabel, bold, caption, fill, named
from gym_gui.wording import formats

# ---------------------------------------------------------------------- axes


def tick_text(value: float) -> str:
    """2500 → 2500, 50000 → 50k: a tick is a round number and needs no more digits than it has."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.6g}{unit}"
    return f"{value:.6g}"


def value_text(value: float) -> str:
    """Format a value of a curve; small ones keep their digits."""
    if not math.isfinite(value):
        return str(value)
    return formats.quantity(value) if value == 0 or abs(value) >= 0.001 else f"{value:.2e}"


class Ticks(pg.AxisItem):  # type: ignore[misc]  # pyqtgraph has no types
    """An axis whose numbers look like those of the rest of the window."""

    def __init__(self, orientation: str) -> None:
        super().__init__(orientation)
        self.enableAutoSIPrefix(False)
        self.setStyle(maxTickLevel=0)  # the finer ticks have lines too, and drawing those took a third of an update

    def tickStrings(self, values: list[float], _scale: float, _spacing: float) -> list[str]:
        return [tick_text(float(10.0 ** min(value, 300.0)) if self.logMode else value) for value in values]

    def logTickValues(
        self, lowest: float, highest: float, _size: float, _default: list[tuple[float, list[float]]]
    ) -> list[tuple[float, list[float]]]:
        """Return powers of ten, and between them as many round numbers as there is room for."""
        decades = highest - lowest
        first, last = math.floor(lowest), math.ceil(highest)
        digits = (1,) if decades > 4 else (1, 3) if decades > 2 else (1, 2, 5) if decades > 0.7 else range(1, 10)
        stride = max(1, round(decades / 8))
        values = [power + float(np.log10(digit)) for power in range(first, last + 1, stride) for digit in digits]
        return [(1.0, [value for value in values if lowest < value < highest])]


class ScrolledPlot(pg.PlotWidget):  # type: ignore[misc]
    """A plot in a page that scrolls: the wheel belongs to the page, with Ctrl to the plot."""

    def __init__(self, name: str, parent: QWidget | None = None) -> None:
        self.bottom, self.left = Ticks("bottom"), Ticks("left")
        super().__init__(parent, axisItems={"bottom": self.bottom, "left": self.left})
        self.setObjectName(name)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setMenuEnabled(False)  # its texts are English only, and the window has them elsewhere
        self.hideButtons()

    def wheelEvent(self, event: QWheelEvent) -> None:
        if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            super().wheelEvent(event)
        else:
            event.ignore()

    def apply_theme(self) -> None:
        colors = theme.colors()
        self.setBackground(colors.surface)
        for ticks in (self.bottom, self.left):
            ticks.setPen(pg.mkPen(colors.border))
            ticks.setTextPen(pg.mkPen(colors.muted))
            ticks.setTickFont(self.font())
        self.showGrid(y=True, alpha=0.3)


def bars_item(starts: Sequence[float], width: float, heights: Sequence[int]) -> Any:
    """Return the bars of a histogram in the colors of the theme."""
    colors = theme.colors()
    brush, pen = QColor(colors.series[0]), pg.mkPen(colors.surface, width=1)
    return pg.BarGraphItem(x0=list(starts), width=width, height=list(heights), y0=0, brush=brush, pen=pen)


# ---------------------------------------------------------------------- what is drawn


@dataclass(frozen=True, eq=False)
class Stroke:
    """Lines of one color; `joined`: which point is connected to the next."""

    color: QColor
    xs: Floats
    ys: Floats
    joined: NDArray[np.int32]

    def path(self) -> QPainterPath:
        path: QPainterPath = pg.functions.arrayToQPath(self.xs, self.ys, connect=self.joined, finiteCheck=False)
        return path

    def dots(self) -> list[QPointF]:
        """Return the lines of a single point: a path does not show them."""
        alone = (self.joined == 0) & (np.concatenate(([0], self.joined[:-1])) == 0)
        return [QPointF(float(x), float(y)) for x, y in zip(self.xs[alone], self.ys[alone], strict=True)]


@dataclass(frozen=True, eq=False)
class Fill:
    """An area, by its outline."""

    color: QColor
    xs: Floats
    ys: Floats

    def path(self) -> QPainterPath:
        path: QPainterPath = pg.functions.arrayToQPath(self.xs, self.ys, connect="all", finiteCheck=False)
        return path


class PlotLayer(pg.GraphicsObject):  # type: ignore[misc]
    """Fills below, strokes above, each in the given order, cached as one image.

    Qt redraws each item for every pixel that changes above it; with a hundred curves, moving the crosshair would cost
    as much as drawing all of them.
    """

    def __init__(self, *, from_zero: bool = False) -> None:
        super().__init__()
        self._from_zero = from_zero
        self.fills: Sequence[Fill] = ()
        self.strokes: Sequence[Stroke] = ()
        self._bounds: tuple[float, float, float, float] | None = None
        self._paths: list[tuple[QPainterPath, list[QPointF], QColor, bool]] = []
        self._image: QPixmap | None = None
        self._image_of: object = None

    def show_parts(self, fills: Sequence[Fill], strokes: Sequence[Stroke]) -> None:
        self.fills, self.strokes = fills, strokes
        everything: list[Fill | Stroke] = [*fills, *strokes]
        parts = [part for part in everything if len(part.xs)]
        self._paths = [
            (part.path(), part.dots() if isinstance(part, Stroke) else [], part.color, isinstance(part, Fill))
            for part in parts
        ]
        self._bounds = None
        if parts:
            self._bounds = (
                min(float(part.xs.min()) for part in parts),
                max(float(part.xs.max()) for part in parts),
                min([float(part.ys.min()) for part in parts] + [0.0] * self._from_zero),
                max(float(part.ys.max()) for part in parts),
            )
        self._image_of = None
        self.prepareGeometryChange()
        self.informViewBoundsChanged()
        self.update()

    def dataBounds(self, axis: int, **_parts: Any) -> tuple[float | None, float | None]:
        if self._bounds is None:
            return None, None
        return self._bounds[2 * axis], self._bounds[2 * axis + 1]

    def pixelPadding(self) -> float:
        return 1.0

    def boundingRect(self) -> QRectF:
        if self._bounds is None:
            return QRectF()
        left, right, low, high = self._bounds
        return QRectF(left, low, right - left, high - low)

    def paint(self, painter: QPainter, _option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        if not self._paths or widget is None:
            return
        transform, ratio = painter.worldTransform(), widget.devicePixelRatioF()
        current = (transform, widget.size(), ratio)
        if self._image is None or current != self._image_of:
            self._image, self._image_of = self._painted(transform, widget.size(), ratio), current
        painter.resetTransform()
        painter.drawPixmap(QPointF(0, 0), self._image)
        painter.setTransform(transform)

    def _painted(self, transform: QTransform, size: QSize, ratio: float) -> QPixmap:
        image = QPixmap(size * ratio)
        image.setDevicePixelRatio(ratio)
        image.fill(Qt.GlobalColor.transparent)
        with QPainter(image) as painter:
            # With a clip Qt gathers what it draws into spans: lines that are not opaque take a fifth of the time.
            painter.setClipRect(self.getViewBox().sceneBoundingRect())
            painter.setTransform(transform)
            for path, dots, color, is_filled in self._paths:
                if is_filled:
                    painter.fillPath(path, color)
                    continue
                painter.setPen(pg.mkPen(color, width=1))  # a wider pen makes Qt draw ten times slower
                painter.drawPath(path)
                if dots:
                    pen = QPen(color, 5, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap)
                    pen.setCosmetic(True)
                    painter.setPen(pen)
                    painter.drawPoints(dots)
        return image


_FAINT, _DIMMED, _BAND = 70, 45, 45
"""Opacity (of 255) of a curve behind its smoothed line, of lines that are not selected, of a band"""
_SELECTED_FAINT = 160
_MANY, _MANY_OPACITY = 40, 120
"""From so many lines on each is fainter, so that dense regions stand out"""
_MAX_BANDS = 40
"""More bands than these would hide each other"""
_BAND_COLUMNS, _MIN_COLUMNS = 2_500, 60
"""Corners of all bands together: Qt fills a jagged outline slowly, and the teeth of twenty bands are not visible"""


def parts_of(
    figure: Figure,
    entries: Collection[Entry],
    hidden: Collection[str] = frozenset(),
    selected: str = "",
    x_range: tuple[float, float] | None = None,
) -> tuple[list[Fill], list[Stroke], bool]:
    """Return what is drawn from back to front, and whether lines have more points than that.

    Lines of one color are one stroke, so a thousand runs cost what their points cost. `selected` is the entry that is
    brought to the front; within `x_range` more points are drawn.
    """
    series = theme.colors().series
    keys = key_by_runs(entries)
    buckets: dict[tuple[int, int, int], list[Line]] = {}  # (front, opacity, color) → lines
    banded: list[Line] = []
    for line in figure.lines:
        key = keys.get(line.run_ids, "")
        if key in hidden or not len(line.x):
            continue
        is_selected = bool(selected) and key == selected
        if is_selected:
            opacity = _SELECTED_FAINT if line.is_faint else 255
        else:
            opacity = _FAINT if line.is_faint else _MANY_OPACITY if len(entries) > _MANY else 255
            opacity = min(opacity, _DIMMED) if selected else opacity
        front = 2 * is_selected + (not line.is_faint)
        buckets.setdefault((front, opacity, line.color % len(series)), []).append(line)
        if line.low is not None and (is_selected or not selected):
            banded.append(line)
    if len(banded) > _MAX_BANDS:
        banded = []
    columns = max(_MIN_COLUMNS, _BAND_COLUMNS // max(1, len(banded)))
    most = points_drawn(sum(map(len, buckets.values())))
    strokes = []
    for (_, opacity, number), lines in sorted(buckets.items(), key=lambda pair: pair[0]):
        points = [_on_axes(figure, *drawn_part(line, most, x_range)) for line in lines]
        strokes.append(_stroke(_faded(series[number], opacity), points))
    fills = [_band(figure, line, columns, series[line.color % len(series)]) for line in banded]
    return fills, strokes, any(len(line.x) > most for lines in buckets.values() for line in lines)


def _stroke(color: QColor, parts: Sequence[tuple[Floats, Floats]]) -> Stroke:
    xs = np.concatenate([part[0] for part in parts])
    ys = np.concatenate([part[1] for part in parts])
    joined = np.ones(len(xs), np.int32)
    ends = np.cumsum([len(part[0]) for part in parts])
    joined[ends[ends > 0] - 1] = 0
    return Stroke(color, xs, ys, joined)


def _band(figure: Figure, line: Line, columns: int, color: str) -> Fill:
    assert line.low is not None
    assert line.high is not None
    x, low, high = _coarser((line.x, line.low, line.high), columns)
    if figure.log_y:
        above = np.concatenate((line.y, high))
        floor = float(above[above > 0].min(initial=1.0))
        low, high = np.maximum(low, floor), np.maximum(high, floor)
    outline = _on_axes(figure, np.concatenate((x, x[::-1])), np.concatenate((high, low[::-1])))
    return Fill(_faded(color, _BAND), *outline)


def _on_axes(figure: Figure, xs: Floats, ys: Floats) -> tuple[Floats, Floats]:
    """Return axis coordinates; points that have no place on a logarithmic axis are left out."""
    keep = np.isfinite(xs) & np.isfinite(ys)
    if figure.log_x:
        keep &= xs > 0
    if figure.log_y:
        keep &= ys > 0
    if not keep.all():
        xs, ys = xs[keep], ys[keep]
    return (np.log10(xs) if figure.log_x else xs), (np.log10(ys) if figure.log_y else ys)


def _coarser(columns: tuple[Floats, ...], most: int) -> tuple[Floats, ...]:
    """Return columns with fewer rows: the mean of each bucket; the first and the last row stay."""
    length = len(columns[0])
    if length <= most:
        return columns
    begins = np.linspace(1, length - 1, most - 1).astype(np.intp)[:-1]
    widths = np.diff(np.append(begins, length - 1))
    return tuple(
        np.concatenate((column[:1], np.add.reduceat(column[:-1], begins) / widths, column[-1:])) for column in columns
    )


def _faded(color: str, opacity: int) -> QColor:
    faded = QColor(color)
    faded.setAlpha(opacity)
    return faded


# ---------------------------------------------------------------------- one chart

_POINTER_MS = 33
_REFINE_MS = 120
"""After this long at one zoom, the visible range is drawn with more of its points"""
_STEPS_ACROSS = 200
"""The arrow keys cross a chart in so many steps"""


class ChartView(QFrame):
    """One figure; `pointed_at` carries the place on its axis that the pointer or the arrow keys select."""

    pointed_at = Signal(object)  # a number on the axis, or None

    def __init__(self, tag: str, *, unit: str = "", is_small: bool = False, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.tag, self._unit = tag, unit
        self.setProperty("role", "card")
        self.setObjectName(f"chart_{tag.replace('/', '_')}")
        self.figure: Figure | None = None
        self._axis = Axis.STEP
        self._hidden: Collection[str] = frozenset()
        self._selected = ""
        self.entries: dict[str, Entry] = {}
        self._mark: float | None = None
        self._pointer: tuple[float, float] | None = None
        self._is_thinned = False
        self._x_range: tuple[float, float] | None = None
        """The range that is zoomed to; more of its points are drawn"""
        self._refine_timer = QTimer(self, singleShot=True, interval=_REFINE_MS)
        self._refine_timer.timeout.connect(self._refine)
        self._pointer_timer = QTimer(self, singleShot=True, interval=_POINTER_MS)
        self._pointer_timer.timeout.connect(self._emit_pointer)
        self._build(is_small)
        self._apply_theme()

    # ---------------------------------------------------------------- data

    def show_figure(self, figure: Figure, axis: Axis, hidden: Collection[str] = (), selected: str = "") -> None:
        """Draw a figure; `hidden` are keys of entries to leave out, `selected` is one to bring to the front."""
        before = self.figure
        # A longer run is shown in minutes instead of seconds: that is another axis too.
        is_other_axis = before is not None and (
            (before.x_label, before.log_x, before.log_y) != (figure.x_label, figure.log_x, figure.log_y)
        )
        self.figure, self._axis = figure, axis
        self.entries = entries_of(figure)
        self._hidden, self._selected = frozenset(hidden), selected
        self.plot.bottom.setLogMode(figure.log_x)
        self.plot.left.setLogMode(figure.log_y)
        self._title.setText(figure.title)
        self._x_label.setText(figure.x_label)
        self._draw()
        if is_other_axis:
            self._mark = None
            self.reset_zoom()
        self._draw_mark()

    def highlight(self, hidden: Collection[str], selected: str) -> None:
        """Hide other lines of the same figure, or bring another one to the front."""
        if self.figure is not None and (frozenset(hidden), selected) != (self._hidden, self._selected):
            self._hidden, self._selected = frozenset(hidden), selected
            self._draw()
            self._draw_mark()

    @property
    def visible_keys(self) -> list[str]:
        return [key for key in self.entries if key not in self._hidden]

    def drawn_points(self) -> int:
        """Return how many points the lines on the screen have."""
        return sum(len(stroke.xs) for stroke in self._layer.strokes)

    def value_at(self, key: str, x: float) -> float | None:
        """Return the value of a line nearest to a place on the axis; None where the line has nothing."""
        entry = self.entries.get(key)
        if entry is None or not len(entry.line.x):
            return None
        xs = entry.line.x
        index = min(int(np.searchsorted(xs, x)), len(xs) - 1)  # np.clip of a number takes longer than the search
        if index > 0 and x - xs[index - 1] < xs[index] - x:
            index -= 1
        # A run that ended earlier has no value there; its last point may be missed by a pixel.
        is_outside = not xs[0] <= x <= xs[-1]
        if is_outside and abs(float(xs[index]) - x) > 0.01 * (float(xs[-1]) - float(xs[0]) or 1.0):
            return None
        return float(entry.line.y[index])

    def last_value(self, key: str) -> float | None:
        entry = self.entries.get(key)
        return float(entry.line.y[-1]) if entry is not None and len(entry.line.y) else None

    # ---------------------------------------------------------------- drawing

    def _draw(self) -> None:
        assert self.figure is not None
        fills, strokes, self._is_thinned = parts_of(
            self.figure, self.entries.values(), self._hidden, self._selected, self._x_range
        )
        self._layer.show_parts(fills, strokes)

    def _refine(self) -> None:
        if self.figure is None or not self._is_thinned:
            return
        box = self.plot.getPlotItem().vb
        low, high = (_power(end) if self.figure.log_x else end for end in box.viewRange()[0])
        x_range = None if box.autoRangeEnabled()[0] is not False else (low, high)
        if x_range != self._x_range:
            self._x_range = x_range
            self._draw()

    # ---------------------------------------------------------------- reading values

    def mark(self, x: float | None) -> None:
        """Show the values at a place of the axis; None: nowhere."""
        self._mark = x
        if x is None:
            self._pointer = None
        self._draw_mark()

    def _draw_mark(self) -> None:
        x, figure = self._mark, self.figure
        if x is None or figure is None or (figure.log_x and x <= 0):
            self._cross.hide()
            value = self.last_value(next(iter(self.entries))) if len(self.entries) == 1 else None
            note = figure.note if figure is not None else ""
            self._value.setText("   ".join(filter(None, (note, self._text_of(value)))))
            return
        self._cross.setPos(float(np.log10(x)) if figure.log_x else x)
        self._cross.show()
        if self._axis is Axis.TIME:
            place = f"{figure.x_label} {value_text(x)}"
        else:
            unit = self.tr("episode {0}") if self._axis is Axis.EPISODE else self.tr("step {0}")
            place = unit.format(formats.count(x))
        key = self.nearest()
        text = self._text_of(self.value_at(key, x))
        name = self.entries[key].short if text and len(self.entries) > 1 else ""
        self._value.setText("   ".join(filter(None, (place, text, name))))

    def _text_of(self, value: float | None) -> str:
        return "" if value is None else f"{value_text(value)} {self._unit}".rstrip()

    def nearest(self) -> str:
        """Return the line closest to the pointer (with the keyboard: the selected one, or the first)."""
        x = self._mark
        if x is None:
            return ""
        if self._pointer is None:
            return self._selected or next(iter(self.visible_keys), "")
        height = self._pointer[1]
        if self.figure is not None and self.figure.log_y:
            height = _power(height)
        values = {key: self.value_at(key, x) for key in self.visible_keys}
        found = [(abs(value - height), key) for key, value in values.items() if value is not None]
        return min(found)[1] if found else ""

    def reset_zoom(self) -> None:
        self.plot.enableAutoRange()

    def _pointer_moved(self, place: QPointF) -> None:
        box = self.plot.getPlotItem().vb
        if box.sceneBoundingRect().contains(place):
            there = box.mapSceneToView(place)
            self._pointer = float(there.x()), float(there.y())
            if not self._pointer_timer.isActive():
                self._pointer_timer.start()

    def _emit_pointer(self) -> None:
        if self._pointer is not None and self.figure is not None:
            x = self._pointer[0]
            self.pointed_at.emit(_power(x) if self.figure.log_x else x)

    def leaveEvent(self, event: QEvent) -> None:
        self._pointer_timer.stop()
        self.pointed_at.emit(None)
        super().leaveEvent(event)

    def eventFilter(self, watched: Any, event: QEvent) -> bool:
        """Move the crosshair with the arrow keys, remove it with Escape; Home and a double click reset the zoom."""
        if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent) and self.figure is not None:
            key = event.key()
            if key == Qt.Key.Key_Escape and self._mark is not None:
                self.pointed_at.emit(None)
                return True
            if key == Qt.Key.Key_Home:
                self.reset_zoom()
                return True
            if key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
                self._move_mark(1 if key == Qt.Key.Key_Right else -1)
                return True
        if event.type() == QEvent.Type.MouseButtonDblClick and isinstance(event, QMouseEvent):
            self.reset_zoom()
            return True
        return super().eventFilter(watched, event)

    def _move_mark(self, direction: int) -> None:
        low, high = self.plot.getPlotItem().vb.viewRange()[0]
        log_x = self.figure is not None and self.figure.log_x
        ends = [float(entry.line.x[-1]) for entry in self.entries.values() if len(entry.line.x)]
        here = max(ends, default=high) if self._mark is None else self._mark
        here = min(float(np.log10(here)) if log_x and here > 0 else here, high)
        there = min(max(here + direction * (high - low) / _STEPS_ACROSS, low), high)
        self._pointer = None
        self.pointed_at.emit(_power(there) if log_x else there)

    # ---------------------------------------------------------------- widgets

    def _build(self, is_small: bool) -> None:
        title = title_of(self.tag)
        self._title = named(QLabel(title), "", tip=self.tag, role="caption" if is_small else "")
        if not is_small:
            bold(self._title)
        self._value = named(ElidedLabel(), "chart_value", self.tr("Value of {0}").format(title))
        self.header = fill(
            QHBoxLayout(), self._title, (self._value, 1), spacing=self.fontMetrics().averageCharWidth() * 2
        )
        self.plot = ScrolledPlot("chart_plot")
        accessible = self.tr("Chart of {0}; arrow keys read its values, Home shows all of it")
        self.plot.setAccessibleName(accessible.format(title))
        self.plot.installEventFilter(self)
        self.plot.viewport().installEventFilter(self)
        self._layer = PlotLayer(from_zero=is_small)
        self._layer.setZValue(10)
        self.plot.addItem(self._layer)
        self._cross = pg.InfiniteLine(angle=90, movable=False)
        self._cross.setZValue(50)
        self._cross.hide()
        self.plot.addItem(self._cross, ignoreBounds=True)
        self.plot.scene().sigMouseMoved.connect(self._pointer_moved)
        self.plot.getPlotItem().vb.sigXRangeChanged.connect(lambda *_: self._refine_timer.start())
        self._x_label = caption(centered=True)
        fill(QVBoxLayout(self), self.header, (self.plot, 1), self._x_label, margins=(8, 6, 8, 4), spacing=2)
        line = self.fontMetrics().height()
        if is_small:
            self._x_label.hide()
            self.plot.setFixedHeight(6 * line)
        else:
            self.plot.setMinimumHeight(7 * line)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.PaletteChange and hasattr(self, "_x_label"):
            self._apply_theme()
            if self.figure is not None:
                self._draw()
        super().changeEvent(event)

    def _apply_theme(self) -> None:
        self.plot.apply_theme()
        self._cross.setPen(pg.mkPen(theme.colors().muted, width=1, style=Qt.PenStyle.DashLine))


def _power(exponent: float) -> float:
    """Return 10 to that, within what a float holds: a logarithmic axis can be dragged anywhere."""
    return float(10.0 ** min(max(exponent, -300.0), 300.0))


# ---------------------------------------------------------------------- charts side by side

_DRAW_MS = 10


class ChartGrid(CardGrid):
    """A chart for each figure; one is built or drawn per event-loop iteration, because all at once block the window."""

    drawn = Signal()
    """Every chart shows its newest figure"""
    pointed_at = Signal(str, object)  # key of a chart, a place on the axis or None

    def __init__(self, make_view: Callable[[str], ChartView] = ChartView, *, least_chars: int = 52) -> None:
        super().__init__(least_chars=least_chars)
        self._make_view = make_view
        self.views: dict[str, ChartView] = {}
        self.figures: Mapping[str, Figure] = {}
        self._axis = Axis.STEP
        self._hidden: Collection[str] = frozenset()
        self._selected = ""
        self._pending: dict[str, None] = {}
        self._timer = QTimer(self, singleShot=True, interval=_DRAW_MS)
        self._timer.timeout.connect(self._draw_next)

    @property
    def is_busy(self) -> bool:
        return bool(self._pending)

    def show_figures(
        self, figures: Mapping[str, Figure], axis: Axis, hidden: Collection[str] = frozenset(), selected: str = ""
    ) -> None:
        """Show a chart for each figure that has lines, in this order."""
        before, self.figures = self.figures, {key: figure for key, figure in figures.items() if not figure.is_empty}
        is_same = (axis, hidden, selected) == (self._axis, self._hidden, self._selected)
        self._axis, self._hidden, self._selected = axis, hidden, selected
        for key in self.views.keys() - self.figures.keys():
            self.views.pop(key).deleteLater()
        changed = {key for key, figure in self.figures.items() if not is_same or before.get(key) is not figure}
        self._pending = dict.fromkeys(key for key in self.figures if key in changed or key in self._pending)
        self._place()
        if self._pending:
            self._timer.start()
        else:
            self._timer.stop()

    def highlight(self, hidden: Collection[str], selected: str) -> None:
        """Hide other lines in every chart, or bring another one to the front."""
        self._hidden, self._selected = hidden, selected
        for view in self.views.values():
            view.highlight(hidden, selected)

    def reset_zoom(self) -> None:
        for view in self.views.values():
            view.reset_zoom()

    def _draw_next(self) -> None:
        key = next(iter(self._pending))
        if key not in self.views:
            self._add_view(key)
        else:
            self.views[key].show_figure(self.figures[key], self._axis, self._hidden, self._selected)
            del self._pending[key]
        if self._pending:
            self._timer.start()
        else:
            self.drawn.emit()

    def _add_view(self, key: str) -> None:
        view = self._make_view(key)
        view.pointed_at.connect(lambda x: self._mark_all(key, x))
        first = next(iter(self.views.values()), None)
        if first is not None:
            view.plot.setXLink(first.plot)
        self.views[key] = view
        self._place()

    def _place(self) -> None:
        self.views = {key: self.views[key] for key in self.figures if key in self.views}
        self.set_widgets(list(self.views.values()))

    def _mark_all(self, key: str, x: float | None) -> None:
        """Show the values at one place in every chart: what was the loss when the return fell?"""
        for view in self.views.values():
            view.mark(x)
        self.pointed_at.emit(key, x)
