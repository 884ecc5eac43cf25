"""The page of one run: a header, and tabs that are built when they are first opened.

The presenter names the tabs of a run and their order; the last open tab is remembered for each lane.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import QEvent, QObject, QSettings, QSize, Qt, Signal
from PySide6.QtGui import QAction, QColor, QHideEvent, QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QMenu, QSizePolicy, QTabWidget, QToolButton, QVBoxLayout, QWidget

from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.run_files import RunArtifacts, scan_artifacts, tabs_of
from gym_gui.ui.run_page.files_tab import FilesTab
from gym_gui.ui.run_page.history_tab import HistoryTab
from gym_gui.ui.run_page.logs_tab import LogsTab
from gym_gui.ui.run_page.overview_tab import OverviewTab
from gym_gui.ui.run_page.run_details import Lineage
from gym_gui.ui.run_page.run_labels import chip_text, headline_of
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import ElidedLabel, fill, named, timer
from gym_gui.ui.widgets.run_tab import RunTab
from gym_gui.wording.run_view import short_id, title_of

MAIN_ACTIONS = ("run_pause", "run_resume", "run_cancel", "run_extend", "run_evaluate", "run_clone")
"""Actions that get a button while they are allowed; all others are in the menu"""


class StateChip(QWidget):
    """The state of a run in a rounded frame of its color, with a symbol: `▶ Running`."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("state_chip")
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self._text = ""
        self._run: pb.Run | None = None

    @property
    def text(self) -> str:
        return self._text

    def show_state(self, run: pb.Run, text: str) -> None:
        self._run = run
        if text != self._text:
            self._text = text
            self.setAccessibleName(text)
            self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        metrics = self.fontMetrics()
        return QSize(metrics.horizontalAdvance(self._text) + metrics.height() + 4, metrics.height() + 8)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() in (QEvent.Type.FontChange, QEvent.Type.StyleChange):
            self.updateGeometry()
        super().changeEvent(event)

    def paintEvent(self, _event: QPaintEvent) -> None:
        if self._run is None:
            return
        color = theme.color_of(self._run)
        fill = QColor(color)
        fill.setAlpha(40)
        with QPainter(self) as painter:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(color)
            painter.setBrush(fill)
            shape = self.rect().adjusted(1, 1, -2, -2)
            painter.drawRoundedRect(shape, shape.height() / 2, shape.height() / 2)
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter, self._text)


