"""The main window: builds its parts and connects them; what they do is in the parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt, QTimer, QUrl
from PySide6.QtGui import QAction, QCloseEvent, QDesktopServices
from PySide6.QtWidgets import (
    QComboBox,
    QFileDialog,
    QMainWindow,
    QMessageBox,
    QPushButton,
    QSizePolicy,
    QStackedWidget,
    QSystemTrayIcon,
    QToolBar,
    QVBoxLayout,
    QWidget,
)

from gym_gui import __version__
from gym_gui.ui import window_state
from gym_gui.ui.app_icon import application_icon
from gym_gui.ui.appearance import Appearance
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.main_menu import MainMenu
from gym_gui.ui.presenters.announcements import LiveRuns, announce
from gym_gui.ui.run_forms import RunForms
from gym_gui.ui.runs_workspace import RunsWorkspace
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.crash_dialog import about_this_program
from gym_gui.ui.widgets.daemon_banner import Connector, DaemonBanner
from gym_gui.ui.widgets.first_start import FirstStartPage
from gym_gui.ui.widgets.shortcuts_dialog import ShortcutsDialog
from gym_gui.ui.widgets.status_bar import StatusBar
from gym_gui.ui.widgets.toasts import Toasts
from gym_gui.ui.workspaces import COMPARE, PLAY, POLICY, RUNS, WORKSPACES

USUAL_SIZE = (1280, 800)
OPEN_MS = 150
"""Who walks through the list with the arrow keys does not want every run on the way"""


if TYPE_CHECKING:
    from gym_gui.ui.panels.run_page import RunPage


class MainWindow(QMainWindow):
    """Workspaces over one link to a daemon. Shown before it has data; closing it stops nothing but itself."""

    def __init__(
        self,
        link: DaemonLink,
        background: Background,
        home: Home | None,
        appearance: Appearance,
        *,
        connector: Connector | None = None,
    ) -> None:
        super().__init__()
        self.setObjectName("main_window")
        self.setWindowTitle(self.tr("MOSAIC"))
        self.setWindowIcon(application_icon())
        self.link, self.background, self.home = link, background, home
        self._connector, self._appearance = connector, appearance
        self._live = LiveRuns()
        self._has_runs: bool | None = None  # not known yet
        self._to_watch = ""
        self._to_select = ""  # a run that was just queued; the list does not know it yet
        self._open_soon = QTimer(self, singleShot=True, interval=OPEN_MS)
        self._build(appearance)
        self._connect()
        if not window_state.restore_geometry(self):
            self._take_usual_size()
        self._restore_layout()

    # -- building

    def _build(self, appearance: Appearance) -> None:
        from gym_gui.ui.run_actions import RunActions
        from gym_gui.ui.runs.panel import RunsPanel

        self.connection_banner = DaemonBanner(self.link, self._connector, is_local=self.home is not None)
        self.notice_banner = Banner()
        self.run_actions = RunActions(self.link, self.background, self)
        self.runs_panel = RunsPanel(self.link, self.run_actions)
        self.forms = RunForms(self.link, self.background, self.home, self)
        self.runs = RunsWorkspace(self.runs_panel, self._make_run_page)
        self.first_start = FirstStartPage(self.link)
        self._runs_or_welcome = QStackedWidget()
        self._runs_or_welcome.addWidget(self.runs)
        self._runs_or_welcome.addWidget(self.first_start)
        self._stack = QStackedWidget()
        self._stack.addWidget(self._runs_or_welcome)
        self._built: dict[str, QWidget] = {RUNS: self._runs_or_welcome}
        centre = QWidget()
        layout = QVBoxLayout(centre)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self.connection_banner)
        layout.addWidget(self.notice_banner)
        layout.addWidget(self._stack, 1)
        self.setCentralWidget(centre)
        self.menu = MainMenu(self, self, appearance, self.runs.dock.toggleViewAction())
        self._build_tool_bar()
        self.status = StatusBar(self.link, self.background, is_local=self.home is not None)
        self.setStatusBar(self.status)
        self.toasts = Toasts(self, above=self.status, tray=self._make_tray())
        self.menu.mark_workspace(RUNS)

    def _build_tool_bar(self) -> None:
        from gym_gui.ui.widgets.actor_selector import ActorSelector

        bar = QToolBar(self.tr("Main tool bar"), self)
        bar.setObjectName("main_tool_bar")
        bar.setMovable(False)
        bar.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)
        bar.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        bar.addActions(self.menu.workspaces.actions())
        gap = QWidget()
        gap.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        bar.addWidget(gap)
        self.actor_selector = ActorSelector()
        # As wide as a name; what is not installed stands in the list with a whole command.
        self.actor_selector.combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.actor_selector.combo.setMinimumContentsLength(22)
        self.actor_selector.combo.view().setMinimumWidth(self.fontMetrics().averageCharWidth() * 80)
        self.actor_selector.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        bar.addWidget(self.actor_selector)
        new_run = QPushButton(self.menu.new_run.text().replace("&", ""))
        new_run.setObjectName("new_run_button")
        new_run.setAccessibleName(self.tr("New run"))
        new_run.setToolTip(self.menu.new_run.toolTip())
        new_run.setProperty("role", "primary")
        new_run.clicked.connect(self.menu.new_run.trigger)
        bar.addWidget(new_run)
        self.addToolBar(bar)

    def _make_run_page(self) -> RunPage:
        from gym_gui.ui.panels.run_page import RunPage
        from gym_gui.ui.presenters.workers.registry import PresenterRegistry

        page = RunPage(self.link, self.background, self.run_actions, PresenterRegistry(), self.runs)
        page.run_shown.connect(self._page_shows)  # also by a link of the page to a relative
        page.form_wanted.connect(self.forms.open)
        page.config_wanted.connect(self.forms.open_config)
        return page

    def _make_tray(self) -> QSystemTrayIcon | None:
        if not QSystemTrayIcon.isSystemTrayAvailable():
            return None
        tray = QSystemTrayIcon(application_icon(), self)
        tray.setToolTip(self.tr("MOSAIC"))
        tray.activated.connect(lambda: self._come_to_front())
        tray.show()
        return tray

    def _connect(self) -> None:
        link = self.link
        link.runs_loaded.connect(self._runs_loaded)
        link.runs_changed.connect(self._runs_changed)
        link.problem.connect(self.say)
        self.runs_panel.run_opened.connect(self.open_run)
        self.runs_panel.selection_changed.connect(self._selection_changed)
        self.runs_panel.compare_wanted.connect(self.compare)
        self._open_soon.timeout.connect(self._open_chosen)
        self.run_actions.form_wanted.connect(self.forms.open)
        self.run_actions.policy_wanted.connect(self.watch_policy)
        self.run_actions.said.connect(self._tell)
        self.forms.problem.connect(self.say)
        self.forms.submitted.connect(self._submitted)
        self.forms.play_wanted.connect(lambda: self.show_workspace(PLAY))
        self.forms.entries_changed.connect(self.actor_selector.set_entries)
        self.first_start.run_started.connect(self._watch_first_run)
        self.first_start.form_wanted.connect(self.new_run)
        self.first_start.play_wanted.connect(lambda: self.show_workspace(PLAY))
        self.first_start.import_wanted.connect(self.import_runs)
        self.toasts.opened.connect(self.open_run)
        self.status.trouble_changed.connect(self._trouble_changed)
        self.status.silence_changed.connect(self.connection_banner.show_silence)

    # -- what the menus ask for

    def new_run(self) -> None:
        self.forms.new_run(self.actor_selector.current_name())

    def new_script_run(self) -> None:
        self.forms.open("script")

    def new_sweep(self) -> None:
        self.forms.open("sweep")

    def open_study(self) -> None:
        """A study of anybody's: ask for its file, then show it in a window of its own."""
        from gym_gui.ui.panels.study_panel import study_dialog

        dialog = study_dialog(self)
        dialog.fileSelected.connect(self.show_study)
        dialog.open()

    def show_study(self, file: str) -> None:
        from gym_gui.ui.panels.study_window import StudyWindow

        window = StudyWindow(self.background, self)
        window.run_wanted.connect(self.open_run)
        window.config_wanted.connect(self.forms.open_config)
        window.open_file(file)

    def import_runs(self) -> None:
        dialog = QFileDialog(self, self.tr("Import runs"), "", self.tr("Exported runs (*.tar.gz *.tgz);;All files (*)"))
        dialog.setObjectName("import_dialog")
        dialog.setFileMode(QFileDialog.FileMode.ExistingFiles)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.filesSelected.connect(lambda names: self.run_actions.import_files([Path(name) for name in names]))
        dialog.open()

    def show_settings(self) -> None:
        from gym_gui.ui.widgets.settings_dialog import SettingsDialog

        SettingsDialog(self.link, self.background, self.home, self, appearance=self._appearance).open()

    def find_run(self) -> None:
        self.show_workspace(RUNS)
        self.runs.dock.show()
        self.runs_panel.focus_filter()

    def show_workspace(self, name: str) -> None:
        """Go there; it is built on the first visit."""
        workspace = next(entry for entry in WORKSPACES if entry.name == name)
        if name not in self._built:
            assert workspace.build is not None, "the window builds this one itself"
            built = workspace.build(self.link, self.background, self.home, self._stack, self.open_run)
            if name == COMPARE:
                self._introduce(built)
            self._built[name] = built
            self._stack.addWidget(built)
        self._stack.setCurrentWidget(self._built[name])
        self.menu.mark_workspace(name)

    def _introduce(self, compare_panel: QWidget) -> None:
        """The page that compares runs to the list of runs and to what can be done with them."""
        from gym_gui.ui.panels.compare_panel import ComparePanel

        assert isinstance(compare_panel, ComparePanel)
        compare_panel.selected_runs = self.runs_panel.selected_runs
        compare_panel.report_wanted.connect(self.run_actions.report)

    def compare(self, run_ids: Sequence[str]) -> None:
        """Go where runs are compared, with these."""
        from gym_gui.ui.panels.compare_panel import ComparePanel

        self.show_workspace(COMPARE)
        panel = self._built[COMPARE]
        assert isinstance(panel, ComparePanel)
        panel.compare(run_ids)

    def watch_policy(self, run_id: str) -> None:
        """Go where policies act, with that of this run chosen."""
        from gym_gui.ui.panels.policy_panel import PolicyPanel

        self.show_workspace(POLICY)
        panel = self._built[POLICY]
        assert isinstance(panel, PolicyPanel)
        panel.watch_run(run_id)

    @property
    def workspace(self) -> str:
        """Where we are."""
        current = self._stack.currentWidget()
        return next(name for name, widget in self._built.items() if widget is current)

    def arrange_runs(self, *, beside: bool) -> None:
        self.show_workspace(RUNS)
        self.runs.arrange(beside=beside)

    def reset_layout(self) -> None:
        """As on the first day, and nothing kept of what was."""
        window_state.reset()
        self.showNormal()
        self._take_usual_size()
        self.runs.arrange_for(self.width())

    def show_shortcuts(self) -> None:
        self.menu.refresh_run_menu()
        ShortcutsDialog(self.menuBar(), self).show()

    def show_documentation(self) -> None:
        pages = Path(__file__).resolve().parents[4] / "docs" / "gui" / "README.md"
        if pages.is_file():
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(pages)))
        else:
            self.say(self.tr("The manual lies in docs/gui of the source; this installation came without it."))

    def show_about(self) -> None:
        box = QMessageBox(self)
        box.setObjectName("about_box")
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        box.setWindowTitle(self.tr("About MOSAIC"))
        box.setIconPixmap(application_icon().pixmap(64, 64))
        box.setText(self.tr("MOSAIC {version}").format(version=__version__))
        box.setInformativeText(about_this_program())
        box.open()

    def run_menu_actions(self) -> Iterable[QAction]:
        return self.run_actions.actions_for(self.runs_panel.selected_runs(), parent=self.menu.run_menu)

    # -- runs

    def open_run(self, run_id: str) -> None:
        """Show a run, wherever we are."""
        self._has_runs = True
        self._runs_or_welcome.setCurrentWidget(self.runs)
        self.show_workspace(RUNS)
        self.runs.open_run(run_id)
        self._run_shown(run_id)

    def _watch_first_run(self, run_id: str) -> None:
        """Who trains for the first time wants to see it learn, not read about it."""
        self._to_watch = run_id
        self.open_run(run_id)

    def _run_shown(self, run_id: str) -> None:
        self.runs.run_id = run_id
        self._to_select = run_id
        self._select_opened()

    def _page_shows(self, run_id: str) -> None:
        self._run_shown(run_id)
        if run_id == self._to_watch and self.runs.page is not None:
            self._to_watch = ""
            self.runs.page.open_tab("live")

    def _select_opened(self) -> None:
        """Mark the opened run in the list, as soon as the list has it."""
        if self._to_select and self.runs_panel.model.position_of(self._to_select) is not None:
            if [run.run_id for run in self.runs_panel.selected_runs()] != [self._to_select]:
                self.runs_panel.select([self._to_select])
            self._to_select = ""

    def _selection_changed(self, run_ids: tuple[str, ...]) -> None:
        if len(run_ids) == 1:
            self._open_soon.start()
        else:
            self._open_soon.stop()

    def _open_chosen(self) -> None:
        chosen = self.runs_panel.selected_runs()
        if len(chosen) == 1 and chosen[0].run_id != self.runs.run_id:
            self.runs.open_run(chosen[0].run_id)

    def _submitted(self, run_ids: tuple[str, ...]) -> None:
        if run_ids:
            self.open_run(run_ids[0])

    def _runs_loaded(self, runs: tuple[pb.Run, ...]) -> None:
        ended = self._live.replace(runs)
        self._note(ended, has_runs=bool(runs))

    def _runs_changed(self, runs: tuple[pb.Run, ...]) -> None:
        self._note(self._live.update(runs), has_runs=bool(self._has_runs or runs))
        self._select_opened()

    def _note(self, ended: list[pb.Run], *, has_runs: bool) -> None:
        self.status.show_counts(self._live.counts)
        for announcement in announce(ended):
            self.toasts.tell(announcement)
        if has_runs != self._has_runs:
            self._has_runs = has_runs
            self._runs_or_welcome.setCurrentWidget(self.runs if has_runs else self.first_start)

    # -- what is said

    def _trouble_changed(self, trouble: str) -> None:
        if trouble:
            words = self.tr("The trainer daemon is in trouble: {trouble}").format(trouble=trouble)
            self.notice_banner.say(words, "bad")
        else:
            self.notice_banner.clear()

    def _tell(self, words: str, tone: str) -> None:
        """What came of an action. The list of runs says it itself where it can be seen."""
        if self.runs_panel.isVisible():
            return
        if tone == "info":
            self.toasts.say(words, "")
        else:
            self.say(words, tone)

    def say(self, words: str, tone: str = "warning") -> None:
        """A problem that concerns the whole window."""
        self.notice_banner.say(
            words,
            "bad" if tone == "bad" else "warning",
            action=self.tr("Dismiss"),
            on_action=self.notice_banner.clear,
        )

    # -- the window itself

    def _take_usual_size(self) -> None:
        room = self.screen().availableGeometry()
        width, height = min(USUAL_SIZE[0], room.width()), min(USUAL_SIZE[1], room.height())
        if room.width() >= 1800:  # a large screen: most of it, so that list and run stand side by side
            width, height = round(room.width() * 0.88), round(room.height() * 0.88)
        self.resize(width, height)

    def _restore_layout(self) -> None:
        if not window_state.restore_docks(self.runs):
            self.runs.arrange_for(self.width())

    def _come_to_front(self) -> None:
        self.showNormal() if self.isMinimized() else self.show()
        self.raise_()
        self.activateWindow()

    def closeEvent(self, event: QCloseEvent) -> None:
        window_state.save(self, self.runs)
        for workspace in self._built.values():
            if hasattr(workspace, "shut_down"):
                workspace.shut_down()  # a game ends with the window that shows it
        super().closeEvent(event)
