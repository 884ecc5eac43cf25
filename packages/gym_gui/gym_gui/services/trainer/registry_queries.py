"""The SQL of the registry, one function per statement; the caller provides the transaction."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from sqlite3 import Connection
from typing import Any

from gym_gui.services.trainer.errors import NotPossibleNow, RegistryError, RunNotFound, StaleRun
from gym_gui.services.trainer.fsm import RunOutcome, RunStatus
from gym_gui.services.trainer.records import HistoryEvent, Parent, RunQuery, RunRecord

RUN_COLUMNS = tuple(field.name for field in fields(RunRecord))
EVENT_COLUMNS = tuple(field.name for field in fields(HistoryEvent))

KEPT_BY_THE_REGISTRY = frozenset({"run_id", "number", "status", "outcome", "reason", "created_at", "event_seq"})
"""Columns that only the registry itself writes"""


def _finite(value: Any) -> Any:
    """Return a JSON value with NaN and infinities replaced by null, which all parsers accept."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: Any) -> str:
    """Return strict JSON; objects of other types become their text."""
    try:
        return json.dumps(value, allow_nan=False, default=str, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, default=str, separators=(",", ":"))


def _object_from_json(text: str) -> dict[str, Any]:
    if text == "{}":
        return {}
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError(f"expected an object, found {type(document).__name__}")
    return document


def _strings_from_json(text: str) -> tuple[str, ...]:
    return () if text == "[]" else tuple(json.loads(text))


def _distinct_to_json(values: tuple[str, ...]) -> str:
    return to_json(list(dict.fromkeys(values)))


_ENCODERS: dict[str, Callable[[Any], str | None]] = {
    "result": lambda value: None if value is None else to_json(value),
    "parent": lambda value: None if value is None else to_json(asdict(value)),
    "tags": _distinct_to_json,
    "gpu_ids": _distinct_to_json,
    "capabilities": to_json,
    "metrics": to_json,
    "extras": to_json,
    "payload": to_json,
}

# A dict lookup is several times faster than an enum call, and a listing makes ten thousand.
_STATUSES: dict[str, RunStatus] = {status.value: status for status in RunStatus}
_OUTCOMES: dict[str | None, RunOutcome | None] = {None: None, **{outcome.value: outcome for outcome in RunOutcome}}

_DECODERS: dict[str, Callable[[Any], Any]] = {
    "status": _STATUSES.__getitem__,
    "outcome": _OUTCOMES.__getitem__,
    "result": lambda value: None if value is None else _object_from_json(value),
    "parent": lambda text: None if text is None else Parent(**json.loads(text)),
    "tags": _strings_from_json,
    "gpu_ids": _strings_from_json,
    "capabilities": _object_from_json,
    "metrics": _object_from_json,
    "extras": _object_from_json,
    "payload": _object_from_json,
    **dict.fromkeys(
        ("archived", "cancel_requested", "paused_by_signal", "released", "stalled", "no_progress", "claimed"), bool
    ),
}

_RUN_DECODERS = tuple((RUN_COLUMNS.index(name), decode) for name, decode in _DECODERS.items() if name in RUN_COLUMNS)
_PAYLOAD = EVENT_COLUMNS.index("payload")


def encode(column: str, value: Any) -> Any:
    """Return a field's value as SQLite stores it."""
    if (encoder := _ENCODERS.get(column)) is not None:
        return encoder(value)
    if isinstance(value, str):
        # A lone surrogate (from a JSON escape or a file name) has no UTF-8 form.
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


def run_from_row(row: sqlite3.Row | tuple[Any, ...]) -> RunRecord:
    """Return the record of a row selected by RUN_COLUMNS."""
    values = list(row)
    try:
        for index, decode in _RUN_DECODERS:
            values[index] = decode(values[index])
    except (ValueError, TypeError, KeyError) as error:
        raise RegistryError(
            f"the registry's row of run {str(row[0])[:40]!r} is damaged ({error}); "
            "restore the database from a backup, or export what is still readable"
        ) from error
    return RunRecord(*values)


def event_from_row(row: sqlite3.Row | tuple[Any, ...]) -> HistoryEvent:
    """Return the event of a row selected by EVENT_COLUMNS."""
    values = list(row)
    try:
        values[_PAYLOAD] = _object_from_json(values[_PAYLOAD])
    except (ValueError, TypeError) as error:
        raise RegistryError(
            f"event {row[0]} of the registry is damaged ({error}); restore the database from a backup"
        ) from error
    return HistoryEvent(*values)


def check_changes(changes: Mapping[str, Any]) -> None:
    """Raise TypeError for an unknown column or one that only the registry writes."""
    if wrong := [name for name in changes if name not in RUN_COLUMNS or name in KEPT_BY_THE_REGISTRY]:
        raise TypeError(f"these columns cannot be changed by a caller: {', '.join(sorted(wrong))}")


