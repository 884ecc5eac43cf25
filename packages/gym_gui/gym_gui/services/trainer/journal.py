"""Asynchronous access to the registry: calls run in one thread, and watchers receive every change."""

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
from gym_gui.services.trainer.records import DELETED, HistoryEvent, NewRun, RunRecord, RunStatistics
from gym_gui.services.trainer.registry import SUBMITTED, RunRegistry

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

STATISTICS_S = 0.1
"""Minimum seconds between two updates of a run's statistics for one watcher"""
_WATCHER_BACKLOG = 10_000
RETRY_S = 1.0
_TROUBLE_S = 10.0
"""How long a failed write is reported; pending writes are retried sooner than that"""
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
"""The events that the daemon logs: transitions only, so that no worker can flood the log"""


def log_about(record: RunRecord, code: codes.LogCode, what: str, reason: str = "") -> None:
    """Log a line about a run."""
    why = f": {reason}" if reason and reason != what else ""
    message = f"{record.algo} {record.env_id} {what}{why}"
    codes.log_code(logger, code, message, run_id=record.run_id, attempt=record.attempt, status=record.status)


def with_statistics(record: RunRecord, newest: RunStatistics) -> RunRecord:
    """Return the record with newer statistics; a total of 0 means that the worker does not know it."""
    return replace(
        record,
        step=newest.step,
        total=newest.total or record.total,
        episodic_return=newest.episodic_return,
        sps=newest.sps,
        seconds_since_step=newest.seconds_since_step,
        metrics=record.metrics if newest.metrics is None else dict(newest.metrics),
    )


class Watcher:
    """A subscriber to runs: it gets every event at once, and the newest statistics of a run every `STATISTICS_S`.

    A watcher with too many unread events is `overflowed`; its client has to subscribe again with since_seq.
    """

    def __init__(self, run_id: str, submitted_by: str = "") -> None:
        self.run_id, self.submitted_by = run_id, submitted_by
        self.overflowed = False
        self._events: deque[tuple[RunRecord, HistoryEvent]] = deque()
        self._statistics: dict[str, RunRecord] = {}
        """By run, the newest record whose statistics changed without an event"""
        self._round: dict[str, RunRecord] = {}
        """Records that are due: sent one by one, events in between"""
        self._next_round_at = 0.0
        self._changed = asyncio.Event()

    def matches(self, run_id: str, submitted_by: str) -> bool:
        """Return whether the watcher subscribed to this run."""
        return self.run_id in ("", run_id) and self.submitted_by in ("", submitted_by)

    def offer(self, record: RunRecord) -> None:
        """Queue a record whose statistics changed."""
        if self.matches(record.run_id, record.submitted_by):
            self._statistics[record.run_id] = record
            self._changed.set()

    def offer_events(self, updates: Sequence[tuple[RunRecord, HistoryEvent]]) -> None:
        """Queue events of the runs it subscribed to."""
        if self.run_id or self.submitted_by:
            updates = [(record, event) for record, event in updates if self.matches(record.run_id, record.submitted_by)]
        if not updates:
            return
        for older in (self._statistics, self._round) if self._statistics or self._round else ():
            for record, _ in updates:  # the event's record is newer
                older.pop(record.run_id, None)
        if len(self._events) < _WATCHER_BACKLOG:
            self._events.extend(updates)
        else:
            self.overflowed = True
        self._changed.set()

    def waiting(self, most: int) -> list[tuple[RunRecord, HistoryEvent]]:
        """Return up to `most` queued events without waiting."""
        return [self._events.popleft() for _ in range(min(most, len(self._events)))]

    async def get(self) -> tuple[RunRecord, HistoryEvent | None]:
        """Return the next event, or a record with newer statistics."""
        while True:
            if self._events:
                return self._events.popleft()
            if self._round:
                record = self._round.pop(next(iter(self._round)))
                # Measured from the end of a round, so that two records of one run are never closer than that.
                self._next_round_at = time.monotonic() + STATISTICS_S
                return record, None
            wait_s = self._next_round_at - time.monotonic() if self._statistics else None
            if wait_s is not None and wait_s <= 0:
                self._round, self._statistics = self._statistics, {}
                continue
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()


