"""The Play workspace: play an environment with the keyboard. The game is a run of the daemon."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Signal
from PySide6.QtGui import QHideEvent, QShowEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QCheckBox,
    QFormLayout,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QPushButton,
    QRadioButton,
    QSpinBox,
    QSplitter,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.play import catalog
from gym_gui.ui.play.action_keypad import ActionKeypad
from gym_gui.ui.play.actions import ActionSpace, Controls, KeyMap, default_key_map, is_turn_based, read_space
from gym_gui.ui.play.catalog import GameFacts, Playable
from gym_gui.ui.play.game_config import EnvironmentPicker, GameConfig
from gym_gui.ui.play.game_view import GamePanel, PaceBox
from gym_gui.ui.play.key_map_editor import KeyMapEditor
from gym_gui.ui.play.policy_panel import PolicyPanel
from gym_gui.ui.play.recorded import export_npz, read_episodes
from gym_gui.ui.play.session import PlayState, human_config
from gym_gui.ui.settings import stored
from gym_gui.ui.widgets.parts import ask_for_file, command_button, fill, named, push_button
from gym_gui.ui.widgets.tables import show_as_rows
from gym_gui.wording.actions import stem_of


def recall(name: str, otherwise: Any = None) -> Any:
    """Return the JSON value stored under this name."""
    text = stored("human_panel").value(name)
    try:
        return json.loads(text) if isinstance(text, str) else otherwise
    except ValueError:
        return otherwise


def keep(name: str, value: Any) -> None:
    """Store a JSON value; None and {} remove it."""
    if value is None or value == {}:
        stored("human_panel").remove(name)
    else:
        stored("human_panel").setValue(name, json.dumps(value))


def key_map_of(space: ActionSpace) -> KeyMap:
    """Return the player's key map for this game, or the default."""
    kept = recall(_key_name(space))
    found = KeyMap.from_json(kept, space) if isinstance(kept, str) else None
    return found if found is not None else default_key_map(space)


def keep_key_map(space: ActionSpace, key_map: KeyMap) -> None:
    """Store a key map; the default itself is not stored, so that later defaults take effect."""
    keep(_key_name(space), None if key_map == default_key_map(space) else key_map.to_json())


def _key_name(space: ActionSpace) -> str:
    # Games with another action space (LunarLander, continuous or not) have another key map.
    return f"keys/{stem_of(space.env_id)}-{space.kind}-{len(space.names) or len(space.components)}"


LARGEST_SEED = 2**31 - 1
DEFAULT_RATE = 15
DEFAULT_GAME = "CartPole-v1"


@dataclass(frozen=True)
class GameChoice:
    """The settings of a game."""

    env_id: str
    env_kwargs: dict[str, Any]
    seed: int


