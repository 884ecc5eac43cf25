"""Live telemetry: the newest steps and episodes of a worker. It skips steps to keep up and shows how many."""

from __future__ import annotations

import json
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeVar

import numpy as np
from mosaic_wire.capabilities import Lane
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.reasoning import KEY, Part
from mosaic_wire.run_status import RunStatus
from mosaic_wire.telemetry import decode
from numpy.typing import NDArray
from PySide6.QtCore import QAbstractTableModel, QCoreApplication, QItemSelection, QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtGui import QImage
from PySide6.QtWidgets import (
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QSplitter,
    QTableView,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, DecodedStream, Subscription
from gym_gui.ui.replay.observations import preview_of_step, short
from gym_gui.ui.replay.reasoning_view import ReasoningView
from gym_gui.ui.run_page.recent_telemetry import (
    STARVED,
    NewMessages,
    RecentTelemetry,
    grid_image,
    ingest_episodes,
    ingest_steps,
)
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.frame_view import FrameView
from gym_gui.ui.widgets.parts import bold, fill, named, split, styled
from gym_gui.ui.widgets.run_tab import RunTab, is_live
from gym_gui.ui.widgets.tables import show_as_rows
from gym_gui.ui.workers.catalog import BUILTIN, find
from gym_gui.wording import formats
from gym_gui.wording.actions import named_action
from gym_gui.wording.run_view import extras_of, parsed


def tr(text: str) -> str:
    return QCoreApplication.translate("TelemetryTab", text)


class Flow(Enum):
    """What a run sends while it is live."""

    UNKNOWN = "unknown"
    NOTHING = "nothing"
    EPISODES = "episodes"
    STEPS = "steps"

    @property
    def has_telemetry(self) -> bool:
        return self in (Flow.STEPS, Flow.EPISODES)


def flow_of(run: pb.Run) -> Flow:
    """Return it from the registration of the worker; before that, from the catalog."""
    reported = parsed(run.capabilities_json)
    lane = reported.get("lane") if isinstance(reported, dict) else None
    if lane is None:
        entry = find(BUILTIN, run.worker_type)
        if entry is None:
            return Flow.UNKNOWN
        lane = entry.lane
    if lane != Lane.ANALYTICS:
        return Flow.STEPS
    return Flow.EPISODES if extras_of(run).get("minimal_telemetry") is True else Flow.NOTHING


def no_live_telemetry(run: pb.Run) -> str:
    """Return the banner of a run of the analytics lane."""
    entry = find(BUILTIN, run.worker_type)
    name = entry.display_name.removesuffix(" Worker") if entry is not None else run.worker_type or tr("This")
    return tr("{0} worker streams metrics via TensorBoard/W&B; live telemetry not available.").format(name)


def flow_text(run: pb.Run, control: str, is_paused: bool, is_following: bool) -> tuple[str, str]:
    """Return the state of the stream as a label and a sentence, from the credits of worker, daemon and window."""
    if run.status == RunStatus.TERM:
        return tr("finished"), tr("The run has finished; these are its last steps.")
    if is_paused:
        return tr("view paused"), tr("The run continues and everything is stored; only this view is paused.")
    if run.status == RunStatus.PAUSE:
        return tr("run paused"), tr("The run is paused.")
    if "starved" in run.flags:
        return tr("worker waits"), tr("STARVED: the worker has no credits left and waits until its steps are stored.")
    if "throttled" in run.flags:
        return tr("throttled"), tr("The daemon is busy and stores this run's curves a little later.")
    if control == STARVED:
        return tr("skipping"), tr("STARVED: steps come faster than this window can show; some are skipped.")
    if not is_following:
        return tr("waiting"), tr("Nothing is sent yet.")
    return tr("live"), tr("Credits are available: every step is stored, and this view shows the newest.")


M = TypeVar("M", pb.RunStep, pb.RunEpisode)
_Index = QModelIndex | QPersistentModelIndex
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


@dataclass(frozen=True)
class RecentColumn(Generic[M]):
    title: str
    write: Callable[[M], str]
    characters: int
    is_number: bool = True


class RecentModel(QAbstractTableModel, Generic[M]):
    """The newest `keep` messages, newest first. Texts of cells are made on demand: most are never shown."""

    def __init__(self, columns: Sequence[RecentColumn[M]], keep: int) -> None:
        super().__init__()
        self.columns: Sequence[RecentColumn[M]] = columns
        self._keep = keep
        self._rows: deque[M] = deque()
        self._texts: dict[tuple[int, int], str] = {}

    def add(self, fresh: Sequence[M]) -> None:
        """Insert messages (oldest first) at the top."""
        fresh = fresh[-self._keep :]
        if not fresh:
            return
        if len(fresh) == self._keep:  # all old rows are replaced
            self.beginResetModel()
            self._rows = deque(reversed(fresh))
            self._texts.clear()
            self.endResetModel()
            return
        if (surplus := len(self._rows) + len(fresh) - self._keep) > 0:
            self.beginRemoveRows(QModelIndex(), len(self._rows) - surplus, len(self._rows) - 1)
            for _ in range(surplus):
                dropped = self._rows.pop()
                for column in range(len(self.columns)):
                    self._texts.pop((dropped.seq, column), None)
            self.endRemoveRows()
        self.beginInsertRows(QModelIndex(), 0, len(fresh) - 1)
        self._rows.extendleft(fresh)
        self.endInsertRows()

    @property
    def has_agents(self) -> bool:
        """Return whether several agents act: then each row names its agent."""
        return bool(self._rows) and bool(self._rows[0].agent_id)

    def clear(self) -> None:
        self.beginResetModel()
        self._rows.clear()
        self._texts.clear()
        self.endResetModel()

    def message(self, row: int) -> M | None:
        return self._rows[row] if 0 <= row < len(self._rows) else None

    # -- Qt

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self._rows)

    def columnCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self.columns)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation == Qt.Orientation.Horizontal:
            if role == Qt.ItemDataRole.DisplayRole:
                return self.columns[section].title
            if role == Qt.ItemDataRole.TextAlignmentRole and self.columns[section].is_number:
                return _RIGHT
        return None

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if role == Qt.ItemDataRole.DisplayRole:
            message = self._rows[index.row()]
            key = (message.seq, index.column())
            if key not in self._texts:
                self._texts[key] = self.columns[index.column()].write(message)
            return self._texts[key]
        if role == Qt.ItemDataRole.TextAlignmentRole and self.columns[index.column()].is_number:
            return _RIGHT
        return None


