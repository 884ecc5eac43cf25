"""What Weights & Biases keeps of a run on this machine: config, history, summary and system metrics, without a network.

    log = WandbLog([folder.file for folder in find_wandb_folders(run_dir / "wandb")])
    while log.read():
        …
    shown = log.snapshot()

A run of ours that was resumed has several files; they are read as one, in their order. `read` is for a thread; what
`snapshot` returns is not changed any more.
"""

from __future__ import annotations

import json
from array import array
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_gui.services.analytics.wandb_records import NotAWandbFile, RecordLog

Floats = NDArray[np.float64]
_Path = tuple[str, ...]

_STEP, _TIME, _RUNTIME = "_step", "_timestamp", "_runtime"
_OWN = frozenset({_STEP, _TIME, _RUNTIME, "_wandb"})
"""Keys that W&B itself adds"""
_OUTPUT_LINES = 200
_MOST_NESTED = 20


@dataclass(frozen=True)
class WandbCurve:
    """One key's numbers, against the steps they were logged for and the time."""

    key: str
    steps: Floats
    times: Floats
    """Unix seconds; nan where the file does not say"""
    values: Floats
    step_name: str = _STEP
    """What counts the steps: the metric that the run chose, or W&B's own counter"""


@dataclass(frozen=True)
class WandbSnapshot:
    """Everything that is shown of a run, at one moment."""

    run_id: str = ""
    entity: str = ""
    project: str = ""
    name: str = ""
    group: str = ""
    tags: tuple[str, ...] = ()
    host: str = ""
    started_at: float = 0.0
    config: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    history: Mapping[str, WandbCurve] = field(default_factory=dict)
    system: Mapping[str, WandbCurve] = field(default_factory=dict)
    output: tuple[str, ...] = ()
    exit_code: int | None = None
    """How it ended; None while it has not, or was killed"""
    rows: int = 0
    """Of the history"""
    skipped_bytes: int = 0
    """Not read because of damage"""
    damaged: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.run_id or self.history or self.config or self.summary or self.system)


class _Column:
    """Numbers of one key and the rows they stand in."""

    def __init__(self) -> None:
        self.rows = array("q")
        self.values = array("d")

    def add(self, row: int, value: float) -> None:
        self.rows.append(row)
        self.values.append(value)