class RunHeader(QWidget):
    """The header of the page; its buttons are reused, so that they keep the keyboard focus."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("run_header")
        self.chip = StateChip()
        self.title = named(ElidedLabel(), "run_title", role="title")
        self.subtitle = named(ElidedLabel(), "run_subtitle", role="caption")
        self._actions: dict[str, QAction] = {}
        self.buttons = {name: self._button(name) for name in MAIN_ACTIONS}
        self.menu = QMenu(self)
        self.menu.setToolTipsVisible(True)
        self.more_button = named(QToolButton(), "run_more", self.tr("All actions for this run"))
        self.more_button.setText(self.tr("More"))
        self.more_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.more_button.setMenu(self.menu)
        top = fill(QHBoxLayout(), self.chip, (self.title, 1), *self.buttons.values(), self.more_button, spacing=8)
        fill(QVBoxLayout(self), top, self.subtitle, margins=(12, 8, 12, 6), spacing=2)

    def _button(self, name: str) -> QToolButton:
        button = named(QToolButton(), f"header_{name}")
        button.clicked.connect(lambda: self._trigger(name))
        button.hide()
        return button

    def _trigger(self, name: str) -> None:
        if (action := self._actions.get(name)) is not None:
            action.trigger()

    def show_state(self, run: pb.Run, chip: str, title: str, subtitle: str) -> None:
        self.chip.show_state(run, chip)
        self.title.show_text(title)
        self.subtitle.show_text(subtitle)

    def show_actions(self, actions: list[QAction]) -> None:
        """Show the allowed actions; the previous ones may be deleted afterwards."""
        self._actions = {action.objectName(): action for action in actions if action.objectName()}
        for name, button in self.buttons.items():
            action = self._actions.get(name)
            button.setVisible(action is not None and action.isEnabled())
            if action is not None:
                button.setText(action.text().replace("&", ""))
                button.setToolTip(action.toolTip())
                button.setAccessibleName(action.text().replace("&", ""))
        self.menu.clear()
        self.menu.addActions([action for action in actions if action.objectName() != "run_open"])


SCAN_EVERY_MS = 2000


class AnalyticsTabManager(QObject):
    """Watch the manifest and the files of one run."""

    changed = Signal(str)
    """Carries the id of the run whose manifest or files changed"""

    def __init__(
        self, background: Background, parent: QObject | None = None, *, link: DaemonLink | None = None
    ) -> None:
        super().__init__(parent)
        self._background, self._link = background, link
        self._run: pb.Run | None = None
        self._is_seen = False
        self._is_polling = False
        self._polls_again = False
        self.found: RunArtifacts | None = None
        """What was found in the watched run's files; None before the first scan"""
        self._clock = timer(self, self.poll, SCAN_EVERY_MS)

    def watch(self, run: pb.Run | None) -> None:
        """Watch this run; None: no run."""
        before, self._run = self._run, run
        if run is None or before is None or before.run_id != run.run_id:
            self.found = None
            self._follow_or_not()
        elif before.status != run.status:
            self._follow_or_not()  # scan again: a run that started or ended has other files

    def set_seen(self, seen: bool) -> None:
        """Set whether the run is visible."""
        if seen != self._is_seen:
            self._is_seen = seen
            self._follow_or_not()

    def tabs_of(self, run: pb.Run, named: Iterable[str]) -> tuple[str, ...]:
        """Return those tabs of the presenter that this run has now."""
        is_watched = self._run is not None and self._run.run_id == run.run_id
        return tabs_of(run, named, self.found if is_watched else None)

    def _follow_or_not(self) -> None:
        run = self._run
        if run is None or not self._is_seen:
            self._clock.stop()
            return
        self.poll()
        if run.status == RunStatus.TERM:
            self._clock.stop()
        elif not self._clock.isActive():
            self._clock.start()

    def poll(self) -> None:
        """Scan the files now, in the background."""
        run = self._run
        if run is None:
            return
        if self._is_polling:
            self._polls_again = True
            return
        self._is_polling = True
        run_id, before = run.run_id, self.found
        self._background.run(
            lambda: scan_artifacts(self._local(run).run_dir, before),
            owner=self,
            done=lambda found: self._apply_artifacts(run_id, found),
        )

    def _local(self, run: pb.Run) -> pb.Run:
        return run if self._link is None else self._link.local(run, "run/analytics.json", listed=("run/wandb/*",))

    def _apply_artifacts(self, run_id: str, found: RunArtifacts) -> None:
        self._is_polling = False
        if self._polls_again:
            self._polls_again = False
            self.poll()
        if self._run is None or self._run.run_id != run_id or found == self.found:
            return
        self.found = found
        self.changed.emit(run_id)


_SETTINGS = "run_page"

_HEAVY_TABS = {
    "live": ("gym_gui.ui.run_page.live_tab", "LiveTab"),
    "charts": ("gym_gui.ui.charts.tab", "ChartsTab"),
    "tensorboard": ("gym_gui.ui.run_page.tensorboard_tab", "TensorBoardTab"),
    "wandb": ("gym_gui.ui.run_page.wandb_tab", "WandbTab"),
    "optuna": ("gym_gui.ui.studies.panel", "OptunaTab"),
    "replay": ("gym_gui.ui.replay.replay_tab", "ReplayTab"),
}
"""Tab → its module and class, imported when the tab is first opened; each is constructed with the link"""


