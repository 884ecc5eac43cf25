"""Where workers' curves arrive and clients ask for them; all files are touched by one thread of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, ParamSpec, TypeVar

from mosaic_wire.paths import Home

from gym_gui.services.trainer.limits import StartedThreads
from gym_gui.services.trainer.metrics.series import Points
from gym_gui.services.trainer.metrics.store import Folder, RunMetrics

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

CREDITS = 50_000
"""Points a worker may send in one go"""
RETRY_S = 1.0
"""When a worker that was sent away may come again"""
_MOST_WAITING = 64
"""Batches that wait for the thread; beyond that workers keep their news in the event files"""
_SHOWN_THROTTLED_S = 5.0
_FLUSH_S = 20.0
_FLUSH_POINTS = 50_000
_MOST_OPEN = 64
"""Finished runs whose curves stay at hand"""
_UPDATE_S = 0.1
"""A client hears of a run at most this often"""
WATCHED_S, UNWATCHED_S = 1.0, 2.0
"""How often workers are asked to tell their news; with the second or so that event files are behind, within three"""
_MANY_RUNS = 100
"""So many that go on at once are all heard once a second; of more each less often"""
_LOOK_S = 0.5


@dataclass(frozen=True)
class Answer:
    """What a worker is told about a batch."""

    accepted: bool
    position: Any
    credits: int
    retry_after_s: float = 0.0
    last_step: int = 0
    """How far the run is by its curves"""
    headline: Mapping[str, float] = field(default_factory=dict)
    """The last values of its important curves"""


@dataclass(frozen=True)
class Curve:
    """A part of one curve for a client."""

    tag: str
    points: Points
    total: int
    """Points the curve has by now"""
    is_reset: bool
    """What was sent of it before no longer counts"""


class MetricHub:
    """The curves of every run of a home."""

    def __init__(self, home: Home, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._home, self._clock = home, clock
        self._thread = StartedThreads(1, "metrics")
        self._runs: dict[str, RunMetrics] = {}
        self._live: set[str] = set()
        self._headlines: dict[str, dict[str, float]] = {}
        self._steps: dict[str, int] = {}
        self._waiting = 0
        self._throttled_at: dict[str, float] = {}
        self._listeners: dict[str, set[asyncio.Event]] = {}
        self._flush_task: asyncio.Task[None] | None = None

    async def _in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *args, **kwargs))

    # ------------------------------------------------------------------ workers

    async def publish(self, run_id: str, folders: Sequence[Folder], before: Any, after: Any) -> Answer:
        """Take a worker's news; a hub with too much to do sends it away, and the event file keeps them."""
        if self._waiting >= _MOST_WAITING:
            self._throttled_at[run_id] = self._clock()
            return Answer(accepted=False, position=before, credits=0, retry_after_s=RETRY_S)
        self._waiting += 1
        try:
            answer = await self._in_thread(self._take, run_id, folders, before, after)
        finally:
            self._waiting -= 1
        if answer.accepted:
            self._tell(run_id)
            self._plan_flush()
        return answer

    def _take(self, run_id: str, folders: Sequence[Folder], before: Any, after: Any) -> Answer:
        self._live.add(run_id)
        metrics = self._open(run_id)
        accepted = metrics.take(folders, before, after)
        if accepted:
            self._headlines[run_id], self._steps[run_id] = metrics.headline(), metrics.last_step()
            if metrics.unstored >= _FLUSH_POINTS:
                self._flush(run_id, metrics)
        # What a worker knows itself it is not told again.
        position = None if accepted else metrics.position
        return Answer(
            accepted, position, CREDITS, last_step=self._steps.get(run_id, 0), headline=self._headlines.get(run_id, {})
        )

    def wanted_interval_s(self, run_id: str, *, watched: bool) -> float:
        """How often the worker of a run shall tell its news."""
        if watched or run_id in self._listeners:
            return min(UNWATCHED_S, max(WATCHED_S, len(self._live) / _MANY_RUNS))
        return UNWATCHED_S

    def headline(self, run_id: str) -> dict[str, float] | None:
        """The last values of a live run's important curves; None: nothing is known here."""
        return self._headlines.get(run_id)

    def last_step(self, run_id: str) -> int:
        """How far a live run is by its curves."""
        return self._steps.get(run_id, 0)

    def is_throttled(self, run_id: str) -> bool:
        """Whether its worker was sent away a moment ago."""
        at = self._throttled_at.get(run_id)
        return at is not None and self._clock() - at < _SHOWN_THROTTLED_S

    # ------------------------------------------------------------------ keeping

    def _open(self, run_id: str) -> RunMetrics:
        """In the thread. The curves of a run, read from disk when they are not at hand."""
        metrics = self._runs.pop(run_id, None)
        if metrics is None:
            metrics = RunMetrics(self._home.run_folder(run_id).metrics)
            for idle in [known for known in self._runs if known not in self._live][: -_MOST_OPEN or None]:
                del self._runs[idle]
        self._runs[run_id] = metrics  # the newest last
        return metrics

    def _flush(self, run_id: str, metrics: RunMetrics) -> None:
        try:
            metrics.flush()
        except OSError as error:
            # Nothing is lost: the event files have it. What memory holds is taken back, or it would grow for ever.
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

    async def finish(self, run_id: str) -> dict[str, float]:
        """The run is over: read what its worker could not tell any more; return its last values."""
        headline = await self._in_thread(self._finish, run_id)
        self._tell(run_id)
        return headline

    def _finish(self, run_id: str) -> dict[str, float]:
        metrics = self._open(run_id)
        try:
            metrics.catch_up(self._home.run_folder(run_id).tensorboard)
        except OSError as error:
            logger.warning("run %s: its event files could not be read to the end: %s", run_id, error)
        self._headlines.pop(run_id, None)
        self._steps.pop(run_id, None)
        self._flush(run_id, metrics)
        self._live.discard(run_id)
        self._throttled_at.pop(run_id, None)
        return metrics.headline()

    async def forget(self, run_id: str) -> None:
        """The run's folder is removed, or put back from an archive: what is known of it is not true any more."""
        await self._in_thread(self._runs.pop, run_id, None)

    async def close(self) -> None:
        """Write everything down."""
        if self._flush_task is not None:
            self._flush_task.cancel()
        await self._in_thread(self._flush_all)
        self._thread.shutdown(wait=True)

    # ------------------------------------------------------------------ clients

    async def tags(self, run_id: str) -> dict[str, tuple[int, int, float]]:
        """Every tag with its number of points, last step and last value."""
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
    ) -> AsyncIterator[list[Curve]]:
        """Curves as they are, then what is added to them for as long as `follow` says so.

        `tags` may hold patterns (`losses/*`); none means all. A curve of more than `most` points is thinned to extremes
        or to means.
        """
        changed = asyncio.Event()
        self._listeners.setdefault(run_id, set()).add(changed)
        try:
            sent: dict[str, int] = {}
            epoch = -1
            while True:
                changed.clear()
                goes_on = follow()  # before the look: what comes after it is found by the next one
                stretch = (first_step, last_step) if not sent else None
                epoch, curves = await self._in_thread(self._news, run_id, tags, sent, epoch, stretch, most, means)
                if curves:
                    yield curves
                if not goes_on:
                    return
                await asyncio.sleep(_UPDATE_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await changed.wait()
        finally:
            self._listeners[run_id].discard(changed)
            if not self._listeners[run_id]:
                del self._listeners[run_id]

    def _news(
        self,
        run_id: str,
        patterns: Sequence[str],
        sent: dict[str, int],
        epoch: int,
        stretch: tuple[int, int] | None,
        most: int,
        means: bool,
    ) -> tuple[int, list[Curve]]:
        metrics = self._up_to_date(run_id)
        is_reset = metrics.epoch != epoch and bool(sent)
        if is_reset:
            sent.clear()
        curves = []
        for tag, total in _chosen(metrics.tags(), patterns):
            if tag not in sent and stretch is not None:
                points = metrics.between(tag, *stretch, most, means=means)
            elif sent.get(tag, 0) < total:
                points = metrics.since(tag, sent.get(tag, 0), most, means=means)
            else:
                continue
            sent[tag] = total
            curves.append(Curve(tag, points, total, is_reset))
        return metrics.epoch, curves

    def _tell(self, run_id: str) -> None:
        for event in self._listeners.get(run_id, ()):
            event.set()


def _chosen(tags: dict[str, int], patterns: Sequence[str]) -> Iterable[tuple[str, int]]:
    for tag, total in sorted(tags.items()):
        if not patterns or any(tag == pattern or fnmatchcase(tag, pattern) for pattern in patterns):
            yield tag, total
