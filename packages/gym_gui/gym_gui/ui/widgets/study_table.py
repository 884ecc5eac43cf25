"""The trials of a study as a table: parameters are columns; sorted and filtered in the model, fluent at 10,000 rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from PySide6.QtCore import (
    QAbstractTableModel,
    QCoreApplication,
    QItemSelectionModel,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    Qt,
    Signal,
)
from PySide6.QtGui import QColor, QFont, QKeyEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView, QWidget

from gym_gui.services.analytics.studies import Trial, TrialState
from gym_gui.ui import theme
from gym_gui.ui.presenters.study_rows import STATE, STATE_SIGNS, Rows, StudyRows, TrialFilter
from gym_gui.ui.workers.words import PRESENTERS

Index = QModelIndex | QPersistentModelIndex

# Qt asks with plain numbers; comparing those is several times cheaper than comparing with the enum.
_DISPLAY = int(Qt.ItemDataRole.DisplayRole)
_TOOLTIP = int(Qt.ItemDataRole.ToolTipRole)
_ALIGNMENT = int(Qt.ItemDataRole.TextAlignmentRole)
_FOREGROUND = int(Qt.ItemDataRole.ForegroundRole)
_FONT = int(Qt.ItemDataRole.FontRole)
_RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
_NOWHERE = QModelIndex()
_COLOURS = {
    TrialState.RUNNING: "accent", TrialState.COMPLETE: "good", TrialState.PRUNED: "warning", TrialState.FAIL: "bad",
    TrialState.WAITING: "muted",
}  # fmt: skip


class StudyModel(QAbstractTableModel):
    """Rows of a `StudyRows`, those that fit the filter, in the order of one column."""

    arranged = Signal(int, int)  # shown, all

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.rows: StudyRows | None = None
        self.filter = TrialFilter()
        self.sort_key, self.descending = "", False
        self._shown: Rows = np.empty(0, np.intp)
        self._bold = QFont()

    # ------------------------------------------------------------------ what is shown

    def show_rows(self, rows: StudyRows | None) -> None:
        """Another study, or a newer reading of the same one; order and filter stay where they fit."""
        keys = {column.key for column in rows.columns} if rows is not None else set()
        if rows is not None and self.sort_key not in keys:
            self.sort_key, self.descending = rows.best_first()
        self.beginResetModel()
        self.rows = rows
        self._arrange()
        self.endResetModel()
        self._tell()

    def set_filter(self, wanted: TrialFilter) -> None:
        if wanted != self.filter:
            self.filter = wanted
            self.beginResetModel()
            self._arrange()
            self.endResetModel()
            self._tell()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        if self.rows is None or not 0 <= column < len(self.rows.columns):
            return
        wanted = self.rows.columns[column].key, order == Qt.SortOrder.DescendingOrder
        if wanted != (self.sort_key, self.descending):
            self.sort_key, self.descending = wanted
            self.beginResetModel()
            self._arrange()
            self.endResetModel()

    def _arrange(self) -> None:
        if self.rows is None:
            self._shown = np.empty(0, np.intp)
        else:
            self._shown = self.rows.arranged(self.filter, self.sort_key, descending=self.descending)

    def _tell(self) -> None:
        self.arranged.emit(len(self._shown), len(self.rows.study) if self.rows is not None else 0)

    @property
    def sort_column(self) -> int:
        """Where the column stands that they are sorted by; -1: nowhere."""
        columns = self.rows.columns if self.rows is not None else ()
        return next((place for place, column in enumerate(columns) if column.key == self.sort_key), -1)

    def trial_at(self, position: int) -> Trial | None:
        if self.rows is None or not 0 <= position < len(self._shown):
            return None
        return self.rows.study.trials[int(self._shown[position])]

    def position_of(self, number: int) -> int | None:
        """Where a trial is shown; None when the filter hides it."""
        row = self.rows.study.row_of(number) if self.rows is not None else None
        if row is None:
            return None
        found = np.flatnonzero(self._shown == row)
        return int(found[0]) if len(found) else None

    # ------------------------------------------------------------------ what Qt asks

    def rowCount(self, parent: Index = _NOWHERE) -> int:
        return 0 if parent.isValid() else len(self._shown)

    def columnCount(self, parent: Index = _NOWHERE) -> int:
        return 0 if parent.isValid() or self.rows is None else len(self.rows.columns)

    def data(self, index: Index, role: int = _DISPLAY) -> Any:
        rows = self.rows
        if rows is None or not index.isValid():
            return None
        column = rows.columns[index.column()]
        if role == _ALIGNMENT:
            return _RIGHT if column.is_right else _LEFT
        row = int(self._shown[index.row()])
        if role == _DISPLAY:
            text = rows.text(row, column.key)
            if column.key != STATE:
                return text
            return f"{STATE_SIGNS[rows.study.trials[row].state]} {QCoreApplication.translate(PRESENTERS, text)}"
        if role == _FOREGROUND and column.key == STATE:
            return QColor(getattr(theme.colours(), _COLOURS[rows.study.trials[row].state]))
        if role == _FONT and rows.is_best(row):
            self._bold.setBold(True)
            return self._bold
        if role == _TOOLTIP:
            trial = rows.study.trials[row]
            reason = trial.user_attrs.get("mosaic_reason") if trial.state is not TrialState.COMPLETE else ""
            return str(reason) if column.key == STATE and reason else rows.text(row, column.key)
        return None

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = _DISPLAY) -> Any:
        if self.rows is None or orientation != Qt.Orientation.Horizontal:
            return None
        if not 0 <= section < len(self.rows.columns):
            return None
        column = self.rows.columns[section]
        if role in (_DISPLAY, _TOOLTIP):
            title = QCoreApplication.translate(PRESENTERS, column.title) if column.is_translated else column.title
            # Qt's own mark would be drawn over a title that stands at the right.
            mark = (" ▼" if self.descending else " ▲") if column.key == self.sort_key and role == _DISPLAY else ""
            return f"{title}{mark}"
        if role == _ALIGNMENT:
            return _RIGHT if column.is_right else _LEFT
        return None


class StudyTable(QTableView):
    """Shows a `StudyModel`; the chosen trial stays chosen whatever the model does."""

    trial_chosen = Signal(object)  # Trial, or None
    trial_opened = Signal(object)  # Trial: Return or double click

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.trials = StudyModel(self)
        self._chosen: int | None = None
        self._widths: dict[str, int] = {}
        """Column → width, also of columns that are not shown now"""
        self._place = 0, 0
        self.setObjectName("study_table")
        self.setAccessibleName(self.tr("Trials"))
        self.setModel(self.trials)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setAlternatingRowColors(True)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setTabKeyNavigation(False)
        self.setCornerButtonEnabled(False)
        lines = self.verticalHeader()
        lines.hide()
        lines.setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        lines.setDefaultSectionSize(round(self.fontMetrics().height() * 1.6))
        header = self.horizontalHeader()
        header.setObjectName("study_header")
        header.setSectionsMovable(True)
        header.setHighlightSections(False)
        header.setSectionsClickable(True)
        header.setSortIndicatorShown(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.sectionClicked.connect(self._sort_by)
        # The header asks, for each column, whether all of its cells are selected. It need not know.
        header.setSelectionModel(QItemSelectionModel(self.trials, self))
        self.trials.modelAboutToBeReset.connect(self._remember)
        self.trials.modelReset.connect(self._restore)
        self.selectionModel().currentRowChanged.connect(lambda index: self._choose(index.row()))
        self.doubleClicked.connect(lambda index: self._open(index.row()))

    @property
    def chosen(self) -> Trial | None:
        """The trial that is chosen, also while the filter hides it."""
        rows = self.trials.rows
        if rows is None or self._chosen is None:
            return None
        row = rows.study.row_of(self._chosen)
        return None if row is None else rows.study.trials[row]

    def choose(self, number: int | None) -> None:
        """Choose a trial (from a plot, say) and bring it into view."""
        self._chosen = number
        self._select_chosen()
        position = self.trials.position_of(number) if number is not None else None
        if position is not None:
            self.scrollTo(self.trials.index(position, 0))
        self.trial_chosen.emit(self.chosen)

    def _choose(self, position: int) -> None:
        trial = self.trials.trial_at(position)
        if trial is not None and trial.number != self._chosen:
            self._chosen = trial.number
            self.trial_chosen.emit(trial)

    def _open(self, position: int) -> None:
        if (trial := self.trials.trial_at(position)) is not None:
            self.trial_opened.emit(trial)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.currentIndex().isValid():
            self._open(self.currentIndex().row())
            return
        super().keyPressEvent(event)

    # ------------------------------------------------------------------ order, place, widths

    def _sort_by(self, section: int) -> None:
        same = section == self.trials.sort_column
        descending = not self.trials.descending if same else False
        order = Qt.SortOrder.DescendingOrder if descending else Qt.SortOrder.AscendingOrder
        self.trials.sort(section, order)

    def _remember(self) -> None:
        """Before everything is shown anew: how wide the columns are, and where one looks."""
        columns = self.trials.rows.columns if self.trials.rows is not None else ()
        self._widths |= {column.key: self.columnWidth(place) for place, column in enumerate(columns)}
        self._place = self.horizontalScrollBar().value(), self.verticalScrollBar().value()

    def _restore(self) -> None:
        """After everything was shown anew: the same trial chosen, the same widths, the same place."""
        letter = self.fontMetrics().averageCharWidth()
        columns = self.trials.rows.columns if self.trials.rows is not None else ()
        for place, column in enumerate(columns):
            self.setColumnWidth(place, self._widths.get(column.key, column.letters * letter))
        self._select_chosen()
        self.executeDelayedItemsLayout()  # the bars do not know yet how many rows there are
        self.updateGeometries()
        for bar, value in zip((self.horizontalScrollBar(), self.verticalScrollBar()), self._place, strict=True):
            bar.setValue(value)

    def _select_chosen(self) -> None:
        position = self.trials.position_of(self._chosen) if self._chosen is not None else None
        if position is None:
            self.selectionModel().clear()
        else:
            flags = QItemSelectionModel.SelectionFlag
            self.selectionModel().setCurrentIndex(self.trials.index(position, 0), flags.ClearAndSelect | flags.Rows)
