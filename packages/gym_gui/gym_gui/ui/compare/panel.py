"""The Compare page: several runs side by side, values above and charts below.

panel = ComparePanel(link, background, home)
panel.selected_runs = runs_panel.selected_runs        what "Add the selection" adds
panel.compare(run_ids)                                these and no others

Its parts are imported in a thread when the page is first opened: pyqtgraph takes a third of a second to load.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QSettings, Signal
from PySide6.QtGui import QColor, QHideEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QStackedWidget, QVBoxLayout, QWidget

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.widgets.banner import Banner, Tone
from gym_gui.ui.widgets.parts import caption, fill, named, push_button, split
from gym_gui.wording import formats

if TYPE_CHECKING:
    from gym_gui.ui.charts.board import ChartBoard
    from gym_gui.ui.compare.comparison import ComparisonView

SETTINGS = "compare_panel"
_FEW = 20
"""Up to so many runs are requested one by one; for more the whole list is read once"""
_MAX_REMEMBERED = 200


class ComparePanel(QWidget):
    """Holds the runs; values are `ComparisonView`'s, charts `ChartBoard`'s."""

    run_opened = Signal(str)
    report_requested = Signal(object)  # list of runs

    def __init__(
        self, link: DaemonLink, background: Background, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("compare_panel")
        self.link, self.background = link, background
        self.runs: dict[str, pb.Run] = {}
        self.selected_runs: Callable[[], Sequence[pb.Run]] = list
        """The selection in the list of runs; set by the window"""
        self.board: ChartBoard | None = None
        self.values: ComparisonView | None = None
        self._request = 0
        """Incremented with every comparison requested"""
        self._colors: dict[str, int] = {}
        self._is_importing = False
        self._is_resized_by_hand = False
        self._settings = QSettings("MOSAIC", "mosaic")
        self._settings.beginGroup(SETTINGS)
        self._build()
        link.runs_changed.connect(self._update_runs)
        link.runs_removed.connect(self._forget)
        self._restore()

    # ---------------------------------------------------------------- which runs

    def compare(self, run_ids: Sequence[str]) -> None:
        """Compare these runs and no others."""
        self._request += 1
        self._load(run_ids, keep=False)

    def add_selection(self) -> None:
        """Add what is selected in the list of runs."""
        runs = self.selected_runs()
        if runs:
            self.add_runs(runs)
        else:
            self._report(self.tr("No run is selected in the list of runs."), "warning")

    def add_runs(self, runs: Sequence[pb.Run]) -> None:
        self._set_runs({**self.runs, **{run.run_id: run for run in runs}})

    def remove(self, run_ids: Sequence[str]) -> None:
        self._set_runs({run_id: run for run_id, run in self.runs.items() if run_id not in set(run_ids)})

    def clear(self) -> None:
        self._set_runs({})

    def _load(self, run_ids: Sequence[str], *, keep: bool) -> None:
        """Load the records; they are dropped when another comparison was requested meanwhile."""
        requested, request = list(dict.fromkeys(run_ids)), self._request

        def use(found: list[pb.Run]) -> None:
            if request == self._request:
                self._set_runs({**(self.runs if keep else {}), **{run.run_id: run for run in found}})

        self.link.call(lambda client: _records(client, requested), owner=self, done=use, failed=self._report)

    def _set_runs(self, runs: dict[str, pb.Run]) -> None:
        self.runs = runs
        self._settings.setValue("runs", json.dumps(list(runs)[:_MAX_REMEMBERED]))
        self.banner.clear()
        self._pages.setCurrentIndex(1 if runs else 0)
        environments = {run.env_id for run in runs.values() if run.env_id}
        where = next(iter(environments)) if len(environments) == 1 else formats.plural(len(environments), "environment")
        count = (formats.plural(len(runs), "run"), where)
        self._count.setText(" · ".join(filter(None, count)) if runs else "")
        for button in (self._clear_button, self._copy_button, self._report_button):
            button.setEnabled(bool(runs))
        self._show_runs()

    def _update_runs(self, runs: Sequence[pb.Run]) -> None:
        for run in runs:
            if run.run_id in self.runs:
                self.runs[run.run_id] = run
                if self.board is not None and self.values is not None:
                    self.board.update_run(run)
                    self.values.feed.update_run(run)

    def _forget(self, run_ids: Sequence[str]) -> None:
        if self.runs.keys() & set(run_ids):
            self.remove(run_ids)

    # ---------------------------------------------------------------- its parts

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._set_active(True)

    def hideEvent(self, event: QHideEvent) -> None:
        self._set_active(False)
        super().hideEvent(event)

    def _set_active(self, active: bool) -> None:
        if self.board is not None and self.values is not None:
            self.board.set_active(active)
            self.values.feed.set_active(active)
        elif active and not self._is_importing:
            self._is_importing = True
            self.background.run(_import_parts, owner=self, done=self._make_parts)

    def _make_parts(self, modules: tuple[Any, Any]) -> None:
        from gym_gui.ui.charts.curves import ChartChoice, return_tags

        board_module, view_module = modules
        board: ChartBoard = board_module.ChartBoard(self.link, SETTINGS, ChartChoice(is_grouped=True), return_tags)
        values: ComparisonView = view_module.ComparisonView(self.link)
        values.run_opened.connect(self.run_opened)
        values.selected.connect(self._bring_to_front)
        values.failed.connect(self._report)
        values.table.table.color_of = self._color_of
        board.drawn.connect(self._update_colors)
        board.controls.changed.connect(lambda choice: values.set_grouped(choice.is_grouped))
        values.set_grouped(board.choice.is_grouped)
        self._split.addWidget(values)
        self._split.addWidget(board)
        self._split.setStretchFactor(0, 2)
        self._split.setStretchFactor(1, 3)
        self._split.splitterMoved.connect(self._keep_sizes)
        values.filled.connect(self._resize_parts)
        self._loading.hide()
        self.board, self.values = board, values
        self._show_runs()
        self._set_active(self.isVisible())

    def _keep_sizes(self) -> None:
        self._is_resized_by_hand = True

    def _resize_parts(self) -> None:
        """Give the table the height its rows need and the charts the rest, until the user moves the splitter."""
        if self.values is not None and not self._is_resized_by_hand:
            height = self._split.height()
            table = min(max(self.values.preferred_height(), height // 5), height * 2 // 5)
            self._split.setSizes([table, height - table])

    def _show_runs(self) -> None:
        compared = self.runs
        runs = list(compared.values())

        def show(found: Sequence[pb.Run]) -> None:
            if compared is self.runs and self.board is not None and self.values is not None:
                self.board.set_runs(found)
                self.values.feed.set_runs(found)
                self._bring_to_front(self.values.table.selected_runs())

        if any(run.HasField("parent") and run.parent.run_id not in compared for run in runs):
            self.link.call(lambda client: _with_earlier(client, runs), owner=self, done=show, failed=self._report)
        else:
            show(runs)

    def _bring_to_front(self, run_ids: Sequence[str]) -> None:
        """Highlight the line of the selected row, and allow removing its runs."""
        self._remove_button.setEnabled(bool(run_ids))
        if self.board is not None:
            selected = set(run_ids)
            entries = [entry for entry in self.board.entries().values() if selected & set(entry.run_ids)]
            self.board.legend.select(entries[0].key if len(entries) == 1 else "")

    def _color_of(self, run_ids: tuple[str, ...]) -> QColor | None:
        """Return the color of the line that the charts draw for these runs."""
        number = self._colors.get(run_ids[-1])
        return None if number is None else theme.colors().curve(number)

    def _update_colors(self) -> None:
        assert self.board is not None
        assert self.values is not None
        entries = self.board.entries().values()
        self._colors = {run_id: entry.color for entry in entries for run_id in entry.run_ids}
        self.values.table.viewport().update()

    # ---------------------------------------------------------------- widgets

    def _build(self) -> None:
        title = named(QLabel(self.tr("Compare")), "", role="title")
        self._count = caption("compare_count")
        from_list = self.tr("Add the runs selected in the list of runs")
        add_selection = self._button("add_selection", self.tr("Add the &selection"), from_list, self.add_selection)
        search = self.tr("Search for runs to add")
        add = self._button("add", self.tr("&Add runs…"), search, self.ask_for_runs)
        remove = self.tr("Remove the runs of the selected rows")
        self._remove_button = self._button("remove", self.tr("R&emove"), remove, self._remove_selected)
        self._clear_button = self._button("clear", self.tr("&Clear"), self.tr("Remove all runs"), self.clear)
        copy = self.tr("Copy the table, for a spreadsheet")
        self._copy_button = self._button("copy", self.tr("Copy &table"), copy, self._copy)
        page = self.tr("Write a page about these runs that opens in any browser")
        self._report_button = self._button("report", self.tr("Re&port…"), page, self._request_report)
        off = (self._remove_button, self._clear_button, self._copy_button, self._report_button)
        for button in off:
            button.setEnabled(False)
        gap = self.fontMetrics().averageCharWidth() * 2
        bar = fill(QHBoxLayout(), title, (self._count, 1), add_selection, add, *off)
        bar.insertSpacing(1, gap)
        self.banner = Banner()
        self._loading = caption(text=self.tr("Loading…"), centered=True)
        self._split = split("compare_split", is_vertical=True)
        compared = QWidget()
        fill(QVBoxLayout(compared), self._loading, (self._split, 1), margins=0)
        empty = self.tr(
            "Nothing to compare yet.\n\nSelect two or more runs in the list of runs (Ctrl or Shift and a click) "
            "and “Compare” in their menu,\nor add runs here."
        )
        self._pages = QStackedWidget()
        self._pages.addWidget(caption("compare_empty", empty, centered=True))
        self._pages.addWidget(compared)
        fill(QVBoxLayout(self), bar, self.banner, (self._pages, 1), margins=(10, 8, 10, 8), spacing=6)

    def _button(self, name: str, text: str, tip: str, clicked: Callable[[], object]) -> Any:
        return push_button(f"compare_{name}", text, clicked, tip, tip)

    def ask_for_runs(self) -> None:
        from gym_gui.ui.charts.tab import AddRunsDialog

        dialog = AddRunsDialog(self.link, list(self.runs.values()), [run.run_id for run in self.selected_runs()], self)
        dialog.chosen.connect(self.add_runs)
        dialog.open()

    def _remove_selected(self) -> None:
        if self.values is not None:
            self.remove(self.values.table.selected_runs())

    def _copy(self) -> None:
        if self.values is not None:
            self.values.table.copy()
            self._report(self.tr("The table was copied."), "info")

    def _request_report(self) -> None:
        self.report_requested.emit(list(self.runs.values()))

    def _report(self, message: str, tone: Tone = "bad") -> None:
        self.banner.set_message(message, tone, action=self.tr("Dismiss"), on_action=self.banner.clear)

    def _restore(self) -> None:
        """Load what was compared last."""
        try:
            stored = json.loads(str(self._settings.value("runs") or "[]"))
        except ValueError:  # edited by hand
            return
        if isinstance(stored, list) and stored and self.link.is_connected:
            self._load([str(run_id) for run_id in stored], keep=True)


def _import_parts() -> tuple[Any, Any]:
    names = ("charts.board", "compare.comparison")
    board, view = (importlib.import_module(f"gym_gui.ui.{name}") for name in names)
    return board, view


def _with_earlier(client: TrainerClient, runs: Sequence[pb.Run]) -> list[pb.Run]:
    from gym_gui.services.analytics.lineage import with_earlier  # imports NumPy: in the thread that asks

    return with_earlier(client, runs)


def _records(client: TrainerClient, run_ids: Sequence[str]) -> list[pb.Run]:
    """Return the records that still exist, in this order."""
    if len(run_ids) > _FEW:
        known = {run.run_id: run for run in client.list(include_archived=True).runs}
        return [known[run_id] for run_id in run_ids if run_id in known]
    found = []
    for run_id in run_ids:
        try:
            found.append(client.get(run_id))
        except DaemonUnreachable:
            raise
        except TrainerError:
            continue  # deleted
    return found
