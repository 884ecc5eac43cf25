"""The Charts tab of a run: its curves, live while the run is, over steps, time or episodes, with other runs overlaid.

The board itself is imported in a thread when the tab is first opened: pyqtgraph takes a third of a second to load.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QAbstractItemView,
    QCheckBox,
    QDialog,
    QDialogButtonBox,
    QListWidget,
    QListWidgetItem,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.widgets.parts import caption, fill, named, push_button, search_field
from gym_gui.ui.widgets.run_tab import RunTab
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id, state_of, title_of

if TYPE_CHECKING:
    from gym_gui.ui.charts.board import ChartBoard


class ChartsTab(RunTab):
    """A board over the run that is shown and those that were added to it."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("charts_tab")
        self.board: ChartBoard | None = None
        self._added: dict[str, pb.Run] = {}
        self._is_importing = False
        self._loading = caption(text=self.tr("Loading…"), centered=True)
        self._layout = QVBoxLayout(self)
        self._layout.addWidget(self._loading, 1)
        link.runs_changed.connect(self._update_added)
        link.runs_removed.connect(self._remove)

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        if run.run_id in self._added:
            del self._added[run.run_id]
        elif not any(own.env_id == run.env_id for own in self._added.values()):
            self._added.clear()  # what was added belongs to another environment
        self._show_runs()

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
                lambda: importlib.import_module("gym_gui.ui.charts.board"), owner=self, done=self._make_board
            )

    def _make_board(self, module: Any) -> None:
        from gym_gui.ui.charts.curves import ChartChoice, headline_tags

        board: ChartBoard = module.ChartBoard(self.link, "charts_tab", ChartChoice(), headline_tags)
        overlay, remove = self.tr("Overlay other runs"), self.tr("Remove the runs that were added")
        add_button = push_button("charts_add_runs", self.tr("&Add runs…"), self.ask_for_runs, overlay)
        alone = self.tr("This run alone")
        self._clear_button = push_button("charts_clear_runs", alone, lambda: self.set_added([]), remove)
        self._clear_button.hide()
        board.controls.add_in_front(add_button, self._clear_button)
        self._loading.hide()
        self._layout.addWidget(board)
        self.board = board
        self._show_runs()
        board.set_active(self.is_active)

    # -- other runs

    @property
    def added(self) -> list[pb.Run]:
        return list(self._added.values())

    def ask_for_runs(self) -> None:
        if self.run is not None:
            dialog = AddRunsDialog(self.link, [self.run, *self.added], self.chosen_runs, self)
            dialog.chosen.connect(lambda runs: self.set_added([*self.added, *runs]))
            dialog.open()

    def set_added(self, runs: Sequence[pb.Run]) -> None:
        """Overlay these runs."""
        shown = self.run.run_id if self.run is not None else ""
        self._added = {run.run_id: run for run in runs if run.run_id != shown}
        self._show_runs()

    def _show_runs(self) -> None:
        if self.board is not None and self.run is not None:
            self.board.set_runs([self.run, *self.added])
            self._clear_button.setVisible(bool(self._added))

    def _update_added(self, runs: Sequence[pb.Run]) -> None:
        for run in runs:
            if run.run_id in self._added:
                self._added[run.run_id] = run
                if self.board is not None:
                    self.board.update_run(run)

    def _remove(self, run_ids: Sequence[str]) -> None:
        if self._added.keys() & set(run_ids):
            self.set_added([run for run in self.added if run.run_id not in run_ids])


MAX_LISTED = 400
_ID = Qt.ItemDataRole.UserRole


