"""The registry of runs: what was submitted, where each run is in its life, and the story of how it came there.

Every call is synchronous, safe from several threads, and one transaction: what returned is on disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from sqlite3 import Connection
from types import TracebackType
from typing import Any

from gym_gui.services.trainer import registry_queries as sql
from gym_gui.services.trainer import registry_schema
from gym_gui.services.trainer.errors import (
    AmbiguousRunId,
    ArchiveRefused,
    NotPossibleNow,
    RegistryError,
    RunNotFound,
    StaleRun,
)
from gym_gui.services.trainer.fsm import OUTCOMES, RunEvent, RunStatus, advance
from gym_gui.services.trainer.records import Headline, NewRun, RunPage, RunQuery, RunRecord, StoryEvent
from gym_gui.services.trainer.registry_database import RegistryDatabase
from gym_gui.services.trainer.registry_rows import RUN_COLUMNS, check_changes, encode, key_sha256, to_json

# `list` is a method of the registry, so its annotations cannot say list[…].
Runs = list[RunRecord]
Story = list[StoryEvent]

SUBMITTED = "submitted"
"""Kind of the first event of every story."""

_OF_THIS_MACHINE = {
    *("number", "event_seq", "pid", "start_ticks", "boot_id", "pid_namespace", "mark", "worker_instance", "claimed"),
    *("run_token_sha256", "session_token_sha256", "cancel_requested", "cancel_reason", "pause_requested"),
    *("paused_by_signal", "released", "stalled", "no_progress"),
}
"""Columns that an archive does not bring along."""


class RunRegistry:
    """The database of one home; opens and migrates it, or says why it cannot."""

    def __init__(
        self,
        database: Path,
        *,
        clock: Callable[[], float] = time.time,
        fail_write: Callable[[], None] | None = None,
    ) -> None:
        self._clock = clock
        self._database = RegistryDatabase(database, registry_schema.MIGRATIONS, fail_write=fail_write)

    def __enter__(self) -> RunRegistry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; closing twice is no error."""
        self._database.close()

    @property
    def fail_write(self) -> Callable[[], None] | None:
        """Test seam: called before each COMMIT; what it raises is a crash at this point."""
        return self._database.fail_write

    @fail_write.setter
    def fail_write(self, hook: Callable[[], None] | None) -> None:
        self._database.fail_write = hook

    # ---------------------------------------------------------------- submitting

    def submit(self, new: NewRun, *, idempotency_key: str = "", fingerprint: str = "") -> tuple[RunRecord, bool]:
        """Accept a run as INIT; True beside it when this key had already made one (which is returned instead).

        `fingerprint`: what was submitted; NotPossibleNow when this key had made a run of something else.
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
            event = StoryEvent(0, new.run_id, now, SUBMITTED, "", RunStatus.INIT, "", {}, 1)
            seq = sql.append_event(connection, event)
            return sql.update_run(connection, new.run_id, {"event_seq": seq}), False

    def known_submission(self, idempotency_key: str, fingerprint: str = "") -> RunRecord | None:
        """Return the run that this key made; NotPossibleNow when that was of something else."""
        with self._database.read() as connection:
            return sql.run_of_key(connection, idempotency_key, fingerprint)

    # ---------------------------------------------------------------- looking

    def get(self, run_id: str) -> RunRecord:
        """Return the run with exactly this id."""
        with self._database.read() as connection:
            return sql.read_run(connection, run_id)

    def find(self, prefix: str) -> RunRecord:
        """Return the one run whose id begins like this; small letters will do."""
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

    def list(self, query: RunQuery | None = None) -> RunPage:
        """Return the runs that match (without a query: all that are not archived), newest first."""
        query = query or RunQuery()
        where, values = sql.conditions_of(query)
        limit = query.limit if query.limit > 0 else -1
        with self._database.read() as connection:
            runs = sql.select_runs(connection, f"{where} ORDER BY number DESC LIMIT ?", (*values, limit))
            is_counted = len(runs) != limit or query.before_number
            matching = len(runs) if is_counted else sql.count_runs(connection, where, values)
            return RunPage(tuple(runs), matching, sql.newest_seq(connection))

    def unfinished(self) -> Runs:
        """Return every run that is not over, in order of submission."""
        with self._database.read() as connection:
            return sql.select_runs(connection, "status <> 'TERM' ORDER BY number")

    def unfinished_of(self, submitter: str) -> Runs:
        """Return the runs that the worker of this run asked for and that are not over."""
        with self._database.read() as connection:
            return sql.select_runs(connection, "status <> 'TERM' AND submitted_by = ? ORDER BY number", (submitter,))

    def queue(self) -> Runs:
        """Return the runs that wait, in the order in which they should start."""
        with self._database.read() as connection:
            return sql.select_runs(connection, "status = 'INIT' ORDER BY priority DESC, number")

    # ---------------------------------------------------------------- changing

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
        """Change the status as the event says and append it to the story: the only writer of a status.

        `expected` makes it a compare-and-swap on what the caller saw. `changes` are further columns of the
        record; they win over what the event implies (see `_implied`).
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
        self, connection: Connection, run_id: str, event: RunEvent, expected: RunStatus | None, reason: str,
        payload: Mapping[str, Any], changes: Mapping[str, Any],
    ) -> RunRecord:  # fmt: skip
        before = sql.read_run(connection, run_id)
        if expected is not None and before.status is not expected:
            raise StaleRun(run_id, expected, before.status)
        following = advance(run_id, before.status, event)
        now = self._clock()
        columns = {**_implied(before, event, reason, now), **changes, "status": following}
        attempt = columns.get("attempt", before.attempt)
        told = StoryEvent(0, run_id, now, event, before.status, following, reason, dict(payload), attempt)
        columns["event_seq"] = sql.append_event(connection, told)
        return sql.update_run(connection, run_id, columns, expected=before.status)

    def record(
        self, run_id: str, kind: str, *, reason: str = "", payload: Mapping[str, Any] | None = None, **changes: Any
    ) -> RunRecord:
        """Append a fact to the story (with kind "" none) and change columns, without a change of status."""
        check_changes(changes)
        with self._database.write() as connection:
            before = sql.read_run(connection, run_id)
            columns = dict(changes)
            if kind:
                attempt = columns.get("attempt", before.attempt)
                told = StoryEvent(0, run_id, self._clock(), kind, "", "", reason, dict(payload or {}), attempt)
                columns["event_seq"] = sql.append_event(connection, told)
            return sql.update_run(connection, run_id, columns) if columns else before

    def update_headlines(self, headlines: Mapping[str, Headline]) -> None:
        """Store the newest numbers of many runs, without an fsync; unknown runs are passed over."""
        if not headlines:
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
            for run_id, new in headlines.items()
        ]
        with self._database.write(durable=False) as connection:
            connection.executemany(
                "UPDATE runs SET step = ?, total = coalesce(nullif(?, 0), total), episodic_return = ?, sps = ?,"
                " seconds_since_step = ?, metrics = coalesce(?, metrics) WHERE run_id = ?",
                rows,
            )

    # ---------------------------------------------------------------- stories

    def story(self, run_id: str, since_seq: int = 0) -> Story:
        """Return what happened to a run, in order."""
        with self._database.read() as connection:
            if not sql.run_exists(connection, run_id):
                raise RunNotFound(run_id)
            return sql.select_events(connection, since_seq, run_id)

    def events_since(self, seq: int, *, run_id: str = "", limit: int = 1000) -> Story:
        """Return events after this one, in order; ask again from the last one while `limit` come back."""
        with self._database.read() as connection:
            return sql.select_events(connection, seq, run_id, limit)

    def last_seq(self) -> int:
        """Return the newest number given to an event (which may have been removed since)."""
        with self._database.read() as connection:
            return sql.newest_seq(connection)

    # ---------------------------------------------------------------- removing and bringing back

    def remove(self, run_id: str) -> None:
        """Forget a run, its story and its idempotency key; refused while it has, or may have, a process."""
        with self._database.write() as connection:
            run = sql.read_run(connection, run_id)
            if run.status.is_active:
                raise NotPossibleNow(f"run {run_id} is {run.status}: cancel it first, then delete it")
            # Story, tags and key follow by their foreign keys.
            connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))

    def restore(self, record: RunRecord, story: Sequence[StoryEvent]) -> RunRecord:
        """Take in a finished run from an archive under its own id, with new numbers for it and its story."""
        if not record.status.is_terminal or record.outcome is None:
            raise ArchiveRefused(f"run {record.run_id} was {record.status} when it was archived, not finished")
        columns = {name: getattr(record, name) for name in RUN_COLUMNS if name not in _OF_THIS_MACHINE}
        with self._database.write() as connection:
            if sql.run_exists(connection, record.run_id):
                raise NotPossibleNow(f"run {record.run_id} is already here; delete it first to import it again")
            sql.insert_row(connection, "runs", columns)
            seq = 0
            for told in story:
                seq = sql.append_event(connection, replace(told, run_id=record.run_id))
            return sql.update_run(connection, record.run_id, {"event_seq": seq})

    # ---------------------------------------------------------------- saved filters

    def save_filter(self, name: str, query: dict[str, Any]) -> None:
        """Keep a query under a name; an older one of that name is replaced."""
        with self._database.write() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO filters (name, query) VALUES (?, ?)", (encode("name", name), to_json(query))
            )

    def filters(self) -> dict[str, dict[str, Any]]:
        """Return the saved filters, by name."""
        with self._database.read() as connection:
            return sql.read_filters(connection)

    def remove_filter(self, name: str) -> None:
        """Forget a saved filter; one that is not there is no error."""
        with self._database.write() as connection:
            connection.execute("DELETE FROM filters WHERE name = ?", (encode("name", name),))


def _implied(before: RunRecord, event: RunEvent, reason: str, now: float) -> dict[str, Any]:
    """Return what an event means for columns other than the status."""
    columns: dict[str, Any] = {}
    if event is RunEvent.DISPATCHED:
        columns = {"queue_reason": ""}
    elif event is RunEvent.STARTED and not before.started_at:
        columns = {"started_at": now}  # of the first attempt: the run's age, not the attempt's
    elif event is RunEvent.FAULTED:
        columns = {"reason": reason, "fault_reason": reason}
    elif event is RunEvent.RETRIED:
        columns = {"attempt": before.attempt + 1, "reason": "", "fault_reason": ""}
    if (outcome := OUTCOMES.get(event)) is not None:
        # A run that is given up ends for the reason it faulted for, unless a better one is known.
        last_words = reason or (before.fault_reason if event is RunEvent.GIVEN_UP else "")
        columns = {"outcome": outcome, "reason": last_words, "finished_at": now, "queue_reason": ""}
    return columns
