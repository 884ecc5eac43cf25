"""The trials of a study as rows: which columns there are, what a cell says, and which rows in which order. No Qt.

Made in a thread, once for each time a study is read; sorting and filtering then take milliseconds for 10,000 trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_gui.services.analytics.studies import Parameter, Study, Trial, TrialState
from gym_gui.services.analytics.studies.distributions import Kind
from gym_gui.ui.workers.words import PRESENTERS, QT_TRANSLATE_NOOP
from gym_gui.wording import formats

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

NUMBER, STATE, DURATION, STARTED, RUNS = "number", "state", "duration", "started", "runs"
VALUE = "value:"
"""Before the place of an objective"""
PARAMETER = "param:"
"""Before the name of a parameter"""

STATE_WORDS = {
    TrialState.RUNNING: QT_TRANSLATE_NOOP(PRESENTERS, "running"),
    TrialState.COMPLETE: QT_TRANSLATE_NOOP(PRESENTERS, "complete"),
    TrialState.PRUNED: QT_TRANSLATE_NOOP(PRESENTERS, "pruned"),
    TrialState.FAIL: QT_TRANSLATE_NOOP(PRESENTERS, "failed"),
    TrialState.WAITING: QT_TRANSLATE_NOOP(PRESENTERS, "waiting"),
}
STATE_SIGNS = {
    TrialState.RUNNING: "▶", TrialState.COMPLETE: "✓", TrialState.PRUNED: "✂", TrialState.FAIL: "✗",
    TrialState.WAITING: "…",
}  # fmt: skip
_TITLES = {
    NUMBER: QT_TRANSLATE_NOOP(PRESENTERS, "Trial"),
    STATE: QT_TRANSLATE_NOOP(PRESENTERS, "State"),
    DURATION: QT_TRANSLATE_NOOP(PRESENTERS, "Duration"),
    STARTED: QT_TRANSLATE_NOOP(PRESENTERS, "Started"),
    RUNS: QT_TRANSLATE_NOOP(PRESENTERS, "Runs"),
}
OBJECTIVE = QT_TRANSLATE_NOOP(PRESENTERS, "Objective")

_RANK_OF_STATE = np.array([2, 0, 1, 3, 4])
"""Sorted by objective, completed trials stand first: the value of a pruned one is only how far it came"""


@dataclass(frozen=True)
class TrialFilter:
    """Which trials are shown."""

    states: frozenset[TrialState] = frozenset()
    """Empty: all"""
    text: str = ""
    """Words that all must be found somewhere in a row"""
    ranges: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """Column → from, to; both included"""

    @property
    def is_empty(self) -> bool:
        return not self.states and not self.text.strip() and not self.ranges


@dataclass(frozen=True)
class StudyColumn:
    key: str
    title: str
    """English; a name of the study's own stands as it is"""
    is_translated: bool = True
    is_right: bool = True
    letters: int = 10


