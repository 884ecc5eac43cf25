"""A log that is being read: a file of this machine that is counted and searched in threads, or what a daemon sends."""

from __future__ import annotations

import threading
from pathlib import Path

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, QTimer, Signal

from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, Subscription
from gym_gui.ui.presenters.log_index import Finder, LineIndex, LogLevel, LogLine
from gym_gui.ui.presenters.log_sources import MEMORY_BYTES, FirstLook, ReceivedLines, open_log


class FileFeed(QObject):
    """One file. Everything that reads happens in a thread, one stretch after the other."""

    opened = Signal()
    grew = Signal(bool)  # more is counted or found; True: the file was cut and begins anew
    failed = Signal(str)

    def __init__(self, background: Background, path: Path, parent: QObject) -> None:
        super().__init__(parent)
        self.path = path
        self.index: LineIndex | None = None
        self.is_counted = False
        self.tail: tuple[LogLine, ...] = ()
        """The last lines, while the lines before them are not counted"""
        self.finder: Finder | None = None
        self.is_found = True
        """The search has reached the end"""
        self._background = background
        self._is_busy = False
        self._stop_search = threading.Event()
        self._is_closed = False

    def open(self) -> None:
        """Have a first look; `opened` or `failed` follows."""
        if not self._is_busy:
            self._is_busy = True
            self._background.run(
                lambda: open_log(self.path), owner=self, done=self._take_first_look, failed=self._complain
            )

    def close(self) -> None:
        """Nothing is told any more."""
        self._is_closed = True
        self._stop_search.set()
        self.deleteLater()

    def look_for_more(self) -> None:
        """Count and search what was added since; of a long file, the next stretch."""
        index, finder, stop = self.index, self.finder, self._stop_search
        if self._is_busy or self._is_closed or index is None:
            return
        generation, before = index.generation, index.lines

        def read_on() -> tuple[bool, bool]:
            is_counted = index.extend()
            if finder is None or index.generation != generation:
                return is_counted, True
            return is_counted, finder.extend(stopped=stop.is_set)

        self._is_busy = True
        self._background.run(
            read_on, owner=self, done=lambda both: self._take_more(generation, before, finder, both),
            failed=self._complain,
        )  # fmt: skip

    def search(self, level: LogLevel, text: str) -> None:
        """Look for lines from the beginning; an empty search ends the one before."""
        self._stop_search.set()
        self._stop_search = threading.Event()
        wants = bool(text) or level is not LogLevel.ALL
        self.finder = Finder(self.path, level, text) if wants else None
        self.is_found = not wants
        if wants:
            self.look_for_more()

    def _take_first_look(self, look: FirstLook) -> None:
        self._is_busy = False
        if self._is_closed:
            return
        self.index, self.is_counted, self.tail = look.index, look.is_counted, look.tail
        self.opened.emit()
        if not self.is_counted:
            self.look_for_more()

    def _take_more(self, generation: int, before: int, finder: Finder | None, both: tuple[bool, bool]) -> None:
        self._is_busy = False
        if self._is_closed or self.index is None:
            return
        self.is_counted = both[0]
        self.is_found = self.finder is None or (both[1] and finder is self.finder)
        was_cut = self.index.generation != generation
        if was_cut and self.finder is not None:
            self.is_found = False
        self.grew.emit(was_cut)
        if not (self.is_counted and self.is_found):
            QTimer.singleShot(0, self, self.look_for_more)

    def _complain(self, error: Exception) -> None:
        self._is_busy = False
        if not isinstance(error, OSError):
            raise error
        if not self._is_closed:
            self.failed.emit(error.strerror or str(error))


class RemoteFeed(QObject):
    """The end of a log that lies on the daemon's machine, and what is added to it."""

    grew = Signal()
    ended = Signal(str)

    def __init__(self, link: DaemonLink, run: pb.Run, key: str, parent: QObject) -> None:
        super().__init__(parent)
        self.received = ReceivedLines()
        run_id, follow = run.run_id, run.status != "TERM"
        self._stream: Subscription[pb.LogChunk] = link.stream(
            lambda client: client.logs(run_id, key, follow=follow, tail_bytes=MEMORY_BYTES),
            self._take,
            owner=self,
            ended=self.ended.emit,
        )

    def close(self) -> None:
        self._stream.cancel()
        self.deleteLater()

    def _take(self, chunks: list[pb.LogChunk]) -> None:
        for chunk in chunks:
            self.received.add(chunk)
        self.grew.emit()
