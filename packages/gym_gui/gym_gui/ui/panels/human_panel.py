"""Human-Only: play an environment with the keyboard. The game runs in another process and is a run of the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mosaic_wire.paths import Home
from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QHideEvent, QImage, QShowEvent
from PySide6.QtWidgets import (
    QFileDialog,
    QHBoxLayout,
    QSplitter,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.panels.human_setup import HumanSetup
from gym_gui.ui.panels.policy_panel import PolicyPanel
from gym_gui.ui.play import memory
from gym_gui.ui.play.actions import ActionSpace, read_space
from gym_gui.ui.play.catalogue import GameFacts
from gym_gui.ui.play.controls import Controls
from gym_gui.ui.play.key_maps import KeyMap
from gym_gui.ui.play.recorded import export_npz, read_episodes
from gym_gui.ui.play.session import PlaySession, PlayState, human_config
from gym_gui.ui.widgets.action_pad import ActionPad
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.command_button import command_button
from gym_gui.ui.widgets.game_view import GameView, Hud
from gym_gui.ui.widgets.key_map_editor import KeyMapEditor
from gym_gui.ui.widgets.played_episodes import PlayedEpisodes, number

_LONGEST_QUEUE = 4
"""Presses that wait for the answer to an earlier one; more would play on after the player has stopped"""
_NEXT_EPISODE_KEY = "Return"


class HumanPanel(QWidget):
    """Choose a game on the left, play it on the right."""

    run_wanted = Signal(str)  # somebody wants to see the run of the game

    def __init__(
        self, link: DaemonLink, background: Background, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("human_panel")
        self._link, self._background, self._home = link, background, home
        self.session = PlaySession(link, self)
        self.controls = Controls()
        self._queue: list[Any] = []
        self._episode_over = True
        self._episodes_begun = 0
        self._best: float | None = None
        self._is_exporting = False
        self._clock = QTimer(self)
        self._clock.setTimerType(Qt.TimerType.PreciseTimer)
        self._clock.timeout.connect(self._tick)
        self._beside: PolicyPanel | None = None
        self._build(link, background, home)
        self._connect()
        self._show_state()
        if home is None:
            self.setup.setEnabled(False)
            self.banner.say(self._elsewhere(), "info")

    # ------------------------------------------------------------------ building

    def _build(self, link: DaemonLink, background: Background, home: Home | None) -> None:
        self.banner = Banner(parent=self)
        self.setup = HumanSetup(link, background, home)
        self.hud = Hud({
            "episode": self.tr("Episode"), "step": self.tr("Step"), "reward": self.tr("Reward"),
            "return": self.tr("Return"), "best": self.tr("Best"), "action": self.tr("Action"),
        })  # fmt: skip
        self.view = GameView()
        self.pad = ActionPad()
        self.new_episode = command_button(self, "new_episode", self.tr("&New episode"), "F5", self._begin_episode)
        self.end_episode = command_button(self, "end_episode", self.tr("End ep&isode"), "F6", self._leave_episode)
        self.step = command_button(self, "step_once", self.tr("Step &once"), "F7", self._step_once)
        self.keys = command_button(self, "edit_keys", self.tr("&Keys …"), "F8", self._edit_keys)
        self.export = command_button(self, "export_episodes", self.tr("E&xport …"), "", self._ask_where_to_export)
        self.export.setToolTip(self.tr("Write the played episodes as a dataset (.npz)"))
        self.open_run = command_button(self, "open_run", self.tr("Open its &run"), "", self._open_run)
        self.beside = command_button(self, "policy_beside", self.tr("Policy &beside it"), "", self._toggle_policy)
        self.beside.setCheckable(True)
        self.beside.setToolTip(self.tr("Watch a trained policy next to your own game"))
        self.episodes = PlayedEpisodes()
        self._lay_out()

    def _lay_out(self) -> None:
        commands = QHBoxLayout()
        for button in (self.new_episode, self.end_episode, self.step, self.keys):
            commands.addWidget(button)
        commands.addStretch(1)
        commands.addWidget(self.beside)
        played = QHBoxLayout()
        played.addWidget(self.episodes, 1)
        of_the_run = QVBoxLayout()
        of_the_run.addWidget(self.export)
        of_the_run.addWidget(self.open_run)
        of_the_run.addStretch(1)
        played.addLayout(of_the_run)
        game = QWidget()
        column = QVBoxLayout(game)
        column.setContentsMargins(self.fontMetrics().averageCharWidth(), 0, 0, 0)
        column.addWidget(self.hud)
        column.addWidget(self.view, 1)
        column.addWidget(self.pad)
        column.addLayout(commands)
        column.addLayout(played)
        unit = self.fontMetrics().averageCharWidth()
        self.setup.setMinimumWidth(unit * 38)
        self.parts = QSplitter()
        self.parts.addWidget(self.setup)
        self.parts.addWidget(game)
        self.parts.setChildrenCollapsible(False)
        self.parts.setStretchFactor(1, 1)
        self.parts.setSizes([unit * 44, unit * 110])
        layout = QVBoxLayout(self)
        layout.addWidget(self.banner)
        layout.addWidget(self.parts, 1)

    def _connect(self) -> None:
        self.setup.start_wanted.connect(self.start)
        self.setup.stop_wanted.connect(self.session.stop)
        self.setup.facts_changed.connect(self._on_facts)
        self.setup.pace_changed.connect(self._set_clock)
        self.setup.problem.connect(lambda words: self.banner.say(words, "warning"))
        self.session.state_changed.connect(self._on_state)
        self.session.progress.connect(self._on_progress)
        self.session.greeted.connect(self._on_greeted)
        self.session.ready.connect(self._on_ready)
        self.session.stepped.connect(self._on_stepped)
        self.session.episode_done.connect(self._on_done)
        self.session.picture.connect(self._on_picture)
        self.session.problem.connect(lambda words: self.banner.say(words, "warning"))
        self.session.ended.connect(self._on_ended)
        self.view.key_pressed.connect(self._on_key)
        self.view.key_released.connect(self.controls_release)
        self.view.keys_lost.connect(lambda: self.controls.release_all())
        self.pad.pressed.connect(self._on_button)
        self.pad.released.connect(lambda: self.controls.hold_button(None))
        self.pad.vector_changed.connect(self._on_vector)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._home is not None:
            self.setup.load()

    def _elsewhere(self) -> str:
        """A game listens on a socket of the daemon's machine, which cannot be reached from here."""
        return self.tr(
            "This window is connected to a daemon on another machine. Games are played where the daemon runs: open a "
            "window there. Games of that machine can be watched and replayed on the pages of their runs."
        )

    def hideEvent(self, event: QHideEvent) -> None:
        self.controls.release_all()
        super().hideEvent(event)

    # ------------------------------------------------------------------ the game

    def start(self) -> None:
        """Begin a game, which is a new run."""
        choice = self.setup.choice()
        if problems := self.setup.config.problems():
            self.banner.say(
                self.tr("The game configuration cannot be used: {0}").format("; ".join(problems)), "warning"
            )
            return
        if not choice.env_id:
            self.banner.say(self.tr("Choose an environment first."), "info")
            return
        self.banner.clear()
        self.hud.clear()
        self.episodes.clear_episodes()
        self._queue.clear()
        self._episode_over, self._episodes_begun, self._best = True, 0, None
        self.session.start(human_config(choice.env_id, env_kwargs=choice.env_kwargs, seed=choice.seed))

    def shut_down(self) -> None:
        """The window closes: the game ends with it."""
        self.session.stop()
        if self._beside is not None:
            self._beside.shut_down()

    def _on_facts(self, facts: GameFacts | None) -> None:
        """Another game was chosen: show what can be done in it before it begins."""
        if self.session.is_active:
            return
        self._set_space(read_space(facts.told, facts.env_id) if facts is not None else ActionSpace(""))
        if facts is not None:
            self.view.show_words(self.tr("{env}: press Start, then play with the keys below.").format(env=facts.env_id))

    def _set_space(self, space: ActionSpace) -> None:
        self.controls = Controls(space, memory.key_map_of(space) if space.is_playable else KeyMap())
        self.pad.show_space(space, self.controls.key_map)
        self._show_state()

    def _on_greeted(self, message: Mapping[str, Any]) -> None:
        self._set_space(read_space(message, str(message.get("env_id", ""))))
        if "shm" not in message.get("frames", ()):
            self.view.show_words(self.tr("This environment cannot be drawn here; it is played by its figures."))
        self._begin_episode()

    def _begin_episode(self) -> None:
        if self.session.reset(self.setup.seed_of(self._episodes_begun)):
            self._queue.clear()

    def _leave_episode(self) -> None:
        self._queue.clear()
        self.session.end_episode()

    def _step_once(self) -> None:
        """With what is held or set; random where an environment cannot be played by hand."""
        if not self._episode_over:
            self.session.step(self.controls.chosen())

    def _on_ready(self, message: Mapping[str, Any]) -> None:
        self._episode_over = False
        self._episodes_begun += 1
        self.controls.last = None
        self.view.say("")
        self.hud.show_value("episode", str(int(message["episode_index"]) + 1))
        for name in ("step", "reward", "return"):
            self.hud.show_value(name, "0")
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
            self._episode_over = True  # said in so many words a moment later; no key is for this episode any more
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
        self.view.say(
            self.tr("Episode over: return {total} after {steps} steps. Enter or F5 begins the next one.").format(
                total=number(total), steps=message["episode_length"]
            )
        )
        self._show_state()

    def _on_state(self, state: PlayState) -> None:
        if state is PlayState.PAUSED:
            self._clock.stop()
            self.view.say(self.tr("The run is paused; resume it to play on."))
        elif state is PlayState.PLAYING and not self._episode_over:
            self.view.say("")  # it was paused
        self._show_state()

    def _on_progress(self, words: str) -> None:
        if self.session.state is PlayState.STARTING:
            self.view.show_words(words)
        else:
            self.view.say(words)

    def _on_picture(self, image: QImage) -> None:
        self.view.show_image(image)

    def _on_ended(self, words: str, failed: bool) -> None:
        self._clock.stop()
        self._queue.clear()
        self._episode_over = True
        self.controls.release_all()
        if failed:
            self.view.say(self.tr("The game has ended; what was played before is recorded."))
            self.banner.say(
                self.tr("The environment has ended: {reason}").format(reason=words), "bad",
                action=self.tr("Start again"), on_action=self.start,
            )  # fmt: skip
        elif words:
            self.banner.say(self.tr("The game has ended: {reason}").format(reason=words), "info")
            self.view.say("")
        else:
            self.view.say(self.tr("The game has ended. Its run keeps everything that was played."))
        self._show_state()

    # ------------------------------------------------------------------ keys, buttons, clock

    def _on_key(self, key: str) -> None:
        if self._episode_over:
            if key == _NEXT_EPISODE_KEY:
                self._begin_episode()
            return
        action = self.controls.press(key)
        if action is not None and not self.setup.is_real_time:
            self._turn(action)

    def controls_release(self, key: str) -> None:
        """A key is up again."""
        self.controls.release(key)

    def _on_button(self, action: Any) -> None:
        self.controls.hold_button(action)
        if not self.setup.is_real_time and not self._episode_over:
            self._turn(action)

    def _on_vector(self, vector: list[float]) -> None:
        self.controls.vector = vector

    def _turn(self, action: Any) -> None:
        if not self.session.step(action) and self.session.is_busy and len(self._queue) < _LONGEST_QUEUE:
            self._queue.append(action)

    def _set_clock(self) -> None:
        """In real time it ticks while an episode is on."""
        self._clock.setInterval(round(1000 / self.setup.pace.rate))
        wanted = self.setup.is_real_time and not self._episode_over and self.session.state is PlayState.PLAYING
        if wanted and not self._clock.isActive():
            self._clock.start()
        elif not wanted:
            self._clock.stop()

    def _tick(self) -> None:
        # A step whose answer is still awaited is not repeated: a slow environment is slow, it does not lag behind.
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
        memory.keep_key_map(self.controls.space, key_map)
        self.controls.release_all()
        self.controls.key_map = key_map
        self.pad.show_space(self.controls.space, key_map)

    # ------------------------------------------------------------------ what was played

    def _ask_where_to_export(self) -> None:
        run = self.session.run
        if run is None:
            return
        dialog = QFileDialog(self, self.tr("Export the played episodes"), f"{run.env_id.replace('/', '-')}.npz")
        dialog.setObjectName("export_dialog")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilter(self.tr("NumPy archive (*.npz)"))
        dialog.setDefaultSuffix("npz")
        dialog.selectFile(f"{run.env_id.replace('/', '-')}-{run.run_id[-6:].lower()}.npz")
        dialog.fileSelected.connect(lambda name: self.export_to(Path(name)))
        dialog.open()

    def export_to(self, path: Path) -> None:
        """Write what the daemon has of this game; an episode that is still played is not among it."""
        run = self.session.run
        if run is None or self._is_exporting:
            return
        self._is_exporting = True
        self._show_state()
        about = {"run_id": run.run_id, "env_id": run.env_id, "env_kwargs": self.setup.config.values()}

        def write(client: TrainerClient) -> tuple[int, int]:
            episodes = [episode for episode in read_episodes(client, run.run_id) if episode.ended_by]
            if not episodes:
                raise ValueError("no episode is finished yet; end the one you play (F6), then export again")
            return len(episodes), export_npz(path, episodes, about)

        def done(counts: tuple[int, int]) -> None:
            self._is_exporting = False
            words = self.tr("{path}: {episodes} episodes, {steps} steps.")
            self.banner.say(words.format(path=path, episodes=counts[0], steps=counts[1]), "info")
            self._show_state()

        def failed(words: str) -> None:
            self._is_exporting = False
            self.banner.say(self.tr("The episodes could not be exported: {0}").format(words), "warning")
            self._show_state()

        self._link.call(write, owner=self, done=done, failed=failed)

    def _open_run(self) -> None:
        if self.session.run_id:
            self.run_wanted.emit(self.session.run_id)

    def _toggle_policy(self) -> None:
        """Built when it is first wanted."""
        if self._beside is None:
            self._beside = PolicyPanel(self._link, self._background, self._home)
            self._beside.stand_beside()
            self.parts.addWidget(self._beside)
            self.parts.setStretchFactor(2, 1)
        self._beside.setVisible(self.beside.isChecked())

    def _show_state(self) -> None:
        playing = self.session.state is PlayState.PLAYING
        self.setup.set_running(self.session.is_active)
        self.new_episode.setEnabled(playing)
        self.end_episode.setEnabled(playing and not self._episode_over)
        self.step.setEnabled(playing and not self._episode_over)
        self.pad.setEnabled(playing and not self._episode_over)
        self.keys.setEnabled(self.controls.space.is_playable)
        self.export.setEnabled(bool(self.session.run_id) and not self._is_exporting)
        self.open_run.setEnabled(bool(self.session.run_id))
        self._set_clock()
