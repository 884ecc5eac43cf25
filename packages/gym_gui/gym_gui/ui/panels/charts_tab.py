"""The Charts tab of a run: any of its curves, over steps, time or episodes, with other runs laid over them.

The board itself is imported in a thread when the tab is first opened: pyqtgraph takes a third of a second to load.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QPushButton, QVBoxLayout, QWidget

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.panels.run_tab import RunTab

if TYPE_CHECKING:
    from gym_gui.ui.widgets.chart_board import ChartBoard

SETTINGS = "charts_tab"


class ChartsTab(RunTab):
    """A board over the run that is shown and those that were added to it."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("charts_tab")
        self.board: ChartBoard | None = None
        self._added: dict[str, pb.Run] = {}
        self._is_importing = False
        self._waiting = QLabel(self.tr("Loading…"))
        self._waiting.setProperty("role", "caption")
        self._waiting.setAlignment(Qt.AlignmentFlag.AlignCenter)
        layout = QVBoxLayout(self)
        layout.addWidget(self._waiting, 1)
        link.runs_changed.connect(self._hear)
        link.runs_removed.connect(self._remove)

    # -- the run

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        if run.run_id in self._added:
            del self._added[run.run_id]
        elif not any(own.env_id == run.env_id for own in self._added.values()):
            self._added.clear()  # what was added belongs to another environment
        self._give_runs()

    def refresh(self, run: pb.Run) -> None:
        super().refresh(run)
        if self.board is not None:
            self.board.update_run(run)

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if self.board is not None:
            self.board.set_active(active)
        elif active and not self._is_importing:
            self._is_importing = True
            self.link.background.run(
                lambda: importlib.import_module("gym_gui.ui.widgets.chart_board"), owner=self, done=self._make_board
            )

    def _make_board(self, module: Any) -> None:
        from gym_gui.ui.presenters.charts import ChartChoice

        board: ChartBoard = module.ChartBoard(self.link, SETTINGS, ChartChoice())
        self._add_button = QPushButton(self.tr("&Add runs…"))
        self._add_button.setObjectName("charts_add_runs")
        self._add_button.setAccessibleName(self.tr("Overlay other runs"))
        self._add_button.clicked.connect(self.ask_for_runs)
        self._clear_button = QPushButton(self.tr("This run alone"))
        self._clear_button.setObjectName("charts_clear_runs")
        self._clear_button.setAccessibleName(self.tr("Remove the runs that were added"))
        self._clear_button.clicked.connect(lambda: self.set_added([]))
        self._clear_button.hide()
        board.controls.add(self._clear_button, in_front=True)
        board.controls.add(self._add_button, in_front=True)
        self._waiting.hide()
        layout = self.layout()
        assert layout is not None
        layout.addWidget(board)
        self.board = board
        self._give_runs()
        board.set_active(self.is_active)

    # -- other runs

    @property
    def added(self) -> list[pb.Run]:
        return list(self._added.values())

    def ask_for_runs(self) -> None:
        from gym_gui.ui.widgets.add_runs_dialog import AddRunsDialog

        if self.run is not None:
            dialog = AddRunsDialog(self.link, [self.run, *self.added], self.chosen_runs, self)
            dialog.chosen.connect(lambda runs: self.set_added([*self.added, *runs]))
            dialog.open()

    def set_added(self, runs: Sequence[pb.Run]) -> None:
        """These beside the run that is shown."""
        shown = self.run.run_id if self.run is not None else ""
        self._added = {run.run_id: run for run in runs if run.run_id != shown}
        self._give_runs()

    def _give_runs(self) -> None:
        if self.board is not None and self.run is not None:
            self.board.set_runs([self.run, *self.added])
            self._clear_button.setVisible(bool(self._added))

    def _hear(self, runs: Sequence[pb.Run]) -> None:
        for run in runs:
            if run.run_id in self._added:
                self._added[run.run_id] = run
                if self.board is not None:
                    self.board.update_run(run)

    def _remove(self, run_ids: Sequence[str]) -> None:
        if self._added.keys() & set(run_ids):
            self.set_added([run for run in self.added if run.run_id not in run_ids])
