"""Curves of runs: ingested from workers and served to clients. One thread accesses all files."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, ParamSpec, TypeVar

from mosaic_wire.paths import Home

from gym_gui.services.trainer.limits import StartedThreads
from gym_gui.services.trainer.metrics.series import Points
from gym_gui.services.trainer.metrics.store import CurveValues, Folder, RunMetrics

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

CREDITS = 50_000
"""Points a worker may send at once"""
RETRY_S = 1.0
"""When a throttled worker may retry"""
_MAX_WAITING = 64
"""Batches that may wait for the thread; further ones are refused and stay in the workers' event files"""
_SHOWN_THROTTLED_S = 5.0
_FLUSH_S = 20.0
_FLUSH_POINTS = 50_000
_MAX_OPEN = 64
"""Finished runs whose curves stay in memory"""
_UPDATE_S = 0.1
"""Minimum seconds between two updates of a run for one client"""
WATCHED_S, UNWATCHED_S = 1.0, 2.0
"""Seconds between two reports of a worker, so that with the delay of event files curves are up to three seconds old"""
_MANY_RUNS = 100
"""Up to this many active runs report once a second; if there are more, each reports less often"""
_POLL_S = 0.5


@dataclass(frozen=True)
class Answer:
    """The answer to a worker that published a batch."""

    accepted: bool
    position: Any
    credits: int
    retry_after_s: float = 0.0
    curves: CurveValues | None = None
    """The values of the run's curves now; None when the batch was not accepted"""


@dataclass(frozen=True)
class CurveUpdate:
    """A part of one curve for a client."""

    tag: str
    points: Points
    total: int
    """Points of the curve by now"""
    is_reset: bool
    """Whether points sent before are invalid"""