class _Presenter(Protocol):
    @property
    def lane(self) -> str: ...

    def tabs(self) -> tuple[str, ...]: ...


class Presenters(Protocol):
    """Finds the presenter of a run."""

    def for_run(self, run: pb.Run) -> _Presenter: ...


class Actions(Protocol):
    """Provides the actions for runs."""

    def actions_for(self, runs: list[pb.Run], parent: QObject | None = None) -> list[QAction]: ...


class _TabPlace(QWidget):
    """Placeholder of a tab that was not opened yet."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(f"place_{name}")
        self.name = name
        self.tab: RunTab | None = None
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)

    def put(self, tab: RunTab) -> None:
        self.tab = tab
        layout = self.layout()
        assert layout is not None
        layout.addWidget(tab)


class RunPage(QWidget):
    """Shows one run at a time; `show_run` shows another one in the same tabs."""

    run_shown = Signal(str)
    run_removed = Signal(str)
    form_requested = Signal(str, object)  # the kind of form, the run
    config_requested = Signal(object)  # the config to show in a training form

    def __init__(
        self,
        link: DaemonLink,
        background: Background,
        actions: Actions,
        presenters: Presenters,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setObjectName("run_page")
        self.link, self.background = link, background
        self._run_actions, self._presenters = actions, presenters
        self._settings = QSettings("MOSAIC", "mosaic")
        self.run: pb.Run | None = None
        self._requested = ""
        self._lane = ""
        self._shown_in: dict[str, str] = {}
        """Tab → the run it was last updated with"""
        self._active: RunTab | None = None
        self._chosen: tuple[str, ...] = ()
        self._action_owner: QObject | None = None
        self._actions_for: object = None
        self._is_arranging = False
        self.lineage = Lineage()
        self.analytics = AnalyticsTabManager(background, self, link=link)
        self.analytics.changed.connect(self._on_files_changed)
        self._places: dict[str, _TabPlace] = {}
        self._builders: dict[str, Callable[[], RunTab]] = {
            "overview": self._make_overview,
            "story": lambda: HistoryTab(link),
            "logs": lambda: LogsTab(link),
            "files": lambda: FilesTab(link),
            **{name: partial(self._make_heavy, module, kind) for name, (module, kind) in _HEAVY_TABS.items()},
        }
        self._titles = {
            "overview": self.tr("&Overview"),
            "live": self.tr("L&ive"),
            "charts": self.tr("&Charts"),
            "tensorboard": self.tr("&TensorBoard"),
            "wandb": self.tr("&W&&B"),
            "optuna": self.tr("Opt&una"),
            "story": self.tr("&History"),
            "logs": self.tr("&Logs"),
            "replay": self.tr("Re&play"),
            "files": self.tr("Fil&es"),
        }
        self.header = RunHeader()
        self.banner = Banner(parent=self)
        self.tabs = named(QTabWidget(documentMode=True), "run_tabs", self.tr("Tabs of the run"))
        self.tabs.currentChanged.connect(self._on_tab_changed)
        self.header.hide()
        self.tabs.hide()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        fill(layout, self.header, self.banner, self.tabs)
        layout.setStretch(2, 1)
        layout.addStretch(0)
        link.runs_loaded.connect(self._on_runs_loaded)
        link.runs_changed.connect(self._on_runs_changed)
        link.runs_removed.connect(self._on_runs_removed)
        if link.is_connected:
            self._learn_families()

    # ------------------------------------------------------------------ the run

    def show_run(self, run_id: str) -> None:
        """Load and show this run."""
        self._requested = run_id
        self.link.call(
            lambda client: client.get(run_id),
            owner=self,
            done=lambda run: self._show_loaded_run(run) if run_id == self._requested else None,
            failed=lambda text: self._show_not_found(run_id, text),
        )

    def _show_not_found(self, run_id: str, text: str) -> None:
        if run_id != self._requested or (self.run is not None and self.run.run_id == run_id):
            return
        self._leave()
        self.banner.set_message(
            self.tr("Run {run} cannot be shown: {why}").format(run=short_id(run_id), why=text),
            "warning",
            action=self.tr("Retry"),
            on_action=lambda: self.show_run(run_id),
        )

    def _leave(self) -> None:
        self._set_active(None)
        self.run = None
        self.analytics.watch(None)
        self._shown_in.clear()
        self.header.hide()
        self.tabs.hide()

    def _show_loaded_run(self, run: pb.Run) -> None:
        if self.run is not None and self.run.run_id == run.run_id:
            self._refresh(run)
            return
        self.run = run
        self.banner.clear()
        self.analytics.watch(run)
        self._draw_header()
        self._arrange_tabs(run)
        self.header.show()
        self.tabs.show()
        self._pass_run_on()
        self.run_shown.emit(run.run_id)

    def _refresh(self, run: pb.Run) -> None:
        before = self.run
        self.run = run
        self.analytics.watch(run)
        self._draw_header()
        if before is not None and before.capabilities_json != run.capabilities_json:
            self._arrange_tabs(run)  # the lane is known once the worker has registered
            self._pass_run_on()
        if self._active is not None:
            self._active.refresh(run)

    def _draw_header(self) -> None:
        run = self.run
        assert run is not None
        name = run.name or title_of(run)
        self.header.show_state(run, chip_text(run), name, headline_of(run))
        now = run.run_id, run.status, run.outcome, tuple(run.flags), run.archived, run.step >= run.total, run.name
        if now == self._actions_for:
            return
        self._actions_for = now
        owner = QObject(self)
        self.header.show_actions(self._run_actions.actions_for([run], owner))
        if self._action_owner is not None:
            self._action_owner.deleteLater()
        self._action_owner = owner

    # ------------------------------------------------------------------ tabs

    def choose(self, run_ids: tuple[str, ...]) -> None:
        """Set the runs selected in the list, for tabs that show several."""
        self._chosen = run_ids
        for place in self._places.values():
            if place.tab is not None:
                place.tab.chosen_runs = run_ids

    def _make_overview(self) -> RunTab:
        tab = OverviewTab(self.link)
        tab.set_lineage(self.lineage)
        return tab

    def _make_heavy(self, module: str, kind: str) -> RunTab:
        tab: RunTab = getattr(importlib.import_module(module), kind)(self.link)
        return tab

    def _build_tab(self, place: _TabPlace) -> RunTab:
        tab = self._builders[place.name]()
        tab.chosen_runs = self._chosen
        tab.run_requested.connect(self.show_run)
        tab.tab_requested.connect(self.open_tab)
        tab.form_requested.connect(self.form_requested)
        tab.config_requested.connect(self.config_requested)
        place.put(tab)
        return tab

    def tab_names(self) -> list[str]:
        """Return the tabs of the shown run, in order."""
        places = (self.tabs.widget(index) for index in range(self.tabs.count()))
        return [place.name for place in places if isinstance(place, _TabPlace)]

    def tab(self, name: str) -> RunTab | None:
        """Return a tab, or None if it was not opened yet."""
        place = self._places.get(name)
        return place.tab if place is not None else None

    def open_tab(self, name: str) -> None:
        if name in self._places:
            self.tabs.setCurrentWidget(self._places[name])

    def _arrange_tabs(self, run: pb.Run) -> None:
        presenter = self._presenters.for_run(run)
        names = [name for name in self.analytics.tabs_of(run, presenter.tabs()) if name in self._builders]
        self._is_arranging = True
        lane = str(presenter.lane)
        self._put_tabs(names)
        self._lane = lane
        remembered = str(self._settings.value(f"{_SETTINGS}/tab_{lane}", ""))
        if remembered in names:  # even if a run shown in between did not have this tab
            self.tabs.setCurrentIndex(names.index(remembered))
        self._is_arranging = False

    def _put_tabs(self, names: list[str]) -> None:
        """Show exactly these tabs; the current one stays current if it is among them."""
        for index in reversed(range(self.tabs.count())):
            place = self.tabs.widget(index)
            if isinstance(place, _TabPlace) and place.name not in names:
                self.tabs.removeTab(index)
        for index, name in enumerate(names):
            place = self._places.setdefault(name, _TabPlace(name))
            if self.tabs.indexOf(place) != index:
                self.tabs.insertTab(index, place, self._titles[name])

    def _on_files_changed(self, run_id: str) -> None:
        """Update the tabs, and those that show files, when the run's artifacts changed."""
        if self.run is None or self.run.run_id != run_id:
            return
        self._arrange_tabs(self.run)
        self._pass_run_on()

    def _on_tab_changed(self) -> None:
        if self._is_arranging or self.run is None:
            return
        place = self.tabs.currentWidget()
        if isinstance(place, _TabPlace):
            self._settings.setValue(f"{_SETTINGS}/tab_{self._lane}", place.name)
        self._pass_run_on()

    def _pass_run_on(self) -> None:
        """Give the run to the current tab and deactivate all other tabs."""
        run, place = self.run, self.tabs.currentWidget()
        if run is None or not isinstance(place, _TabPlace):
            self._set_active(None)
            return
        tab = place.tab or self._build_tab(place)
        if self._active is not tab:
            self._set_active(None)
        tab.set_artifacts(self.analytics.found)
        if self._shown_in.get(place.name) != run.run_id:
            self._shown_in[place.name] = run.run_id
            tab.show_run(run)
        else:
            tab.refresh(run)
        if self.isVisible():
            self._set_active(tab)

    def _set_active(self, tab: RunTab | None) -> None:
        if tab is self._active:
            return
        if self._active is not None:
            self._active.set_active(False)
        self._active = tab
        if tab is not None:
            tab.set_active(True)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.analytics.set_seen(True)
        self._pass_run_on()

    def hideEvent(self, event: QHideEvent) -> None:
        self.analytics.set_seen(False)
        self._set_active(None)
        super().hideEvent(event)

    # ------------------------------------------------------------------ updates of all runs

    def _learn_families(self) -> None:
        """Load all runs once: the window was connected before this page was built."""

        def learn(lineage: Lineage) -> None:
            self.lineage.adopt(lineage)
            self._refresh_family()

        self.link.call(
            lambda client: Lineage.of(client.list(include_archived=True).runs),
            owner=self,
            done=learn,
            failed=lambda _error: None,  # related runs are shown after the next reconnection
        )

    def _on_runs_loaded(self, runs: tuple[pb.Run, ...]) -> None:
        self.lineage.replace(runs)
        self._refresh_family()
        if not self._requested:
            return
        found = next((run for run in runs if run.run_id == self._requested), None)
        if found is not None:
            self._show_loaded_run(found)
        elif self.run is not None:
            self._show_removed(self.run.run_id)

    def _on_runs_changed(self, runs: tuple[pb.Run, ...]) -> None:
        changed = self.lineage.note(runs)
        for run in runs:
            if self.run is not None and run.run_id == self.run.run_id:
                self._refresh(run)
        if self.run is not None and self.run.run_id in changed:
            self._refresh_family()

    def _on_runs_removed(self, run_ids: tuple[str, ...]) -> None:
        self.lineage.forget(run_ids)
        if self.run is not None and self.run.run_id in run_ids:
            self._show_removed(self.run.run_id)

    def _show_removed(self, run_id: str) -> None:
        self._leave()
        self._requested = ""
        self.banner.set_message(self.tr("Run {run} was deleted.").format(run=short_id(run_id)))
        self.run_removed.emit(run_id)

    def _refresh_family(self) -> None:
        overview = self.tab("overview")
        if isinstance(overview, OverviewTab):
            overview.refresh_family()
