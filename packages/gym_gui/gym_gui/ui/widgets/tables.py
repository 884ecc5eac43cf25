"""Read-only tables: rows with keys, and pairs of names and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView, QTableWidget, QTableWidgetItem, QWidget

from gym_gui.ui.widgets.parts import named

_KEY = Qt.ItemDataRole.UserRole


T = TypeVar("T", bound=QTableView)


def show_as_rows(view: T, *, line_height: float = 1.6, multiple: bool = False, striped: bool = True) -> T:
    """Set up a read-only table: rows are selected, Tab leaves it; `line_height` is in heights of the font."""
    modes = QAbstractItemView.SelectionMode
    view.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
    view.setSelectionMode(modes.ExtendedSelection if multiple else modes.SingleSelection)
    view.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
    view.setAlternatingRowColors(striped)
    view.setShowGrid(False)
    view.setTabKeyNavigation(False)
    view.setWordWrap(False)
    view.verticalHeader().hide()
    view.verticalHeader().setDefaultSectionSize(round(view.fontMetrics().height() * line_height))
    view.horizontalHeader().setHighlightSections(False)
    view.horizontalHeader().setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
    return view


@dataclass(frozen=True)
class ColumnSpec:
    title: str
    width: int = 12
    """In widths of the character m"""
    right: bool = False


@dataclass(frozen=True)
class TableRow:
    key: str
    cells: Sequence[str]
    tip: str = ""


class RowsTable(QTableWidget):
    """A table whose rows have keys, so that refilling keeps the selection."""

    def __init__(
        self,
        columns: Sequence[ColumnSpec],
        *,
        name: str,
        accessible: str,
        stretch: int | None = None,
        multiple: bool = False,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(0, len(columns), parent)
        self._columns = columns
        named(self, name, accessible)
        show_as_rows(self, line_height=2, multiple=multiple)
        header = self.horizontalHeader()
        unit = self.fontMetrics().horizontalAdvance("m")
        for place, column in enumerate(columns):
            header.setSectionResizeMode(place, QHeaderView.ResizeMode.Interactive)
            header.resizeSection(place, unit * column.width)
            title = QTableWidgetItem(column.title)
            title.setTextAlignment(_alignment(column))
            self.setHorizontalHeaderItem(place, title)
        header.setSectionResizeMode(len(columns) - 1 if stretch is None else stretch, QHeaderView.ResizeMode.Stretch)

    def fill(self, rows: Iterable[TableRow]) -> None:
        """Replace all rows; selected rows that still exist stay selected."""
        chosen = set(self.chosen())
        self.blockSignals(True)
        self.clearSelection()
        found = list(rows)
        self.setRowCount(len(found))
        for place, row in enumerate(found):
            for column, text in enumerate(row.cells):
                item = QTableWidgetItem(text)
                item.setToolTip(row.tip or text)
                item.setTextAlignment(_alignment(self._columns[column]))
                if column == 0:
                    item.setData(_KEY, row.key)
                self.setItem(place, column, item)
                item.setSelected(row.key in chosen)
        self.blockSignals(False)
        self.itemSelectionChanged.emit()

    def chosen(self) -> list[str]:
        """Return the keys of the selected rows in their order."""
        rows = sorted({index.row() for index in self.selectedIndexes()})
        return [key for row in rows if (key := self.key_of(row)) is not None]

    def key_of(self, row: int) -> str | None:
        item = self.item(row, 0)
        return None if item is None else str(item.data(_KEY))

    def row_of(self, key: str) -> int | None:
        return next((row for row in range(self.rowCount()) if self.key_of(row) == key), None)

    def set_cell(self, key: str, column: int, text: str) -> None:
        row = self.row_of(key)
        item = None if row is None else self.item(row, column)
        if item is not None:
            item.setText(text)


def _alignment(column: ColumnSpec) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if column.right else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter


class PairsTable(QTableWidget):
    """A read-only table of names and values."""

    def __init__(self, name_title: str, value_title: str, *, accessible: str, parent: QWidget | None = None) -> None:
        super().__init__(0, 2, parent)
        self.setHorizontalHeaderLabels([name_title, value_title])
        self.setAccessibleName(accessible)
        show_as_rows(self, line_height=1.5, multiple=True)
        header = self.horizontalHeader()
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Interactive)
        header.setStretchLastSection(True)
        header.resizeSection(0, self.fontMetrics().horizontalAdvance("m") * 14)
        copy = QShortcut(QKeySequence(QKeySequence.StandardKey.Copy), self)
        copy.setContext(Qt.ShortcutContext.WidgetShortcut)
        copy.activated.connect(self._copy)

    def show_pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Replace the pairs; unchanged rows keep their position."""
        rows = list(pairs)
        self.setRowCount(len(rows))
        for row, pair in enumerate(rows):
            for column, text in enumerate(pair):
                item = self.item(row, column)
                if item is None:
                    item = QTableWidgetItem()
                    self.setItem(row, column, item)
                if item.text() != text:
                    item.setText(text)
                    item.setToolTip(text)

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs that are shown."""
        found = []
        for row in range(self.rowCount()):
            name, value = self.item(row, 0), self.item(row, 1)
            if name is not None and value is not None:
                found.append((name.text(), value.text()))
        return found

    def _copy(self) -> None:
        chosen = sorted({index.row() for index in self.selectedIndexes()})
        everything = self.pairs()
        QGuiApplication.clipboard().setText("\n".join("\t".join(everything[row]) for row in chosen))
