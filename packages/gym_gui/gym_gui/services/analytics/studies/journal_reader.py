"""Studies in a journal file of Optuna: a JSON object a line, each an operation; read from where the last look ended.

Never takes the writer's lock: lines are only ever appended, and a last line without its end is left for the next look.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

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
    """All studies of one journal; `read` takes in what was appended since the last time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()
        self._apply: dict[int, Callable[[dict[str, Any]], None]] = {
            0: self._create_study,
            1: lambda log: self._drop_study(log["study_id"]),
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
        """By the number an operation names them with: over all studies of the file, also deleted ones"""
        self._distributions = Distributions()

    # ------------------------------------------------------------------ what others ask

    def summaries(self) -> tuple[StudySummary, ...]:
        self._catch_up()
        return tuple(
            StudySummary(record.name, record.directions, len(record.trials)) for record in self._studies.values()
        )

    def read(self, name: str) -> Study:
        """The study of this name as it is now."""
        self._catch_up()
        for record in self._studies.values():
            if record.name == name:
                return self._study(record)
        raise StudyError(f"{self.path} holds no study named {name!r} any more")

    def _study(self, record: _StudyRecord) -> Study:
        notices: tuple[str, ...] = ()
        if self._damaged:
            lines = "one line" if self._damaged == 1 else f"{self._damaged} lines"
            notices = (f"{lines} of {self.path.name} cannot be read and were passed over; a writer was cut off there",)
        names = record.system_attrs.get("study:metric_names")
        return Study(
            record.name, record.directions, in_order(record.trials), dict(record.user_attrs),
            tuple(map(str, names)) if isinstance(names, list) else (), self.path, notices,
        )  # fmt: skip

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
                        self._take(lines)
                        self._offset += len(lines) + 1
        except OSError as error:
            raise _unreadable(self.path, error) from None
        if not self._studies and not self._next_study:
            raise NoStudyYet(f"{self.path} holds no study yet")

    def _take(self, lines: bytes) -> None:
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
            return  # two programs wanted it at once, and the first one made it
        directions = tuple(_DIRECTIONS[direction] for direction in log["directions"])
        self._studies[self._next_study] = _StudyRecord(name, directions)
        self._next_study += 1

    def _drop_study(self, study_id: int) -> None:
        self._studies.pop(study_id, None)

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
