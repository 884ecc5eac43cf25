"""Measures how much CPU the window's thread needs per iteration of its event loop: a long iteration is a frozen window.

    with SlotWatch() as watch:
        …
    print(watch.longest_ms, watch.report())

An iteration is everything between two times the loop polls for events, so it is an upper bound for each slot
in it. It is measured in CPU time of the thread, so a busy machine does not matter. While an iteration is longer than
`limit_ms`, another thread notes where the window's thread is, so that the report names the slot.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from dataclasses import dataclass
from types import FrameType, TracebackType

from PySide6.QtCore import QAbstractEventDispatcher, QObject

LIMIT_MS = 50.0
_SAMPLE_EVERY_S = 0.01


@dataclass
class LongIteration:
    """An iteration that exceeded the limit."""

    cpu_ms: float
    where: str
    """The stack of the window's thread when it was over the limit; empty if it was not sampled in time"""


class SlotWatch(QObject):
    """Watches the event loop of the thread it is made in, from `__enter__` to `__exit__`."""

    def __init__(self, limit_ms: float = LIMIT_MS) -> None:
        super().__init__()
        self._limit_ms = limit_ms
        self.longest_ms = 0.0
        self.iterations = 0
        self.long_iterations: list[LongIteration] = []
        self._began = 0.0
        self._stack = ""
        self._frame: FrameType | None = None
        self._over = threading.Event()

    def __enter__(self) -> SlotWatch:
        dispatcher = QAbstractEventDispatcher.instance()
        assert dispatcher is not None, "there is no event loop in this thread"
        self._dispatcher = dispatcher
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._watched = threading.get_ident()
        self._began = time.thread_time()
        # With GLib events are handled between aboutToBlock and awake, without it between awake and aboutToBlock.
        dispatcher.awake.connect(self._end_iteration)
        dispatcher.aboutToBlock.connect(self._end_iteration)
        self._thread = threading.Thread(target=self._sample, name="slot-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_iteration()
        self._dispatcher.awake.disconnect(self._end_iteration)
        self._dispatcher.aboutToBlock.disconnect(self._end_iteration)
        self._over.set()
        self._thread.join()

    def report(self) -> str:
        """Return the longest iterations, longest first, with the stack of each."""
        worst = sorted(self.long_iterations, key=lambda iteration: -iteration.cpu_ms)[:5]
        lines = [
            f"{each.cpu_ms:.1f} ms of CPU in one iteration\n{each.where or '  (stack not sampled)'}" for each in worst
        ]
        return f"longest of {self.iterations} iterations: {self.longest_ms:.1f} ms\n" + "\n".join(lines)

    def _end_iteration(self) -> None:
        now = time.thread_time()
        cpu_ms = (now - self._began) * 1000
        self.iterations += 1
        self.longest_ms = max(self.longest_ms, cpu_ms)
        if cpu_ms > self._limit_ms:
            self.long_iterations.append(LongIteration(cpu_ms, self._stack))
        self._stack = ""
        self._frame = None
        self._began = now

    def _sample(self) -> None:
        while not self._over.wait(_SAMPLE_EVERY_S):
            spent_ms = (time.clock_gettime(self._clock) - self._began) * 1000
            # The first sample counts: later ones may see the iteration as it ends.
            if spent_ms <= self._limit_ms or self._stack:
                continue
            if (frame := sys._current_frames().get(self._watched)) is not None:
                # `_end_iteration` lets go of it: what a finished function held must not be freed in this thread.
                self._frame = frame
                del frame
                self._stack = "".join(traceback.format_stack(self._frame)[-6:])
