"""The trials of a study as rows, and what its plots draw as arrays. No Qt.

Built in a thread, once for each time a study is read; sorting and filtering then take milliseconds for 10,000 trials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_gui.services.analytics.studies.importances import Importances
from gym_gui.services.analytics.studies.study import (
    Distribution,
    Kind,
    Parameter,
    Study,
    StudySummary,
    Trial,
    TrialState,
)
from gym_gui.ui.workers.translation import PRESENTERS, QT_TRANSLATE_NOOP
from gym_gui.wording import formats

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

NUMBER, STATE, DURATION, STARTED, RUNS = "number", "state", "duration", "started", "runs"
VALUE = "value:"
"""Before the place of an objective"""
PARAMETER = "param:"
"""Before the name of a parameter"""

STATE_LABELS = {
    TrialState.RUNNING: QT_TRANSLATE_NOOP(PRESENTERS, "running"),
    TrialState.COMPLETE: QT_TRANSLATE_NOOP(PRESENTERS, "complete"),
    TrialState.PRUNED: QT_TRANSLATE_NOOP(PRESENTERS, "pruned"),
    TrialState.FAIL: QT_TRANSLATE_NOOP(PRESENTERS, "failed"),
    TrialState.WAITING: QT_TRANSLATE_NOOP(PRESENTERS, "waiting"),
}
STATE_SIGNS = {
    TrialState.RUNNING: "▶",
    TrialState.COMPLETE: "✓",
    TrialState.PRUNED: "✂",
    TrialState.FAIL: "✗",
    TrialState.WAITING: "…",
}
_TITLES = {
    NUMBER: QT_TRANSLATE_NOOP(PRESENTERS, "Trial"),
    STATE: QT_TRANSLATE_NOOP(PRESENTERS, "State"),
    DURATION: QT_TRANSLATE_NOOP(PRESENTERS, "Duration"),
    STARTED: QT_TRANSLATE_NOOP(PRESENTERS, "Started"),
    RUNS: QT_TRANSLATE_NOOP(PRESENTERS, "Runs"),
}
OBJECTIVE = QT_TRANSLATE_NOOP(PRESENTERS, "Objective")

_RANK_OF_STATE = np.array([2, 0, 1, 3, 4])
"""Ranks of states: completed trials first, since the value of a pruned trial is only intermediate"""


@dataclass(frozen=True)
class TrialFilter:
    """Which trials are shown."""

    states: frozenset[TrialState] = frozenset()
    """Empty: all"""
    text: str = ""
    """Texts that must all occur in a row"""
    ranges: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """Column → from, to; both included"""


@dataclass(frozen=True)
class StudyColumn:
    key: str
    title: str
    """English; a name of the study's own stands as it is"""
    is_translated: bool = True
    is_right: bool = True
    width_chars: int = 10


