"""Threads that access the files of workers: few, separate from all others, and with a deadline.

A disk that does not answer blocks these threads only: calls of clients use other threads, and the daemon exits without
waiting for these.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_DRAIN_S = 5.0
_Call = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[[], Any]]


class FileThreads:
    """A pool of threads: `await threads(call, *args)` as with `asyncio.to_thread`; TimeoutError after the deadline."""

    def __init__(
        self, name: str, threads: int, deadline_s: float, *, what: str = "its files could not be read or written"
    ) -> None:
        self._name, self._count, self._deadline_s, self._what = name, threads, deadline_s, what
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        self._started = self._unfinished = 0

    def start(self) -> None:
        """Start all threads now, so that a process limit reached later does not matter."""
        while self._started < self._count:
            threading.Thread(target=self._serve, name=f"{self._name}-{self._started}", daemon=True).start()
            self._started += 1

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self.start()
        self._unfinished += 1
        self._calls.put((loop, done, partial(call, *args, **kwargs)))
        try:
            async with asyncio.timeout(self._deadline_s):
                return await done
        except TimeoutError:
            if done.cancelled():
                raise TimeoutError(f"{self._what} within {self._deadline_s:g} s") from None
            raise

    def _serve(self) -> None:
        while True:
            loop, done, call = self._calls.get()
            result, problem = None, None
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
                problem = error
            with suppress(RuntimeError):  # the loop is closed: no task waits any more
                loop.call_soon_threadsafe(self._finish, done, result, problem)
            del loop, done, call, result, problem

    def _finish(self, done: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
        self._unfinished -= 1
        if done.done():
            return
        if problem is not None:
            done.set_exception(problem)
        else:
            done.set_result(result)

    async def drain(self) -> None:
        """Wait a few seconds for calls in progress."""
        until = time.monotonic() + _DRAIN_S
        while self._unfinished and time.monotonic() < until:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(0.02)


run_quick_io = FileThreads("quick-io", 8, 60.0)
"""Run a short call: lifecycle files, logs, exit.json"""
run_long_io = FileThreads("long-io", 4, 3600.0)
"""Run a call that may take long: hashing checkpoints, packing, measuring and removing folders"""
