"""The daemon's one door to the registry: calls run in one thread, watchers hear of every change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from mosaic_wire.lifecycle import LifecycleKind

from gym_gui.logging_config import log_constants as codes
from gym_gui.services.trainer.errors import RegistryUnwritable
from gym_gui.services.trainer.fsm import RunEvent, RunStatus
from gym_gui.services.trainer.limits import StartedThreads
from gym_gui.services.trainer.records import DELETED, Headline, NewRun, RunRecord, StoryEvent
from gym_gui.services.trainer.registry import SUBMITTED, RunRegistry

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

FIGURES_S = 0.1
"""A client hears of the figures of a run at most this often"""
_WATCHER_BACKLOG = 10_000
RETRY_S = 1.0
_TROUBLE_S = 10.0
"""How long a failed write counts as trouble: whoever has to write tries again sooner"""
REATTACHED = "reattached"

_LOGGED: dict[str, codes.LogCode] = {
    SUBMITTED: codes.LOG_TRAINER_RUN_SUBMITTED,
    RunEvent.DISPATCHED: codes.LOG_TRAINER_RUN_DISPATCHED,
    RunEvent.REGISTERED: codes.LOG_TRAINER_WORKER_REGISTERED,
    RunEvent.STARTED: codes.LOG_WORKER_STARTED,
    RunEvent.PAUSED: codes.LOG_TRAINER_RUN_PAUSED,
    RunEvent.RELEASED: codes.LOG_TRAINER_RUN_PAUSED,
    RunEvent.RESUMED: codes.LOG_TRAINER_RUN_RESUMED,
    RunEvent.REQUEUED: codes.LOG_TRAINER_RUN_RESUMED,
    RunEvent.FAULTED: codes.LOG_TRAINER_RUN_FAULTED,
    RunEvent.RETRIED: codes.LOG_TRAINER_RUN_RETRIED,
    RunEvent.COMPLETED: codes.LOG_TRAINER_RUN_ENDED,
    RunEvent.GIVEN_UP: codes.LOG_TRAINER_RUN_ENDED,
    RunEvent.CANCELLED: codes.LOG_TRAINER_RUN_ENDED,
    f"worker_{LifecycleKind.RUN_FAILED}": codes.LOG_WORKER_FAILED,
    REATTACHED: codes.LOG_TRAINER_RUN_REATTACHED,
}
"""What the daemon's log has a line for: transitions only, so that no worker can flood it"""


def log_about(record: RunRecord, code: codes.LogCode, what: str, reason: str = "") -> None:
    """Write the daemon's log line about a run."""
    why = f": {reason}" if reason and reason != what else ""
    message = f"{record.algo} {record.env_id} {what}{why}"
    codes.log_code(logger, code, message, run_id=record.run_id, attempt=record.attempt, status=record.status)


def with_headline(record: RunRecord, headline: Headline) -> RunRecord:
    """The record with newer figures; a total of 0 means that the worker does not know it."""
    return replace(
        record,
        step=headline.step,
        total=headline.total or record.total,
        episodic_return=headline.episodic_return,
        sps=headline.sps,
        seconds_since_step=headline.seconds_since_step,
        metrics=record.metrics if headline.metrics is None else dict(headline.metrics),
    )