def steps_model(keep: int = 500, env_id: Callable[[], str] = str) -> RecentModel[pb.RunStep]:
    return RecentModel(
        (
            RecentColumn(_tr("Step"), lambda step: formats.count(step.seq), 10),
            RecentColumn(_tr("Episode"), lambda step: formats.count(step.episode), 8),
            RecentColumn(_tr("In episode"), lambda step: formats.count(step.index), 9),
            RecentColumn(_tr("Action"), lambda step: named_action(env_id(), _action(step)), 20, is_number=False),
            RecentColumn(_tr("Reward"), lambda step: formats.quantity(step.reward), 9),
            RecentColumn(_tr("Ends"), _end, 14, is_number=False),
            RecentColumn(_tr("Agent"), lambda step: step.agent_id, 10, is_number=False),
            RecentColumn(_tr("Info"), _info, 24, is_number=False),
        ),
        keep,
    )


def episodes_model(keep: int = 500) -> RecentModel[pb.RunEpisode]:
    return RecentModel(
        (
            RecentColumn(_tr("Episode"), lambda episode: formats.count(episode.episode), 9),
            RecentColumn(_tr("Return"), lambda episode: formats.quantity(episode.episodic_return), 10),
            RecentColumn(_tr("Length"), lambda episode: formats.count(episode.length), 9),
            RecentColumn(_tr("Ends"), _end, 14, is_number=False),
            RecentColumn(_tr("Agent"), lambda episode: episode.agent_id, 10, is_number=False),
            RecentColumn(_tr("Finished"), lambda episode: _clock(episode.timestamp), 12, is_number=False),
        ),
        keep,
    )