class HumanSetup(QWidget):
    """The settings of a new game; the panel starts it."""

    start_requested = Signal()
    stop_requested = Signal()
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
        self.seed = named(QSpinBox(), "seed", self.tr("Seed of the first episode"))
        self.seed.setRange(0, LARGEST_SEED)
        self.seed.setValue(int(recall("seed", 1)))
        self.same_seed = named(QCheckBox(self.tr("The same for &every episode")), "same_seed")
        self.same_seed.setAccessibleName(self.tr("The same seed for every episode"))
        self.same_seed.setToolTip(self.tr("Otherwise each episode has the next number"))
        self.turns = named(QRadioButton(self.tr("&Turn by turn")), "turn_based")
        self.turns.setAccessibleName(self.tr("Turn by turn: a key is a step"))
        self.real_time = named(QRadioButton(self.tr("Real ti&me")), "real_time")
        self.real_time.setAccessibleName(self.tr("Real time: the game runs without waiting for keys"))
        pace_kind = QButtonGroup(self)
        pace_kind.addButton(self.turns)
        pace_kind.addButton(self.real_time)
        self.turns.setChecked(True)
        self.pace = PaceBox(self.tr("Steps per second in real time"), DEFAULT_RATE)
        self.pace.setEnabled(False)
        self.real_time.toggled.connect(self._on_pace)
        self.pace.changed.connect(self._on_pace)
        self.config = GameConfig()
        self.reset_config = named(QPushButton(self.tr("De&faults")), "reset_config")
        self.reset_config.setAccessibleName(self.tr("Restore the default game configuration"))
        self.reset_config.clicked.connect(self.config.reset)
        self.config.changed.connect(self._on_config)
        self.start = named(QPushButton(self.tr("&Start")), "start_game", self.tr("Start the game"), role="primary")
        self.start.clicked.connect(self.start_requested)
        self.stop = push_button("stop_game", self.tr("Sto&p"), self.stop_requested, self.tr("End the game and its run"))
        self._lay_out()
        self.set_running(False)

    def _lay_out(self) -> None:
        form = QFormLayout()
        form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)
        form.addRow(self.tr("See&d"), self.seed)
        form.addRow("", self.same_seed)
        kinds = fill(QHBoxLayout(), self.turns, self.real_time, 1)
        form.addRow(self.tr("Pace"), kinds)
        form.addRow("", self.pace)
        heading = fill(QHBoxLayout(), _heading(self.tr("Game configuration")), 1, self.reset_config)
        buttons = fill(QHBoxLayout(), (self.start, 1), self.stop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, self.fontMetrics().averageCharWidth(), 0)
        fill(layout, _heading(self.tr("Environment")), (self.picker, 3), form, heading, (self.config, 2), buttons)

    # ------------------------------------------------------------------ environments

    def load(self) -> None:
        """Query the worker once; again after an error."""
        if self._is_loaded or self._is_loading or self._home is None or not self._link.is_connected:
            return
        self._is_loading = True
        home = self._home

        def poll(client: TrainerClient) -> tuple[tuple[str, ...], list[Playable]]:
            workers: Sequence[pb.Worker] = list(client.workers(name=catalog.WORKER))
            argv = catalog.worker_argv(workers)
            return argv, catalog.list_environments(argv, home)

        self._link.call(poll, owner=self, done=self._on_listed, failed=self._on_not_listed)

    def _on_listed(self, found: tuple[tuple[str, ...], list[Playable]]) -> None:
        self._is_loading, self._is_loaded = False, True
        self._argv, playables = found
        self.picker.set_playables(playables, "" if playables else self.tr("No environment is installed."))
        self.picker.choose(self.picker.env_id or str(recall("env_id", DEFAULT_GAME)))

    def _on_not_listed(self, text: str) -> None:
        self._is_loading = False
        self.picker.set_playables((), text)
        self.problem.emit(text)

    def _on_chosen(self, env_id: str) -> None:
        keep("env_id", env_id)
        pace = recall(f"pace/{stem_of(env_id)}")
        is_real_time = bool(pace[0]) if isinstance(pace, list) and len(pace) == 2 else not is_turn_based(env_id)
        rate = pace[1] if isinstance(pace, list) and len(pace) == 2 and isinstance(pace[1], int) else DEFAULT_RATE
        self.pace.set_rate(rate)
        (self.real_time if is_real_time else self.turns).setChecked(True)
        self.config.show_text(self.tr("Loading {env} …").format(env=env_id))
        if not self._argv:
            return
        self._asked_for = env_id
        argv, home = self._argv, self._home
        self._background.run(
            lambda: catalog.describe_environment(argv, home, env_id),
            owner=self,
            done=self._on_described,
            failed=lambda error: self._on_not_described(env_id, error),
        )

    def _on_described(self, facts: GameFacts) -> None:
        if facts.env_id == self._asked_for:
            self.config.show_arguments(facts.arguments, recall(f"config/{stem_of(facts.env_id)}"))
            self.facts_changed.emit(facts)

    def _on_not_described(self, env_id: str, error: Exception) -> None:
        if not isinstance(error, ValueError):
            raise error
        if env_id == self._asked_for:
            self.config.show_text(str(error))
            self.facts_changed.emit(None)

    # ------------------------------------------------------------------ settings

    @property
    def is_real_time(self) -> bool:
        return self.real_time.isChecked()

    def choice(self) -> GameChoice:
        keep("seed", self.seed.value())
        return GameChoice(self.picker.env_id, self.config.values(), self.seed.value())

    def seed_of(self, episode: int) -> int:
        """Return the seed of the n-th episode, counted from 0."""
        first = self.seed.value()
        return first if self.same_seed.isChecked() else (first + episode) % (LARGEST_SEED + 1)

    def set_running(self, is_running: bool) -> None:
        """Disable the settings that cannot change during a game."""
        self.start.setEnabled(not is_running)
        self.stop.setEnabled(is_running)
        for part in (self.picker, self.config, self.reset_config, self.seed):
            part.setEnabled(not is_running)

    def _on_pace(self) -> None:
        self.pace.setEnabled(self.is_real_time)
        if self.picker.env_id:
            keep(f"pace/{stem_of(self.picker.env_id)}", [self.is_real_time, self.pace.rate])
        self.pace_changed.emit()

    def _on_config(self) -> None:
        if self.picker.env_id:
            keep(f"config/{stem_of(self.picker.env_id)}", self.config.values())


