"""Sends the frames that a worker publishes on a node, while there is a viewer."""

from __future__ import annotations

import threading
import time
import zlib
from typing import TYPE_CHECKING

from mosaic_wire.errors import SessionError
from mosaic_wire.frames import Frame, FrameReader, NotAFrameFile, fastlane_path
from mosaic_wire.node.uploads import DaemonAway, call
from mosaic_wire.proto import trainer_pb2 as messages

if TYPE_CHECKING:
    from mosaic_wire.node.uploads import FileUploads
    from mosaic_wire.proto.trainer_pb2_grpc import TrainerServiceStub

_IDLE_S = 0.5
_CALL_S = 10.0


class FrameUploads:
    """A thread that reads the worker's frames only while the daemon has a viewer."""

    def __init__(
        self,
        stub: TrainerServiceStub,
        metadata: tuple[tuple[str, str], ...],
        run_id: str,
        instance: str,
        uploads: FileUploads,
        bytes_per_s: int,
    ) -> None:
        self._stub, self._metadata, self._run_id, self._instance = stub, metadata, run_id, instance
        self._uploads, self._bytes_per_s = uploads, bytes_per_s
        self._closing = threading.Event()
        self._notice = ""
        self._thread = threading.Thread(target=self._run, name="mosaic-frames", daemon=True)

    def start(self) -> None:
        """Begin to wait for viewers."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        reader, wait_s = FrameReader(fastlane_path(self._run_id)), 0.0
        try:
            while not self._closing.wait(wait_s):
                wait_s = self._uploads.frame_interval_s or _IDLE_S
                if self._uploads.frame_interval_s:
                    began = time.monotonic()
                    sent = self._send_newest(reader)
                    taken = time.monotonic() - began
                    slowest = sent / self._bytes_per_s if self._bytes_per_s else 0.0
                    wait_s = max(wait_s, slowest) - min(taken, wait_s)
        finally:
            reader.close()

    def _send_newest(self, reader: FrameReader) -> int:
        """Send the newest frame, or the worker's message; return the bytes."""
        try:
            frame = reader.read()
        except NotAFrameFile:
            return 0
        notice = reader.notice()
        if frame is None and notice == self._notice:
            return 0
        message = messages.RunFrame(notice=notice) if frame is None else _message(frame)
        request = messages.SendRunFrameRequest(run_id=self._run_id, instance=self._instance, frame=message)
        try:
            answer = call(self._stub.SendRunFrame, request, self._metadata, timeout_s=_CALL_S)
        except (DaemonAway, SessionError):
            return 0  # a frame is not worth a second try; the uploads find out why
        self._uploads.frame_interval_s = answer.frame_interval_s
        self._notice = notice
        return len(message.data)


def _message(frame: Frame) -> messages.RunFrame:
    return messages.RunFrame(
        number=frame.number,
        width=frame.width,
        height=frame.height,
        encoding="zlib",
        data=zlib.compress(frame.pixels, 1),
        last_reward=frame.last_reward,
        rolling_return=frame.rolling_return,
        step_rate_hz=frame.step_rate_hz,
    )