class RecentTable(QTableView):
    """A table of a RecentModel with columns as wide as their texts need."""

    def __init__(self, model: RecentModel[Any], name: str, text: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, name, text)
        self._model = model
        self.setModel(model)
        show_as_rows(self, line_height=1.5)
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        header = self.horizontalHeader()
        header.setStretchLastSection(True)
        for number, column in enumerate(model.columns):
            wide = max(column.characters, len(column.title) + 2)
            header.resizeSection(number, self.fontMetrics().averageCharWidth() * (wide + 1))
        self._agents = [column.title for column in model.columns].index(_tr("Agent"))
        self.setColumnHidden(self._agents, True)

    def show_agents_or_not(self) -> None:
        """Hide the agent column for a single unnamed agent."""
        if self.isColumnHidden(self._agents) and self._model.has_agents:
            self.setColumnHidden(self._agents, False)


def _tr(text: str) -> str:
    return QCoreApplication.translate("RecentTable", text)


def _action(step: pb.RunStep) -> str:
    try:
        value = decode(step.action)
    except (ValueError, OSError, EOFError, zlib.error):
        return _tr("unreadable")
    return "" if value is None else short(value)


def _end(message: pb.RunStep | pb.RunEpisode) -> str:
    return _tr("terminated") if message.terminated else _tr("truncated") if message.truncated else ""


def _info(step: pb.RunStep) -> str:
    if not step.info_json:
        return ""
    try:
        info = json.loads(step.info_json)
    except ValueError:
        return _tr("unreadable")
    if not isinstance(info, dict):
        return short(info)
    return ", ".join(f"{key}: {short(value)}" for key, value in info.items() if key != KEY)


def _clock(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp).strftime("%H:%M:%S") if timestamp else ""


@dataclass(frozen=True)
class _Ready:
    seq: int
    image: NDArray[np.uint8] | None
    is_grid: bool
    text: str
    reasoning: tuple[Part, ...]


class ObservationView(QWidget):
    """Decode steps in the background, one at a time; only the newest of the steps that arrive meanwhile is shown."""

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("observation_view")
        self._background = background
        self._waiting: pb.RunStep | None = None
        self._is_busy = False
        self._caption = named(QLabel(), "observation_caption", role="caption")
        self.frame_view = named(FrameView(), "observation_image", self.tr("Observation as an image"))
        self.values = named(QPlainTextEdit(readOnly=True), "observation_values", self.tr("Observation as values"))
        self.values.setFont(theme.monospace())
        self._parts = QSplitter()
        self._parts.addWidget(self.frame_view)
        self._parts.addWidget(self.values)
        self._parts.setChildrenCollapsible(False)
        self.reasoning = ReasoningView()
        body = split("observation_split", (self._parts, 1), (self.reasoning, 3), is_vertical=True)
        fill(QVBoxLayout(self), self._caption, (body, 1), margins=0)
        self.clear()

    def clear(self, text: str = "") -> None:
        """Show a message instead of an observation."""
        self._waiting = None
        self._caption.setText("")
        self.frame_view.show_text(text or self.tr("No step yet."))
        self.frame_view.show()
        self.values.hide()
        self.reasoning.show_parts(())

    def show_step(self, step: pb.RunStep) -> None:
        self._waiting = step
        if not self._is_busy:
            self._next()

    def _next(self) -> None:
        step, self._waiting = self._waiting, None
        if step is not None:
            self._is_busy = True
            self._background.run(lambda: _unpacked(step), owner=self, done=self._show)

    def _show(self, ready: _Ready) -> None:
        self._is_busy = False
        self._caption.setText(self.tr("Observation at step {0}").format(formats.count(ready.seq)))
        if ready.image is not None:
            height, width = ready.image.shape[:2]
            pixels = ready.image.tobytes()
            self.frame_view.set_smooth(not ready.is_grid and width >= 96)
            self.frame_view.show_image(QImage(pixels, width, height, 3 * width, QImage.Format.Format_RGB888))
        self.frame_view.setVisible(ready.image is not None)
        self.values.setVisible(bool(ready.text) or ready.image is None)
        if self.values.toPlainText() != ready.text:
            self.values.setPlainText(ready.text)
        self.reasoning.show_parts(ready.reasoning)
        self._next()


