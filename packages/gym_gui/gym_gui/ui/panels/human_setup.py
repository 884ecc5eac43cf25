"""The left column of the Human-Only mode: which game, with which seed, how fast, and its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QButtonGroup,
    QCheckBox,
    QFormLayout,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QRadioButton,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.play import catalogue, memory
from gym_gui.ui.play.actions import stem_of
from gym_gui.ui.play.catalogue import GameFacts, Playable
from gym_gui.ui.play.key_maps import is_turn_based
from gym_gui.ui.widgets.environment_picker import EnvironmentPicker
from gym_gui.ui.widgets.game_config import GameConfig
from gym_gui.ui.widgets.pace_box import PaceBox

LARGEST_SEED = 2**31 - 1
USUAL_RATE = 15
USUAL_GAME = "CartPole-v1"


@dataclass(frozen=True)
class GameChoice:
    """What a game is started with."""

    env_id: str
    env_kwargs: dict[str, Any]
    seed: int


class HumanSetup(QWidget):
    """Says what was chosen; starting it is the panel's."""

    start_wanted = Signal()
    stop_wanted = Signal()
    facts_changed = Signal(object)  # GameFacts of the chosen environment
    pace_changed = Signal()
    problem = Signal(str)

    def __init__(
        self, link: DaemonLink, background: Background, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("human_setup")
        self._link, self._background, self._home = link, background, home
        self._argv: tuple[str, ...] = ()
        self._asked_for = ""
        self._is_loaded = self._is_loading = False
        self._build()
        link.state_changed.connect(lambda state: self.load() if link.is_connected else None)

    def _build(self) -> None:
        self.picker = EnvironmentPicker()
        self.picker.chosen.connect(self._on_chosen)
        self.seed = QSpinBox()
        self.seed.setObjectName("seed")
        self.seed.setAccessibleName(self.tr("Seed of the first episode"))
        self.seed.setRange(0, LARGEST_SEED)
        self.seed.setValue(int(memory.recall("seed", 1)))
        self.same_seed = QCheckBox(self.tr("The same for &every episode"))
        self.same_seed.setObjectName("same_seed")
        self.same_seed.setAccessibleName(self.tr("The same seed for every episode"))
        self.same_seed.setToolTip(self.tr("Otherwise each episode has the next number"))
        self.turns = QRadioButton(self.tr("&Turn by turn"))
        self.turns.setObjectName("turn_based")
        self.turns.setAccessibleName(self.tr("Turn by turn: a key is a step"))
        self.real_time = QRadioButton(self.tr("Real ti&me"))
        self.real_time.setObjectName("real_time")
        self.real_time.setAccessibleName(self.tr("Real time: the game goes on by itself"))
        pace_kind = QButtonGroup(self)
        pace_kind.addButton(self.turns)
        pace_kind.addButton(self.real_time)
        self.turns.setChecked(True)
        self.pace = PaceBox(self.tr("Steps a second in real time"), USUAL_RATE)
        self.pace.setEnabled(False)
        self.real_time.toggled.connect(self._on_pace)
        self.pace.changed.connect(self._on_pace)
        self.config = GameConfig()
        self.reset_config = QPushButton(self.tr("De&faults"))
        self.reset_config.setObjectName("reset_config")
        self.reset_config.setAccessibleName(self.tr("Restore the default game configuration"))
        self.reset_config.clicked.connect(self.config.reset)
        self.config.changed.connect(self._on_config)
        self.start = QPushButton(self.tr("&Start"))
        self.start.setObjectName("start_game")
        self.start.setAccessibleName(self.tr("Start the game"))
        self.start.setProperty("role", "primary")
        self.start.clicked.connect(self.start_wanted)
        self.stop = QPushButton(self.tr("Sto&p"))
        self.stop.setObjectName("stop_game")
        self.stop.setAccessibleName(self.tr("End the game and its run"))
        self.stop.clicked.connect(self.stop_wanted)
        self._lay_out()
        self.set_running(False)

    def _lay_out(self) -> None:
        form = QFormLayout()
        form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)
        form.addRow(self.tr("See&d"), self.seed)
        form.addRow("", self.same_seed)
        kinds = QHBoxLayout()
        kinds.addWidget(self.turns)
        kinds.addWidget(self.real_time)
        kinds.addStretch(1)
        form.addRow(self.tr("Pace"), kinds)
        form.addRow("", self.pace)
        heading = QHBoxLayout()
        heading.addWidget(_heading(self.tr("Game configuration")))
        heading.addStretch(1)
        heading.addWidget(self.reset_config)
        buttons = QHBoxLayout()
        buttons.addWidget(self.start, 1)
        buttons.addWidget(self.stop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, self.fontMetrics().averageCharWidth(), 0)
        layout.addWidget(_heading(self.tr("Environment")))
        layout.addWidget(self.picker, 3)
        layout.addLayout(form)
        layout.addLayout(heading)
        layout.addWidget(self.config, 2)
        layout.addLayout(buttons)

    # ------------------------------------------------------------------ what can be played

    def load(self) -> None:
        """Ask the worker, once; again after it could not be asked."""
        if self._is_loaded or self._is_loading or self._home is None or not self._link.is_connected:
            return
        self._is_loading = True
        home = self._home

        def look(client: TrainerClient) -> tuple[tuple[str, ...], list[Playable]]:
            workers: Sequence[pb.Worker] = list(client.workers(name=catalogue.WORKER))
            argv = catalogue.worker_argv(workers)
            return argv, catalogue.list_environments(argv, home)

        self._link.call(look, owner=self, done=self._on_listed, failed=self._on_not_listed)

    def _on_listed(self, found: tuple[tuple[str, ...], list[Playable]]) -> None:
        self._is_loading, self._is_loaded = False, True
        self._argv, playables = found
        self.picker.set_playables(playables, "" if playables else self.tr("No environment is installed."))
        self.picker.choose(self.picker.env_id or str(memory.recall("env_id", USUAL_GAME)))

    def _on_not_listed(self, words: str) -> None:
        self._is_loading = False
        self.picker.set_playables((), words)
        self.problem.emit(words)

    def _on_chosen(self, env_id: str) -> None:
        memory.keep("env_id", env_id)
        pace = memory.recall(f"pace/{stem_of(env_id)}")
        is_real_time = bool(pace[0]) if isinstance(pace, list) and len(pace) == 2 else not is_turn_based(env_id)
        rate = pace[1] if isinstance(pace, list) and len(pace) == 2 and isinstance(pace[1], int) else USUAL_RATE
        self.pace.set_rate(rate)
        (self.real_time if is_real_time else self.turns).setChecked(True)
        self.config.show_words(self.tr("Looking at {env} …").format(env=env_id))
        if not self._argv:
            return
        self._asked_for = env_id
        argv, home = self._argv, self._home
        self._background.run(
            lambda: catalogue.describe_environment(argv, home, env_id),
            owner=self,
            done=self._on_described,
            failed=lambda error: self._on_not_described(env_id, error),
        )

    def _on_described(self, facts: GameFacts) -> None:
        if facts.env_id == self._asked_for:
            self.config.show_arguments(facts.arguments, memory.recall(f"config/{stem_of(facts.env_id)}"))
            self.facts_changed.emit(facts)

    def _on_not_described(self, env_id: str, error: Exception) -> None:
        if not isinstance(error, ValueError):
            raise error
        if env_id == self._asked_for:
            self.config.show_words(str(error))
            self.facts_changed.emit(None)

    # ------------------------------------------------------------------ what was chosen

    @property
    def is_real_time(self) -> bool:
        return self.real_time.isChecked()

    def choice(self) -> GameChoice:
        memory.keep("seed", self.seed.value())
        return GameChoice(self.picker.env_id, self.config.values(), self.seed.value())

    def seed_of(self, episode: int) -> int:
        """Of the n-th episode, counted from 0."""
        first = self.seed.value()
        return first if self.same_seed.isChecked() else (first + episode) % (LARGEST_SEED + 1)

    def set_running(self, is_running: bool) -> None:
        """While a game is on, what it was made with stays as it is."""
        self.start.setEnabled(not is_running)
        self.stop.setEnabled(is_running)
        for part in (self.picker, self.config, self.reset_config, self.seed):
            part.setEnabled(not is_running)

    def _on_pace(self) -> None:
        self.pace.setEnabled(self.is_real_time)
        if self.picker.env_id:
            memory.keep(f"pace/{stem_of(self.picker.env_id)}", [self.is_real_time, self.pace.rate])
        self.pace_changed.emit()

    def _on_config(self) -> None:
        if self.picker.env_id:
            memory.keep(f"config/{stem_of(self.picker.env_id)}", self.config.values())


def _heading(text: str) -> QLabel:
    label = QLabel(text)
    font = label.font()
    font.setBold(True)
    label.setFont(font)
    return label