class Watcher:
    """One subscriber. Events come at once and all of them; figures of a run at most every `FIGURES_S`, the newest.

    Falls behind by too many events: `overflowed`, and it has to come again with since_seq.
    """

    def __init__(self, run_id: str, submitted_by: str = "") -> None:
        self.run_id, self.submitted_by = run_id, submitted_by
        self.overflowed = False
        self._events: deque[tuple[RunRecord, StoryEvent]] = deque()
        self._figures: dict[str, RunRecord] = {}
        """By run, the newest record with other figures and no event"""
        self._round: dict[str, RunRecord] = {}
        """Figures that are due: told one by one, events in between"""
        self._next_round_at = 0.0
        self._news = asyncio.Event()

    def wants(self, run_id: str, submitted_by: str) -> bool:
        """Whether it is to hear of this run."""
        return self.run_id in ("", run_id) and self.submitted_by in ("", submitted_by)

    def offer(self, record: RunRecord) -> None:
        """Figures have changed."""
        if self.wants(record.run_id, record.submitted_by):
            self._figures[record.run_id] = record
            self._news.set()

    def offer_events(self, news: Sequence[tuple[RunRecord, StoryEvent]]) -> None:
        if self.run_id or self.submitted_by:
            news = [(record, event) for record, event in news if self.wants(record.run_id, record.submitted_by)]
        if not news:
            return
        for older in (self._figures, self._round) if self._figures or self._round else ():
            for record, _ in news:  # newer than what was to be told
                older.pop(record.run_id, None)
        if len(self._events) < _WATCHER_BACKLOG:
            self._events.extend(news)
        else:
            self.overflowed = True
        self._news.set()

    def waiting(self, most: int) -> list[tuple[RunRecord, StoryEvent]]:
        """Take events that are there already, without waiting."""
        return [self._events.popleft() for _ in range(min(most, len(self._events)))]

    async def get(self) -> tuple[RunRecord, StoryEvent | None]:
        """The next event, or a record with newer figures."""
        while True:
            if self._events:
                return self._events.popleft()
            if self._round:
                record = self._round.pop(next(iter(self._round)))
                # From the end of a round on: two of the same run are never closer than that.
                self._next_round_at = time.monotonic() + FIGURES_S
                return record, None
            wait_s = self._next_round_at - time.monotonic() if self._figures else None
            if wait_s is not None and wait_s <= 0:
                self._round, self._figures = self._figures, {}
                continue
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._news.wait()