def _unpacked(step: pb.RunStep) -> _Ready:
    preview = preview_of_step(step)
    seen, image, is_grid = preview.observation, preview.observation.image, False
    if image is None and seen.grid:
        image = grid_image(seen.grid)
        is_grid = image is not None
    lines = [preview.problem, seen.text, *_aligned(seen.values)]
    if image is None and seen.grid:
        lines += ["  ".join(row) for row in seen.grid]
    return _Ready(step.seq, image, is_grid, "\n".join(filter(None, lines)), preview.reasoning)


def _aligned(rows: tuple[tuple[str, str], ...]) -> list[str]:
    wide = min(32, max((len(name) for name, _ in rows), default=0))
    return [f"{name:<{wide}}  {value}" for name, value in rows]


KEEP = 500
"""Rows of a table; older ones are in the store and under Replay"""
_SHOW_MS = 200


class TelemetryTab(RunTab):
    """The newest steps and episodes of one run, its observations, and the state of the stream."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("telemetry_tab")
        self.recent_steps: RecentTelemetry[pb.RunStep]
        self.recent_episodes: RecentTelemetry[pb.RunEpisode]
        self._subscriptions: list[Subscription[None]] = []
        self._ended = 0
        self.is_paused = False
        self._control = ""
        self._rate_from: tuple[float, int] | None = None
        self._rate: float | None = None
        self._build()
        self._clear()

    # ---------------------------------------------------------------- the run

    @property
    def is_following(self) -> bool:
        return bool(self._subscriptions)

    def show_run(self, run: pb.Run) -> None:
        if self.run is None or run.run_id != self.run.run_id:
            self._stop()
            self._clear()
            self._pause_button.setChecked(False)
        super().show_run(run)
        self._show_available_parts(run)
        self._follow_or_not()

    def refresh(self, run: pb.Run) -> None:
        before, self.run = self.run, run
        if before is None or flow_of(before) != flow_of(run):
            self._show_available_parts(run)
        if before is not None and before.status != run.status and is_live(run):
            self._ended = 0  # it started or was resumed: expect more messages
        self._follow_or_not()
        self._show_flow()

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        if active:
            self._ended = 0
        self._follow_or_not()

    def _show_available_parts(self, run: pb.Run) -> None:
        """Show the view of a worker that sends steps, or of one that sends only episodes."""
        has_steps = flow_of(run) is Flow.STEPS
        self._steps_part.setVisible(has_steps)
        self.observation.setVisible(has_steps)
        if has_steps:
            self.banner.clear()
        else:
            self.banner.set_message(self.tr("This run sends its episodes and no steps (minimal telemetry)."))

    # ---------------------------------------------------------------- following

    def _follow_or_not(self) -> None:
        run = self.run
        flow = flow_of(run) if run is not None else Flow.NOTHING
        requested = self.is_active and run is not None and flow.has_telemetry and run.status != RunStatus.INIT
        if not requested:
            self._stop()
        elif run is not None and not self._subscriptions and not self._ended:
            self._start(run.run_id, flow)

    def _start(self, run_id: str, flow: Flow) -> None:
        self._clear()
        recent_steps, recent_episodes = self.recent_steps, self.recent_episodes

        def steps(client: TrainerClient) -> DecodedStream[None]:
            # The newest ones first; after an interruption, the missing ones.
            since = recent_steps.last_seq or -KEEP
            stream = client.steps(run_id, since_seq=since, follow=True)
            return DecodedStream(stream, lambda batch: ingest_steps(recent_steps, batch))

        def episodes(client: TrainerClient) -> DecodedStream[None]:
            since = recent_episodes.last_seq or -KEEP
            stream = client.episodes(run_id, since_seq=since, follow=True)
            return DecodedStream(stream, lambda batch: ingest_episodes(recent_episodes, batch))

        opened = [(steps, self._show_steps)] if flow is Flow.STEPS else []
        for open_stream, show in (*opened, (episodes, self._show_episodes)):
            # Messages are kept in `recent_…`; the stream only signals that something arrived.
            self._subscriptions.append(
                self.link.stream(
                    open_stream, show, owner=self, ended=self._stream_ended, every_ms=_SHOW_MS, keep_last=1
                )
            )

    def _stop(self) -> None:
        for subscription in self._subscriptions:
            subscription.cancel()
            subscription.deleteLater()
        self._subscriptions.clear()

    def _stream_ended(self, text: str) -> None:
        self._ended += 1
        if self._ended >= len(self._subscriptions):
            self._subscriptions.clear()
        if text:
            self.banner.set_message(
                self.tr("The steps cannot be read: {0}").format(text),
                "bad",
                action=self.tr("Try again"),
                on_action=self._try_again,
            )
        self._show_steps()
        self._show_episodes()

    def _try_again(self) -> None:
        self.banner.clear()
        self._ended = 0
        self._follow_or_not()

    # ---------------------------------------------------------------- incoming messages

    def _show_steps(self, _signs: object = None) -> None:
        if self.is_paused:
            self._show_flow()
            return
        update = self.recent_steps.drain()
        self._control = update.control
        self._measure(update)
        self.steps.add(update.fresh)
        self._steps_table.show_agents_or_not()
        if update.fresh and not self._steps_table.selectionModel().hasSelection():
            self.observation.show_step(update.fresh[-1])
        self._show_counts(update)
        self._show_flow()

    def _show_episodes(self, _signs: object = None) -> None:
        if not self.is_paused:
            self.episodes.add(self.recent_episodes.drain().fresh)
            self._episodes_table.show_agents_or_not()
            self._show_flow()

    def _measure(self, update: NewMessages[pb.RunStep]) -> None:
        """Update the steps per second, over intervals of at least a second."""
        now = time.monotonic()
        if self._rate_from is None:
            self._rate_from = (now, update.last_seq)
        elif now - self._rate_from[0] >= 1:
            self._rate = (update.last_seq - self._rate_from[1]) / (now - self._rate_from[0])
            self._rate_from = (now, update.last_seq)

    def _show_counts(self, update: NewMessages[pb.RunStep]) -> None:
        rate = self.tr(" · {0} steps/s").format(formats.short_count(self._rate)) if self._rate is not None else ""
        self._counts.setText(self.tr("step {0}").format(formats.count(update.last_seq)) + rate)
        if not update.passed_over:
            self._skipped.setText(self.tr("nothing skipped"))
            self._skipped.setToolTip("")
            return
        self._skipped.setText(
            self.tr("{0} steps skipped here, all are stored").format(formats.count(update.passed_over))
        )
        self._skipped.setToolTip(
            self.tr(
                "{0} of them were not sent because this window was too slow; the others were skipped between updates."
            ).format(formats.count(update.left_out_by_daemon))
        )

    def _show_flow(self) -> None:
        if self.run is None:
            return
        label, sentence = flow_text(self.run, self._control, self.is_paused, self.is_following)
        self._flow.setText(label)
        self._flow.setToolTip(sentence)
        self._flow.setAccessibleDescription(sentence)
        self._flow_sentence.setText(sentence)

    def pause(self, paused: bool) -> None:
        """Freeze the view, or catch up; the run is not affected."""
        self.is_paused = paused
        self._pause_button.setText(self.tr("Resume &view") if paused else self.tr("Pause &view"))
        if not paused:
            self._show_steps()
            self._show_episodes()
        self._show_flow()

    def _show_current_step(self, _chosen: QItemSelection, _left: QItemSelection) -> None:
        """Show the selected step until it leaves the table or is deselected."""
        rows = self._steps_table.selectionModel().selectedRows()
        step = self.steps.message(rows[0].row()) if rows else None
        if step is not None:
            self.observation.show_step(step)

    def _clear(self) -> None:
        # New objects: a stream that is still ending in its thread must not add another run's steps to these.
        self.recent_steps = RecentTelemetry(KEEP)
        self.recent_episodes = RecentTelemetry(KEEP)
        self.steps.clear()
        self.episodes.clear()
        self.observation.clear()
        self._control, self._rate_from, self._rate = "", None, None
        self._counts.setText("")
        self._skipped.setText("")

    # ---------------------------------------------------------------- widgets

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self._build_tools()
        self._build_body()
        fill(QVBoxLayout(self), self.banner, self._tools, (self._body, 1), margins=(8, 0, 0, 0))

    def _build_tools(self) -> None:
        self._pause_button = named(QPushButton(self.tr("Pause &view")), "telemetry_pause")
        self._pause_button.setAccessibleName(self.tr("Pause or resume this view"))
        self._pause_button.setCheckable(True)
        self._pause_button.toggled.connect(self.pause)
        self._flow, self._flow_sentence, self._counts, self._skipped = QLabel(), QLabel(), QLabel(), QLabel()
        self._flow.setObjectName("telemetry_flow")
        self._flow.setAccessibleName(self.tr("State of the stream"))
        bold(self._flow)
        self._counts.setObjectName("telemetry_counts")
        self._skipped.setObjectName("telemetry_skipped")
        for label in (self._flow_sentence, self._skipped):
            label.setProperty("role", "caption")
        self._flow_sentence.setWordWrap(True)
        self._tools = QWidget()
        tools = QHBoxLayout(self._tools)
        tools.setContentsMargins(0, 0, 0, 0)
        tools.setSpacing(self.fontMetrics().averageCharWidth() * 2)
        fill(tools, self._pause_button, self._flow, (self._flow_sentence, 1), self._counts, self._skipped)

    def _build_body(self) -> None:
        self.steps = steps_model(KEEP, lambda: self.run.env_id if self.run is not None else "")
        self.episodes = episodes_model(KEEP)
        self.steps.setParent(self)
        self.episodes.setParent(self)
        self._steps_table = RecentTable(self.steps, "telemetry_steps", self.tr("Recent steps"))
        self._steps_table.selectionModel().selectionChanged.connect(self._show_current_step)
        self._episodes_table = RecentTable(self.episodes, "telemetry_episodes", self.tr("Recent episodes"))
        self.observation = ObservationView(self.link.background)
        self._steps_part = _titled(self.tr("Recent steps, newest first"), self._steps_table)
        episodes = _titled(self.tr("Recent episodes, newest first"), self._episodes_table)
        tables = split("telemetry_tables", (self._steps_part, 3), (episodes, 2), is_vertical=True)
        gap = self.fontMetrics().averageCharWidth()
        self.observation.setContentsMargins(0, 0, gap, 0)
        tables.setContentsMargins(gap, 0, 0, 0)
        self._body = split("telemetry_split", (self.observation, 2), (tables, 3))


def _titled(title: str, widget: QWidget) -> QWidget:
    label = styled(QLabel(title), "caption")
    label.setBuddy(widget)
    part = QWidget()
    fill(QVBoxLayout(part), label, (widget, 1), margins=0, spacing=2)
    return part
