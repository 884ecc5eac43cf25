"""Results of runs, side by side: loaded and computed in threads, shown in a table with probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import (
    QAbstractTableModel,
    QCoreApplication,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    Qt,
    Signal,
)
from PySide6.QtGui import QColor, QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import QHeaderView, QTableView, QVBoxLayout, QWidget

from gym_gui.services.analytics.baselines import Baseline, baselines_for
from gym_gui.services.analytics.comparison import FACTS, Comparison, Fact, GroupFigures, Verdict, compare_curves
from gym_gui.services.analytics.configurations import (
    configuration_of,
    differing_parameters,
    parameter_value,
    run_labels,
)
from gym_gui.services.analytics.curves import RETURN_TAGS
from gym_gui.services.analytics.statistics import Estimate, Interval
from gym_gui.ui import theme
from gym_gui.ui.charts.curves import distinct_labels
from gym_gui.ui.charts.feed import CurveFeed
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import caption, fill, named, split
from gym_gui.ui.widgets.tables import ColumnSpec, RowsTable, TableRow, show_as_rows
from gym_gui.wording import formats

# ---------------------------------------------------------------------- rows


def tr(text: str) -> str:
    return QCoreApplication.translate("ComparisonTable", text)


@dataclass(frozen=True)
class ComparedCell:
    text: str = "–"
    tip: str = ""
    number: float | None = None
    """Sort key, if it is not the text"""


@dataclass(frozen=True)
class ComparedRow:
    """One row: a run or a group."""

    run_ids: tuple[str, ...]
    cells: tuple[ComparedCell, ...]
    verdict: Verdict
    parameters: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, ComparedCell] = field(default_factory=dict)
    """What its worker reported, by the names of FACTS"""


def rows_of(comparison: Comparison, runs: Sequence[pb.Run], *, grouped: bool) -> list[ComparedRow]:
    """Return the rows of the table. Slow for a thousand runs: call it in a thread."""
    if grouped:
        names = distinct_labels([group.label for group in comparison.groups])
        return [_group_row(group, name) for group, name in zip(comparison.groups, names, strict=True)]
    shown = [run for run in runs if run.run_id in comparison.runs]
    configurations = [configuration_of(run) for run in shown]
    differing = differing_parameters(dict.fromkeys(configurations))
    labels = run_labels(shown, configurations)
    rows = []
    for run, configuration, label, name in zip(shown, configurations, labels, distinct_labels(labels), strict=True):
        found = comparison.runs[run.run_id]
        cells = (
            ComparedCell(name, "\n".join(filter(None, (label, run.name, run.run_id)))),
            _verdict_cell(found.learned),
            _number(found.final, found.final_interval),
            _number(found.best),
            _number(found.auc),
            _speed(found.sps),
            _time(found.wall_s),
        )
        given = {name: parameter_value(configuration, name) for name in differing}
        rows.append(ComparedRow((run.run_id,), cells, found.learned, given, _facts(found.facts)))
    return rows


def _group_row(group: GroupFigures, name: str) -> ComparedRow:
    final = _estimate(group.final)
    if group.final is not None and group.final_std is not None:
        text = f"{formats.quantity(group.final.value)} ± {formats.quantity(group.final_std)}"
        iqm = f"\n{tr('interquartile mean {0}').format(_with_interval(group.final_iqm))}" if group.final_iqm else ""
        final = ComparedCell(text, final.tip + iqm, final.number)
    verdict = _verdict_cell(group.learned)
    if group.learned is Verdict.PARTLY:
        text = tr("◐ {0} of {1} learned").format(group.learned_count, len(group.run_ids))
        verdict = ComparedCell(text, verdict.tip, verdict.number)
    best, auc, speed, took = _estimate(group.best), _estimate(group.auc), _speed(group.sps), _time(group.wall_s)
    cells = (ComparedCell(name, group.label), verdict, final, best, auc, speed, took)
    run_ids = (*group.repeated, *group.run_ids)
    return ComparedRow(run_ids, cells, group.learned, group.parameters, _facts(group.facts))


def _facts(known: Mapping[str, float]) -> dict[str, ComparedCell]:
    return {fact.name: ComparedCell(fact.text(known), number=known[fact.name]) for fact in FACTS if fact.name in known}


def _verdict_cell(verdict: Verdict) -> ComparedCell:
    """Return a sign with a text: neither color nor sign alone."""
    text, tip = {
        Verdict.LEARNED: (
            tr("✓ learned"),
            tr("Its last 100 episodes are better than a random policy's, by more than chance explains"),
        ),
        Verdict.LEARNED_NOTHING: (
            tr("✗ learned nothing"),
            tr("Its last 100 episodes are not better than those of a policy that acts at random"),
        ),
        Verdict.PARTLY: (tr("◐ some learned"), tr("Some of its runs are better than a random policy, others are not")),
        Verdict.DID_NOT_IMPROVE: (
            tr("✗ did not improve"),
            tr("It is better than a random policy, but its last 100 episodes are not better than its first"),
        ),
        Verdict.NO_BASELINE: (
            tr("? no baseline"),
            tr("What a random policy reaches in this environment has not been measured yet"),
        ),
        Verdict.NO_EPISODES: (tr("– no episodes"), tr("It has finished no episode, so there is nothing to judge")),
        Verdict.UNFINISHED: (tr("… unfinished"), tr("It is not finished: these are its values so far")),
    }[verdict]
    return ComparedCell(text, tip, list(Verdict).index(verdict))


def _number(value: float | None, interval: Interval | None = None) -> ComparedCell:
    return _estimate(None if value is None else Estimate(value, interval))


def _estimate(estimate: Estimate | None) -> ComparedCell:
    if estimate is None:
        return ComparedCell()
    return ComparedCell(formats.quantity(estimate.value), _with_interval(estimate), estimate.value)


def _with_interval(estimate: Estimate) -> str:
    value, interval = formats.quantity(estimate.value), estimate.interval
    if interval is None:
        return value
    low, high = formats.quantity(interval.low), formats.quantity(interval.high)
    return tr("{0}, 95 % interval {1} to {2}").format(value, low, high)


def _speed(sps: float | None) -> ComparedCell:
    return ComparedCell() if sps is None else ComparedCell(formats.short_count(sps), number=sps)


def _time(seconds: float | None) -> ComparedCell:
    return ComparedCell() if seconds is None else ComparedCell(formats.duration(seconds), number=seconds)


# ---------------------------------------------------------------------- the table

Index = QModelIndex | QPersistentModelIndex
_ROOT = QModelIndex()
_Role = Qt.ItemDataRole
_NAME, _VERDICT = 0, 1
_WIDTHS = (36, 21, 17, 10, 10, 10, 9)
"""In characters"""
_FACT_WIDTH = 10
_PARAMETER_WIDTH = 16


class ComparisonModel(QAbstractTableModel):
    """Sorts itself; rows without a value come last."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.rows: list[ComparedRow] = []
        self._given: list[ComparedRow] = []
        self.parameters: tuple[str, ...] = ()
        self.facts: tuple[Fact, ...] = ()
        """Those that a row has; their columns are in front of the parameters"""
        self.color_of: Callable[[tuple[str, ...]], QColor | None] = lambda run_ids: None
        """Color of these runs' line in the charts"""
        self._sorting: tuple[int, Qt.SortOrder] | None = None

    def show_rows(self, rows: Sequence[ComparedRow]) -> None:
        self.beginResetModel()
        self._given = list(rows)
        self.parameters = tuple(dict.fromkeys(name for row in rows for name in row.parameters))
        self.facts = tuple(fact for fact in FACTS if any(fact.name in row.facts for row in rows))
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
        down = order is Qt.SortOrder.DescendingOrder
        cells = [(self.cell(row, column), row) for row in self._given]
        numbers = [(cell.number, row) for cell, row in cells if cell.number is not None]
        texts = [(cell.text.lower(), row) for cell, row in cells if cell.number is None]
        numbers.sort(key=lambda pair: pair[0], reverse=down)
        texts.sort(key=lambda pair: pair[0], reverse=down)
        return [row for _, row in (*numbers, *texts)]

    def cell(self, row: ComparedRow, column: int) -> ComparedCell:
        if column < len(row.cells):
            return row.cells[column]
        column -= len(row.cells)
        if column < len(self.facts):
            return row.facts.get(self.facts[column].name, ComparedCell())
        text = row.parameters.get(self.parameters[column - len(self.facts)], "–")
        try:
            return ComparedCell(text, text, float(text))
        except ValueError:
            return ComparedCell(text, text)

    def as_text(self) -> str:
        """Return the table with tabs between columns, for a spreadsheet."""
        columns = range(self.columnCount())
        head = [str(self.headerData(column, Qt.Orientation.Horizontal)) for column in columns]
        lines = [[self.cell(row, column).text for column in columns] for row in self.rows]
        return "\n".join("\t".join(cells) for cells in [head, *lines])

    def rowCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index = _ROOT) -> int:
        return 0 if parent.isValid() else len(_WIDTHS) + len(self.facts) + len(self.parameters)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = _Role.DisplayRole) -> Any:
        if orientation is not Qt.Orientation.Horizontal:
            return None
        if role == _Role.TextAlignmentRole:
            side = Qt.AlignmentFlag.AlignRight if section > _VERDICT else Qt.AlignmentFlag.AlignLeft
            return side | Qt.AlignmentFlag.AlignVCenter
        titles = (
            (tr("Runs"), tr("A run, or runs that differ only in their seed")),
            (tr("Verdict"), tr("Better than a policy that acts at random?")),
            (tr("Final"), tr("Mean return of the last 100 episodes; of a group mean ± standard deviation")),
            (tr("Best"), tr("Highest mean return of 100 episodes in a row")),
            (tr("AUC"), tr("Area under the curve of the return, divided by the steps")),
            (tr("Steps/s"), tr("Environment steps per second")),
            (tr("Time"), tr("How long it trained")),
        )
        reported = ((tr(fact.title.capitalize()), tr(fact.meaning)) for fact in self.facts)
        default = tr("Parameter {0}; – where it was left to the algorithm")
        title, tip = (*titles, *reported, *((name, default.format(name)) for name in self.parameters))[section]
        return title if role == _Role.DisplayRole else tip if role == _Role.ToolTipRole else None

    def data(self, index: Index, role: int = _Role.DisplayRole) -> Any:
        row = self.rows[index.row()]
        if role == _Role.DisplayRole:
            return self.cell(row, index.column()).text
        if role == _Role.ToolTipRole:
            return self.cell(row, index.column()).tip
        if role == _Role.TextAlignmentRole and index.column() > _VERDICT:
            return Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        if role == _Role.DecorationRole and index.column() == _NAME:
            return self.color_of(row.run_ids)
        if role == _Role.ForegroundRole and index.column() == _VERDICT:
            colors = theme.colors()
            tones = {
                Verdict.LEARNED: colors.good,
                Verdict.LEARNED_NOTHING: colors.bad,
                Verdict.PARTLY: colors.warning,
                Verdict.DID_NOT_IMPROVE: colors.warning,
            }
            return QColor(tones.get(row.verdict, colors.muted))
        return None


