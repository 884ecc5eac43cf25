"""The Watch-a-policy workspace: a checkpoint plays step by step or continuously, as a run of the daemon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import QSignalBlocker, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QSpinBox,
    QStyle,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.policy_files import of_path
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.play.action_keypad import ActionBars
from gym_gui.ui.play.actions import ActionSpace, read_space
from gym_gui.ui.play.game_view import GamePanel, PaceBox
from gym_gui.ui.play.policies import (
    CheckpointChoice,
    Player,
    WatchableRuns,
    checkpoints_of,
    load_watchable_runs,
    thoughts,
    watch_config,
)
from gym_gui.ui.play.session import PlayState
from gym_gui.ui.widgets.parts import ask_for_file, command_button, fill, named, styled, timer
from gym_gui.wording import formats


@dataclass(frozen=True)
class PolicyChoice:
    """The policy to watch."""

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
    """Selects a policy, or shows why none is available."""

    changed = Signal()
    problem = Signal(str)

    def __init__(self, link: DaemonLink, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("policy_source")
        self._link, self._background = link, background
        self._watchable = WatchableRuns((), {})
        self._file: _File | None = None
        self._is_loading = False
        self._requested = ""
        self._build()

    def _build(self) -> None:
        self.runs = _combo("policy_run", self.tr("Run whose policy is watched"))
        self.runs.currentIndexChanged.connect(self._on_run)
        self.checkpoints = _combo("policy_checkpoint", self.tr("Checkpoint of the run"))
        self.checkpoints.currentIndexChanged.connect(self.changed)
        self.open_file = named(QPushButton(self.tr("From a &file …")), "policy_file")
        self.open_file.setAccessibleName(self.tr("Watch a policy from a file or a checkpoint folder"))
        self.open_file.clicked.connect(self._ask_for_file)
        self.algo = _combo("policy_algo", self.tr("Algorithm of the policy"))
        self.env_id = named(QLineEdit(), "policy_env", self.tr("Environment it plays in"))
        self.env_id.textChanged.connect(self.changed)
        self.seed = named(QSpinBox(), "policy_seed", self.tr("Seed of the first episode"))
        self.seed.setRange(0, 2**31 - 1)
        self.seed.setValue(1)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._labels: dict[QWidget, QLabel] = {}
        for text, widget in (
            (self.tr("&Run"), self.runs),
            (self.tr("&Checkpoint"), self.checkpoints),
            (self.tr("&Environment"), self.env_id),
            (self.tr("&Algorithm"), self.algo),
            (self.tr("See&d"), self.seed),
        ):
            self._labels[widget] = QLabel(text)
            self._labels[widget].setBuddy(widget)
        self.set_compact(False)

    def set_compact(self, is_compact: bool) -> None:
        """Use two columns of fields in a narrow panel, else three."""
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

    # ------------------------------------------------------------------ available policies

    def load(self) -> None:
        """Load the watchable runs again; keep the selection."""
        if self._is_loading or not self._link.is_connected:
            return
        self._is_loading = True
        self._link.call(load_watchable_runs, owner=self, done=self._on_runs_loaded, failed=self._on_failed)

    def _on_failed(self, text: str) -> None:
        self._is_loading = False
        self.problem.emit(text)

    def _on_runs_loaded(self, watchable: WatchableRuns) -> None:
        self._is_loading = False
        before = self._requested or self.chosen_run_id()
        self._watchable = watchable
        with QSignalBlocker(self.runs), QSignalBlocker(self.algo):
            self.runs.clear()
            if self._file is not None:
                self.runs.addItem(self.tr("File {name}").format(name=self._file.title), None)
            for run in watchable.runs:
                self.runs.addItem(_title_of(run), run)
            algo = self.algo.currentText()
            self.algo.clear()
            self.algo.addItems(watchable.algorithms)
            self.algo.setCurrentIndex(self.algo.findText(algo))
            place = next((i for i, run in enumerate(self._runs_listed()) if run and run.run_id == before), 0)
            self.runs.setCurrentIndex(place if self.runs.count() else -1)
        if before != self.chosen_run_id() or not self.checkpoints.count():
            self._on_run()
        self._requested = ""
        self.changed.emit()

    def _runs_listed(self) -> list[pb.Run | None]:
        return [self.runs.itemData(row) for row in range(self.runs.count())]

    def chosen_run_id(self) -> str:
        run = self.runs.currentData()
        return run.run_id if run is not None else ""

    def choose_run(self, run_id: str) -> None:
        """Select this run."""
        self._requested = run_id
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
            lambda: checkpoints_of(run),
            owner=self,
            done=lambda found: self._on_checkpoints(run.run_id, found),
            failed=lambda error: self._on_no_checkpoints(run.run_id, error),
        )

    def _show_names(self, algo: str, env_id: str) -> None:
        self.algo.setCurrentIndex(self.algo.findText(algo))
        self.env_id.setText(env_id)

    def _on_checkpoints(self, run_id: str, found: list[CheckpointChoice]) -> None:
        if run_id != self.chosen_run_id():
            return
        for choice in found:
            if choice.step is None:
                text = self.tr("the newest valid one")
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

    # ------------------------------------------------------------------ files

    def _ask_for_file(self) -> None:
        kinds = self.tr("Policies (*.cleanrl_model state.json);;All files (*)")
        ask_for_file(self, self.tr("Watch a policy from a file"), kinds, self.choose_file, name="policy_file_dialog")

    def choose_file(self, path: Path) -> None:
        """Select a file with weights or a checkpoint folder."""
        self._background.run(lambda: _read_policy_file(path), owner=self, done=self._on_file, failed=self._on_bad_file)

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
                self.tr("The file does not name its algorithm and environment; choose algorithm and environment.")
            )

    def _on_bad_file(self, error: Exception) -> None:
        if not isinstance(error, ValueError | OSError):
            raise error
        self.problem.emit(str(error))

    # ------------------------------------------------------------------ settings

    def choice(self) -> PolicyChoice | None:
        """Return the policy to watch; None while something is missing."""
        run: pb.Run | None = self.runs.currentData()
        env_id, algo = self.env_id.text().strip(), self.algo.currentText()
        player = self._watchable.player(algo, run.worker_type if run is not None and run.algo == algo else "")
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
    combo = named(QComboBox(), name, accessible)
    combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    combo.setMinimumContentsLength(14)
    return combo


def _title_of(run: pb.Run) -> str:
    result = f", return {run.episodic_return:.4g}" if run.HasField("episodic_return") else ""
    return f"{run.name or run.algo} · {run.algo} · {run.env_id}{result} · {run.run_id[-6:].lower()}"


def _read_policy_file(path: Path) -> _File:
    found = of_path(path.absolute())
    return _File(found.path, found.title, found.algo, found.env_id)


_REST_MS = 1000
"""Pause between two episodes, so that the last frame is visible"""
_REFRESH_MS = 1500
"""Delay before reloading after a run ended: several may end at once"""


class PolicyPanel(GamePanel):
    """Selection of the policy above, the running policy below."""

    def __init__(
        self, link: DaemonLink, background: Background, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__("policy_panel", link, home, "value", parent)
        self._space = ActionSpace("")
        self._first_seed = 1
        self.is_playing = False
        """Whether it plays continuously"""
        self._rest = timer(self, self._after_rest, _REST_MS, single_shot=True)
        self._refresh_timer = QTimer(self, singleShot=True, interval=_REFRESH_MS)
        self._build(link, background)
        self._refresh_timer.timeout.connect(self._load_if_seen)
        self._connect(link)
        self._show_state()
        if home is None:
            self.source.setEnabled(False)
            self.banner.set_message(
                self.tr(
                    "This window is connected to a daemon on another machine. A policy can be watched only where the "
                    "daemon runs: open a window there, or evaluate the run with a video and replay that here."
                ),
                "info",
            )

    def _build(self, link: DaemonLink, background: Background) -> None:
        self.source = PolicySource(link, background)
        self.load = styled(command_button(self, "load_policy", self.tr("&Load"), "", self.start), "primary")
        self.unload = command_button(self, "unload_policy", self.tr("&Unload"), "", self.session.stop)
        self.open_run = command_button(self, "open_policy_run", self.tr("&Open its run"), "", self._open_run)
        named(self.view, "policy_view", self.tr("Frames of the policy"))
        self.bars_title = styled(QLabel(), "caption")
        self.bars = ActionBars()
        self.play = command_button(self, "play_pause", self.tr("&Play"), "F5", self._toggle)
        self.step = command_button(self, "policy_step", self.tr("&Step"), "F7", self._step_once)
        self.again = command_button(self, "policy_reset", self.tr("&New episode"), "F6", self._begin_episode)
        self.pace = PaceBox(self.tr("Speed of the policy, steps per second"), 30)
        self.pace.changed.connect(lambda rate: self._clock.setInterval(round(1000 / rate)))
        self.continues = named(QCheckBox(self.tr("&Continue with the next episode")), "goes_on")
        self.continues.setAccessibleName(self.tr("Start the next episode automatically"))
        self.continues.setChecked(True)
        top = fill(QHBoxLayout(), (self.source, 1))
        buttons = fill(QVBoxLayout(), self.load, self.unload)
        top.addLayout(buttons)
        controls = fill(QHBoxLayout(), self.play, self.step, self.again, (self.pace, 1))
        self._column = layout = QVBoxLayout(self)
        fill(layout, self.banner, top, self.hud, (self.view, 1))
        line = fill(QHBoxLayout(), self.bars_title, 1, self.continues, self.open_run)
        fill(layout, line, self.bars, controls)

    def _connect(self, link: DaemonLink) -> None:
        self.source.changed.connect(self._show_state)
        self.source.problem.connect(lambda text: self.banner.set_message(text, "warning"))
        self.view.key_pressed.connect(lambda key: self._toggle() if key == "Space" else None)
        link.state_changed.connect(lambda state: self._load_if_seen())
        link.runs_changed.connect(self._on_runs)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._load_if_seen()

    def _load_if_seen(self) -> None:
        if self.isVisible() and self._home is not None:
            self.source.load()

    def _on_runs(self, runs: Iterable[pb.Run]) -> None:
        if any(run.status == RunStatus.TERM for run in runs):
            self._refresh_timer.start()

    # ------------------------------------------------------------------ loading

    def watch_run(self, run_id: str) -> None:
        """Select and load the policy of this run."""
        self.source.choose_run(run_id)

    def start(self) -> None:
        """Load the selected policy and start it."""
        choice = self.source.choice()
        if choice is None:
            self.banner.set_message(self.tr("Choose a run with a checkpoint, or a file, and the environment."), "info")
            return
        self.banner.clear()
        self.hud.clear()
        self.bars.clear()
        self._episodes_begun, self._episode_over, self.is_playing = 0, True, True
        self._first_seed = choice.seed
        self.session.start(
            watch_config(choice.player, path=choice.path, env_id=choice.env_id, seed=choice.seed, title=choice.title)
        )

    def embed(self) -> None:
        """Remove the margins inside of another panel."""
        self._column.setContentsMargins(self.fontMetrics().averageCharWidth(), 0, 0, 0)
        self.source.set_compact(True)

    def _on_state(self, state: PlayState) -> None:
        self._show_state()

    def _on_initialized(self, message: Mapping[str, Any]) -> None:
        self._space = read_space(message, str(message.get("env_id", "")))
        if "shm" not in message.get("frames", ()):
            self.view.show_text(self.tr("This environment cannot be rendered here; watch its values."))
        self._begin_episode()

    # ------------------------------------------------------------------ playing

    def _begin_episode(self) -> None:
        self._rest.stop()
        self.session.reset((self._first_seed + self._episodes_begun) % 2**31)

    def _toggle(self) -> None:
        self.set_playing(not self.is_playing)

    def set_playing(self, is_playing: bool) -> None:
        """Start or pause continuous playing."""
        self.is_playing = is_playing
        if is_playing and self._episode_over and self.session.is_playing and not self.session.is_busy:
            self._begin_episode()
        self._show_state()

    def _step_once(self) -> None:
        self.set_playing(False)
        if self._episode_over:
            self._begin_episode()
        else:
            self.session.step()

    def _tick(self) -> None:
        if not self._episode_over and self.isVisible():
            self.session.step()  # does nothing while a command is pending

    def _on_ready(self, message: Mapping[str, Any]) -> None:
        super()._on_ready(message)
        self._show_state()

    def _on_stepped(self, message: Mapping[str, Any]) -> None:
        action = message["action"]
        self._episode_over = bool(message["terminated"] or message["truncated"])  # `episode_done` follows
        self.hud.show_value("step", str(int(message["step_index"]) + 1))
        self.hud.show_value("reward", f"{message['reward']:.4g}")
        self.hud.show_value("return", f"{message['episode_reward']:.4g}")
        self.hud.show_value("action", self._space.name_of(action))
        numbers, are_probabilities, value = thoughts(message)
        self.hud.show_value("value", "–" if value is None else f"{value:.4g}")
        chosen = action - self._space.start if isinstance(action, int) else -1
        self.bars.show_values(self._space.names, numbers, chosen, are_probabilities=are_probabilities)
        title = self.tr("Action probabilities") if are_probabilities else self.tr("Action values")
        self.bars_title.setText(title if numbers else "")

    def _on_done(self, message: Mapping[str, Any]) -> None:
        self._episode_over = True
        text = self.tr("Episode over: return {total} after {steps} steps.")
        self.view.set_message(text.format(total=f"{message['episode_reward']:.4g}", steps=message["episode_length"]))
        if self.is_playing and self.continues.isChecked():
            self._rest.start()
        else:
            self.is_playing = False
        self._show_state()

    def _after_rest(self) -> None:
        if self.is_playing and self._episode_over:
            self._begin_episode()

    # ------------------------------------------------------------------ end of a run

    def _on_ended(self, text: str, failed: bool) -> None:
        self._rest.stop()
        self._episode_over, self.is_playing = True, False
        if failed:
            self.view.set_message("")
            self.banner.set_message(
                self.tr("The policy has stopped: {reason}").format(reason=text),
                "bad",
                action=self.tr("Reload"),
                on_action=self.start,
            )
        else:
            self.view.set_message(text)
        self._show_state()

    def _show_state(self) -> None:
        state = self.session.state
        loaded = state is PlayState.PLAYING
        self.load.setEnabled(not self.session.is_active and self.source.choice() is not None)
        self.unload.setEnabled(self.session.is_active)
        self.open_run.setEnabled(bool(self.session.run_id))
        self.source.setEnabled(not self.session.is_active and self._home is not None)
        for button in (self.play, self.step, self.again):
            button.setEnabled(loaded)
        icons = QStyle.StandardPixmap
        self.play.setText(self.tr("&Pause") if self.is_playing else self.tr("&Play"))
        self.play.setAccessibleName(self.play.text().replace("&", ""))
        self.play.setIcon(self.style().standardIcon(icons.SP_MediaPause if self.is_playing else icons.SP_MediaPlay))
        self._run_clock(self.pace.rate, loaded and self.is_playing and not self._episode_over)
        if state is PlayState.IDLE:
            self.view.show_text(
                self.tr("No run has trained a policy yet. Train one, or load a file.")
                if self.source.is_empty
                else self.tr("Choose a policy and load it to watch it here.")
            )
