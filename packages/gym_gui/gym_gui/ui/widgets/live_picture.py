"""A picture that may change thirty times a second, fitted or enlarged; words in its place when there is none."""

from __future__ import annotations

from enum import Enum

from PySide6.QtCore import QPoint, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QImage, QMouseEvent, QPainter, QPaintEvent, QRegion, QResizeEvent
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QWidget

from gym_gui.ui import theme


class Zoom(Enum):
    """How large a picture is drawn."""

    FIT = "fit"
    ACTUAL = "1"
    DOUBLE = "2"


class LivePicture(QAbstractScrollArea):
    """Draws the newest picture it was given; larger ones are moved with scroll bars, keys or the mouse."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFrameShape(QFrame.Shape.NoFrame)
        # Every pixel is painted below: Qt need not clear the ground first, thirty times a second.
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.setMinimumSize(self.fontMetrics().averageCharWidth() * 24, self.fontMetrics().height() * 8)
        self._image = QImage()
        self._notice = ""
        self._zoom = Zoom.FIT
        self._is_smooth = True
        self._tiles = (1, 1)
        self._tile: int | None = None
        self._dragged_from: QPoint | None = None

    # -- what is shown

    @property
    def image(self) -> QImage:
        """The picture in view; null while there are words."""
        return self._image

    @property
    def notice(self) -> str:
        return self._notice

    def show_image(self, image: QImage) -> None:
        """Show a picture. One of three bytes a pixel may lie in anybody's memory: it is copied."""
        has_other_size = image.size() != self._image.size()
        if image.format() == QImage.Format.Format_RGB888:
            image = image.convertToFormat(QImage.Format.Format_RGB32)  # Qt scales it in less than half the time
        self._image, self._notice = image, ""
        if has_other_size:
            self._arrange()
        self.viewport().update()

    def show_words(self, notice: str) -> None:
        """Words in place of a picture."""
        if notice != self._notice or not self._image.isNull():
            self._image, self._notice = QImage(), notice
            self.setAccessibleDescription(notice)
            self._arrange()
            self.viewport().update()

    # -- how it is shown

    @property
    def zoom(self) -> Zoom:
        return self._zoom

    def set_zoom(self, zoom: Zoom) -> None:
        self._zoom = zoom
        self._arrange()
        self.viewport().update()

    def set_smooth(self, is_smooth: bool) -> None:
        """Soft edges, or every pixel a sharp square."""
        self._is_smooth = is_smooth
        self.viewport().update()

    def set_tile(self, tiles: tuple[int, int], tile: int | None) -> None:
        """Of a picture made of (columns, rows) show one tile, counted from 0 in reading order; None: all of it."""
        self._tiles, self._tile = tiles, tile
        self._arrange()
        self.viewport().update()

    def shown_part(self) -> QRect:
        """The part of the picture that is drawn."""
        whole = self._image.rect()
        if self._tile is None:
            return whole
        columns, rows = self._tiles
        width, height = whole.width() // columns, whole.height() // rows
        return QRect(self._tile % columns * width, self._tile // columns * height, width, height)

    def drawn_size(self) -> QSize:
        """In logical pixels."""
        part = self.shown_part().size()
        if self._zoom is Zoom.FIT:
            return part.scaled(self.viewport().size(), Qt.AspectRatioMode.KeepAspectRatio)
        # One pixel of the picture is one (or two) of the screen, also on a screen with a scale of its own.
        return part * (int(self._zoom.value) / self.devicePixelRatioF())

    # -- painting

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        room = self.viewport().rect()
        ground = QColor(theme.colours().window)
        if self._image.isNull():
            painter.fillRect(room, ground)
            painter.setPen(QColor(theme.colours().muted))
            margin = self.fontMetrics().height()
            words = room.adjusted(margin, margin, -margin, -margin)
            painter.drawText(words, Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap, self._notice)
            return
        target = self._target()
        painter.setClipRegion(QRegion(room).subtracted(QRegion(target)))
        painter.fillRect(room, ground)
        painter.setClipping(False)
        part = self.shown_part()
        if target.size() != part.size():
            painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, self._is_smooth)
        painter.drawImage(QRectF(target), self._image, QRectF(part))

    def _target(self) -> QRect:
        """Where the picture is drawn: in the middle, or moved as far as the scroll bars say."""
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
        """Give the scroll bars their range."""
        never = self._image.isNull() or self._zoom is Zoom.FIT
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

    # -- moving with the mouse

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
