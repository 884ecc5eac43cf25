"""The legend of charts: a box for each line to hide it, its colour, its name, and its value under the crosshair.

Choosing a line brings it forward in every chart: colours repeat after eight, the chosen one is never mistaken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QItemSelectionModel, QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtWidgets import QAbstractItemView, QHBoxLayout, QHeaderView, QPushButton, QTableView, QVBoxLayout, QWidget

from gym_gui.ui import theme
from gym_gui.ui.presenters.charts import Entry

Index = QModelIndex | QPersistentModelIndex
_ROOT = QModelIndex()
_LINE, _VALUE = 0, 1
_Role = Qt.ItemDataRole


class LegendModel(QAbstractTableModel):
    """Entries of figures; values are looked up when a row is painted, so that a thousand cost nothing."""

    hidden_changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.entries: list[Entry] = []
        self.hidden: set[str] = set()
        self.value_of: Callable[[str], str] = lambda key: ""
        """The text beside an entry's name"""

    def show_entries(self, entries: Sequence[Entry]) -> None:
        """Other lines, or the same grown longer."""
        same = [(entry.key, entry.label, entry.short, entry.colour) for entry in entries] == [
            (entry.key, entry.label, entry.short, entry.colour) for entry in self.entries
        ]
        if same:
            self.entries = list(entries)
            self.refresh_values()
            return
        self.beginResetModel()
        self.entries = list(entries)
        self.endResetModel()

    def refresh_values(self) -> None:
        if self.entries:
            self.dataChanged.emit(self.index(0, _VALUE), self.index(len(self.entries) - 1, _VALUE))

    def set_all(self, shown: bool) -> None:
        self.hidden = set() if shown else {entry.key for entry in self.entries}
        if self.entries:
            self.dataChanged.emit(self.index(0, _LINE), self.index(len(self.entries) - 1, _LINE))
        self.hidden_changed.emit()

    def row_of(self, key: str) -> int | None:
        return next((row for row, entry in enumerate(self.entries) if entry.key == key), None)

    # -- what Qt asks

    def rowCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self.entries)

    def columnCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else 2

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = _Role.DisplayRole) -> Any:
        if orientation is Qt.Orientation.Horizontal and role == _Role.DisplayRole:
            return (self.tr("Line"), self.tr("Value"))[section]
        return None

    def flags(self, index: Index) -> Qt.ItemFlag:
        usual = Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable
        return usual | Qt.ItemFlag.ItemIsUserCheckable if index.column() == _LINE else usual

    def data(self, index: Index, role: int = _Role.DisplayRole) -> Any:
        entry = self.entries[index.row()]
        if index.column() == _VALUE:
            if role == _Role.DisplayRole:
                return self.value_of(entry.key)
            if role == _Role.TextAlignmentRole:
                return Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            return None
        if role == _Role.DisplayRole:
            return entry.short
        if role == _Role.ToolTipRole:
            runs = len(entry.run_ids)
            return f"{entry.label}\n{self.tr('{0} runs').format(runs)}" if runs > 1 else entry.label
        if role == _Role.CheckStateRole:
            return Qt.CheckState.Unchecked if entry.key in self.hidden else Qt.CheckState.Checked
        if role == _Role.DecorationRole:
            return theme.colours().curve(entry.colour)
        return None

    def setData(self, index: Index, value: Any, role: int = _Role.EditRole) -> bool:
        if role != _Role.CheckStateRole:
            return False
        key = self.entries[index.row()].key
        if Qt.CheckState(value) == Qt.CheckState.Checked:
            self.hidden.discard(key)
        else:
            self.hidden.add(key)
        self.dataChanged.emit(index, index)
        self.hidden_changed.emit()
        return True


class ChartLegend(QWidget):
    """The table and two buttons for all of it."""

    look_changed = Signal()
    """Lines were hidden or shown, or another one was chosen"""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("chart_legend")
        self.model = LegendModel(self)
        self.view = QTableView()
        self.view.setObjectName("chart_legend_table")
        self.view.setAccessibleName(self.tr("Lines of the charts; Space hides one"))
        self.view.setModel(self.model)
        self.view.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.view.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.view.setShowGrid(False)
        self.view.setTabKeyNavigation(False)
        self.view.setWordWrap(False)
        self.view.verticalHeader().hide()
        self.view.verticalHeader().setDefaultSectionSize(round(self.fontMetrics().height() * 1.5))
        header = self.view.horizontalHeader()
        header.setHighlightSections(False)
        header.setSectionResizeMode(_LINE, QHeaderView.ResizeMode.Stretch)
        header.setSectionResizeMode(_VALUE, QHeaderView.ResizeMode.Interactive)
        header.resizeSection(_VALUE, self.fontMetrics().averageCharWidth() * 9)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        every = QPushButton(self.tr("Show all"))
        every.setObjectName("legend_show_all")
        every.setAccessibleName(self.tr("Show all lines"))
        every.clicked.connect(lambda: self.model.set_all(True))
        none = QPushButton(self.tr("Hide all"))
        none.setObjectName("legend_hide_all")
        none.setAccessibleName(self.tr("Hide all lines"))
        none.clicked.connect(lambda: self.model.set_all(False))
        self._buttons = QWidget()
        foot = QHBoxLayout(self._buttons)
        foot.setContentsMargins(0, 0, 0, 0)
        foot.addWidget(every)
        foot.addWidget(none)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addWidget(self.view, 1)
        layout.addWidget(self._buttons)
        self.setMinimumWidth(self.fontMetrics().averageCharWidth() * 22)
        self.model.hidden_changed.connect(self.look_changed)
        self.view.selectionModel().selectionChanged.connect(lambda *_: self.look_changed.emit())

    def show_entries(self, entries: Mapping[str, Entry]) -> None:
        chosen = self.chosen
        self.model.show_entries(list(entries.values()))
        self._buttons.setVisible(len(entries) > 2)
        if chosen and chosen != self.chosen:
            self.choose(chosen)

    @property
    def hidden(self) -> frozenset[str]:
        return frozenset(self.model.hidden)

    @property
    def chosen(self) -> str:
        """The key of the line that was brought forward; empty when none was."""
        rows = self.view.selectionModel().selectedRows()
        return self.model.entries[rows[0].row()].key if rows and rows[0].row() < len(self.model.entries) else ""

    def choose(self, key: str) -> None:
        """Bring a line forward; empty: none."""
        row = self.model.row_of(key) if key else None
        if row is None:
            self.view.clearSelection()
        else:
            flags = QItemSelectionModel.SelectionFlag
            self.view.selectionModel().select(self.model.index(row, 0), flags.ClearAndSelect | flags.Rows)
            self.view.scrollTo(self.model.index(row, 0))

    def forget_hidden(self) -> None:
        """Other lines than before: nothing is hidden among them."""
        self.model.hidden.clear()
        self.view.clearSelection()
