"""The table of the Compare page: what runs (or groups of them) reached, and the parameters in which they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QAbstractTableModel, QCoreApplication, QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import QColor, QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import QAbstractItemView, QTableView, QWidget

from gym_gui.services.analytics.comparison import Comparison, GroupFigures, Verdict
from gym_gui.services.analytics.configurations import configuration_of
from gym_gui.services.analytics.labels import differing_parameters, parameter_value, run_labels
from gym_gui.services.analytics.statistics import Estimate, Interval
from gym_gui.ui import theme
from gym_gui.ui.presenters.charts import told_apart
from gym_gui.wording import formats

Index = QModelIndex | QPersistentModelIndex
_ROOT = QModelIndex()
_Role = Qt.ItemDataRole
_NAME, _VERDICT = 0, 1
_LETTERS = (36, 21, 17, 10, 10, 10, 9)
_PARAMETER_LETTERS = 16
_SIGNS = {
    Verdict.LEARNED: "✓",
    Verdict.LEARNED_NOTHING: "✗",
    Verdict.PARTLY: "◐",
    Verdict.NO_BASELINE: "?",
    Verdict.NO_EPISODES: "–",
    Verdict.UNFINISHED: "…",
}


def tr(text: str) -> str:
    return QCoreApplication.translate("ComparisonTable", text)


@dataclass(frozen=True)
class Cell:
    text: str = ""
    tip: str = ""
    number: float | None = None
    """What it is sorted by, where that is not the text"""


@dataclass(frozen=True)
class ComparedRow:
    """One line: a run or a group."""

    run_ids: tuple[str, ...]
    cells: tuple[Cell, ...]
    verdict: Verdict
    parameters: Mapping[str, str] = field(default_factory=dict)


def verdict_text(verdict: Verdict) -> str:
    """A sign and words: neither colour nor sign alone."""
    words = {
        Verdict.LEARNED: tr("learned"),
        Verdict.LEARNED_NOTHING: tr("learned nothing"),
        Verdict.PARTLY: tr("some learned"),
        Verdict.NO_BASELINE: tr("no baseline"),
        Verdict.NO_EPISODES: tr("no episodes"),
        Verdict.UNFINISHED: tr("unfinished"),
    }
    return f"{_SIGNS[verdict]} {words[verdict]}"


def _explained(verdict: Verdict) -> str:
    return {
        Verdict.LEARNED: tr("Its last 100 episodes are better than a random policy's, by more than chance explains"),
        Verdict.LEARNED_NOTHING: tr("Its last 100 episodes are not better than those of a policy that acts at random"),
        Verdict.PARTLY: tr("Some of its runs are better than a random policy, others are not"),
        Verdict.NO_BASELINE: tr("Nobody has measured yet what a random policy reaches in this environment"),
        Verdict.NO_EPISODES: tr("It has finished no episode, so there is nothing to judge"),
        Verdict.UNFINISHED: tr("It is not finished: these are its figures so far"),
    }[verdict]


def rows_of(comparison: Comparison, runs: Sequence[pb.Run], *, grouped: bool) -> list[ComparedRow]:
    """The lines of the table. With a thousand runs it takes a while: call it in a thread."""
    if grouped:
        names = told_apart([group.label for group in comparison.groups])
        return [_group_row(group, name) for group, name in zip(comparison.groups, names, strict=True)]
    shown = [run for run in runs if run.run_id in comparison.runs]
    configurations = [configuration_of(run) for run in shown]
    differing = differing_parameters(dict.fromkeys(configurations))
    labels = run_labels(shown, configurations)
    rows = []
    for run, configuration, label, name in zip(shown, configurations, labels, told_apart(labels), strict=True):
        found = comparison.runs[run.run_id]
        cells = (
            Cell(name, "\n".join(filter(None, (label, run.name, run.run_id)))),
            _verdict_cell(found.learned),
            _number(found.final, found.final_interval),
            _number(found.best),
            _number(found.auc),
            _speed(found.sps),
            _time(found.wall_s),
        )
        given = {name: parameter_value(configuration, name) for name in differing}
        rows.append(ComparedRow((run.run_id,), cells, found.learned, given))
    return rows


def _group_row(group: GroupFigures, name: str) -> ComparedRow:
    final = _estimate(group.final)
    if group.final is not None and group.final_std is not None:
        text = f"{formats.quantity(group.final.value)} ± {formats.quantity(group.final_std)}"
        middle = f"\n{tr('interquartile mean {0}').format(_with_interval(group.final_iqm))}" if group.final_iqm else ""
        final = Cell(text, final.tip + middle, final.number)
    verdict = _verdict_cell(group.learned)
    if group.learned is Verdict.PARTLY:
        text = tr("◐ {0} of {1} learned").format(group.learned_count, len(group.run_ids))
        verdict = Cell(text, verdict.tip, verdict.number)
    cells = (
        Cell(name, group.label),
        verdict,
        final,
        _estimate(group.best),
        _estimate(group.auc),
        _speed(group.sps),
        _time(group.wall_s),
    )
    return ComparedRow((*group.repeated, *group.run_ids), cells, group.learned, group.parameters)


def _verdict_cell(verdict: Verdict) -> Cell:
    return Cell(verdict_text(verdict), _explained(verdict), list(Verdict).index(verdict))


def _number(value: float | None, interval: Interval | None = None) -> Cell:
    if value is None:
        return Cell("–")
    estimate = Estimate(value, interval)
    return Cell(formats.quantity(value), _with_interval(estimate), value)


def _estimate(estimate: Estimate | None) -> Cell:
    return Cell("–") if estimate is None else _number(estimate.value, estimate.interval)


def _with_interval(estimate: Estimate) -> str:
    if estimate.interval is None:
        return formats.quantity(estimate.value)
    low, high = formats.quantity(estimate.interval.low), formats.quantity(estimate.interval.high)
    return tr("{0}, 95 % interval {1} to {2}").format(formats.quantity(estimate.value), low, high)


def _speed(sps: float | None) -> Cell:
    return Cell("–") if sps is None else Cell(formats.short_count(sps), number=sps)


def _time(seconds: float | None) -> Cell:
    return Cell("–") if seconds is None else Cell(formats.duration(seconds), number=seconds)


class ComparisonModel(QAbstractTableModel):
    """Sorts itself; rows without a figure come last."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.rows: list[ComparedRow] = []
        self._given: list[ComparedRow] = []
        self.parameters: tuple[str, ...] = ()
        self.colour_of: Callable[[tuple[str, ...]], QColor | None] = lambda run_ids: None
        """The colour of the line of these runs; the charts know"""
        self._sorting: tuple[int, Qt.SortOrder] | None = None

    def show_rows(self, rows: Sequence[ComparedRow]) -> None:
        self.beginResetModel()
        self._given = list(rows)
        self.parameters = tuple(dict.fromkeys(name for row in rows for name in row.parameters))
        self.rows = self._sorted()
        self.endResetModel()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        self.layoutAboutToBeChanged.emit()
        self._sorting = (column, order) if column >= 0 else None
        self.rows = self._sorted()
        self.layoutChanged.emit()

    def _sorted(self) -> list[ComparedRow]:
        if self._sorting is None or self._sorting[0] >= self.columnCount():
            return list(self._given)
        column, order = self._sorting
        cells = [(self.cell(row, column), row) for row in self._given]
        numbered = [(cell.number, row) for cell, row in cells if cell.number is not None]
        texts = [(cell.text.lower(), row) for cell, row in cells if cell.number is None]
        down = order is Qt.SortOrder.DescendingOrder
        numbered.sort(key=lambda pair: pair[0], reverse=down)
        texts.sort(key=lambda pair: pair[0], reverse=down)
        return [row for _, row in numbered] + [row for _, row in texts]

    def cell(self, row: ComparedRow, column: int) -> Cell:
        if column < len(row.cells):
            return row.cells[column]
        text = row.parameters.get(self.parameters[column - len(row.cells)], "–")
        return Cell(text, text, _as_number(text))

    def as_text(self) -> str:
        """Tabs between columns: for a spreadsheet."""
        columns = range(self.columnCount())
        head = [str(self.headerData(column, Qt.Orientation.Horizontal)) for column in columns]
        lines = [[self.cell(row, column).text for column in columns] for row in self.rows]
        return "\n".join("\t".join(cells) for cells in [head, *lines])

    # -- what Qt asks

    def rowCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(_LETTERS) + len(self.parameters)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = _Role.DisplayRole) -> Any:
        if orientation is not Qt.Orientation.Horizontal:
            return None
        titles = (
            (tr("Runs"), tr("A run, or runs that differ only in their seed")),
            (tr("Verdict"), tr("Better than a policy that acts at random?")),
            (tr("Final"), tr("Mean return of the last 100 episodes; of a group mean ± standard deviation")),
            (tr("Best"), tr("Highest mean return of 100 episodes in a row")),
            (tr("AUC"), tr("Area under the curve of the return, divided by the steps")),
            (tr("Steps/s"), tr("Environment steps per second")),
            (tr("Time"), tr("How long it trained")),
        )
        if role == _Role.TextAlignmentRole:
            side = Qt.AlignmentFlag.AlignRight if section > _VERDICT else Qt.AlignmentFlag.AlignLeft
            return side | Qt.AlignmentFlag.AlignVCenter
        if section < len(titles):
            return (
                titles[section][role == _Role.ToolTipRole] if role in (_Role.DisplayRole, _Role.ToolTipRole) else None
            )
        name = self.parameters[section - len(titles)]
        if role == _Role.ToolTipRole:
            return tr("Parameter {0}; – where it was left to the algorithm").format(name)
        return name if role == _Role.DisplayRole else None

    def data(self, index: Index, role: int = _Role.DisplayRole) -> Any:
        row = self.rows[index.row()]
        if role == _Role.DisplayRole:
            return self.cell(row, index.column()).text
        if role == _Role.ToolTipRole:
            return self.cell(row, index.column()).tip
        if role == _Role.TextAlignmentRole and index.column() > _VERDICT:
            return Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        if role == _Role.DecorationRole and index.column() == _NAME:
            return self.colour_of(row.run_ids)
        if role == _Role.ForegroundRole and index.column() == _VERDICT:
            return _colour(row.verdict)
        return None


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _colour(verdict: Verdict) -> QColor:
    colours = theme.colours()
    names = {Verdict.LEARNED: colours.good, Verdict.LEARNED_NOTHING: colours.bad, Verdict.PARTLY: colours.warning}
    return QColor(names.get(verdict, colours.muted))