class StudyRows:
    """One study, ready to be looked at."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.columns = _columns_of(study)
        self._keys: dict[str, Floats] = {}
        self._haystacks = [_haystack(trial) for trial in study.trials]
        self._best = frozenset(study.best_rows)
        for column in self.columns:
            self.key(column.key)

    # ------------------------------------------------------------------ cells

    def text(self, row: int, key: str) -> str:
        """What a cell says; the word of a state is English."""
        trial = self.study.trials[row]
        if key.startswith(PARAMETER):
            name = key.removeprefix(PARAMETER)
            internal = trial.internals.get(name)
            return "" if internal is None else value_text(trial.distributions[name].external(internal))
        if key.startswith(VALUE):
            return number_text(float(self.study.values[row, int(key.removeprefix(VALUE))]))
        if key == NUMBER:
            return f"★ {trial.number}" if row in self._best else str(trial.number)
        if key == STATE:
            return STATE_WORDS[trial.state]
        if key == DURATION:
            return formats.duration(trial.duration_s) if math.isfinite(trial.duration_s) else ""
        if key == STARTED:
            return formats.moment(trial.started_at) if math.isfinite(trial.started_at) else ""
        return str(len(trial.run_ids)) if trial.run_ids else ""

    def is_best(self, row: int) -> bool:
        return row in self._best

    # ------------------------------------------------------------------ order

    def key(self, key: str) -> Floats:
        """What a column is sorted and filtered by; nan where a row has nothing."""
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = self._make_key(key)
        return found

    def _make_key(self, key: str) -> Floats:
        study = self.study
        if key.startswith(PARAMETER):
            return _ranked(study.parameters[key.removeprefix(PARAMETER)])
        if key.startswith(VALUE):
            return study.values[:, int(key.removeprefix(VALUE))]
        if key == STATE:
            return _RANK_OF_STATE[study.states].astype(np.float64)
        if key == DURATION:
            return study.durations
        if key == STARTED:
            return study.started_at
        if key == RUNS:
            return np.array([len(trial.run_ids) for trial in study.trials], np.float64)
        return study.numbers.astype(np.float64)

    def best_first(self, objective: int = 0) -> tuple[str, bool]:
        """The column and whether it descends: how the table stands before anybody sorts it."""
        return f"{VALUE}{objective}", self.study.is_maximised(objective)

    def arranged(self, wanted: TrialFilter, key: str, *, descending: bool) -> Rows:
        """Rows that fit the filter, sorted; those that have nothing in the column stand last either way."""
        rows = np.flatnonzero(self.fitting(wanted))
        values = self.key(key)[rows]
        signed = -values if descending else values
        numbers = self.study.numbers[rows]
        if key.startswith(VALUE):
            return rows[np.lexsort((numbers, signed, np.isnan(values), _RANK_OF_STATE[self.study.states[rows]]))]
        return rows[np.lexsort((numbers, signed, np.isnan(values)))]

    def fitting(self, wanted: TrialFilter) -> NDArray[np.bool_]:
        fits = np.ones(len(self.study), bool)
        if wanted.states:
            fits &= np.isin(self.study.states, [state.value for state in wanted.states])
        for key, (low, high) in wanted.ranges.items():
            if not any(column.key == key for column in self.columns):
                continue  # another study's
            values = self.key(key)
            if low is not None:
                fits &= values >= low
            if high is not None:
                fits &= values <= high
        for word in wanted.text.lower().split():
            fits &= np.fromiter((word in haystack for haystack in self._haystacks), bool, len(fits))
        return fits

    def ranged_columns(self) -> list[StudyColumn]:
        """Those that a range makes sense for: numbers."""
        named = [column for column in self.columns if column.key not in (STATE, STARTED, RUNS)]
        return [column for column in named if self._is_number(column.key)]

    def _is_number(self, key: str) -> bool:
        if not key.startswith(PARAMETER):
            return True
        latest = self.study.parameters[key.removeprefix(PARAMETER)].latest
        return latest.kind is not Kind.CATEGORICAL or all(map(_is_plain_number, latest.choices))


def _columns_of(study: Study) -> tuple[StudyColumn, ...]:
    objectives = [
        StudyColumn(
            f"{VALUE}{place}",
            study.metric_names[place] if place < len(study.metric_names) else OBJECTIVE,
            is_translated=place >= len(study.metric_names),
            letters=14,
        )
        for place in range(study.values.shape[1])
    ]
    parameters = [
        StudyColumn(f"{PARAMETER}{name}", name, is_translated=False, letters=min(26, max(12, len(name) + 5)))
        for name in study.parameters
    ]
    runs = [StudyColumn(RUNS, _TITLES[RUNS], letters=7)] if any(trial.run_ids for trial in study.trials) else []
    return (
        StudyColumn(NUMBER, _TITLES[NUMBER], letters=9),
        StudyColumn(STATE, _TITLES[STATE], is_right=False, letters=14),
        *objectives,
        *parameters,
        StudyColumn(DURATION, _TITLES[DURATION], letters=10),
        StudyColumn(STARTED, _TITLES[STARTED], is_right=False, letters=20),
        *runs,
    )


def _ranked(parameter: Parameter) -> Floats:
    """Numbers as they are; choices that are numbers by their size, others by how they are written."""
    latest = parameter.latest
    if latest.kind is not Kind.CATEGORICAL:
        return parameter.internal
    if all(map(_is_plain_number, latest.choices)):
        keys = [float(choice) for choice in latest.choices]
    else:
        in_order = sorted(range(len(latest.choices)), key=lambda place: value_text(latest.choices[place]))
        keys = [float(in_order.index(place)) for place in range(len(latest.choices))]
    found = np.full(len(parameter.internal), np.nan)
    has = np.isfinite(parameter.internal) & (parameter.internal < len(keys))
    found[has] = np.array(keys)[parameter.internal[has].astype(np.intp)]
    return found


def _is_plain_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _haystack(trial: Trial) -> str:
    parameters = " ".join(f"{name}={value_text(value)}" for name, value in trial.params.items())
    reason = trial.user_attrs.get("mosaic_reason", "")
    return f"{trial.number} {STATE_WORDS[trial.state]} {parameters} {' '.join(trial.run_ids)} {reason}".lower()


def value_text(value: Any) -> str:
    """A parameter as people write it: true, 0.00031, tanh, none."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return number_text(value) if isinstance(value, float) else str(value)


def number_text(value: float) -> str:
    """As many digits as tell two trials apart."""
    if not math.isfinite(value):
        return "" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value)}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"