class StudyRows:
    """One study, ready to be shown."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.columns = _columns_of(study)
        self._keys: dict[str, Floats] = {}
        self._searched = [_searched_text(trial) for trial in study.trials]
        self._best = frozenset(study.best_rows)
        for column in self.columns:
            self.key(column.key)

    # ------------------------------------------------------------------ cells

    def text(self, row: int, key: str) -> str:
        """Return the text of a cell; the label of a state is English."""
        trial = self.study.trials[row]
        if key.startswith(PARAMETER):
            name = key.removeprefix(PARAMETER)
            internal = trial.internals.get(name)
            return "" if internal is None else parameter_text(trial.distributions[name].external(internal))
        if key.startswith(VALUE):
            return number_text(float(self.study.values[row, int(key.removeprefix(VALUE))]))
        if key == NUMBER:
            return f"★ {trial.number}" if row in self._best else str(trial.number)
        if key == STATE:
            return STATE_LABELS[trial.state]
        if key == DURATION:
            return formats.duration(trial.duration_s) if math.isfinite(trial.duration_s) else ""
        if key == STARTED:
            return formats.moment(trial.started_at) if math.isfinite(trial.started_at) else ""
        return str(len(trial.run_ids)) if trial.run_ids else ""

    def is_best(self, row: int) -> bool:
        return row in self._best

    # ------------------------------------------------------------------ order

    def key(self, key: str) -> Floats:
        """Return what a column is sorted and filtered by; nan where a row has nothing."""
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

    def best_first(self) -> tuple[str, bool]:
        """Return the default sorting: the column of the first objective and whether it descends."""
        return f"{VALUE}0", self.study.is_maximized(0)

    def arranged(self, trial_filter: TrialFilter, key: str, *, descending: bool) -> Rows:
        """Return the rows that match the filter, sorted; those without a value in the column come last either way."""
        rows = np.flatnonzero(self.fitting(trial_filter))
        values = self.key(key)[rows]
        signed = -values if descending else values
        numbers = self.study.numbers[rows]
        if key.startswith(VALUE):
            return rows[np.lexsort((numbers, signed, np.isnan(values), _RANK_OF_STATE[self.study.states[rows]]))]
        return rows[np.lexsort((numbers, signed, np.isnan(values)))]

    def fitting(self, trial_filter: TrialFilter) -> NDArray[np.bool_]:
        """Return which rows match the filter."""
        fits = np.ones(len(self.study), bool)
        if trial_filter.states:
            fits &= np.isin(self.study.states, [state.value for state in trial_filter.states])
        for key, (low, high) in trial_filter.ranges.items():
            if not any(column.key == key for column in self.columns):
                continue  # another study's
            values = self.key(key)
            if low is not None:
                fits &= values >= low
            if high is not None:
                fits &= values <= high
        for part in trial_filter.text.lower().split():
            fits &= np.fromiter((part in text for text in self._searched), bool, len(fits))
        return fits

    def ranged_columns(self) -> list[StudyColumn]:
        """Return the columns that can have a range: numbers."""
        named = [column for column in self.columns if column.key not in (STATE, STARTED, RUNS)]
        return [column for column in named if self._is_number(column.key)]

    def _is_number(self, key: str) -> bool:
        if not key.startswith(PARAMETER):
            return True
        latest = self.study.parameters[key.removeprefix(PARAMETER)].latest
        return latest.kind is not Kind.CATEGORICAL or all(map(_is_plain_number, latest.choices))


@dataclass(frozen=True)
class StudyReading:
    """A snapshot of a study, ready to be shown."""

    rows: StudyRows
    shares: tuple[Importances, ...]
    """For each objective"""
    studies: tuple[StudySummary, ...]
    """All of the file"""

    @property
    def study(self) -> Study:
        return self.rows.study

    def shares_of(self, objective: int) -> Importances:
        return self.shares[objective] if objective < len(self.shares) else Importances({}, 0, 0)


def _columns_of(study: Study) -> tuple[StudyColumn, ...]:
    objectives = [
        StudyColumn(
            f"{VALUE}{place}",
            study.metric_names[place] if place < len(study.metric_names) else OBJECTIVE,
            is_translated=place >= len(study.metric_names),
            width_chars=14,
        )
        for place in range(study.values.shape[1])
    ]
    parameters = [
        StudyColumn(f"{PARAMETER}{name}", name, is_translated=False, width_chars=min(26, max(12, len(name) + 5)))
        for name in study.parameters
    ]
    runs = [StudyColumn(RUNS, _TITLES[RUNS], width_chars=7)] if any(trial.run_ids for trial in study.trials) else []
    return (
        StudyColumn(NUMBER, _TITLES[NUMBER], width_chars=9),
        StudyColumn(STATE, _TITLES[STATE], is_right=False, width_chars=14),
        *objectives,
        *parameters,
        StudyColumn(DURATION, _TITLES[DURATION], width_chars=10),
        StudyColumn(STARTED, _TITLES[STARTED], is_right=False, width_chars=20),
        *runs,
    )


def _ranked(parameter: Parameter) -> Floats:
    """Return numbers as they are, choices that are numbers by size, others by their text."""
    latest = parameter.latest
    if latest.kind is not Kind.CATEGORICAL:
        return parameter.internal
    if all(map(_is_plain_number, latest.choices)):
        keys = [float(choice) for choice in latest.choices]
    else:
        in_order = sorted(range(len(latest.choices)), key=lambda place: parameter_text(latest.choices[place]))
        keys = [float(in_order.index(place)) for place in range(len(latest.choices))]
    found = np.full(len(parameter.internal), np.nan)
    has = np.isfinite(parameter.internal) & (parameter.internal < len(keys))
    found[has] = np.array(keys)[parameter.internal[has].astype(np.intp)]
    return found


def _is_plain_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _searched_text(trial: Trial) -> str:
    parameters = " ".join(f"{name}={parameter_text(value)}" for name, value in trial.params.items())
    reason = trial.user_attrs.get("mosaic_reason", "")
    return f"{trial.number} {STATE_LABELS[trial.state]} {parameters} {' '.join(trial.run_ids)} {reason}".lower()


def parameter_text(value: Any) -> str:
    """Format a parameter: true, 0.00031, tanh, none."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return number_text(value) if isinstance(value, float) else str(value)