def _heading(text: str) -> QLabel:
    label = QLabel(text)
    font = label.font()
    font.setBold(True)
    label.setFont(font)
    return label


class PlayedEpisodes(QTableWidget):
    """One row per episode."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(0, 5, parent)
        named(self, "played_episodes", self.tr("Episodes played in this game"))
        self.setHorizontalHeaderLabels(
            [self.tr("Episode"), self.tr("Seed"), self.tr("Steps"), self.tr("Return"), self.tr("Ended by")]
        )
        show_as_rows(self, multiple=True)
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self.setMaximumHeight(self.fontMetrics().height() * 7)

    def clear_episodes(self) -> None:
        self.setRowCount(0)

    def add_episode(self, message: Mapping[str, Any], seed: int) -> None:
        """Add a row from an `episode_done` message."""
        ended = self.tr("time limit") if message["truncated"] else self.tr("the game")
        if message.get("ended_by") == "player":
            ended = self.tr("you")
        texts = (
            str(int(message["episode_index"]) + 1),
            str(seed),
            str(message["episode_length"]),
            number(message["episode_reward"]),
            ended,
        )
        row = self.rowCount()
        self.insertRow(row)
        for column, text in enumerate(texts):
            self.setItem(row, column, QTableWidgetItem(text))
        self.scrollToBottom()


def number(value: Any) -> str:
    """Format a number briefly without losing relevant digits."""
    return f"{float(value):.2f}".rstrip("0").rstrip(".") if isinstance(value, int | float) else "–"


_LONGEST_QUEUE = 4
"""Limit of key presses queued during a step; more would play on after the player has stopped"""
_NEXT_EPISODE_KEY = "Return"


class HumanPanel(GamePanel):
    """Choose a game on the left, play it on the right."""

    def __init__(
        self, link: DaemonLink, background: Background, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__("human_panel", link, home, "best", parent)
        self._background = background
        self.controls = Controls()
        self._queue: list[Any] = []
        self._best: float | None = None
        self._is_exporting = False
        self._policy_panel: PolicyPanel | None = None
        self._build(link, background, home)
        self._connect()
        self._show_state()
        if home is None:
            self.setup.setEnabled(False)
            self.banner.set_message(self._remote_text(), "info")

    # ------------------------------------------------------------------ construction

    def _build(self, link: DaemonLink, background: Background, home: Home | None) -> None:
        self.setup = HumanSetup(link, background, home)
        self.keypad = ActionKeypad()
        self.new_episode = command_button(self, "new_episode", self.tr("&New episode"), "F5", self._begin_episode)
        self.end_episode = command_button(self, "end_episode", self.tr("End ep&isode"), "F6", self._leave_episode)
        self.step = command_button(self, "step_once", self.tr("Step &once"), "F7", self._step_once)
        self.keys = command_button(self, "edit_keys", self.tr("&Keys …"), "F8", self._edit_keys)
        self.export = command_button(self, "export_episodes", self.tr("E&xport …"), "", self._ask_where_to_export)
        self.export.setToolTip(self.tr("Write the played episodes as a dataset (.npz)"))
        self.open_run = command_button(self, "open_run", self.tr("Open its &run"), "", self._open_run)
        self.beside = command_button(self, "policy_beside", self.tr("Show &policy"), "", self._toggle_policy)
        self.beside.setCheckable(True)
        self.beside.setToolTip(self.tr("Watch a trained policy next to your own game"))
        self.episodes = PlayedEpisodes()
        self._lay_out()

    def _lay_out(self) -> None:
        commands = fill(QHBoxLayout(), self.new_episode, self.end_episode, self.step, self.keys, 1, self.beside)
        played = fill(QHBoxLayout(), (self.episodes, 1))
        of_the_run = fill(QVBoxLayout(), self.export, self.open_run, 1)
        played.addLayout(of_the_run)
        game = QWidget()
        column = QVBoxLayout(game)
        column.setContentsMargins(self.fontMetrics().averageCharWidth(), 0, 0, 0)
        fill(column, self.hud, (self.view, 1), self.keypad, commands, played)
        unit = self.fontMetrics().averageCharWidth()
        self.setup.setMinimumWidth(unit * 38)
        self.parts = QSplitter()
        self.parts.addWidget(self.setup)
        self.parts.addWidget(game)
        self.parts.setChildrenCollapsible(False)
        self.parts.setStretchFactor(1, 1)
        self.parts.setSizes([unit * 44, unit * 110])
        fill(QVBoxLayout(self), self.banner, (self.parts, 1))

    def _connect(self) -> None:
        self.setup.start_requested.connect(self.start)
        self.setup.stop_requested.connect(self.session.stop)
        self.setup.facts_changed.connect(self._on_facts)
        self.setup.pace_changed.connect(self._set_clock)
        self.setup.problem.connect(lambda text: self.banner.set_message(text, "warning"))
        self.view.key_pressed.connect(self._on_key)
        self.view.key_released.connect(self.controls_release)
        self.view.keys_lost.connect(lambda: self.controls.release_all())
        self.keypad.pressed.connect(self._on_button)
        self.keypad.released.connect(lambda: self.controls.hold_button(None))
        self.keypad.vector_changed.connect(self._on_vector)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._home is not None:
            self.setup.load()

    def _remote_text(self) -> str:
        """Return why games cannot be played here: a game listens on a socket of the daemon's machine."""
        return self.tr(
            "This window is connected to a daemon on another machine. Games can be played only where the daemon runs: "
            "open a window there. You can watch and replay games of that machine on the pages of their runs."
        )

    def hideEvent(self, event: QHideEvent) -> None:
        self.controls.release_all()
        super().hideEvent(event)

    # ------------------------------------------------------------------ the game

    def start(self) -> None:
        """Start a game, which is a new run."""
        choice = self.setup.choice()
        if problems := self.setup.config.problems():
            self.banner.set_message(
                self.tr("The game configuration cannot be used: {0}").format("; ".join(problems)), "warning"
            )
            return
        if not choice.env_id:
            self.banner.set_message(self.tr("Choose an environment first."), "info")
            return
        self.banner.clear()
        self.hud.clear()
        self.episodes.clear_episodes()
        self._queue.clear()
        self._episode_over, self._episodes_begun, self._best = True, 0, None
        self.session.start(human_config(choice.env_id, env_kwargs=choice.env_kwargs, seed=choice.seed))

    def shut_down(self) -> None:
        super().shut_down()
        if self._policy_panel is not None:
            self._policy_panel.shut_down()

    def _on_facts(self, facts: GameFacts | None) -> None:
        """Show the controls of the chosen game before it starts."""
        if self.session.is_active:
            return
        self._set_space(read_space(facts.reported, facts.env_id) if facts is not None else ActionSpace(""))
        if facts is not None:
            self.view.show_text(self.tr("{env}: press Start, then play with the keys below.").format(env=facts.env_id))

    def _set_space(self, space: ActionSpace) -> None:
        self.controls = Controls(space, key_map_of(space) if space.is_playable else KeyMap())
        self.keypad.show_space(space, self.controls.key_map)
        self._show_state()

    def _on_initialized(self, message: Mapping[str, Any]) -> None:
        self._set_space(read_space(message, str(message.get("env_id", ""))))
        if "shm" not in message.get("frames", ()):
            self.view.show_text(self.tr("This environment cannot be rendered here; play by its values."))
        self._begin_episode()

    def _begin_episode(self) -> None:
        if self.session.reset(self.setup.seed_of(self._episodes_begun)):
            self._queue.clear()

    def _leave_episode(self) -> None:
        self._queue.clear()
        self.session.end_episode()

    def _step_once(self) -> None:
        """Take a step with the held keys or sliders; a random one if the space is not playable by hand."""
        if not self._episode_over:
            self.session.step(self.controls.chosen())

    def _on_ready(self, message: Mapping[str, Any]) -> None:
        super()._on_ready(message)
        self.controls.last = None
        self.hud.show_value("action", "–")
        self._set_clock()
        self._show_state()
        self.view.setFocus()

    def _on_stepped(self, message: Mapping[str, Any]) -> None:
        self.controls.last = message["action"]
        self.hud.show_value("step", str(int(message["step_index"]) + 1))
        self.hud.show_value("reward", number(message["reward"]))
        self.hud.show_value("return", number(message["episode_reward"]))
        self.hud.show_value("action", self.controls.space.name_of(message["action"]))
        if message["terminated"] or message["truncated"]:
            self._episode_over = True  # `episode_done` follows; ignore further keys
            self._queue.clear()
        elif self._queue:
            self.session.step(self._queue.pop(0))

    def _on_done(self, message: Mapping[str, Any]) -> None:
        self._episode_over = True
        self._clock.stop()
        total = float(message["episode_reward"])
        if message["episode_length"]:
            self._best = total if self._best is None else max(self._best, total)
            self.hud.show_value("best", number(self._best))
            self.episodes.add_episode(message, self.setup.seed_of(self._episodes_begun - 1))
        self.view.set_message(
            self.tr("Episode over: return {total} after {steps} steps. Press Enter or F5 for the next one.").format(
                total=number(total), steps=message["episode_length"]
            )
        )
        self._show_state()

    def _on_state(self, state: PlayState) -> None:
        if state is PlayState.PAUSED:
            self._clock.stop()
            self.view.set_message(self.tr("The run is paused; resume it to continue playing."))
        elif state is PlayState.PLAYING and not self._episode_over:
            self.view.set_message("")  # remove the message about the pause
        self._show_state()

    def _on_ended(self, text: str, failed: bool) -> None:
        self._clock.stop()
        self._queue.clear()
        self._episode_over = True
        self.controls.release_all()
        if failed:
            self.view.set_message(self.tr("The game has ended; the steps played so far are recorded."))
            self.banner.set_message(
                self.tr("The environment failed: {reason}").format(reason=text),
                "bad",
                action=self.tr("Restart"),
                on_action=self.start,
            )
        elif text:
            self.banner.set_message(self.tr("The game has ended: {reason}").format(reason=text), "info")
            self.view.set_message("")
        else:
            self.view.set_message(self.tr("The game has ended. Its run contains all recorded steps."))
        self._show_state()

    # ------------------------------------------------------------------ keys, buttons, clock

    def _on_key(self, key: str) -> None:
        if self._episode_over:
            if key == _NEXT_EPISODE_KEY:
                self._begin_episode()
            return
        action = self.controls.press(key)
        if action is not None and not self.setup.is_real_time:
            self._take_turn(action)

    def controls_release(self, key: str) -> None:
        """Note a released key."""
        self.controls.release(key)

    def _on_button(self, action: Any) -> None:
        self.controls.hold_button(action)
        if not self.setup.is_real_time and not self._episode_over:
            self._take_turn(action)

    def _on_vector(self, vector: list[float]) -> None:
        self.controls.vector = vector

    def _take_turn(self, action: Any) -> None:
        if not self.session.step(action) and self.session.is_busy and len(self._queue) < _LONGEST_QUEUE:
            self._queue.append(action)

    def _set_clock(self) -> None:
        """Run the clock in real time during an episode."""
        is_running = self.setup.is_real_time and not self._episode_over and self.session.state is PlayState.PLAYING
        self._run_clock(self.setup.pace.rate, is_running)

    def _tick(self) -> None:
        # A step is skipped while another one is pending: a slow environment is slow, but does not lag behind.
        if self.session.is_busy or self._episode_over or not self.isVisible():
            return
        if (action := self.controls.current()) is not None:
            self.session.step(action)

    def _edit_keys(self) -> None:
        if not self.controls.space.is_playable:
            return
        editor = KeyMapEditor(self.controls.space, self.controls.key_map, self)
        editor.changed.connect(self._set_keys)
        editor.open()

    def _set_keys(self, key_map: KeyMap) -> None:
        keep_key_map(self.controls.space, key_map)
        self.controls.release_all()
        self.controls.key_map = key_map
        self.keypad.show_space(self.controls.space, key_map)

    # ------------------------------------------------------------------ recorded episodes

    def _ask_where_to_export(self) -> None:
        run = self.session.run
        if run is None:
            return
        title, kinds = self.tr("Export the played episodes"), self.tr("NumPy archive (*.npz)")
        suggested = f"{run.env_id.replace('/', '-')}-{run.run_id[-6:].lower()}.npz"
        ask_for_file(self, title, kinds, self.export_to, name="export_dialog", save_as=suggested)

    def export_to(self, path: Path) -> None:
        """Export the finished episodes of this game that the daemon has recorded."""
        run = self.session.run
        if run is None or self._is_exporting:
            return
        self._is_exporting = True
        self._show_state()
        about = {"run_id": run.run_id, "env_id": run.env_id, "env_kwargs": self.setup.config.values()}

        def write(client: TrainerClient) -> tuple[int, int]:
            episodes = [episode for episode in read_episodes(client, run.run_id) if episode.ended_by]
            if not episodes:
                raise ValueError("no episode has finished yet; end the current one (F6), then export again")
            return len(episodes), export_npz(path, episodes, about)

        def done(counts: tuple[int, int]) -> None:
            self._is_exporting = False
            text = self.tr("{path}: {episodes} episodes, {steps} steps.")
            self.banner.set_message(text.format(path=path, episodes=counts[0], steps=counts[1]), "info")
            self._show_state()

        def failed(text: str) -> None:
            self._is_exporting = False
            self.banner.set_message(self.tr("The episodes could not be exported: {0}").format(text), "warning")
            self._show_state()

        self._link.call(write, owner=self, done=done, failed=failed)

    def _toggle_policy(self) -> None:
        """Show or hide the policy, built when it is first shown."""
        if self._policy_panel is None:
            self._policy_panel = PolicyPanel(self._link, self._background, self._home)
            self._policy_panel.embed()
            self.parts.addWidget(self._policy_panel)
            self.parts.setStretchFactor(2, 1)
        self._policy_panel.setVisible(self.beside.isChecked())

    def _show_state(self) -> None:
        playing = self.session.state is PlayState.PLAYING
        self.setup.set_running(self.session.is_active)
        self.new_episode.setEnabled(playing)
        self.end_episode.setEnabled(playing and not self._episode_over)
        self.step.setEnabled(playing and not self._episode_over)
        self.keypad.setEnabled(playing and not self._episode_over)
        self.keys.setEnabled(self.controls.space.is_playable)
        self.export.setEnabled(bool(self.session.run_id) and not self._is_exporting)
        self.open_run.setEnabled(bool(self.session.run_id))
        self._set_clock()