class WandbLog:
    """Reads one run's files, a piece at a time."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._logs = [RecordLog(file) for file in files]
        self._facts: dict[str, Any] = {}
        self._config: dict[_Path, str] = {}
        self._summary: dict[_Path, str] = {}
        """Key, as a path → its value as JSON: of the thousands that a key has in turn, only the last is ever parsed"""
        self._columns: dict[str, _Column] = {}
        self._step_metrics: dict[str, str] = {}
        self._row = 0
        self._system: dict[str, tuple[array[float], array[float]]] = {}
        self._output: deque[str] = deque(maxlen=_OUTPUT_LINES)
        self._exit_code: int | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(log.path for log in self._logs)

    @property
    def has_more(self) -> bool:
        """The last read stopped at its limit."""
        return any(log.has_more for log in self._logs)

    def read(self) -> bool:
        """Take in what was added; whether there was anything. NotAWandbFile or OSError when a file cannot be read."""
        changed = False
        for log in self._logs:
            for record in log.read():
                self._take(record)
                changed = True
            if log.has_more:
                break  # the next file goes on where this one ends
        return changed

    # ------------------------------------------------------------------ one record

    def _take(self, record: Any) -> None:
        if record.HasField("history"):
            self._take_history(record.history)
        elif record.HasField("stats"):
            self._take_stats(record.stats)
        elif record.HasField("summary"):
            _change(self._summary, record.summary)
        elif record.HasField("config"):
            _change(self._config, record.config)
        elif record.HasField("run"):
            self._take_run(record.run)
        elif record.HasField("metric"):
            name = record.metric.name or record.metric.glob_name
            if name and record.metric.step_metric:
                self._step_metrics[name] = record.metric.step_metric
        elif record.HasField("exit"):
            self._exit_code = record.exit.exit_code
        elif record.HasField("output_raw"):
            self._output.extend(record.output_raw.line.splitlines())
        elif record.HasField("output"):
            self._output.extend(record.output.line.splitlines())

    def _take_run(self, run: Any) -> None:
        self._exit_code = None  # it goes on
        for name in ("run_id", "entity", "project", "display_name", "run_group", "host"):
            if value := getattr(run, name):
                self._facts[name] = value
        if run.tags:
            self._facts["tags"] = tuple(run.tags)
        if run.HasField("start_time") and "started_at" not in self._facts:
            self._facts["started_at"] = run.start_time.seconds + run.start_time.nanos / 1e9
        _change(self._config, run.config)
        _change(self._summary, run.summary)

    def _take_history(self, history: Any) -> None:
        row, self._row = self._row, self._row + 1
        has_step = False
        for item in history.item:
            key = ".".join(item.nested_key) or item.key
            has_step = has_step or key == _STEP
            try:
                self._column(key).add(row, float(item.value_json))  # nearly always a number
            except ValueError:
                self._take_value(key, _value_of(item), row)
        if history.HasField("step") and not has_step:
            self._column(_STEP).add(row, float(history.step.num))

    def _take_value(self, key: str, value: Any, row: int, depth: int = 0) -> None:
        """Numbers are kept; what a dictionary holds is shown under `outer.inner`, as W&B names it."""
        if isinstance(value, bool | int | float):
            self._column(key).add(row, float(value))
        elif isinstance(value, dict) and "_type" not in value and depth < _MOST_NESTED:
            for name, inner in value.items():
                self._take_value(f"{key}.{name}", inner, row, depth + 1)

    def _column(self, key: str) -> _Column:
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = _Column()
        return column

    def _take_stats(self, stats: Any) -> None:
        moment = stats.timestamp.seconds + stats.timestamp.nanos / 1e9
        for item in stats.item:
            value = _value_of(item)
            if isinstance(value, int | float) and not isinstance(value, bool):
                times, values = self._system.setdefault(item.key, (array("d"), array("d")))
                times.append(moment)
                values.append(float(value))

    # ------------------------------------------------------------------ what is shown

    def snapshot(self) -> WandbSnapshot:
        """A copy of what is known now."""
        facts = self._facts
        return WandbSnapshot(
            run_id=facts.get("run_id", ""),
            entity=facts.get("entity", ""),
            project=facts.get("project", ""),
            name=facts.get("display_name", ""),
            group=facts.get("run_group", ""),
            tags=facts.get("tags", ()),
            host=facts.get("host", ""),
            started_at=facts.get("started_at", 0.0),
            config=_document(self._config),
            summary=_document(self._summary),
            history={
                key: self._curve(key)
                for key, column in sorted(self._columns.items())
                if key not in _OWN and column.rows
            },
            system={key: _system_curve(key, *columns) for key, columns in sorted(self._system.items())},
            output=tuple(self._output),
            exit_code=self._exit_code,
            rows=self._row,
            skipped_bytes=sum(log.skipped_bytes for log in self._logs),
            damaged=sum(log.damaged for log in self._logs),
        )

    def _curve(self, key: str) -> WandbCurve:
        column = self._columns[key]
        rows = np.array(column.rows, np.int64)
        values = np.array(column.values, np.float64)
        chosen = self._step_metric_of(key)
        steps = self._at_rows(chosen, rows)
        missing = np.isnan(steps)
        if missing.any():  # logged without the metric it should be drawn against
            own = self._at_rows(_STEP, rows)
            if missing.all():
                steps, chosen = own, _STEP
            else:
                keep = ~missing
                rows, values, steps = rows[keep], values[keep], steps[keep]
        if np.isnan(steps).any():
            steps = rows.astype(np.float64)
        finite = np.isfinite(values)
        return WandbCurve(key, steps[finite], self._at_rows(_TIME, rows)[finite], values[finite], chosen)

    def _step_metric_of(self, key: str) -> str:
        """The metric that counts this key's steps: its own, or that of the first pattern it fits."""
        for name, metric in self._step_metrics.items():
            if metric != key and (name == key or fnmatchcase(key, name)):
                return metric
        return _STEP

    def _at_rows(self, key: str, rows: NDArray[np.int64]) -> Floats:
        """The values of a key in these rows; nan where it has none."""
        found = np.full(len(rows), np.nan)
        column = self._columns.get(key)
        if column is None or not len(column.rows):
            return found
        theirs = np.array(column.rows, np.int64)
        places = np.minimum(np.searchsorted(theirs, rows), len(theirs) - 1)
        fitting = theirs[places] == rows
        found[fitting] = np.array(column.values, np.float64)[places[fitting]]
        return found


def _system_curve(key: str, times: array[float], values: array[float]) -> WandbCurve:
    moments = np.array(times, np.float64)
    elapsed = moments - (moments[0] if len(moments) else 0.0)
    return WandbCurve(key, elapsed, moments, np.array(values, np.float64), _RUNTIME)


def _value_of(item: Any) -> Any:
    """A value in whichever form this version of W&B wrote it."""
    for name in ("number", "integer", "boolean", "text"):
        if item.HasField(name):
            return getattr(item, name)
    return _parsed(item.json or item.value_json)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _change(known: dict[_Path, str], changes: Any) -> None:
    """Apply W&B's updates and removals."""
    for item in changes.update:
        path = tuple(item.nested_key) or (item.key,)
        known.pop(path, None)  # what came last counts, also when it is a part of another key
        known[path] = item.value_json
    for item in changes.remove:
        path = tuple(item.nested_key) or (item.key,)
        for other in [other for other in known if other[: len(path)] == path]:
            del known[other]


def _document(values: Mapping[_Path, str]) -> dict[str, Any]:
    """Paths and their values as one nested document."""
    document: dict[str, Any] = {}
    for path, text in values.items():
        place = document
        for name in path[:-1]:
            inner = place.get(name)
            if not isinstance(inner, dict):
                inner = place[name] = {}
            place = inner
        place[path[-1]] = _parsed(text)
    return document


__all__ = ["NotAWandbFile", "WandbCurve", "WandbLog", "WandbSnapshot"]
