"""Opens a study, whatever Optuna wrote it into.

study = open_study("sweep/study.journal")
study = open_study("sqlite:///cleanrl_hpopt.db", "tuner_1700000000")

file = open_file(path)              kept, to read again what has changed since
file.summaries(); file.read(name)
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, unquote, urlsplit

from mosaic_wire.files import open_chosen

from gym_gui.services.analytics.studies.study import (
    Direction,
    Distributions,
    NoStudyYet,
    Study,
    StudyError,
    StudySummary,
    Trial,
    TrialState,
    in_order,
)


class StudyFile(Protocol):
    """A file with studies; not to be asked by two threads at once."""

    path: Path

    def summaries(self) -> tuple[StudySummary, ...]:
        """Return the studies of the file."""

    def read(self, name: str) -> Study:
        """Return the study of this name as it is now."""


class SeveralStudies(StudyError):
    """The file holds several studies and none was named."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        super().__init__(f"{path} holds {len(names)} studies, name one of them: {listed}")
        self.names = names


def is_url(address: str) -> bool:
    """Return a database server's address; a path, or `sqlite:///` and a path, is a file."""
    return "://" in address and not address.startswith(("sqlite:", "file:"))


def path_of(address: str | Path) -> Path:
    """Return the file that an address names; StudyError for one that names a server."""
    text = os.fspath(address)
    if "://" not in text:
        return Path(text)
    parts = urlsplit(text)
    if parts.scheme.partition("+")[0] not in ("sqlite", "file") or parts.netloc:
        raise StudyError(f"{parts.scheme} is a database server, not a file")
    # SQLAlchemy's way: three slashes before a relative path, four before an absolute one.
    path = parts.path[1:] if parts.scheme.startswith("sqlite") else parts.path
    return Path(unquote(path))


def open_file(address: str | Path) -> StudyFile:
    """Return the file's reader, chosen by how it begins."""
    path = path_of(address)
    try:
        with open_chosen(path) as stream:
            head = stream.read(len(MAGIC))
    except FileNotFoundError:
        raise NoStudyYet(f"{path} is not there") from None
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror or error}") from None
    if head == MAGIC:
        return SqliteFile(path)
    if not head:
        raise NoStudyYet(f"{path} is empty: no study was written to it yet")
    if head.lstrip()[:1] != b"{":
        raise StudyError(f"{path} is neither an SQLite database nor a journal of Optuna")
    return JournalFile(path)


def open_study(address: str | Path, name: str | None = None) -> Study:
    """Return the study in this file; with several, the one of this name."""
    file = open_file(address)
    if name is None:
        names = tuple(summary.name for summary in file.summaries())
        if not names:
            raise NoStudyYet(f"{file.path} holds no study")
        if len(names) > 1:
            raise SeveralStudies(file.path, names)
        name = names[0]
    return file.read(name)


# ---------------------------------------------------------------- journal reader


_PIECE_BYTES = 1 << 20
_STATES = tuple(TrialState)
_DIRECTIONS = tuple(Direction)


@dataclass
class _StudyRecord:
    name: str
    directions: tuple[Direction, ...]
    user_attrs: dict[str, Any] = field(default_factory=dict)
    system_attrs: dict[str, Any] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)