class ComparisonTable(QTableView):
    """`selected` carries the runs of the selected rows, `opened` one that is double-clicked."""

    selected = Signal(object)  # tuple of run ids
    opened = Signal(str)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, "comparison_table", self.tr("What the runs reached, side by side"))
        self.table = ComparisonModel(self)
        self.setModel(self.table)
        show_as_rows(self, line_height=1.7, multiple=True)
        header = self.horizontalHeader()
        header.setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        header.setSortIndicatorClearable(True)
        self.setSortingEnabled(True)
        self._size_columns()
        self.selectionModel().selectionChanged.connect(lambda *_: self.selected.emit(self.selected_runs()))
        self.doubleClicked.connect(lambda index: self.opened.emit(self.table.rows[index.row()].run_ids[-1]))
        copy = QKeySequence.StandardKey.Copy
        QShortcut(copy, self, self.copy, context=Qt.ShortcutContext.WidgetShortcut)

    def show_rows(self, rows: Sequence[ComparedRow]) -> None:
        """Replace the rows; the selection stays where it can."""
        before = set(self.selected_runs())
        self.table.show_rows(rows)
        self._size_columns()
        for place, row in enumerate(self.table.rows):
            if before and before >= set(row.run_ids):
                self.selectRow(place)

    def selected_runs(self) -> tuple[str, ...]:
        rows = sorted(index.row() for index in self.selectionModel().selectedRows())
        return tuple(run_id for row in rows if row < len(self.table.rows) for run_id in self.table.rows[row].run_ids)

    def copy(self) -> None:
        QGuiApplication.clipboard().setText(self.table.as_text())

    def _size_columns(self) -> None:
        char_width = self.fontMetrics().averageCharWidth()
        for column in range(self.table.columnCount()):
            is_fact = column < len(_WIDTHS) + len(self.table.facts)
            width = _WIDTHS[column] if column < len(_WIDTHS) else _FACT_WIDTH if is_fact else _PARAMETER_WIDTH
            if self.columnWidth(column) in (0, self.horizontalHeader().defaultSectionSize()):
                self.setColumnWidth(column, char_width * width)


