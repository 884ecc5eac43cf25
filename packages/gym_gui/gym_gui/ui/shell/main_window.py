"""The main window: builds its parts and connects them; stores its layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QByteArray, QSettings, Qt, QTimer, QUrl
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
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.forms.run_forms import RunForms
from gym_gui.ui.settings import stored
from gym_gui.ui.shell.announcements import LiveRuns, announce
from gym_gui.ui.shell.crash_dialog import about_this_program
from gym_gui.ui.shell.daemon_banner import Connector, DaemonBanner
from gym_gui.ui.shell.first_start import FirstStartPage
from gym_gui.ui.shell.main_menu import MainMenu, ShortcutsDialog
from gym_gui.ui.shell.status_bar import StatusBar
from gym_gui.ui.shell.toasts import Toasts
from gym_gui.ui.shell.workspaces import COMPARE, PLAY, POLICY, RUNS, WORKSPACES, RunsWorkspace
from gym_gui.ui.theme import Appearance, application_icon
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import fill, named

LAYOUT_VERSION = 1
"""Increment it whenever a dock or tool bar is added, renamed or removed"""


def save_layout(window: QWidget, docks: QMainWindow) -> None:
    """Save the geometry of the window and the layout of the docks."""
    settings = stored("window")
    settings.setValue("version", LAYOUT_VERSION)
    settings.setValue("geometry", window.saveGeometry())
    settings.setValue("docks", docks.saveState(LAYOUT_VERSION))


def restore_geometry(window: QWidget) -> bool:
    """Restore the geometry; return False if none was saved by this version."""
    settings = stored("window")
    if not _is_ours(settings):
        return False
    geometry = settings.value("geometry")
    return isinstance(geometry, QByteArray) and window.restoreGeometry(geometry)


def restore_docks(docks: QMainWindow) -> bool:
    """Restore the docks; return False if nothing was restored."""
    settings = stored("window")
    if not _is_ours(settings):
        return False
    state = settings.value("docks")
    return isinstance(state, QByteArray) and docks.restoreState(state, LAYOUT_VERSION)


def forget_layout() -> None:
    """Forget the saved layout, but not the theme or other settings."""
    stored("window").remove("")


def _is_ours(settings: QSettings) -> bool:
    return str(settings.value("version")) == str(LAYOUT_VERSION)


DEFAULT_SIZE = (1280, 800)
OPEN_MS = 150
"""Delay opening, so that browsing with the arrow keys does not load every run"""


if TYPE_CHECKING:
    from gym_gui.ui.run_page.page import RunPage


class MainWindow(QMainWindow):
    """Workspaces over one link to a daemon. Shown before any data; closing it affects nothing but itself."""

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
        self._has_runs: bool | None = None  # None: unknown
        self._run_to_watch = ""
        self._to_select = ""  # a new run that is not in the list yet
        self._open_soon = QTimer(self, singleShot=True, interval=OPEN_MS)
        self._build(appearance)
        self._connect()
        if not restore_geometry(self):
            self._resize_to_default()
        self._restore_layout()

    # -- building

    def _build(self, appearance: Appearance) -> None:
        from gym_gui.ui.runs.actions import RunActions
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
        center = QWidget()
        fill(QVBoxLayout(center), self.connection_banner, self.notice_banner, (self._stack, 1), margins=0, spacing=0)
        self.setCentralWidget(center)
        self.menu = MainMenu(self, self, appearance, self.runs.dock.toggleViewAction())
        self._build_tool_bar()
        self.status = StatusBar(self.link, self.background, is_local=self.home is not None)
        self.setStatusBar(self.status)
        self.toasts = Toasts(self, above=self.status, tray=self._make_tray())
        self.menu.mark_workspace(RUNS)

    def _build_tool_bar(self) -> None:
        from gym_gui.ui.shell.main_menu import ActorSelector

        bar = named(QToolBar(self.tr("Main tool bar"), self), "main_tool_bar")
        bar.setMovable(False)
        bar.setContextMenuPolicy(Qt.ContextMenuPolicy.PreventContextMenu)
        bar.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        bar.addActions(self.menu.workspaces.actions())
        gap = QWidget()
        gap.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        bar.addWidget(gap)
        self.actor_selector = ActorSelector()
        # As wide as a name; entries that are not installed are wider, with a whole command.
        self.actor_selector.combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.actor_selector.combo.setMinimumContentsLength(22)
        self.actor_selector.combo.view().setMinimumWidth(self.fontMetrics().averageCharWidth() * 80)
        self.actor_selector.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        bar.addWidget(self.actor_selector)
        new_run = named(QPushButton(self.menu.new_run.text().replace("&", "")), "new_run_button", role="primary")
        new_run.setAccessibleName(self.tr("New run"))
        new_run.setToolTip(self.menu.new_run.toolTip())
        new_run.clicked.connect(self.menu.new_run.trigger)
        bar.addWidget(new_run)
        self.addToolBar(bar)

    def _make_run_page(self) -> RunPage:
        from gym_gui.ui.presenters.workers.registry import PresenterRegistry
        from gym_gui.ui.run_page.page import RunPage

        page = RunPage(self.link, self.background, self.run_actions, PresenterRegistry(), self.runs)
        page.run_shown.connect(self._page_shows)  # also after a click on a related run
        page.form_requested.connect(self.forms.open)
        page.config_requested.connect(self.forms.open_config)
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
        link.problem.connect(self.show_message)
        self.runs_panel.run_opened.connect(self.open_run)
        self.runs_panel.selection_changed.connect(self._selection_changed)
        self.runs_panel.compare_requested.connect(self.compare)
        self._open_soon.timeout.connect(self._open_chosen)
        self.run_actions.form_requested.connect(self.forms.open)
        self.run_actions.policy_requested.connect(self.watch_policy)
        self.run_actions.reported.connect(self._show_toast)
        self.forms.problem.connect(self.show_message)
        self.forms.submitted.connect(self._submitted)
        self.forms.play_requested.connect(lambda: self.show_workspace(PLAY))
        self.forms.entries_changed.connect(self.actor_selector.set_entries)
        self.first_start.run_started.connect(self._watch_first_run)
        self.first_start.form_requested.connect(self.new_run)
        self.first_start.play_requested.connect(lambda: self.show_workspace(PLAY))
        self.first_start.import_requested.connect(self.import_runs)
        self.toasts.opened.connect(self.open_run)
        self.status.complaint_changed.connect(self._on_complaint)
        self.status.unresponsive_changed.connect(self.connection_banner.show_unresponsive)

    # -- commands of the menus

    def new_run(self) -> None:
        self.forms.new_run(self.actor_selector.current_name())

    def new_script_run(self) -> None:
        self.forms.open("script")

    def new_sweep(self) -> None:
        self.forms.open("sweep")

    def open_study(self) -> None:
        """Ask for the file of any Optuna study, then show it in a window of its own."""
        from gym_gui.ui.studies.panel import study_dialog

        dialog = study_dialog(self)
        dialog.fileSelected.connect(self.show_study)
        dialog.open()

    def show_study(self, file: str) -> None:
        from gym_gui.ui.studies.panel import StudyWindow

        window = StudyWindow(self.background, self)
        window.run_requested.connect(self.open_run)
        window.config_requested.connect(self.forms.open_config)
        window.open_file(file)

    def import_runs(self) -> None:
        dialog = QFileDialog(self, self.tr("Import runs"), "", self.tr("Exported runs (*.tar.gz *.tgz);;All files (*)"))
        dialog.setObjectName("import_dialog")
        dialog.setFileMode(QFileDialog.FileMode.ExistingFiles)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.filesSelected.connect(lambda names: self.run_actions.import_files([Path(name) for name in names]))
        dialog.open()

    def connect_elsewhere(self) -> None:
        """Offer the daemons of the settings."""
        from gym_gui.config.settings import load_settings
        from gym_gui.ui.shell.connect_dialog import ConnectDialog

        def failed(error: Exception) -> None:
            self.show_message(str(error), "bad")

        self.background.run(
            lambda: load_settings().daemons,
            owner=self,
            done=lambda profiles: ConnectDialog(profiles, self).open(),
            failed=failed,
        )

    def show_settings(self) -> None:
        from gym_gui.ui.management.settings_dialog import SettingsDialog

        SettingsDialog(self.link, self.background, self.home, self, appearance=self._appearance).open()

    def find_run(self) -> None:
        self.show_workspace(RUNS)
        self.runs.dock.show()
        self.runs_panel.focus_filter()

    def show_workspace(self, name: str) -> None:
        """Show a workspace; it is built at the first visit."""
        workspace = next(entry for entry in WORKSPACES if entry.name == name)
        if name not in self._built:
            built = workspace.build(self.link, self.background, self.home, self._stack, self.open_run)
            if name == COMPARE:
                self._connect_compare_panel(built)
            self._built[name] = built
            self._stack.addWidget(built)
        self._stack.setCurrentWidget(self._built[name])
        self.menu.mark_workspace(name)

    def _connect_compare_panel(self, compare_panel: QWidget) -> None:
        """Connect the Compare page to the list of runs and the run actions."""
        from gym_gui.ui.compare.panel import ComparePanel

        assert isinstance(compare_panel, ComparePanel)
        compare_panel.selected_runs = self.runs_panel.selected_runs
        compare_panel.report_requested.connect(self.run_actions.report)

    def compare(self, run_ids: Sequence[str]) -> None:
        """Compare these runs in the Compare workspace."""
        from gym_gui.ui.compare.panel import ComparePanel

        self.show_workspace(COMPARE)
        panel = self._built[COMPARE]
        assert isinstance(panel, ComparePanel)
        panel.compare(run_ids)

    def watch_policy(self, run_id: str) -> None:
        """Show the Watch workspace with the policy of this run."""
        from gym_gui.ui.play.policy_panel import PolicyPanel

        self.show_workspace(POLICY)
        panel = self._built[POLICY]
        assert isinstance(panel, PolicyPanel)
        panel.watch_run(run_id)

    @property
    def workspace(self) -> str:
        """Return the current workspace."""
        current = self._stack.currentWidget()
        return next(name for name, widget in self._built.items() if widget is current)

    def arrange_runs(self, *, beside: bool) -> None:
        self.show_workspace(RUNS)
        self.runs.arrange(beside=beside)

    def reset_layout(self) -> None:
        """Reset the layout to its defaults and forget the saved one."""
        forget_layout()
        self.showNormal()
        self._resize_to_default()
        self.runs.arrange_for(self.width())

    def show_shortcuts(self) -> None:
        self.menu.refresh_run_menu()
        ShortcutsDialog(self.menuBar(), self).show()

    def show_documentation(self) -> None:
        pages = Path(__file__).resolve().parents[4] / "docs" / "gui" / "README.md"
        if pages.is_file():
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(pages)))
        else:
            self.show_message(
                self.tr("The manual is in docs/gui of the source, which is not part of this installation.")
            )

    def show_about(self) -> None:
        box = named(QMessageBox(self), "about_box")
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
        """Show a run in the Runs workspace."""
        self._has_runs = True
        self._runs_or_welcome.setCurrentWidget(self.runs)
        self.show_workspace(RUNS)
        self.runs.open_run(run_id)
        self._run_shown(run_id)

    def _watch_first_run(self, run_id: str) -> None:
        """Open the Live tab of the first run."""
        self._run_to_watch = run_id
        self.open_run(run_id)

    def _run_shown(self, run_id: str) -> None:
        self.runs.run_id = run_id
        self._to_select = run_id
        self._select_opened()

    def _page_shows(self, run_id: str) -> None:
        self._run_shown(run_id)
        if run_id == self._run_to_watch and self.runs.page is not None:
            self._run_to_watch = ""
            self.runs.page.open_tab("live")

    def _select_opened(self) -> None:
        """Select the opened run in the list, as soon as it is there."""
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
            self.toasts.announce(announcement)
        if has_runs != self._has_runs:
            self._has_runs = has_runs
            self._runs_or_welcome.setCurrentWidget(self.runs if has_runs else self.first_start)

    # -- messages

    def _on_complaint(self, complaint: str) -> None:
        if complaint:
            text = self.tr("The trainer daemon reports a problem: {complaint}").format(complaint=complaint)
            self.notice_banner.set_message(text, "bad")
        else:
            self.notice_banner.clear()

    def _show_toast(self, text: str, tone: str) -> None:
        """Show the outcome of an action as a toast, unless the visible list of runs shows it."""
        if self.runs_panel.isVisible():
            return
        if tone == "info":
            self.toasts.show_message(text, "")
        else:
            self.show_message(text, tone)

    def show_message(self, text: str, tone: str = "warning") -> None:
        """Show a problem that concerns the whole window."""
        self.notice_banner.set_message(
            text, "bad" if tone == "bad" else "warning", action=self.tr("Dismiss"), on_action=self.notice_banner.clear
        )

    # -- the window

    def _resize_to_default(self) -> None:
        room = self.screen().availableGeometry()
        width, height = min(DEFAULT_SIZE[0], room.width()), min(DEFAULT_SIZE[1], room.height())
        if room.width() >= 1800:  # a large screen: most of it, so that list and run fit side by side
            width, height = round(room.width() * 0.88), round(room.height() * 0.88)
        self.resize(width, height)

    def _restore_layout(self) -> None:
        if not restore_docks(self.runs):
            self.runs.arrange_for(self.width())

    def _come_to_front(self) -> None:
        self.showNormal() if self.isMinimized() else self.show()
        self.raise_()
        self.activateWindow()

    def closeEvent(self, event: QCloseEvent) -> None:
        save_layout(self, self.runs)
        for workspace in self._built.values():
            if hasattr(workspace, "shut_down"):
                workspace.shut_down()  # games end with the window
        super().closeEvent(event)
