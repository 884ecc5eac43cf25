"""Play recorded episodes of the telemetry lane step by step, also while the run continues."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFormLayout,
    QHeaderView,
    QLabel,
    QPlainTextEdit,
    QStackedWidget,
    QTableView,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.client import RpcStream, TrainerClient
from gym_gui.ui import theme
from gym_gui.ui.daemon_link import DaemonLink, Subscription
from gym_gui.ui.play.recorded import FRAMES_FILE, frame_location, read_frame_bytes
from gym_gui.ui.replay.observations import ObservationPreview, StepPreview, preview_of_step
from gym_gui.ui.replay.reasoning_view import ReasoningView
from gym_gui.ui.replay.video_file import Image
from gym_gui.ui.replay.video_player import SHARP_BELOW, TransportBar, to_image
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.frame_view import FrameView
from gym_gui.ui.widgets.parts import UNLIMITED, AdaptiveSplitter, fill, named, styled, timer
from gym_gui.ui.widgets.tables import PairsTable, show_as_rows
from gym_gui.wording import formats
from gym_gui.wording.actions import named_action

_NO_PARENT = QModelIndex()
Index = QModelIndex | QPersistentModelIndex


@dataclass(frozen=True, slots=True)
class EpisodeEntry:
    """A finished episode; `seq` is its number in the store."""

    seq: int
    episode: int
    agent_id: str
    episodic_return: float
    length: int
    ending: str
    timestamp: float


class EpisodesModel(QAbstractTableModel):
    """Row 0 is the current episode of a live run; the finished ones follow, newest first."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._episodes: list[EpisodeEntry] = []
        self._live: int | None = None
        self._titles = [self.tr("Episode"), self.tr("Return"), self.tr("Length"), self.tr("End"), self.tr("When")]

    # ------------------------------------------------------------------ for the owner

    def clear(self) -> None:
        self.beginResetModel()
        self._episodes, self._live = [], None
        self.endResetModel()

    def add(self, messages: list[pb.RunEpisode]) -> None:
        """Add newer episodes; known ones (from a reopened stream) are skipped."""
        last = self.last_seq
        fresh = [_episode(message) for message in messages if message.seq > last]
        if not fresh:
            return
        first_row = 0 if self._live is None else 1
        self.beginInsertRows(_NO_PARENT, first_row, first_row + len(fresh) - 1)
        self._episodes += fresh
        self.endInsertRows()
        if self._live is not None:
            self._live = self.next_episode
            self.dataChanged.emit(self.index(0, 0), self.index(0, 0))

    def set_live(self, is_live: bool) -> None:
        """Set whether there may be a current episode."""
        if is_live and self._live is None:
            self.beginInsertRows(_NO_PARENT, 0, 0)
            self._live = self.next_episode
            self.endInsertRows()
        elif not is_live and self._live is not None:
            self.beginRemoveRows(_NO_PARENT, 0, 0)
            self._live = None
            self.endRemoveRows()

    @property
    def last_seq(self) -> int:
        return self._episodes[-1].seq if self._episodes else 0

    @property
    def next_episode(self) -> int:
        """Return the number after the last finished episode."""
        return self._episodes[-1].episode + 1 if self._episodes else 0

    @property
    def recorded(self) -> int:
        return len(self._episodes)

    def episode_at(self, row: int) -> tuple[int, bool] | None:
        """Return the number of an episode, and whether it is the current one."""
        if self._live is not None:
            if row == 0:
                return self._live, True
            row -= 1
        place = len(self._episodes) - 1 - row
        return (self._episodes[place].episode, False) if 0 <= place < len(self._episodes) else None

    def row_of(self, episode: int) -> int | None:
        """Return the row of a finished episode."""
        for place in range(len(self._episodes) - 1, -1, -1):
            if self._episodes[place].episode == episode:
                return len(self._episodes) - 1 - place + (self._live is not None)
        return None

    # ------------------------------------------------------------------ QAbstractTableModel

    def rowCount(self, parent: Index = _NO_PARENT) -> int:
        return 0 if parent.isValid() else len(self._episodes) + (self._live is not None)

    def columnCount(self, parent: Index = _NO_PARENT) -> int:
        return 0 if parent.isValid() else len(self._titles)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return self._titles[section]
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.TextAlignmentRole:
            return _alignment(section)
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        row, column = index.row(), index.column()
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _alignment(column)
        if role not in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            return None
        if self._live is not None:
            if row == 0:
                return (f"{self._live}", "", "", self.tr("now"), "")[column]
            row -= 1
        episode = self._episodes[len(self._episodes) - 1 - row]
        if column == 0:
            return f"{episode.episode}" + (f" · {episode.agent_id}" if episode.agent_id else "")
        if column == 4 and role == Qt.ItemDataRole.DisplayRole:
            return formats.moment(episode.timestamp)[11:]
        return (
            "",
            formats.quantity(episode.episodic_return),
            formats.count(episode.length),
            self._ending(episode.ending),
            formats.moment(episode.timestamp),
        )[column]

    def _ending(self, ending: str) -> str:
        return {"terminated": self.tr("ended"), "truncated": self.tr("truncated")}.get(ending, "")