# ---------------------------------------------------------------------- loading and computing

_REFRESH_S = 8.0
"""Interval in which the values of live runs are recomputed"""
_MAX_POINTS = 5_000_000
"""Points of all curves together; runs longer than their share are downsampled"""


@dataclass(frozen=True)
class Compared:
    """The result of a comparison, ready to be shown."""

    comparison: Comparison
    rows: list[ComparedRow]
    groups: list[ComparedRow]
    is_thinned: bool
    """Some curves were too long to be read whole"""


class ComparisonFeed(CurveFeed):
    """Load whole return curves and compare them, off the window's thread; `found` carries the result."""

    found = Signal(object)  # Compared
    measuring = Signal(str)  # progress of measuring a baseline; empty: finished

    def __init__(self, link: DaemonLink, parent: QObject | None = None) -> None:
        super().__init__(link, parent, points_for=_points_for, refresh_s=_REFRESH_S, max_followed=0)
        self.set_tags(RETURN_TAGS, with_episodes=False)
        self._baselines: Mapping[str, Baseline | None] = {}
        self._environments: set[str] = set()
        """Environments whose baselines are known or requested"""
        self._is_computing = False
        self._is_outdated = False
        self.is_measuring = False
        self.grew.connect(self._compare)

    def set_runs(self, runs: Iterable[pb.Run]) -> None:
        super().set_runs(runs)
        self._compare()

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        self._compare()

    def _poll(self) -> None:
        super()._poll()
        if self._is_outdated:
            self._compare()

    def measure_baselines(self) -> None:
        """Let the daemon play a random policy in the environments that have no baseline; a minute, once."""
        if self.is_measuring:
            return
        self.is_measuring = True
        background = self._link.background

        def on_progress(line: str) -> None:  # in the thread that waits
            background.in_window(lambda: self.measuring.emit(line), owner=self)

        self._load_baselines(measure=True, on_progress=on_progress)
        self.measuring.emit(self.tr("measuring a random policy…"))

    def _load_baselines(self, *, measure: bool, on_progress: Callable[[str], None] = lambda line: None) -> None:
        runs = list(self.runs.values())
        environments = {run.env_id for run in runs}
        self._environments |= environments

        def loaded(baselines: Mapping[str, Baseline | None]) -> None:
            self._baselines = {**self._baselines, **baselines}
            if measure:
                self.is_measuring = False
                if all(baseline is not None for baseline in baselines.values()):
                    self.measuring.emit("")
            self._compare()

        def failed(message: str) -> None:
            if measure:
                self.is_measuring = False
                self.measuring.emit("")
            else:
                self._environments -= environments
            if self._link.is_connected:
                self._is_outdated = False  # notify the user once, not at every poll
                self.failed.emit(message)

        self._link.call(
            lambda client: baselines_for(client, runs, measure=measure, on_progress=on_progress),
            owner=self,
            done=loaded,
            failed=failed,
        )

    def _compare(self) -> None:
        """Compare once everything is loaded; again when something changes meanwhile, or the daemon is back."""
        self._is_outdated = True
        if not self._is_active or not self._link.is_connected:
            return
        if any(run.env_id not in self._environments for run in self.runs.values()):
            self._load_baselines(measure=False)
            return
        if self._is_computing or not self.is_complete:
            return
        self._is_computing, self._is_outdated = True, False
        runs, baselines = list(self.runs.values()), dict(self._baselines)
        curves = self.store.curves(runs, RETURN_TAGS)

        def compute() -> Compared:
            whole = {run.run_id: curves.get(run.run_id, {}) for run in runs}
            comparison = compare_curves(runs, whole, baselines=baselines)
            rows, groups = (rows_of(comparison, runs, grouped=grouped) for grouped in (False, True))
            is_thinned = any(curve.is_thinned for own in curves.values() for curve in own.values())
            return Compared(comparison, rows, groups, is_thinned)

        def computed(compared: Compared) -> None:
            self._is_computing = False
            self.found.emit(compared)
            if self._is_outdated:
                self._compare()

        self._link.background.run(compute, owner=self, done=computed, failed=self._not_computed)

    def _not_computed(self, error: Exception) -> None:
        self._is_computing = False
        raise error


