"""FastLane: frames of a run's environment while it trains, and its values. A run renders only while it is watched.

While the view is inactive, nothing is read and the run renders nothing.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic_wire.frames import FrameReader, NotAFrameFile, fastlane_path
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_request import algo_params
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import QCoreApplication, QObject, QStandardPaths, Qt, Signal
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.daemon_link import DaemonLink, DecodedStream, Subscription
from gym_gui.ui.run_page.clip_recorder import LONGEST_S, ClipFailed, ClipRecorder
from gym_gui.ui.settings import stored
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.frame_view import FrameView, Zoom
from gym_gui.ui.widgets.parts import ask_for_file, caption, fill, named, styled, timer
from gym_gui.ui.widgets.run_tab import is_live
from gym_gui.wording import formats
from gym_gui.wording.run_view import extras_of, short_id

_GRID_LIMIT = 4


def tr(text: str) -> str:
    return QCoreApplication.translate("FastLane", text)


@dataclass(frozen=True)
class Drawing:
    """How a run was configured to render."""

    mode: str
    """single | grid | off"""
    slot: int = 0
    tiles: int = 0
    """Number of environments in the grid; 0: unknown"""

    @property
    def columns_and_rows(self) -> tuple[int, int]:
        """Return the layout of the grid, computed as the worker does."""
        columns = math.ceil(math.sqrt(max(1, self.tiles)))
        return columns, -(-max(1, self.tiles) // columns)

    @property
    def caption(self) -> str:
        if self.mode == "off":
            return tr("FastLane is off")
        if self.mode == "grid":
            return tr("grid of {0} environments").format(self.tiles) if self.tiles else tr("grid of environments")
        return tr("environment {0}").format(self.slot)


def drawing_of(run: pb.Run) -> Drawing:
    """Return the setting from the run's extras; missing ones have the worker's defaults."""
    extras = extras_of(run)
    if extras.get("fastlane_enabled") is False or extras.get("fastlane_video_mode") == "off":
        return Drawing("off")
    if extras.get("fastlane_video_mode") == "grid":
        environments = _whole(algo_params(extras).get("num_envs"))
        limit = _whole(extras.get("fastlane_grid_limit")) or _GRID_LIMIT
        return Drawing("grid", tiles=min(environments, limit) if environments else 0)
    return Drawing("single", slot=_whole(extras.get("fastlane_slot")))


def why_no_frame(run: pb.Run, writer_message: str) -> str:
    """Return a sentence that explains an empty view to the user."""
    if run.status == RunStatus.TERM:
        return tr("This run has finished and draws no more frames. Its recorded episodes are under Replay.")
    if run.status == RunStatus.INIT:
        reason = f" ({run.queue_reason})" if run.queue_reason else ""
        return tr("The run is queued{0}. Its frames appear here when it trains.").format(reason)
    if drawing_of(run).mode == "off":
        return tr("FastLane was switched off for this run, so it draws nothing. Clone it with FastLane on to watch it.")
    if run.status in (RunStatus.HSHK, RunStatus.RDY):
        return tr("The run is starting.")
    if run.status == RunStatus.PAUSE:
        return tr("The run is paused. It draws again when it is resumed.")
    if writer_message:
        return writer_message[:1].upper() + writer_message[1:]
    return tr("No frame yet. The run draws as soon as its environment takes steps.")


def _whole(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


FRAMES_PER_S = 30
_POLL_MS, _IDLE_MS = 16, 250
"""Poll interval; while the run renders nothing"""
_REPORT_EVERY = 30
"""After so many polls without a new frame the writer's message is read"""


@dataclass(frozen=True)
class Shot:
    """One frame and the values shown with it."""

    number: int
    image: QImage
    pixels: bytes | None
    """The memory that holds the image; None: the image owns it"""
    last_reward: float
    rolling_return: float
    step_rate_hz: float


