"""The Compare page: several runs side by side, in figures above and in charts below.

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
from PySide6.QtCore import QSettings, Qt, Signal
from PySide6.QtGui import QColor, QHideEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QSplitter, QStackedWidget, QVBoxLayout, QWidget

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.widgets.banner import Banner
from gym_gui.wording import formats

if TYPE_CHECKING:
    from gym_gui.ui.widgets.chart_board import ChartBoard
    from gym_gui.ui.widgets.comparison_view import ComparisonView

SETTINGS = "compare_panel"
_FEW = 20
"""Up to so many runs are asked for one by one; for more the whole list is read once"""
_MOST_REMEMBERED = 200


class ComparePanel(QWidget):
    """Holds the runs; figures are `ComparisonView`'s, charts `ChartBoard`'s."""

    run_opened = Signal(str)
    report_wanted = Signal(object)  # list of runs

    def __init__(
        self, link: DaemonLink, background: Background, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("compare_panel")
        self.link, self.background = link, background
        self.runs: dict[str, pb.Run] = {}
        self.selected_runs: Callable[[], Sequence[pb.Run]] = list
        """What is chosen in the list of runs; the window says"""
        self.board: ChartBoard | None = None
        self.figures: ComparisonView | None = None
        self._wish = 0
        """Grows with every comparison that is asked for"""
        self._colours: dict[str, int] = {}
        self._is_importing = False
        self._is_shared_by_hand = False
        self._build()
        link.runs_changed.connect(self._hear)
        link.runs_removed.connect(self._forget)
        self._restore()

    # ---------------------------------------------------------------- which runs

    def compare(self, run_ids: Sequence[str]) -> None:
        """These runs and no others."""
        self._wish += 1
        self._ask_for(run_ids, keep=False, wish=self._wish)

    def add(self, run_ids: Sequence[str]) -> None:
        self._ask_for([run_id for run_id in run_ids if run_id not in self.runs], keep=True)

    def add_selection(self) -> None:
        """What is chosen in the list of runs."""
        runs = self.selected_runs()
        if runs:
            self.add_runs(runs)
        else:
            self._say(self.tr("No run is chosen in the list of runs."), "warning")

    def add_runs(self, runs: Sequence[pb.Run]) -> None:
        self._take({**self.runs, **{run.run_id: run for run in runs}})

    def remove(self, run_ids: Sequence[str]) -> None:
        self._take({run_id: run for run_id, run in self.runs.items() if run_id not in set(run_ids)})

    def clear(self) -> None:
        self._take({})

    def _ask_for(self, run_ids: Sequence[str], *, keep: bool, wish: int | None = None) -> None:
        """Their records; with a `wish` they are not taken when somebody has wished for others meanwhile."""
        wanted = list(dict.fromkeys(run_ids))

        def take(found: list[pb.Run]) -> None:
            if wish is not None and wish != self._wish:
                return
            self._take({**(self.runs if keep else {}), **{run.run_id: run for run in found}})

        self.link.call(lambda client: _records(client, wanted), owner=self, done=take, failed=self._say)

    def _take(self, runs: dict[str, pb.Run]) -> None:
        self.runs = runs
        self._settings().setValue("runs", json.dumps(list(runs)[:_MOST_REMEMBERED]))
        self.banner.clear()
        self._pages.setCurrentIndex(1 if runs else 0)
        self._count.setText(self._how_many())
        for button in (self._clear_button, self._copy_button, self._report_button):
            button.setEnabled(bool(runs))
        self._give_runs()

    def _how_many(self) -> str:
        environments = {run.env_id for run in self.runs.values() if run.env_id}
        where = next(iter(environments)) if len(environments) == 1 else formats.plural(len(environments), "environment")
        return " · ".join(filter(None, (formats.plural(len(self.runs), "run"), where))) if self.runs else ""

    def _hear(self, runs: Sequence[pb.Run]) -> None:
        for run in runs:
            if run.run_id in self.runs:
                self.runs[run.run_id] = run
                if self.board is not None and self.figures is not None:
                    self.board.update_run(run)
                    self.figures.feed.update_run(run)

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
        if self.board is not None and self.figures is not None:
            self.board.set_active(active)
            self.figures.feed.set_active(active)
        elif active and not self._is_importing:
            self._is_importing = True
            self.background.run(_import_parts, owner=self, done=self._make_parts)

    def _make_parts(self, modules: tuple[Any, Any]) -> None:
        from gym_gui.ui.presenters.charts import ChartChoice

        board_module, view_module = modules
        board: ChartBoard = board_module.ChartBoard(self.link, SETTINGS, ChartChoice(is_grouped=True))
        figures: ComparisonView = view_module.ComparisonView(self.link)
        figures.run_opened.connect(self.run_opened)
        figures.chosen.connect(self._bring_forward)
        figures.failed.connect(lambda words: self._say(words, "bad"))
        figures.table.table.colour_of = self._colour_of
        board.drawn.connect(self._learn_colours)
        board.controls.changed.connect(lambda choice: figures.set_grouped(choice.is_grouped))
        figures.set_grouped(board.choice.is_grouped)
        self._split.addWidget(figures)
        self._split.addWidget(board)
        self._split.setStretchFactor(0, 2)
        self._split.setStretchFactor(1, 3)
        self._split.splitterMoved.connect(self._keep_shares)
        figures.filled.connect(self._share)
        self._waiting.hide()
        self.board, self.figures = board, figures
        self._give_runs()
        self._set_active(self.isVisible())

    def _keep_shares(self) -> None:
        self._is_shared_by_hand = True

    def _share(self) -> None:
        """As much room as the rows need, so that the charts have the rest; a person's own shares stay."""
        if self.figures is not None and not self._is_shared_by_hand:
            height = self._split.height()
            wanted = min(max(self.figures.wanted_height(), height // 5), height * 2 // 5)
            self._split.setSizes([wanted, height - wanted])

    def _give_runs(self) -> None:
        chosen = self.runs
        runs = list(chosen.values())
        if any(run.HasField("parent") and run.parent.run_id not in chosen for run in runs):
            self.link.call(
                lambda client: _with_earlier(client, runs), owner=self,
                done=lambda found: self._show_runs(found) if chosen is self.runs else None, failed=self._say,
            )  # fmt: skip
        else:
            self._show_runs(runs)

    def _show_runs(self, runs: Sequence[pb.Run]) -> None:
        if self.board is not None and self.figures is not None:
            self.board.set_runs(runs)
            self.figures.set_runs(runs)
            self._bring_forward(self.figures.table.chosen_runs())

    def _bring_forward(self, run_ids: Sequence[str]) -> None:
        """The line of the row that is chosen, and what can be removed."""
        self._remove_button.setEnabled(bool(run_ids))
        if self.board is not None:
            chosen = set(run_ids)
            entries = [entry for entry in self.board.entries().values() if chosen & set(entry.run_ids)]
            self.board.legend.choose(entries[0].key if len(entries) == 1 else "")

    def _colour_of(self, run_ids: tuple[str, ...]) -> QColor | None:
        """Of the line that the charts draw for them."""
        number = self._colours.get(run_ids[-1])
        return None if number is None else theme.colours().curve(number)

    def _learn_colours(self) -> None:
        assert self.board is not None
        assert self.figures is not None
        entries = self.board.entries().values()
        self._colours = {run_id: entry.colour for entry in entries for run_id in entry.run_ids}
        self.figures.table.viewport().update()

    # ---------------------------------------------------------------- widgets

    def _build(self) -> None:
        title = QLabel(self.tr("Compare"))
        title.setProperty("role", "title")
        self._count = QLabel()
        self._count.setObjectName("compare_count")
        self._count.setProperty("role", "caption")
        bar = QHBoxLayout()
        bar.addWidget(title)
        bar.addSpacing(self.fontMetrics().averageCharWidth() * 2)
        bar.addWidget(self._count, 1)
        add_selection = self._button(
            "compare_add_selection", self.tr("Add the &selection"), self.tr("Add the runs chosen in the list of runs"),
            self.add_selection,
        )  # fmt: skip
        add = self._button("compare_add", self.tr("&Add runs…"), self.tr("Search for runs to add"), self.ask_for_runs)
        self._remove_button = self._button(
            "compare_remove", self.tr("R&emove"), self.tr("Remove the runs of the chosen rows"), self._remove_chosen
        )
        self._clear_button = self._button("compare_clear", self.tr("&Clear"), self.tr("Remove all runs"), self.clear)
        self._copy_button = self._button(
            "compare_copy", self.tr("Copy &table"), self.tr("Copy the table, for a spreadsheet"), self._copy
        )
        self._report_button = self._button(
            "compare_report", self.tr("Re&port…"), self.tr("Write a page about these runs that opens in any browser"),
            lambda: self.report_wanted.emit(list(self.runs.values())),
        )  # fmt: skip
        for button in (
            add_selection,
            add,
            self._remove_button,
            self._clear_button,
            self._copy_button,
            self._report_button,
        ):
            bar.addWidget(button)
        for button in (self._remove_button, self._clear_button, self._copy_button, self._report_button):
            button.setEnabled(False)
        self.banner = Banner()
        self._waiting = QLabel(self.tr("Loading…"))
        self._waiting.setProperty("role", "caption")
        self._waiting.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._split = QSplitter(Qt.Orientation.Vertical)
        self._split.setObjectName("compare_split")
        self._split.setChildrenCollapsible(False)
        compared = QWidget()
        inside = QVBoxLayout(compared)
        inside.setContentsMargins(0, 0, 0, 0)
        inside.addWidget(self._waiting)
        inside.addWidget(self._split, 1)
        self._pages = QStackedWidget()
        self._pages.addWidget(self._empty_page())
        self._pages.addWidget(compared)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(10, 8, 10, 8)
        layout.setSpacing(6)
        layout.addLayout(bar)
        layout.addWidget(self.banner)
        layout.addWidget(self._pages, 1)

    def _empty_page(self) -> QWidget:
        words = QLabel(
            self.tr(
                "Nothing to compare yet.\n\nChoose two or more runs in the list of runs (Ctrl or Shift and a click) "
                "and “Compare” in their menu,\nor add runs here."
            )
        )
        words.setObjectName("compare_empty")
        words.setProperty("role", "caption")
        words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        return words

    def _button(self, name: str, text: str, tip: str, then: Callable[[], object]) -> QPushButton:
        button = QPushButton(text)
        button.setObjectName(name)
        button.setAccessibleName(tip)
        button.setToolTip(tip)
        button.clicked.connect(lambda: then())
        return button

    def ask_for_runs(self) -> None:
        from gym_gui.ui.widgets.add_runs_dialog import AddRunsDialog

        dialog = AddRunsDialog(self.link, list(self.runs.values()), [run.run_id for run in self.selected_runs()], self)
        dialog.chosen.connect(self.add_runs)
        dialog.open()

    def _remove_chosen(self) -> None:
        if self.figures is not None:
            self.remove(self.figures.table.chosen_runs())

    def _copy(self) -> None:
        if self.figures is not None:
            self.figures.table.copy()
            self._say(self.tr("The table was copied."), "info")

    def _say(self, words: str, tone: str = "bad") -> None:
        self.banner.say(
            words, "bad" if tone == "bad" else "warning" if tone == "warning" else "info",
            action=self.tr("Dismiss"), on_action=self.banner.clear,
        )  # fmt: skip

    # ---------------------------------------------------------------- between sessions

    def _settings(self) -> QSettings:
        settings = QSettings("MOSAIC", "mosaic")
        settings.beginGroup(SETTINGS)
        return settings

    def _restore(self) -> None:
        """What was compared last."""
        try:
            kept = json.loads(str(self._settings().value("runs") or "[]"))
        except ValueError:  # edited by hand
            return
        if isinstance(kept, list) and kept and self.link.is_connected:
            self._ask_for([str(run_id) for run_id in kept], keep=True, wish=self._wish)


def _import_parts() -> tuple[Any, Any]:
    names = ("chart_board", "comparison_view")
    board, view = (importlib.import_module(f"gym_gui.ui.widgets.{name}") for name in names)
    return board, view


def _with_earlier(client: TrainerClient, runs: Sequence[pb.Run]) -> list[pb.Run]:
    from gym_gui.services.analytics.lineage import with_earlier  # imports NumPy: in the thread that asks

    return with_earlier(client, runs)


def _records(client: TrainerClient, run_ids: Sequence[str]) -> list[pb.Run]:
    """Those that are still there, in this order."""
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
