"""The registry's SQL, one small function a statement; each runs inside a transaction of the caller."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from sqlite3 import Connection
from typing import Any

from gym_gui.services.trainer.errors import NotPossibleNow, RegistryError, RunNotFound, StaleRun
from gym_gui.services.trainer.records import RunQuery, RunRecord, StoryEvent
from gym_gui.services.trainer.registry_rows import (
    EVENT_COLUMNS,
    RUN_COLUMNS,
    encode,
    event_from_row,
    key_sha256,
    run_from_row,
)

_RUN = ", ".join(RUN_COLUMNS)
_EVENT = ", ".join(EVENT_COLUMNS)

_SEARCHED = " || char(10) || ".join(("name", "algo", "env_id", "notes"))
_MIN_OF_ID = 4
"""Characters of a text that may be the beginning or the end of an id; within ids, which are random, nothing is found"""


def run_exists(connection: Connection, run_id: str) -> bool:
    """Tell whether there is a run with exactly this id."""
    found = connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (encode("run_id", run_id),)).fetchone()
    return found is not None


def read_run(connection: Connection, run_id: str) -> RunRecord:
    """Return the run with exactly this id, or raise RunNotFound."""
    row = connection.execute(f"SELECT {_RUN} FROM runs WHERE run_id = ?", (encode("run_id", run_id),)).fetchone()
    if row is None:
        raise RunNotFound(run_id)
    return run_from_row(row)


def run_of_key(connection: Connection, idempotency_key: str, fingerprint: str) -> RunRecord | None:
    """Return the run that was submitted with this key; the empty key names none. Refuse another submission's key."""
    if not idempotency_key:
        return None
    row = connection.execute(
        f"SELECT {_RUN}, fingerprint FROM runs JOIN submissions USING (run_id) WHERE key_sha256 = ?",
        (key_sha256(idempotency_key),),
    ).fetchone()
    if row is None:
        return None
    run = run_from_row(row[:-1])
    if fingerprint and row[-1] not in ("", fingerprint):
        raise NotPossibleNow(
            f"this idempotency key was used for run {run.run_id}, which is another one ({run.name}); "
            "take a new key, or submit that run's config with it"
        )
    return run


def select_runs(connection: Connection, tail: str, values: Iterable[Any] = ()) -> list[RunRecord]:
    """Return the runs that `WHERE <tail>` selects; the tail is our own SQL, foreign text goes into the values."""
    rows = connection.execute(f"SELECT {_RUN} FROM runs WHERE {tail}", tuple(values)).fetchall()
    return [run_from_row(row) for row in rows]


def insert_row(connection: Connection, table: str, columns: Mapping[str, Any]) -> int:
    """Insert a row and return its rowid."""
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    values = [encode(name, value) for name, value in columns.items()]
    return connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", values).lastrowid or 0


def update_run(
    connection: Connection, run_id: str, columns: Mapping[str, Any], *, expected: str | None = None
) -> RunRecord:
    """Change columns of a run; with `expected` only while its status is still that one (StaleRun otherwise)."""
    assignments = ", ".join(f"{name} = ?" for name in columns)
    values = [encode(name, value) for name, value in columns.items()]
    guard = "run_id = ?" if expected is None else "run_id = ? AND status = ?"
    values += [run_id] if expected is None else [run_id, expected]
    changed = connection.execute(f"UPDATE runs SET {assignments} WHERE {guard} RETURNING {_RUN}", values).fetchall()
    if not changed:
        raise StaleRun(run_id, expected or "there", read_run(connection, run_id).status)
    return run_from_row(changed[0])


def append_event(connection: Connection, event: StoryEvent) -> int:
    """Append to the story and return the event's new number; the number it came with is not looked at."""
    columns = {name: getattr(event, name) for name in EVENT_COLUMNS if name != "seq"}
    return insert_row(connection, "events", columns)


