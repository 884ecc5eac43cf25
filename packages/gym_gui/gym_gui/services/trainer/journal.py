"""The daemon's one door to the registry: calls run in one thread, watchers hear of every change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from gym_gui.services.trainer.errors import RegistryUnwritable
from gym_gui.services.trainer.fsm import RunEvent, RunStatus
from gym_gui.services.trainer.records import Headline, NewRun, RunRecord, StoryEvent
from gym_gui.services.trainer.registry import RunRegistry

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_WATCHER_BACKLOG = 10_000
_RETRY_S = 1.0
DELETED = "deleted"


def with_headline(record: RunRecord, headline: Headline) -> RunRecord:
    """The record with newer figures; a total of 0 means that the worker does not know it."""
    figures = asdict(headline)
    metrics = record.metrics if headline.metrics is None else dict(headline.metrics)
    return replace(record, **{**figures, "total": headline.total or record.total, "metrics": metrics})


class Watcher:
    """One subscriber. Falls behind by too much: `overflowed`, and it has to come again with since_seq."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.updates: asyncio.Queue[tuple[RunRecord, StoryEvent | None]] = asyncio.Queue(_WATCHER_BACKLOG)
        self.overflowed = False

    def offer(self, record: RunRecord, event: StoryEvent | None) -> None:
        if self.run_id and record.run_id != self.run_id:
            return
        try:
            self.updates.put_nowait((record, event))
        except asyncio.QueueFull:
            self.overflowed = True


class Journal:
    """Async face of the registry."""

    def __init__(self, registry: RunRegistry) -> None:
        self._registry = registry
        # One thread: SQLite's single writer, and the event loop never waits for an fsync.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="registry")
        self._watchers: set[Watcher] = set()
        self._headlines: dict[str, Headline] = {}
        self.trouble = ""
        """Why the database cannot be written now; empty: it can"""

    async def read(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run any registry method in the registry's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *args, **kwargs))

    @property
    def registry(self) -> RunRegistry:
        return self._registry

    async def submit(self, new: NewRun, *, idempotency_key: str = "") -> tuple[RunRecord, bool]:
        """Store a run that was asked for; True: it was known already."""
        record, known, events = await self.read(self._submit, new, idempotency_key)
        if not known:
            self.publish(record, events)
        return record, known

    def _submit(self, new: NewRun, idempotency_key: str) -> tuple[RunRecord, bool, list[StoryEvent]]:
        record, known = self._registry.submit(new, idempotency_key=idempotency_key)
        return record, known, [] if known else self._registry.story(record.run_id)

    async def restore(self, record: RunRecord, story: Sequence[StoryEvent]) -> RunRecord:
        """Store a finished run from elsewhere; watchers hear of its whole story, which has new numbers."""
        record, events = await self.read(self._restore, record, story)
        self.publish(record, events)
        return record

    def _restore(self, record: RunRecord, story: Sequence[StoryEvent]) -> tuple[RunRecord, list[StoryEvent]]:
        restored = self._registry.restore(record, story)
        return restored, self._registry.story(restored.run_id)

    async def apply(
        self,
        run_id: str,
        event: RunEvent,
        *,
        expected: RunStatus | None = None,
        reason: str = "",
        payload: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> RunRecord:
        """Change a status; what was decided about a live run is written as soon as the disk takes it."""
        call = partial(
            self._registry.apply, run_id, event, expected=expected, reason=reason, payload=payload, **changes
        )
        return await self._persist(call, run_id)

    async def record(
        self, run_id: str, kind: str, *, reason: str = "", payload: Mapping[str, Any] | None = None, **changes: Any
    ) -> RunRecord:
        """Note a fact or change columns without a change of status."""
        call = partial(self._registry.record, run_id, kind, reason=reason, payload=payload, **changes)
        return await self._persist(call, run_id)

    async def _persist(self, call: Callable[[], RunRecord], run_id: str) -> RunRecord:
        while True:
            try:
                record, events = await self.read(self._with_events, call, run_id)
            except RegistryUnwritable as error:
                if not self.trouble:
                    logger.error("the registry cannot be written, trying on: %s", error)
                self.trouble = str(error)
                await asyncio.sleep(_RETRY_S)
                continue
            if self.trouble:
                logger.info("the registry can be written again")
                self.trouble = ""
            record = self._with_newest_figures(record)
            self.publish(record, events)
            return record

    def _with_newest_figures(self, record: RunRecord) -> RunRecord:
        """What the last heartbeat said, though it is not written yet."""
        pending = self._headlines.get(record.run_id)
        return record if pending is None else with_headline(record, pending)

    def _with_events(self, call: Callable[[], RunRecord], run_id: str) -> tuple[RunRecord, list[StoryEvent]]:
        before = self._registry.last_seq()
        record = call()
        events = self._registry.events_since(before, run_id=run_id) if record.event_seq > before else []
        return record, events

    def publish(self, record: RunRecord, events: list[StoryEvent]) -> None:
        """Tell every watcher; a change without a story event goes out as a bare record."""
        for watcher in self._watchers:
            for event in events:
                watcher.offer(record, event)
            if not events:
                watcher.offer(record, None)

    def tell_deleted(self, record: RunRecord) -> None:
        """The story of a deleted run is gone with it, so its last event has no number: whoever watches now hears it."""
        self.publish(record, [StoryEvent(0, record.run_id, time.time(), DELETED, "", "", "", {}, record.attempt)])

    def watch(self, run_id: str = "") -> Watcher:
        watcher = Watcher(run_id)
        self._watchers.add(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def keep_headline(self, run_id: str, headline: Headline) -> None:
        """Remember the newest figures; `flush_headlines` writes them."""
        self._headlines[run_id] = headline

    async def flush_headlines(self) -> None:
        """Write what was kept; what the disk does not take now is written with the next ones."""
        if not self._headlines:
            return
        pending, self._headlines = self._headlines, {}
        try:
            await self.read(self._registry.update_headlines, pending)
        except RegistryUnwritable as error:
            # Kept for the next time: a run's last figures have no newer ones to follow.
            self._headlines = {**pending, **self._headlines}
            logger.warning("headline figures were not stored: %s", error)

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        self._registry.close()
