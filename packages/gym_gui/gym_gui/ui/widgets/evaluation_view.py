"""How an evaluation goes and what it found: progress, a table of figures, a histogram of returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QColor
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QLabel,
    QProgressBar,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui import theme
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.evaluation_result import bars_of, table_of
from gym_gui.wording.formats import quantity
from gym_gui.wording.run_view import state_of

_TAG = "eval/episode_return"


class EvaluationView(QWidget):
    """Follows one evaluation run until it is over."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("evaluation_view")
        self._link = link
        self._run_id = ""
        self._per_batch = 1
        self._is_asking = False
        self._ask_again = False
        self.returns: tuple[float, ...] = ()
        self._state = QLabel(self.tr("Results appear here."), self)
        self._state.setObjectName("evaluation_state")
        self._state.setWordWrap(True)
        self._progress = QProgressBar(self)
        self._progress.setObjectName("evaluation_progress")
        self._progress.setAccessibleName(self.tr("Episodes played"))
        self._progress.hide()
        titles = [
            self.tr("Batch"), self.tr("Episodes"), self.tr("Mean"), self.tr("Std"), self.tr("Min"), self.tr("Median"),
            self.tr("Max"),
        ]  # fmt: skip
        self.table = QTableWidget(0, len(titles), self)
        self.table.setObjectName("evaluation_table")
        self.table.setAccessibleName(self.tr("Returns of the evaluation"))
        self.table.setHorizontalHeaderLabels(titles)
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.setTabKeyNavigation(False)
        self.table.verticalHeader().hide()
        self.table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(8, 0, 0, 0)
        for widget in (self._state, self._progress):
            self._layout.addWidget(widget)
        self._layout.addWidget(self.table, 2)
        self._plot: Any = None
        link.runs_changed.connect(self._runs_changed)

    @property
    def state(self) -> str:
        return self._state.text()

    def follow(self, run: pb.Run, *, per_batch: int) -> None:
        """Show this run from now on."""
        self._run_id, self._per_batch = run.run_id, per_batch
        self.returns = ()
        self._show_run(run)

    def _runs_changed(self, runs: Sequence[pb.Run]) -> None:
        for run in runs:
            if run.run_id == self._run_id:
                self._show_run(run)

    def _show_run(self, run: pb.Run) -> None:
        over = run.status == "TERM"
        self._progress.setVisible(not over)
        self._progress.setRange(0, max(1, run.total))
        self._progress.setValue(min(run.step, run.total))
        words = self.tr("Evaluation {state}").format(state=state_of(run))
        if over and run.outcome != "completed" and run.reason:
            words += f": {run.reason}"
        elif run.queue_reason and run.status == "INIT":
            words += f": {run.queue_reason}"
        self._state.setText(words)
        self._ask()

    def _ask(self) -> None:
        """Every episode so far; the same curve that TensorBoard shows."""
        if self._is_asking:
            self._ask_again = True
            return
        self._is_asking = True
        run_id = self._run_id

        def read(client: object) -> tuple[str, tuple[float, ...]]:
            with client.metrics(run_id, [_TAG], max_points=-1) as messages:  # type: ignore[attr-defined]
                values = [value for message in messages for curve in message.curves for value in curve.values]
            return run_id, tuple(values)

        self._link.call(read, owner=self, done=self._show, failed=self._failed)

    def _failed(self, words: str) -> None:
        self._is_asking = False
        self._state.setText(self.tr("The results cannot be read: {why}").format(why=words))

    def _show(self, answer: tuple[str, tuple[float, ...]]) -> None:
        self._is_asking = False
        run_id, returns = answer
        if run_id == self._run_id and len(returns) >= len(self.returns):
            self.returns = returns
            self._fill_table()
            self._draw()
        if self._ask_again:
            self._ask_again = False
            self._ask()

    def _fill_table(self) -> None:
        rows = table_of(self.returns, self._per_batch)
        self.table.setRowCount(len(rows))
        for number, row in enumerate(rows):
            figures = (row.mean, row.std, row.minimum, row.median, row.maximum)
            cells = [row.title or self.tr("all"), str(row.episodes), *(quantity(figure) for figure in figures)]
            for column, text in enumerate(cells):
                item = QTableWidgetItem(text)
                if column:
                    item.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
                self.table.setItem(number, column, item)

    def _draw(self) -> None:
        if not self.returns:
            return
        import pyqtgraph  # a third of a second, only for those who evaluate

        colours = theme.colours()
        if self._plot is None:
            self._plot = pyqtgraph.PlotWidget(self)
            self._plot.setObjectName("evaluation_histogram")
            self._plot.setAccessibleName(self.tr("Histogram of episode returns"))
            self._plot.setMinimumHeight(self.fontMetrics().height() * 10)
            self._layout.addWidget(self._plot, 3)
        plot = self._plot
        bars = bars_of(self.returns)
        plot.clear()
        plot.setBackground(QColor(colours.surface))
        item = plot.getPlotItem()
        item.setMenuEnabled(False)
        item.setMouseEnabled(x=False, y=False)
        item.hideButtons()
        for side, words in (("bottom", self.tr("Episode return")), ("left", self.tr("Episodes"))):
            axis = item.getAxis(side)
            axis.setPen(colours.muted)
            axis.setTextPen(colours.muted)
            axis.setLabel(words, color=colours.muted)
        item.addItem(
            pyqtgraph.BarGraphItem(
                x0=list(bars.starts), width=bars.width, height=list(bars.counts), y0=0,
                brush=QColor(colours.series[0]), pen=pyqtgraph.mkPen(colours.surface, width=1),
            )
        )  # fmt: skip

    def changeEvent(self, event: QEvent) -> None:
        if event.type() is QEvent.Type.PaletteChange and getattr(self, "_plot", None) is not None:
            self._draw()
        super().changeEvent(event)
