"""A study: its trials in a table with filters, a detail panel with the best or selected trial, and plots."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from PySide6.QtCore import (
    QAbstractTableModel,
    QCoreApplication,
    QItemSelectionModel,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QPoint,
    QSignalBlocker,
    Qt,
    QTimer,
    Signal,
)
from PySide6.QtGui import QAction, QColor, QFont, QGuiApplication, QKeyEvent, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QFrame,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QLineEdit,
    QMenu,
    QScrollArea,
    QSizePolicy,
    QTableView,
    QTabWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.analytics.studies.importances import BEST_SHARE, FEWEST_TRIALS, METHOD
from gym_gui.services.analytics.studies.study import Distribution, Kind, Study, Trial, TrialState
from gym_gui.ui import theme
from gym_gui.ui.background import defer
from gym_gui.ui.studies.plots import HistoryPlot, ImportanceBars, ParallelPlot, SlicePlot, StudyPlot
from gym_gui.ui.studies.rows import (
    OBJECTIVE,
    STATE,
    STATE_LABELS,
    STATE_SIGNS,
    Rows,
    StudyColumn,
    StudyReading,
    StudyRows,
    TrialFilter,
    number_text,
    parallel_of,
    parameter_text,
)
from gym_gui.ui.widgets.parts import caption, fill, named, push_button, search_field, split
from gym_gui.ui.widgets.tables import PairsTable, show_as_rows
from gym_gui.ui.workers.translation import PRESENTERS
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

Index = QModelIndex | QPersistentModelIndex
_STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING, TrialState.WAITING)
"""In the order in which they are listed"""


def _state_label(state: TrialState) -> str:
    return QCoreApplication.translate(PRESENTERS, STATE_LABELS[state])


def _title_of(column: StudyColumn) -> str:
    return QCoreApplication.translate(PRESENTERS, column.title) if column.is_translated else column.title


# ---------------------------------------------------------------------- the table

# Qt asks with plain numbers; comparing those is several times cheaper than comparing with the enum.
_DISPLAY = int(Qt.ItemDataRole.DisplayRole)
_TOOLTIP = int(Qt.ItemDataRole.ToolTipRole)
_ALIGNMENT = int(Qt.ItemDataRole.TextAlignmentRole)
_FOREGROUND = int(Qt.ItemDataRole.ForegroundRole)
_FONT = int(Qt.ItemDataRole.FontRole)
_RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
_ROOT = QModelIndex()
_COLORS = {
    TrialState.RUNNING: "accent",
    TrialState.COMPLETE: "good",
    TrialState.PRUNED: "warning",
    TrialState.FAIL: "bad",
    TrialState.WAITING: "muted",
}


class StudyModel(QAbstractTableModel):
    """The rows of a `StudyRows` that match the filter, sorted by one column; fluent at 10,000 rows."""

    arranged = Signal(int, int)  # shown, all

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.rows: StudyRows | None = None
        self.filter = TrialFilter()
        self.sort_key, self.descending = "", False
        self._shown: Rows = np.empty(0, np.intp)
        self._bold = QFont()
        self._bold.setBold(True)

    @property
    def columns(self) -> Sequence[StudyColumn]:
        return self.rows.columns if self.rows is not None else ()

    def show_rows(self, rows: StudyRows | None) -> None:
        """Show another study, or a newer reading of the same one; order and filter stay where they fit."""
        if rows is not None and self.sort_key not in {column.key for column in rows.columns}:
            self.sort_key, self.descending = rows.best_first()
        self._arrange(rows)

    def set_filter(self, trial_filter: TrialFilter) -> None:
        if trial_filter != self.filter:
            self.filter = trial_filter
            self._arrange(self.rows)

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        if 0 <= column < len(self.columns):
            before = self.sort_key, self.descending
            self.sort_key, self.descending = self.columns[column].key, order == Qt.SortOrder.DescendingOrder
            if (self.sort_key, self.descending) != before:
                self._arrange(self.rows)

    def _arrange(self, rows: StudyRows | None) -> None:
        self.beginResetModel()
        self.rows = rows
        self._shown = np.empty(0, np.intp)
        if rows is not None:
            self._shown = rows.arranged(self.filter, self.sort_key, descending=self.descending)
        self.endResetModel()
        self.arranged.emit(len(self._shown), len(rows.study) if rows is not None else 0)

    @property
    def sort_column(self) -> int:
        """The place of the column that the rows are sorted by; -1: none."""
        return next((place for place, column in enumerate(self.columns) if column.key == self.sort_key), -1)

    def trial_at(self, position: int) -> Trial | None:
        if self.rows is None or not 0 <= position < len(self._shown):
            return None
        return self.rows.study.trials[int(self._shown[position])]

    def position_of(self, number: int | None) -> int | None:
        """Return where a trial is shown; None when the filter hides it."""
        row = self.rows.study.row_of(number) if self.rows is not None and number is not None else None
        found = np.flatnonzero(self._shown == row)
        return int(found[0]) if row is not None and len(found) else None

    def rowCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self._shown)

    def columnCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self.columns)

    def data(self, index: Index, role: int = _DISPLAY) -> Any:
        rows = self.rows
        if rows is None or not index.isValid():
            return None
        column = rows.columns[index.column()]
        if role == _ALIGNMENT:
            return _RIGHT if column.is_right else _LEFT
        row = int(self._shown[index.row()])
        if role == _FONT:
            return self._bold if rows.is_best(row) else None
        if column.key == STATE and role in (_DISPLAY, _FOREGROUND, _TOOLTIP):
            return self._state(rows.study.trials[row], role)
        return rows.text(row, column.key) if role in (_DISPLAY, _TOOLTIP) else None

    def _state(self, trial: Trial, role: int) -> Any:
        if role == _FOREGROUND:
            return QColor(getattr(theme.colors(), _COLORS[trial.state]))
        reason = trial.user_attrs.get("mosaic_reason") if trial.state is not TrialState.COMPLETE else ""
        if role == _TOOLTIP:
            return str(reason or STATE_LABELS[trial.state])
        return f"{STATE_SIGNS[trial.state]} {_state_label(trial.state)}"

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = _DISPLAY) -> Any:
        if orientation != Qt.Orientation.Horizontal or not 0 <= section < len(self.columns):
            return None
        column = self.columns[section]
        if role in (_DISPLAY, _TOOLTIP):
            # Qt's own mark would be drawn over a right-aligned title.
            mark = (" ▼" if self.descending else " ▲") if column.key == self.sort_key and role == _DISPLAY else ""
            return f"{_title_of(column)}{mark}"
        return (_RIGHT if column.is_right else _LEFT) if role == _ALIGNMENT else None


class StudyTable(QTableView):
    """Shows a `StudyModel`; the selected trial stays selected whatever the model does."""

    trial_selected = Signal(object)  # Trial, or None
    trial_opened = Signal(object)  # Trial: Return or double click

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, "study_table", self.tr("Trials"))
        self.trials = StudyModel(self)
        self._selected: int | None = None
        self._widths: dict[str, int] = {}
        """Column → width, also of hidden columns"""
        self._scrolled_to = 0, 0
        self.setModel(self.trials)
        show_as_rows(self)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setCornerButtonEnabled(False)
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        header = named(self.horizontalHeader(), "study_header")
        header.setSectionsMovable(True)
        header.setSectionsClickable(True)
        header.setSortIndicatorShown(False)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.sectionClicked.connect(self._sort_by)
        # The header asks for each column whether all of its cells are selected. The answer is not needed.
        header.setSelectionModel(QItemSelectionModel(self.trials, self))
        self.trials.modelAboutToBeReset.connect(self._remember)
        self.trials.modelReset.connect(self._restore)
        self.selectionModel().currentRowChanged.connect(lambda index: self._row_changed(index.row()))
        self.doubleClicked.connect(lambda index: self._open(index.row()))

    @property
    def selected(self) -> Trial | None:
        """The selected trial, also while the filter hides it."""
        rows = self.trials.rows
        row = rows.study.row_of(self._selected) if rows is not None and self._selected is not None else None
        return rows.study.trials[row] if rows is not None and row is not None else None

    def select(self, number: int | None) -> None:
        """Select a trial (from a plot, say) and scroll to it."""
        self._selected = number
        self._show_selection()
        position = self.trials.position_of(number)
        if position is not None:
            self.scrollTo(self.trials.index(position, 0))
        self.trial_selected.emit(self.selected)

    def _row_changed(self, position: int) -> None:
        trial = self.trials.trial_at(position)
        if trial is not None and trial.number != self._selected:
            self._selected = trial.number
            self.trial_selected.emit(trial)

    def _open(self, position: int) -> None:
        if (trial := self.trials.trial_at(position)) is not None:
            self.trial_opened.emit(trial)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.currentIndex().isValid():
            self._open(self.currentIndex().row())
            return
        super().keyPressEvent(event)

    def _sort_by(self, section: int) -> None:
        is_same = section == self.trials.sort_column
        order = Qt.SortOrder.DescendingOrder if is_same and not self.trials.descending else Qt.SortOrder.AscendingOrder
        self.trials.sort(section, order)

    def _remember(self) -> None:
        """Keep column widths and scroll position over a reset of the model."""
        self._widths |= {column.key: self.columnWidth(place) for place, column in enumerate(self.trials.columns)}
        self._scrolled_to = self.horizontalScrollBar().value(), self.verticalScrollBar().value()

    def _restore(self) -> None:
        char_width = self.fontMetrics().averageCharWidth()
        for place, column in enumerate(self.trials.columns):
            self.setColumnWidth(place, self._widths.get(column.key, column.width_chars * char_width))
        self._show_selection()
        self.executeDelayedItemsLayout()  # the scroll bars do not know the number of rows yet
        self.updateGeometries()
        for bar, value in zip((self.horizontalScrollBar(), self.verticalScrollBar()), self._scrolled_to, strict=True):
            bar.setValue(value)

    def _show_selection(self) -> None:
        position = self.trials.position_of(self._selected)
        if position is None:
            self.selectionModel().clear()
        else:
            flags = QItemSelectionModel.SelectionFlag
            self.selectionModel().setCurrentIndex(self.trials.index(position, 0), flags.ClearAndSelect | flags.Rows)


# ---------------------------------------------------------------------- filters

_PAUSE_MS = 200


class StudyFilters(QWidget):
    """Which states, texts and range of one column are shown; `changed` carries the filter."""

    changed = Signal(object)  # TrialFilter

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("study_filters")
        self._last = TrialFilter()
        placeholder = self.tr("Filter: number, state, parameter=value …")
        self.text = search_field("study_filter_text", self.tr("Show trials with this text"), placeholder)
        self.text.setToolTip(self.tr("All parts must be found: tanh learning_rate=0.0003 pruned"))
        self.states = named(QToolButton(), "study_filter_states")
        self.states.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.states.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.states.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        menu = named(QMenu(self.states), "study_states_menu")
        self.states.setMenu(menu)
        self._actions: dict[TrialState, QAction] = {}
        for state in _STATES:
            action = self._actions[state] = menu.addAction("")
            action.setObjectName(f"study_state_{state.name.lower()}")
            action.setCheckable(True)
            action.toggled.connect(lambda _on: self._update())
        self.column = named(QComboBox(), "study_filter_column", self.tr("Column of the range"))
        self.column.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.column.setMinimumContentsLength(12)
        self.low = self._end("study_filter_low", self.tr("from"))
        self.high = self._end("study_filter_high", self.tr("to"))
        self.shown = caption("study_filter_shown")
        self.problem = named(QLabel(), "study_filter_problem", role="problem")
        self.problem.hide()
        others = (self.states, self.column, self.low, self.high, self.problem, self.shown)
        fill(QHBoxLayout(self), (self.text, 1), *others, margins=0)
        self._pause = QTimer(self, singleShot=True, interval=_PAUSE_MS)
        self._pause.timeout.connect(self._update)
        for line in (self.text, self.low, self.high):
            line.textChanged.connect(lambda _text: self._pause.start())
        self.column.currentIndexChanged.connect(lambda _place: self._update())
        self.show_rows(None)

    def _end(self, name: str, text: str) -> QLineEdit:
        line = named(QLineEdit(), name, self.tr("Range {end}").format(end=text))
        line.setPlaceholderText(text)
        line.setMaximumWidth(self.fontMetrics().averageCharWidth() * 11)
        return line

    def show_rows(self, rows: StudyRows | None) -> None:
        """List the states with their counts, and the columns that can have a range."""
        for state, action in self._actions.items():
            count = rows.study.count(state) if rows is not None else 0
            action.setText(f"{STATE_SIGNS[state]} {_state_label(state)} ({count:,})")
            action.setEnabled(bool(count) or action.isChecked())
        columns = rows.ranged_columns() if rows is not None else []
        if [column.key for column in columns] != [self.column.itemData(place) for place in range(self.column.count())]:
            selected = self.column.currentData()
            with QSignalBlocker(self.column):
                self.column.clear()
                for column in columns:
                    self.column.addItem(_title_of(column), column.key)
                # The objective by default: that is what users filter by.
                default = 1 if len(columns) > 1 and not selected else 0
                self.column.setCurrentIndex(max(self.column.findData(selected), default))
        self._show_states()

    def show_counts(self, shown: int, total: int) -> None:
        self.shown.setText(self.tr("{shown} of {total}").format(shown=f"{shown:,}", total=f"{total:,}"))

    def current(self) -> TrialFilter:
        states = frozenset(state for state, action in self._actions.items() if action.isChecked())
        ends = _number(self.low), _number(self.high)
        key = self.column.currentData()
        ranges = {str(key): ends} if key and ends != (None, None) else {}
        return TrialFilter(states, self.text.text().strip(), ranges)

    def clear(self) -> None:
        for action in self._actions.values():
            action.setChecked(False)
        for line in (self.text, self.low, self.high):
            line.clear()
        self._update()

    def _update(self) -> None:
        self._pause.stop()
        wrong = [line for line in (self.low, self.high) if line.text().strip() and _number(line) is None]
        message = self.tr("not a number: {text}").format(text=", ".join(line.text().strip() for line in wrong))
        self.problem.setText(message if wrong else "")
        self.problem.setVisible(bool(wrong))
        for line in (self.low, self.high):
            line.setAccessibleDescription(message if line in wrong else "")
        self._show_states()
        current = self.current()
        if current != self._last:
            self._last = current
            self.changed.emit(current)

    def _show_states(self) -> None:
        checked = [_state_label(state) for state, action in self._actions.items() if action.isChecked()]
        self.states.setText(", ".join(checked) or self.tr("All states"))
        self.states.setAccessibleName(self.tr("States that are shown: {states}").format(states=self.states.text()))


def _number(line: QLineEdit) -> float | None:
    try:
        value = float(line.text().strip().replace(",", "."))
    except ValueError:
        return None
    return None if math.isnan(value) else value


# ---------------------------------------------------------------------- one trial

_MAX_RUNS = 6


class TrialDetails(QFrame):
    """The best trial, or the selected one: its value, parameters and runs."""

    run_requested = Signal(str)
    train_requested = Signal(object)  # Trial

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, "trial_card", role="card")
        self.trial: Trial | None = None
        self._caption = caption("trial_caption")
        self._value = named(QLabel(), "trial_value", role="figure")
        self._facts = caption("trial_about", wraps=True)
        self._facts.setTextFormat(Qt.TextFormat.PlainText)  # a reason may contain any text
        self.parameters = PairsTable(self.tr("Parameter"), self.tr("Value"), accessible=self.tr("Its parameters"))
        self.parameters.setObjectName("trial_parameters")
        form = self.tr("Open the form that trains, filled with these parameters")
        train, copy = self.tr("Train this confi&guration…"), self.tr("Cop&y parameters")
        accessible = self.tr("Train this configuration")
        self.train = push_button("train_configuration", train, self._request_training, accessible, form)
        self.train.setProperty("role", "primary")
        self.copy = push_button("copy_parameters", copy, self.copy_parameters, tip=self.tr("As JSON"))
        buttons = fill(QHBoxLayout(), self.train, self.copy, 1)
        self._runs_box = QWidget()
        self._runs_box.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self._runs = fill(QHBoxLayout(self._runs_box), margins=0, spacing=4)
        head = (self._caption, self._value, self._facts)
        parts = (*head, buttons, self._runs_box, (self.parameters, 1))
        fill(QVBoxLayout(self), *parts, margins=(10, 8, 10, 8), spacing=4)
        self.show_trial(None, None, is_best=True)

    def show_trial(self, study: Study | None, trial: Trial | None, *, is_best: bool) -> None:
        """Show this trial; None: there is none yet."""
        self.trial = trial
        for button in (self.train, self.copy):
            button.setEnabled(trial is not None and bool(trial.internals))
        if study is None or trial is None:
            self._caption.setText(self.tr("Best configuration"))
            self._value.setText("–")
            self._facts.setText(self.tr("No trial has been completed yet.") if study is not None else "")
            self.parameters.show_pairs([])
            self._show_runs(())
            return
        text = self.tr("Best configuration: trial {number}") if is_best else self.tr("Selected: trial {number}")
        self._caption.setText(text.format(number=trial.number))
        self._value.setText(", ".join(map(number_text, trial.values)) or "–")
        self._facts.setText(self._facts_of(study, trial))
        self.parameters.show_pairs(
            (name, f"{parameter_text(value)}   {_range_text(trial.distributions[name])}")
            for name, value in trial.params.items()
        )
        self._show_runs(trial.run_ids)

    def _facts_of(self, study: Study, trial: Trial) -> str:
        facts = [f"{STATE_SIGNS[trial.state]} {_state_label(trial.state)}"]
        if math.isfinite(trial.duration_s):
            facts.append(formats.duration(trial.duration_s))
        seeds, values = trial.user_attrs.get("mosaic_seeds"), trial.user_attrs.get("mosaic_values")
        if isinstance(seeds, list) and isinstance(values, list) and len(seeds) == len(values) > 1:
            pairs = [pair for pair in zip(seeds, values, strict=True) if isinstance(pair[1], int | float)]
            by_seed = ", ".join(f"{seed}: {number_text(value)}" for seed, value in pairs)
            facts.append(self.tr("by seed {values}").format(values=by_seed))
        if study.has_several_objectives and study.best_rows:
            facts.append(self.tr("one of {count} that no other trial beats").format(count=len(study.best_rows)))
        reason = trial.user_attrs.get("mosaic_reason")
        if reason and trial.state is not TrialState.COMPLETE:  # a trial may complete before it is ended
            facts.append(str(reason))
        return " · ".join(facts)

    def _show_runs(self, run_ids: tuple[str, ...]) -> None:
        while (item := self._runs.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()
                widget.deleteLater()
        self._runs_box.setVisible(bool(run_ids))
        for run_id in run_ids[:_MAX_RUNS]:
            text, accessible = self.tr("Run {run}"), self.tr("Open run {run}")
            name, request = short_id(run_id), partial(self.run_requested.emit, run_id)
            self._runs.addWidget(
                push_button(f"open_run_{run_id}", text.format(run=name), request, accessible.format(run=name), run_id)
            )
        if len(run_ids) > _MAX_RUNS:
            more = self.tr("and {count} more").format(count=len(run_ids) - _MAX_RUNS)
            self._runs.addWidget(caption(text=more))
        self._runs.addStretch(1)

    def _request_training(self) -> None:
        self.train_requested.emit(self.trial)

    def copy_parameters(self) -> None:
        """Copy a JSON object, for a config or a script."""
        if self.trial is not None:
            QGuiApplication.clipboard().setText(json.dumps(self.trial.params, indent=2, ensure_ascii=False))


def _range_text(distribution: Distribution) -> str:
    if distribution.kind is Kind.CATEGORICAL:
        return f"({' | '.join(map(parameter_text, distribution.choices))})"
    low, high = number_text(distribution.low), number_text(distribution.high)
    step = f", step {number_text(distribution.step)}" if distribution.step not in (None, 1.0) else ""
    return f"({low} … {high}{', log' if distribution.log else ''}{step})"


# ---------------------------------------------------------------------- the whole study

DETAILS, HISTORY, IMPORTANCES, PARALLEL, SLICE = range(5)
_PLOTS = {HISTORY, IMPORTANCES, PARALLEL, SLICE}
_PLOT_NAMES = {HISTORY: "history", PARALLEL: "parallel", SLICE: "slice"}
Plot = TypeVar("Plot", bound=StudyPlot)


class StudyView(QWidget):
    """Table on the left; on the right one of: details, history, importances, parallel coordinates, slice."""

    run_requested = Signal(str)
    train_requested = Signal(object)  # Trial

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("study_view")
        self.reading: StudyReading | None = None
        self._objective = 0
        self._outdated: set[int] = set()
        """Plots of an older reading, redrawn when they are opened"""
        self.filters = StudyFilters()
        self.table = StudyTable()
        self.details = TrialDetails()
        self._pages: dict[int, QVBoxLayout] = {}
        self.bars = ImportanceBars()
        self._build()
        self.filters.changed.connect(self.table.trials.set_filter)
        self.table.trials.arranged.connect(self.filters.show_counts)
        self.table.trial_selected.connect(self._show_selected)
        self.table.trial_opened.connect(self._open_trial)
        self.table.customContextMenuRequested.connect(self._show_menu)
        self.details.run_requested.connect(self.run_requested)
        self.details.train_requested.connect(self.train_requested)
        self.side.currentChanged.connect(lambda _page: self._draw())
        self.parameter.currentIndexChanged.connect(lambda _place: self._redraw({SLICE}))
        self.objective.currentIndexChanged.connect(self._choose_objective)

    def _build(self) -> None:
        left = QWidget()
        fill(QVBoxLayout(left), self.filters, (self.table, 1), margins=(0, 0, 6, 0), spacing=4)
        self.side = named(QTabWidget(), "study_side", self.tr("Views of the study"))
        self.side.setDocumentMode(True)
        self.parameter = named(QComboBox(), "slice_parameter", self.tr("Parameter"))
        self.importance_caption = caption("importance_caption", wraps=True)
        self.parallel_caption = caption("parallel_caption", wraps=True)
        history = self.tr("● complete   △ pruned: where it stood   line: best so far")
        bars = named(QScrollArea(), "importances_scroll", self.bars.accessibleName())
        bars.setWidgetResizable(True)
        bars.setFrameShape(QScrollArea.Shape.NoFrame)
        bars.setWidget(self.bars)
        pages: tuple[tuple[str, tuple[QWidget, ...]], ...] = (
            (self.tr("Configuration"), (self.details,)),
            (self.tr("History"), (caption("history_caption", history, wraps=True),)),
            (self.tr("Importances"), (self.importance_caption, bars)),
            (self.tr("Parallel"), (self.parallel_caption,)),
            (self.tr("Slice"), (self.parameter,)),
        )
        for title, parts in pages:
            page = QWidget()
            self._pages[self.side.addTab(page, title)] = fill(QVBoxLayout(page), *parts, margins=6, spacing=4)
        self.objective = named(QComboBox(), "study_objective", self.tr("Objective"))
        self.objective.hide()
        self.side.setCornerWidget(self.objective)
        splitter = split("study_splitter", (left, 3), (self.side, 2), is_collapsible=True)
        splitter.setSizes([700, 540])
        fill(QVBoxLayout(self), splitter, margins=0)

    @property
    def study(self) -> Study | None:
        return self.reading.study if self.reading is not None else None

    def show_reading(self, reading: StudyReading | None) -> None:
        """Show another study, or a newer reading of the same one."""
        before = self.study
        self.reading = reading
        study = self.study
        if before is None or study is None or (before.name, before.path) != (study.name, study.path):
            self.table.select(None)
            self._objective = 0
        rows = reading.rows if reading is not None else None
        self.filters.show_rows(rows)
        self.table.trials.show_rows(rows)
        self._show_choices()
        self._show_details()
        self._outdated = set(_PLOTS)
        # In an event-loop iteration of its own: table and plot together are too slow for one.
        QTimer.singleShot(0, self, self._draw)

    def _show_choices(self) -> None:
        study = self.study
        shares = self.reading.shares_of(self._objective).shares if self.reading is not None else {}
        _set_items(self.parameter, sorted(study.parameters if study else (), key=lambda name: -shares.get(name, 0.0)))
        objectives = len(study.directions) if study is not None and study.has_several_objectives else 0
        _set_items(self.objective, [self.objective_title(place) for place in range(objectives)])
        self.objective.setVisible(bool(objectives))

    def objective_title(self, place: int) -> str:
        study = self.study
        if study is not None and place < len(study.metric_names):
            return study.metric_names[place]
        title = QCoreApplication.translate(PRESENTERS, OBJECTIVE)
        return f"{title} {place + 1}" if study is not None and study.has_several_objectives else title

    def _choose_objective(self, place: int) -> None:
        if place >= 0 and place != self._objective:
            self._objective = place
            self._redraw(_PLOTS)

    def _show_details(self) -> None:
        study = self.study
        shown = self.table.selected or (study.best if study is not None else None)
        is_best = shown is None or (study is not None and study.row_of(shown.number) in study.best_rows)
        self.details.show_trial(study, shown, is_best=is_best)

    def _show_selected(self) -> None:
        self._show_details()
        self._mark()

    # ------------------------------------------------------------------ plots: slow to build, so built when opened

    @cached_property
    def history(self) -> HistoryPlot:
        return self._placed(HISTORY, HistoryPlot())

    @cached_property
    def parallel(self) -> ParallelPlot:
        return self._placed(PARALLEL, ParallelPlot())

    @cached_property
    def slice(self) -> SlicePlot:
        return self._placed(SLICE, SlicePlot())

    def _placed(self, page: int, plot: Plot) -> Plot:
        plot.trial_selected.connect(self.table.select)
        self._pages[page].addWidget(plot, 1)
        return plot

    def _redraw(self, pages: set[int]) -> None:
        self._outdated |= pages
        self._draw()

    def _draw(self) -> None:
        """Draw the plot of the open page; other plots are drawn when they are opened."""
        page, study = self.side.currentIndex(), self.study
        if study is None:
            return
        name = _PLOT_NAMES.get(page)
        if name is not None and name not in self.__dict__:
            getattr(self, name)
            defer(self, self._draw)
            return
        if page in self._outdated and self.isVisible():
            self._outdated.discard(page)
            self._draw_page(page, study)
        self._mark()

    def _draw_page(self, page: int, study: Study) -> None:
        assert self.reading is not None
        title, found = self.objective_title(self._objective), self.reading.shares_of(self._objective)
        if page == HISTORY:
            self.history.show_study(study, self._objective, title)
        elif page == IMPORTANCES:
            self.bars.show_shares(dict(found.shares))
            text = self.tr("Importances need at least {count} completed trials with parameters.")
            if found.shares:
                text = self.tr(
                    "{method}: how much a parameter decides whether a trial is among the best {share} ({best} of "
                    "{trials} completed trials). It suggests where to look; it does not prove a cause."
                )
            counts = {"count": FEWEST_TRIALS, "share": f"{BEST_SHARE:.0%}", "best": found.best, "trials": found.trials}
            self.importance_caption.setText(text.format(method=METHOD, **counts))
        elif page == PARALLEL:
            shown = parallel_of(study, self._objective, title, dict(found.shares))
            self.parallel.show_parallel(shown)
            text = self.tr("A line is a completed trial; darker = better.")
            if shown.left_out:
                text = self.tr("A line is one of the best {count} trials; darker = better.")
            self.parallel_caption.setText(text.format(count=f"{sum(map(len, shown.shades)):,}"))
        elif self.parameter.currentText() in study.parameters:
            self.slice.show_study(study, self._objective, self.parameter.currentText(), title)

    def _mark(self) -> None:
        study, selected = self.study, self.table.selected
        if study is None:
            return
        row = study.row_of(selected.number) if selected is not None else None
        name = _PLOT_NAMES.get(self.side.currentIndex())
        if name is not None:
            getattr(self, name).mark(row)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        QTimer.singleShot(0, self, self._draw)

    # ------------------------------------------------------------------ trials

    def _open_trial(self, trial: Trial) -> None:
        """Open its run; with several seeds the first one; the detail panel lists all."""
        if trial.run_ids:
            self.run_requested.emit(trial.run_ids[0])

    def _show_menu(self, place: QPoint) -> None:
        trial = self.table.trials.trial_at(self.table.rowAt(place.y()))
        if trial is None:
            return
        menu = named(QMenu(self), "trial_menu")
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        for run_id in trial.run_ids:
            text = self.tr("Open run {run}").format(run=short_id(run_id))
            menu.addAction(text, partial(self.run_requested.emit, run_id))
        if not trial.run_ids:
            menu.addAction(self.tr("This trial has no run here")).setEnabled(False)
        menu.addSeparator()
        menu.addAction(self.tr("&Train this configuration…"), lambda: self.train_requested.emit(trial))
        menu.addAction(self.tr("Cop&y parameters"), self.details.copy_parameters)
        menu.popup(self.table.viewport().mapToGlobal(place))

    def summary(self) -> str:
        """Return how many trials there are, by state."""
        study = self.study
        if study is None:
            return ""
        counts = [f"{study.count(state):,} {_state_label(state)}" for state in _STATES if study.count(state)]
        total = self.tr("1 trial") if len(study) == 1 else self.tr("{count} trials").format(count=f"{len(study):,}")
        return f"{total}: {', '.join(counts)}" if counts else total


def _set_items(combo: QComboBox, names: list[str]) -> None:
    """Replace the items; the selection stays where it can."""
    if names != [combo.itemText(place) for place in range(combo.count())]:
        selected = combo.currentText()
        with QSignalBlocker(combo):
            combo.clear()
            combo.addItems(names)
            combo.setCurrentIndex(max(0, combo.findText(selected)))
