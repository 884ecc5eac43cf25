"""Plays one video file. Pictures are decoded by the background threads, a few ahead of what is shown; the window's
thread only draws them.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

from PySide6.QtCore import QStandardPaths, Qt, QTimer, QUrl, Signal
from PySide6.QtGui import QDesktopServices, QImage
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QLabel, QPushButton, QToolButton, QVBoxLayout, QWidget

from gym_gui.ui.background import Background
from gym_gui.ui.replay.video_file import Picture, VideoFacts, VideoFile, VideoProblem
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.live_picture import LivePicture, Zoom
from gym_gui.ui.widgets.transport_bar import TransportBar

QUEUE_BYTES = 48 << 20
_LONGEST_QUEUE, _SHORTEST_QUEUE = 48, 2
_AT_ONCE = 8
"""Pictures of one turn in the background: few enough that a click is answered soon"""
_MOST_PER_SECOND = 60
SHARP_BELOW = 128
"""Rows or columns: of smaller pictures every pixel is shown as a square"""


class VideoPlayer(QWidget):
    """Play and pause, picture by picture, seek, speed, loop; saves a picture, opens the file elsewhere."""

    position_changed = Signal(int)
    loaded = Signal(object)  # VideoFacts
    refused = Signal(str)
    ended = Signal()

    def __init__(self, background: Background, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("video_player")
        self._background = background
        self._path: Path | None = None
        self._file: VideoFile | None = None
        self._generation = 0
        """Counts the files that were loaded: what the background brings for an older one is passed over"""
        self._is_busy = False
        self._queue: deque[tuple[int, QImage]] = deque()
        self._ahead = 0
        self._wanted: int | None = None
        self._count = 0
        self._position = 0
        self._shown_since = 0
        self._since = 0.0
        self._speed, self._loops = 1.0, False
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._tick)
        self._build()
        self.load(None)

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self.view = LivePicture()
        self.view.setObjectName("video_picture")
        self.view.setAccessibleName(self.tr("Picture of the video"))
        self.transport = TransportBar(self.tr("picture"), parent=self)
        self.transport.play_wanted.connect(lambda wanted: self.play() if wanted else self.pause())
        self.transport.step_wanted.connect(self.step)
        self.transport.seek_wanted.connect(self.seek)
        self.transport.speed_changed.connect(self.set_speed)
        self.transport.loop_changed.connect(self.set_loop)
        self.fit_button = QToolButton()
        self.fit_button.setObjectName("fit_button")
        self.fit_button.setText(self.tr("1:1"))
        self.fit_button.setCheckable(True)
        self.fit_button.setAccessibleName(self.tr("Pixel for pixel"))
        self.fit_button.setToolTip(self.tr("Pixel for pixel; otherwise as large as there is room. Drag to move it."))
        self.fit_button.toggled.connect(lambda exact: self.view.set_zoom(Zoom.ACTUAL if exact else Zoom.FIT))
        self.transport.add_widget(self.fit_button)
        self.facts_label = QLabel()
        self.facts_label.setObjectName("video_facts")
        self.facts_label.setProperty("role", "caption")
        self.facts_label.setWordWrap(True)
        self.facts_label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.save_button = QPushButton(self.tr("Save picture…"))
        self.save_button.setObjectName("save_picture")
        self.save_button.setAccessibleName(self.tr("Save the picture that is shown"))
        self.save_button.clicked.connect(self._ask_where_to_save)
        self.outside_button = QPushButton(self.tr("Open outside"))
        self.outside_button.setObjectName("open_outside")
        self.outside_button.setAccessibleName(self.tr("Open the file with the program of this desktop"))
        self.outside_button.clicked.connect(self._open_outside)
        below = QHBoxLayout()
        below.addWidget(self.facts_label, 1)
        below.addWidget(self.save_button)
        below.addWidget(self.outside_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(8, 0, 0, 0)
        layout.setSpacing(6)
        layout.addWidget(self.banner)
        layout.addWidget(self.view, 1)
        layout.addWidget(self.transport)
        layout.addLayout(below)

    # ------------------------------------------------------------------ what its owner uses

    @property
    def path(self) -> Path | None:
        return self._path

    @property
    def position(self) -> int:
        """The number of the picture that is shown, from 0."""
        return self._position

    @property
    def count(self) -> int:
        """How many pictures can be shown."""
        return self._count

    @property
    def is_playing(self) -> bool:
        return self._timer.isActive()

    @property
    def waiting(self) -> int:
        """Decoded, and not shown yet."""
        return len(self._queue)

    def load(self, path: Path | None, *, play: bool = False) -> None:
        """Another file, or none."""
        self.pause()
        self._generation += 1
        self._let_go_of_file()
        self._path, self._count, self._position, self._wanted = path, 0, 0, None
        self.is_refused = False
        self._is_busy = False
        self._queue.clear()
        self.banner.clear()
        self.facts_label.clear()
        self.transport.set_range(0)
        self.transport.set_position(0, "")
        self.save_button.setEnabled(False)
        self.outside_button.setEnabled(path is not None)
        self.view.show_words(self.tr("Opening…") if path is not None else self.tr("Choose a video to play it here."))
        if path is None:
            return
        generation = self._generation
        self._background.run(
            lambda: VideoFile(path),
            owner=self,
            done=lambda file: self._take_file(generation, file, play),
            failed=lambda error: self._refuse(generation, error),
        )

    def play(self) -> None:
        """Go on; at the end, from the beginning."""
        if not self._count or self.is_playing:
            return
        if self._position >= self._count - 1:
            self.seek(0)
        self._start_clock()
        facts = self._file.facts if self._file is not None else None
        per_second = min(_MOST_PER_SECOND, (facts.fps if facts else 30.0) * self._speed)
        self._timer.start(max(1, round(1000 / per_second)))
        self.transport.set_playing(True)
        self._work()

    def pause(self) -> None:
        self._timer.stop()
        self.transport.set_playing(False)

    def step(self, by: int) -> None:
        """So many pictures on or back; it stands still there."""
        self.pause()
        if by == 1 and self._queue and self._wanted is None and self._queue[0][0] == self._position + 1:
            self._show(*self._queue.popleft())
            return
        self.seek(self._position + by)

    def seek(self, number: int) -> None:
        """Show this picture as soon as it is decoded; playing goes on from there."""
        if not self._count:
            return
        self._wanted = max(0, min(self._count - 1, number))
        self._queue.clear()
        self._ahead = self._wanted + 1
        self._work()

    def set_speed(self, speed: float) -> None:
        self._speed = speed
        if self.is_playing:
            self.pause()
            self.play()

    def set_loop(self, loops: bool) -> None:
        self._loops = loops

    def save_picture(self, path: Path) -> None:
        """Write what is shown as a PNG (or what the name says)."""
        image = self.view.image
        if image.isNull():
            return

        def say(saved: bool) -> None:
            if saved:
                self.banner.say(self.tr("Saved {}").format(path))
            else:
                self.banner.say(self.tr("{} could not be written; choose another folder.").format(path), "bad")

        self._background.run(lambda: image.save(str(path)), owner=self, done=say)

    # ------------------------------------------------------------------ a file comes

    def _take_file(self, generation: int, file: VideoFile, play: bool) -> None:
        if generation != self._generation:
            self._background.run(file.close, owner=self)
            return
        self._file = file
        facts = file.facts
        self._set_count(facts.pictures)
        # A small picture enlarged keeps its pixels sharp; a large one made smaller must not lose its thin lines.
        self.view.set_smooth(min(facts.width, facts.height) >= SHARP_BELOW)
        self.facts_label.setText(self._in_words(facts))
        self.save_button.setEnabled(True)
        if facts.is_truncated:
            self.banner.say(
                self.tr("This video breaks off: {have} of {promised} pictures can be shown.").format(
                    have=facts.pictures, promised=facts.promised
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
            self.view.show_words(self.tr("This file cannot be played."))
            self.banner.say(str(error), "bad", action=self.tr("Try again"), on_action=lambda: self.load(self._path))
            self.refused.emit(str(error))

    def _in_words(self, facts: VideoFacts) -> str:
        return self.tr("{width} × {height} · {fps:g} pictures/s · {duration:.1f} s · {codec}").format(
            width=facts.width, height=facts.height, fps=round(facts.fps, 2), duration=facts.duration_s,
            codec=facts.codec,
        )  # fmt: skip

    def _set_count(self, count: int) -> None:
        self._count = count
        self.transport.set_range(count)

    def _let_go_of_file(self) -> None:
        # A turn that is still decoding holds it too: the file is closed by whoever is last.
        if self._file is not None and not self._is_busy:
            self._background.run(self._file.close, owner=self)
        self._file = None

    # ------------------------------------------------------------------ decoding, a turn at a time

    @property
    def _queue_length(self) -> int:
        if self._file is None:
            return _SHORTEST_QUEUE
        facts = self._file.facts
        fitting = QUEUE_BYTES // max(1, facts.width * facts.height * 3)
        return max(_SHORTEST_QUEUE, min(_LONGEST_QUEUE, fitting))

    def _work(self) -> None:
        """Ask the background for what is missing, unless it is at work: the file is one thread's at a time."""
        file = self._file
        if file is None or self._is_busy:
            return
        numbers = [self._wanted] if self._wanted is not None else self._next_numbers()
        if not numbers:
            return
        self._is_busy = True
        generation = self._generation
        self._background.run(
            lambda: _decode(file, numbers), owner=self, done=lambda pictures: self._take(generation, file, pictures)
        )

    def _next_numbers(self) -> list[int]:
        room = self._queue_length - len(self._queue)
        # Half of the queue is refilled at once; turns of one picture each would cost more than the pictures.
        if not self.is_playing or room < min(_AT_ONCE, self._queue_length // 2 or 1):
            return []
        numbers = []
        for _ in range(min(room, _AT_ONCE)):
            if self._ahead >= self._count:
                if not self._loops:
                    break
                self._ahead = 0
            numbers.append(self._ahead)
            self._ahead += 1
        return numbers

    def _take(self, generation: int, file: VideoFile, pictures: list[tuple[int, QImage | None]]) -> None:
        if generation != self._generation:
            self._background.run(file.close, owner=self)
            return
        self._is_busy = False
        for number, image in pictures:
            if image is None:
                self._note_break(number)
                break
            if self._wanted is not None:
                if number == self._wanted:
                    self._wanted = None
                    self._show(number, image)
                    self._start_clock()
                break  # what came from before the seek is of no use
            self._queue.append((number, image))
        self._work()

    def _note_break(self, number: int) -> None:
        """The packets were there, their pictures are not: it ends here."""
        self._queue = deque(entry for entry in self._queue if entry[0] < number)
        self._wanted = None
        promised = self._file.facts.promised if self._file is not None else number
        self._set_count(number)
        self._ahead = min(self._ahead, number)
        self.banner.say(
            self.tr("This video breaks off: {have} of {promised} pictures can be shown.").format(
                have=number, promised=promised
            ),
            "warning",
        )
        if number and self._position >= number:
            self.seek(number - 1)
        elif not number:
            self.view.show_words(self.tr("No picture of this video can be decoded."))

    # ------------------------------------------------------------------ showing

    def _start_clock(self) -> None:
        self._since, self._shown_since = time.monotonic(), 0

    def _tick(self) -> None:
        """Show the newest picture that is due; where nothing is decoded yet, time stands still until it is."""
        if self._wanted is not None or self._file is None:
            return
        due = int((time.monotonic() - self._since) * self._file.facts.fps * self._speed) - self._shown_since
        newest = None
        for _ in range(min(due, len(self._queue))):
            newest = self._queue.popleft()
            self._shown_since += 1
        if newest is not None:
            self._show(*newest)
        elif due > 0:
            if self._position >= self._count - 1 and not self._loops:
                self.pause()
                self.ended.emit()
                return
            if not self._queue:
                self._start_clock()
        self._work()

    def _show(self, number: int, image: QImage) -> None:
        self._position = number
        self.view.show_image(image)
        fps = self._file.facts.fps if self._file is not None else 30.0
        words = self.tr("{number} / {count}   {seconds:.2f} s").format(
            number=number + 1, count=self._count, seconds=number / fps
        )
        self.transport.set_position(number, words)
        self.position_changed.emit(number)

    # ------------------------------------------------------------------ buttons

    def _ask_where_to_save(self) -> None:
        if self._path is None:
            return
        folder = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.PicturesLocation)
        dialog = QFileDialog(self, self.tr("Save picture"), folder, self.tr("Pictures (*.png *.jpg)"))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix("png")
        dialog.selectFile(f"{self._path.stem}-{self._position + 1}.png")
        dialog.fileSelected.connect(lambda name: self.save_picture(Path(name)))
        dialog.open()

    def _open_outside(self) -> None:
        if self._path is not None and not QDesktopServices.openUrl(QUrl.fromLocalFile(str(self._path))):
            self.banner.say(self.tr("This desktop has no program for it. The file is {}").format(self._path), "warning")


def _decode(file: VideoFile, numbers: list[int]) -> list[tuple[int, QImage | None]]:
    """In the background: decode, and turn into what is drawn."""
    found: list[tuple[int, QImage | None]] = []
    for number in numbers:
        picture = file.read(number)
        found.append((number, None if picture is None else to_image(picture)))
        if picture is None:
            break
    return found


def to_image(picture: Picture) -> QImage:
    """Its own copy of the pixels: numpy may free the array at any time."""
    height, width, _ = picture.shape
    return QImage(picture.data, width, height, 3 * width, QImage.Format.Format_RGB888).copy()
