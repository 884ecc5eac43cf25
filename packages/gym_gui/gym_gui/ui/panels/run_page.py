"""The page of one run: a head that says how it stands, and tabs that are built when they are first opened.

Which tabs a run has and in which order its presenter says; which one was open last is remembered for each lane.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Protocol

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, QSettings, Signal
from PySide6.QtGui import QAction, QHideEvent, QShowEvent
from PySide6.QtWidgets import QTabWidget, QVBoxLayout, QWidget

from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.panels.analytics_tabs import AnalyticsTabManager
from gym_gui.ui.panels.files_tab import FilesTab
from gym_gui.ui.panels.logs_tab import LogsTab
from gym_gui.ui.panels.overview_tab import OverviewTab
from gym_gui.ui.panels.run_figures import headline_of
from gym_gui.ui.panels.run_tab import RunTab
from gym_gui.ui.panels.run_words import chip_text
from gym_gui.ui.panels.story_tab import StoryTab
from gym_gui.ui.presenters.run_lineage import Lineage
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.run_header import RunHeader
from gym_gui.wording.run_view import short_id, title_of

_SETTINGS = "run_page"

_HEAVY_TABS = {
    "live": ("live_tab", "LiveTab"),
    "charts": ("charts_tab", "ChartsTab"),
    "tensorboard": ("tensorboard_tab", "TensorBoardTab"),
    "wandb": ("wandb_tab", "WandbTab"),
    "optuna": ("optuna_tab", "OptunaTab"),
    "replay": ("replay_tab", "ReplayTab"),
}
"""Tab → its module and class in `gym_gui.ui.panels`, imported when somebody opens it: each is made with the link"""


class _Presenter(Protocol):
    @property
    def lane(self) -> str: ...

    def tabs(self) -> tuple[str, ...]: ...


class Presenters(Protocol):
    """Whoever knows which presenter shows a run."""

    def for_run(self, run: pb.Run) -> _Presenter: ...


class Actions(Protocol):
    """Whoever knows what can be done with runs."""

    def actions_for(self, runs: list[pb.Run], parent: QObject | None = None) -> list[QAction]: ...


class _Place(QWidget):
    """Where a tab will stand once somebody opens it."""

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
    """One run at a time; `show_run` brings another one into the same tabs."""

    run_shown = Signal(str)
    run_gone = Signal(str)
    form_wanted = Signal(str, object)  # a kind of form, the run it is about
    config_wanted = Signal(object)  # what a training form is to show

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
        self._wanted = ""
        self._lane = ""
        self._shown_in: dict[str, str] = {}
        """Tab → the run it was last given"""
        self._active: RunTab | None = None
        self._chosen: tuple[str, ...] = ()
        self._action_owner: QObject | None = None
        self._actions_for: object = None
        self._is_arranging = False
        self.lineage = Lineage()
        self.analytics = AnalyticsTabManager(background, self)
        self.analytics.changed.connect(self._on_files_changed)
        self._places: dict[str, _Place] = {}
        self._builders: dict[str, Callable[[], RunTab]] = {
            "overview": self._make_overview,
            "story": lambda: StoryTab(link),
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
        self.tabs = QTabWidget()
        self.tabs.setObjectName("run_tabs")
        self.tabs.setAccessibleName(self.tr("Tabs of the run"))
        self.tabs.setDocumentMode(True)
        self.tabs.currentChanged.connect(self._on_tab_changed)
        self.header.hide()
        self.tabs.hide()
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        for widget in (self.header, self.banner, self.tabs):
            layout.addWidget(widget)
        layout.setStretch(2, 1)
        layout.addStretch(0)
        link.runs_loaded.connect(self._on_runs_loaded)
        link.runs_changed.connect(self._on_runs_changed)
        link.runs_removed.connect(self._on_runs_removed)
        if link.is_connected:
            self._learn_families()

    # ------------------------------------------------------------------ which run

    def show_run(self, run_id: str) -> None:
        """Show this run; its record is asked for."""
        self._wanted = run_id
        self.link.call(
            lambda client: client.get(run_id),
            owner=self,
            done=lambda run: self._take_run(run) if run_id == self._wanted else None,
            failed=lambda words: self._say_not_found(run_id, words),
        )

    def _say_not_found(self, run_id: str, words: str) -> None:
        if run_id != self._wanted or (self.run is not None and self.run.run_id == run_id):
            return
        self._leave()
        self.banner.say(
            self.tr("Run {run} cannot be shown: {why}").format(run=short_id(run_id), why=words),
            "warning",
            action=self.tr("Ask again"),
            on_action=lambda: self.show_run(run_id),
        )

    def _leave(self) -> None:
        self._set_active(None)
        self.run = None
        self.analytics.watch(None)
        self._shown_in.clear()
        self.header.hide()
        self.tabs.hide()

    def _take_run(self, run: pb.Run) -> None:
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
        self._give_run()
        self.run_shown.emit(run.run_id)

    def _refresh(self, run: pb.Run) -> None:
        before = self.run
        self.run = run
        self.analytics.watch(run)
        self._draw_header()
        if before is not None and before.capabilities_json != run.capabilities_json:
            self._arrange_tabs(run)  # a worker tells its lane when it registers
            self._give_run()
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
        """What is chosen in the list of runs, for tabs that show several."""
        self._chosen = run_ids
        for place in self._places.values():
            if place.tab is not None:
                place.tab.chosen_runs = run_ids

    def _make_overview(self) -> RunTab:
        tab = OverviewTab(self.link)
        tab.set_lineage(self.lineage)
        return tab

    def _make_heavy(self, module: str, kind: str) -> RunTab:
        tab: RunTab = getattr(importlib.import_module(f"gym_gui.ui.panels.{module}"), kind)(self.link)
        return tab

    def _build_tab(self, place: _Place) -> RunTab:
        tab = self._builders[place.name]()
        tab.chosen_runs = self._chosen
        tab.run_wanted.connect(self.show_run)
        tab.tab_wanted.connect(self.open_tab)
        tab.form_wanted.connect(self.form_wanted)
        tab.config_wanted.connect(self.config_wanted)
        place.put(tab)
        return tab

    def tab_names(self) -> list[str]:
        """Those of the run that is shown, in order."""
        places = (self.tabs.widget(index) for index in range(self.tabs.count()))
        return [place.name for place in places if isinstance(place, _Place)]

    def tab(self, name: str) -> RunTab | None:
        """A tab that was opened before; None while nobody has."""
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
        if remembered in names:  # also when it was away meanwhile, because a run between had no such tab
            self.tabs.setCurrentIndex(names.index(remembered))
        self._is_arranging = False

    def _put_tabs(self, names: list[str]) -> None:
        """Have exactly these tabs; the one in front stays there if it is among them."""
        for index in reversed(range(self.tabs.count())):
            place = self.tabs.widget(index)
            if isinstance(place, _Place) and place.name not in names:
                self.tabs.removeTab(index)
        for index, name in enumerate(names):
            place = self._places.setdefault(name, _Place(name))
            if self.tabs.indexOf(place) != index:
                self.tabs.insertTab(index, place, self._titles[name])

    def _on_files_changed(self, run_id: str) -> None:
        """The run has other artefacts than a moment ago: perhaps other tabs, and those that show them hear of it."""
        if self.run is None or self.run.run_id != run_id:
            return
        self._arrange_tabs(self.run)
        self._give_run()

    def _on_tab_changed(self) -> None:
        if self._is_arranging or self.run is None:
            return
        place = self.tabs.currentWidget()
        if isinstance(place, _Place):
            self._settings.setValue(f"{_SETTINGS}/tab_{self._lane}", place.name)
        self._give_run()

    def _give_run(self) -> None:
        """The tab in front gets the run, and the others rest."""
        run, place = self.run, self.tabs.currentWidget()
        if run is None or not isinstance(place, _Place):
            self._set_active(None)
            return
        tab = place.tab or self._build_tab(place)
        if self._active is not tab:
            self._set_active(None)
        tab.take_artefacts(self.analytics.found)
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
        self._give_run()

    def hideEvent(self, event: QHideEvent) -> None:
        self.analytics.set_seen(False)
        self._set_active(None)
        super().hideEvent(event)

    # ------------------------------------------------------------------ news of all runs

    def _learn_families(self) -> None:
        """The window was connected before this page was built: what it was told then is asked for once."""

        def learn(lineage: Lineage) -> None:
            self.lineage.take_over(lineage)
            self._refresh_family()

        self.link.call(
            lambda client: Lineage.of(client.list(include_archived=True).runs),
            owner=self,
            done=learn,
            failed=lambda _words: None,  # then there are no families to show until the link is back
        )

    def _on_runs_loaded(self, runs: tuple[pb.Run, ...]) -> None:
        self.lineage.replace(runs)
        self._refresh_family()
        if not self._wanted:
            return
        found = next((run for run in runs if run.run_id == self._wanted), None)
        if found is not None:
            self._take_run(found)
        elif self.run is not None:
            self._say_gone(self.run.run_id)

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
            self._say_gone(self.run.run_id)

    def _say_gone(self, run_id: str) -> None:
        self._leave()
        self._wanted = ""
        self.banner.say(self.tr("Run {run} was deleted.").format(run=short_id(run_id)))
        self.run_gone.emit(run_id)

    def _refresh_family(self) -> None:
        overview = self.tab("overview")
        if isinstance(overview, OverviewTab):
            overview.refresh_family()