def _points_for(runs: int) -> int:
    return max(2_000, _MAX_POINTS // max(1, runs))


# ---------------------------------------------------------------------- the view

_MAX_PAIRS = 100


class ComparisonView(QWidget):
    """The table, the probability that one group is better than another, and a banner about baselines."""

    selected = Signal(object)  # tuple of run ids
    run_opened = Signal(str)
    failed = Signal(str)
    filled = Signal()
    """The table has other rows"""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("comparison_view")
        self.feed = ComparisonFeed(link, self)
        self.compared: Compared | None = None
        self._is_grouped = True
        self._build()
        self.feed.found.connect(self._show)
        self.feed.progressed.connect(self._show_progress)
        self.feed.failed.connect(self.failed)
        self.feed.measuring.connect(self._show_measuring)
        self.table.selected.connect(self.selected)
        self.table.opened.connect(self.run_opened)

    def set_grouped(self, grouped: bool) -> None:
        """Show a row for each configuration, or for each run."""
        if grouped is not self._is_grouped:
            self._is_grouped = grouped
            self._fill()

    def _show(self, compared: Compared) -> None:
        self.compared = compared
        self._fill()
        self._fill_pairs(compared.comparison)
        self._offer_baselines(compared.comparison)
        thinned = self.tr("Some curves are too long to be read whole here: `mosaic compare` measures every episode.")
        notes = filter(None, (compared.comparison.note, thinned if compared.is_thinned else ""))
        self.progress.setText("\n".join(notes))
        self.progress.setVisible(bool(self.progress.text()))

    def _fill(self) -> None:
        if self.compared is not None:
            self.table.show_rows(self.compared.groups if self._is_grouped else self.compared.rows)
            self.filled.emit()

    def preferred_height(self) -> int:
        """Return the height of the whole table and the texts around it."""
        rows = max(self.table.table.rowCount(), self.pairs.rowCount() + 2)
        height = self.table.horizontalHeader().height() + (rows + 1) * self.table.verticalHeader().defaultSectionSize()
        return height + (self.banner.sizeHint().height() if self.banner.text else 0)

    def _fill_pairs(self, comparison: Comparison) -> None:
        labels = distinct_labels([group.label for group in comparison.groups])
        short = dict(zip((group.key for group in comparison.groups), labels, strict=True))
        pairs = [(short[pair.better], short[pair.worse], pair.probability) for pair in comparison.improvements]
        for over in comparison.overall:
            better = self.tr("{0}, over {1} environments").format(over.better, len(over.environments))
            pairs.append((better, over.worse, over.probability))
        self.pairs.fill(self._pair_row(*pair) for pair in pairs[:_MAX_PAIRS])
        if not pairs:
            message = self.tr("Compare two configurations in one environment to see how likely one is better.")
        elif len(pairs) > _MAX_PAIRS:
            message = self.tr("The first {0} of {1} pairs").format(_MAX_PAIRS, len(pairs))
        else:
            message = self.tr("How likely a run of the first ends better than one of the second; 50 % is a coin toss")
        self._pairs_message.setText(message)

    def _pair_row(self, better: str, worse: str, probability: Estimate) -> TableRow:
        interval, percent = probability.interval, 100 * probability.value
        shown = f"{100 * interval.low:.0f} – {100 * interval.high:.0f} %" if interval is not None else "–"
        tip = self.tr("A run of {0} ends better than one of {1} with a probability of {2:.0f} %")
        remark = ""
        if interval is None:
            remark = "\n" + self.tr("Fewer than three seeds: too few for an estimate of the uncertainty")
        elif interval.low <= 0.5 <= interval.high:
            remark = "\n" + self.tr("The interval holds 50 %: the runs do not show which is better")
        cells = [better, worse, f"{percent:.0f} %", shown]
        return TableRow(f"{better}\n{worse}", cells, tip.format(better, worse, percent) + remark)

    def _offer_baselines(self, comparison: Comparison) -> None:
        missing = [name for name, baseline in comparison.baselines.items() if baseline is None and name]
        if self.feed.is_measuring:
            return
        if not missing:
            self.banner.clear()
        elif not self.banner.text:
            where = missing[0] if len(missing) == 1 else self.tr("{0} environments").format(len(missing))
            text = self.tr("Runs are compared with a random policy, which has not been measured in {0} yet.")
            self.banner.set_message(
                text.format(where), action=self.tr("&Measure it"), on_action=self.feed.measure_baselines
            )

    def _show_measuring(self, message: str) -> None:
        if message:
            action = "" if self.feed.is_measuring else self.tr("Dismiss")
            self.banner.set_message(message[:1].upper() + message[1:], action=action, on_action=self.banner.clear)
        else:
            self.banner.clear()

    def _show_progress(self, loaded: int, total: int) -> None:
        self.progress.setText(self.tr("Values of {0} of {1} runs").format(f"{loaded:,}", f"{total:,}"))
        self.progress.setVisible(loaded < total)

    def _build(self) -> None:
        self.banner = Banner()
        self.progress = caption("comparison_progress")
        self.progress.hide()
        self.table = ComparisonTable()
        columns = (
            ColumnSpec(self.tr("Better"), 14),
            ColumnSpec(self.tr("than"), 14),
            ColumnSpec(self.tr("Probability"), 7, right=True),
            ColumnSpec(self.tr("95 % interval"), 9, right=True),
        )
        accessible = self.tr("Probability that one group is better than another")
        self.pairs = RowsTable(columns, name="improvement_table", accessible=accessible, stretch=0)
        self.pairs.horizontalHeader().setSectionResizeMode(1, QHeaderView.ResizeMode.Stretch)
        self.pairs.verticalHeader().setDefaultSectionSize(round(self.fontMetrics().height() * 1.7))
        self._pairs_message = caption(wraps=True)
        side = QWidget()
        fill(QVBoxLayout(side), (self.pairs, 1), self._pairs_message, margins=0, spacing=4)
        splitter = split("comparison_split", (self.table, 3), (side, 2))
        unit = self.fontMetrics().averageCharWidth()
        splitter.setSizes([unit * 118, unit * 66])
        fill(QVBoxLayout(self), self.banner, self.progress, (splitter, 1), margins=0, spacing=4)
