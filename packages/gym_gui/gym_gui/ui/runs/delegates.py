"""How cells are painted: a symbol and a word for the state, a bar for progress, a short curve beside the return.

One delegate paints every cell and reads the row itself: Qt's own would ask the model a dozen times for each cell, and
each question crosses from C++ to Python.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetrics, QPainter, QPen, QPolygonF, QStaticText
from PySide6.QtWidgets import QHeaderView, QStyle, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from gym_gui.ui import theme
from gym_gui.ui.runs.grouping import Group
from gym_gui.ui.runs.model import Entry, RunsModel
from gym_gui.ui.runs.rows import RIGHT_ALIGNED, Column, Row

_COLUMNS = tuple(Column)
_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
_RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
# As plain numbers: Python's flags cost more than the painting.
_SELECTED = QStyle.StateFlag.State_Selected.value
_HOVERED = QStyle.StateFlag.State_MouseOver.value
_FOCUSED = QStyle.StateFlag.State_HasFocus.value
_ACTIVE = QStyle.StateFlag.State_Active.value
_MOST_TEXTS = 2_000
_UNDER_THE_TITLE = frozenset({Column.WORKER, Column.ALGORITHM, Column.ENVIRONMENT})
"""What the title of a group says anyway"""

_STATE_COLOURS = {
    "queued": "muted", "starting": "info", "running": "accent", "stalled": "bad", "pausing": "warning",
    "paused": "warning", "released": "warning", "cancelling": "warning", "faulted": "bad", "failed": "bad",
    "cancelled": "muted", "completed": "good", "finished": "muted",
}  # fmt: skip


class RunsDelegate(QStyledItemDelegate):
    """Paints the cells of a `RunsModel`."""

    def __init__(self, model: RunsModel, header: QHeaderView, parent: QWidget) -> None:
        super().__init__(parent)
        self._model, self._header = model, header
        self.refresh(parent)

    def refresh(self, widget: QWidget) -> None:
        """The theme or the font has changed."""
        colours = theme.colours()
        self._font, self._bold = QFont(widget.font()), QFont(widget.font())
        self._bold.setBold(True)
        self._metrics, self._bold_metrics = QFontMetrics(self._font), QFontMetrics(self._bold)
        self._em = self._metrics.height()
        self._widest = self._bold_metrics.maxWidth()
        self._texts: dict[tuple[str, bool, int], QStaticText] = {}
        self._text, self._muted = QColor(colours.text), QColor(colours.muted)
        self._line, self._group_back = QColor(colours.border), QColor(colours.raised)
        self._accent = QColor(colours.accent)
        self._chosen, self._chosen_elsewhere, self._hovered = (
            QColor(self._accent),
            QColor(self._muted),
            QColor(self._accent),
        )
        self._chosen.setAlphaF(0.30 if colours.is_dark else 0.18)
        self._chosen_elsewhere.setAlphaF(0.22)
        self._hovered.setAlphaF(0.07)
        self._line.setAlphaF(0.55)
        self._curve_pen = QPen(self._accent, 1)
        self._states = {state: QColor(getattr(colours, name)) for state, name in _STATE_COLOURS.items()}
        self._fills = {}
        for state, colour in self._states.items():
            fill = QColor(colour)
            fill.setAlphaF(0.38 if colours.is_dark else 0.26)
            self._fills[state] = fill

    @property
    def row_height(self) -> int:
        return round(self._em * 1.65)

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        """For a double click on a header's edge; Qt asks for the rows on the screen only."""
        column = _COLUMNS[index.column()]
        text = self._model.entry_at(index.row()).text(column)
        room = {Column.STATUS: 2.2, Column.NAME: 2.2, Column.PROGRESS: 2.0, Column.RETURN: 6.0}.get(column, 1.2)
        return QSize(round(self._bold_metrics.horizontalAdvance(text) + room * self._em), self.row_height)

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        entry, column = self._model.entry_at(index.row()), _COLUMNS[index.column()]
        rect: QRect = option.rect
        state: int = option.state.value
        is_group = isinstance(entry, Group)
        self._paint_back(painter, rect, state, is_group)
        painter.setFont(self._bold if is_group else self._font)
        inner = rect.adjusted(self._em // 2, 0, -(self._em // 2), 0)
        if column is Column.STATUS:
            self._paint_state(painter, inner, entry)
        elif column is Column.PROGRESS:
            self._paint_progress(painter, inner, entry)
        elif column is Column.RETURN:
            self._paint_return(painter, inner, entry)
        elif column is Column.NAME:
            self._paint_name(painter, inner, entry)
        elif isinstance(entry, Group) and column in _UNDER_THE_TITLE:
            self._paint_on_title(painter, rect, entry, column)
        else:
            self._paint_text(painter, inner, entry.text(column), entry, right=column in RIGHT_ALIGNED)

    # ------------------------------------------------------------------ parts

    def _paint_back(self, painter: QPainter, rect: QRect, state: int, is_group: bool) -> None:
        if is_group:
            painter.fillRect(rect, self._group_back)
        if state & _SELECTED:
            painter.fillRect(rect, self._chosen if state & _ACTIVE else self._chosen_elsewhere)
        elif state & _HOVERED:
            painter.fillRect(rect, self._hovered)
        painter.fillRect(rect.left(), rect.bottom(), rect.width(), 1, self._line)
        if state & _FOCUSED:
            painter.setPen(QPen(self._accent, 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(rect.adjusted(0, 0, -1, -1))

    def _paint_text(
        self, painter: QPainter, rect: QRect, text: str, entry: Entry, *, right: bool = False, muted: bool = False
    ) -> None:
        if not text:
            return
        painter.setPen(self._muted if muted or (isinstance(entry, Row) and entry.is_archived) else self._text)
        laid_out = self._laid_out(text, isinstance(entry, Group), rect.width())
        left = rect.right() + 1 - round(laid_out.size().width()) if right else rect.left()
        painter.drawStaticText(left, rect.top() + (rect.height() - self._em) // 2, laid_out)

    def _laid_out(self, text: str, bold: bool, room: int) -> QStaticText:
        """A text ready to be drawn, cut to the room it has; most texts come again, and laying out is what costs."""
        key = text, bold, room if len(text) * self._widest > room else 0
        laid_out = self._texts.get(key)
        if laid_out is None:
            if len(self._texts) > _MOST_TEXTS:
                self._texts.clear()
            metrics, font = (self._bold_metrics, self._bold) if bold else (self._metrics, self._font)
            laid_out = QStaticText(metrics.elidedText(text, Qt.TextElideMode.ElideRight, room))
            laid_out.setTextFormat(Qt.TextFormat.PlainText)
            laid_out.prepare(font=font)
            self._texts[key] = laid_out
        return laid_out

    def _paint_name(self, painter: QPainter, rect: QRect, entry: Entry) -> None:
        if isinstance(entry, Group):
            self._paint_triangle(painter, rect, is_open=entry.is_open)
            room = rect.adjusted(self._em, 0, self._room_beside_name(), 0)
            self._paint_text(painter, room, entry.text(Column.NAME), entry)
            return
        indent = self._em if self._model.is_grouped else 0
        self._paint_text(painter, rect.adjusted(indent, 0, 0, 0), entry.text(Column.NAME), entry)

    def _room_beside_name(self) -> int:
        """How far a title may run on, over columns to the right that would only say the same again."""
        return sum(self._header.sectionSize(column) for column in self._columns_under_title())

    def _columns_under_title(self) -> list[Column]:
        found: list[Column] = []
        place = self._header.visualIndex(Column.NAME) + 1
        while (logical := self._header.logicalIndex(place)) in _UNDER_THE_TITLE:
            found.append(Column(logical))
            place += 1
        return [column for column in found if not self._header.isSectionHidden(column)]

    def _paint_on_title(self, painter: QPainter, rect: QRect, group: Group, column: Column) -> None:
        """The part of the title that runs over this cell; each cell paints its own background first."""
        if column not in self._columns_under_title():
            self._paint_text(painter, rect.adjusted(self._em // 2, 0, -(self._em // 2), 0), group.text(column), group)
            return
        name = QRect(rect)
        name.setLeft(self._header.sectionViewportPosition(Column.NAME))
        name.setWidth(self._header.sectionSize(Column.NAME))
        inner = name.adjusted(self._em // 2 + self._em, 0, self._room_beside_name() - self._em // 2, 0)
        painter.save()
        painter.setClipRect(rect)
        self._paint_text(painter, inner, group.title, group)
        painter.restore()

    def _paint_triangle(self, painter: QPainter, rect: QRect, *, is_open: bool) -> None:
        size = self._em * 0.42
        middle = QPointF(rect.left() + self._em * 0.35, rect.center().y() + 0.5)
        if is_open:
            corners = [QPointF(-size / 2, -size / 4), QPointF(size / 2, -size / 4), QPointF(0, size / 2.2)]
        else:
            corners = [QPointF(-size / 4, -size / 2), QPointF(size / 2.2, 0), QPointF(-size / 4, size / 2)]
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._muted)
        painter.drawPolygon(QPolygonF([middle + corner for corner in corners]))
        painter.restore()

    def _paint_state(self, painter: QPainter, rect: QRect, entry: Entry) -> None:
        side = self._em * 0.62
        box = QRectF(rect.left(), rect.center().y() + 0.5 - side / 2, side, side)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        paint_symbol(painter, box, entry.state, self._states.get(entry.state, self._muted))
        painter.restore()
        self._paint_text(
            painter, rect.adjusted(round(side + self._em * 0.4), 0, 0, 0), entry.text(Column.STATUS), entry
        )

    def _paint_progress(self, painter: QPainter, rect: QRect, entry: Entry) -> None:
        done, text = entry.fraction, entry.text(Column.PROGRESS)
        if done is not None and text:
            height = round(self._em * 1.12)
            bar = QRectF(rect.left(), rect.center().y() + 1 - height / 2, rect.width(), height)
            painter.save()
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(QPen(self._line, 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(bar.adjusted(0.5, 0.5, -0.5, -0.5), 3, 3)
            if done > 0:
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(self._fills.get(entry.state, self._line))
                painter.drawRoundedRect(QRectF(bar.left(), bar.top(), max(4.0, bar.width() * done), bar.height()), 3, 3)
            painter.restore()
        self._paint_text(painter, rect.adjusted(self._em // 3, 0, -(self._em // 3), 0), text, entry)

    def _paint_return(self, painter: QPainter, rect: QRect, entry: Entry) -> None:
        text = entry.text(Column.RETURN)
        self._paint_text(painter, rect, text, entry, right=True)
        if isinstance(entry, Group):
            return
        curve = self._model.curve_of(entry.entry_id)
        taken = (
            max(round(self._laid_out(text, False, rect.width()).size().width()), round(self._em * 2.6)) + self._em // 2
        )
        room = rect.adjusted(0, round(self._em * 0.3), -taken, -round(self._em * 0.3))
        if len(curve) > 1 and room.width() >= self._em * 1.5:
            painter.save()
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(self._curve_pen)
            painter.drawPolyline(polyline(curve, QRectF(room)))
            painter.restore()


def polyline(curve: Sequence[float], room: QRectF) -> QPolygonF:
    """A curve that fills a rectangle; a flat one runs through its middle."""
    low, high = min(curve), max(curve)
    across = room.width() / (len(curve) - 1)
    if high == low:
        middle = room.center().y()
        return QPolygonF([QPointF(room.left(), middle), QPointF(room.right(), middle)])
    up = room.height() / (high - low)
    bottom, left = room.bottom(), room.left()
    return QPolygonF([QPointF(left + at * across, bottom - (value - low) * up) for at, value in enumerate(curve)])


def paint_symbol(painter: QPainter, box: QRectF, state: str, colour: QColor) -> None:
    """A small shape for a state; shapes differ, so that nobody needs to tell colours apart."""
    pen = QPen(colour, max(1.5, box.width() / 6))
    pen.setCapStyle(Qt.PenCapStyle.RoundCap)
    pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)

    def at(x: float, y: float) -> QPointF:
        return QPointF(box.left() + x * box.width(), box.top() + y * box.height())

    if state in ("running",):
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        painter.drawPolygon(QPolygonF([at(0.12, 0.0), at(1.0, 0.5), at(0.12, 1.0)]))
        return
    painter.setPen(pen)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    if state == "completed":
        painter.drawPolyline(QPolygonF([at(0.05, 0.55), at(0.38, 0.9), at(0.98, 0.12)]))
    elif state in ("failed", "faulted"):
        painter.drawLine(at(0.1, 0.1), at(0.9, 0.9))
        painter.drawLine(at(0.9, 0.1), at(0.1, 0.9))
    elif state in ("paused", "released", "pausing"):
        painter.drawLine(at(0.3, 0.1), at(0.3, 0.9))
        painter.drawLine(at(0.72, 0.1), at(0.72, 0.9))
    elif state == "stalled":
        painter.drawLine(at(0.5, 0.02), at(0.5, 0.6))
        painter.drawPoint(at(0.5, 0.97))
    elif state in ("cancelled", "cancelling"):
        painter.drawLine(at(0.1, 0.5), at(0.9, 0.5))
    elif state == "queued":
        painter.drawEllipse(box.adjusted(1, 1, -1, -1))
    else:  # starting
        painter.drawArc(box.adjusted(1, 1, -1, -1), 90 * 16, -250 * 16)
