"""Between records and rows: which fields are stored how."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from gym_gui.services.trainer.errors import RegistryError
from gym_gui.services.trainer.fsm import RunOutcome, RunStatus
from gym_gui.services.trainer.records import Parent, RunRecord, StoryEvent

RUN_COLUMNS = tuple(field.name for field in fields(RunRecord))
EVENT_COLUMNS = tuple(field.name for field in fields(StoryEvent))

KEPT_BY_THE_REGISTRY = frozenset({"run_id", "number", "status", "outcome", "reason", "created_at", "event_seq"})
"""Columns that only the registry itself writes; a caller may change any other."""


def _finite(value: Any) -> Any:
    """Copy a JSON value with NaN and infinities as null: other languages' parsers refuse them."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: Any) -> str:
    """Write JSON that every parser reads; an odd object becomes its text rather than an error in mid-flight."""
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


def _parent_from_json(text: str | None) -> Parent | None:
    return None if text is None else Parent(**json.loads(text))


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

# Looked up, not called: an enum call costs several times as much, and a listing makes ten thousand.
_STATUSES: dict[str, RunStatus] = {status.value: status for status in RunStatus}
_OUTCOMES: dict[str | None, RunOutcome | None] = {None: None, **{outcome.value: outcome for outcome in RunOutcome}}

_DECODERS: dict[str, Callable[[Any], Any]] = {
    "status": _STATUSES.__getitem__,
    "outcome": _OUTCOMES.__getitem__,
    "result": lambda value: None if value is None else _object_from_json(value),
    "parent": _parent_from_json,
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
    """Turn a field's value into what SQLite stores."""
    if (encoder := _ENCODERS.get(column)) is not None:
        return encoder(value)
    if isinstance(value, str):
        # Half a surrogate pair (a JSON escape or a file name can bring one) has no UTF-8 form.
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


def run_from_row(row: sqlite3.Row | tuple[Any, ...]) -> RunRecord:
    """Build the record of a row selected by RUN_COLUMNS."""
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


def event_from_row(row: sqlite3.Row | tuple[Any, ...]) -> StoryEvent:
    """Build the story event of a row selected by EVENT_COLUMNS."""
    values = list(row)
    try:
        values[_PAYLOAD] = _object_from_json(values[_PAYLOAD])
    except (ValueError, TypeError) as error:
        raise RegistryError(
            f"story event {row[0]} of the registry is damaged ({error}); restore the database from a backup"
        ) from error
    return StoryEvent(*values)


def check_changes(changes: Mapping[str, Any]) -> None:
    """Refuse a change of an unknown column or of one that only the registry writes (a programming error)."""
    if wrong := [name for name in changes if name not in RUN_COLUMNS or name in KEPT_BY_THE_REGISTRY]:
        raise TypeError(f"these columns cannot be changed by a caller: {', '.join(sorted(wrong))}")


def key_sha256(idempotency_key: str) -> str:
    """Fingerprint of a client's key: any length, nothing of it readable in the file."""
    return hashlib.sha256(idempotency_key.encode("utf-8", "replace")).hexdigest()
