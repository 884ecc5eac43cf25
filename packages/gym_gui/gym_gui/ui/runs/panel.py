"""The panel with the list of runs: filter, facets, table, sparklines, and actions on the selection.

panel = RunsPanel(link, actions)
panel.run_opened.connect(window.open_run)
panel.selection_changed.connect(…)               tuple of run ids
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import QByteArray, QEvent, QObject, QPoint, Qt, Signal
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QHideEvent, QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QMenu, QPushButton, QStackedWidget, QVBoxLayout, QWidget

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.runs.actions import RunActions
from gym_gui.ui.runs.allowed_actions import RunAction
from gym_gui.ui.runs.filter_bar import FilterBar
from gym_gui.ui.runs.filtering import RunFilter
from gym_gui.ui.runs.model import RunsModel
from gym_gui.ui.runs.rows import RunColumn, title_of_column
from gym_gui.ui.runs.view import RunsView
from gym_gui.ui.settings import stored
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import fill, named, styled, timer

COLUMNS_VERSION = 2
"""Increment it when a column of `RunColumn` is added, removed or moved"""


class EmptyPage(QWidget):
    """A message, with a button if there is a remedy."""

    acted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("runs_empty_page")
        self.title = styled(QLabel(), "title")
        self.message = named(QLabel(), "runs_empty_message", role="caption")
        for label in (self.title, self.message):
            label.setAlignment(Qt.AlignmentFlag.AlignCenter)
            label.setWordWrap(True)
        self.button = named(QPushButton(), "runs_empty_button")
        self.button.clicked.connect(lambda: self.acted.emit())
        layout = fill(QVBoxLayout(self), 2, self.title, self.message)
        layout.addWidget(self.button, 0, Qt.AlignmentFlag.AlignHCenter)
        layout.addStretch(3)

    def show_loading(self, is_connected: bool, detail: str) -> None:
        text = self.tr("Loading runs…") if is_connected else detail
        self._set_message(self.tr("Connecting to the trainer daemon…"), text)

    def show_no_runs(self) -> None:
        self._set_message(
            self.tr("No runs yet"), self.tr("Start one with “New run”, or drop an exported run (.tar.gz) here.")
        )

    def show_no_match(self) -> None:
        self._set_message(
            self.tr("No run matches the filter"),
            self.tr(
                "Plain terms are searched in names, tags and notes; algo:ppo, status:running or seed:1-5 in one field."
            ),
            self.tr("Clear the filter"),
        )

    def show_all_archived(self, count: int) -> None:
        text = (
            self.tr("The only run is archived.") if count == 1 else self.tr("All {0} runs are archived.").format(count)
        )
        self._set_message(self.tr("Nothing to show"), text, self.tr("Show archived runs"))

    def _set_message(self, title: str, text: str, action: str = "") -> None:
        self.title.setText(title)
        self.message.setText(text)
        self.button.setText(action)
        self.button.setAccessibleName(action)
        self.button.setVisible(bool(action))


TAG = "charts/episodic_return"
POINTS = 40
AT_ONCE = 6
"""Curves per request, so that fast scrolling does not queue hundreds"""
REFRESH_S = 4.0
"""Interval after which a growing curve is requested again"""
_MAX_CACHED = 1_000


@dataclass(frozen=True)
class _CurveCache:
    curve: tuple[float, ...]
    fetched_at: float
    step: int
    is_final: bool


class Sparklines(QObject):
    """Loads the curves of the runs passed to `request`; emits `arrived` for each that changed."""

    arrived = Signal(str, object)  # run id, tuple[float, ...]

    def __init__(
        self, link: DaemonLink, parent: QObject | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(parent)
        self._link = link
        self._clock = clock
        self._kept: OrderedDict[str, _CurveCache] = OrderedDict()
        self._requested: tuple[pb.Run, ...] = ()
        self._is_busy = False

    def request(self, runs: Sequence[pb.Run]) -> None:
        """Set the runs that are on the screen."""
        self._requested = tuple(runs)
        self._load_next()

    def forget(self, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:
            self._kept.pop(run_id, None)

    def _load_next(self) -> None:
        if self._is_busy or not self._link.is_connected:
            return
        due = [run for run in self._requested if self._is_due(run)][:AT_ONCE]
        if not due:
            return
        self._is_busy = True
        requested = {run.run_id: run for run in due}
        self._link.call(
            lambda client: {run_id: fetch(client, run_id) for run_id in requested},
            owner=self,
            done=lambda curves: self._apply_curves(requested, curves),
            failed=lambda text: self._give_up(),
        )

    def _is_due(self, run: pb.Run) -> bool:
        kept = self._kept.get(run.run_id)
        if kept is None:
            return run.status not in (RunStatus.INIT, RunStatus.HSHK)  # it has no curve yet
        if kept.is_final or kept.step == run.step:
            return run.status == RunStatus.TERM and not kept.is_final
        return self._clock() - kept.fetched_at >= REFRESH_S

    def _apply_curves(self, requested: dict[str, pb.Run], curves: dict[str, tuple[float, ...]]) -> None:
        self._is_busy = False
        now = self._clock()
        for run_id, curve in curves.items():
            run = requested[run_id]
            self._kept[run_id] = _CurveCache(curve, now, run.step, run.status == RunStatus.TERM)
            self._kept.move_to_end(run_id)
            self.arrived.emit(run_id, curve)
        while len(self._kept) > _MAX_CACHED:
            old, _ = self._kept.popitem(last=False)
            self.arrived.emit(old, ())
        self._load_next()

    def _give_up(self) -> None:
        # The daemon is unreachable; the next poll retries.
        self._is_busy = False


def fetch(client: TrainerClient, run_id: str) -> tuple[float, ...]:
    """Return the downsampled returns of a run; none if it has no such curve or was deleted."""
    values: list[float] = []
    try:
        with client.metrics(run_id, [TAG], max_points=POINTS) as stream:
            for message in stream:
                for curve in message.curves:
                    if curve.is_reset:
                        values.clear()
                    values.extend(curve.values)
    except DaemonUnreachable:
        raise
    except TrainerError:
        return ()
    return tuple(value for value in values if math.isfinite(value))


_POLL_MS = 150
"""Delay after scrolling before the curves on the screen are requested"""
_TICK_MS = 1_000
_SAVE_MS = 700
_NOTICE_MS = 8_000
"""Time after which informational messages disappear"""
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")


class RunsPanel(QWidget):
    """The list of all runs of the daemon."""

    run_opened = Signal(str)
    selection_changed = Signal(object)  # tuple of run ids
    compare_requested = Signal(object)  # tuple of run ids

    def __init__(self, link: DaemonLink, actions: RunActions, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("runs_panel")
        self.setAcceptDrops(True)
        self.link, self.run_actions = link, actions
        self._selected: tuple[str, ...] = ()
        self._counts = (0, 0)
        self._is_loaded = False
        self.model = RunsModel(self)
        self.view = RunsView(self.model)
        self.bar = FilterBar(link, self.model)
        self.banner = Banner()
        self.empty = EmptyPage()
        self.sparklines = Sparklines(link, self)
        self._build()
        self._restore()
        self._connect()
        actions.known_tags, actions.known_runs = self.model.all_tags, self.model.all_runs
        self._ask_for_runs()

    # ------------------------------------------------------------------ construction

    def _build(self) -> None:
        self.count = named(QLabel(), "runs_count", role="caption")
        self._pages = QStackedWidget()
        self._pages.addWidget(self.view)
        self._pages.addWidget(self.empty)
        layout = fill(QVBoxLayout(self), self.bar, self.banner, (self._pages, 1), margins=(6, 6, 6, 4), spacing=4)
        foot = fill(QHBoxLayout(), (self.count, 1))
        layout.addLayout(foot)
        self._poll_timer = timer(self, self._ask_for_curves, _POLL_MS, single_shot=True)
        self._tick_timer = timer(self, self._tick, _TICK_MS)
        self._save_timer = timer(self, self._save, _SAVE_MS, single_shot=True)
        self._notice_timer = timer(self, self.banner.clear, _NOTICE_MS, single_shot=True)
        for keys, kind in (
            (QKeySequence.StandardKey.Delete, RunAction.DELETE),
            ("F2", RunAction.EDIT),
            (QKeySequence.StandardKey.Copy, RunAction.COPY_ID),
        ):
            shortcut = QShortcut(QKeySequence(keys), self.view)
            shortcut.setContext(Qt.ShortcutContext.WidgetShortcut)
            shortcut.activated.connect(lambda kind=kind: self.run_actions.do(kind, self.selected_runs()))

    def _connect(self) -> None:
        link, model, view, header = self.link, self.model, self.view, self.view.horizontalHeader()
        link.runs_loaded.connect(self._load)
        link.runs_changed.connect(self._update)
        link.runs_removed.connect(self._remove)
        link.state_changed.connect(lambda: self._ask_for_runs())
        model.counts_changed.connect(self._show_counts)
        view.opened.connect(self.run_opened)
        view.selected_ids_changed.connect(self._selection_changed)
        view.rows_on_screen_changed.connect(self._poll_soon)
        view.customContextMenuRequested.connect(self._show_menu)
        header.customContextMenuRequested.connect(self._show_columns_menu)
        for changed in (header.sectionMoved, header.sectionResized, header.sortIndicatorChanged):
            changed.connect(lambda *_: self._save_timer.start())
        self.bar.filter_changed.connect(self._apply)
        self.bar.grouping_changed.connect(self._set_grouped)
        self.bar.columns_menu.aboutToShow.connect(lambda: self._fill_columns_menu(self.bar.columns_menu))
        self.bar.left.connect(self.view.setFocus)
        self.bar.reported.connect(self.set_message)
        self.empty.acted.connect(self._leave_empty_page)
        self.sparklines.arrived.connect(model.set_curve)
        self.run_actions.reported.connect(self.set_message)
        self.run_actions.run_opened.connect(self.run_opened)
        self.run_actions.compare_requested.connect(self.compare_requested)

    def _restore(self) -> None:
        """Restore the saved columns, unless they are of another version."""
        settings = stored("runs")
        is_known = str(settings.value("columns_version")) == str(COLUMNS_VERSION)

        def flag(name: str) -> bool:
            return is_known and str(settings.value(name)) == "true"

        column, order = RunColumn.STARTED, Qt.SortOrder.DescendingOrder
        with contextlib.suppress(ValueError):  # edited by hand
            column = RunColumn(int(str(settings.value("sort_column")))) if is_known else column
        if flag("sort_ascending"):
            order = Qt.SortOrder.AscendingOrder
        self.view.reset_widths()
        self.view.setSortingEnabled(True)
        header = settings.value("header")
        if is_known and isinstance(header, QByteArray):
            self.view.horizontalHeader().restoreState(header)
            self.view.shares_rest = flag("shares_rest")
        self.view.sortByColumn(column, order)
        self.model.set_grouped(flag("grouped"))
        self.bar.show_grouping(flag("grouped"))
        self._apply(RunFilter(show_archived=flag("archived")))
        self.bar.show_filter(self.model.filter)

    def _save(self) -> None:
        self._save_timer.stop()
        settings = stored("runs")
        settings.setValue("columns_version", COLUMNS_VERSION)
        settings.setValue("header", self.view.horizontalHeader().saveState())
        settings.setValue("sort_column", int(self.model.sort_column))
        flags = {
            "sort_ascending": self.model.sort_order == Qt.SortOrder.AscendingOrder,
            "grouped": self.model.is_grouped,
            "archived": self.model.filter.show_archived,
            "shares_rest": self.view.shares_rest,
        }
        for name, is_set in flags.items():
            settings.setValue(name, "true" if is_set else "false")
        settings.sync()

    # ------------------------------------------------------------------ for the owner

    def selected_runs(self) -> list[pb.Run]:
        """Return the selected runs in the shown order; a group stands for its runs."""
        return self.model.runs_at(self.view.selected_positions())

    def select(self, run_ids: Sequence[str]) -> None:
        """Select these runs and scroll to the first."""
        self.view.select_entries(run_ids, current=run_ids[0] if run_ids else "")
        if run_ids and (position := self.model.position_of(run_ids[0])) is not None:
            self.view.bring_into_view(position)

    def focus_filter(self) -> None:
        self.bar.focus()

    def import_files(self, files: Sequence[Path]) -> None:
        """Import runs from archive files."""
        self.run_actions.import_files(files)

    def set_message(self, text: str, tone: str = "info") -> None:
        """Show a message; problems stay until they are dismissed."""
        self.banner.set_message(
            text,
            "bad" if tone == "bad" else "warning" if tone == "warning" else "info",
            action=self.tr("Dismiss"),
            on_action=self.banner.clear,
        )
        if tone == "info":
            self._notice_timer.start()
        else:
            self._notice_timer.stop()

    # ------------------------------------------------------------------ updates

    def _ask_for_runs(self) -> None:
        """Load the runs: the link may have emitted them before this panel existed."""
        self._show_state()
        if self.link.is_connected and not self._is_loaded:
            self.link.call(
                lambda client: tuple(client.list(include_archived=True).runs),
                owner=self,
                done=self._load,
                failed=self._fail,
            )

    def _load(self, runs: Sequence[pb.Run]) -> None:
        self._is_loaded = True
        self.model.load(runs)
        self._show_state()
        self._poll_soon()

    def _update(self, runs: Sequence[pb.Run]) -> None:
        self.model.update(runs)

    def _remove(self, run_ids: Sequence[str]) -> None:
        self.sparklines.forget(run_ids)
        self.model.remove(run_ids)

    def _fail(self, text: str) -> None:
        self.set_message(text, "bad")

    def _show_counts(self, shown: int, total: int) -> None:
        if shown == total:
            text = self.tr("1 run") if total == 1 else self.tr("{0} runs").format(f"{total:,}")
        else:
            text = self.tr("{0} of {1} runs").format(f"{shown:,}", f"{total:,}")
        if len(self._selected) > 1:
            text += " · " + self.tr("{0} selected").format(f"{len(self._selected):,}")
        self.count.setText(text)
        self._counts = shown, total
        self._show_state()

    def _show_state(self) -> None:
        """Show the table, or a page that explains why it is empty."""
        if self.model.rowCount():
            self._pages.setCurrentWidget(self.view)
            return
        if not self._is_loaded:
            self.empty.show_loading(self.link.is_connected, self.link.state.detail)
        elif self.model.filter.is_active:
            self.empty.show_no_match()
        elif self.model.total:
            self.empty.show_all_archived(self.model.total)
        else:
            self.empty.show_no_runs()
        self._pages.setCurrentWidget(self.empty)

    def _leave_empty_page(self) -> None:
        if self.model.filter.is_active:
            self.bar.show_filter(RunFilter(show_archived=self.model.filter.show_archived))
            self._apply(self.bar.filter)
        else:
            self.bar.show_filter(RunFilter(show_archived=True))
            self._apply(self.bar.filter)

    # ------------------------------------------------------------------ user input

    def _apply(self, requested: RunFilter) -> None:
        if requested.show_archived != self.model.filter.show_archived:
            self._save_timer.start()
        self.model.set_filter(requested)

    def _set_grouped(self, grouped: bool) -> None:
        self.model.set_grouped(grouped)
        self._save_timer.start()

    def _selection_changed(self) -> None:
        selected = tuple(run.run_id for run in self.selected_runs())
        if selected != self._selected:
            self._selected = selected
            self._show_counts(*self._counts)
            self.selection_changed.emit(selected)

    def _show_menu(self, place: QPoint) -> None:
        runs = self.selected_runs()
        if not runs:
            return
        menu = self.context_menu(runs)
        self.model.is_held = True
        menu.aboutToHide.connect(self._release_order)
        menu.popup(self.view.viewport().mapToGlobal(place))

    def _release_order(self) -> None:
        self.model.is_held = False

    def context_menu(self, runs: Sequence[pb.Run]) -> QMenu:
        """Return a menu of the actions for these runs."""
        menu = named(QMenu(self), "runs_context_menu")
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setToolTipsVisible(True)
        menu.addActions(self.run_actions.actions_for(runs, parent=menu))
        return menu

    def _show_columns_menu(self, place: QPoint) -> None:
        menu = named(QMenu(self), "columns_menu")
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._fill_columns_menu(menu)
        menu.popup(self.view.horizontalHeader().mapToGlobal(place))

    def _fill_columns_menu(self, menu: QMenu) -> None:
        menu.clear()
        for column in RunColumn:
            action = menu.addAction(title_of_column(column))
            action.setCheckable(True)
            action.setChecked(not self.view.isColumnHidden(column))
            action.setEnabled(column is not RunColumn.NAME)  # at least one column must remain
            action.toggled.connect(lambda shown, column=column: self._show_column(column, shown))
        menu.addSeparator()
        menu.addAction(self.tr("&Default columns")).triggered.connect(lambda: self.reset_columns())

    def _show_column(self, column: RunColumn, shown: bool) -> None:
        self.view.show_column(column, shown)
        self._save_timer.start()

    def reset_columns(self) -> None:
        """Restore the default columns."""
        self.view.reset_columns()
        self._save_timer.start()

    # ------------------------------------------------------------------ sparklines and durations

    def _poll_soon(self) -> None:
        if self.isVisible():
            self._poll_timer.start()

    def _ask_for_curves(self) -> None:
        if self.isVisible() and not self.view.isColumnHidden(RunColumn.RETURN):
            self.sparklines.request(self.model.runs_shown_at(self.view.positions_on_screen()))

    def _tick(self) -> None:
        self.model.tick(self.view.positions_on_screen())
        self._ask_for_curves()

    # ------------------------------------------------------------------ events

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._tick_timer.start()
        self._poll_soon()

    def hideEvent(self, event: QHideEvent) -> None:
        self._tick_timer.stop()
        if self._save_timer.isActive():
            self._save()
        super().hideEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() in (QEvent.Type.PaletteChange, QEvent.Type.FontChange) and hasattr(self, "view"):
            self.view.update_sizes()
            self.view.viewport().update()
        super().changeEvent(event)

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if archives_in(event):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        if files := archives_in(event):
            event.acceptProposedAction()
            self.import_files(files)


def archives_in(event: QDropEvent) -> list[Path]:
    """Return the exported runs among the dragged files."""
    files = [Path(url.toLocalFile()) for url in event.mimeData().urls() if url.isLocalFile()]
    return [file for file in files if file.name.endswith(ARCHIVE_SUFFIXES)]