class FrameSource(QObject):
    """Read the frames of one run."""

    shot = Signal(object)  # Shot
    quiet = Signal(str)  # no new frame; the reason, if the writer gave one
    over = Signal()  # this source has ended

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Stop polling; the run stops rendering a moment later."""
        raise NotImplementedError


class SharedMemoryFrames(FrameSource):
    """Read the frame file of a run on this machine, at most at the rate of a screen."""

    def __init__(self, run_id: str, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._reader = FrameReader(fastlane_path(run_id), interval_s=1 / FRAMES_PER_S)
        self._timer = timer(self, self.poll)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._polls_without_frame = 0

    def start(self) -> None:
        self._timer.start(_POLL_MS)
        self.poll()

    def stop(self) -> None:
        self._timer.stop()
        self._reader.close()

    def poll(self) -> None:
        """Show the newest frame if it is new."""
        try:
            frame = self._reader.read()
            if frame is None:
                self._polls_without_frame += 1
                if not self._reader.is_open or self._polls_without_frame % _REPORT_EVERY == 0:
                    self.quiet.emit(self._reader.notice())
                    self._pace(_POLL_MS if self._reader.is_open else _IDLE_MS)
                return
        except NotAFrameFile as error:
            self.quiet.emit(str(error))
            self._pace(_IDLE_MS)
            return
        self._polls_without_frame = 0
        self._pace(_POLL_MS)
        image = QImage(frame.pixels, frame.width, frame.height, 3 * frame.width, QImage.Format.Format_RGB888)
        self.shot.emit(
            Shot(frame.number, image, frame.pixels, frame.last_reward, frame.rolling_return, frame.step_rate_hz)
        )

    def _pace(self, every_ms: int) -> None:
        if self._timer.isActive() and self._timer.interval() != every_ms:
            self._timer.setInterval(every_ms)


class StreamedFrames(FrameSource):
    """Request frames from the daemon; they are unpacked in the thread that reads the stream."""

    def __init__(self, link: DaemonLink, run_id: str, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._link, self._run_id = link, run_id
        self._subscription: Subscription[pb.RunFrame | Shot] | None = None

    def start(self) -> None:
        def frames(client: TrainerClient) -> DecodedStream[pb.RunFrame | Shot]:
            return DecodedStream(client.frames(self._run_id, max_fps=FRAMES_PER_S, encoding="jpeg"), _unpacked)

        # Only the newest frame is shown; older ones are dropped.
        self._subscription = self._link.stream(
            frames, self._show, owner=self, ended=self._ended, every_ms=1000 // FRAMES_PER_S, keep_last=1
        )

    def stop(self) -> None:
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None

    def _show(self, batch: list[pb.RunFrame | Shot]) -> None:
        newest = batch[-1]
        if isinstance(newest, Shot):
            self.shot.emit(newest)
        else:
            self.quiet.emit(newest.notice)

    def _ended(self, text: str) -> None:
        self._subscription = None
        self.quiet.emit(text)
        self.over.emit()


def _unpacked(message: pb.RunFrame) -> pb.RunFrame | Shot:
    if not message.data:
        return message
    image = QImage.fromData(message.data)
    if image.isNull():
        return pb.RunFrame(notice="the frame received cannot be decoded")
    return Shot(message.number, image, None, message.last_reward, message.rolling_return, message.step_rate_hz)


_HUD_MS = 500
_RATE_WINDOW_S = 2.0


class FastLaneView(QWidget):
    """Show the frames of one run with its values; zoom, save images and record clips."""

    saved = Signal(str)  # the path of a frame or clip that was written

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("fastlane_view")
        self._link = link
        self._run: pb.Run | None = None
        self._drawing = Drawing("single")
        self._source: FrameSource | None = None
        self._is_active = False
        self._shot: Shot | None = None
        self._shown_at: deque[float] = deque()
        self._recorder: ClipRecorder | None = None
        self._is_writing = False
        self._writer_message = ""
        self.frames_shown = 0
        self._build()
        self._hud_timer = timer(self, self._update_hud, _HUD_MS)
        self._restore()

    # ---------------------------------------------------------------- the run

    @property
    def is_watching(self) -> bool:
        """Return whether the run is asked to render."""
        return self._source is not None

    def show_run(self, run: pb.Run) -> None:
        if self._run is None or run.run_id != self._run.run_id:
            self._stop_recording()
            self._stop()
            self._shot = None
            self._writer_message = ""
            self.frames_shown = 0
            self.banner.clear()
            self.frame_view.show_text("")
        self.refresh(run)

    def refresh(self, run: pb.Run) -> None:
        """Apply a newer record: the run may have started to render, or ended."""
        self._run = run
        drawing = drawing_of(run)
        if drawing != self._drawing or not self._caption.text():
            self._drawing = drawing
            self._caption.setText(drawing.caption)
            self._fill_tiles()
        if not is_live(run):
            self._stop_recording()
        self._watch_or_not()
        self._explain(self._writer_message)

    def set_active(self, active: bool) -> None:
        self._is_active = active
        if not active:
            self._stop_recording()  # the run stops drawing when nothing is shown
        self._watch_or_not()

    def _watch_or_not(self) -> None:
        run = self._run
        requested = self._is_active and run is not None and is_live(run) and self._drawing.mode != "off"
        if not requested:
            self._stop()
        elif self._source is None and run is not None:
            self._start(run)

    def _start(self, run: pb.Run) -> None:
        target = self._link.state.target
        # While the daemon is unreachable its address is unknown; the shared memory of a local run remains readable.
        local = is_on_this_machine(target) or (not target and fastlane_path(run.run_id).exists())
        source: FrameSource = (
            SharedMemoryFrames(run.run_id, self) if local else StreamedFrames(self._link, run.run_id, self)
        )
        source.shot.connect(self._show)
        source.quiet.connect(self._explain)
        source.over.connect(self._stop)  # the run's next record decides whether to poll again
        self._source = source
        self._shown_at.clear()
        self._hud_timer.start()
        source.start()

    def _stop(self) -> None:
        self._hud_timer.stop()
        if self._source is not None:
            self._source.stop()
            self._source.deleteLater()
            self._source = None
        self._shown_at.clear()
        self._update_hud()

    # ---------------------------------------------------------------- incoming frames

    def _show(self, shot: Shot) -> None:
        self._shot, self._writer_message = shot, ""
        self.frames_shown += 1
        now = time.monotonic()
        self._shown_at.append(now)
        while now - self._shown_at[0] > _RATE_WINDOW_S:
            self._shown_at.popleft()
        if self.frames_shown == 1:
            self._update_hud()
        self.frame_view.show_image(shot.image)
        if self._recorder is not None:
            self._record(shot, now)

    def _explain(self, writer_message: str) -> None:
        self._writer_message = writer_message
        run = self._run
        if run is None or self.is_recording:
            return
        text = why_no_frame(run, writer_message)
        if self._shot is None:
            self.frame_view.show_text(text)
        self._remark.setText(text if self._shot is not None and (writer_message or not is_live(run)) else "")

    def shown_rate(self) -> float:
        """Return the frames per second that were shown here."""
        if len(self._shown_at) < 2:
            return 0.0
        span = max(self._shown_at[-1], time.monotonic() - 0.5) - self._shown_at[0]
        return (len(self._shown_at) - 1) / span if span > 0 else 0.0

    def _update_hud(self) -> None:
        shot = self._shot
        watching = self.is_watching and shot is not None
        rate, unknown = self.shown_rate(), "–"
        figures = {
            "rate": f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}",
            "rolling_return": _figure(shot.rolling_return) if shot else unknown,
            "last_reward": _figure(shot.last_reward) if shot else unknown,
            "step_rate": formats.short_count(shot.step_rate_hz)
            if shot and math.isfinite(shot.step_rate_hz)
            else unknown,
        }
        if not watching:
            figures["rate"] = unknown
        for name, text in figures.items():
            if self._figures[name].text() != text:
                self._figures[name].setText(text)
        self._save_button.setEnabled(shot is not None)
        self._record_button.setEnabled(watching or self.is_recording)
        if self._recorder is not None:
            length = self._recorder.length_s(time.monotonic())
            self._remark.setText(self.tr("Recording, {0}").format(formats.duration(length)))
            if length > LONGEST_S:
                self._stop_recording()

    # ---------------------------------------------------------------- saving images and clips

    def ask_where_to_save(self) -> None:
        self._ask(self.tr("Save the frame"), "png", self.tr("Images (*.png *.jpg)"), self.save_image)

    def save_image(self, path: Path) -> None:
        """Save the visible part of the frame as an image."""
        part = self.frame_view.image.copy(self.frame_view.shown_part())
        if part.isNull():
            return

        def write() -> str:
            if not part.save(str(path)):
                raise OSError(f"{path} cannot be written; choose a folder you may write to, and .png or .jpg")
            return str(path)

        self._link.background.run(write, owner=self, done=self._on_saved, failed=self._save_failed)

    def toggle_recording(self) -> None:
        if self._recorder is not None:
            self._stop_recording()
        else:
            self._ask(self.tr("Record a clip"), "mp4", self.tr("Clips (*.mp4)"), self.record_to)

    def record_to(self, path: Path) -> None:
        """Start recording; it stops with the same button, with the run, or after ten minutes."""
        self._recorder = ClipRecorder(path)
        self._record_button.setText(self.tr("Stop &recording"))
        self._update_hud()

    @property
    def is_recording(self) -> bool:
        return self._recorder is not None

    def _record(self, shot: Shot, now: float) -> None:
        assert self._recorder is not None
        pixels, image = shot.pixels, shot.image
        if pixels is None:
            image = image.convertToFormat(QImage.Format.Format_RGB888)
            pixels = _packed(image)
        self._recorder.offer(pixels, image.width(), image.height(), now)
        recorder = self._recorder
        if not self._is_writing and recorder.has_waiting:
            self._is_writing = True
            self._link.background.run(
                recorder.write_waiting, owner=self, done=lambda _: self._written(), failed=self._clip_failed
            )

    def _written(self) -> None:
        self._is_writing = False

    def _stop_recording(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        self._record_button.setText(self.tr("&Record a clip…"))
        self._remark.setText("")

        def on_finished(frames: int) -> None:
            if frames:
                self._on_saved(str(recorder.path))
            else:
                self.banner.set_message(self.tr("No frame arrived while recording, so there is no clip."), "warning")

        self._link.background.run(recorder.finish, owner=self, done=on_finished, failed=self._clip_failed)

    def _clip_failed(self, error: Exception) -> None:
        if not isinstance(error, ClipFailed):
            raise error
        self._recorder, self._is_writing = None, False
        self._record_button.setText(self.tr("&Record a clip…"))
        self._save_failed(error)

    def _on_saved(self, path: str) -> None:
        self.banner.set_message(self.tr("Saved as {0}").format(path), "info")
        self.saved.emit(path)

    def _save_failed(self, error: Exception) -> None:
        if not isinstance(error, OSError | ClipFailed):
            raise error
        self.banner.set_message(str(error), "bad")

    def _ask(self, title: str, suffix: str, kinds: str, then: Callable[[Path], object]) -> None:
        run = self._run
        name = f"{run.algo}-{run.env_id}-{short_id(run.run_id)}".replace("/", "-") if run is not None else "mosaic"
        suggested, folder = f"{name}.{suffix}", _images_folder()
        ask_for_file(self, title, kinds, then, name="fastlane_file_dialog", save_as=suggested, folder=folder)

    # ---------------------------------------------------------------- widgets

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self.frame_view = named(FrameView(), "fastlane_frame", self.tr("Frames of the environment"))
        self._caption = styled(QLabel(), "caption")
        self._remark = caption(wraps=True)
        self._zoom = _box("fastlane_zoom", self.tr("Zoom"))
        for zoom, text in ((Zoom.FIT, self.tr("Fit")), (Zoom.ACTUAL, self.tr("1:1")), (Zoom.DOUBLE, self.tr("2×"))):
            self._zoom.addItem(text, zoom.value)
        self._edges = _box("fastlane_edges", self.tr("Edges of enlarged pixels"))
        self._edges.addItem(self.tr("Smooth"), True)
        self._edges.addItem(self.tr("Pixelated"), False)
        self._tile = _box("fastlane_tile", self.tr("Which environment of the grid"))
        self._save_button = named(QPushButton(self.tr("&Save image…")), "fastlane_save", self.tr("Save the frame"))
        self._save_button.clicked.connect(self.ask_where_to_save)
        self._record_button = named(QPushButton(self.tr("&Record a clip…")), "fastlane_record")
        self._record_button.setAccessibleName(self.tr("Record a clip"))
        self._record_button.clicked.connect(self.toggle_recording)
        self._zoom.currentIndexChanged.connect(self._choose_view)
        self._edges.currentIndexChanged.connect(self._choose_view)
        self._tile.currentIndexChanged.connect(self._choose_view)

        tools = fill(QHBoxLayout(), self._zoom, self._edges, self._tile)
        fill(tools, (self._caption, 1), self._save_button, self._record_button)
        fill(QVBoxLayout(self), tools, self.banner, (self.frame_view, 1), self._build_hud(), self._remark, margins=0)
        self._tile.hide()
        self._update_hud()

    def _build_hud(self) -> QHBoxLayout:
        row = QHBoxLayout()
        self._figures: dict[str, QLabel] = {}
        for name, text, tip in (
            ("rate", self.tr("fps"), self.tr("Frames per second that appear here")),
            ("rolling_return", self.tr("rolling return"), self.tr("Smoothed return of the last episodes")),
            ("last_reward", self.tr("last reward"), self.tr("Reward of the step in the frame")),
            ("step_rate", self.tr("steps/s"), self.tr("Environment steps a second, all environments together")),
        ):
            figure, caption = QLabel("–"), QLabel(text)
            figure.setProperty("role", "figure")
            figure.setObjectName(f"hud_{name}")
            figure.setAccessibleName(text)
            caption.setProperty("role", "caption")
            for label in (figure, caption):
                label.setToolTip(tip)
            column = fill(QVBoxLayout(), figure, caption, spacing=0)
            row.addLayout(column, 1)
            self._figures[name] = figure
        return row

    def _fill_tiles(self) -> None:
        self._tile.blockSignals(True)
        self._tile.clear()
        self._tile.addItem(self.tr("Whole grid"), None)
        for number in range(self._drawing.tiles):
            self._tile.addItem(self.tr("Environment {0}").format(number), number)
        self._tile.blockSignals(False)
        self._tile.setVisible(self._drawing.mode == "grid" and self._drawing.tiles > 1)
        self.frame_view.set_tile(self._drawing.columns_and_rows, None)

    # ---------------------------------------------------------------- display options

    def _choose_view(self) -> None:
        self.frame_view.set_zoom(Zoom(self._zoom.currentData()))
        self.frame_view.set_smooth(bool(self._edges.currentData()))
        self.frame_view.set_tile(self._drawing.columns_and_rows, self._tile.currentData())
        settings = stored("fastlane_view")
        settings.setValue("zoom", self._zoom.currentData())
        settings.setValue("edges", "smooth" if self._edges.currentData() else "pixelated")

    def _restore(self) -> None:
        settings = stored("fastlane_view")
        zoom, edges = settings.value("zoom"), settings.value("edges")
        self._zoom.setCurrentIndex(max(0, self._zoom.findData(zoom)))
        self._edges.setCurrentIndex(1 if edges == "pixelated" else 0)
        self._choose_view()


def is_on_this_machine(target: str) -> bool:
    """Return whether the daemon shares this machine's memory. A loopback address may be a tunnel: then it does not."""
    return target.startswith(("unix:", "unix-abstract:"))


def _figure(value: float) -> str:
    return formats.quantity(value) if math.isfinite(value) else "–"


def _packed(image: QImage) -> bytes:
    """Return the pixels row by row, without Qt's padding at the end of each row."""
    line, wide = image.bytesPerLine(), 3 * image.width()
    data = bytes(image.constBits())
    if line == wide:
        return data
    return b"".join(data[row * line : row * line + wide] for row in range(image.height()))


def _box(name: str, text: str) -> QComboBox:
    return named(QComboBox(), name, text, tip=text)


def _images_folder() -> str:
    return QStandardPaths.writableLocation(QStandardPaths.StandardLocation.PicturesLocation)
