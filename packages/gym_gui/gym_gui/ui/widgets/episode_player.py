"""Recorded episodes of the telemetry lane, step by step, also while the run goes on."""

from __future__ import annotations

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QModelIndex, Qt, QTimer, Signal
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QLabel, QTableView, QVBoxLayout, QWidget

from gym_gui.services.trainer.client import RpcStream, TrainerClient
from gym_gui.ui.daemon_link import DaemonLink, Subscription
from gym_gui.ui.replay.episodes_model import EpisodesModel
from gym_gui.ui.replay.observations import StepLook
from gym_gui.ui.replay.played_pictures import look_of_played_step
from gym_gui.ui.widgets.adaptive_splitter import AdaptiveSplitter
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.step_view import StepView
from gym_gui.ui.widgets.transport_bar import TransportBar

STEPS_PER_SECOND = 10
"""At speed 1"""
MOST_BYTES = 256 << 20
"""Of the steps of one episode that are held here, as they were sent (compressed)"""


class EpisodePlayer(QWidget):
    """The list of a run's episodes, and the steps of the one that is chosen."""

    episodes_changed = Signal(int)  # how many are recorded

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("episode_player")
        self._link = link
        self._run_id = self._run_dir = ""
        self._is_live = False
        self._episodes_stream: Subscription[pb.RunEpisodes] | None = None
        self._steps_stream: Subscription[pb.RunSteps] | None = None
        self._episode: int | None = None
        self._follows_end = False
        self._steps: list[pb.RunStep] = []
        self._totals: list[float] = []
        self._bytes = 0
        self._position = 0
        self._shown: int | None = None
        self._is_busy = False
        self._stays = False
        self._loops = False
        self._speed = 1.0
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._tick)
        self.model = EpisodesModel(self)
        self._build()

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self.table = QTableView()
        self.table.setObjectName("episodes_table")
        self.table.setAccessibleName(self.tr("Recorded episodes"))
        self.table.setModel(self.model)
        self.table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.table.setTabKeyNavigation(False)
        self.table.setShowGrid(False)
        self.table.setAlternatingRowColors(True)
        self.table.verticalHeader().hide()
        self.table.verticalHeader().setDefaultSectionSize(round(self.fontMetrics().height() * 1.6))
        header = self.table.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setStretchLastSection(True)
        unit = self.fontMetrics().horizontalAdvance("m")
        for column, width in enumerate((6, 6, 5, 5)):
            header.resizeSection(column, unit * width)
        self.table.selectionModel().currentRowChanged.connect(self._choose)
        self.title = QLabel()
        self.title.setObjectName("episode_title")
        self.title.setProperty("role", "caption")
        self.view = StepView()
        self.transport = TransportBar(self.tr("step"), parent=self)
        self.transport.play_wanted.connect(lambda wanted: self.play() if wanted else self.pause())
        self.transport.step_wanted.connect(self._step)
        self.transport.seek_wanted.connect(self._seek)
        self.transport.speed_changed.connect(self._set_speed)
        self.transport.loop_changed.connect(self._set_loop)
        right = QWidget()
        box = QVBoxLayout(right)
        box.setContentsMargins(8, 0, 0, 0)
        box.addWidget(self.title)
        box.addWidget(self.view, 1)
        box.addWidget(self.transport)
        splitter = AdaptiveSplitter(self.table, right, beside_from=60, beside=(3, 7), above=(1, 4))
        self.table.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(self.banner)
        layout.addWidget(splitter, 1)

    # ------------------------------------------------------------------ what its owner uses

    @property
    def run_id(self) -> str:
        return self._run_id

    @property
    def position(self) -> int:
        return self._position

    @property
    def count(self) -> int:
        """Steps of the chosen episode that are here."""
        return len(self._steps)

    def show_run(self, run_id: str, *, is_live: bool, run_dir: str = "") -> None:
        """Another run: read its list of episodes, and what is added to it; `run_dir` may hold a player's pictures."""
        self.leave()
        self._run_id, self._is_live, self._run_dir = run_id, is_live, run_dir
        self.model.clear()
        self.model.set_live(is_live)
        self._forget_steps()
        self.banner.clear()
        self.view.clear(
            self.tr("Episodes appear here as they end.")
            if is_live
            else self.tr("This run recorded no episodes: those of the telemetry lane (Human-Only, BDI, LLM) do.")
        )
        self.come_back()

    def set_live(self, is_live: bool) -> None:
        """The run ended, or goes on after all."""
        if self._run_id and is_live != self._is_live:
            self._is_live = is_live
            self.model.set_live(is_live)

    def leave(self) -> None:
        """Nobody looks: no streams."""
        self.pause()
        for stream in (self._episodes_stream, self._steps_stream):
            if stream is not None:
                stream.cancel()
                stream.deleteLater()
        self._episodes_stream = self._steps_stream = None

    def come_back(self) -> None:
        """Somebody looks again: what was missed is asked for."""
        run_id = self._run_id
        if not run_id or self._episodes_stream is not None:
            return

        def open_stream(client: TrainerClient) -> RpcStream[pb.RunEpisodes]:
            return client.episodes(run_id, since_seq=self.model.last_seq, follow=True)

        self._episodes_stream = self._link.stream(
            open_stream, self._add_episodes, owner=self, ended=lambda words: self._complain(words)
        )
        if self._episode is not None:
            self._open_steps()

    def play(self) -> None:
        if not self._steps:
            return
        if self._position >= len(self._steps) - 1:
            self._seek(0)
        self._timer.start(max(1, round(1000 / (STEPS_PER_SECOND * self._speed))))
        self.transport.set_playing(True)

    def pause(self) -> None:
        self._timer.stop()
        self.transport.set_playing(False)

    # ------------------------------------------------------------------ episodes

    def _add_episodes(self, batch: list[pb.RunEpisodes]) -> None:
        self.model.add([episode for message in batch for episode in message.episodes])
        self.episodes_changed.emit(self.model.recorded)
        if self._follows_end and self._episode is not None and self._episode < self.model.next_episode:
            self._let_it_be_over(self._episode)
        if not self.table.currentIndex().isValid() and self.model.recorded:
            self.table.selectRow(1 if self._is_live else 0)

    def _choose(self, current: QModelIndex, _previous: QModelIndex | None = None) -> None:
        chosen = self.model.episode_at(current.row()) if current.isValid() else None
        if chosen is None or self._stays:
            return
        self.pause()
        self._forget_steps()
        self._episode, self._follows_end = chosen
        self.view.clear(self.tr("Reading…"))
        self._open_steps()

    def _let_it_be_over(self, episode: int) -> None:
        """The episode that was being played is recorded now: stay with it; `now` is the next one."""
        self._follows_end = False
        row = self.model.row_of(episode)
        if row is not None:
            self._stays = True
            self.table.selectRow(row)
            self._stays = False
        self._say_title()

    def _forget_steps(self) -> None:
        if self._steps_stream is not None:
            self._steps_stream.cancel()
            self._steps_stream.deleteLater()
            self._steps_stream = None
        self._episode, self._follows_end = None, False
        self._steps, self._totals, self._bytes = [], [], 0
        self._position, self._shown = 0, None
        self.title.clear()
        self.transport.set_range(0)
        self.transport.set_position(0, "")

    # ------------------------------------------------------------------ steps

    def _open_steps(self) -> None:
        if self._steps_stream is not None:
            self._steps_stream.cancel()
            self._steps_stream.deleteLater()
        run_id, episode, follow = self._run_id, self._episode, self._follows_end

        def open_stream(client: TrainerClient) -> RpcStream[pb.RunSteps]:
            since = self._steps[-1].seq if self._steps else 0
            return client.steps(run_id, episode=episode, since_seq=since, follow=follow)

        self._steps_stream = self._link.stream(
            open_stream,
            lambda batch: self._add_steps(episode, batch),
            owner=self,
            ended=lambda words: self._end_steps(episode, words),
        )

    def _add_steps(self, episode: int | None, batch: list[pb.RunSteps]) -> None:
        if episode != self._episode:
            return
        was_at_end = not self._steps or self._position >= len(self._steps) - 1
        last = self._steps[-1].seq if self._steps else 0
        for message in batch:
            for step in message.steps:
                if step.seq <= last:
                    continue
                self._steps.append(step)
                self._totals.append((self._totals[-1] if self._totals else 0.0) + step.reward)
                self._bytes += len(step.observation.data) + len(step.action.data) + len(step.info_json) + 64
        self.transport.set_range(len(self._steps))
        self._say_title()
        if self._bytes > MOST_BYTES and self._steps_stream is not None:
            self._steps_stream.cancel()
            self.banner.say(
                self.tr("This episode is very large: its first {} steps are shown.").format(len(self._steps)), "warning"
            )
        if self._follows_end and was_at_end and not self._timer.isActive():
            self._position = len(self._steps) - 1
        self._show()

    def _end_steps(self, episode: int | None, words: str) -> None:
        if episode != self._episode:
            return
        self._complain(words)
        if not self._steps:
            self.view.clear(
                self.tr("No step of this episode was recorded.")
                if not self._follows_end
                else self.tr("The run ended before the next episode began.")
            )

    def _complain(self, words: str) -> None:
        if words:
            self.banner.say(words, "bad", action=self.tr("Try again"), on_action=self._try_again)

    def _try_again(self) -> None:
        self.banner.clear()
        self.leave()
        self.come_back()

    def _say_title(self) -> None:
        steps = len(self._steps)
        self.title.setText(
            self.tr("Episode {episode} · {steps} steps").format(episode=self._episode, steps=steps)
            + (" · " + self.tr("being played") if self._follows_end and self._is_live else "")
        )

    # ------------------------------------------------------------------ going through them

    def _seek(self, number: int) -> None:
        if self._steps:
            self._position = max(0, min(len(self._steps) - 1, number))
            self._show()

    def _step(self, by: int) -> None:
        self.pause()
        self._seek(self._position + by)

    def _tick(self) -> None:
        if self._is_busy:
            return  # a large observation takes longer to unpack than a tick
        if self._position < len(self._steps) - 1:
            self._seek(self._position + 1)
        elif self._loops:
            self._seek(0)
        elif not self._follows_end:
            self.pause()

    def _set_speed(self, speed: float) -> None:
        self._speed = speed
        if self._timer.isActive():
            self._timer.setInterval(max(1, round(1000 / (STEPS_PER_SECOND * speed))))

    def _set_loop(self, loops: bool) -> None:
        self._loops = loops

    def _show(self) -> None:
        """Unpack the step in the background, unless one is being unpacked: then the newest wish is served after it."""
        if not self._steps:
            return
        number, step = self._position, self._steps[self._position]
        words = self.tr("{number} / {count}").format(number=number + 1, count=len(self._steps))
        self.transport.set_position(number, words)
        if self._is_busy or self._shown == step.seq:
            return
        self._is_busy = True
        total, run_dir = self._totals[number], self._run_dir
        self._link.background.run(
            lambda: look_of_played_step(step, run_dir), owner=self, done=lambda look: self._draw(step, total, look)
        )

    def _draw(self, step: pb.RunStep, total: float, look: StepLook) -> None:
        self._is_busy = False
        if self._episode == step.episode and self._steps:
            self._shown = step.seq
            ending = (
                self.tr("ends here") if step.terminated else self.tr("is cut off here") if step.truncated else
                self.tr("goes on")
            )  # fmt: skip
            self.view.show_step(look, reward=step.reward, total=total, ending=ending, agent=step.agent_id)
            if look.problem:
                self.banner.say(self.tr("Step {}: {}").format(step.index, look.problem), "warning")
        if self._steps and self._steps[self._position].seq != step.seq:
            self._show()