def _episode(message: pb.RunEpisode) -> EpisodeEntry:
    ending = "truncated" if message.truncated else "terminated" if message.terminated else ""
    return EpisodeEntry(
        message.seq,
        message.episode,
        message.agent_id,
        message.episodic_return,
        message.length,
        ending,
        message.timestamp,
    )


def _alignment(column: int) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if column in (1, 2) else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter


def preview_of_played_step(step: pb.RunStep, run_dir: str) -> StepPreview:
    """Return the step with its recorded frame, if there is one and the run folder is on this machine."""
    preview = preview_of_step(step)
    place = frame_location(step.info_json)
    image = _decoded(read_frame_bytes(Path(run_dir), place)) if place is not None and run_dir else None
    if image is None:
        return preview
    info = tuple((name, value) for name, value in preview.info if name != "picture")
    return replace(preview, observation=replace(preview.observation, image=image, grid=(), note=""), info=info)


def _decoded(data: bytes) -> Image | None:
    image = QImage.fromData(data) if data else QImage()
    if image.isNull():
        return None
    image = image.convertToFormat(QImage.Format.Format_RGB888)
    rows = np.frombuffer(image.constBits(), np.uint8).reshape(image.height(), image.bytesPerLine())
    return rows[:, : 3 * image.width()].reshape(image.height(), image.width(), 3).copy()


MAX_CELLS = 1_600
"""Limit of a table; a larger grid is shown as text, which is faster to draw"""


