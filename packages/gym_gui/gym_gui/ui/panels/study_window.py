"""A study that was opened from a file, in a window of its own: one of CleanRL's tuner, or of anybody's."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QDialog, QVBoxLayout, QWidget

from gym_gui.services.analytics.studies import Trial
from gym_gui.services.analytics.studies.trial_config import training_of_parameters
from gym_gui.ui.background import Background
from gym_gui.ui.panels.study_panel import StudyPanel


class StudyWindow(QDialog):
    """Not modal. Somebody may still write the study: it is looked at again while the window is open."""

    run_wanted = Signal(str)
    config_wanted = Signal(object)  # TrainingConfig

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("study_window")
        self.setModal(False)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowFlag(Qt.WindowType.WindowMaximizeButtonHint, True)
        self.setWindowTitle(self.tr("Study"))
        self.panel = StudyPanel(background)
        self.panel.run_wanted.connect(self.run_wanted)
        self.panel.train_wanted.connect(self._train)
        self.panel.other_wanted.connect(self.open_file)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.panel)
        room = self.screen().availableGeometry().size()
        self.resize(QSize(min(1180, room.width() - 40), min(680, room.height() - 60)))

    def open_file(self, file: str) -> None:
        """Show the study in this file."""
        self.setWindowTitle(self.tr("Study: {file}").format(file=Path(file).name))
        self.panel.open(file)
        self.panel.set_live(True)
        self.show()
        self.raise_()
        self.activateWindow()

    def _train(self, trial: Trial) -> None:
        self.config_wanted.emit(training_of_parameters(trial))

    def closeEvent(self, event: QCloseEvent) -> None:
        self.panel.set_live(False)
        self.panel.stop_dashboard()
        super().closeEvent(event)
