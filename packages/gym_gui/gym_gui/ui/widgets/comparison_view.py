"""What runs reached, side by side: the table, how likely one is better than another, and a word about baselines."""

from __future__ import annotations

from collections.abc import Sequence

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHeaderView, QLabel, QSplitter, QVBoxLayout, QWidget

from gym_gui.services.analytics.comparison import Comparison
from gym_gui.services.analytics.statistics import Estimate
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.charts import told_apart
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.comparison_feed import Compared, ComparisonFeed
from gym_gui.ui.widgets.comparison_table import ComparisonTable
from gym_gui.ui.widgets.rows_table import ColumnSpec, Row, RowsTable

_MOST_PAIRS = 100


class ComparisonView(QWidget):
    """Figures of the runs that `set_runs` names."""

    chosen = Signal(object)  # tuple of run ids
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
        self.feed.progressed.connect(self._progress)
        self.feed.failed.connect(self.failed)
        self.feed.measuring.connect(self._tell_measuring)
        self.table.chosen.connect(self.chosen)
        self.table.opened.connect(self.run_opened)

    def set_runs(self, runs: Sequence[pb.Run]) -> None:
        self.feed.set_runs(runs)

    def set_grouped(self, grouped: bool) -> None:
        """A row for each configuration, or for each run."""
        if grouped is not self._is_grouped:
            self._is_grouped = grouped
            self._fill()

    # ---------------------------------------------------------------- showing

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

    def wanted_height(self) -> int:
        """Room for the whole table and the words around it."""
        rows = max(self.table.table.rowCount(), self.pairs.rowCount() + 2)
        height = self.table.horizontalHeader().height() + (rows + 1) * self.table.verticalHeader().defaultSectionSize()
        return height + (self.banner.sizeHint().height() if self.banner.text else 0)

    def _fill_pairs(self, comparison: Comparison) -> None:
        labels = [group.label for group in comparison.groups]
        short = dict(zip((group.key for group in comparison.groups), told_apart(labels), strict=True))
        pairs = [(short[pair.better], short[pair.worse], pair.probability) for pair in comparison.improvements]
        for over in comparison.overall:
            better = self.tr("{0}, over {1} environments").format(over.better, len(over.environments))
            pairs.append((better, over.worse, over.probability))
        self.pairs.fill(
            Row(f"{better}\n{worse}", self._pair_cells(better, worse, told), self._pair_tip(better, worse, told))
            for better, worse, told in pairs[:_MOST_PAIRS]
        )
        if not pairs:
            words = self.tr("Compare two configurations in one environment to see how likely one is better.")
        elif len(pairs) > _MOST_PAIRS:
            words = self.tr("The first {0} of {1} pairs").format(_MOST_PAIRS, len(pairs))
        else:
            words = self.tr("How likely a run of the first ends better than one of the second; 50 % is a coin toss")
        self._pairs_words.setText(words)

    def _pair_cells(self, better: str, worse: str, probability: Estimate) -> list[str]:
        interval = probability.interval
        shown = f"{100 * interval.low:.0f} – {100 * interval.high:.0f} %" if interval is not None else "–"
        return [better, worse, f"{100 * probability.value:.0f} %", shown]

    def _pair_tip(self, better: str, worse: str, probability: Estimate) -> str:
        interval = probability.interval
        words = self.tr("A run of {0} ends better than one of {1} with a probability of {2:.0f} %").format(
            better, worse, 100 * probability.value
        )
        if interval is None:
            return words + "\n" + self.tr("Fewer than three seeds: too few to say how sure that is")
        if interval.low <= 0.5 <= interval.high:
            return words + "\n" + self.tr("The interval holds 50 %: the runs do not tell which is better")
        return words

    # ---------------------------------------------------------------- words

    def _offer_baselines(self, comparison: Comparison) -> None:
        missing = [name for name, baseline in comparison.baselines.items() if baseline is None and name]
        if self.feed.is_measuring:
            return
        if not missing:
            self.banner.clear()
        elif not self.banner.text:
            where = missing[0] if len(missing) == 1 else self.tr("{0} environments").format(len(missing))
            words = self.tr("What a run learned is told against a random policy, which nobody has measured in {0} yet.")
            self.banner.say(words.format(where), action=self.tr("&Measure it"), on_action=self.feed.measure_baselines)

    def _tell_measuring(self, words: str) -> None:
        if words:
            text = words[:1].upper() + words[1:]
            self.banner.say(text, action="" if self.feed.is_measuring else self.tr("Dismiss"),
                            on_action=self.banner.clear)  # fmt: skip
        else:
            self.banner.clear()

    def _progress(self, loaded: int, total: int) -> None:
        self.progress.setText(self.tr("Figures of {0} of {1} runs").format(f"{loaded:,}", f"{total:,}"))
        self.progress.setVisible(loaded < total)

    # ---------------------------------------------------------------- widgets

    def _build(self) -> None:
        self.banner = Banner()
        self.progress = QLabel()
        self.progress.setObjectName("comparison_progress")
        self.progress.setProperty("role", "caption")
        self.progress.hide()
        self.table = ComparisonTable()
        columns = (
            ColumnSpec(self.tr("Better"), 14),
            ColumnSpec(self.tr("than"), 14),
            ColumnSpec(self.tr("Probability"), 7, right=True),
            ColumnSpec(self.tr("95 % interval"), 9, right=True),
        )
        self.pairs = RowsTable(
            columns, name="improvement_table", accessible=self.tr("Probability that one group is better than another"),
            stretch=0,
        )  # fmt: skip
        self.pairs.horizontalHeader().setSectionResizeMode(1, QHeaderView.ResizeMode.Stretch)
        self.pairs.verticalHeader().setDefaultSectionSize(round(self.fontMetrics().height() * 1.7))
        self._pairs_words = QLabel()
        self._pairs_words.setProperty("role", "caption")
        self._pairs_words.setWordWrap(True)
        side = QWidget()
        column = QVBoxLayout(side)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(4)
        column.addWidget(self.pairs, 1)
        column.addWidget(self._pairs_words)
        self._split = QSplitter(Qt.Orientation.Horizontal)
        self._split.setObjectName("comparison_split")
        self._split.setChildrenCollapsible(False)
        self._split.addWidget(self.table)
        self._split.addWidget(side)
        self._split.setStretchFactor(0, 3)
        self._split.setStretchFactor(1, 2)
        unit = self.fontMetrics().averageCharWidth()
        self._split.setSizes([unit * 118, unit * 66])
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addWidget(self.banner)
        layout.addWidget(self.progress)
        layout.addWidget(self._split, 1)