class StepView(QWidget):
    """The observation, with other values of the step next to it or below."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("step_view")
        self.frame_view = named(FrameView(), "observation_image", self.tr("Observation as an image"))
        self.grid = named(QTableWidget(), "observation_grid", self.tr("Observation as a grid"))
        self.grid.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.grid.setTabKeyNavigation(False)
        self.grid.horizontalHeader().hide()
        self.grid.verticalHeader().hide()
        self.values = PairsTable(self.tr("Name"), self.tr("Value"), accessible=self.tr("Observation as values"))
        self.values.setObjectName("observation_values")
        self.text = named(QPlainTextEdit(readOnly=True), "observation_text", self.tr("Observation as text"))
        self.text.setFont(theme.monospace())
        self._stack = QStackedWidget()
        for widget in (self.frame_view, self.grid, self.values, self.text):
            self._stack.addWidget(widget)
        self._note = styled(QLabel(), "caption")
        self._seen = left = QWidget()
        fill(QVBoxLayout(left), (self._stack, 1), self._note, margins=0)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(AdaptiveSplitter(left, self._facts(), beside_from=44, beside=(3, 2), above=(3, 2)))
        self.clear()

    def _facts(self) -> QWidget:
        self.action, self.reward, self.total, self.ending, self.agent = (QLabel() for _ in range(5))
        for name, label in (
            ("step_action", self.action),
            ("step_reward", self.reward),
            ("step_return", self.total),
            ("step_ending", self.ending),
            ("step_agent", self.agent),
        ):
            label.setObjectName(name)
            label.setWordWrap(True)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._form = QFormLayout()
        self._form.setContentsMargins(4, 0, 0, 0)
        for title, label in (
            (self.tr("Action"), self.action),
            (self.tr("Reward"), self.reward),
            (self.tr("Return so far"), self.total),
            (self.tr("Episode"), self.ending),
            (self.tr("Agent"), self.agent),
        ):
            caption = styled(QLabel(title), "caption")
            self._form.addRow(caption, label)
        self.beside = PairsTable(
            self.tr("Observation"), self.tr("Value"), accessible=self.tr("Rest of the observation")
        )
        self.beside.setObjectName("observation_rest")
        self.info = PairsTable(self.tr("Info"), self.tr("Value"), accessible=self.tr("Info of the step"))
        self.info.setObjectName("step_info")
        right = QWidget()
        self.reasoning = ReasoningView()
        parts = (self._form, (self.beside, 1), (self.info, 1), (self.reasoning, 4))
        fill(QVBoxLayout(right), *parts, margins=(8, 0, 0, 0))
        return right

    def clear(self, text: str = "") -> None:
        """Show a text instead of a step."""
        self.frame_view.show_text(text)
        self._stack.setCurrentWidget(self.frame_view)
        self._note.hide()
        for label in (self.action, self.reward, self.total, self.ending, self.agent):
            label.clear()
        self._form.setRowVisible(self.agent, False)
        self.beside.hide()
        self.info.show_pairs(())
        self.reasoning.show_parts(())

    def show_step(self, preview: StepPreview, *, reward: float, total: float, ending: str, agent: str) -> None:
        self._show_observation(preview.observation)
        # A few numbers leave the room to the reasons.
        is_small = bool(preview.reasoning) and self._stack.currentWidget() is self.values
        self._seen.setMaximumWidth(40 * self.fontMetrics().averageCharWidth() if is_small else UNLIMITED)
        self.action.setText(preview.action)
        self.reward.setText(formats.quantity(reward))
        self.total.setText(formats.quantity(total))
        self.ending.setText(ending)
        self.agent.setText(agent)
        self._form.setRowVisible(self.agent, bool(agent))
        self.info.show_pairs(preview.info)
        self.info.setVisible(bool(preview.info) or not preview.reasoning)
        self.reasoning.show_parts(preview.reasoning)

    def _show_observation(self, preview: ObservationPreview) -> None:
        self._note.setText(preview.note)
        self._note.setVisible(bool(preview.note))
        is_beside = preview.image is not None or bool(preview.grid)
        self.beside.setVisible(is_beside and bool(preview.values))
        if preview.image is not None:
            self.frame_view.set_smooth(min(preview.image.shape[:2]) >= SHARP_BELOW)
            self.frame_view.show_image(to_image(preview.image))
            self._stack.setCurrentWidget(self.frame_view)
        elif len(preview.grid) * len(preview.grid[0] if preview.grid else ()) > MAX_CELLS:
            self.text.setPlainText("\n".join("  ".join(row) for row in preview.grid))
            self._stack.setCurrentWidget(self.text)
        elif preview.grid:
            self._show_grid(preview.grid)
            self._stack.setCurrentWidget(self.grid)
        elif preview.text:
            self.text.setPlainText(preview.text)
            self._stack.setCurrentWidget(self.text)
        elif preview.values:
            self.values.show_pairs(preview.values)
            self._stack.setCurrentWidget(self.values)
        else:
            self.frame_view.show_text(self.tr("No observation was recorded with this step."))
            self._stack.setCurrentWidget(self.frame_view)
        if is_beside:
            self.beside.show_pairs(preview.values)

    def _show_grid(self, grid: tuple[tuple[str, ...], ...]) -> None:
        rows, columns = len(grid), max(map(len, grid))
        if (self.grid.rowCount(), self.grid.columnCount()) != (rows, columns):
            self.grid.setRowCount(rows)
            self.grid.setColumnCount(columns)
            self.grid.setFont(theme.monospace())
            longest = max(len(cell) for row in grid for cell in row)
            metrics = self.grid.fontMetrics()
            # Square cells if they fit: boards are recognized by their shape.
            side = min(self.grid.viewport().width() // columns, self.grid.viewport().height() // rows)
            side = max(round(metrics.height() * 1.5), min(side, metrics.height() * 4))
            self.grid.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
            self.grid.horizontalHeader().setDefaultSectionSize(
                max(side, metrics.horizontalAdvance("0" * (longest + 1)))
            )
            self.grid.verticalHeader().setDefaultSectionSize(side)
        empty = QColor(theme.colors().muted)
        for row, cells in enumerate(grid):
            for column, cell in enumerate(cells):
                item = self.grid.item(row, column)
                if item is None:
                    item = QTableWidgetItem()
                    item.setTextAlignment(Qt.AlignmentFlag.AlignCenter)
                    self.grid.setItem(row, column, item)
                if item.text() != cell:
                    item.setText(cell)
                    # Empty cells are muted.
                    item.setData(Qt.ItemDataRole.ForegroundRole, empty if set(cell) <= {"0", ","} else None)


STEPS_PER_SECOND = 10
"""Steps per second at speed 1"""
MAX_BYTES = 256 << 20
"""Limit of the (compressed) steps of one episode held in memory"""


class EpisodePlayer(QWidget):
    """The list of a run's episodes, and the steps of the selected one."""

    episodes_changed = Signal(int)  # number of recorded episodes

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("episode_player")
        self._link = link
        self.run_id, self._run = "", pb.Run()
        self._is_live = False
        self._episodes_stream: Subscription[pb.RunEpisodes] | None = None
        self._steps_stream: Subscription[pb.RunSteps] | None = None
        self._episode: int | None = None
        self._follows_end = False
        self._steps: list[pb.RunStep] = []
        self._totals: list[float] = []
        self._bytes = 0
        self.position = 0
        self._shown: int | None = None
        self._is_busy = False
        self._stays = False
        self._missing = 0
        """Episodes that the daemon could not read"""
        self._loops = False
        self._speed = 1.0
        self._timer = timer(self, self._tick)
        self.model = EpisodesModel(self)
        self._build()

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self.table = show_as_rows(named(QTableView(), "episodes_table", self.tr("Recorded episodes")))
        self.table.setModel(self.model)
        header = self.table.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        header.setStretchLastSection(True)
        unit = self.fontMetrics().horizontalAdvance("m")
        for column, width in enumerate((6, 6, 5, 5)):
            header.resizeSection(column, unit * width)
        self.table.selectionModel().currentRowChanged.connect(self._choose)
        self.title = named(QLabel(), "episode_title", role="caption")
        self.view = StepView()
        self.transport = TransportBar(self.tr("step"), parent=self)
        self.transport.play_requested.connect(lambda requested: self.play() if requested else self.pause())
        self.transport.step_requested.connect(self._step)
        self.transport.seek_requested.connect(self._seek)
        self.transport.speed_changed.connect(self._set_speed)
        self.transport.loop_changed.connect(self._set_loop)
        right = QWidget()
        fill(QVBoxLayout(right), self.title, (self.view, 1), self.transport, margins=(8, 0, 0, 0))
        splitter = AdaptiveSplitter(self.table, right, beside_from=60, beside=(3, 7), above=(1, 4))
        self.table.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        fill(QVBoxLayout(self), self.banner, (splitter, 1), margins=0)

    # ------------------------------------------------------------------ for the owner

    @property
    def count(self) -> int:
        """Return the number of loaded steps."""
        return len(self._steps)

    def show_run(self, run_id: str, *, is_live: bool, run: pb.Run | None = None) -> None:
        """Load the episodes of another run and follow new ones; the folder of `run` may contain frames."""
        self.leave()
        self.run_id, self._is_live, self._run = run_id, is_live, run or pb.Run(run_id=run_id)
        self.model.clear()
        self._missing = 0
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
        """Set whether the run may add episodes."""
        if self.run_id and is_live != self._is_live:
            self._is_live = is_live
            self.model.set_live(is_live)

    def leave(self) -> None:
        """Cancel all streams: the tab is hidden."""
        self.pause()
        for stream in (self._episodes_stream, self._steps_stream):
            if stream is not None:
                stream.cancel()
                stream.deleteLater()
        self._episodes_stream = self._steps_stream = None

    def come_back(self) -> None:
        """Resume: load what was missed while hidden."""
        run_id = self.run_id
        if not run_id or self._episodes_stream is not None:
            return

        def open_stream(client: TrainerClient) -> RpcStream[pb.RunEpisodes]:
            return client.episodes(run_id, since_seq=self.model.last_seq, follow=True)

        self._episodes_stream = self._link.stream(
            open_stream, self._add_episodes, owner=self, ended=lambda text: self._show_problem(text)
        )
        if self._episode is not None:
            self._open_steps()

    def play(self) -> None:
        if not self._steps:
            return
        if self.position >= len(self._steps) - 1:
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
            self._finish_episode(self._episode)
        self._missing += sum(message.skipped for message in batch)
        is_complete = bool(batch) and self.model.recorded + self._missing >= batch[-1].total
        if is_complete and self.model.recorded and not self.table.currentIndex().isValid():
            self.table.selectRow(1 if self._is_live else 0)  # the newest; they come in pages, the oldest first

    def _choose(self, current: QModelIndex, _previous: QModelIndex | None = None) -> None:
        chosen = self.model.episode_at(current.row()) if current.isValid() else None
        if chosen is None or self._stays:
            return
        self.pause()
        self._forget_steps()
        self._episode, self._follows_end = chosen
        self.view.clear(self.tr("Reading…"))
        self._open_steps()

    def _finish_episode(self, episode: int) -> None:
        """The current episode has finished: stay with it; `now` is the next one."""
        self._follows_end = False
        row = self.model.row_of(episode)
        if row is not None:
            self._stays = True
            self.table.selectRow(row)
            self._stays = False
        self._show_title()

    def _forget_steps(self) -> None:
        if self._steps_stream is not None:
            self._steps_stream.cancel()
            self._steps_stream.deleteLater()
            self._steps_stream = None
        self._episode, self._follows_end = None, False
        self._steps, self._totals, self._bytes = [], [], 0
        self.position, self._shown = 0, None
        self.title.clear()
        self.transport.set_range(0)
        self.transport.set_position(0, "")

    # ------------------------------------------------------------------ steps

    def _open_steps(self) -> None:
        if self._steps_stream is not None:
            self._steps_stream.cancel()
            self._steps_stream.deleteLater()
        run_id, episode, follow = self.run_id, self._episode, self._follows_end

        def open_stream(client: TrainerClient) -> RpcStream[pb.RunSteps]:
            since = self._steps[-1].seq if self._steps else 0
            return client.steps(run_id, episode=episode, since_seq=since, follow=follow)

        self._steps_stream = self._link.stream(
            open_stream,
            lambda batch: self._add_steps(episode, batch),
            owner=self,
            ended=lambda text: self._end_steps(episode, text),
        )

    def _add_steps(self, episode: int | None, batch: list[pb.RunSteps]) -> None:
        if episode != self._episode:
            return
        was_at_end = not self._steps or self.position >= len(self._steps) - 1
        last = self._steps[-1].seq if self._steps else 0
        for message in batch:
            for step in message.steps:
                if step.seq <= last:
                    continue
                self._steps.append(step)
                self._totals.append((self._totals[-1] if self._totals else 0.0) + step.reward)
                self._bytes += len(step.observation.data) + len(step.action.data) + len(step.info_json) + 64
        self.transport.set_range(len(self._steps))
        self._show_title()
        if self._bytes > MAX_BYTES and self._steps_stream is not None:
            self._steps_stream.cancel()
            self.banner.set_message(
                self.tr("This episode is very large: its first {} steps are shown.").format(len(self._steps)), "warning"
            )
        if self._follows_end and was_at_end and not self._timer.isActive():
            self.position = len(self._steps) - 1
        self._show()

    def _end_steps(self, episode: int | None, text: str) -> None:
        if episode != self._episode:
            return
        self._show_problem(text)
        if not self._steps:
            self.view.clear(
                self.tr("No step of this episode was recorded.")
                if not self._follows_end
                else self.tr("The run ended before the next episode began.")
            )

    def _show_problem(self, text: str) -> None:
        if text:
            self.banner.set_message(text, "bad", action=self.tr("Try again"), on_action=self._try_again)

    def _try_again(self) -> None:
        self.banner.clear()
        self.leave()
        self.come_back()

    def _show_title(self) -> None:
        steps = len(self._steps)
        self.title.setText(
            self.tr("Episode {episode} · {steps} steps").format(episode=self._episode, steps=steps)
            + (" · " + self.tr("being played") if self._follows_end and self._is_live else "")
        )

    # ------------------------------------------------------------------ navigation

    def _seek(self, number: int) -> None:
        if self._steps:
            self.position = max(0, min(len(self._steps) - 1, number))
            self._show()

    def _step(self, by: int) -> None:
        self.pause()
        self._seek(self.position + by)

    def _tick(self) -> None:
        if self._is_busy:
            return  # a large observation takes longer to decode than a tick
        if self.position < len(self._steps) - 1:
            self._seek(self.position + 1)
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
        """Decode the current step in the background; while another one is decoded, only the newest request is kept."""
        if not self._steps:
            return
        number, step = self.position, self._steps[self.position]
        text = self.tr("{number} / {count}").format(number=number + 1, count=len(self._steps))
        self.transport.set_position(number, text)
        if self._is_busy or self._shown == step.seq:
            return
        self._is_busy = True
        total, run = self._totals[number], self._run
        self._link.background.run(
            lambda: preview_of_played_step(step, self._with_frames(step, run)),
            owner=self,
            done=lambda preview: self._draw(
                step, total, replace(preview, action=named_action(run.env_id, preview.action))
            ),
        )

    def _with_frames(self, step: pb.RunStep, run: pb.Run) -> str:
        """Return a folder with the run's frames, if the step has one of them."""
        has_frame = run.run_dir and frame_location(step.info_json) is not None
        return self._link.local(run, f"run/{FRAMES_FILE.as_posix()}").run_dir if has_frame else run.run_dir

    def _draw(self, step: pb.RunStep, total: float, preview: StepPreview) -> None:
        self._is_busy = False
        if self._episode == step.episode and self._steps:
            self._shown = step.seq
            ending = (
                self.tr("ends here")
                if step.terminated
                else self.tr("is truncated here")
                if step.truncated
                else self.tr("continues")
            )
            self.view.show_step(preview, reward=step.reward, total=total, ending=ending, agent=step.agent_id)
            if preview.problem:
                self.banner.set_message(self.tr("Step {}: {}").format(step.index, preview.problem), "warning")
        if self._steps and self._steps[self.position].seq != step.seq:
            self._show()
