"""The table of runs and its delegate; groups can be expanded, and the scroll position is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from PySide6.QtCore import (
    QItemSelection,
    QItemSelectionModel,
    QItemSelectionRange,
    QModelIndex,
    QPersistentModelIndex,
    QPointF,
    QRect,
    QRectF,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetrics,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPen,
    QPolygonF,
    QResizeEvent,
    QStaticText,
)
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTableView,
    QWidget,
)

from gym_gui.ui import theme
from gym_gui.ui.runs.grouping import Group
from gym_gui.ui.runs.model import Entry, RunsModel, pieces
from gym_gui.ui.runs.rows import HIDDEN_AT_FIRST, RIGHT_ALIGNED, RunColumn, RunRow
from gym_gui.ui.widgets.parts import named

_COLUMNS = tuple(RunColumn)
_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
_RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
# As plain integers: Python's enum flags cost more than the painting.
_SELECTED = QStyle.StateFlag.State_Selected.value
_HOVERED = QStyle.StateFlag.State_MouseOver.value
_FOCUSED = QStyle.StateFlag.State_HasFocus.value
_ACTIVE = QStyle.StateFlag.State_Active.value
_MAX_TEXTS = 2_000
_UNDER_THE_TITLE = frozenset({RunColumn.WORKER, RunColumn.ALGORITHM, RunColumn.ENVIRONMENT})
"""Columns whose values are part of a group's title"""


