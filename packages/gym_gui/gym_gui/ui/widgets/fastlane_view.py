"""FastLane: the environment of a run as it trains, with its figures. Looking is what makes the run draw.

Nothing is read, and nothing is drawn by the run, while the view is not active.
"""

from __future__ import annotations

import math
import time
from collections import deque
from pathlib import Path

from mosaic_wire.frames import fastlane_path
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QSettings, QStandardPaths, QTimer, Signal
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QComboBox, QFileDialog, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.presenters.clip_recorder import LONGEST_S, ClipFailed, ClipRecorder
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.fastlane_words import Drawing, drawing_of, is_live, why_no_picture
from gym_gui.ui.widgets.frame_sources import FrameSource, SharedMemoryFrames, Shot, StreamedFrames
from gym_gui.ui.widgets.live_picture import LivePicture, Zoom
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

_HUD_MS = 500
_RATE_WINDOW_S = 2.0


class FastLaneView(QWidget):
    """The picture of one run at a time, its zoom, its figures, and a way to keep what is seen."""

    saved = Signal(str)  # the path of a picture or clip that was written

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
        self._writers_words = ""
        self.pictures_shown = 0
        self._build()
        self._hud_timer = QTimer(self, interval=_HUD_MS)
        self._hud_timer.timeout.connect(self._update_hud)
        self._restore()

    # ---------------------------------------------------------------- the run

    @property
    def is_watching(self) -> bool:
        """Whether the run is being asked to draw."""
        return self._source is not None

    def show_run(self, run: pb.Run) -> None:
        if self._run is None or run.run_id != self._run.run_id:
            self._stop_recording()
            self._stop()
            self._shot = None
            self._writers_words = ""
            self.pictures_shown = 0
            self.banner.clear()
            self.picture.show_words("")
        self.refresh(run)

    def refresh(self, run: pb.Run) -> None:
        """A newer record: it may have begun to draw, or ended."""
        self._run = run
        drawing = drawing_of(run)
        if drawing != self._drawing or not self._caption.text():
            self._drawing = drawing
            self._caption.setText(drawing.caption)
            self._fill_tiles()
        if not is_live(run):
            self._stop_recording()
        self._watch_or_not()
        self._explain(self._writers_words)

    def set_active(self, active: bool) -> None:
        self._is_active = active
        if not active:
            self._stop_recording()  # the run stops drawing when nobody looks
        self._watch_or_not()

    def _watch_or_not(self) -> None:
        run = self._run
        wanted = self._is_active and run is not None and is_live(run) and self._drawing.mode != "off"
        if not wanted:
            self._stop()
        elif self._source is None and run is not None:
            self._start(run)

    def _start(self, run: pb.Run) -> None:
        target = self._link.state.target
        # While the daemon is away its address is not known; the memory of a run that is here still is.
        local = is_on_this_machine(target) or (not target and fastlane_path(run.run_id).exists())
        source: FrameSource = SharedMemoryFrames(run.run_id, self) if local else StreamedFrames(
            self._link, run.run_id, self
        )  # fmt: skip
        source.shot.connect(self._show)
        source.quiet.connect(self._explain)
        source.over.connect(self._stop)  # the next record of the run tells whether to look again
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

    # ---------------------------------------------------------------- what arrives

    def _show(self, shot: Shot) -> None:
        self._shot, self._writers_words = shot, ""
        self.pictures_shown += 1
        now = time.monotonic()
        self._shown_at.append(now)
        while now - self._shown_at[0] > _RATE_WINDOW_S:
            self._shown_at.popleft()
        if self.pictures_shown == 1:
            self._update_hud()
        self.picture.show_image(shot.image)
        if self._recorder is not None:
            self._record(shot, now)

    def _explain(self, writers_words: str) -> None:
        self._writers_words = writers_words
        run = self._run
        if run is None or self._recorder is not None:
            return
        words = why_no_picture(run, writers_words)
        if self._shot is None:
            self.picture.show_words(words)
        self._remark.setText(words if self._shot is not None and (writers_words or not is_live(run)) else "")

    def shown_rate(self) -> float:
        """Pictures a second that really appeared here."""
        if len(self._shown_at) < 2:
            return 0.0
        span = max(self._shown_at[-1], time.monotonic() - 0.5) - self._shown_at[0]
        return (len(self._shown_at) - 1) / span if span > 0 else 0.0

    def _update_hud(self) -> None:
        shot = self._shot
        watching = self._source is not None and shot is not None
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
        self._record_button.setEnabled(watching or self._recorder is not None)
        if self._recorder is not None:
            length = self._recorder.length_s(time.monotonic())
            self._remark.setText(self.tr("Recording, {0}").format(formats.duration(length)))
            if length > LONGEST_S:
                self._stop_recording()

    # ---------------------------------------------------------------- keeping what is seen

    def ask_where_to_save(self) -> None:
        self._ask(self.tr("Save the picture"), "png", self.tr("Pictures (*.png *.jpg)"), self.save_picture)

    def save_picture(self, path: str) -> None:
        """Write the picture in view to a file."""
        part = self.picture.image.copy(self.picture.shown_part())
        if part.isNull():
            return

        def write() -> str:
            if not part.save(path):
                raise OSError(f"{path} cannot be written; choose a folder you may write to, and .png or .jpg")
            return path

        self._link.background.run(write, owner=self, done=self._kept, failed=self._not_kept)

    def toggle_recording(self) -> None:
        if self._recorder is not None:
            self._stop_recording()
        else:
            self._ask(self.tr("Record a clip"), "mp4", self.tr("Clips (*.mp4)"), self.record_to)

    def record_to(self, path: str) -> None:
        """Begin a clip; it ends with the same button, with the run, or after ten minutes."""
        self._recorder = ClipRecorder(Path(path))
        self._record_button.setText(self.tr("Stop re&cording"))
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
        self._record_button.setText(self.tr("Record a &clip…"))
        self._remark.setText("")

        def kept(pictures: int) -> None:
            if pictures:
                self._kept(str(recorder.path))
            else:
                self.banner.say(self.tr("No picture came while you recorded, so there is no clip."), "warning")

        self._link.background.run(recorder.finish, owner=self, done=kept, failed=self._clip_failed)

    def _clip_failed(self, error: Exception) -> None:
        if not isinstance(error, ClipFailed):
            raise error
        self._recorder, self._is_writing = None, False
        self._record_button.setText(self.tr("Record a &clip…"))
        self._not_kept(error)

    def _kept(self, path: str) -> None:
        self.banner.say(self.tr("Saved as {0}").format(path), "info")
        self.saved.emit(path)

    def _not_kept(self, error: Exception) -> None:
        if not isinstance(error, OSError | ClipFailed):
            raise error
        self.banner.say(str(error), "bad")

    def _ask(self, title: str, suffix: str, kinds: str, then: object) -> None:
        run = self._run
        name = f"{run.algo}-{run.env_id}-{short_id(run.run_id)}".replace("/", "-") if run is not None else "mosaic"
        dialog = QFileDialog(self, title, _pictures_folder(), kinds)
        dialog.setObjectName("fastlane_file_dialog")
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(suffix)
        dialog.selectFile(f"{name}.{suffix}")
        dialog.fileSelected.connect(then)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    # ---------------------------------------------------------------- widgets

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self.picture = LivePicture()
        self.picture.setObjectName("fastlane_picture")
        self.picture.setAccessibleName(self.tr("Picture of the environment"))
        self._caption = QLabel()
        self._caption.setProperty("role", "caption")
        self._remark = QLabel()
        self._remark.setProperty("role", "caption")
        self._remark.setWordWrap(True)
        self._zoom = _box("fastlane_zoom", self.tr("Zoom"))
        for zoom, words in (
            (Zoom.FIT, self.tr("Fit")), (Zoom.ACTUAL, self.tr("1:1")), (Zoom.DOUBLE, self.tr("2×")),
        ):  # fmt: skip
            self._zoom.addItem(words, zoom.value)
        self._edges = _box("fastlane_edges", self.tr("Edges of enlarged pixels"))
        self._edges.addItem(self.tr("Smooth"), True)
        self._edges.addItem(self.tr("Pixelated"), False)
        self._tile = _box("fastlane_tile", self.tr("Which environment of the grid"))
        self._save_button = QPushButton(self.tr("Save p&icture…"))
        self._save_button.setObjectName("fastlane_save")
        self._save_button.setAccessibleName(self.tr("Save the picture"))
        self._save_button.clicked.connect(self.ask_where_to_save)
        self._record_button = QPushButton(self.tr("Record a &clip…"))
        self._record_button.setObjectName("fastlane_record")
        self._record_button.setAccessibleName(self.tr("Record a clip"))
        self._record_button.clicked.connect(self.toggle_recording)
        self._zoom.currentIndexChanged.connect(self._choose_view)
        self._edges.currentIndexChanged.connect(self._choose_view)
        self._tile.currentIndexChanged.connect(self._choose_view)

        tools = QHBoxLayout()
        for widget in (self._zoom, self._edges, self._tile):
            tools.addWidget(widget)
        tools.addWidget(self._caption, 1)
        tools.addWidget(self._save_button)
        tools.addWidget(self._record_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addLayout(tools)
        layout.addWidget(self.banner)
        layout.addWidget(self.picture, 1)
        layout.addLayout(self._build_hud())
        layout.addWidget(self._remark)
        self._tile.hide()
        self._update_hud()

    def _build_hud(self) -> QHBoxLayout:
        row = QHBoxLayout()
        self._figures: dict[str, QLabel] = {}
        for name, words, tip in (
            ("rate", self.tr("pictures/s"), self.tr("Pictures a second that appear here")),
            ("rolling_return", self.tr("rolling return"), self.tr("Smoothed return of the last episodes")),
            ("last_reward", self.tr("last reward"), self.tr("Reward of the step in the picture")),
            ("step_rate", self.tr("steps/s"), self.tr("Environment steps a second, all environments together")),
        ):
            figure, caption = QLabel("–"), QLabel(words)
            figure.setProperty("role", "figure")
            figure.setObjectName(f"hud_{name}")
            figure.setAccessibleName(words)
            caption.setProperty("role", "caption")
            for label in (figure, caption):
                label.setToolTip(tip)
            column = QVBoxLayout()
            column.setSpacing(0)
            column.addWidget(figure)
            column.addWidget(caption)
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
        self.picture.set_tile(self._drawing.columns_and_rows, None)

    # ---------------------------------------------------------------- how it is shown

    def _choose_view(self) -> None:
        self.picture.set_zoom(Zoom(self._zoom.currentData()))
        self.picture.set_smooth(bool(self._edges.currentData()))
        self.picture.set_tile(self._drawing.columns_and_rows, self._tile.currentData())
        settings = _settings()
        settings.setValue("zoom", self._zoom.currentData())
        settings.setValue("edges", "smooth" if self._edges.currentData() else "pixelated")

    def _restore(self) -> None:
        settings = _settings()
        zoom, edges = settings.value("zoom"), settings.value("edges")
        self._zoom.setCurrentIndex(max(0, self._zoom.findData(zoom)))
        self._edges.setCurrentIndex(1 if edges == "pixelated" else 0)
        self._choose_view()


def is_on_this_machine(target: str) -> bool:
    """Whether the daemon there shares this machine's memory. A loopback address may be a tunnel: then it does not."""
    return target.startswith(("unix:", "unix-abstract:"))


def _figure(value: float) -> str:
    return formats.quantity(value) if math.isfinite(value) else "–"


def _packed(image: QImage) -> bytes:
    """The pixels row by row, without the bytes that Qt puts behind each row."""
    line, wide = image.bytesPerLine(), 3 * image.width()
    data = bytes(image.constBits())
    if line == wide:
        return data
    return b"".join(data[row * line : row * line + wide] for row in range(image.height()))


def _box(name: str, words: str) -> QComboBox:
    box = QComboBox()
    box.setObjectName(name)
    box.setAccessibleName(words)
    box.setToolTip(words)
    return box


def _settings() -> QSettings:
    settings = QSettings("MOSAIC", "mosaic")
    settings.beginGroup("fastlane_view")
    return settings


def _pictures_folder() -> str:
    return QStandardPaths.writableLocation(QStandardPaths.StandardLocation.PicturesLocation)