def number_text(value: float) -> str:
    """Format a number with as many digits as distinguish two trials."""
    if not math.isfinite(value):
        return "" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value)}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.3g}"


MAX_LINES = 400
"""Parallel coordinates of more trials are a gray cloud, and slow"""
SHADES = 5
"""Lines are drawn in so many shades, the worst trials first"""


@dataclass(frozen=True)
class Mark:
    """A label on an axis, from 0 at its foot to 1 at its head."""

    place: float
    text: str


@dataclass(frozen=True)
class AxisLine:
    """One upright axis of parallel coordinates."""

    title: str
    places: Floats
    """Of every trial of the study, from 0 to 1; nan where it has none"""
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Parallel:
    axes: tuple[AxisLine, ...]
    shades: tuple[Rows, ...]
    """Rows of trials, the worst shade first"""
    left_out: int
    """Number of completed trials that are not drawn: the worst ones"""

    def line(self, row: int) -> tuple[Floats, Floats]:
        """One trial over all axes."""
        return np.arange(len(self.axes), dtype=np.float64), np.array([axis.places[row] for axis in self.axes])

    def lines(self, rows: Rows) -> tuple[Floats, Floats]:
        """Several trials as one curve, with gaps between them."""
        ys = np.full((len(rows), len(self.axes) + 1), np.nan)
        for place, axis in enumerate(self.axes):
            ys[:, place] = axis.places[rows]
        xs = np.tile(np.arange(len(self.axes) + 1, dtype=np.float64), len(rows))
        return xs, ys.ravel()


def parallel_of(study: Study, objective: int, title: str, shares: dict[str, float] | None = None) -> Parallel:
    """Return the completed trials over the objective and the parameters, the most important ones first."""
    values = study.values[:, objective]
    rows = np.flatnonzero((study.states == TrialState.COMPLETE.value) & np.isfinite(values))
    losses = -values[rows] if study.is_maximized(objective) else values[rows]
    best_first = rows[np.argsort(losses, kind="stable")]
    shown = best_first[:MAX_LINES]
    shades = tuple(part for part in np.array_split(shown[::-1], SHADES) if len(part))
    axes = [_objective_axis(title, values, shown)]
    order = sorted(study.parameters, key=lambda name: -(shares or {}).get(name, 0.0))
    for name in order:
        parameter = study.parameters[name]
        if np.isfinite(parameter.internal[shown]).any():
            axes.append(_parameter_axis(parameter))
    return Parallel(tuple(axes), shades, len(best_first) - len(shown))


def _objective_axis(title: str, values: Floats, rows: Rows) -> AxisLine:
    low, high = _ends(values[rows])
    marks = (
        (Mark(0.0, number_text(low)), Mark(1.0, number_text(high))) if high > low else (Mark(0.5, number_text(low)),)
    )
    return AxisLine(title, _scaled(values, low, high), marks)


def _parameter_axis(parameter: Parameter) -> AxisLine:
    latest, internal = parameter.latest, parameter.internal
    if latest.kind is Kind.CATEGORICAL:
        last = max(1, len(latest.choices) - 1)
        marks = tuple(Mark(place / last, parameter_text(choice)) for place, choice in enumerate(latest.choices))
        return AxisLine(parameter.name, internal / last, marks)
    places, (low, high) = on_scale(parameter, internal), _range_of(parameter)
    marks = (Mark(0.0, number_text(low)), Mark(1.0, number_text(high)))
    ends = on_scale(parameter, np.array([low, high]))
    return AxisLine(parameter.name, _scaled(places, float(ends[0]), float(ends[1])), marks)


def is_log(parameter: Parameter) -> bool:
    return parameter.latest.log and all(drawn.low > 0 for drawn in parameter.distributions)


def on_scale(parameter: Parameter, values: Floats) -> Floats:
    """Return values on the scale that was searched: powers of ten where that was logarithmic."""
    return np.log10(values) if is_log(parameter) else values


def _range_of(parameter: Parameter) -> tuple[float, float]:
    """Return the range that all trials could draw from."""
    drawn: tuple[Distribution, ...] = parameter.distributions
    return min(each.low for each in drawn), max(each.high for each in drawn)


def _ends(values: Floats) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)


def _scaled(values: Floats, low: float, high: float) -> Floats:
    if not math.isfinite(high - low) or high <= low:
        return np.where(np.isfinite(values), 0.5, np.nan)
    return (values - low) / (high - low)