class RunsDelegate(QStyledItemDelegate):
    """Paints the cells of a `RunsModel`."""

    def __init__(self, model: RunsModel, header: QHeaderView, parent: QWidget) -> None:
        super().__init__(parent)
        self._model, self._header = model, header
        self.refresh(parent)

    def refresh(self, widget: QWidget) -> None:
        """Update colors and fonts after a change of the theme or the font."""
        colors = theme.colors()
        self._font, self._bold = QFont(widget.font()), QFont(widget.font())
        self._bold.setBold(True)
        self._metrics, self._bold_metrics = QFontMetrics(self._font), QFontMetrics(self._bold)
        self._em = self._metrics.height()
        self._widest = self._bold_metrics.maxWidth()
        self._texts: dict[tuple[str, bool, int], QStaticText] = {}
        self._text, self._muted = QColor(colors.text), QColor(colors.muted)
        self._line, self._group_back = QColor(colors.border), QColor(colors.raised)
        self._accent = QColor(colors.accent)
        self._chosen, self._chosen_elsewhere, self._hovered = (
            QColor(self._accent),
            QColor(self._muted),
            QColor(self._accent),
        )
        self._chosen.setAlphaF(0.30 if colors.is_dark else 0.18)
        self._chosen_elsewhere.setAlphaF(0.22)
        self._hovered.setAlphaF(0.07)
        self._line.setAlphaF(0.55)
        self._curve_pen = QPen(self._accent, 1)
        self._states = {state: QColor(getattr(colors, name)) for state, name in theme.STATE_COLORS.items()}
        self._fills = {}
        for state, color in self._states.items():
            fill = QColor(color)
            fill.setAlphaF(0.38 if colors.is_dark else 0.26)
            self._fills[state] = fill

    @property
    def row_height(self) -> int:
        return round(self._em * 1.65)

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        """Return the width of a cell, for a double click on a header's edge; Qt asks only for visible rows."""
        column = _COLUMNS[index.column()]
        text = self._model.entry_at(index.row()).text(column)
        room = {RunColumn.STATUS: 2.2, RunColumn.NAME: 2.2, RunColumn.PROGRESS: 2.0, RunColumn.RETURN: 6.0}.get(
            column, 1.2
        )
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
        if column is RunColumn.STATUS:
            self._paint_state(painter, inner, entry)
        elif column is RunColumn.PROGRESS:
            self._paint_progress(painter, inner, entry)
        elif column is RunColumn.RETURN:
            self._paint_return(painter, inner, entry)
        elif column is RunColumn.NAME:
            self._paint_name(painter, inner, entry)
        elif isinstance(entry, Group) and column in _UNDER_THE_TITLE:
            self._paint_on_title(painter, rect, entry, column)
        else:
            self._paint_text(painter, inner, entry.text(column), entry, right=column in RIGHT_ALIGNED)

    # ------------------------------------------------------------------ parts of cells

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

    def _paint_text(self, painter: QPainter, rect: QRect, text: str, entry: Entry, *, right: bool = False) -> None:
        if not text:
            return
        painter.setPen(self._muted if isinstance(entry, RunRow) and entry.is_archived else self._text)
        laid_out = self._laid_out(text, isinstance(entry, Group), rect.width())
        left = rect.right() + 1 - round(laid_out.size().width()) if right else rect.left()
        painter.drawStaticText(left, rect.top() + (rect.height() - self._em) // 2, laid_out)

    def _laid_out(self, text: str, bold: bool, room: int) -> QStaticText:
        """Return a cached, elided text: layout is the expensive part, and most texts repeat."""
        key = text, bold, room if len(text) * self._widest > room else 0
        laid_out = self._texts.get(key)
        if laid_out is None:
            if len(self._texts) > _MAX_TEXTS:
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
            self._paint_text(painter, room, entry.text(RunColumn.NAME), entry)
            return
        indent = self._em if self._model.is_grouped else 0
        self._paint_text(painter, rect.adjusted(indent, 0, 0, 0), entry.text(RunColumn.NAME), entry)

    def _room_beside_name(self) -> int:
        """Return the width available to a title, across columns to the right that would only repeat it."""
        return sum(self._header.sectionSize(column) for column in self._columns_under_title())

    def _columns_under_title(self) -> list[RunColumn]:
        found: list[RunColumn] = []
        place = self._header.visualIndex(RunColumn.NAME) + 1
        while (logical := self._header.logicalIndex(place)) in _UNDER_THE_TITLE:
            found.append(RunColumn(logical))
            place += 1
        return [column for column in found if not self._header.isSectionHidden(column)]

    def _paint_on_title(self, painter: QPainter, rect: QRect, group: Group, column: RunColumn) -> None:
        """Paint the part of the title that extends into this cell: each cell paints its own background first."""
        if column not in self._columns_under_title():
            self._paint_text(painter, rect.adjusted(self._em // 2, 0, -(self._em // 2), 0), group.text(column), group)
            return
        name = QRect(rect)
        name.setLeft(self._header.sectionViewportPosition(RunColumn.NAME))
        name.setWidth(self._header.sectionSize(RunColumn.NAME))
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
            painter, rect.adjusted(round(side + self._em * 0.4), 0, 0, 0), entry.text(RunColumn.STATUS), entry
        )

    def _paint_progress(self, painter: QPainter, rect: QRect, entry: Entry) -> None:
        done, text = entry.fraction, entry.text(RunColumn.PROGRESS)
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
        text = entry.text(RunColumn.RETURN)
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
    """Return a curve scaled to a rectangle; a constant curve is centered."""
    low, high = min(curve), max(curve)
    across = room.width() / (len(curve) - 1)
    if high == low:
        middle = room.center().y()
        return QPolygonF([QPointF(room.left(), middle), QPointF(room.right(), middle)])
    up = room.height() / (high - low)
    bottom, left = room.bottom(), room.left()
    return QPolygonF([QPointF(left + at * across, bottom - (value - low) * up) for at, value in enumerate(curve)])


def paint_symbol(painter: QPainter, box: QRectF, state: str, color: QColor) -> None:
    """Paint the symbol of a state; shapes differ, so that color is not the only sign."""
    pen = QPen(color, max(1.5, box.width() / 6))
    pen.setCapStyle(Qt.PenCapStyle.RoundCap)
    pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)

    def at(x: float, y: float) -> QPointF:
        return QPointF(box.left() + x * box.width(), box.top() + y * box.height())

    if state in ("running",):
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(color)
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


_WIDTHS = dict(zip(RunColumn, (21, 26, 11, 18, 20, 11, 22, 22, 11, 14, 11, 14, 20), strict=True))
"""In characters of average width"""
_MANY = 100
_SHARES_OF_REST = {
    RunColumn.NAME: 0.5,
    RunColumn.ALGORITHM: 0.12,
    RunColumn.ENVIRONMENT: 0.14,
    RunColumn.PROGRESS: 0.1,
    RunColumn.RETURN: 0.14,
}
"""Shares of the extra width if the window is wider than the table needs"""


class RunsView(QTableView):
    """Shows a `RunsModel`; keeps selection and scroll position across all changes of the model."""

    opened = Signal(str)  # run id: Return or double click
    selected_ids_changed = Signal()
    rows_on_screen_changed = Signal()

    def __init__(self, model: RunsModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.runs_model = model
        named(self, "runs_table", self.tr("Runs"))
        self.setModel(model)
        self.delegate = RunsDelegate(model, self.horizontalHeader(), self)
        self.setItemDelegate(self.delegate)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setTabKeyNavigation(False)  # Tab leaves the table
        self.setCornerButtonEnabled(False)
        self.setMouseTracking(True)
        rows = self.verticalHeader()
        rows.setVisible(False)
        rows.setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        columns = self.horizontalHeader()
        columns.setObjectName("runs_header")
        columns.setSectionsMovable(True)
        columns.setHighlightSections(False)
        columns.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        columns.setTextElideMode(Qt.TextElideMode.ElideRight)
        columns.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        # The header asks for each column whether all of its cells are selected. The answer is not needed.
        columns.setSelectionModel(QItemSelectionModel(model, self))
        self.shares_rest, self._is_sharing = False, False
        columns.sectionResized.connect(lambda *_: self._section_resized())
        self.doubleClicked.connect(self._double_clicked)
        self.selectionModel().selectionChanged.connect(self._selection_changed)
        self.verticalScrollBar().valueChanged.connect(lambda: self.rows_on_screen_changed.emit())
        self._place_before: _Place | None = None
        self._was_reset = False
        model.about_to_move.connect(self._remember)
        model.modelReset.connect(self._note_reset)
        model.moved.connect(self._restore)
        for column in HIDDEN_AT_FIRST:
            self.setColumnHidden(column, True)
        self.update_sizes()

    def update_sizes(self) -> None:
        """Set row heights from the font, and widths unless the user has changed them."""
        self.delegate.refresh(self)
        self.verticalHeader().setDefaultSectionSize(self.delegate.row_height)
        if self.shares_rest:
            self._share_width()

    def reset_columns(self) -> None:
        """Restore the default columns, their order and widths."""
        header = self.horizontalHeader()
        for column in RunColumn:
            self.setColumnHidden(column, column in HIDDEN_AT_FIRST)
            header.moveSection(header.visualIndex(column), int(column))
        self.reset_widths()

    def reset_widths(self) -> None:
        """Set default widths; until the user changes one, the columns share the extra width."""
        self.shares_rest = True
        self._share_width()

    def _share_width(self) -> None:
        char_width = self.fontMetrics().averageCharWidth()
        taken = sum(chars for column, chars in _WIDTHS.items() if not self.isColumnHidden(column)) * char_width
        self._is_sharing = True
        for column, chars in _WIDTHS.items():
            rest = max(0, self.viewport().width() - taken) * _SHARES_OF_REST.get(column, 0)
            self.setColumnWidth(column, chars * char_width + int(rest))
        self._is_sharing = False

    def show_column(self, column: RunColumn, shown: bool) -> None:
        self._is_sharing = True  # hiding sets the width to 0, which is not a change by the user
        self.setColumnHidden(column, not shown)
        self._is_sharing = False
        if self.shares_rest:
            self._share_width()

    def _section_resized(self) -> None:
        if not self._is_sharing:
            self.shares_rest = False

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self.shares_rest:
            self._share_width()
        self.rows_on_screen_changed.emit()

    # ------------------------------------------------------------------ selection

    def selected_positions(self) -> list[int]:
        """Return the selected rows, top to bottom."""
        found: set[int] = set()
        for ranges in cast(Iterable[QItemSelectionRange], self.selectionModel().selection()):
            found.update(range(ranges.top(), ranges.bottom() + 1))
        return sorted(found)

    def select_entries(self, entry_ids: Iterable[str], *, current: str = "") -> None:
        """Select exactly these entries; hidden ones are skipped."""
        selection, last = QItemSelection(), self.runs_model.columnCount() - 1
        found = (self.runs_model.position_of(entry_id) for entry_id in entry_ids)
        for top, bottom in pieces(sorted({position for position in found if position is not None})):
            selection.select(self.runs_model.index(top, 0), self.runs_model.index(bottom, last))
        flags = QItemSelectionModel.SelectionFlag
        self.selectionModel().select(selection, flags.ClearAndSelect)
        position = self.runs_model.position_of(current) if current else None
        if position is not None:
            cell = self.runs_model.index(position, RunColumn.NAME)
            self.selectionModel().setCurrentIndex(cell, flags.NoUpdate)

    def _selection_changed(self) -> None:
        self.selected_ids_changed.emit()

    # ------------------------------------------------------------------ visible rows

    def positions_on_screen(self) -> range:
        """Return the rows on the screen."""
        count = self.runs_model.rowCount()
        if not count:
            return range(0)
        first, last = self.rowAt(0), self.rowAt(self.viewport().height() - 1)
        return range(max(0, first), (last if last >= 0 else count - 1) + 1)

    def bring_into_view(self, position: int) -> None:
        self.executeDelayedItemsLayout()
        self.scrollTo(self.runs_model.index(position, RunColumn.NAME))

    def _remember(self) -> None:
        self._place_before, self._was_reset = _Place(self), False
        self.runs_model.is_better_reset = len(self._place_before.selected) > _MANY

    def _note_reset(self) -> None:
        self._was_reset = True

    def _restore(self) -> None:
        kept, self._place_before = self._place_before, None
        if kept is not None:
            if self._was_reset:  # a reset clears the selection without a signal
                self.select_entries(kept.selected, current=kept.current)
                self.selected_ids_changed.emit()
            kept.scroll_back()
        self.rows_on_screen_changed.emit()

    # ------------------------------------------------------------------ mouse and keys

    def _double_clicked(self, index: QModelIndex) -> None:
        self._open(index)

    def _open(self, index: QModelIndex) -> None:
        entry = self.runs_model.entry_at(index.row())
        if isinstance(entry, Group):
            self.runs_model.set_open(entry, not entry.is_open)
        else:
            self.opened.emit(entry.entry_id)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.runs_model.is_held = True
        if event.button() is Qt.MouseButton.LeftButton and (group := self._triangle_at(event)) is not None:
            self.runs_model.set_open(group, not group.is_open)
            return
        super().mousePressEvent(event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self.runs_model.is_held = False
        super().mouseReleaseEvent(event)

    def _triangle_at(self, event: QMouseEvent) -> Group | None:
        index = self.indexAt(event.position().toPoint())
        if not index.isValid() or index.column() != RunColumn.NAME:
            return None
        entry = self.runs_model.entry_at(index.row())
        reach = self.visualRect(index).left() + self.delegate.row_height
        return entry if isinstance(entry, Group) and event.position().x() < reach else None

    def keyPressEvent(self, event: QKeyEvent) -> None:
        index = self.currentIndex()
        if index.isValid():
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self._open(index)
                return
            entry = self.runs_model.entry_at(index.row())
            if isinstance(entry, Group) and event.key() in (Qt.Key.Key_Left, Qt.Key.Key_Right):
                self.runs_model.set_open(entry, event.key() == Qt.Key.Key_Right)
                return
        super().keyPressEvent(event)


class _Place:
    """The selection and the first visible row, to be restored."""

    def __init__(self, view: RunsView) -> None:
        self._view = view
        model = view.runs_model
        self.selected = [model.entry_at(position).entry_id for position in view.selected_positions()]
        current = view.currentIndex()
        self.current = model.entry_at(current.row()).entry_id if current.isValid() else ""
        self._top, self._offset = "", 0
        position = view.rowAt(0)
        # At the very top the view stays there to show new rows.
        if position >= 0 and view.verticalScrollBar().value() > 0:
            self._top, self._offset = model.entry_at(position).entry_id, view.rowViewportPosition(position)

    def scroll_back(self) -> None:
        model, bar = self._view.runs_model, self._view.verticalScrollBar()
        if not self._top:
            return
        if (position := model.position_of(self._top)) is not None:
            self._view.executeDelayedItemsLayout()  # the scroll bar does not know the number of rows yet
            self._view.updateGeometries()
            bar.setValue(self._view.verticalHeader().sectionPosition(position) - self._offset)
        elif self.current and (position := model.position_of(self.current)) is not None:
            self._view.bring_into_view(position)
