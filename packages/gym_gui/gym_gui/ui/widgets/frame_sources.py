"""Where the pictures of a run come from: its shared memory on this machine, or a stream from another.

Both emit `shot` for each new picture and `quiet` when there is none, with the writer's words. A run draws only while
somebody looks: a source looks from `start` to `stop`, and at no other time.
"""

from __future__ import annotations

from dataclasses import dataclass

from mosaic_wire.frames import FrameReader, NotAFrameFile, fastlane_path
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, Qt, QTimer, Signal
from PySide6.QtGui import QImage

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.daemon_link import DaemonLink, Subscription
from gym_gui.ui.decoded_stream import DecodedStream

FRAMES_PER_S = 30
_LOOK_MS, _IDLE_MS = 16, 250
"""How often to look for a new picture; and while no run draws"""
_SAY_LOOKS = 30
"""After so many looks in vain the writer's words are read"""


@dataclass(frozen=True)
class Shot:
    """One picture with the figures beside it."""

    number: int
    image: QImage
    pixels: bytes | None
    """The memory the image lies in; None: its own"""
    last_reward: float
    rolling_return: float
    step_rate_hz: float


class FrameSource(QObject):
    """Looks at one run."""

    shot = Signal(object)  # Shot
    quiet = Signal(str)  # nothing new; why, when the writer says
    over = Signal()  # nothing more will come from this source

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Stop looking; the run stops drawing a moment later."""
        raise NotImplementedError


class SharedMemoryFrames(FrameSource):
    """Reads the file of a run on this machine, as often as a screen shows pictures."""

    def __init__(self, run_id: str, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._reader = FrameReader(fastlane_path(run_id), interval_s=1 / FRAMES_PER_S)
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self.look)
        self._in_vain = 0

    def start(self) -> None:
        self._timer.start(_LOOK_MS)
        self.look()

    def stop(self) -> None:
        self._timer.stop()
        self._reader.close()

    def look(self) -> None:
        """Show the newest picture if it is new."""
        try:
            frame = self._reader.read()
            if frame is None:
                self._in_vain += 1
                if not self._reader.is_open or self._in_vain % _SAY_LOOKS == 0:
                    self.quiet.emit(self._reader.notice())
                    self._pace(_LOOK_MS if self._reader.is_open else _IDLE_MS)
                return
        except NotAFrameFile as error:
            self.quiet.emit(str(error))
            self._pace(_IDLE_MS)
            return
        self._in_vain = 0
        self._pace(_LOOK_MS)
        image = QImage(frame.pixels, frame.width, frame.height, 3 * frame.width, QImage.Format.Format_RGB888)
        self.shot.emit(
            Shot(frame.number, image, frame.pixels, frame.last_reward, frame.rolling_return, frame.step_rate_hz)
        )

    def _pace(self, every_ms: int) -> None:
        if self._timer.isActive() and self._timer.interval() != every_ms:
            self._timer.setInterval(every_ms)


class StreamedFrames(FrameSource):
    """Asks the daemon for pictures; they are unpacked in the thread that reads the stream."""

    def __init__(self, link: DaemonLink, run_id: str, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._link, self._run_id = link, run_id
        self._subscription: Subscription[pb.RunFrame | Shot] | None = None

    def start(self) -> None:
        def pictures(client: TrainerClient) -> DecodedStream[pb.RunFrame | Shot]:
            return DecodedStream(client.frames(self._run_id, max_fps=FRAMES_PER_S, encoding="jpeg"), _unpacked)

        # Only the newest is shown: what waits behind it is old already.
        self._subscription = self._link.stream(
            pictures, self._show, owner=self, ended=self._ended, every_ms=1000 // FRAMES_PER_S, keep_last=1
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

    def _ended(self, words: str) -> None:
        self._subscription = None
        self.quiet.emit(words)
        self.over.emit()


def _unpacked(message: pb.RunFrame) -> pb.RunFrame | Shot:
    if not message.data:
        return message
    image = QImage.fromData(message.data)
    if image.isNull():
        return pb.RunFrame(notice="the picture that came cannot be read")
    return Shot(
        message.number, image, None, message.last_reward, message.rolling_return, message.step_rate_hz
    )  # fmt: skip
