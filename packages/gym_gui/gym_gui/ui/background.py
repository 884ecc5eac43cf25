"""Run slow work in threads and return its result to the window's thread.

    background.run(lambda: read(path), done=self.show, failed=self.complain, owner=self)

`done` and `failed` are called in the window's thread, never after `owner` (the widget that asked) was destroyed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from PySide6.QtCore import QCoreApplication, QObject, Qt, QTimer, Signal, Slot
from shiboken6 import isValid

_PAUSE_MS = 15


def defer(owner: QObject, function: Callable[[], object]) -> None:
    """Call it after the events that are queued now, and after a short delay; never after `owner` was destroyed.

    A timer alone is not enough: if the current work (layout, paint) takes longer than its interval, it fires in the
    same iteration of the event loop.
    """
    QTimer.singleShot(0, owner, lambda: QTimer.singleShot(_PAUSE_MS, owner, lambda: function()))


T = TypeVar("T")
_WORKERS = 6


class _Deliverer(QObject):
    """Lives in the window's thread and calls there what other threads pass to it."""

    handed_in = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        # Always queued: a callback from the window's own thread (a job that finished before `run` returned) must not
        # run inside other code of that thread.
        self.handed_in.connect(self._call, Qt.ConnectionType.QueuedConnection)

    @Slot(object)
    def _call(self, function: Callable[[], None]) -> None:
        function()


class Background:
    """A few threads for slow work, and the way back to the window's thread."""

    def __init__(self) -> None:
        self._deliverer = _Deliverer()
        application = QCoreApplication.instance()
        if application is not None:
            self._deliverer.moveToThread(application.thread())
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
        """Call `function` in a thread, then `done` with its result or `failed` with its error in the window's thread.

        Without `failed` the excepthook shows the error.
        """

        def finish(future: Future[T]) -> None:
            if not self._closed.is_set():
                self.in_window(lambda: _deliver(future, done, failed), owner=owner)

        if not self._closed.is_set():
            self._pool.submit(function).add_done_callback(finish)

    def in_window(self, function: Callable[[], Any], *, owner: QObject) -> None:
        """Call `function` in the window's thread unless `owner` was destroyed; callable from any thread."""
        if not self._closed.is_set() and isValid(self._deliverer):
            self._deliverer.handed_in.emit(lambda: function() if isValid(owner) else None)

    def close(self) -> None:
        """Wait for running jobs; nothing is delivered afterwards."""
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