class Journal:
    """Async face of the registry."""

    def __init__(self, registry: RunRegistry) -> None:
        self._registry = registry
        # One thread: SQLite's single writer, and the event loop never waits for an fsync.
        self._thread = StartedThreads(1, "registry")
        self._watchers: set[Watcher] = set()
        self._headlines: dict[str, Headline] = {}
        """To be written"""
        self._newest: dict[str, Headline] = {}
        """Of runs that go on: what the registry does not know yet"""
        self._trouble, self._trouble_until = "", 0.0
        self.on_change: Callable[[RunRecord], None] = lambda record: None
        """Called with every record that was stored, whichever request changed it"""

    async def read(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run any registry method in the registry's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *args, **kwargs))

    @property
    def trouble(self) -> str:
        """Why the database cannot be written now; empty: it can, or nobody has tried for a while."""
        return self._trouble if time.monotonic() < self._trouble_until else ""

    @property
    def registry(self) -> RunRegistry:
        return self._registry

    async def submit(self, new: NewRun, *, idempotency_key: str = "", fingerprint: str = "") -> tuple[RunRecord, bool]:
        """Store a run that was asked for; True: it was known already."""
        record, known, events = await self.read(self._submit, new, idempotency_key, fingerprint)
        if not known:
            self._log(record, events)
            self.publish(record, events)
        return record, known

    def _submit(self, new: NewRun, key: str, fingerprint: str) -> tuple[RunRecord, bool, list[StoryEvent]]:
        record, known = self._registry.submit(new, idempotency_key=key, fingerprint=fingerprint)
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
        insist: bool = True,
        **changes: Any,
    ) -> RunRecord:
        """Change a status; what was decided about a live run is written as soon as the disk takes it.

        Without `insist` the caller gets RegistryUnwritable instead: a client that waits, a watching task.
        """
        call = partial(
            self._registry.apply, run_id, event, expected=expected, reason=reason, payload=payload, **changes
        )
        return await self._persist(call, run_id, insist)

    async def record(
        self, run_id: str, kind: str, *, reason: str = "", payload: Mapping[str, Any] | None = None,
        insist: bool = True, **changes: Any,
    ) -> RunRecord:  # fmt: skip
        """Note a fact or change columns without a change of status; `insist` as in `apply`."""
        call = partial(self._registry.record, run_id, kind, reason=reason, payload=payload, **changes)
        return await self._persist(call, run_id, insist)

    async def _persist(self, call: Callable[[], RunRecord], run_id: str, insist: bool) -> RunRecord:
        while True:
            try:
                record, events = await self.read(self._with_events, call, run_id)
            except RegistryUnwritable as error:
                if not self._trouble:
                    logger.error("the registry cannot be written; will retry: %s", error)
                self._trouble, self._trouble_until = str(error), time.monotonic() + _TROUBLE_S
                if not insist:
                    raise
                await asyncio.sleep(RETRY_S)
                continue
            if self._trouble:
                logger.info("the registry can be written again")
                self._trouble = ""
            record = self._with_newest_figures(record)
            self.on_change(record)
            self._log(record, events)
            self.publish(record, events)
            return record

    def _log(self, record: RunRecord, events: list[StoryEvent]) -> None:
        for event in events:
            if (code := _LOGGED.get(event.kind)) is not None:
                ended = code is codes.LOG_TRAINER_RUN_ENDED
                what = str(record.outcome) if ended else event.kind.removeprefix("worker_")
                log_about(record, code, what, event.reason or str(event.payload.get("error", "")))

    def _with_newest_figures(self, record: RunRecord) -> RunRecord:
        """What the last heartbeat or curve said, though it is not written yet."""
        newest = self._newest.get(record.run_id)
        if record.status is RunStatus.TERM:
            self._newest.pop(record.run_id, None)
        return record if newest is None else with_headline(record, newest)

    def _with_events(self, call: Callable[[], RunRecord], run_id: str) -> tuple[RunRecord, list[StoryEvent]]:
        before = self._registry.last_seq()
        record = call()
        events = self._registry.events_since(before, run_id=run_id) if record.event_seq > before else []
        return record, events

    async def cancel_many(self, run_ids: Sequence[str], reason: str, changes: Mapping[str, Any]) -> list[RunRecord]:
        """Cancel runs without a process in one transaction; each watcher is told once."""
        news = await self.read(self._cancel_many, run_ids, reason, changes)
        for record, event in news:
            self._log(record, [event])
        for watcher in self._watchers:
            watcher.offer_events(news)
        return [record for record, _ in news]

    def _cancel_many(
        self, run_ids: Sequence[str], reason: str, changes: Mapping[str, Any]
    ) -> list[tuple[RunRecord, StoryEvent]]:
        before = self._registry.last_seq()
        records = self._registry.cancel_many(run_ids, reason=reason, changes=changes)
        events = {event.seq: event for event in self._registry.events_since(before, limit=-1)}
        return [(record, events[record.event_seq]) for record in records]

    def publish(self, record: RunRecord, events: list[StoryEvent]) -> None:
        """Tell every watcher; a change without a story event goes out as a bare record."""
        for watcher in self._watchers:
            if events:
                watcher.offer_events([(record, event) for event in events])
            else:
                watcher.offer(record)

    def tell_deleted(self, record: RunRecord) -> None:
        """The story of a deleted run is gone with it, so its last event has no number: whoever watches now hears it."""
        self.publish(record, [StoryEvent(0, record.run_id, time.time(), DELETED, "", "", "", {}, record.attempt)])

    def watch(self, run_id: str = "", *, submitted_by: str = "") -> Watcher:
        watcher = Watcher(run_id, submitted_by)
        self._watchers.add(watcher)
        return watcher

    def is_watched(self, run_id: str, submitted_by: str = "") -> bool:
        """Whether somebody wants to hear of this run."""
        return any(watcher.wants(run_id, submitted_by) for watcher in self._watchers)

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def keep_headline(self, run_id: str, headline: Headline) -> None:
        """Remember the newest figures; `flush_headlines` writes them."""
        self._headlines[run_id] = self._newest[run_id] = headline

    def tell_figures(self, record: RunRecord) -> None:
        """Figures that are newer than the last heartbeat's: watchers hear them now, the registry with the next."""
        self._newest[record.run_id] = Headline(
            record.step, record.total, record.episodic_return, record.sps, record.seconds_since_step, record.metrics
        )
        self.publish(record, [])

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