class ComparisonTable(QTableView):
    """`chosen` tells of the runs of the rows that are selected, `opened` of one that is double-clicked."""

    chosen = Signal(object)  # tuple of run ids
    opened = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("comparison_table")
        self.setAccessibleName(self.tr("What the runs reached, side by side"))
        self.table = ComparisonModel(self)
        self.setModel(self.table)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setAlternatingRowColors(True)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.setWordWrap(False)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(round(self.fontMetrics().height() * 1.7))
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        header.setSortIndicatorClearable(True)
        self.setSortingEnabled(True)
        self._size_columns()
        self.selectionModel().selectionChanged.connect(lambda *_: self.chosen.emit(self.chosen_runs()))
        self.doubleClicked.connect(lambda index: self.opened.emit(self.table.rows[index.row()].run_ids[-1]))
        copy = QShortcut(QKeySequence(QKeySequence.StandardKey.Copy), self)
        copy.setContext(Qt.ShortcutContext.WidgetShortcut)
        copy.activated.connect(self.copy)

    def show_rows(self, rows: Sequence[ComparedRow]) -> None:
        """Other figures; what was chosen stays chosen where it is still there."""
        before = set(self.chosen_runs())
        self.table.show_rows(rows)
        self._size_columns()
        for place, row in enumerate(self.table.rows):
            if before and before >= set(row.run_ids):
                self.selectRow(place)

    def chosen_runs(self) -> tuple[str, ...]:
        rows = sorted(index.row() for index in self.selectionModel().selectedRows())
        return tuple(run_id for row in rows if row < len(self.table.rows) for run_id in self.table.rows[row].run_ids)

    def copy(self) -> None:
        QGuiApplication.clipboard().setText(self.table.as_text())

    def _size_columns(self) -> None:
        letter = self.fontMetrics().averageCharWidth()
        for column in range(self.table.columnCount()):
            letters = _LETTERS[column] if column < len(_LETTERS) else _PARAMETER_LETTERS
            if self.columnWidth(column) in (0, self.horizontalHeader().defaultSectionSize()):
                self.setColumnWidth(column, letter * letters)
