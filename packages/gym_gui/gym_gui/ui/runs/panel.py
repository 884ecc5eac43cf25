"""The panel of runs: filter, facets, table, and what can be done with the chosen ones.

panel = RunsPanel(link, actions)
panel.run_opened.connect(window.open_run)
panel.selection_changed.connect(…)               tuple of run ids
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QEvent, QPoint, Qt, QTimer, Signal
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QHideEvent, QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QMenu, QStackedWidget, QVBoxLayout, QWidget

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.run_actions import RunActions
from gym_gui.ui.runs import panel_settings
from gym_gui.ui.runs.empty_page import EmptyPage
from gym_gui.ui.runs.filter_bar import FilterBar
from gym_gui.ui.runs.filtering import RunFilter
from gym_gui.ui.runs.model import RunsModel
from gym_gui.ui.runs.panel_settings import PanelState
from gym_gui.ui.runs.possibilities import Deed
from gym_gui.ui.runs.rows import Column, title_of_column
from gym_gui.ui.runs.sparklines import Sparklines
from gym_gui.ui.runs.view import RunsView
from gym_gui.ui.widgets.banner import Banner

_LOOK_MS = 150
"""After scrolling came to rest, the curves of the rows on the screen are asked for"""
_TICK_MS = 1_000
_SAVE_MS = 700
_NEWS_MS = 8_000
"""Good news leave by themselves"""
ARCHIVE_SUFFIXES = (".tar.gz", ".tgz")


class RunsPanel(QWidget):
    """All runs of the daemon."""

    run_opened = Signal(str)
    selection_changed = Signal(object)  # tuple of run ids
    compare_wanted = Signal(object)  # tuple of run ids

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
        actions.known_tags = self.model.all_tags
        self._ask_for_runs()

    # ------------------------------------------------------------------ building

    def _build(self) -> None:
        self.count = QLabel()
        self.count.setObjectName("runs_count")
        self.count.setProperty("role", "caption")
        self._pages = QStackedWidget()
        self._pages.addWidget(self.view)
        self._pages.addWidget(self.empty)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(6, 6, 6, 4)
        layout.setSpacing(4)
        layout.addWidget(self.bar)
        layout.addWidget(self.banner)
        layout.addWidget(self._pages, 1)
        foot = QHBoxLayout()
        foot.addWidget(self.count, 1)
        layout.addLayout(foot)
        self._look_timer = QTimer(self, singleShot=True, interval=_LOOK_MS)
        self._look_timer.timeout.connect(self._ask_for_curves)
        self._tick_timer = QTimer(self, interval=_TICK_MS)
        self._tick_timer.timeout.connect(self._tick)
        self._save_timer = QTimer(self, singleShot=True, interval=_SAVE_MS)
        self._save_timer.timeout.connect(self._save)
        self._news_timer = QTimer(self, singleShot=True, interval=_NEWS_MS)
        self._news_timer.timeout.connect(self.banner.clear)
        for keys, deed in (
            (QKeySequence.StandardKey.Delete, Deed.DELETE),
            ("F2", Deed.EDIT),
            (QKeySequence.StandardKey.Copy, Deed.COPY_ID),
        ):
            shortcut = QShortcut(QKeySequence(keys), self.view)
            shortcut.setContext(Qt.ShortcutContext.WidgetShortcut)
            shortcut.activated.connect(lambda deed=deed: self.run_actions.do(deed, self.selected_runs()))

    def _connect(self) -> None:
        link, model, view, header = self.link, self.model, self.view, self.view.horizontalHeader()
        link.runs_loaded.connect(self._load)
        link.runs_changed.connect(self._update)
        link.runs_removed.connect(self._remove)
        link.state_changed.connect(lambda: self._ask_for_runs())
        model.counts_changed.connect(self._show_counts)
        view.opened.connect(self.run_opened)
        view.selected_ids_changed.connect(self._selection_changed)
        view.rows_on_screen_changed.connect(self._look_soon)
        view.customContextMenuRequested.connect(self._show_menu)
        header.customContextMenuRequested.connect(self._show_columns_menu)
        for changed in (header.sectionMoved, header.sectionResized, header.sortIndicatorChanged):
            changed.connect(lambda *_: self._save_timer.start())
        self.bar.filter_changed.connect(self._apply)
        self.bar.grouping_changed.connect(self._set_grouped)
        self.bar.columns_menu.aboutToShow.connect(lambda: self._fill_columns_menu(self.bar.columns_menu))
        self.bar.left.connect(self.view.setFocus)
        self.bar.said.connect(self.say)
        self.empty.acted.connect(self._leave_empty_page)
        self.sparklines.arrived.connect(model.set_curve)
        self.run_actions.said.connect(self.say)
        self.run_actions.run_opened.connect(self.run_opened)
        self.run_actions.compare_wanted.connect(self.compare_wanted)

    def _restore(self) -> None:
        kept = panel_settings.load()
        header = self.view.horizontalHeader()
        self.view.take_usual_widths()
        self.view.setSortingEnabled(True)
        if kept.header is not None:
            header.restoreState(kept.header)
            self.view.shares_rest = kept.shares_rest
        self.view.sortByColumn(kept.sort_column, kept.sort_order)
        self.model.set_grouped(kept.is_grouped)
        self.bar.show_grouping(kept.is_grouped)
        self._apply(RunFilter(show_archived=kept.show_archived))
        self.bar.show_filter(self.model.filter)

    def _save(self) -> None:
        self._save_timer.stop()
        panel_settings.save(
            PanelState(
                self.view.horizontalHeader().saveState(),
                self.model.sort_column,
                self.model.sort_order,
                self.model.is_grouped,
                self.model.filter.show_archived,
                self.view.shares_rest,
            )
        )

    # ------------------------------------------------------------------ what others ask

    def selected_runs(self) -> list[pb.Run]:
        """The chosen runs, in the order they are shown; a group stands for its runs."""
        return self.model.runs_at(self.view.selected_positions())

    def select(self, run_ids: Sequence[str]) -> None:
        """Choose these runs and bring the first into view."""
        self.view.select_entries(run_ids, current=run_ids[0] if run_ids else "")
        if run_ids and (position := self.model.position_of(run_ids[0])) is not None:
            self.view.bring_into_view(position)

    def focus_filter(self) -> None:
        self.bar.focus()

    def import_files(self, files: Sequence[Path]) -> None:
        """Take in runs from archive files."""
        self.run_actions.import_files(files)

    def say(self, words: str, tone: str = "info") -> None:
        """Tell the person what came of it; problems stay until they are dismissed."""
        self.banner.say(
            words,
            "bad" if tone == "bad" else "warning" if tone == "warning" else "info",
            action=self.tr("Dismiss"),
            on_action=self.banner.clear,
        )
        if tone == "info":
            self._news_timer.start()
        else:
            self._news_timer.stop()

    # ------------------------------------------------------------------ news

    def _ask_for_runs(self) -> None:
        """The link may have told of them before anybody listened here."""
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
        self._look_soon()

    def _update(self, runs: Sequence[pb.Run]) -> None:
        self.model.update(runs)

    def _remove(self, run_ids: Sequence[str]) -> None:
        self.sparklines.forget(run_ids)
        self.model.remove(run_ids)

    def _fail(self, words: str) -> None:
        self.say(words, "bad")

    def _show_counts(self, shown: int, total: int) -> None:
        if shown == total:
            text = self.tr("1 run") if total == 1 else self.tr("{0} runs").format(f"{total:,}")
        else:
            text = self.tr("{0} of {1} runs").format(f"{shown:,}", f"{total:,}")
        if len(self._selected) > 1:
            text += " · " + self.tr("{0} chosen").format(f"{len(self._selected):,}")
        self.count.setText(text)
        self._counts = shown, total
        self._show_state()

    def _show_state(self) -> None:
        """The table, or a page that says why it is empty."""
        if self.model.rowCount():
            self._pages.setCurrentWidget(self.view)
            return
        if not self._is_loaded:
            self.empty.say_loading(self.link.is_connected, self.link.state.detail)
        elif self.model.filter.is_active:
            self.empty.say_nothing_fits()
        elif self.model.total:
            self.empty.say_all_archived(self.model.total)
        else:
            self.empty.say_no_runs()
        self._pages.setCurrentWidget(self.empty)

    def _leave_empty_page(self) -> None:
        if self.model.filter.is_active:
            self.bar.show_filter(RunFilter(show_archived=self.model.filter.show_archived))
            self._apply(self.bar.filter)
        else:
            self.bar.show_filter(RunFilter(show_archived=True))
            self._apply(self.bar.filter)

    # ------------------------------------------------------------------ what the person does

    def _apply(self, wanted: RunFilter) -> None:
        if wanted.show_archived != self.model.filter.show_archived:
            self._save_timer.start()
        self.model.set_filter(wanted)

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
        menu.aboutToHide.connect(self._let_go)
        menu.popup(self.view.viewport().mapToGlobal(place))

    def _let_go(self) -> None:
        self.model.is_held = False

    def context_menu(self, runs: Sequence[pb.Run]) -> QMenu:
        """What can be done with these runs."""
        menu = QMenu(self)
        menu.setObjectName("runs_context_menu")
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setToolTipsVisible(True)
        menu.addActions(self.run_actions.actions_for(runs, parent=menu))
        return menu

    def _show_columns_menu(self, place: QPoint) -> None:
        menu = QMenu(self)
        menu.setObjectName("columns_menu")
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._fill_columns_menu(menu)
        menu.popup(self.view.horizontalHeader().mapToGlobal(place))

    def _fill_columns_menu(self, menu: QMenu) -> None:
        menu.clear()
        for column in Column:
            action = menu.addAction(title_of_column(column))
            action.setCheckable(True)
            action.setChecked(not self.view.isColumnHidden(column))
            action.setEnabled(column is not Column.NAME)  # something has to be left to click on
            action.toggled.connect(lambda shown, column=column: self._show_column(column, shown))
        menu.addSeparator()
        menu.addAction(self.tr("&Usual columns")).triggered.connect(lambda: self.take_usual_columns())

    def _show_column(self, column: Column, shown: bool) -> None:
        self.view.show_column(column, shown)
        self._save_timer.start()

    def take_usual_columns(self) -> None:
        """As on the first day."""
        self.view.take_usual_columns()
        self._save_timer.start()

    # ------------------------------------------------------------------ curves and clocks

    def _look_soon(self) -> None:
        if self.isVisible():
            self._look_timer.start()

    def _ask_for_curves(self) -> None:
        if self.isVisible() and not self.view.isColumnHidden(Column.RETURN):
            self.sparklines.want(self.model.runs_shown_at(self.view.positions_on_screen()))

    def _tick(self) -> None:
        self.model.tick(self.view.positions_on_screen())
        self._ask_for_curves()

    # ------------------------------------------------------------------ events

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._tick_timer.start()
        self._look_soon()

    def hideEvent(self, event: QHideEvent) -> None:
        self._tick_timer.stop()
        if self._save_timer.isActive():
            self._save()
        super().hideEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() in (QEvent.Type.PaletteChange, QEvent.Type.FontChange) and hasattr(self, "view"):
            self.view.take_sizes()
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
    """The exported runs among the files that are dragged."""
    files = [Path(url.toLocalFile()) for url in event.mimeData().urls() if url.isLocalFile()]
    return [file for file in files if file.name.endswith(ARCHIVE_SUFFIXES)]
