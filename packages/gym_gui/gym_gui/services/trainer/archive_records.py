"""A run's record, events and configs as members of an archive, without secrets and machine-specific values."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from mosaic_wire.files import SEAL, json_bytes, open_plain, parse_json, read_json_object, unseal
from mosaic_wire.ids import is_run_id
from mosaic_wire.redaction import REDACTED, is_secret_key, is_secret_ref, redact_text
from pydantic import TypeAdapter, ValidationError

from gym_gui.services.trainer.errors import ArchiveRefused, InvalidConfig
from gym_gui.services.trainer.fsm import RunStatus
from gym_gui.services.trainer.records import HistoryEvent, RunRecord
from gym_gui.services.trainer.validation.json_document import read_config_text

_OF_THE_DAEMON = frozenset(
    {
        *("pid", "start_ticks", "boot_id", "pid_namespace", "mark", "run_token_sha256", "session_token_sha256"),
        *("worker_instance", "lifecycle_seq", "cancel_requested", "cancel_reason", "pause_requested"),
        *("paused_by_signal", "released", "stalled", "no_progress", "claimed", "gpu_ids", "queue_reason", "job_id"),
    }
)
"""Columns that are meaningful only on the machine that ran the run"""

_REQUIRED = ("run_id", "status", "outcome", "name", "worker_type", "algo", "env_id", "created_at", "finished_at")
_RECORD_BYTES = 1 << 20
_HISTORY_BYTES = 64 << 20
_MAX_CONFIG_BYTES = 4 << 20


def record_bytes(record: RunRecord, secrets: Iterable[str] = (), config: Path = Path()) -> bytes:
    """Return `run.json` of this run, with the names of its config (its worker may have registered others)."""
    document = {name: value for name, value in dataclasses.asdict(record).items() if name not in _OF_THE_DAEMON}
    return _json(_redacted({**document, **_names_in(config)}, tuple(secrets)), indent=1)


def history_bytes(events: Sequence[HistoryEvent], secrets: Iterable[str] = ()) -> bytes:
    """Return `story.jsonl`: one event per line, oldest first."""
    known = tuple(secrets)
    return b"".join(_json(_redacted(dataclasses.asdict(event), known)) for event in events)


def config_bytes(path: Path, secrets: Iterable[str] = ()) -> bytes:
    """Return a config file with remaining secrets redacted; an unreadable one is treated as text."""
    known = tuple(secrets)
    with open_plain(path) as stream:
        text = stream.read(_MAX_CONFIG_BYTES).decode("utf-8", "replace")
    try:
        document = unseal(parse_json(text))
        return json_bytes(_redacted(document, known), sealed=SEAL in text)
    except (ValueError, TypeError, AttributeError):
        return redact_text(text, known).encode()


def read_record(path: Path) -> RunRecord:
    """Return the record of an archive; raise ArchiveRefused unless it is a valid one of a finished run."""
    document = _read_object(_bounded(path, _RECORD_BYTES), "run.json")
    if missing := [name for name in _REQUIRED if name not in document]:
        raise ArchiveRefused(f"run.json lacks {', '.join(missing)}")
    if not is_run_id(document["run_id"]):
        raise ArchiveRefused(f"run.json names no run: {str(document['run_id'])[:60]!r} is not a run id")
    hints = typing.get_type_hints(RunRecord)
    values = {
        name: document[name] if name in document and name not in _OF_THE_DAEMON else _empty(hint)
        for name, hint in hints.items()
    }
    record = _typed(_RECORD, values, "run.json")
    if record.status is not RunStatus.TERM or record.outcome is None:
        raise ArchiveRefused(
            f"run {record.run_id} was {record.status} when it was packed; only finished runs are imported"
        )
    if record.parent is not None and not is_run_id(record.parent.run_id):
        raise ArchiveRefused("run.json: parent.run_id is not a run id")
    if record.submitted_by and not is_run_id(record.submitted_by):
        raise ArchiveRefused("run.json: submitted_by is not a run id")
    for name, value in _names_in(path.with_name("config") / "config.json").items():
        if value != (expected := getattr(record, name)):  # a resumed run would use the config
            raise ArchiveRefused(
                f"config/config.json names the {name} {value[:100]!r}, run.json {expected!r}: "
                "the archive was changed or mixes two runs; export the run again"
            )
    return record


def _names_in(config: Path) -> dict[str, str]:
    """Return the worker, algorithm and environment that a config names; empty for an unusable config."""
    try:
        worker = read_json_object(config, max_bytes=_MAX_CONFIG_BYTES)["metadata"]["worker"]
        return {name: str(worker["config"][name]) for name in ("algo", "env_id")} | {"worker_type": str(worker["type"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def read_history(path: Path, run_id: str) -> tuple[HistoryEvent, ...]:
    """Return the events of an archive, oldest first; raise ArchiveRefused for other content."""
    statuses = {"", *RunStatus}
    events = []
    for number, line in enumerate(_bounded(path, _HISTORY_BYTES).splitlines(), 1):
        where = f"story.jsonl, line {number}"
        event = _typed(_EVENT, _read_object(line, where), where)
        if event.run_id != run_id or {event.from_status, event.to_status} - statuses:
            raise ArchiveRefused(f"{where} is not an event of run {run_id}")
        events.append(event)
    return tuple(sorted(events, key=lambda event: event.seq))


_RECORD = TypeAdapter(RunRecord)
_EVENT = TypeAdapter(HistoryEvent)


_T = TypeVar("_T")


def _typed(adapter: TypeAdapter[_T], values: Mapping[str, Any], where: str) -> _T:
    try:
        return adapter.validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ArchiveRefused(f"{where}: {place}: {first['msg']}") from None


def _bounded(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except FileNotFoundError:
        raise ArchiveRefused(f"the archive has no {path.name}") from None
    if len(data) > limit:
        raise ArchiveRefused(f"{path.name} is larger than {limit} bytes")
    return data


def _read_object(data: bytes, where: str) -> dict[str, Any]:
    try:
        return read_config_text(data)
    except InvalidConfig as error:
        raise ArchiveRefused(f"{where}: {error.problems[0]}") from None


def _empty(hint: Any) -> Any:
    """Return an empty value in the type of a column."""
    origin = typing.get_origin(hint)
    if origin is types.UnionType or hint is type(None):
        return None
    if origin is typing.Literal:
        return typing.get_args(hint)[0]
    kind = origin or hint
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return None
    return [] if kind is tuple else kind()


def _redacted(value: Any, secrets: tuple[str, ...]) -> Any:
    """Redact like `redact_document`, but keep references to secrets, which are names."""
    if is_secret_ref(value):
        return dict(value)
    if isinstance(value, Mapping):
        return {
            key: REDACTED if is_secret_key(str(key)) and isinstance(item, str) and item else _redacted(item, secrets)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_redacted(item, secrets) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN
    return redact_text(value, secrets) if isinstance(value, str) else value


def _json(document: Any, *, indent: int | None = None) -> bytes:
    return json.dumps(document, indent=indent, allow_nan=False).encode() + b"\n"
