"""The Optuna tab of a run: the study of a sweep, or one that its manifest names; read-only, and live while it grows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.sweep_settings import JOURNAL, STUDY_FILES
from PySide6.QtWidgets import QVBoxLayout, QWidget

from gym_gui.services.analytics.studies import Trial, is_url
from gym_gui.services.analytics.studies.trial_config import (
    TrainingConfig,
    training_of_parameters,
    training_of_sweep,
)
from gym_gui.services.sweeps import SweepUnreadable, is_sweep
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.panels.run_tab import RunTab
from gym_gui.ui.panels.study_panel import StudyPanel
from gym_gui.ui.panels.study_window import StudyWindow
from gym_gui.ui.presenters.analytics_artefacts import Artefacts, extras_of
from gym_gui.ui.replay.locality import is_on_this_machine


class OptunaTab(RunTab):
    """Finds the study of a run and shows it."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("optuna_tab")
        self._shown: tuple[str, str, str] = ("", "", "")
        self.panel = StudyPanel(link.background)
        self.panel.run_wanted.connect(self.run_wanted)
        self.panel.train_wanted.connect(self.train)
        self.panel.sweep_wanted.connect(lambda: self.form_wanted.emit("sweep", self.run))
        self.panel.other_wanted.connect(self._open_other)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.panel)

    # ------------------------------------------------------------------ what the page calls

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self.panel.again.setVisible(is_sweep(run))
        self._look()

    def refresh(self, run: pb.Run) -> None:
        was_over = self.run is not None and self.run.status == "TERM"
        super().refresh(run)
        self._look()
        if run.status == "TERM" and not was_over:
            self.panel.feed.look()  # what was written at the very end
        self._follow_or_not()

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if active:
            self._look()
        else:
            self.panel.stop_dashboard()
        self._follow_or_not()

    # ------------------------------------------------------------------ which study

    def _look(self) -> None:
        """Open the study that the run has now; nothing happens while that is the one that is shown."""
        run = self.run
        if run is None or not self.is_active:
            return
        address, name = study_of(run, self.artefacts)
        wanted = run.run_id, address, name
        if wanted == self._shown:
            return
        self._shown = wanted
        if not is_on_this_machine(self.link.state.target, run.run_dir):
            self.panel.show_nothing(
                self.tr(
                    "The study of this run lies on the machine of its daemon, in {folder}. Look at it there, or export "
                    "the run and import it here."
                ).format(folder=run.run_dir)
            )
        elif is_url(address):
            self.panel.show_nothing(
                self.tr(
                    "The study “{name}” lies in a database server, and this window reads files only. Look at it with: "
                    "optuna-dashboard {address}  (put in the password; pip install optuna-dashboard)"
                ).format(name=name or run.name, address=address)
            )
        else:
            self.panel.open(address, name, not_yet=self._not_yet(run))

    def _not_yet(self, run: pb.Run) -> str:
        if run.status == "TERM":
            return self.tr("This run ended before it wrote its study.")
        return self.tr("The study is not available yet; it appears here as soon as the first trial begins.")

    def _follow_or_not(self) -> None:
        run = self.run
        self.panel.set_live(self.is_active and run is not None and run.status != "TERM")

    # ------------------------------------------------------------------ what can be done

    def train(self, trial: Trial) -> None:
        """The form that trains, filled with this trial's configuration."""
        run = self.run
        if run is None:
            return

        def failed(error: Exception) -> None:
            if not isinstance(error, SweepUnreadable):
                raise error
            self.panel.banner.say(str(error), "bad")

        self.link.background.run(lambda: _training(run, trial), owner=self, done=self.config_wanted.emit, failed=failed)

    def _open_other(self, file: str) -> None:
        window = StudyWindow(self.link.background, self.window())
        window.run_wanted.connect(self.run_wanted)
        window.config_wanted.connect(self.config_wanted)
        window.open_file(file)


def study_of(run: pb.Run, found: Artefacts | None) -> tuple[str, str]:
    """Where a run's study lies (a path or a URL) and what it is called; what is not said is empty."""
    settings = _settings_of(run)
    manifest = found.manifest if found is not None else None
    told = (manifest.optuna_db_path if manifest is not None else None) or extras_of(run).get("optuna_db")
    if not isinstance(told, str) or not told:
        storage = settings.get("storage", JOURNAL)
        told = STUDY_FILES.get(storage, storage) if isinstance(storage, str) else STUDY_FILES[JOURNAL]
    name = settings.get("study_name")
    address = told if "://" in told else str(Path(run.run_dir) / told)
    return address, name if isinstance(name, str) else ""


def _settings_of(run: pb.Run) -> Mapping[str, Any]:
    if not is_sweep(run):
        return {}
    settings = extras_of(run).get("algo_params")
    return settings if isinstance(settings, dict) else {}


def _training(run: pb.Run, trial: Trial) -> TrainingConfig:
    return training_of_sweep(run, trial) if is_sweep(run) else training_of_parameters(trial)
