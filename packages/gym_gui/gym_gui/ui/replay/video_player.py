"""Play a video file: background threads decode ahead, the window's thread only draws."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

from PySide6.QtCore import QEvent, QSignalBlocker, QSize, QStandardPaths, Qt, QUrl, Signal
from PySide6.QtGui import QColor, QDesktopServices, QIcon, QImage, QKeySequence, QPainter, QShortcut
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QSlider,
    QStyle,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.replay.video_file import Image, VideoFacts, VideoFile, VideoProblem
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.frame_view import FrameView, Zoom
from gym_gui.ui.widgets.parts import ask_for_file, fill, named, timer

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)


class TransportBar(QWidget):
    """The playback controls; the owner handles their signals."""

    play_requested = Signal(bool)
    step_requested = Signal(int)  # frames forward, or negative: back
    seek_requested = Signal(int)
    speed_changed = Signal(float)
    loop_changed = Signal(bool)

    def __init__(self, unit: str, *, parent: QWidget) -> None:
        super().__init__(parent)
        self._player = parent
        self._last = 0
        self._is_playing = False
        self._icons: dict[QToolButton, QStyle.StandardPixmap] = {}
        self.slider = named(QSlider(Qt.Orientation.Horizontal), "seek_slider", self.tr("Position"))
        self.slider.setRange(0, 0)
        self.slider.valueChanged.connect(self.seek_requested)
        icons = QStyle.StandardPixmap
        first = self._button("first", icons.SP_MediaSkipBackward, self.tr("To the beginning"), "Home")
        back = self._button("back", icons.SP_MediaSeekBackward, self.tr("One {} back").format(unit), "Left")
        self.play_button = self._button("play", icons.SP_MediaPlay, self.tr("Play"), "Space")
        forward = self._button("forward", icons.SP_MediaSeekForward, self.tr("One {} on").format(unit), "Right")
        last = self._button("last", icons.SP_MediaSkipForward, self.tr("To the end"), "End")
        first.clicked.connect(lambda: self.seek_requested.emit(0))
        back.clicked.connect(lambda: self.step_requested.emit(-1))
        self.play_button.clicked.connect(lambda: self.play_requested.emit(not self._is_playing))
        forward.clicked.connect(lambda: self.step_requested.emit(1))
        last.clicked.connect(lambda: self.seek_requested.emit(self._last))
        self.where = named(QLabel(), "position_label")
        self.speed = self._make_speed()
        self.loop = named(QCheckBox(self.tr("Loop")), "loop", self.tr("Begin again at the end"))
        self.loop.toggled.connect(self.loop_changed)
        self._row = QHBoxLayout()
        self._row.setSpacing(2)
        fill(self._row, first, back, self.play_button, forward, last, 1, self.speed)
        self._row.addSpacing(8)
        self._row.addWidget(self.loop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        seek = fill(QHBoxLayout(), (self.slider, 1), self.where)
        fill(layout, seek, self._row)
        self.set_range(0)
        self._draw_icons()

    def changeEvent(self, event: QEvent) -> None:
        if event.type() is QEvent.Type.PaletteChange and hasattr(self, "_icons"):
            self._draw_icons()
        super().changeEvent(event)

    def _draw_icons(self) -> None:
        """Draw the style's icons, which are black, in the text color of the theme."""
        side = round(self.fontMetrics().height() * 1.2)
        for button, requested in self._icons.items():
            icon = QIcon()
            for mode, color in ((QIcon.Mode.Normal, theme.colors().text), (QIcon.Mode.Disabled, theme.colors().muted)):
                pixmap = self.style().standardIcon(requested).pixmap(QSize(side, side), self.devicePixelRatioF())
                painter = QPainter(pixmap)
                painter.setCompositionMode(QPainter.CompositionMode.CompositionMode_SourceIn)
                painter.fillRect(pixmap.rect(), QColor(color))
                painter.end()
                icon.addPixmap(pixmap, mode)
            button.setIcon(icon)
            button.setIconSize(QSize(side, side))

    def add_widget(self, widget: QWidget) -> None:
        """Add a widget at the end of the row."""
        self._row.addSpacing(8)
        self._row.addWidget(widget)

    def set_range(self, count: int) -> None:
        """Set the number of positions; 0: nothing to play."""
        self._last = max(0, count - 1)
        with QSignalBlocker(self.slider):
            self.slider.setMaximum(self._last)
        self.slider.setPageStep(max(1, self._last // 10))
        for widget in self.findChildren(QWidget):
            widget.setEnabled(count > 0)

    def set_position(self, number: int, text: str) -> None:
        with QSignalBlocker(self.slider):  # not a seek of the user
            self.slider.setValue(number)
        self.where.setText(text)

    def set_playing(self, playing: bool) -> None:
        self._is_playing = playing
        icon = QStyle.StandardPixmap.SP_MediaPause if playing else QStyle.StandardPixmap.SP_MediaPlay
        self._icons[self.play_button] = icon
        self._draw_icons()
        text = self.tr("Pause") if playing else self.tr("Play")
        self.play_button.setAccessibleName(text)
        self.play_button.setToolTip(f"{text} ({self.tr('Space')})")

    def _make_speed(self) -> QComboBox:
        speed = named(QComboBox(), "speed", self.tr("Speed"), tip=self.tr("Playback speed"))
        for factor in SPEEDS:
            speed.addItem(f"{factor:g}×", factor)
        speed.setCurrentIndex(SPEEDS.index(1.0))
        speed.currentIndexChanged.connect(lambda: self.speed_changed.emit(speed.currentData()))
        return speed

    def _button(self, name: str, icon: QStyle.StandardPixmap, text: str, key: str) -> QToolButton:
        button = named(QToolButton(), f"{name}_button")
        self._icons[button] = icon
        button.setAccessibleName(text)
        button.setToolTip(f"{text} ({QKeySequence(key).toString(QKeySequence.SequenceFormat.NativeText)})")
        button.setAutoRaise(True)
        # Shortcuts of the whole player, not only of the focused button; a list next to it keeps its keys.
        shortcut = QShortcut(QKeySequence(key), self._player)
        shortcut.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
        shortcut.activated.connect(button.click)
        return button


QUEUE_BYTES = 48 << 20
_LONGEST_QUEUE, _SHORTEST_QUEUE = 48, 2
_AT_ONCE = 8
"""Frames decoded per background job: few enough for a quick response to clicks"""
_MAX_PER_SECOND = 60
SHARP_BELOW = 128
"""Side below which pixels are drawn as sharp squares"""


class VideoPlayer(QWidget):
    """Play, pause, step, seek, speed, loop; save a frame, open the file in another program."""

    position_changed = Signal(int)
    loaded = Signal(object)  # VideoFacts
    refused = Signal(str)
    ended = Signal()

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("video_player")
        self._background = background
        self.path: Path | None = None
        self._file: VideoFile | None = None
        self._generation = 0
        """Incremented with each file: results for older ones are dropped"""
        self._is_busy = False
        self._queue: deque[tuple[int, QImage]] = deque()
        self._ahead = 0
        self._requested: int | None = None
        self.count = 0
        """How many frames can be shown."""
        self.position = 0
        """The number of the frame that is shown, from 0."""
        self._shown_since = 0
        self._since = 0.0
        self._speed, self._loops = 1.0, False
        self._timer = timer(self, self._tick)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._build()
        self.load(None)

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self.view = named(FrameView(), "video_frame", self.tr("Frame of the video"))
        self.transport = TransportBar(self.tr("frame"), parent=self)
        self.transport.play_requested.connect(lambda requested: self.play() if requested else self.pause())
        self.transport.step_requested.connect(self.step)
        self.transport.seek_requested.connect(self.seek)
        self.transport.speed_changed.connect(self.set_speed)
        self.transport.loop_changed.connect(self.set_loop)
        self.fit_button = named(QToolButton(), "fit_button", self.tr("Pixel for pixel"))
        self.fit_button.setText(self.tr("1:1"))
        self.fit_button.setCheckable(True)
        self.fit_button.setToolTip(self.tr("Pixel for pixel; otherwise as large as there is room. Drag to move it."))
        self.fit_button.toggled.connect(lambda exact: self.view.set_zoom(Zoom.ACTUAL if exact else Zoom.FIT))
        self.transport.add_widget(self.fit_button)
        self.facts_label = named(QLabel(), "video_facts", role="caption")
        self.facts_label.setWordWrap(True)
        self.facts_label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.save_button = named(QPushButton(self.tr("Save image…")), "save_image")
        self.save_button.setAccessibleName(self.tr("Save the frame that is shown"))
        self.save_button.clicked.connect(self._ask_where_to_save)
        self.outside_button = named(QPushButton(self.tr("Open outside")), "open_outside")
        self.outside_button.setAccessibleName(self.tr("Open the file with the program of this desktop"))
        self.outside_button.clicked.connect(self._open_outside)
        below = fill(QHBoxLayout(), (self.facts_label, 1), self.save_button, self.outside_button)
        fill(QVBoxLayout(self), self.banner, (self.view, 1), self.transport, below, margins=(8, 0, 0, 0), spacing=6)

    # ------------------------------------------------------------------ what its owner uses

    @property
    def is_playing(self) -> bool:
        return self._timer.isActive()

    @property
    def waiting(self) -> int:
        """Return the number of decoded frames that were not shown yet."""
        return len(self._queue)

    def load(self, path: Path | None, *, play: bool = False) -> None:
        """Load another file, or none."""
        self.pause()
        self._generation += 1
        self._release_file()
        self.path, self.count, self.position, self._requested = path, 0, 0, None
        self.is_refused = False
        self._is_busy = False
        self._queue.clear()
        self.banner.clear()
        self.facts_label.clear()
        self.transport.set_range(0)
        self.transport.set_position(0, "")
        self.save_button.setEnabled(False)
        self.outside_button.setEnabled(path is not None)
        self.view.show_text(self.tr("Opening…") if path is not None else self.tr("Select a video to play it here."))
        if path is None:
            return
        generation = self._generation
        self._background.run(
            lambda: VideoFile(path),
            owner=self,
            done=lambda file: self._on_opened(generation, file, play),
            failed=lambda error: self._refuse(generation, error),
        )

    def play(self) -> None:
        """Play; at the end, restart from the beginning."""
        if not self.count or self.is_playing:
            return
        if self.position >= self.count - 1:
            self.seek(0)
        self._start_clock()
        facts = self._file.facts if self._file is not None else None
        per_second = min(_MAX_PER_SECOND, (facts.fps if facts else 30.0) * self._speed)
        self._timer.start(max(1, round(1000 / per_second)))
        self.transport.set_playing(True)
        self._work()

    def pause(self) -> None:
        self._timer.stop()
        self.transport.set_playing(False)

    def step(self, by: int) -> None:
        """Step by so many frames and pause."""
        self.pause()
        if by == 1 and self._queue and self._requested is None and self._queue[0][0] == self.position + 1:
            self._show(*self._queue.popleft())
            return
        self.seek(self.position + by)

    def seek(self, number: int) -> None:
        """Show this frame as soon as it is decoded; playing continues from there."""
        if not self.count:
            return
        self._requested = max(0, min(self.count - 1, number))
        self._queue.clear()
        self._ahead = self._requested + 1
        self._work()

    def set_speed(self, speed: float) -> None:
        self._speed = speed
        if self.is_playing:
            self.pause()
            self.play()

    def set_loop(self, loops: bool) -> None:
        self._loops = loops

    def save_image(self, path: Path) -> None:
        """Write the shown frame as PNG, or in the format of the file name."""
        image = self.view.image
        if image.isNull():
            return

        def set_message(saved: bool) -> None:
            if saved:
                self.banner.set_message(self.tr("Saved {}").format(path))
            else:
                self.banner.set_message(self.tr("{} could not be written; choose another folder.").format(path), "bad")

        self._background.run(lambda: image.save(str(path)), owner=self, done=set_message)

    # ------------------------------------------------------------------ loading

    def _on_opened(self, generation: int, file: VideoFile, play: bool) -> None:
        if generation != self._generation:
            self._background.run(file.close, owner=self)
            return
        self._file = file
        facts = file.facts
        self._set_count(facts.frames)
        # Scale small frames up with sharp pixels; scale large ones down smoothly to keep thin lines.
        self.view.set_smooth(min(facts.width, facts.height) >= SHARP_BELOW)
        self.facts_label.setText(self._facts_text(facts))
        self.save_button.setEnabled(True)
        if facts.is_truncated:
            self.banner.set_message(
                self.tr("This video is truncated: {have} of {promised} frames can be shown.").format(
                    have=facts.frames, promised=facts.promised
                ),
                "warning",
            )
        self.seek(0)
        self.loaded.emit(facts)
        if play:
            self.play()

    def _refuse(self, generation: int, error: Exception) -> None:
        if not isinstance(error, VideoProblem):
            raise error
        if generation == self._generation:
            self.is_refused = True
            self.view.show_text(self.tr("This file cannot be played."))
            self.banner.set_message(
                str(error), "bad", action=self.tr("Try again"), on_action=lambda: self.load(self.path)
            )
            self.refused.emit(str(error))

    def _facts_text(self, facts: VideoFacts) -> str:
        return self.tr("{width} × {height} · {fps:g} fps · {duration:.1f} s · {codec}").format(
            width=facts.width,
            height=facts.height,
            fps=round(facts.fps, 2),
            duration=facts.duration_s,
            codec=facts.codec,
        )

    def _set_count(self, count: int) -> None:
        self.count = count
        self.transport.set_range(count)

    def _release_file(self) -> None:
        # A running decoding job also holds the file: the last holder closes it.
        if self._file is not None and not self._is_busy:
            self._background.run(self._file.close, owner=self)
        self._file = None

    # ------------------------------------------------------------------ decoding

    @property
    def _queue_length(self) -> int:
        if self._file is None:
            return _SHORTEST_QUEUE
        facts = self._file.facts
        fitting = QUEUE_BYTES // max(1, facts.width * facts.height * 3)
        return max(_SHORTEST_QUEUE, min(_LONGEST_QUEUE, fitting))

    def _work(self) -> None:
        """Start a decoding job for missing frames unless one is running: the file is not thread-safe."""
        file = self._file
        if file is None or self._is_busy:
            return
        numbers = [self._requested] if self._requested is not None else self._next_numbers()
        if not numbers:
            return
        self._is_busy = True
        generation = self._generation
        self._background.run(
            lambda: _decode(file, numbers), owner=self, done=lambda frames: self._on_decoded(generation, file, frames)
        )

    def _next_numbers(self) -> list[int]:
        room = self._queue_length - len(self._queue)
        # Refill half of the queue at once: jobs of single frames have too much overhead.
        if not self.is_playing or room < min(_AT_ONCE, self._queue_length // 2 or 1):
            return []
        numbers = []
        for _ in range(min(room, _AT_ONCE)):
            if self._ahead >= self.count:
                if not self._loops:
                    break
                self._ahead = 0
            numbers.append(self._ahead)
            self._ahead += 1
        return numbers

    def _on_decoded(self, generation: int, file: VideoFile, frames: list[tuple[int, QImage | None]]) -> None:
        if generation != self._generation:
            self._background.run(file.close, owner=self)
            return
        self._is_busy = False
        for number, image in frames:
            if image is None:
                self._note_break(number)
                break
            if self._requested is not None:
                if number == self._requested:
                    self._requested = None
                    self._show(number, image)
                    self._start_clock()
                break  # a frame requested before the seek
            self._queue.append((number, image))
        self._work()

    def _note_break(self, number: int) -> None:
        """Shorten the video: its packets exist, but their frames cannot be decoded."""
        self._queue = deque(entry for entry in self._queue if entry[0] < number)
        self._requested = None
        promised = self._file.facts.promised if self._file is not None else number
        self._set_count(number)
        self._ahead = min(self._ahead, number)
        self.banner.set_message(
            self.tr("This video is truncated: {have} of {promised} frames can be shown.").format(
                have=number, promised=promised
            ),
            "warning",
        )
        if number and self.position >= number:
            self.seek(number - 1)
        elif not number:
            self.view.show_text(self.tr("No frame of this video can be decoded."))

    # ------------------------------------------------------------------ display

    def _start_clock(self) -> None:
        self._since, self._shown_since = time.monotonic(), 0

    def _tick(self) -> None:
        """Show the newest frame that is due; if none is decoded yet, wait for it."""
        if self._requested is not None or self._file is None:
            return
        due = int((time.monotonic() - self._since) * self._file.facts.fps * self._speed) - self._shown_since
        newest = None
        for _ in range(min(due, len(self._queue))):
            newest = self._queue.popleft()
            self._shown_since += 1
        if newest is not None:
            self._show(*newest)
        elif due > 0:
            if self.position >= self.count - 1 and not self._loops:
                self.pause()
                self.ended.emit()
                return
            if not self._queue:
                self._start_clock()
        self._work()

    def _show(self, number: int, image: QImage) -> None:
        self.position = number
        self.view.show_image(image)
        fps = self._file.facts.fps if self._file is not None else 30.0
        text = self.tr("{number} / {count}   {seconds:.2f} s").format(
            number=number + 1, count=self.count, seconds=number / fps
        )
        self.transport.set_position(number, text)
        self.position_changed.emit(number)

    # ------------------------------------------------------------------ buttons

    def _ask_where_to_save(self) -> None:
        if self.path is None:
            return
        folder = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.PicturesLocation)
        title, kinds = self.tr("Save image"), self.tr("Images (*.png *.jpg)")
        suggested = f"{self.path.stem}-{self.position + 1}.png"
        ask_for_file(self, title, kinds, self.save_image, save_as=suggested, folder=folder)

    def _open_outside(self) -> None:
        if self.path is not None and not QDesktopServices.openUrl(QUrl.fromLocalFile(str(self.path))):
            self.banner.set_message(
                self.tr("This desktop has no program for it. The file is {}").format(self.path), "warning"
            )


def _decode(file: VideoFile, numbers: list[int]) -> list[tuple[int, QImage | None]]:
    """Decode and convert frames, in the background."""
    found: list[tuple[int, QImage | None]] = []
    for number in numbers:
        image = file.read(number)
        found.append((number, None if image is None else to_image(image)))
        if image is None:
            break
    return found


def to_image(image: Image) -> QImage:
    """Return an image with its own copy of the pixels: numpy may free the array."""
    height, width, _ = image.shape
    return QImage(image.data, width, height, 3 * width, QImage.Format.Format_RGB888).copy()
