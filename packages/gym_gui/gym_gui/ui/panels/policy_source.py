"""The upper part of «Watch a policy»: which policy, where it plays, with which seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QComboBox, QFileDialog, QGridLayout, QLabel, QLineEdit, QPushButton, QSpinBox, QWidget

from gym_gui.services.policy_files import of_path
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.play.policies import CheckpointChoice, Player, Shelf, checkpoints_of, look_at_shelf
from gym_gui.wording import formats


@dataclass(frozen=True)
class PolicyChoice:
    """What is to be watched."""

    player: Player
    path: str
    env_id: str
    seed: int
    title: str


@dataclass(frozen=True)
class _File:
    path: str
    title: str
    algo: str
    env_id: str


class PolicySource(QWidget):
    """Says what was chosen, or why nothing is."""

    changed = Signal()
    problem = Signal(str)

    def __init__(self, link: DaemonLink, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("policy_source")
        self._link, self._background = link, background
        self._shelf = Shelf((), {})
        self._file: _File | None = None
        self._is_loading = False
        self._wanted = ""
        self._build()

    def _build(self) -> None:
        self.runs = _combo("policy_run", self.tr("Run whose policy is watched"))
        self.runs.currentIndexChanged.connect(self._on_run)
        self.checkpoints = _combo("policy_checkpoint", self.tr("Checkpoint of the run"))
        self.checkpoints.currentIndexChanged.connect(self.changed)
        self.open_file = QPushButton(self.tr("From a &file …"))
        self.open_file.setObjectName("policy_file")
        self.open_file.setAccessibleName(self.tr("Watch a policy from a file or a checkpoint folder"))
        self.open_file.clicked.connect(self._ask_for_file)
        self.algo = _combo("policy_algo", self.tr("Algorithm of the policy"))
        self.env_id = QLineEdit()
        self.env_id.setObjectName("policy_env")
        self.env_id.setAccessibleName(self.tr("Environment it plays in"))
        self.env_id.textChanged.connect(self.changed)
        self.seed = QSpinBox()
        self.seed.setObjectName("policy_seed")
        self.seed.setAccessibleName(self.tr("Seed of the first episode"))
        self.seed.setRange(0, 2**31 - 1)
        self.seed.setValue(1)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._labels: dict[QWidget, QLabel] = {}
        for text, widget in (
            (self.tr("&Run"), self.runs), (self.tr("&Checkpoint"), self.checkpoints),
            (self.tr("&Environment"), self.env_id), (self.tr("&Algorithm"), self.algo), (self.tr("See&d"), self.seed),
        ):  # fmt: skip
            self._labels[widget] = QLabel(text)
            self._labels[widget].setBuddy(widget)
        self.set_compact(False)

    def set_compact(self, is_compact: bool) -> None:
        """In two columns of fields for a narrow place, in three otherwise."""
        wide = {self.runs: (0, 0), self.checkpoints: (0, 2), self.env_id: (1, 0), self.algo: (1, 2), self.seed: (1, 4)}
        narrow = {
            self.runs: (0, 0),
            self.checkpoints: (0, 2),
            self.env_id: (1, 0),
            self.algo: (1, 2),
            self.seed: (2, 0),
        }
        for widget, (row, column) in (narrow if is_compact else wide).items():
            self._grid.addWidget(self._labels[widget], row, column)
            self._grid.addWidget(widget, row, column + 1)
        self._grid.addWidget(self.open_file, *((2, 2, 1, 2) if is_compact else (0, 4, 1, 2)))
        self._grid.setColumnStretch(1, 3)
        self._grid.setColumnStretch(3, 2)
        for combo in (self.runs, self.checkpoints, self.algo):
            combo.setMinimumContentsLength(6 if is_compact else 14)
        self.env_id.setMinimumWidth(self.fontMetrics().averageCharWidth() * (10 if is_compact else 16))

    # ------------------------------------------------------------------ what there is

    def load(self) -> None:
        """Ask again what can be watched; what is chosen stays chosen."""
        if self._is_loading or not self._link.is_connected:
            return
        self._is_loading = True
        self._link.call(look_at_shelf, owner=self, done=self._on_shelf, failed=self._on_failed)

    def _on_failed(self, words: str) -> None:
        self._is_loading = False
        self.problem.emit(words)

    def _on_shelf(self, shelf: Shelf) -> None:
        self._is_loading = False
        before = self._wanted or self.chosen_run_id()
        self._shelf = shelf
        with QSignalBlocker(self.runs), QSignalBlocker(self.algo):
            self.runs.clear()
            if self._file is not None:
                self.runs.addItem(self.tr("File {name}").format(name=self._file.title), None)
            for run in shelf.runs:
                self.runs.addItem(_title_of(run), run)
            algo = self.algo.currentText()
            self.algo.clear()
            self.algo.addItems(shelf.algorithms)
            self.algo.setCurrentIndex(self.algo.findText(algo))
            place = next((i for i, run in enumerate(self._runs_listed()) if run and run.run_id == before), 0)
            self.runs.setCurrentIndex(place if self.runs.count() else -1)
        if before != self.chosen_run_id() or not self.checkpoints.count():
            self._on_run()
        self._wanted = ""
        self.changed.emit()

    def _runs_listed(self) -> list[pb.Run | None]:
        return [self.runs.itemData(row) for row in range(self.runs.count())]

    def chosen_run_id(self) -> str:
        run = self.runs.currentData()
        return run.run_id if run is not None else ""

    def choose_run(self, run_id: str) -> None:
        """Somebody wants to watch the policy of this run."""
        self._wanted = run_id
        for row, run in enumerate(self._runs_listed()):
            if run is not None and run.run_id == run_id:
                self.runs.setCurrentIndex(row)
                return
        self.load()

    def _on_run(self) -> None:
        run = self.runs.currentData()
        self.checkpoints.clear()
        if run is None:
            if self._file is not None and self.runs.count():
                self._show_names(self._file.algo, self._file.env_id)
            self.changed.emit()
            return
        self._show_names(run.algo, run.env_id)
        self._background.run(
            lambda: checkpoints_of(run), owner=self,
            done=lambda found: self._on_checkpoints(run.run_id, found),
            failed=lambda error: self._on_no_checkpoints(run.run_id, error),
        )  # fmt: skip

    def _show_names(self, algo: str, env_id: str) -> None:
        self.algo.setCurrentIndex(self.algo.findText(algo))
        self.env_id.setText(env_id)

    def _on_checkpoints(self, run_id: str, found: list[CheckpointChoice]) -> None:
        if run_id != self.chosen_run_id():
            return
        for choice in found:
            if choice.step is None:
                text = self.tr("the newest good one")
            else:
                text = self.tr("step {step}").format(step=formats.count(choice.step))
                text += f" ({choice.kind})" if choice.kind != "periodic" else ""
            self.checkpoints.addItem(text, choice)
        self.changed.emit()

    def _on_no_checkpoints(self, run_id: str, error: Exception) -> None:
        if not isinstance(error, ValueError):
            raise error
        if run_id == self.chosen_run_id():
            self.problem.emit(str(error))
            self.changed.emit()

    # ------------------------------------------------------------------ a file

    def _ask_for_file(self) -> None:
        dialog = QFileDialog(self, self.tr("Watch a policy from a file"))
        dialog.setObjectName("policy_file_dialog")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.setNameFilter(self.tr("Policies (*.cleanrl_model state.json);;All files (*)"))
        dialog.fileSelected.connect(lambda name: self.choose_file(Path(name)))
        dialog.open()

    def choose_file(self, path: Path) -> None:
        """A file with weights, or a checkpoint folder."""
        self._background.run(lambda: _look_at(path), owner=self, done=self._on_file, failed=self._on_bad_file)

    def _on_file(self, found: _File) -> None:
        self._file = found
        with QSignalBlocker(self.runs):
            if self.runs.count() and self.runs.itemData(0) is None:
                self.runs.removeItem(0)
            self.runs.insertItem(0, self.tr("File {name}").format(name=found.title), None)
            self.runs.setCurrentIndex(0)
        self._on_run()
        if not found.algo or not found.env_id:
            self.problem.emit(
                self.tr("The file does not say what it was trained with; choose algorithm and environment.")
            )

    def _on_bad_file(self, error: Exception) -> None:
        if not isinstance(error, ValueError | OSError):
            raise error
        self.problem.emit(str(error))

    # ------------------------------------------------------------------ what was chosen

    def choice(self) -> PolicyChoice | None:
        """What is to be watched; None while something is missing."""
        run: pb.Run | None = self.runs.currentData()
        env_id, algo = self.env_id.text().strip(), self.algo.currentText()
        player = self._shelf.player(algo, run.worker_type if run is not None and run.algo == algo else "")
        if player is None or not env_id:
            return None
        if run is None:
            if self._file is None:
                return None
            return PolicyChoice(player, self._file.path, env_id, self.seed.value(), self._file.title)
        chosen: Any = self.checkpoints.currentData()
        if chosen is None:
            return None
        return PolicyChoice(player, chosen.path, env_id, self.seed.value(), run.name or run.run_id[-6:])

    @property
    def is_empty(self) -> bool:
        return self.runs.count() == 0 and not self._is_loading


def _combo(name: str, accessible: str) -> QComboBox:
    combo = QComboBox()
    combo.setObjectName(name)
    combo.setAccessibleName(accessible)
    combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    combo.setMinimumContentsLength(14)
    return combo


def _title_of(run: pb.Run) -> str:
    result = f", return {run.episodic_return:.4g}" if run.HasField("episodic_return") else ""
    return f"{run.name or run.algo} · {run.algo} · {run.env_id}{result} · {run.run_id[-6:].lower()}"


def _look_at(path: Path) -> _File:
    found = of_path(path.absolute())
    return _File(found.path, found.title, found.algo, found.env_id)
