"""The registry of runs: what was submitted, the status of each run, and its history of events.

Every call is synchronous, thread-safe and one transaction: once it returns, its changes are on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from gym_gui.services.trainer import registry_queries as sql
from gym_gui.services.trainer.errors import (
    AmbiguousRunId,
    ArchiveRefused,
    NotPossibleNow,
    RegistryError,
    RunNotFound,
    StaleRun,
)
from gym_gui.services.trainer.fsm import OUTCOMES, RunEvent, RunStatus, advance
from gym_gui.services.trainer.records import HistoryEvent, NewRun, RunListing, RunQuery, RunRecord, RunStatistics
from gym_gui.services.trainer.registry_database import RegistryDatabase
from gym_gui.services.trainer.registry_queries import RUN_COLUMNS, check_changes, encode, key_sha256, to_json

# `list` is a method of the registry, so its annotations cannot say list[…].
Runs = list[RunRecord]
Events = list[HistoryEvent]

SUBMITTED = "submitted"
"""Kind of the first event of every run"""

_UNSETTLED = 500
"""The last runs to end, among which a new daemon looks for those that still have to be cleaned up"""
_OF_THIS_MACHINE = {
    *("number", "event_seq", "pid", "start_ticks", "boot_id", "pid_namespace", "mark", "worker_instance", "claimed"),
    *("run_token_sha256", "session_token_sha256", "cancel_requested", "cancel_reason", "pause_requested"),
    *("paused_by_signal", "released", "stalled", "no_progress", "job_id"),
}
"""Columns that an archive does not carry"""


class RunRegistry:
    """The run database of one home, opened and migrated."""

    def __init__(
        self, database: Path, *, clock: Callable[[], float] = time.time, fail_write: Callable[[], None] | None = None
    ) -> None:
        self._clock = clock
        self._database = RegistryDatabase(database, fail_write=fail_write)

    def __enter__(self) -> RunRegistry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; closing twice is no error."""
        self._database.close()

    @property
    def fail_write(self) -> Callable[[], None] | None:
        """Test hook called before each COMMIT; raising in it simulates a crash at this point."""
        return self._database.fail_write

    @fail_write.setter
    def fail_write(self, hook: Callable[[], None] | None) -> None:
        self._database.fail_write = hook

    # ---------------------------------------------------------------- submitting

    def submit(self, new: NewRun, *, idempotency_key: str = "", fingerprint: str = "") -> tuple[RunRecord, bool]:
        """Store a run as INIT and return (record, False); return (known run, True) if this key was used before.

        `fingerprint` identifies what was submitted; raise NotPossibleNow if the key was used with another one.
        """
        with self._database.write() as connection:
            if known := sql.run_of_key(connection, idempotency_key, fingerprint):
                return known, True
            if sql.run_exists(connection, new.run_id):
                raise RegistryError(f"there is already a run {new.run_id}; a new run needs a new id")
            now = self._clock()
            columns = {field.name: getattr(new, field.name) for field in fields(new)}
            sql.insert_row(connection, "runs", {**columns, "status": RunStatus.INIT, "created_at": now})
            if idempotency_key:
                key = {"key_sha256": key_sha256(idempotency_key), "run_id": new.run_id, "fingerprint": fingerprint}
                sql.insert_row(connection, "submissions", key)
            event = HistoryEvent(0, new.run_id, now, SUBMITTED, "", RunStatus.INIT, "", {}, 1)
            seq = sql.append_event(connection, event)
            return sql.update_run(connection, new.run_id, {"event_seq": seq}), False

    def known_submission(self, idempotency_key: str, fingerprint: str = "") -> RunRecord | None:
        """Return the run submitted with this key; raise NotPossibleNow if its fingerprint was another one."""
        with self._database.read() as connection:
            return sql.run_of_key(connection, idempotency_key, fingerprint)

    # ---------------------------------------------------------------- queries

    def get(self, run_id: str) -> RunRecord:
        """Return the run with exactly this id."""
        with self._database.read() as connection:
            return sql.read_run(connection, run_id)

    def find(self, prefix: str) -> RunRecord:
        """Return the one run whose id begins with this prefix, in upper or lower case."""
        if not prefix.strip():
            raise RunNotFound(prefix)
        with self._database.read() as connection:
            matches = sql.ids_that_begin_with(connection, prefix)
            if not matches:
                raise RunNotFound(prefix)
            if len(matches) > 1:
                raise AmbiguousRunId(prefix, matches)
            return sql.read_run(connection, matches[0])

    def id_with(self, part: str) -> str | None:
        """Return an id that begins or ends with these characters, or None."""
        with self._database.read() as connection:
            return sql.id_with(connection, part)

    def list(self, query: RunQuery | None = None) -> RunListing:
        """Return the runs that match (without a query: all that are not archived), newest first."""
        query = query or RunQuery()
        where, values = sql.conditions_of(query)
        limit = query.limit if query.limit > 0 else -1
        with self._database.read() as connection:
            runs = sql.select_runs(connection, f"{where} ORDER BY number DESC LIMIT ?", (*values, limit))
            is_counted = len(runs) != limit or query.before_number
            matching = len(runs) if is_counted else sql.count_runs(connection, where, values)
            return RunListing(tuple(runs), matching, sql.newest_seq(connection))

    def unfinished(self) -> Runs:
        """Return every unfinished run in order of submission."""
        with self._database.read() as connection:
            return sql.select_runs(connection, "status <> 'TERM' ORDER BY number")

    def unsettled(self) -> Runs:
        """Return the runs whose daemon died between their end and the cleanup after it, which stores their size."""
        lately = f"SELECT run_id FROM events WHERE to_status = 'TERM' ORDER BY seq DESC LIMIT {_UNSETTLED}"
        started = "EXISTS (SELECT 1 FROM events WHERE events.run_id = runs.run_id AND kind = 'dispatched')"
        with self._database.read() as connection:
            return sql.select_runs(
                connection, f"status = 'TERM' AND size_bytes = 0 AND run_id IN ({lately}) AND {started} ORDER BY number"
            )

    def unfinished_of(self, submitter: str) -> Runs:
        """Return the unfinished runs that the worker of this run submitted."""
        with self._database.read() as connection:
            return sql.select_runs(connection, "status <> 'TERM' AND submitted_by = ? ORDER BY number", (submitter,))

    def queue(self) -> Runs:
        """Return the queued runs in the order in which they should start."""
        with self._database.read() as connection:
            return sql.select_runs(connection, "status = 'INIT' ORDER BY priority DESC, number")

    # ---------------------------------------------------------------- changes

    def apply(
        self,
        run_id: str,
        event: RunEvent,
        *,
        expected: RunStatus | None = None,
        reason: str = "",
        payload: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> RunRecord:
        """Append an event to the history and change the status accordingly; nothing else changes a status.

        `expected` makes it a compare-and-swap on the status the caller saw. `changes` are further columns of the
        record; they override what the event implies (see `_implied`).
        """
        check_changes(changes)
        with self._database.write() as connection:
            return self._apply(connection, run_id, event, expected, reason, payload or {}, changes)

    def cancel_many(self, run_ids: Sequence[str], *, reason: str, changes: Mapping[str, Mapping[str, Any]]) -> Runs:
        """Cancel runs that have no process, all or none of them; `changes`: further columns, by run."""
        with self._database.write() as connection:
            return [
                self._apply(connection, run_id, RunEvent.CANCELLED, None, reason, {}, changes.get(run_id, {}))
                for run_id in run_ids
            ]

    def _apply(
        self,
        connection: Connection,
        run_id: str,
        event: RunEvent,
        expected: RunStatus | None,
        reason: str,
        payload: Mapping[str, Any],
        changes: Mapping[str, Any],
    ) -> RunRecord:
        before = sql.read_run(connection, run_id)
        if expected is not None and before.status is not expected:
            raise StaleRun(run_id, expected, before.status)
        following = advance(run_id, before.status, event)
        now = self._clock()
        columns = {**_implied(before, event, reason, now), **changes, "status": following}
        attempt = columns.get("attempt", before.attempt)
        history_event = HistoryEvent(0, run_id, now, event, before.status, following, reason, dict(payload), attempt)
        columns["event_seq"] = sql.append_event(connection, history_event)
        return sql.update_run(connection, run_id, columns, expected=before.status)

    def record(
        self, run_id: str, kind: str, *, reason: str = "", payload: Mapping[str, Any] | None = None, **changes: Any
    ) -> RunRecord:
        """Change columns, and append an event unless kind is empty, without changing the status."""
        check_changes(changes)
        with self._database.write() as connection:
            before = sql.read_run(connection, run_id)
            columns = dict(changes)
            if kind:
                attempt = columns.get("attempt", before.attempt)
                history_event = HistoryEvent(
                    0, run_id, self._clock(), kind, "", "", reason, dict(payload or {}), attempt
                )
                columns["event_seq"] = sql.append_event(connection, history_event)
            return sql.update_run(connection, run_id, columns) if columns else before

    def update_statistics(self, statistics: Mapping[str, RunStatistics]) -> None:
        """Store the newest statistics of many runs without an fsync; skip unknown runs."""
        if not statistics:
            return
        rows = [
            (
                new.step,
                new.total,
                new.episodic_return,
                new.sps,
                new.seconds_since_step,
                None if new.metrics is None else encode("metrics", new.metrics),
                run_id,
            )
            for run_id, new in statistics.items()
        ]
        with self._database.write(durable=False) as connection:
            connection.executemany(
                "UPDATE runs SET step = ?, total = coalesce(nullif(?, 0), total), episodic_return = ?, sps = ?,"
                " seconds_since_step = ?, metrics = coalesce(?, metrics) WHERE run_id = ?",
                rows,
            )

    # ---------------------------------------------------------------- events

    def history(self, run_id: str, since_seq: int = 0) -> Events:
        """Return the events of a run in order."""
        with self._database.read() as connection:
            if not sql.run_exists(connection, run_id):
                raise RunNotFound(run_id)
            return sql.select_events(connection, since_seq, run_id)

    def events_since(self, seq: int, *, run_id: str = "", limit: int = 1000) -> Events:
        """Return at most `limit` events after this number, in order."""
        with self._database.read() as connection:
            return sql.select_events(connection, seq, run_id, limit)

    def last_seq(self) -> int:
        """Return the highest event number (the event may have been removed since)."""
        with self._database.read() as connection:
            return sql.newest_seq(connection)

    # ---------------------------------------------------------------- deletion and import

    def remove(self, run_id: str) -> None:
        """Delete a run, its events and its idempotency key; raise NotPossibleNow while it may have a process."""
        with self._database.write() as connection:
            run = sql.read_run(connection, run_id)
            if run.status.is_active:
                raise NotPossibleNow(f"run {run_id} is {run.status}: cancel it first, then delete it")
            # Events, tags and key are deleted through their foreign keys.
            connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))

    def restore(self, record: RunRecord, history: Sequence[HistoryEvent]) -> RunRecord:
        """Insert a finished run from an archive under its own id, with new numbers for it and its events."""
        if not record.status.is_terminal or record.outcome is None:
            raise ArchiveRefused(f"run {record.run_id} was {record.status} when it was archived, not finished")
        columns = {name: getattr(record, name) for name in RUN_COLUMNS if name not in _OF_THIS_MACHINE}
        with self._database.write() as connection:
            if sql.run_exists(connection, record.run_id):
                raise NotPossibleNow(f"run {record.run_id} is already here; delete it first to import it again")
            sql.insert_row(connection, "runs", columns)
            seq = 0
            for event in history:
                seq = sql.append_event(connection, replace(event, run_id=record.run_id))
            return sql.update_run(connection, record.run_id, {"event_seq": seq})

    # ---------------------------------------------------------------- saved filters

    def save_filter(self, name: str, query: dict[str, Any]) -> None:
        """Save a query under a name, replacing an older one of that name."""
        with self._database.write() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO filters (name, query) VALUES (?, ?)", (encode("name", name), to_json(query))
            )

    def filters(self) -> dict[str, dict[str, Any]]:
        """Return the saved filters, by name."""
        with self._database.read() as connection:
            return sql.read_filters(connection)

    def remove_filter(self, name: str) -> None:
        """Delete a saved filter if it exists."""
        with self._database.write() as connection:
            connection.execute("DELETE FROM filters WHERE name = ?", (encode("name", name),))


def _implied(before: RunRecord, event: RunEvent, reason: str, now: float) -> dict[str, Any]:
    """Return the changes of other columns that an event implies."""
    columns: dict[str, Any] = {}
    if event is RunEvent.DISPATCHED:
        columns = {"queue_reason": ""}
    elif event is RunEvent.STARTED and not before.started_at:
        columns = {"started_at": now}  # of the first attempt: the run's age, not the attempt's
    elif event in (RunEvent.PAUSED, RunEvent.RESUMED):
        columns = {"reason": reason}
    elif event is RunEvent.FAULTED:
        columns = {"reason": reason, "fault_reason": reason}
    elif event is RunEvent.RETRIED:
        columns = {"attempt": before.attempt + 1, "reason": "", "fault_reason": ""}
    if (outcome := OUTCOMES.get(event)) is not None:
        # A run that is given up ends with the reason of its fault, unless a better one is known.
        final_reason = reason or (before.fault_reason if event is RunEvent.GIVEN_UP else "")
        columns = {"outcome": outcome, "reason": final_reason, "finished_at": now, "queue_reason": ""}
    return columns
