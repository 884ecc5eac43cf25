"""Studies in an SQLite file of Optuna: opened read-only, also while somebody writes; every layout since Optuna 1.

| since | what changed |
| --- | --- |
| 1.3 | `trials.number`; before, the order of the trials is their number |
| 2.4 | several objectives: `study_directions`, `trial_values.objective`; before, `studies.direction`, `trials.value`, and `trial_values` held what trials reported |
| 3.0 | `value_type`, `intermediate_value_type` tell infinite values; before, the largest float32 meant one. Other names of distributions |
| 5.0 | times are UTC; before, those of the writer's machine |
"""  # noqa: E501  # a table's row is a line

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from mosaic_wire.files import open_chosen

from gym_gui.services.analytics.studies.distributions import Distributions
from gym_gui.services.analytics.studies.study import (
    Direction,
    NoStudyYet,
    Study,
    StudyError,
    StudySummary,
    Trial,
    TrialState,
    in_order,
)

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
        """Of that study, by their id in the file"""

    # ------------------------------------------------------------------ what others ask

    def summaries(self) -> tuple[StudySummary, ...]:
        return self._look(_summaries)

    def read(self, name: str) -> Study:
        """The study of this name as it is now."""
        return self._look(lambda database: self._read(_Layout(database), name))

    def _look(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """One short read transaction: writers of a file without WAL wait for readers."""
        try:
            with opened_read_only(self.path) as database:
                return question(database)
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
        for asked in self._outdated():
            self._take_trials(layout, study_id, *asked)
        attributes = layout.attributes("study_user_attributes", "study_id = ?", (study_id,))
        system = layout.attributes("study_system_attributes", "study_id = ?", (study_id,))
        names = system.get(study_id, {}).get("study:metric_names")
        return Study(
            name, layout.directions(study_id), in_order(list(self._trials.values())), attributes.get(study_id, {}),
            tuple(map(str, names)) if isinstance(names, list) else (), self.path,
        )  # fmt: skip

    def _outdated(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Conditions that name the trials to read: the first time all of them."""
        yield "trial_id > ?", (max(self._trials, default=-1),)
        unfinished = [trial_id for trial_id, trial in self._trials.items() if not trial.state.is_finished]
        for start in range(0, len(unfinished), _AT_ONCE):
            some = unfinished[start : start + _AT_ONCE]
            yield f"trial_id IN ({','.join('?' * len(some))})", tuple(some)

    def _take_trials(self, layout: _Layout, study_id: int, which: str, ids: tuple[int, ...]) -> None:
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
        self._take_parameters(layout, trials, study_id, which, ids)
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

    def _take_parameters(
        self, layout: _Layout, trials: dict[int, Trial], study_id: int, which: str, ids: tuple[int, ...]
    ) -> None:
        condition, values = _of_study(study_id, which, ids)
        # By its own key: that is the order in which the trial asked for them.
        asked = (
            "SELECT trial_id, param_name, param_value, distribution_json FROM trial_params WHERE {} ORDER BY param_id"
        )
        for trial_id, name, internal, text in layout.rows(asked.format(condition), values):
            distribution, trial = self._distributions[text], trials[trial_id]
            if internal is None or not distribution.holds(internal):
                raise ValueError(f"parameter {name} of trial {trial.number} is {internal}")
            trial.internals[name] = internal
            trial.distributions[name] = distribution


class _Layout:
    """What the tables of this file look like, and questions to them that are the same for all layouts."""

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
        for trial_id, objective, value, told in self.rows(
            f"SELECT trial_id, objective, value, {kind} FROM trial_values WHERE {condition}", values
        ):
            if value is not None or told in _INFINITE:
                yield trial_id, objective, _number(value, told)

    def reports(self, study_id: int, which: str, ids: Sequence[int]) -> Iterable[tuple[int, int, float]]:
        """Trial, step, value."""
        columns = self._columns["trial_intermediate_values"]
        table, column = ("trial_intermediate_values", "intermediate_value") if columns else ("trial_values", "value")
        kind = "intermediate_value_type" if "intermediate_value_type" in columns else "NULL"
        condition, values = _of_study(study_id, which, ids)
        for trial_id, step, value, told in self.rows(
            f"SELECT trial_id, step, {column}, {kind} FROM {table} WHERE {condition}", values
        ):
            yield trial_id, step, _number(value, told)

    def attributes(self, table: str, condition: str, values: Sequence[Any]) -> dict[int, dict[str, Any]]:
        """By the id of the study or the trial."""
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
    """The same trials in a table that knows only trials."""
    return f"trial_id IN (SELECT trial_id FROM trials WHERE study_id = ? AND {which})", (study_id, *ids)


def _summaries(database: sqlite3.Connection) -> tuple[StudySummary, ...]:
    layout = _Layout(database)
    counts = dict(layout.rows("SELECT study_id, COUNT(*) FROM trials GROUP BY study_id"))
    studies = layout.rows("SELECT study_id, study_name FROM studies ORDER BY study_id")
    return tuple(StudySummary(name, layout.directions(study_id), counts.get(study_id, 0)) for study_id, name in studies)


def _number(value: float | None, told: str | None) -> float:
    if told in _INFINITE:
        return _INFINITE[told]
    return math.nan if value is None else float(value) if told else _finite(float(value))


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
    # Without a log nobody writes: then it is opened as a file that does not change, for SQLite would make the log
    # and its index beside somebody's study otherwise.
    is_still = is_wal and not wal.exists()
    options = "mode=ro&immutable=1" if is_still else "mode=ro"
    address = f"file:{quote(os.fspath(path.absolute()))}?{options}"
    with closing(sqlite3.connect(address, uri=True, timeout=_WAIT_S, isolation_level=None)) as database:
        database.execute("PRAGMA query_only = 1")
        database.execute("BEGIN")  # all questions see the same moment
        yield database
        database.execute("COMMIT")


def _was_cut_off(path: Path) -> bool:
    """Whether a writer died in the middle: its journal has to be played back first, and that is writing."""
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
