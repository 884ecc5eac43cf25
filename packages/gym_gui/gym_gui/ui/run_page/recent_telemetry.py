"""The newest steps and episodes of a live worker, shared between the reading thread and the window. No Qt.

More steps arrive than can be shown. The reading thread keeps the newest ones and counts; the window drains them a few
times a second. Sequence numbers have no gaps, so skipped messages are counted exactly, no matter whether the daemon,
the connection or this window skipped them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from mosaic_wire.proto import trainer_pb2 as pb
from numpy.typing import NDArray

CELLS = (
    (38, 44, 54),
    (120, 128, 140),
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (240, 228, 66),
    (122, 79, 191),
    (228, 232, 238),
    (150, 75, 0),
)
"""Colors of the kinds of cells (Okabe and Ito) on a dark background"""


def grid_image(grid: Sequence[Sequence[str]]) -> NDArray[np.uint8] | None:
    """Return an image with one pixel per cell; None when a cell holds no number.

    Of a cell with several numbers the first one counts: in MiniGrid it is the kind of object, before color and state.
    Integers get a color each, others a shade of gray between the minimum and the maximum.
    """
    try:
        numbers = np.array([[float(cell.partition(",")[0]) for cell in row] for row in grid], np.float64)
    except ValueError:  # strings, or rows of different lengths
        return None
    if numbers.ndim != 2 or not numbers.size:
        return None
    numbers = np.nan_to_num(numbers)
    if not np.any(numbers % 1) and np.abs(numbers).max() < 2**31:
        colors = np.array(CELLS, np.uint8)
        return np.ascontiguousarray(colors[numbers.astype(np.int64) % len(colors)])
    low, reach = float(numbers.min()), float(np.ptp(numbers)) or 1.0
    gray = ((numbers - low) / reach * 255).astype(np.uint8)
    return np.ascontiguousarray(np.repeat(gray[:, :, None], 3, axis=2))


STARVED, RESUMED = "STARVED", "RESUMED"


class Numbered(Protocol):
    @property
    def seq(self) -> int: ...


M = TypeVar("M", bound=Numbered)


@dataclass(frozen=True)
class NewMessages(Generic[M]):
    """Messages since the last `drain`, oldest first, and the state of the stream."""

    fresh: list[M]
    last_seq: int
    received: int
    """All messages received, shown or not"""
    passed_over: int
    """Messages since the first one that were never shown"""
    left_out_by_daemon: int
    """Messages among them that the daemon did not send because this window was too slow"""
    control: str
    """The last flow control message of the daemon: STARVED, RESUMED or empty"""


class RecentTelemetry(Generic[M]):
    """Keep the newest `keep` messages; call `ingest` in any thread and `drain` in the window's."""

    def __init__(self, keep: int) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[M] = deque(maxlen=keep)
        self._first_seq = self._last_seq = self._shown = self._received = self._left_out = 0
        self._control = ""

    @property
    def last_seq(self) -> int:
        """Return the newest sequence number; an interrupted stream continues after it."""
        with self._lock:
            return self._last_seq

    def ingest(self, messages: Iterable[M], skipped: int, control: str) -> None:
        with self._lock:
            for message in messages:
                if message.seq > self._last_seq:
                    self._first_seq = self._first_seq or message.seq
                    self._last_seq = message.seq
                    self._waiting.append(message)
                    self._received += 1
            self._left_out += skipped
            self._control = control or self._control

    def drain(self) -> NewMessages[M]:
        """Return the messages to show now, and forget them."""
        with self._lock:
            fresh = list(self._waiting)
            self._waiting.clear()
            self._shown += len(fresh)
            events_arrived = self._last_seq - self._first_seq + 1 if self._first_seq else 0
            return NewMessages(
                fresh, self._last_seq, self._received, events_arrived - self._shown, self._left_out, self._control
            )


def ingest_steps(recent: RecentTelemetry[pb.RunStep], batch: pb.RunSteps) -> None:
    recent.ingest(batch.steps, batch.skipped, batch.control)


def ingest_episodes(recent: RecentTelemetry[pb.RunEpisode], batch: pb.RunEpisodes) -> None:
    recent.ingest(batch.episodes, batch.skipped, batch.control)