class MetricHub:
    """The curves of every run of a home."""

    def __init__(self, home: Home, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._home, self._clock = home, clock
        self._thread = StartedThreads(1, "metrics")
        self._runs: dict[str, RunMetrics] = {}
        self._live: set[str] = set()
        self._waiting = 0
        self._throttled_at: dict[str, float] = {}
        self._listeners: dict[str, set[asyncio.Event]] = {}
        self._flush_task: asyncio.Task[None] | None = None

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *args, **kwargs))

    # ------------------------------------------------------------------ workers

    async def publish(self, run_id: str, folders: Sequence[Folder], before: Any, after: Any) -> Answer:
        """Ingest a worker's batch, or refuse it when too many wait; its event files keep the points."""
        if self._waiting >= _MAX_WAITING:
            self._throttled_at[run_id] = self._clock()
            return Answer(accepted=False, position=before, credits=0, retry_after_s=RETRY_S)
        self._waiting += 1
        try:
            answer = await self._in_thread(self._ingest, run_id, folders, before, after)
        finally:
            self._waiting -= 1
        if answer.accepted:
            self._notify(run_id)
            self._plan_flush()
        return answer

    def _ingest(self, run_id: str, folders: Sequence[Folder], before: Any, after: Any) -> Answer:
        self._live.add(run_id)
        metrics = self._open(run_id)
        accepted = metrics.ingest(folders, before, after)
        if not accepted:
            return Answer(accepted, metrics.position, CREDITS)
        curves = metrics.current()
        if metrics.unstored >= _FLUSH_POINTS:
            self._flush(run_id, metrics)
        return Answer(accepted, None, CREDITS, curves=curves)  # the worker knows the position it sent

    def requested_interval_s(self, run_id: str, *, watched: bool) -> float:
        """Return how often the worker of a run should report its curves."""
        if watched or run_id in self._listeners:
            return min(UNWATCHED_S, max(WATCHED_S, len(self._live) / _MANY_RUNS))
        return UNWATCHED_S

    def is_throttled(self, run_id: str) -> bool:
        """Return whether a batch of its worker was refused lately."""
        at = self._throttled_at.get(run_id)
        return at is not None and self._clock() - at < _SHOWN_THROTTLED_S

    # ------------------------------------------------------------------ storage

    def _open(self, run_id: str) -> RunMetrics:
        """Return the curves of a run, loading them if necessary (runs in the thread)."""
        metrics = self._runs.pop(run_id, None)
        if metrics is None:
            metrics = RunMetrics(self._home.run_folder(run_id).metrics)
            for idle in [known for known in self._runs if known not in self._live][: -_MAX_OPEN or None]:
                del self._runs[idle]
        self._runs[run_id] = metrics  # the newest last
        return metrics

    def _flush(self, run_id: str, metrics: RunMetrics) -> None:
        try:
            metrics.flush()
        except OSError as error:
            # Nothing is lost: the event files have the points. Drop them from memory, which would grow otherwise.
            logger.warning("run %s: its curves could not be stored: %s", run_id, error)
            self._runs.pop(run_id, None)

    def _plan_flush(self) -> None:
        if self._flush_task is None or self._flush_task.done():
            self._flush_task = asyncio.create_task(self._flush_later(), name="metrics flush")

    async def _flush_later(self) -> None:
        await asyncio.sleep(_FLUSH_S)
        await self._in_thread(self._flush_all)

    def _flush_all(self) -> None:
        for run_id, metrics in list(self._runs.items()):
            self._flush(run_id, metrics)

    async def finish(self, run_id: str) -> CurveValues:
        """Read what the worker of an ended run could not report; return the values of its curves."""
        curves = await self._in_thread(self._finish, run_id)
        self._notify(run_id)
        return curves

    def _finish(self, run_id: str) -> CurveValues:
        metrics = self._open(run_id)
        try:
            metrics.catch_up(self._home.run_folder(run_id).tensorboard)
        except OSError as error:
            logger.warning("run %s: its event files could not be read to the end: %s", run_id, error)
        self._flush(run_id, metrics)
        self._live.discard(run_id)
        self._throttled_at.pop(run_id, None)
        return metrics.current()

    async def forget(self, run_id: str) -> None:
        """Drop a run from memory, because its folder was removed or imported."""
        await self._in_thread(self._runs.pop, run_id, None)

    async def close(self) -> None:
        """Write everything to disk and end the thread."""
        if self._flush_task is not None:
            self._flush_task.cancel()
        await self._in_thread(self._flush_all)
        self._thread.shutdown(wait=True)

    # ------------------------------------------------------------------ clients

    async def tags(self, run_id: str) -> dict[str, tuple[int, int, float]]:
        """Return every tag with its number of points, last step and last value."""
        return await self._in_thread(self._tags, run_id)

    def _tags(self, run_id: str) -> dict[str, tuple[int, int, float]]:
        metrics = self._up_to_date(run_id)
        return {tag: (count, *metrics.latest[tag]) for tag, count in metrics.tags().items()}

    def _up_to_date(self, run_id: str) -> RunMetrics:
        metrics = self._open(run_id)
        if run_id not in self._live:
            metrics.catch_up(self._home.run_folder(run_id).tensorboard)
            self._flush(run_id, metrics)
        return metrics

    async def stream(
        self,
        run_id: str,
        tags: Sequence[str],
        *,
        first_step: int,
        last_step: int,
        most: int,
        means: bool = False,
        follow: Callable[[], bool],
    ) -> AsyncIterator[list[CurveUpdate]]:
        """Yield curves, then their new points while `follow` returns True.

        `tags` may contain patterns (`losses/*`); none means all. Curves of more than `most` points are thinned to
        extremes or means.
        """
        changed = asyncio.Event()
        self._listeners.setdefault(run_id, set()).add(changed)
        try:
            sent: dict[str, int] = {}
            epoch = -1
            while True:
                changed.clear()
                is_live = follow()  # read before the update, so that no points are missed
                interval = (first_step, last_step) if not sent else None
                epoch, curves = await self._in_thread(self._updates, run_id, tags, sent, epoch, interval, most, means)
                if curves:
                    yield curves
                if not is_live:
                    return
                await asyncio.sleep(_UPDATE_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await changed.wait()
        finally:
            self._listeners[run_id].discard(changed)
            if not self._listeners[run_id]:
                del self._listeners[run_id]

    def _updates(
        self,
        run_id: str,
        patterns: Sequence[str],
        sent: dict[str, int],
        epoch: int,
        interval: tuple[int, int] | None,
        most: int,
        means: bool,
    ) -> tuple[int, list[CurveUpdate]]:
        metrics = self._up_to_date(run_id)
        is_reset = metrics.epoch != epoch and bool(sent)
        if is_reset:
            sent.clear()
        curves = []
        for tag, total in _chosen(metrics.tags(), patterns):
            if tag not in sent and interval is not None:
                points = metrics.between(tag, *interval, most, means=means)
            elif sent.get(tag, 0) < total:
                points = metrics.since(tag, sent.get(tag, 0), most, means=means)
            else:
                continue
            sent[tag] = total
            curves.append(CurveUpdate(tag, points, total, is_reset))
        return metrics.epoch, curves

    def _notify(self, run_id: str) -> None:
        for event in self._listeners.get(run_id, ()):
            event.set()


def _chosen(tags: dict[str, int], patterns: Sequence[str]) -> Iterable[tuple[str, int]]:
    for tag, total in sorted(tags.items()):
        if not patterns or any(tag == pattern or fnmatchcase(tag, pattern) for pattern in patterns):
            yield tag, total
