"""Work that may take longer than a blink, off the window's thread; what comes of it returns to the window's thread.

    background.run(lambda: read(path), done=self.show, failed=self.complain, owner=self)

`done` and `failed` are called in the thread of the window, never after `owner` (the widget that asked) is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from PySide6.QtCore import QCoreApplication, QObject, Qt, Signal, Slot
from shiboken6 import isValid

T = TypeVar("T")
_WORKERS = 6


class _Doorman(QObject):
    """Lives in the window's thread and calls there what other threads hand in."""

    handed_in = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        # Always queued: what the window's own thread hands in (a job that was over before `run` returned) must not be
        # called inside whatever that thread is doing.
        self.handed_in.connect(self._call, Qt.ConnectionType.QueuedConnection)

    @Slot(object)
    def _call(self, function: Callable[[], None]) -> None:
        function()


class Background:
    """A few threads for the slow things, and the way back into the window's thread."""

    def __init__(self) -> None:
        self._doorman = _Doorman()
        application = QCoreApplication.instance()
        if application is not None:
            self._doorman.moveToThread(application.thread())
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="mosaic-background")
        self._closed = threading.Event()

    def run(
        self,
        function: Callable[[], T],
        *,
        owner: QObject,
        done: Callable[[T], Any] | None = None,
        failed: Callable[[Exception], Any] | None = None,
    ) -> None:
        """Call `function` in a thread; then `done` with its result or `failed` with its error, in the window's.

        Without `failed` an error goes to the excepthook, which shows it: nothing is swallowed.
        """

        def finish(future: Future[T]) -> None:
            if not self._closed.is_set():
                self.in_window(lambda: _deliver(future, done, failed), owner=owner)

        if not self._closed.is_set():
            self._pool.submit(function).add_done_callback(finish)

    def in_window(self, function: Callable[[], Any], *, owner: QObject) -> None:
        """From any thread: call `function` in the window's thread, unless `owner` is gone by then."""
        if not self._closed.is_set() and isValid(self._doorman):
            self._doorman.handed_in.emit(lambda: function() if isValid(owner) else None)

    def close(self) -> None:
        """Nothing is delivered after this; what has begun is waited for."""
        self._closed.set()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _deliver(future: Future[T], done: Callable[[T], Any] | None, failed: Callable[[Exception], Any] | None) -> None:
    error = future.exception()
    if error is None:
        if done is not None:
            done(future.result())
    elif failed is not None and isinstance(error, Exception):
        failed(error)
    else:
        raise error
