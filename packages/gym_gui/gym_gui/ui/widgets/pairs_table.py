"""Names and values, one pair a row; what does not fit is in the tool tip, and everything can be copied."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem, QWidget


class PairsTable(QTableWidget):
    """Two columns, read only."""

    def __init__(self, name_title: str, value_title: str, *, accessible: str, parent: QWidget | None = None) -> None:
        super().__init__(0, 2, parent)
        self.setHorizontalHeaderLabels([name_title, value_title])
        self.setAccessibleName(accessible)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setAlternatingRowColors(True)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)  # Tab leaves it; arrows move within
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(round(self.fontMetrics().height() * 1.5))
        header = self.horizontalHeader()
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Interactive)
        header.setStretchLastSection(True)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        header.resizeSection(0, self.fontMetrics().horizontalAdvance("m") * 14)
        copy = QShortcut(QKeySequence(QKeySequence.StandardKey.Copy), self)
        copy.setContext(Qt.ShortcutContext.WidgetShortcut)
        copy.activated.connect(self._copy)

    def show_pairs(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Replace what is shown; rows that stay keep their place, so that eyes do too."""
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
        """What it shows."""
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
