"""The last steps (or episodes) of a live worker, between the thread that reads them and the window that shows them.

At full speed more steps arrive than anybody can read. The reading thread keeps the newest and counts; the window takes
what is there a few times a second. Numbers of a run have no gaps, so what was passed over is counted exactly, wherever
it was left out: in the daemon, on the way, or here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from mosaic_wire.proto import trainer_pb2 as pb

STARVED, RESUMED = "STARVED", "RESUMED"


class Numbered(Protocol):
    @property
    def seq(self) -> int: ...


M = TypeVar("M", bound=Numbered)


@dataclass(frozen=True)
class News(Generic[M]):
    """What came since the last look, oldest first, and how the flow is."""

    fresh: list[M]
    last_seq: int
    received: int
    """All that came, shown or not"""
    passed_over: int
    """Of what happened since the first that came, how many were never shown"""
    left_out_by_daemon: int
    """Of these, how many the daemon did not send because this window was too slow"""
    control: str
    """The daemon's last word about the flow: STARVED, RESUMED or nothing"""


class RecentTelemetry(Generic[M]):
    """Keeps the newest `keep` messages of one look at one run; `take_in` in any thread, `take_out` in the window's."""

    def __init__(self, keep: int) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[M] = deque(maxlen=keep)
        self._first_seq = self._last_seq = self._shown = self._received = self._left_out = 0
        self._control = ""

    @property
    def last_seq(self) -> int:
        """The newest number that came; a stream that was interrupted goes on after it."""
        with self._lock:
            return self._last_seq

    def take_in(self, messages: Iterable[M], skipped: int, control: str) -> None:
        with self._lock:
            for message in messages:
                if message.seq > self._last_seq:
                    self._first_seq = self._first_seq or message.seq
                    self._last_seq = message.seq
                    self._waiting.append(message)
                    self._received += 1
            self._left_out += skipped
            self._control = control or self._control

    def take_out(self) -> News[M]:
        """What is to be shown now."""
        with self._lock:
            fresh = list(self._waiting)
            self._waiting.clear()
            self._shown += len(fresh)
            happened = self._last_seq - self._first_seq + 1 if self._first_seq else 0
            return News(
                fresh, self._last_seq, self._received, happened - self._shown, self._left_out, self._control
            )  # fmt: skip


def take_in_steps(recent: RecentTelemetry[pb.RunStep], parcel: pb.RunSteps) -> None:
    recent.take_in(parcel.steps, parcel.skipped, parcel.control)


def take_in_episodes(recent: RecentTelemetry[pb.RunEpisode], parcel: pb.RunEpisodes) -> None:
    recent.take_in(parcel.episodes, parcel.skipped, parcel.control)