class JournalFile:
    """All studies of one journal; `read` ingests what was appended since the last call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()
        self._apply: dict[int, Callable[[dict[str, Any]], object]] = {
            0: self._create_study,
            1: lambda log: self._studies.pop(log["study_id"], None),
            2: lambda log: self._note_study("user_attr", log),
            3: lambda log: self._note_study("system_attr", log),
            4: self._create_trial,
            5: self._set_parameter,
            6: self._set_state,
            7: self._report,
            8: self._note_trial,
            # 9: attributes of samplers and pruners, 10: trials that another program discards. Neither is shown.
        }

    def _forget(self) -> None:
        self._offset, self._inode = 0, 0
        self._damaged = 0
        self._studies: dict[int, _StudyRecord] = {}
        self._next_study = 0
        self._trials: list[Trial] = []
        """Trials by their number in operations, which counts over all studies of the file, also deleted ones"""
        self._distributions = Distributions()

    # ------------------------------------------------------------------ public

    def summaries(self) -> tuple[StudySummary, ...]:
        """Return the studies of the journal."""
        self._catch_up()
        return tuple(
            StudySummary(record.name, record.directions, len(record.trials)) for record in self._studies.values()
        )

    def read(self, name: str) -> Study:
        """Return the study of this name as it is now."""
        self._catch_up()
        for record in self._studies.values():
            if record.name == name:
                return self._study(record)
        raise StudyError(f"{self.path} holds no study named {name!r} any more")

    def _study(self, record: _StudyRecord) -> Study:
        notices: tuple[str, ...] = ()
        if self._damaged:
            lines = "one line" if self._damaged == 1 else f"{self._damaged} lines"
            notices = (f"{lines} of {self.path.name} cannot be read and were skipped; a writer was interrupted there",)
        names = record.system_attrs.get("study:metric_names")
        metrics = tuple(map(str, names)) if isinstance(names, list) else ()
        trials, attributes = in_order(record.trials), dict(record.user_attrs)
        return Study(record.name, record.directions, trials, attributes, metrics, self.path, notices)

    # ------------------------------------------------------------------ reading

    def _catch_up(self) -> None:
        try:
            with open_chosen(self.path) as stream:
                status = os.fstat(stream.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._forget()  # another file of this name
                    self._inode = status.st_ino
                stream.seek(self._offset)
                rest = b""
                while piece := stream.read(_PIECE_BYTES):
                    lines, line_end, rest = (rest + piece).rpartition(b"\n")
                    if line_end:
                        self._ingest(lines)
                        self._offset += len(lines) + 1
        except OSError as error:
            raise _unreadable(self.path, error) from None
        if not self._studies and not self._next_study:
            raise NoStudyYet(f"{self.path} holds no study yet")

    def _ingest(self, lines: bytes) -> None:
        operations = self._apply
        for log in self._parsed(lines):
            try:
                apply = operations.get(log["op_code"])
                if apply is not None:
                    apply(log)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError):
                self._damaged += 1

    def _parsed(self, lines: bytes) -> list[Any]:
        """All of them in one go, which is several times quicker than one by one; that way only what does not fit."""
        try:
            found = json.loads(b"[" + lines.replace(b"\n", b",") + b"]")
        except (ValueError, RecursionError):
            found = []
            for line in filter(bytes.strip, lines.splitlines()):
                try:
                    found.append(json.loads(line))
                except (ValueError, RecursionError):
                    if self._offset == 0 and not found:
                        raise StudyError(f"{self.path} is not a journal of Optuna") from None
                    self._damaged += 1
        if self._offset == 0 and found and not (isinstance(found[0], dict) and "op_code" in found[0]):
            raise StudyError(f"{self.path} is not a journal of Optuna")
        return list(found)

    # ------------------------------------------------------------------ operations

    def _create_study(self, log: dict[str, Any]) -> None:
        name = str(log["study_name"])
        if any(record.name == name for record in self._studies.values()):
            return  # another process has created it meanwhile
        directions = tuple(_DIRECTIONS[direction] for direction in log["directions"])
        self._studies[self._next_study] = _StudyRecord(name, directions)
        self._next_study += 1

    def _note_study(self, kind: str, log: dict[str, Any]) -> None:
        record = self._studies.get(log["study_id"])
        if record is not None:
            (record.user_attrs if kind == "user_attr" else record.system_attrs).update(log[kind])

    def _create_trial(self, log: dict[str, Any]) -> None:
        record = self._studies.get(log["study_id"])
        if record is None:
            return
        trial = Trial(len(record.trials), _STATES[log.get("state", 0)], started_at=_seconds(log.get("datetime_start")))
        self._trials.append(trial)
        record.trials.append(trial)
        if len(log) > 4:  # added as a whole, or queued with what it is to try
            self._fill(trial, log)

    def _fill(self, trial: Trial, log: dict[str, Any]) -> None:
        trial.ended_at = _seconds(log.get("datetime_complete"))
        values = log.get("values")
        if values is None and log.get("value") is not None:
            values = [log["value"]]
        trial.values = tuple(map(float, values or ()))
        for name, text in (log.get("distributions") or {}).items():
            self._put(trial, name, log["params"][name], text)
        trial.intermediate = {int(step): float(value) for step, value in (log.get("intermediate_values") or {}).items()}
        trial.user_attrs = dict(log.get("user_attrs") or {})

    def _put(self, trial: Trial, name: str, internal: float, text: str) -> None:
        distribution = self._distributions[text]
        if not distribution.holds(internal):
            raise ValueError(f"{name} is {internal}")
        trial.internals[name] = internal
        trial.distributions[name] = distribution

    def _set_parameter(self, log: dict[str, Any]) -> None:
        trial = self._trials[log["trial_id"]]
        if not trial.state.is_finished:
            self._put(trial, log["param_name"], log["param_value_internal"], log["distribution"])

    def _set_state(self, log: dict[str, Any]) -> None:
        trial, state = self._trials[log["trial_id"]], _STATES[log["state"]]
        if trial.state.is_finished or (state is trial.state and state is TrialState.RUNNING):
            return  # another program was first
        if state is TrialState.RUNNING:
            trial.started_at = _seconds(log.get("datetime_start"))
        if state.is_finished:
            trial.ended_at = _seconds(log.get("datetime_complete"))
        if log.get("values") is not None:
            trial.values = tuple(map(float, log["values"]))
        trial.state = state

    def _report(self, log: dict[str, Any]) -> None:
        trial = self._trials[log["trial_id"]]
        if not trial.state.is_finished:
            trial.intermediate[int(log["step"])] = float(log["intermediate_value"])

    def _note_trial(self, log: dict[str, Any]) -> None:
        trial = self._trials[log["trial_id"]]
        if not trial.state.is_finished:
            trial.user_attrs.update(log["user_attr"])


def _seconds(text: str | None) -> float:
    # With its zone since Optuna 4, this machine's time before.
    return datetime.fromisoformat(text).timestamp() if text else math.nan


def _unreadable(path: Path, error: OSError) -> StudyError:
    if isinstance(error, FileNotFoundError):
        return NoStudyYet(f"{path} is not there")
    return StudyError(f"{path} cannot be read: {error.strerror or error}")


# ---------------------------------------------------------------- sqlite reader


MAGIC = b"SQLite format 3\0"
_WAIT_S = 5.0
"""For a writer that is committing just now"""
_LARGEST_FLOAT32 = 3.4028234663852886e38
_AT_ONCE = 500
"""Names in one question; SQLite takes no more than so many"""
_INFINITE = {"INF_POS": math.inf, "INF_NEG": -math.inf, "NAN": math.nan}

T = TypeVar("T")


class SqliteFile:
    """All studies of one database; a second `read` asks only for trials that are new or were not finished."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._distributions = Distributions()
        self._study_id = -1
        self._trials: dict[int, Trial] = {}
        """Trials of that study by their id in the file"""

    # ------------------------------------------------------------------ public

    def summaries(self) -> tuple[StudySummary, ...]:
        """Return the studies of the database."""
        return self._query(_summaries)

    def read(self, name: str) -> Study:
        """Return the study of this name as it is now."""
        return self._query(lambda database: self._read(_Layout(database), name))

    def _query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """One short read transaction: writers of a file without WAL wait for readers."""
        try:
            with opened_read_only(self.path) as database:
                return query(database)
        except sqlite3.Error as error:
            raise StudyError(f"{self.path} cannot be read: {error}") from None
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, StudyError):
                raise
            raise StudyError(f"{self.path} holds a study that is damaged: {error}") from None

    # ------------------------------------------------------------------ reading

    def _read(self, layout: _Layout, name: str) -> Study:
        found = layout.rows("SELECT study_id FROM studies WHERE study_name = ?", (name,))
        if not found:
            raise StudyError(f"{self.path} holds no study named {name!r}")
        study_id = int(found[0][0])
        if study_id != self._study_id:
            self._study_id, self._trials = study_id, {}
        for outdated in self._outdated():
            self._load_trials(layout, study_id, *outdated)
        attributes = layout.attributes("study_user_attributes", "study_id = ?", (study_id,))
        system = layout.attributes("study_system_attributes", "study_id = ?", (study_id,))
        names = system.get(study_id, {}).get("study:metric_names")
        metrics = tuple(map(str, names)) if isinstance(names, list) else ()
        trials, own = in_order(list(self._trials.values())), attributes.get(study_id, {})
        return Study(name, layout.directions(study_id), trials, own, metrics, self.path)

    def _outdated(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Conditions that name the trials to read: the first time all of them."""
        yield "trial_id > ?", (max(self._trials, default=-1),)
        unfinished = [trial_id for trial_id, trial in self._trials.items() if not trial.state.is_finished]
        for start in range(0, len(unfinished), _AT_ONCE):
            some = unfinished[start : start + _AT_ONCE]
            yield f"trial_id IN ({','.join('?' * len(some))})", tuple(some)

    def _load_trials(self, layout: _Layout, study_id: int, which: str, ids: tuple[int, ...]) -> None:
        trials: dict[int, Trial] = {}
        places = {trial_id: trial.number for trial_id, trial in self._trials.items()}
        for trial_id, number, state, started, ended, value in layout.trials(study_id, which, ids):
            trials[trial_id] = Trial(
                # Before 1.3 the number is the place; ids ascend.
                places.setdefault(trial_id, len(places)) if number is None else int(number),
                TrialState[state],
                () if value is None else (_finite(float(value)),),
                started_at=layout.seconds(started),
                ended_at=layout.seconds(ended),
            )
        if not trials:
            return
        self._load_parameters(layout, trials, study_id, which, ids)
        for trial_id, objective, value in layout.values(study_id, which, ids):
            trial = trials[trial_id]
            missing = objective + 1 - len(trial.values)
            padded = [*trial.values, *[math.nan] * missing]
            padded[objective] = value
            trial.values = tuple(padded)
        for trial_id, step, value in layout.reports(study_id, which, ids):
            trials[trial_id].intermediate[int(step)] = value
        for trial_id, attributes in layout.attributes(
            "trial_user_attributes", *_of_study(study_id, which, ids)
        ).items():
            trials[trial_id].user_attrs = attributes
        self._trials |= trials

    def _load_parameters(
        self, layout: _Layout, trials: dict[int, Trial], study_id: int, which: str, ids: tuple[int, ...]
    ) -> None:
        condition, values = _of_study(study_id, which, ids)
        # By its own key: that is the order in which the trial asked for them.
        query = (
            "SELECT trial_id, param_name, param_value, distribution_json FROM trial_params WHERE {} ORDER BY param_id"
        )
        for trial_id, name, internal, text in layout.rows(query.format(condition), values):
            distribution, trial = self._distributions[text], trials[trial_id]
            if internal is None or not distribution.holds(internal):
                raise ValueError(f"parameter {name} of trial {trial.number} is {internal}")
            trial.internals[name] = internal
            trial.distributions[name] = distribution


class _Layout:
    """The tables of this file, and queries that work for all of their layouts."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        tables = {row[0] for row in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"studies", "trials", "trial_params", "trial_values"} <= tables:
            raise StudyError("it is a database, but Optuna did not write it: it has no studies and trials")
        self._has_directions = "study_directions" in tables
        self._is_utc = self._is_written_by_5(tables)
        self._columns = {
            table: {row[1] for row in self.rows(f"PRAGMA table_info({table})")}
            for table in ("trials", "trial_values", "trial_intermediate_values")
        }

    def rows(self, question: str, values: Sequence[Any] = ()) -> list[Any]:
        return self._database.execute(question, values).fetchall()

    def _is_written_by_5(self, tables: set[str]) -> bool:
        found = self.rows("SELECT library_version FROM version_info") if "version_info" in tables else []
        major = str(found[0][0]).partition(".")[0] if found else ""
        return major.isdigit() and int(major) >= 5

    def directions(self, study_id: int) -> tuple[Direction, ...]:
        if self._has_directions:
            found = self.rows(
                "SELECT direction FROM study_directions WHERE study_id = ? ORDER BY objective", (study_id,)
            )
        else:
            found = self.rows("SELECT direction FROM studies WHERE study_id = ?", (study_id,))
        return tuple(Direction[row[0]] for row in found)

    def trials(self, study_id: int, which: str, ids: Sequence[int]) -> list[Any]:
        """Id, number, state, begin, end, value (where that is kept here)."""
        columns = self._columns["trials"]
        number = "number" if "number" in columns else "NULL"
        value = "value" if "value" in columns else "NULL"
        return self.rows(
            f"SELECT trial_id, {number}, state, datetime_start, datetime_complete, {value} FROM trials "
            f"WHERE study_id = ? AND {which} ORDER BY trial_id",
            (study_id, *ids),
        )

    def values(self, study_id: int, which: str, ids: Sequence[int]) -> Iterable[tuple[int, int, float]]:
        """Trial, objective, value."""
        columns = self._columns["trial_values"]
        if "objective" not in columns:
            return
        kind = "value_type" if "value_type" in columns else "NULL"
        condition, values = _of_study(study_id, which, ids)
        for trial_id, objective, value, special in self.rows(
            f"SELECT trial_id, objective, value, {kind} FROM trial_values WHERE {condition}", values
        ):
            if value is not None or special in _INFINITE:
                yield trial_id, objective, _number(value, special)

    def reports(self, study_id: int, which: str, ids: Sequence[int]) -> Iterable[tuple[int, int, float]]:
        """Trial, step, value."""
        columns = self._columns["trial_intermediate_values"]
        table, column = ("trial_intermediate_values", "intermediate_value") if columns else ("trial_values", "value")
        kind = "intermediate_value_type" if "intermediate_value_type" in columns else "NULL"
        condition, values = _of_study(study_id, which, ids)
        for trial_id, step, value, special in self.rows(
            f"SELECT trial_id, step, {column}, {kind} FROM {table} WHERE {condition}", values
        ):
            yield trial_id, step, _number(value, special)

    def attributes(self, table: str, condition: str, values: Sequence[Any]) -> dict[int, dict[str, Any]]:
        """Return the attributes by the id of the study or the trial."""
        whose = "trial_id" if table.startswith("trial") else "study_id"
        found: dict[int, dict[str, Any]] = {}
        for owner, key, text in self.rows(f"SELECT {whose}, key, value_json FROM {table} WHERE {condition}", values):
            found.setdefault(owner, {})[key] = json.loads(text)
        return found

    def seconds(self, text: str | None) -> float:
        if not text:
            return math.nan
        moment = datetime.fromisoformat(text)
        return (moment.replace(tzinfo=UTC) if self._is_utc else moment).timestamp()


def _of_study(study_id: int, which: str, ids: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """Return the same trials in a table that knows only trials."""
    return f"trial_id IN (SELECT trial_id FROM trials WHERE study_id = ? AND {which})", (study_id, *ids)


def _summaries(database: sqlite3.Connection) -> tuple[StudySummary, ...]:
    layout = _Layout(database)
    counts = dict(layout.rows("SELECT study_id, COUNT(*) FROM trials GROUP BY study_id"))
    studies = layout.rows("SELECT study_id, study_name FROM studies ORDER BY study_id")
    return tuple(StudySummary(name, layout.directions(study_id), counts.get(study_id, 0)) for study_id, name in studies)


def _number(value: float | None, kind: str | None) -> float:
    if kind in _INFINITE:
        return _INFINITE[kind]
    return math.nan if value is None else float(value) if kind else _finite(float(value))


def _finite(value: float) -> float:
    """Before 3.0 an infinite value was stored as the largest one."""
    return math.copysign(math.inf, value) if abs(value) >= _LARGEST_FLOAT32 else value


# ---------------------------------------------------------------- opening


@contextmanager
def opened_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that can write nothing, leaves no file behind, and waits for a writer rather than fail."""
    try:
        with open_chosen(path) as stream:
            head = stream.read(20)
    except FileNotFoundError:
        raise NoStudyYet(f"{path} is not there") from None
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror or error}") from None
    if not head:
        raise NoStudyYet(f"{path} holds no study yet")
    if _was_cut_off(path):
        with _copied(path) as copy, closing(sqlite3.connect(copy)) as database:
            yield database
        return
    is_wal, wal = head[18:20] == b"\x02\x02", Path(f"{path}-wal")
    # Without a log there is no writer: then it is opened as a file that does not change, for SQLite would make the log
    # and its index beside the study otherwise.
    is_still = is_wal and not wal.exists()
    options = "mode=ro&immutable=1" if is_still else "mode=ro"
    address = f"file:{quote(os.fspath(path.absolute()))}?{options}"
    with closing(sqlite3.connect(address, uri=True, timeout=_WAIT_S, isolation_level=None)) as database:
        database.execute("PRAGMA query_only = 1")
        database.execute("BEGIN")  # all questions see the same moment
        yield database
        database.execute("COMMIT")


def _was_cut_off(path: Path) -> bool:
    """Return whether a writer died in the middle: its journal has to be played back first, and that is writing."""
    try:
        if not Path(f"{path}-journal").stat().st_size:
            return False
        with closing(sqlite3.connect(f"file:{quote(os.fspath(path.absolute()))}?mode=ro", uri=True)) as database:
            database.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except FileNotFoundError:
        return False
    except sqlite3.OperationalError as error:
        return error.sqlite_errorname in ("SQLITE_READONLY_ROLLBACK", "SQLITE_READONLY_RECOVERY", "SQLITE_CANTOPEN")
    return False


@contextmanager
def _copied(path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mosaic-study-") as folder:
        copy = Path(folder) / path.name
        shutil.copyfile(path, copy)
        shutil.copyfile(f"{path}-journal", f"{copy}-journal")
        yield copy
