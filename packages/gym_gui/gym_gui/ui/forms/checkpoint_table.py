"""A table of checkpoints to choose from, with a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.manifest import POLICY_SUFFIX
from PySide6.QtCore import QAbstractTableModel, QCoreApplication, QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QHeaderView, QLabel, QLineEdit, QPushButton, QTableView, QVBoxLayout, QWidget

from gym_gui.ui.background import Background
from gym_gui.ui.widgets.parts import ask_for_file, fill, named
from gym_gui.ui.widgets.tables import show_as_rows
from gym_gui.ui.workers.checkpoints import FoundCheckpoint, checkpoint_at
from gym_gui.wording.formats import count, moment, quantity
from gym_gui.wording.run_view import short_id

Index = QModelIndex | QPersistentModelIndex
_NO_PARENT = QModelIndex()


class CheckpointModel(QAbstractTableModel):
    """One row for each checkpoint that matches the filter."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._all: tuple[FoundCheckpoint, ...] = ()
        self._shown: list[FoundCheckpoint] = []
        self._filter = ""
        self._order: tuple[int, bool] = (4, True)
        self._titles = (
            self.tr("Run"),
            self.tr("Algorithm"),
            self.tr("Environment"),
            self.tr("Step"),
            self.tr("Date"),
            self.tr("Return"),
            self.tr("Kind"),
        )

    def set_checkpoints(self, checkpoints: Sequence[FoundCheckpoint]) -> None:
        self._all = tuple(checkpoints)
        self._arrange()

    def set_filter(self, text: str) -> None:
        self._filter = text.lower()
        self._arrange()

    def checkpoint(self, row: int) -> FoundCheckpoint | None:
        return self._shown[row] if 0 <= row < len(self._shown) else None

    def row_of(self, path: Path) -> int:
        return next((row for row, one in enumerate(self._shown) if one.path == path), -1)

    @property
    def total(self) -> int:
        return len(self._all)

    def rowCount(self, parent: Index = _NO_PARENT) -> int:
        return 0 if parent.isValid() else len(self._shown)

    def columnCount(self, parent: Index = _NO_PARENT) -> int:
        return 0 if parent.isValid() else len(self._titles)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return self._titles[section]
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        one = self._shown[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return _TEXTS[index.column()](one)
        if role == Qt.ItemDataRole.TextAlignmentRole and index.column() in (3, 5):
            return Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        if role == Qt.ItemDataRole.ToolTipRole:
            return str(one.path)
        return None

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        self._order = (column, order is Qt.SortOrder.DescendingOrder)
        self._arrange()

    def _arrange(self) -> None:
        self.beginResetModel()
        terms = self._filter.split()
        self._shown = [one for one in self._all if all(word in _searched(one) for word in terms)]
        column, descending = self._order
        if column >= 0:
            self._shown.sort(key=_KEYS[column], reverse=descending)
        self.endResetModel()


def _searched(one: FoundCheckpoint) -> str:
    return f"{one.run_id} {one.algo} {one.env_id} {one.kind} {one.step}".lower()


_TEXTS: tuple[Callable[[FoundCheckpoint], str], ...] = (
    lambda one: short_id(one.run_id) if one.run_id else one.path.name,
    lambda one: one.algo,
    lambda one: one.env_id,
    lambda one: "" if one.weights_only else count(one.step),
    lambda one: moment(one.when),
    lambda one: "" if one.episodic_return is None else quantity(one.episodic_return),
    lambda one: QCoreApplication.translate("forms", "weights") if one.weights_only else one.kind,
)
_KEYS: tuple[Callable[[FoundCheckpoint], Any], ...] = (
    lambda one: one.run_id,
    lambda one: one.algo,
    lambda one: one.env_id,
    lambda one: one.step,
    lambda one: one.when,
    lambda one: float("-inf") if one.episodic_return is None else one.episodic_return,
    lambda one: one.kind,
)
_WIDTHS = (12, 14, 14, 9, 21, 8, 6)
"""In characters"""


class CheckpointTable(QWidget):
    """The table with a filter above it, and a button to open other folders or files."""

    chosen = Signal(object)  # FoundCheckpoint | None: the selection changed
    named = Signal(object)  # FoundCheckpoint: opened with `choose_path`

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._background = background
        self.current: FoundCheckpoint | None = None
        self.model = CheckpointModel(self)
        self.view = show_as_rows(named(QTableView(self), "checkpoints", self.tr("Checkpoints")))
        self.view.setModel(self.model)
        self.view.setSortingEnabled(True)
        self.view.sortByColumn(4, Qt.SortOrder.DescendingOrder)
        header = self.view.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        for column, width in enumerate(_WIDTHS):
            header.resizeSection(column, self.fontMetrics().averageCharWidth() * (width + 2))
        header.setStretchLastSection(True)
        self._search = named(QLineEdit(self), "checkpoint_search", self.tr("Filter checkpoints"))
        self._search.setPlaceholderText(self.tr("Filter: run, algorithm, environment, step"))
        self._search.setClearButtonEnabled(True)
        self._search.textChanged.connect(self._filter)
        other = named(QPushButton(self.tr("&Other file …"), self, autoDefault=False), "other_checkpoint")
        other.setAccessibleName(self.tr("Open a checkpoint that is not in the table"))
        other.clicked.connect(self._choose_file)
        self._state = named(QLabel(self, wordWrap=True), "checkpoint_state", role="caption")
        top = fill(QHBoxLayout(), (self._search, 1), other)
        fill(QVBoxLayout(self), top, (self.view, 1), self._state, margins=0)
        self.view.selectionModel().currentRowChanged.connect(self._on_row)
        self._state.setText(self.tr("Searching for checkpoints …"))

    def set_checkpoints(self, checkpoints: Sequence[FoundCheckpoint], *, select: Path | None = None) -> None:
        """Show these, and select the one at this path or the first."""
        self.model.set_checkpoints(checkpoints)
        self._state.setText(
            self.tr("{count} checkpoints").format(count=len(checkpoints))
            if checkpoints
            else self.tr("No run of this home has left a checkpoint yet.")
        )
        if checkpoints:
            row = self.model.row_of(select) if select is not None else 0
            self.view.selectRow(max(row, 0))
        else:
            self._choose(None)

    def set_message(self, text: str) -> None:
        self._state.setText(text)

    def select(self, checkpoint: FoundCheckpoint) -> None:
        """Select a checkpoint, adding it to the table if necessary."""
        if self.model.row_of(checkpoint.path) < 0:
            self.model.set_checkpoints((checkpoint, *self.model._all))
        self.view.selectRow(self.model.row_of(checkpoint.path))

    def choose_path(self, path: Path) -> None:
        """Add and select a folder or file that the user named."""

        def failed(error: Exception) -> None:
            if not isinstance(error, OSError | ValueError):
                raise error
            self._state.setText(str(error))

        def found(checkpoint: FoundCheckpoint) -> None:
            self.select(checkpoint)
            self.named.emit(checkpoint)

        self._background.run(lambda: checkpoint_at(path), owner=self, done=found, failed=failed)

    def _choose_file(self) -> None:
        kinds = self.tr("Checkpoints and weights (state.json *{suffix})").format(suffix=POLICY_SUFFIX)
        kinds = f"{kinds};;{self.tr('All files')} (*)"
        ask_for_file(self, self.tr("Choose a checkpoint"), kinds, self.choose_path)

    def _filter(self, text: str) -> None:
        kept = self.current
        self.model.set_filter(text)
        if kept is not None and (row := self.model.row_of(kept.path)) >= 0:
            self.view.selectRow(row)
        self._state.setText(
            self.tr("{shown} of {total} checkpoints").format(shown=self.model.rowCount(), total=self.model.total)
        )

    def _on_row(self, index: QModelIndex, before: QModelIndex) -> None:
        if index.isValid():
            self._choose(self.model.checkpoint(index.row()))

    def _choose(self, checkpoint: FoundCheckpoint | None) -> None:
        if checkpoint != self.current:
            self.current = checkpoint
            self.chosen.emit(checkpoint)
