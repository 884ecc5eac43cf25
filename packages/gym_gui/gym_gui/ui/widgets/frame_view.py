"""Show a frame that may change thirty times per second, fitted or magnified, or a text in its place."""

from __future__ import annotations

from enum import Enum

from PySide6.QtCore import QPoint, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QImage, QMouseEvent, QPainter, QPaintEvent, QRegion, QResizeEvent
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QWidget

from gym_gui.ui import theme


class Zoom(Enum):
    """The magnification of a frame."""

    FIT = "fit"
    ACTUAL = "1"
    DOUBLE = "2"


class FrameView(QAbstractScrollArea):
    """Draws the newest frame; larger ones are scrolled with scroll bars, keys or the mouse."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFrameShape(QFrame.Shape.NoFrame)
        # Every pixel is painted below: Qt need not clear the background first, thirty times per second.
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setMinimumSize(self.fontMetrics().averageCharWidth() * 24, self.fontMetrics().height() * 8)
        self.image = QImage()
        """The current frame; null while a text is shown."""
        self.notice = ""
        self.zoom = Zoom.FIT
        self._is_smooth = True
        self._tiles = (1, 1)
        self._tile: int | None = None
        self._dragged_from: QPoint | None = None

    # -- content

    def show_image(self, image: QImage) -> None:
        """Show a frame. The buffer of an RGB888 image may belong to the caller: it is copied."""
        has_other_size = image.size() != self.image.size()
        if image.format() == QImage.Format.Format_RGB888:
            image = image.convertToFormat(QImage.Format.Format_RGB32)  # Qt scales this format twice as fast
        self.image, self.notice = image, ""
        if has_other_size:
            self._arrange()
        self.viewport().update()

    def show_text(self, notice: str) -> None:
        """Show a text instead of a frame."""
        if notice != self.notice or not self.image.isNull():
            self.image, self.notice = QImage(), notice
            self.setAccessibleDescription(notice)
            self._arrange()
            self.viewport().update()

    # -- display options

    def set_zoom(self, zoom: Zoom) -> None:
        self.zoom = zoom
        self._arrange()
        self.viewport().update()

    def set_smooth(self, is_smooth: bool) -> None:
        """Choose between smooth scaling and sharp pixels."""
        self._is_smooth = is_smooth
        self.viewport().update()

    def set_tile(self, tiles: tuple[int, int], tile: int | None) -> None:
        """Show one tile of a frame of (columns, rows), counted from 0 in reading order; None: the whole frame."""
        self._tiles, self._tile = tiles, tile
        self._arrange()
        self.viewport().update()

    def shown_part(self) -> QRect:
        """Return the part of the frame that is drawn."""
        whole = self.image.rect()
        if self._tile is None:
            return whole
        columns, rows = self._tiles
        width, height = whole.width() // columns, whole.height() // rows
        return QRect(self._tile % columns * width, self._tile // columns * height, width, height)

    def drawn_size(self) -> QSize:
        """Return the size in logical pixels."""
        part = self.shown_part().size()
        if self.zoom is Zoom.FIT:
            return part.scaled(self.viewport().size(), Qt.AspectRatioMode.KeepAspectRatio)
        # One pixel of the frame is one (or two) device pixels, also on a scaled screen.
        return part * (int(self.zoom.value) / self.devicePixelRatioF())

    # -- painting

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        room = self.viewport().rect()
        ground = QColor(theme.colors().window)
        if self.image.isNull():
            painter.fillRect(room, ground)
            painter.setPen(QColor(theme.colors().muted))
            margin = self.fontMetrics().height()
            text = room.adjusted(margin, margin, -margin, -margin)
            painter.drawText(text, Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap, self.notice)
            return
        target = self._target()
        painter.setClipRegion(QRegion(room).subtracted(QRegion(target)))
        painter.fillRect(room, ground)
        painter.setClipping(False)
        part = self.shown_part()
        if target.size() != part.size():
            painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, self._is_smooth)
        painter.drawImage(QRectF(target), self.image, QRectF(part))

    def _target(self) -> QRect:
        """Return the rectangle of the frame: centered, or scrolled."""
        size, room = self.drawn_size(), self.viewport().size()
        left = (
            (room.width() - size.width()) // 2 if size.width() <= room.width() else -self.horizontalScrollBar().value()
        )
        top = (
            (room.height() - size.height()) // 2
            if size.height() <= room.height()
            else -self.verticalScrollBar().value()
        )
        return QRect(QPoint(left, top), size)

    def _arrange(self) -> None:
        """Set the range of the scroll bars."""
        never = self.image.isNull() or self.zoom is Zoom.FIT
        size = QSize() if never else self.drawn_size()
        for bar, length, room in (
            (self.horizontalScrollBar(), size.width(), self.viewport().width()),
            (self.verticalScrollBar(), size.height(), self.viewport().height()),
        ):
            bar.setRange(0, max(0, length - room))
            bar.setPageStep(room)
            bar.setSingleStep(max(1, room // 20))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def scrollContentsBy(self, _dx: int, _dy: int) -> None:
        self.viewport().update()

    # -- scrolling with the mouse

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton:
            self._dragged_from = event.position().toPoint()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._dragged_from is not None:
            here = event.position().toPoint()
            moved = self._dragged_from - here
            self._dragged_from = here
            self.horizontalScrollBar().setValue(self.horizontalScrollBar().value() + moved.x())
            self.verticalScrollBar().setValue(self.verticalScrollBar().value() + moved.y())

    def mouseReleaseEvent(self, _event: QMouseEvent) -> None:
        self._dragged_from = None