def key_sha256(idempotency_key: str) -> str:
    """Return the digest of a client's key."""
    return hashlib.sha256(idempotency_key.encode("utf-8", "replace")).hexdigest()


_RUN = ", ".join(RUN_COLUMNS)
_EVENT = ", ".join(EVENT_COLUMNS)

_SEARCHED = " || char(10) || ".join(("name", "algo", "env_id", "notes"))
_MIN_OF_ID = 4
"""Minimum length of a search text that is compared with the beginnings and ends of ids"""


def run_exists(connection: Connection, run_id: str) -> bool:
    """Return whether a run with exactly this id exists."""
    found = connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (encode("run_id", run_id),)).fetchone()
    return found is not None


def read_run(connection: Connection, run_id: str) -> RunRecord:
    """Return the run with exactly this id, or raise RunNotFound."""
    row = connection.execute(f"SELECT {_RUN} FROM runs WHERE run_id = ?", (encode("run_id", run_id),)).fetchone()
    if row is None:
        raise RunNotFound(run_id)
    return run_from_row(row)


def run_of_key(connection: Connection, idempotency_key: str, fingerprint: str) -> RunRecord | None:
    """Return the run submitted with this key, or None; raise NotPossibleNow if its fingerprint differs."""
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
    """Return the runs that `WHERE <tail>` selects; user input belongs in the values only."""
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
    """Change columns of a run; raise StaleRun when its status is not `expected`."""
    assignments = ", ".join(f"{name} = ?" for name in columns)
    values = [encode(name, value) for name, value in columns.items()]
    guard = "run_id = ?" if expected is None else "run_id = ? AND status = ?"
    values += [run_id] if expected is None else [run_id, expected]
    changed = connection.execute(f"UPDATE runs SET {assignments} WHERE {guard} RETURNING {_RUN}", values).fetchall()
    if not changed:
        raise StaleRun(run_id, expected or "there", read_run(connection, run_id).status)
    return run_from_row(changed[0])


def append_event(connection: Connection, event: HistoryEvent) -> int:
    """Append an event and return its new number; its own `seq` is ignored."""
    columns = {name: getattr(event, name) for name in EVENT_COLUMNS if name != "seq"}
    return insert_row(connection, "events", columns)


def select_events(connection: Connection, since_seq: int, run_id: str = "", limit: int = -1) -> list[HistoryEvent]:
    """Return events after a number in order, of one run or of all (""); a negative limit means none."""
    condition, values = ("run_id = ? AND seq > ?", (run_id, since_seq)) if run_id else ("seq > ?", (since_seq,))
    rows = connection.execute(f"SELECT {_EVENT} FROM events WHERE {condition} ORDER BY seq LIMIT ?", (*values, limit))
    return [event_from_row(row) for row in rows.fetchall()]


def newest_seq(connection: Connection) -> int:
    """Return the highest event number, also of a removed event."""
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    return int(row[0]) if row else 0


def ids_that_begin_with(connection: Connection, prefix: str) -> list[str]:
    """Return the matching run ids, newest run first."""
    condition, values = _begins_with(prefix)
    rows = connection.execute(f"SELECT run_id FROM runs WHERE {condition} ORDER BY number DESC", values)
    return [row[0] for row in rows.fetchall()]


def id_with(connection: Connection, part: str) -> str | None:
    """Return the newest id that begins or ends with these characters."""
    size = len(part)
    condition = f"? IN (substr(run_id, 1, {size}), substr(run_id, -{size}))"
    row = connection.execute(f"SELECT max(run_id) FROM runs WHERE {condition}", (encode("run_id", part),)).fetchone()
    return None if row[0] is None else str(row[0])


def count_runs(connection: Connection, where: str, values: Iterable[Any]) -> int:
    """Count the runs that a condition selects."""
    return int(connection.execute(f"SELECT COUNT(*) FROM runs WHERE {where}", tuple(values)).fetchone()[0])


def conditions_of(query: RunQuery) -> tuple[str, list[Any]]:
    """Return a query as a WHERE condition and its values."""
    conditions: list[str] = []
    values: list[Any] = []

    def require(condition: str, *bound: Any) -> None:
        conditions.append(condition)
        values.extend(encode("text", value) for value in bound)

    if not query.include_archived:
        # Few runs are archived; the plus keeps SQLite from preferring that index to a selective one.
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
    # A range, unlike LIKE, can use the index and has no wildcards.
    first = encode("run_id", prefix.strip().upper())
    return "run_id >= ? AND run_id < ?", (first, first + "\U0010ffff")


def read_filters(connection: Connection) -> dict[str, dict[str, Any]]:
    """Return the saved filters, by name."""
    rows = connection.execute("SELECT name, query FROM filters ORDER BY name").fetchall()
    try:
        return {name: dict(json.loads(query)) for name, query in rows}
    except (ValueError, TypeError) as error:
        raise RegistryError(f"a saved filter in the registry is damaged ({error}); restore a backup") from error
