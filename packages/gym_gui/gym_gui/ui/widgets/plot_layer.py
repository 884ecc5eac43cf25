"""Everything that a chart draws as one item, which keeps its picture: moving the crosshair over it costs a copy.

Qt draws each item anew for every pixel that changes above it; with a hundred curves that is as dear as all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPixmap, QTransform
from PySide6.QtWidgets import QStyleOptionGraphicsItem, QWidget

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Stroke:
    """Lines of one colour; `joined` says which point is connected to the next."""

    colour: QColor
    xs: Floats
    ys: Floats
    joined: NDArray[np.int32]

    def path(self) -> QPainterPath:
        path: QPainterPath = pg.functions.arrayToQPath(self.xs, self.ys, connect=self.joined, finiteCheck=False)
        return path


@dataclass(frozen=True, eq=False)
class Fill:
    """An area, by its outline."""

    colour: QColor
    xs: Floats
    ys: Floats

    def path(self) -> QPainterPath:
        path: QPainterPath = pg.functions.arrayToQPath(self.xs, self.ys, connect="all", finiteCheck=False)
        return path


class PlotLayer(pg.GraphicsObject):  # type: ignore[misc]  # pyqtgraph has no types
    """Fills below, strokes above, each in the order they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.fills: Sequence[Fill] = ()
        self.strokes: Sequence[Stroke] = ()
        self._paths: list[tuple[QPainterPath, QColor, bool]] = []
        self._bounds: tuple[float, float, float, float] | None = None
        self._picture: QPixmap | None = None
        self._picture_of: object = None

    def show_parts(self, fills: Sequence[Fill], strokes: Sequence[Stroke]) -> None:
        self.fills, self.strokes = fills, strokes
        everything: list[Fill | Stroke] = [*fills, *strokes]
        parts = [part for part in everything if len(part.xs)]
        self._paths = [(part.path(), part.colour, isinstance(part, Fill)) for part in parts]
        self._bounds = None
        if parts:
            self._bounds = (
                min(float(part.xs.min()) for part in parts), max(float(part.xs.max()) for part in parts),
                min(float(part.ys.min()) for part in parts), max(float(part.ys.max()) for part in parts),
            )  # fmt: skip
        self._picture_of = None
        self.prepareGeometryChange()
        self.informViewBoundsChanged()
        self.update()

    # -- what the view asks

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

    # -- painting

    def paint(self, painter: QPainter, _option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        if not self._paths or widget is None:
            return
        transform, ratio = painter.worldTransform(), widget.devicePixelRatioF()
        wanted = (transform, widget.size(), ratio)
        if self._picture is None or wanted != self._picture_of:
            self._picture, self._picture_of = self._painted(transform, widget.size(), ratio), wanted
        painter.resetTransform()
        painter.drawPixmap(QPointF(0, 0), self._picture)
        painter.setTransform(transform)

    def _painted(self, transform: QTransform, size: QSize, ratio: float) -> QPixmap:
        picture = QPixmap(size * ratio)
        picture.setDevicePixelRatio(ratio)
        picture.fill(Qt.GlobalColor.transparent)
        with QPainter(picture) as painter:
            # With a clip Qt gathers what it draws into spans: lines that are not opaque take a fifth of the time.
            painter.setClipRect(self.getViewBox().sceneBoundingRect())
            painter.setTransform(transform)
            for path, colour, is_filled in self._paths:
                if is_filled:
                    painter.fillPath(path, colour)
                else:
                    painter.setPen(pg.mkPen(colour, width=1))  # a wider pen makes Qt draw ten times slower
                    painter.drawPath(path)
        return picture
