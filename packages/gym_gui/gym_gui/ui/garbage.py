"""Garbage is collected in the window's thread, and in no other.

Python frees cycles in whichever thread happens to allocate next. A widget that is part of one would be destroyed in a
thread that reads a stream, and Qt takes that badly: "Timers cannot be started from another thread", sometimes a crash.
"""

from __future__ import annotations

import gc

from PySide6.QtCore import QObject, QTimer

_EVERY_MS = 1_000
_MIDDLE_EVERY, _ALL_EVERY = 10, 60
"""Of so many looks one collects what has lived a little longer, or everything"""


class GarbageCollection(QObject):
    """Takes the place of Python's own timing from `start` to `stop`."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._looks = 0
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.look)

    def start(self) -> None:
        gc.disable()
        # Modules and their classes never become garbage; without them a full collection takes a few milliseconds.
        gc.freeze()
        self._timer.start(_EVERY_MS)

    def stop(self) -> None:
        self._timer.stop()
        gc.unfreeze()
        gc.enable()

    def look(self) -> None:
        """Collect what is due."""
        self._looks += 1
        if self._looks % _ALL_EVERY == 0:
            gc.collect()
        elif self._looks % _MIDDLE_EVERY == 0:
            gc.collect(1)
        elif gc.get_count()[0] > gc.get_threshold()[0]:
            gc.collect(0)
