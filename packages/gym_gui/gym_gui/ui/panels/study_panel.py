"""A study with everything one can do with it: look, train a configuration, open another one, the dashboard.

The Optuna tab of a run and the window of a study that was opened from a file both show one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mosaic_wire.files import open_chosen
from PySide6.QtCore import QCoreApplication, Qt, QUrl, Signal
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QComboBox, QFileDialog, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from gym_gui.services.analytics.optuna_dashboard import Dashboard, DashboardProblem
from gym_gui.services.analytics.studies import StudySummary, path_of
from gym_gui.ui.background import Background
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.study_feed import StudyFeed, StudyReading
from gym_gui.ui.widgets.study_view import StudyView

_FILES = "*.journal *.log *.db *.sqlite *.sqlite3"


class StudyPanel(QWidget):
    """Head, banner and view of one study; reads it in the background."""

    run_wanted = Signal(str)
    train_wanted = Signal(object)  # Trial
    other_wanted = Signal(str)  # a file that somebody chose
    sweep_wanted = Signal()

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("study_panel")
        self._background = background
        self._dashboard: Dashboard | None = None
        self._dashboard_turn = 0
        self._not_yet = ""
        self.open_in_browser: Callable[[str], object] = lambda address: QDesktopServices.openUrl(QUrl(address))
        self.feed = StudyFeed(background, self)
        self.feed.arrived.connect(self._show)
        self.feed.refused.connect(self._say_refused)
        self.view = StudyView()
        self.view.run_wanted.connect(self.run_wanted)
        self.view.train_wanted.connect(self.train_wanted)
        self.banner = Banner(parent=self)
        self._build()

    def _build(self) -> None:
        self.name = QLabel()
        self.name.setObjectName("study_name")
        font = self.name.font()
        font.setBold(True)
        self.name.setFont(font)
        self.studies = QComboBox()
        self.studies.setObjectName("study_choice")
        self.studies.setAccessibleName(self.tr("Study of this file"))
        self.studies.hide()
        self.studies.activated.connect(lambda place: self.feed.choose(str(self.studies.itemData(place))))
        self.summary = QLabel()
        self.summary.setObjectName("study_summary")
        self.summary.setProperty("role", "caption")
        self.again = self._button(self.tr("S&weep again…"), "sweep_again", self.sweep_wanted.emit)
        self.again.setToolTip(self.tr("The form of this sweep, to change it and start another one"))
        self.again.hide()
        self.other = self._button(self.tr("Open another st&udy…"), "open_study", self.choose_file)
        self.other.setToolTip(self.tr("A journal or an SQLite file of Optuna, also of CleanRL's own tuner"))
        self.dashboard = self._button(self.tr("&Dashboard"), "open_dashboard", self.toggle_dashboard)
        self.dashboard.setToolTip(self.tr("Open the study in optuna-dashboard, in the browser; it ends with this view"))
        head = QHBoxLayout()
        head.setContentsMargins(8, 6, 8, 0)
        for widget in (self.name, self.studies, self.summary):
            head.addWidget(widget)
        head.addStretch(1)
        for button in (self.again, self.other, self.dashboard):
            head.addWidget(button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        layout.addWidget(self.banner)
        layout.addLayout(head)
        inside = QVBoxLayout()
        inside.setContentsMargins(8, 0, 8, 8)
        inside.addWidget(self.view)
        layout.addLayout(inside, 1)
        self.show_nothing()

    def _button(self, text: str, name: str, do: Callable[[], object]) -> QPushButton:
        button = QPushButton(text)
        button.setObjectName(name)
        button.setAccessibleName(text.replace("&", ""))
        button.setAutoDefault(False)
        button.clicked.connect(lambda: do())
        return button

    # ------------------------------------------------------------------ which study

    def open(self, address: str | Path, name: str = "", *, not_yet: str = "") -> None:
        """Show a study; `not_yet` is said while its file is not there."""
        self.show_nothing()
        self._not_yet = not_yet
        self.feed.open(address, name)

    def show_nothing(self, words: str = "") -> None:
        """No study; say why, if there is a reason."""
        self.stop_dashboard()
        self.feed.close()
        self._clear()
        if words:
            self.banner.say(words, "info")
        else:
            self.banner.clear()

    def _clear(self) -> None:
        self.view.show_reading(None)
        self.view.setEnabled(False)
        self.name.clear()
        self.summary.clear()
        self.studies.hide()
        self.dashboard.setEnabled(False)

    def set_live(self, live: bool) -> None:
        """Whether anybody looks and the study may grow."""
        self.feed.set_live(live)

    def _show(self, reading: StudyReading) -> None:
        study = reading.study
        self.view.setEnabled(True)
        self.view.show_reading(reading)
        self.name.setText(study.name)
        self.name.setToolTip(str(study.path or ""))
        self.summary.setText(self.view.summary())
        self._offer(reading.studies, study.name)
        self.dashboard.setEnabled(True)
        if study.notices:
            self.banner.say("\n".join(study.notices), "warning")
        else:
            self.banner.clear()

    def _offer(self, studies: tuple[StudySummary, ...], shown: str) -> None:
        """Several studies of one file: a list instead of the name."""
        is_list = len(studies) > 1
        self.name.setVisible(not is_list)
        self.studies.setVisible(is_list)
        if [study.name for study in studies] != [self.studies.itemData(at) for at in range(self.studies.count())]:
            self.studies.clear()
            for study in studies:
                self.studies.addItem(f"{study.name} ({study.trials:,})", study.name)
        self.studies.setCurrentIndex(self.studies.findData(shown))

    def _say_refused(self, words: str, is_not_yet: bool) -> None:
        if self.view.study is not None:
            # What was read stays: a file that is being replaced is back in a moment.
            self.banner.say(words, "warning", action=self.tr("Look again"), on_action=self.feed.look)
        elif is_not_yet and self._not_yet:
            self.banner.say(self._not_yet, "info")
        else:
            self._clear()
            self.banner.say(words, "bad", action=self.tr("Look again"), on_action=self.feed.look)

    def choose_file(self) -> None:
        dialog = study_dialog(self)
        dialog.fileSelected.connect(self.other_wanted)
        dialog.open()

    # ------------------------------------------------------------------ dashboard

    def toggle_dashboard(self) -> None:
        if self._dashboard is not None and self._dashboard.is_running:
            self.open_in_browser(self._dashboard.address)
            return
        study = self.view.study
        if study is None or study.path is None:
            return
        self._dashboard_turn += 1
        turn, path = self._dashboard_turn, path_of(study.path)
        self.dashboard.setEnabled(False)
        self.banner.say(self.tr("optuna-dashboard is being started …"))
        self._background.run(
            lambda: Dashboard.start(
                path, is_journal=_is_journal(path), is_given_up=lambda: turn != self._dashboard_turn
            ),
            owner=self,
            done=partial(self._dashboard_runs, turn),
            failed=partial(self._no_dashboard, turn),
        )

    def _dashboard_runs(self, turn: int, dashboard: Dashboard) -> None:
        if turn != self._dashboard_turn:
            dashboard.abandon()
            return
        self._dashboard = dashboard
        self.dashboard.setEnabled(True)
        self.banner.say(
            self.tr("optuna-dashboard runs at {address} until you leave this view.").format(address=dashboard.address),
            action=self.tr("Stop it"),
            on_action=self.stop_dashboard,
        )
        self.open_in_browser(dashboard.address)

    def _no_dashboard(self, turn: int, error: Exception) -> None:
        if not isinstance(error, DashboardProblem):
            raise error
        if turn == self._dashboard_turn:
            self.dashboard.setEnabled(True)
            self.banner.say(str(error), "warning")

    def stop_dashboard(self) -> None:
        """It ends with whoever looked."""
        self._dashboard_turn += 1
        dashboard, self._dashboard = self._dashboard, None
        if dashboard is not None:
            dashboard.abandon()
            self.banner.clear()
        self.dashboard.setEnabled(self.view.study is not None)


def study_dialog(parent: QWidget) -> QFileDialog:
    """Asks for a file that holds a study."""
    tr = partial(QCoreApplication.translate, "StudyPanel")
    kinds = f"{tr('Studies of Optuna')} ({_FILES});;{tr('All files')} (*)"
    dialog = QFileDialog(parent, tr("Open a study"), "", kinds)
    dialog.setObjectName("open_study_dialog")
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
    return dialog


def _is_journal(path: Path) -> bool:
    try:
        with open_chosen(path) as stream:
            return stream.read(1) == b"{"
    except OSError:
        return False
