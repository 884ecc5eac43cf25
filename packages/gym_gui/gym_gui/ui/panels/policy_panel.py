"""Watch a policy: a checkpoint plays, step by step or by itself, in a process of its own and as a run of the daemon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QLabel, QStyle, QVBoxLayout, QWidget

from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.panels.policy_source import PolicySource
from gym_gui.ui.play.actions import ActionSpace, read_space
from gym_gui.ui.play.policies import thoughts, watch_config
from gym_gui.ui.play.session import PlaySession, PlayState
from gym_gui.ui.widgets.action_bars import ActionBars
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.command_button import command_button
from gym_gui.ui.widgets.game_view import GameView, Hud
from gym_gui.ui.widgets.pace_box import PaceBox

_REST_MS = 1000
"""Between two episodes, so that the end of one is seen"""
_LOOK_AGAIN_MS = 1500
"""After a run has ended there may be another policy; several may end at once"""


class PolicyPanel(QWidget):
    """Which policy above, what it does below."""

    run_wanted = Signal(str)

    def __init__(
        self, link: DaemonLink, background: Background, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("policy_panel")
        self._link, self._home = link, home
        self.session = PlaySession(link, self)
        self._space = ActionSpace("")
        self._episodes_begun = 0
        self._episode_over = True
        self._first_seed = 1
        self.is_playing = False
        """It goes on by itself"""
        self._clock = QTimer(self)
        self._clock.setTimerType(Qt.TimerType.PreciseTimer)
        self._clock.timeout.connect(self._tick)
        self._rest = QTimer(self)
        self._rest.setSingleShot(True)
        self._rest.setInterval(_REST_MS)
        self._rest.timeout.connect(self._after_rest)
        self._look_again = QTimer(self)
        self._look_again.setSingleShot(True)
        self._look_again.setInterval(_LOOK_AGAIN_MS)
        self._build(link, background)
        self._look_again.timeout.connect(self._load_if_seen)
        self._connect(link)
        self._show_state()
        if home is None:
            self.source.setEnabled(False)
            self.banner.say(
                self.tr(
                    "This window is connected to a daemon on another machine. A policy is watched where the daemon "
                    "runs: open a window there, or evaluate the run with a video and replay that here."
                ),
                "info",
            )

    def _build(self, link: DaemonLink, background: Background) -> None:
        self.banner = Banner(parent=self)
        self.source = PolicySource(link, background)
        self.load = command_button(self, "load_policy", self.tr("&Load"), "", self.start)
        self.load.setProperty("role", "primary")
        self.unload = command_button(self, "unload_policy", self.tr("&Unload"), "", self.session.stop)
        self.open_run = command_button(self, "open_policy_run", self.tr("&Open its run"), "", self._open_run)
        self.hud = Hud({
            "episode": self.tr("Episode"), "step": self.tr("Step"), "reward": self.tr("Reward"),
            "return": self.tr("Return"), "value": self.tr("Value"), "action": self.tr("Action"),
        })  # fmt: skip
        self.view = GameView()
        self.view.setObjectName("policy_view")
        self.view.setAccessibleName(self.tr("What the policy plays"))
        self.bars_title = QLabel()
        self.bars_title.setProperty("role", "caption")
        self.bars = ActionBars()
        self.play = command_button(self, "play_pause", self.tr("&Play"), "F5", self._toggle)
        self.step = command_button(self, "policy_step", self.tr("&Step"), "F7", self._step_once)
        self.again = command_button(self, "policy_reset", self.tr("&New episode"), "F6", self._begin_episode)
        self.pace = PaceBox(self.tr("Speed of the policy, steps a second"), 30)
        self.pace.changed.connect(lambda rate: self._clock.setInterval(round(1000 / rate)))
        self.goes_on = QCheckBox(self.tr("&Go on with the next episode"))
        self.goes_on.setObjectName("goes_on")
        self.goes_on.setAccessibleName(self.tr("Begin the next episode by itself"))
        self.goes_on.setChecked(True)
        top = QHBoxLayout()
        top.addWidget(self.source, 1)
        buttons = QVBoxLayout()
        buttons.addWidget(self.load)
        buttons.addWidget(self.unload)
        top.addLayout(buttons)
        controls = QHBoxLayout()
        for button in (self.play, self.step, self.again):
            controls.addWidget(button)
        controls.addWidget(self.pace, 1)
        self._column = layout = QVBoxLayout(self)
        layout.addWidget(self.banner)
        layout.addLayout(top)
        layout.addWidget(self.hud)
        layout.addWidget(self.view, 1)
        line = QHBoxLayout()
        line.addWidget(self.bars_title)
        line.addStretch(1)
        line.addWidget(self.goes_on)
        line.addWidget(self.open_run)
        layout.addLayout(line)
        layout.addWidget(self.bars)
        layout.addLayout(controls)

    def _connect(self, link: DaemonLink) -> None:
        self.source.changed.connect(self._show_state)
        self.source.problem.connect(lambda words: self.banner.say(words, "warning"))
        self.session.state_changed.connect(lambda state: self._show_state())
        self.session.progress.connect(self._on_progress)
        self.session.greeted.connect(self._on_greeted)
        self.session.ready.connect(self._on_ready)
        self.session.stepped.connect(self._on_stepped)
        self.session.episode_done.connect(self._on_done)
        self.session.picture.connect(self.view.show_image)
        self.session.problem.connect(lambda words: self.banner.say(words, "warning"))
        self.session.ended.connect(self._on_ended)
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
        if any(run.status == "TERM" for run in runs):
            self._look_again.start()

    # ------------------------------------------------------------------ loading

    def watch_run(self, run_id: str) -> None:
        """Somebody wants to see what this run has learnt."""
        self.source.choose_run(run_id)

    def start(self) -> None:
        """Load the chosen policy; it begins to play at once."""
        choice = self.source.choice()
        if choice is None:
            self.banner.say(self.tr("Choose a run with a checkpoint, or a file, and the environment."), "info")
            return
        self.banner.clear()
        self.hud.clear()
        self.bars.clear()
        self._episodes_begun, self._episode_over, self.is_playing = 0, True, True
        self._first_seed = choice.seed
        self.session.start(
            watch_config(choice.player, path=choice.path, env_id=choice.env_id, seed=choice.seed, title=choice.title)
        )

    def _open_run(self) -> None:
        if self.session.run_id:
            self.run_wanted.emit(self.session.run_id)

    def stand_beside(self) -> None:
        """It is part of another panel, which has margins of its own."""
        self._column.setContentsMargins(self.fontMetrics().averageCharWidth(), 0, 0, 0)
        self.source.set_compact(True)

    def shut_down(self) -> None:
        """The window closes: the run ends with it."""
        self.session.stop()

    def _on_greeted(self, message: Mapping[str, Any]) -> None:
        self._space = read_space(message, str(message.get("env_id", "")))
        if "shm" not in message.get("frames", ()):
            self.view.show_words(self.tr("This environment cannot be drawn here; it is watched by its figures."))
        self._begin_episode()

    # ------------------------------------------------------------------ playing

    def _begin_episode(self) -> None:
        self._rest.stop()
        self.session.reset((self._first_seed + self._episodes_begun) % 2**31)

    def _toggle(self) -> None:
        self.set_playing(not self.is_playing)

    def set_playing(self, is_playing: bool) -> None:
        """Let it go on by itself, or hold it."""
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
            self.session.step()  # says no while the answer to the last one is awaited

    def _on_ready(self, message: Mapping[str, Any]) -> None:
        self._episode_over = False
        self._episodes_begun += 1
        self.view.say("")
        self.hud.show_value("episode", str(int(message["episode_index"]) + 1))
        for name in ("step", "reward", "return"):
            self.hud.show_value(name, "0")
        self._show_state()

    def _on_stepped(self, message: Mapping[str, Any]) -> None:
        action = message["action"]
        self._episode_over = bool(message["terminated"] or message["truncated"])  # said again a moment later
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
        words = self.tr("Episode over: return {total} after {steps} steps.")
        self.view.say(words.format(total=f"{message['episode_reward']:.4g}", steps=message["episode_length"]))
        if self.is_playing and self.goes_on.isChecked():
            self._rest.start()
        else:
            self.is_playing = False
        self._show_state()

    def _after_rest(self) -> None:
        if self.is_playing and self._episode_over:
            self._begin_episode()

    # ------------------------------------------------------------------ what is told

    def _on_progress(self, words: str) -> None:
        if self.session.state is PlayState.STARTING:
            self.view.show_words(words)
        else:
            self.view.say(words)

    def _on_ended(self, words: str, failed: bool) -> None:
        self._rest.stop()
        self._episode_over, self.is_playing = True, False
        if failed:
            self.view.say("")
            self.banner.say(
                self.tr("The policy has ended: {reason}").format(reason=words), "bad",
                action=self.tr("Load again"), on_action=self.start,
            )  # fmt: skip
        else:
            self.view.say(words)
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
        self._clock.setInterval(round(1000 / self.pace.rate))
        wanted = loaded and self.is_playing and not self._episode_over
        if wanted and not self._clock.isActive():
            self._clock.start()
        elif not wanted:
            self._clock.stop()
        if state is PlayState.IDLE:
            self.view.show_words(
                self.tr("No run has trained a policy yet. Train one, or load a file.")
                if self.source.is_empty
                else self.tr("Choose a policy and load it; then it plays here.")
            )
