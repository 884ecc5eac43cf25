"""Sends the frames that a worker publishes on a node, while there is a viewer."""

from __future__ import annotations

import threading
import time
import zlib
from contextlib import suppress

from mosaic_wire.frames import Frame, FrameReader, NotAFrameFile, fastlane_path
from mosaic_wire.node.calls import DaemonAway, DaemonCalls, Refused
from mosaic_wire.node.uploads import FileUploads
from mosaic_wire.proto import trainer_pb2 as messages

_IDLE_S = 0.5


class FrameUploads:
    """A thread that reads the worker's frames only while the daemon has a viewer."""

    def __init__(self, calls: DaemonCalls, run_id: str, uploads: FileUploads) -> None:
        self._calls, self._run_id, self._uploads = calls, run_id, uploads
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
                began, wait_s = time.monotonic(), self._uploads.frame_interval_s or _IDLE_S
                # A frame is not worth a second try; the uploads find out why it failed.
                with suppress(DaemonAway, Refused, NotAFrameFile):
                    if self._uploads.frame_interval_s:
                        self._send_newest(reader)
                wait_s = max(0.0, wait_s - (time.monotonic() - began))
        finally:
            reader.close()

    def _send_newest(self, reader: FrameReader) -> None:
        """Send the newest frame, or the worker's message."""
        frame, notice = reader.read(), reader.notice()
        if frame is not None or notice != self._notice:
            message = messages.RunFrame(notice=notice) if frame is None else _message(frame)
            self._uploads.frame_interval_s = self._calls.send_frame(message)
            self._notice = notice


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
