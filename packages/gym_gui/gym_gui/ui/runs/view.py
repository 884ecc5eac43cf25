"""The table view: whole rows, groups that open and close, and a place that stays where it is while rows come and go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from PySide6.QtCore import QItemSelection, QItemSelectionModel, QItemSelectionRange, QModelIndex, Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView, QWidget

from gym_gui.ui.runs.delegates import RunsDelegate
from gym_gui.ui.runs.grouping import Group
from gym_gui.ui.runs.model import RunsModel, pieces
from gym_gui.ui.runs.rows import HIDDEN_AT_FIRST, Column

_WIDTHS = {
    Column.STATUS: 21, Column.NAME: 26, Column.WORKER: 11, Column.ALGORITHM: 18, Column.ENVIRONMENT: 20,
    Column.SEED: 11, Column.PROGRESS: 22, Column.RETURN: 22, Column.SPS: 11, Column.STARTED: 14, Column.DURATION: 11,
    Column.SIZE: 14, Column.TAGS: 20,
}  # fmt: skip
"""In letters of average width"""
_MANY = 100
_SHARES_OF_REST = {
    Column.NAME: 0.5, Column.ALGORITHM: 0.12, Column.ENVIRONMENT: 0.14, Column.PROGRESS: 0.1, Column.RETURN: 0.14,
}  # fmt: skip
"""Who gets what of a window that is wider than the table needs"""


class RunsView(QTableView):
    """Shows a `RunsModel`. Selection and place survive whatever the model does."""

    opened = Signal(str)  # run id: Return or double click
    selected_ids_changed = Signal()
    rows_on_screen_changed = Signal()

    def __init__(self, model: RunsModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.runs_model = model
        self.setObjectName("runs_table")
        self.setAccessibleName(self.tr("Runs"))
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
        self.setTabKeyNavigation(False)  # Tab leaves the table, as people expect of one
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
        # The header asks, for each column, whether all of its ten thousand cells are selected. It need not know.
        columns.setSelectionModel(QItemSelectionModel(model, self))
        self.shares_rest, self._is_sharing = False, False
        columns.sectionResized.connect(lambda *_: self._section_resized())
        self.doubleClicked.connect(self._double_clicked)
        self.selectionModel().selectionChanged.connect(self._selection_changed)
        self.verticalScrollBar().valueChanged.connect(lambda: self.rows_on_screen_changed.emit())
        self._kept: _Place | None = None
        self._was_reset = False
        model.about_to_move.connect(self._remember)
        model.modelReset.connect(self._note_reset)
        model.moved.connect(self._restore)
        for column in HIDDEN_AT_FIRST:
            self.setColumnHidden(column, True)
        self.take_sizes()

    def take_sizes(self) -> None:
        """Row heights from the font; widths too, as long as nobody has chosen others."""
        self.delegate.refresh(self)
        self.verticalHeader().setDefaultSectionSize(self.delegate.row_height)
        if self.shares_rest:
            self._share_width()

    def take_usual_columns(self) -> None:
        """Those of the first day, in their order and as wide as then."""
        header = self.horizontalHeader()
        for column in Column:
            self.setColumnHidden(column, column in HIDDEN_AT_FIRST)
            header.moveSection(header.visualIndex(column), int(column))
        self.take_usual_widths()

    def take_usual_widths(self) -> None:
        """As wide as columns usually need; until somebody changes one, they share what is left over."""
        self.shares_rest = True
        self._share_width()

    def _share_width(self) -> None:
        letter = self.fontMetrics().averageCharWidth()
        taken = sum(letters for column, letters in _WIDTHS.items() if not self.isColumnHidden(column)) * letter
        self._is_sharing = True
        for column, letters in _WIDTHS.items():
            rest = max(0, self.viewport().width() - taken) * _SHARES_OF_REST.get(column, 0)
            self.setColumnWidth(column, letters * letter + int(rest))
        self._is_sharing = False

    def show_column(self, column: Column, shown: bool) -> None:
        self._is_sharing = True  # hiding makes it 0 wide, which is nobody's choice of a width
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
        """Rows that are selected, from above."""
        found: set[int] = set()
        for stretch in cast(Iterable[QItemSelectionRange], self.selectionModel().selection()):
            found.update(range(stretch.top(), stretch.bottom() + 1))
        return sorted(found)

    def select_entries(self, entry_ids: Iterable[str], *, current: str = "") -> None:
        """Select these and nothing else; those that are not shown are passed over."""
        selection, last = QItemSelection(), self.runs_model.columnCount() - 1
        found = (self.runs_model.position_of(entry_id) for entry_id in entry_ids)
        for top, bottom in pieces(sorted({position for position in found if position is not None})):
            selection.select(self.runs_model.index(top, 0), self.runs_model.index(bottom, last))
        flags = QItemSelectionModel.SelectionFlag
        self.selectionModel().select(selection, flags.ClearAndSelect)
        position = self.runs_model.position_of(current) if current else None
        if position is not None:
            cell = self.runs_model.index(position, Column.NAME)
            self.selectionModel().setCurrentIndex(cell, flags.NoUpdate)

    def _selection_changed(self) -> None:
        self.selected_ids_changed.emit()

    # ------------------------------------------------------------------ what is on the screen

    def positions_on_screen(self) -> range:
        """Rows that can be seen now."""
        count = self.runs_model.rowCount()
        if not count:
            return range(0)
        first, last = self.rowAt(0), self.rowAt(self.viewport().height() - 1)
        return range(max(0, first), (last if last >= 0 else count - 1) + 1)

    def bring_into_view(self, position: int) -> None:
        self.executeDelayedItemsLayout()
        self.scrollTo(self.runs_model.index(position, Column.NAME))

    def _remember(self) -> None:
        self._kept, self._was_reset = _Place(self), False
        self.runs_model.is_better_reset = len(self._kept.selected) > _MANY

    def _note_reset(self) -> None:
        self._was_reset = True

    def _restore(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            if self._was_reset:  # Qt forgets the selection then, and tells nobody
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
        if not index.isValid() or index.column() != Column.NAME:
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
    """What was selected, and which row stood at the top."""

    def __init__(self, view: RunsView) -> None:
        self._view = view
        model = view.runs_model
        self.selected = [model.entry_at(position).entry_id for position in view.selected_positions()]
        current = view.currentIndex()
        self.current = model.entry_at(current.row()).entry_id if current.isValid() else ""
        self._top, self._offset = "", 0
        position = view.rowAt(0)
        # At the very top one stays there and sees what is new.
        if position >= 0 and view.verticalScrollBar().value() > 0:
            self._top, self._offset = model.entry_at(position).entry_id, view.rowViewportPosition(position)

    def scroll_back(self) -> None:
        model, bar = self._view.runs_model, self._view.verticalScrollBar()
        if not self._top:
            return
        if (position := model.position_of(self._top)) is not None:
            self._view.executeDelayedItemsLayout()  # the bar does not know yet how many rows there are
            self._view.updateGeometries()
            bar.setValue(self._view.verticalHeader().sectionPosition(position) - self._offset)
        elif self.current and (position := model.position_of(self.current)) is not None:
            self._view.bring_into_view(position)
