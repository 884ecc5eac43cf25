"""A table of a few dozen rows that is filled at once: read only, rows are chosen, one column takes what is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem, QWidget

_KEY = Qt.ItemDataRole.UserRole


@dataclass(frozen=True)
class ColumnSpec:
    title: str
    width: int = 12
    """In widths of the letter m"""
    right: bool = False


@dataclass(frozen=True)
class Row:
    key: str
    cells: Sequence[str]
    tip: str = ""


class RowsTable(QTableWidget):
    """Rows have keys, so that a refilled table keeps what was chosen."""

    def __init__(
        self, columns: Sequence[ColumnSpec], *, name: str, accessible: str, stretch: int | None = None,
        multiple: bool = False, parent: QWidget | None = None,
    ) -> None:  # fmt: skip
        super().__init__(0, len(columns), parent)
        self._columns = columns
        self.setObjectName(name)
        self.setAccessibleName(accessible)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(
            QAbstractItemView.SelectionMode.ExtendedSelection if multiple
            else QAbstractItemView.SelectionMode.SingleSelection
        )  # fmt: skip
        self.setAlternatingRowColors(True)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.setWordWrap(False)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(round(self.fontMetrics().height() * 2))
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        unit = self.fontMetrics().horizontalAdvance("m")
        for place, column in enumerate(columns):
            header.setSectionResizeMode(place, QHeaderView.ResizeMode.Interactive)
            header.resizeSection(place, unit * column.width)
            title = QTableWidgetItem(column.title)
            title.setTextAlignment(_alignment(column))
            self.setHorizontalHeaderItem(place, title)
        header.setSectionResizeMode(len(columns) - 1 if stretch is None else stretch, QHeaderView.ResizeMode.Stretch)

    def fill(self, rows: Iterable[Row]) -> None:
        """Replace everything; what was chosen stays chosen if it is still there."""
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
        """Keys of the chosen rows, in their order."""
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

    def text_at(self, row: int, column: int) -> str:
        item = self.item(row, column)
        return "" if item is None else item.text()


def _alignment(column: ColumnSpec) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if column.right else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter
