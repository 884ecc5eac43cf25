"""The daemon's side of a run on a node: a machine without the home's disk, where `mosaic_wire.node` runs the worker."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable
from contextlib import suppress

from mosaic_wire.frames import LARGEST_SIDE, FrameWriter, fastlane_path
from mosaic_wire.node import INSTANCE_PREFIX
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.config.settings import Settings
from gym_gui.services.trainer.errors import NotPossibleNow
from gym_gui.services.trainer.file_threads import run_long_io, run_quick_io
from gym_gui.services.trainer.node_files import NodeFiles

_FASTEST_S = 0.05
"""The shortest interval between two frames of a node"""
_LARGE_BYTES = 16 << 20
_MAX_FRAME_BYTES = 3 * 2048**2
EVENTS = ("run/lifecycle.jsonl", "run/exit.json")
"""Files whose arrival the supervisor has to know of"""


def is_on_node(worker_instance: str) -> bool:
    """Return whether a run's worker was started by a node process."""
    return worker_instance.startswith(INSTANCE_PREFIX)


class NodeSide:
    """What arrives from the node of one run; `close` when the run has no process any more."""

    def __init__(self, home: Home, run_id: str, settings: Settings) -> None:
        self._files = NodeFiles(
            home, run_id, max_bytes=settings.nodes.run_gb * 2**30, min_free_bytes=settings.min_free_disk_mb << 20
        )
        # For viewers on this machine: they poll it as they would poll the worker's own.
        self._frames = FrameWriter(fastlane_path(run_id))
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def receive(self, pieces: Iterable[pb.FilePiece], removed: Iterable[str]) -> list[pb.FileState]:
        """Write pieces of files; return what is here now of each."""
        async with self._lock:
            states = []
            for piece in pieces:
                # The hash of a large file is computed where it blocks no other run.
                threads = run_long_io if piece.size > _LARGE_BYTES else run_quick_io
                states.append(await threads(self._put, piece))
            for path in removed:
                with suppress(NotPossibleNow):  # one that was refused before
                    await run_quick_io(self._files.remove, path)
            return states

    def _put(self, piece: pb.FilePiece) -> pb.FileState:
        try:
            return pb.FileState(path=piece.path, size=self._files.put(piece))
        except NotPossibleNow as error:
            return pb.FileState(path=piece.path, problem=str(error))

    @property
    def frame_interval_s(self) -> float:
        """Return the interval between frames that a viewer requested; 0 without a viewer."""
        return max(_FASTEST_S, self._frames.requested_interval_s) if self._frames.is_watched else 0.0

    async def show(self, frame: pb.RunFrame) -> None:
        """Publish a frame of the node to viewers here."""
        async with self._lock:
            if not self._is_closed:
                await run_quick_io(self._show, frame)

    def _show(self, frame: pb.RunFrame) -> None:
        if frame.data:
            size = 3 * frame.width * frame.height
            if not (0 < frame.width <= LARGEST_SIDE and 0 < frame.height <= LARGEST_SIDE and size <= _MAX_FRAME_BYTES):
                raise NotPossibleNow(f"a frame of {frame.width} × {frame.height} is refused: it is too large")
            try:
                pixels = zlib.decompressobj().decompress(frame.data, size)
            except zlib.error:
                pixels = b""
            if frame.encoding != "zlib" or len(pixels) != size:
                raise NotPossibleNow(f"a frame of {frame.width} × {frame.height} is refused: it cannot be decoded")
            self._frames.set_statistics(
                last_reward=frame.last_reward, rolling_return=frame.rolling_return, step_rate_hz=frame.step_rate_hz
            )
            self._frames.publish(pixels, frame.width, frame.height)
        elif frame.notice:
            self._frames.notice(frame.notice)

    async def close(self) -> None:
        """Remove the frames' file."""
        async with self._lock:
            self._is_closed = True
            self._frames.close()