class Journal:
    """Asynchronous interface of the registry."""

    def __init__(self, registry: RunRegistry) -> None:
        self._registry = registry
        # One thread, because SQLite has a single writer and the event loop must not wait for an fsync.
        self._thread = StartedThreads(1, "registry")
        self._watchers: set[Watcher] = set()
        self._unwritten: dict[str, RunStatistics] = {}
        """Statistics to be written"""
        self._newest: dict[str, RunStatistics] = {}
        """Newest statistics of unfinished runs, which the registry may not have yet"""
        self._troubles: dict[str, tuple[str, float]] = {}
        """By kind of file: why it cannot be written, and until when to report that"""
        self.on_change: Callable[[RunRecord], None] = lambda record: None
        """Called with every stored record"""

    async def read(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a registry method in the registry's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(call, *args, **kwargs))

    @property
    def trouble(self) -> str:
        """Return why the database or a run's files could not be written lately, or an empty text."""
        return "; ".join(text for text, until in self._troubles.values() if time.monotonic() < until)

    def report_trouble(self, what: str, text: str) -> None:
        """Report for a few seconds that something cannot be written."""
        self._troubles[what] = text, time.monotonic() + _TROUBLE_S

    @property
    def registry(self) -> RunRegistry:
        """Return the registry, for calls through `read`."""
        return self._registry

    async def submit(self, new: NewRun, *, idempotency_key: str = "", fingerprint: str = "") -> tuple[RunRecord, bool]:
        """Store a submitted run; return it and whether it was already known."""
        record, known, events = await self.read(self._submit, new, idempotency_key, fingerprint)
        if not known:
            self._log(record, events)
            self.publish(record, events)
        return record, known

    def _submit(self, new: NewRun, key: str, fingerprint: str) -> tuple[RunRecord, bool, list[HistoryEvent]]:
        record, known = self._registry.submit(new, idempotency_key=key, fingerprint=fingerprint)
        return record, known, [] if known else self._registry.history(record.run_id)

    async def restore(self, record: RunRecord, history: Sequence[HistoryEvent]) -> RunRecord:
        """Store an imported run; watchers receive its whole history, renumbered."""
        record, events = await self.read(self._restore, record, history)
        self.publish(record, events)
        return record

    def _restore(self, record: RunRecord, history: Sequence[HistoryEvent]) -> tuple[RunRecord, list[HistoryEvent]]:
        restored = self._registry.restore(record, history)
        return restored, self._registry.history(restored.run_id)

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
        """Apply an event to a run; retry until the disk accepts it.

        Without `insist` raise RegistryUnwritable instead (for a waiting client or a supervisor).
        """
        call = partial(
            self._registry.apply, run_id, event, expected=expected, reason=reason, payload=payload, **changes
        )
        return await self._persist(call, run_id, insist)

    async def record(
        self,
        run_id: str,
        kind: str,
        *,
        reason: str = "",
        payload: Mapping[str, Any] | None = None,
        insist: bool = True,
        **changes: Any,
    ) -> RunRecord:
        """Append an event or change columns without changing the status; `insist` as in `apply`."""
        call = partial(self._registry.record, run_id, kind, reason=reason, payload=payload, **changes)
        return await self._persist(call, run_id, insist)

    async def _persist(self, call: Callable[[], RunRecord], run_id: str, insist: bool) -> RunRecord:
        while True:
            try:
                record, events = await self.read(self._with_events, call, run_id)
            except RegistryUnwritable as error:
                if "registry" not in self._troubles:
                    logger.error("the registry cannot be written; will retry: %s", error)
                self.report_trouble("registry", str(error))
                if not insist:
                    raise
                await asyncio.sleep(RETRY_S)
                continue
            if self._troubles.pop("registry", None) is not None:
                logger.info("the registry can be written again")
            record = self._with_newest_statistics(record)
            self.on_change(record)
            self._log(record, events)
            self.publish(record, events)
            return record

    def _log(self, record: RunRecord, events: list[HistoryEvent]) -> None:
        for event in events:
            if (code := _LOGGED.get(event.kind)) is not None:
                ended = code is codes.LOG_TRAINER_RUN_ENDED
                what = str(record.outcome) if ended else event.kind.removeprefix("worker_")
                log_about(record, code, what, event.reason or str(event.payload.get("error", "")))

    def _with_newest_statistics(self, record: RunRecord) -> RunRecord:
        """Return the record with the newest statistics, which may not be stored yet."""
        newest = self._newest.get(record.run_id)
        if record.status is RunStatus.TERM:
            self._newest.pop(record.run_id, None)
        return record if newest is None else with_statistics(record, newest)

    def _with_events(self, call: Callable[[], RunRecord], run_id: str) -> tuple[RunRecord, list[HistoryEvent]]:
        before = self._registry.last_seq()
        record = call()
        events = self._registry.events_since(before, run_id=run_id) if record.event_seq > before else []
        return record, events

    async def cancel_many(self, run_ids: Sequence[str], reason: str, changes: Mapping[str, Any]) -> list[RunRecord]:
        """Cancel runs without a process in one transaction; notify each watcher once."""
        updates = await self.read(self._cancel_many, run_ids, reason, changes)
        for record, event in updates:
            self._log(record, [event])
        for watcher in self._watchers:
            watcher.offer_events(updates)
        return [record for record, _ in updates]

    def _cancel_many(
        self, run_ids: Sequence[str], reason: str, changes: Mapping[str, Any]
    ) -> list[tuple[RunRecord, HistoryEvent]]:
        before = self._registry.last_seq()
        records = self._registry.cancel_many(run_ids, reason=reason, changes=changes)
        events = {event.seq: event for event in self._registry.events_since(before, limit=-1)}
        return [(record, events[record.event_seq]) for record in records]

    def publish(self, record: RunRecord, events: list[HistoryEvent]) -> None:
        """Notify every watcher; a change without an event is sent as a bare record."""
        for watcher in self._watchers:
            if events:
                watcher.offer_events([(record, event) for event in events])
            else:
                watcher.offer(record)

    def publish_deleted(self, record: RunRecord) -> None:
        """Notify current watchers of a deletion; its event is not stored and has no number."""
        self.publish(record, [HistoryEvent(0, record.run_id, time.time(), DELETED, "", "", "", {}, record.attempt)])

    def watch(self, run_id: str = "", *, submitted_by: str = "") -> Watcher:
        """Return a new watcher of one run, of the runs that one run submitted, or of all runs."""
        watcher = Watcher(run_id, submitted_by)
        self._watchers.add(watcher)
        return watcher

    def is_watched(self, run_id: str, submitted_by: str = "") -> bool:
        """Return whether a watcher subscribed to this run."""
        return any(watcher.matches(run_id, submitted_by) for watcher in self._watchers)

    def unwatch(self, watcher: Watcher) -> None:
        """Remove a watcher."""
        self._watchers.discard(watcher)

    def queue_statistics(self, run_id: str, newest: RunStatistics) -> None:
        """Keep the newest statistics of a run until `flush_statistics` writes them."""
        self._unwritten[run_id] = self._newest[run_id] = newest

    async def flush_statistics(self) -> None:
        """Write the queued statistics; keep them for the next call if the disk fails."""
        if not self._unwritten:
            return
        pending, self._unwritten = self._unwritten, {}
        try:
            await self.read(self._registry.update_statistics, pending)
        except RegistryUnwritable as error:
            # A run's last statistics are never replaced by newer ones, so they must not be dropped.
            self._unwritten = {**pending, **self._unwritten}
            logger.warning("statistics of runs were not stored: %s", error)

    def close(self) -> None:
        """End the thread and close the registry."""
        self._thread.shutdown(wait=True)
        self._registry.close()