def select_events(connection: Connection, since_seq: int, run_id: str = "", limit: int = -1) -> list[StoryEvent]:
    """Return events after a number, in order: of one run, or with "" of all; a negative limit is none."""
    condition, values = ("run_id = ? AND seq > ?", (run_id, since_seq)) if run_id else ("seq > ?", (since_seq,))
    rows = connection.execute(f"SELECT {_EVENT} FROM events WHERE {condition} ORDER BY seq LIMIT ?", (*values, limit))
    return [event_from_row(row) for row in rows.fetchall()]


def newest_seq(connection: Connection) -> int:
    """Return the newest number given to an event, also when that event was removed since."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    return int(row[0]) if row else 0


def ids_that_begin_with(connection: Connection, prefix: str) -> list[str]:
    """Return the matching run ids, newest run first."""
    condition, values = _begins_with(prefix)
    rows = connection.execute(f"SELECT run_id FROM runs WHERE {condition} ORDER BY number DESC", values)
    return [row[0] for row in rows.fetchall()]


def id_with(connection: Connection, part: str) -> str | None:
    """Return the newest id that begins or ends with these characters; reads the index of the ids alone."""
    size = len(part)
    condition = f"? IN (substr(run_id, 1, {size}), substr(run_id, -{size}))"
    row = connection.execute(f"SELECT max(run_id) FROM runs WHERE {condition}", (encode("run_id", part),)).fetchone()
    return None if row[0] is None else str(row[0])


def count_runs(connection: Connection, where: str, values: Iterable[Any]) -> int:
    """Count the runs that a condition selects."""
    return int(connection.execute(f"SELECT COUNT(*) FROM runs WHERE {where}", tuple(values)).fetchone()[0])


def conditions_of(query: RunQuery) -> tuple[str, list[Any]]:
    """Turn a query into a WHERE condition and its values."""
    conditions: list[str] = []
    values: list[Any] = []

    def require(condition: str, *bound: Any) -> None:
        conditions.append(condition)
        values.extend(encode("text", value) for value in bound)

    if not query.include_archived:
        # Nearly every run is not archived; the plus keeps SQLite from preferring that index to a selective one.
        narrow = query.statuses or query.outcomes or query.tags or query.run_id_prefix or query.submitted_by
        require("+archived = 0" if narrow else "archived = 0")
    if query.statuses:
        require(f"status IN ({', '.join('?' * len(query.statuses))})", *query.statuses)
    if query.outcomes:
        require(f"outcome IN ({', '.join('?' * len(query.outcomes))})", *query.outcomes)
    for tag in dict.fromkeys(query.tags):
        require("number IN (SELECT number FROM run_tags WHERE tag = ?)", tag)
    if query.text:
        found, bound = f"instr(lower({_SEARCHED}), lower(?)) > 0", [query.text]
        if len(query.text) >= _MIN_OF_ID:
            ends = (f"upper(?) = substr(run_id, {place})" for place in (f"1, {len(query.text)}", -len(query.text)))
            found, bound = " OR ".join((found, *ends)), bound * 3
        require(f"({found})", *bound)
    if query.submitted_by:
        require("submitted_by = ?", query.submitted_by)
    if query.before_number:
        require("number < ?", query.before_number)
    if query.run_id_prefix:
        condition, bounds = _begins_with(query.run_id_prefix)
        require(condition, *bounds)
    return " AND ".join(conditions) or "TRUE", values


def _begins_with(prefix: str) -> tuple[str, tuple[str, str]]:
    # A range, unlike LIKE, can use the index and knows no wildcards.
    wanted = encode("run_id", prefix.strip().upper())
    return "run_id >= ? AND run_id < ?", (wanted, wanted + "\U0010ffff")


def read_filters(connection: Connection) -> dict[str, dict[str, Any]]:
    """Return the saved filters, by name."""
    rows = connection.execute("SELECT name, query FROM filters ORDER BY name").fetchall()
    try:
        return {name: dict(json.loads(query)) for name, query in rows}
    except (ValueError, TypeError) as error:
        raise RegistryError(f"a saved filter in the registry is damaged ({error}); restore a backup") from error