class AddRunsDialog(QDialog):
    """Lists runs that have started, those in the same environment by default; `chosen` carries those to add."""

    chosen = Signal(object)  # list[pb.Run]

    def __init__(
        self, link: DaemonLink, present: Sequence[pb.Run], selected: Sequence[str] = (), parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("add_runs_dialog")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Add runs"))
        self._present = {run.run_id for run in present}
        environments = {run.env_id for run in present if run.env_id}
        self._env_id = next(iter(environments)) if len(environments) == 1 else ""
        self._runs: dict[str, pb.Run] = {}
        self._selected = [run_id for run_id in selected if run_id not in self._present]
        self._build()
        self._message.setText(self.tr("Loading…"))
        link.call(
            lambda client: list(client.list(include_archived=False).runs),
            owner=self,
            done=self._load,
            failed=self._message.setText,
        )

    def _build(self) -> None:
        placeholder = self.tr("Search by name, algorithm, environment, tag or id")
        self.search = search_field("add_runs_search", self.tr("Search runs"), placeholder)
        self.search.textChanged.connect(lambda _: self._fill())
        only = self.tr("&Only {0}").format(self._env_id)
        in_same = self.tr("Only runs in the same environment")
        self.same = named(QCheckBox(only), "add_runs_same_environment", in_same)
        self.same.setChecked(True)
        self.same.setVisible(bool(self._env_id))
        self.same.toggled.connect(lambda _: self._fill())
        several = self.tr("Runs that can be added; Shift and Ctrl select several")
        self.list = named(QListWidget(), "add_runs_list", several)
        self.list.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.list.setUniformItemSizes(True)
        self.list.itemSelectionChanged.connect(self._show_count)
        self.list.itemDoubleClicked.connect(lambda _: self.accept())
        self._message = caption()
        self.buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel)
        role = QDialogButtonBox.ButtonRole
        self.add = named(self.buttons.addButton(self.tr("&Add"), role.AcceptRole), "add_runs_add")
        from_list = self.buttons.addButton(self.tr("Add the &selection of the list"), role.ActionRole)
        self.from_list = named(from_list, "add_runs_selection", tip=self.tr("The runs selected in the list of runs"))
        self.from_list.hide()
        self.from_list.clicked.connect(lambda: self._finish(self._selected))
        for button in self.buttons.buttons():
            button.setAccessibleName(button.text().replace("&", ""))
        self.buttons.accepted.connect(self.accept)
        self.buttons.rejected.connect(self.reject)
        fill(QVBoxLayout(self), self.search, self.same, self.list, self._message, self.buttons)
        unit = self.fontMetrics()
        self.resize(unit.averageCharWidth() * 90, unit.height() * 30)
        self._show_count()

    def _load(self, runs: list[pb.Run]) -> None:
        self._runs = {run.run_id: run for run in sorted(runs, key=lambda run: -run.number)}
        self._selected = [run_id for run_id in self._selected if run_id in self._runs]
        self.from_list.setVisible(bool(self._selected))
        self.from_list.setText(self.tr("Add the &selection of the list ({0})").format(len(self._selected)))
        self._fill()

    def _fill(self) -> None:
        parts = self.search.text().lower().split()
        only = self._env_id if self.same.isChecked() else ""
        matches = [
            run
            for run in self._runs.values()
            if run.started_at and run.run_id not in self._present and (not only or run.env_id == only)
        ]
        matches = [run for run in matches if all(part in _searched_text(run) for part in parts)]
        self.list.clear()
        for run in matches[:MAX_LISTED]:
            item = QListWidgetItem(_description(run))
            item.setData(_ID, run.run_id)
            item.setToolTip(f"{run.name}\n{run.run_id}")
            self.list.addItem(item)
        message = formats.plural(len(matches), "run")
        if not matches:
            message = self.tr("No other run matches. Try another environment or another search.")
        elif len(matches) > MAX_LISTED:
            message = self.tr("The newest {0} of {1}; search to find others").format(MAX_LISTED, f"{len(matches):,}")
        self._message.setText(message)
        self._show_count()

    def accept(self) -> None:
        if picked := [str(item.data(_ID)) for item in self.list.selectedItems()]:
            self._finish(picked)

    def _finish(self, run_ids: Sequence[str]) -> None:
        self.chosen.emit([self._runs[run_id] for run_id in run_ids])
        super().accept()

    def _show_count(self) -> None:
        number = len(self.list.selectedItems())
        self.add.setEnabled(bool(number))
        self.add.setText(self.tr("&Add {0}").format(formats.plural(number, "run")) if number else self.tr("&Add"))


def _searched_text(run: pb.Run) -> str:
    return f"{run.name}\n{run.algo}\n{run.env_id}\n{run.run_id}\n{' '.join(run.tags)}".lower()


def _description(run: pb.Run) -> str:
    score = formats.quantity(run.episodic_return) if run.HasField("episodic_return") else ""
    return " · ".join(filter(None, (title_of(run), run.name, state_of(run), score, short_id(run.run_id))))
