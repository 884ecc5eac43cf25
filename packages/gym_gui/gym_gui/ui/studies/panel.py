"""Views of a study: in the Optuna tab of a run, or in a window of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mosaic_wire.files import open_chosen
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from mosaic_wire.sweep_settings import JOURNAL, STUDY_FILES
from PySide6.QtCore import QCoreApplication, QObject, QSize, Qt, QTimer, QUrl, Signal
from PySide6.QtGui import QCloseEvent, QDesktopServices
from PySide6.QtWidgets import QComboBox, QDialog, QFileDialog, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from gym_gui.services.analytics.studies.importances import importances
from gym_gui.services.analytics.studies.readers import StudyFile, is_url, open_file, path_of
from gym_gui.services.analytics.studies.study import NoStudyYet, StudyError, StudySummary, Trial
from gym_gui.services.analytics.web_servers import Dashboard, ServerProblem
from gym_gui.services.sweeps import SweepUnreadable, TrainingConfig, is_sweep, training_of_parameters, training_of_sweep
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import TrainerError
from gym_gui.services.trainer.run_copies import STUDY
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.run_files import RunArtifacts
from gym_gui.ui.studies.rows import StudyReading, StudyRows
from gym_gui.ui.studies.view import StudyView
from gym_gui.ui.widgets.banner import Banner, Tone
from gym_gui.ui.widgets.parts import bold, caption, fill, named, push_button
from gym_gui.ui.widgets.run_tab import RunTab
from gym_gui.wording.run_view import extras_of

POLL_MS = 2000
_SHARE_OF_TIME = 10
"""Limit for the share of time spent reading a slow study"""

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class _Answer:
    file: StudyFile
    stamp: Stamp
    reading: StudyReading | None
    """None: nothing has changed"""
    took_s: float


class StudyFeed(QObject):
    """Read one study in the background, and again when its file has changed while `set_live` is on."""

    arrived = Signal(object)  # StudyReading
    refused = Signal(str, bool)  # why it cannot be shown; whether it may only not exist yet

    def __init__(self, background: Background, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._background = background
        self._address, self._name = "", ""
        self._file: StudyFile | None = None
        self._stamp: Stamp = ()
        self._request = 0
        """Incremented with each study opened: answers for older ones are dropped"""
        self._is_reading = self._is_outdated = self._is_live = False
        self.fetch: Callable[[], object] = lambda: None
        """Called in a thread before the file is read: it may have to come from another machine"""
        self._timer = QTimer(self, singleShot=True, interval=POLL_MS)
        self._timer.timeout.connect(self.poll)

    def open(self, address: str | Path, name: str = "") -> None:
        """Show the study of this name; without a name the latest one in the file."""
        self._request += 1
        self._address, self._name = str(address), name
        self._file, self._stamp = None, ()
        self._timer.stop()
        self.poll()

    def close(self) -> None:
        self.open("")

    def choose(self, name: str) -> None:
        """Show another study of the same file."""
        if name != self._name:
            self._name, self._stamp = name, ()
            self.poll()

    def set_live(self, live: bool) -> None:
        """Poll the file while it is visible and may grow."""
        self._is_live = live
        if live:
            self.poll()
        else:
            self._timer.stop()

    def poll(self) -> None:
        """Read the study if its file has changed."""
        self._is_outdated = self._is_reading and bool(self._address)
        if not self._address or self._is_reading:
            return
        self._is_reading = True
        request, address, name, file, stamp = self._request, self._address, self._name, self._file, self._stamp
        fetch = self.fetch

        def read() -> _Answer:
            fetch()
            return _read(address, name, file, stamp)

        self._background.run(
            read,
            owner=self,
            done=lambda answer: self._apply(request, answer),
            failed=lambda error: self._refuse(request, error),
        )

    def _apply(self, request: int, answer: _Answer) -> None:
        if not self._finish(request):
            return
        self._file, self._stamp = answer.file, answer.stamp
        self._poll_later(answer.took_s)
        if answer.reading is not None:
            self._name = answer.reading.study.name
            self.arrived.emit(answer.reading)

    def _refuse(self, request: int, error: Exception) -> None:
        if not isinstance(error, StudyError):
            raise error
        if self._finish(request):
            self._file, self._stamp = None, ()
            self._poll_later(0.0)
            self.refused.emit(str(error), isinstance(error, NoStudyYet))

    def _finish(self, request: int) -> bool:
        """End one read; return whether its answer is still current."""
        self._is_reading = False
        is_current = request == self._request
        if self._is_outdated or not is_current:
            self.poll()
        return is_current

    def _poll_later(self, took_s: float) -> None:
        if self._is_live:
            self._timer.start(max(POLL_MS, round(took_s * 1000 * _SHARE_OF_TIME)))


def _read(address: str, name: str, file: StudyFile | None, stamp: Stamp) -> _Answer:
    """Read a study, in a thread."""
    began = time.monotonic()
    file = file or open_file(address)
    now = _stamp_of(path_of(address))
    if now == stamp:
        return _Answer(file, stamp, None, 0.0)
    studies = file.summaries()
    if not studies:
        raise NoStudyYet(f"{file.path} holds no study yet")
    study = file.read(name or studies[-1].name)
    shares = tuple(importances(study, place) for place in range(len(study.directions)))
    return _Answer(file, now, StudyReading(StudyRows(study), shares, studies), time.monotonic() - began)


def _stamp_of(path: Path) -> Stamp:
    """Return what changes with the file, and with the log that SQLite may write beside it."""
    found = []
    for each in (path, Path(f"{path}-wal")):
        try:
            status = each.stat()
        except OSError:
            continue
        found.append((status.st_ino, status.st_mtime_ns, status.st_size))
    return tuple(found)


# ---------------------------------------------------------------------- the panel

_FILES = "*.journal *.log *.db *.sqlite *.sqlite3"


class StudyPanel(QWidget):
    """Head, banner and view of one study."""

    run_requested = Signal(str)
    train_requested = Signal(object)  # Trial
    other_file_chosen = Signal(str)  # a file that the user chose
    sweep_requested = Signal()

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("study_panel")
        self._background = background
        self._dashboard: Dashboard | None = None
        self._dashboard_request = 0
        self._not_yet = ""
        self.open_in_browser: Callable[[str], object] = lambda address: QDesktopServices.openUrl(QUrl(address))
        self.feed = StudyFeed(background, self)
        self.feed.arrived.connect(self._show)
        self.feed.refused.connect(self._show_refusal)
        self.view = StudyView()
        self.view.run_requested.connect(self.run_requested)
        self.view.train_requested.connect(self.train_requested)
        self.banner = Banner(parent=self)
        self._build()

    def _build(self) -> None:
        self.name = bold(named(QLabel(), "study_name"))
        self.studies = named(QComboBox(), "study_choice", self.tr("Study of this file"))
        self.studies.hide()
        self.studies.activated.connect(lambda place: self.feed.choose(str(self.studies.itemData(place))))
        self.summary = caption("study_summary")
        form = self.tr("The form of this sweep, to change it and start another one")
        self.again = push_button("sweep_again", self.tr("&Sweep again…"), self.sweep_requested.emit, tip=form)
        self.again.hide()
        files = self.tr("An Optuna journal or SQLite file, also from CleanRL's tuner")
        self.other = push_button("open_study", self.tr("Open &another study…"), self.choose_file, tip=files)
        browser = self.tr("Open the study in optuna-dashboard, in the browser; it ends with this view")
        self.dashboard = push_button("open_dashboard", self.tr("&Dashboard"), self.toggle_dashboard, tip=browser)
        buttons = (self.again, self.other, self.dashboard)
        for button in buttons:
            button.setAutoDefault(False)
        head = fill(QHBoxLayout(), self.name, self.studies, self.summary, 1, *buttons, margins=(8, 6, 8, 0))
        inside = fill(QVBoxLayout(), self.view, margins=(8, 0, 8, 8))
        fill(QVBoxLayout(self), self.banner, head, (inside, 1), margins=0, spacing=4)
        self.show_nothing()

    def open(self, address: str | Path, name: str = "", *, not_yet: str = "") -> None:
        """Show a study; `not_yet` is shown while its file does not exist."""
        self.show_nothing()
        self._not_yet = not_yet
        self.feed.open(address, name)

    def show_nothing(self, reason: str = "") -> None:
        self.stop_dashboard()
        self.feed.close()
        self._clear()
        if reason:
            self.banner.set_message(reason)
        else:
            self.banner.clear()

    def _clear(self) -> None:
        self.view.show_reading(None)
        self.view.setEnabled(False)
        self.name.clear()
        self.summary.clear()
        self.studies.hide()
        self.dashboard.setEnabled(False)

    def _show(self, reading: StudyReading) -> None:
        study = reading.study
        self.view.setEnabled(True)
        self.view.show_reading(reading)
        self.name.setText(study.name)
        self.name.setToolTip(str(study.path or ""))
        self.summary.setText(self.view.summary())
        self._list_studies(reading.studies, study.name)
        self.dashboard.setEnabled(True)
        if study.notices:
            self.banner.set_message("\n".join(study.notices), "warning")
        else:
            self.banner.clear()

    def _list_studies(self, studies: tuple[StudySummary, ...], shown: str) -> None:
        """Show a list instead of the name when the file has several studies."""
        is_list = len(studies) > 1
        self.name.setVisible(not is_list)
        self.studies.setVisible(is_list)
        if [study.name for study in studies] != [self.studies.itemData(at) for at in range(self.studies.count())]:
            self.studies.clear()
            for study in studies:
                self.studies.addItem(f"{study.name} ({study.trials:,})", study.name)
        self.studies.setCurrentIndex(self.studies.findData(shown))

    def _show_refusal(self, reason: str, is_not_yet: bool) -> None:
        has_study = self.view.study is not None
        if is_not_yet and self._not_yet and not has_study:
            self.banner.set_message(self._not_yet)
            return
        if not has_study:  # otherwise keep showing it: the file may just be being replaced
            self._clear()
        tone: Tone = "warning" if has_study else "bad"
        self.banner.set_message(reason, tone, action=self.tr("Retry"), on_action=self.feed.poll)

    def choose_file(self) -> None:
        dialog = study_dialog(self)
        dialog.fileSelected.connect(self.other_file_chosen)
        dialog.open()

    # ------------------------------------------------------------------ dashboard

    def toggle_dashboard(self) -> None:
        if self._dashboard is not None and self._dashboard.is_running:
            self.open_in_browser(self._dashboard.address)
            return
        study = self.view.study
        if study is None or study.path is None:
            return
        self._dashboard_request += 1
        request, path = self._dashboard_request, path_of(study.path)
        self.dashboard.setEnabled(False)
        self.banner.set_message(self.tr("optuna-dashboard is being started …"))
        self._background.run(
            lambda: Dashboard.start(
                path, is_journal=_is_journal(path), is_given_up=lambda: request != self._dashboard_request
            ),
            owner=self,
            done=partial(self._dashboard_started, request),
            failed=partial(self._dashboard_failed, request),
        )

    def _dashboard_started(self, request: int, dashboard: Dashboard) -> None:
        if request != self._dashboard_request:
            dashboard.abandon()
            return
        self._dashboard = dashboard
        self.dashboard.setEnabled(True)
        text = self.tr("optuna-dashboard runs at {address} until you leave this view.").format(
            address=dashboard.address
        )
        self.banner.set_message(text, action=self.tr("Stop it"), on_action=self.stop_dashboard)
        self.open_in_browser(dashboard.address)

    def _dashboard_failed(self, request: int, error: Exception) -> None:
        if not isinstance(error, ServerProblem):
            raise error
        if request == self._dashboard_request:
            self.dashboard.setEnabled(True)
            self.banner.set_message(str(error), "warning")

    def stop_dashboard(self) -> None:
        self._dashboard_request += 1
        dashboard, self._dashboard = self._dashboard, None
        if dashboard is not None:
            dashboard.abandon()
            self.banner.clear()
        self.dashboard.setEnabled(self.view.study is not None)


def study_dialog(parent: QWidget) -> QFileDialog:
    """Return a dialog that asks for a file with a study."""
    tr = partial(QCoreApplication.translate, "StudyPanel")
    kinds = f"{tr('Studies of Optuna')} ({_FILES});;{tr('All files')} (*)"
    dialog = named(QFileDialog(parent, tr("Open a study"), "", kinds), "open_study_dialog")
    dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
    return dialog


def _is_journal(path: Path) -> bool:
    try:
        with open_chosen(path) as stream:
            return stream.read(1) == b"{"
    except OSError:
        return False


# ---------------------------------------------------------------------- a file, a run


class StudyWindow(QDialog):
    """A study that was opened from a file; followed while the window is open, because it may still be written."""

    run_requested = Signal(str)
    config_requested = Signal(object)  # TrainingConfig

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("study_window")
        self.setModal(False)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowFlag(Qt.WindowType.WindowMaximizeButtonHint, True)
        self.setWindowTitle(self.tr("Study"))
        self.panel = StudyPanel(background)
        self.panel.run_requested.connect(self.run_requested)
        self.panel.train_requested.connect(lambda trial: self.config_requested.emit(training_of_parameters(trial)))
        self.panel.other_file_chosen.connect(self.open_file)
        fill(QVBoxLayout(self), self.panel, margins=0)
        room = self.screen().availableGeometry().size()
        self.resize(QSize(min(1180, room.width() - 40), min(680, room.height() - 60)))

    def open_file(self, file: str) -> None:
        self.setWindowTitle(self.tr("Study: {file}").format(file=Path(file).name))
        self.panel.open(file)
        self.panel.feed.set_live(True)
        self.show()
        self.raise_()
        self.activateWindow()

    def closeEvent(self, event: QCloseEvent) -> None:
        self.panel.feed.set_live(False)
        self.panel.stop_dashboard()
        super().closeEvent(event)


class OptunaTab(RunTab):
    """The Optuna tab of a run: the study of a sweep, or one that its manifest names; read-only, live while it grows."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("optuna_tab")
        self._shown: tuple[str, str, str] = ("", "", "")
        self.panel = StudyPanel(link.background)
        self.panel.run_requested.connect(self.run_requested)
        self.panel.train_requested.connect(self.train)
        self.panel.sweep_requested.connect(lambda: self.form_requested.emit("sweep", self.run))
        self.panel.other_file_chosen.connect(self._open_other)
        fill(QVBoxLayout(self), self.panel, margins=0)

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self.panel.again.setVisible(is_sweep(run))
        self._open_study()

    def refresh(self, run: pb.Run) -> None:
        had_ended = self.run is not None and self.run.status == RunStatus.TERM
        super().refresh(run)
        self._open_study()
        if run.status == RunStatus.TERM and not had_ended:
            self.panel.feed.poll()  # its last trials
        self._update_live()

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if active:
            self._open_study()
        else:
            self.panel.stop_dashboard()
        self._update_live()

    def _open_study(self) -> None:
        """Open the study that the run has now, unless it is shown already."""
        run = self.run
        if run is None or not self.is_active:
            return
        address, name = study_of(self.link.moved(run), self.artifacts)
        if (run.run_id, address, name) == self._shown:
            return
        self._shown = run.run_id, address, name
        self.panel.feed.fetch = lambda: self.link.local(run, *STUDY)
        if is_url(address):
            text = self.tr(
                "The study “{name}” is in a database server, and this window reads files only. Open it with: "
                "optuna-dashboard {address}  (put in the password; pip install optuna-dashboard)"
            )
            self.panel.show_nothing(text.format(name=name or run.name, address=address))
        else:
            not_yet = self.tr("The study is not available yet; it appears here as soon as the first trial begins.")
            if run.status == RunStatus.TERM:
                not_yet = self.tr("This run ended before it wrote a study.")
            self.panel.open(address, name, not_yet=not_yet)

    def _update_live(self) -> None:
        run = self.run
        self.panel.feed.set_live(self.is_active and run is not None and run.status != RunStatus.TERM)

    def train(self, trial: Trial) -> None:
        """Open the form that trains, filled with this trial's configuration."""
        run = self.run
        if run is None:
            return

        def failed(error: Exception) -> None:
            if not isinstance(error, SweepUnreadable | TrainerError):
                raise error
            self.panel.banner.set_message(str(error), "bad")

        self.link.background.run(
            lambda: _training(self.link.client(), run, trial),
            owner=self,
            done=self.config_requested.emit,
            failed=failed,
        )

    def _open_other(self, file: str) -> None:
        window = StudyWindow(self.link.background, self.window())
        window.run_requested.connect(self.run_requested)
        window.config_requested.connect(self.config_requested)
        window.open_file(file)


def study_of(run: pb.Run, found: RunArtifacts | None) -> tuple[str, str]:
    """Return where a run's study is (a path or a URL) and its name; unknown is empty."""
    settings = _settings_of(run)
    manifest = found.manifest if found is not None else None
    address = (manifest.optuna_db_path if manifest is not None else None) or extras_of(run).get("optuna_db")
    if not isinstance(address, str) or not address:
        storage = settings.get("storage", JOURNAL)
        address = STUDY_FILES.get(storage, storage) if isinstance(storage, str) else STUDY_FILES[JOURNAL]
    name = settings.get("study_name")
    path = address if "://" in address else str(Path(run.run_dir) / address)
    return path, name if isinstance(name, str) else ""


def _settings_of(run: pb.Run) -> Mapping[str, Any]:
    if not is_sweep(run):
        return {}
    settings = extras_of(run).get("algo_params")
    return settings if isinstance(settings, dict) else {}


def _training(client: TrainerClient, run: pb.Run, trial: Trial) -> TrainingConfig:
    return training_of_sweep(run, trial, client) if is_sweep(run) else training_of_parameters(trial)
