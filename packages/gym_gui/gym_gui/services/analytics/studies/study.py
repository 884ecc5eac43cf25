"""A study as it was read: its trials, and columns of them for tables and plots. Nothing here can change a study."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RUNS_ATTRIBUTE = "mosaic_runs"
"""User attribute of a trial: ids of its runs, one for each seed"""


class StudyError(ValueError):
    """A file holds no study that can be read; says why."""


class NoStudyYet(StudyError):
    """No study was written yet."""


class TrialState(Enum):
    """In the order of Optuna's own numbers."""

    RUNNING = 0
    COMPLETE = 1
    PRUNED = 2
    FAIL = 3
    WAITING = 4

    def __init__(self, code: int) -> None:
        self.is_finished = code in (1, 2, 3)  # asked for each line of a journal


class Direction(StrEnum):
    """Whether an objective is minimized or maximized."""

    NOT_SET = "not set"
    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


@dataclass(slots=True)
class Trial:
    """One trial. A finished one never changes again; one that runs is replaced by a newer copy."""

    number: int
    state: TrialState
    values: tuple[float, ...] = ()
    internals: dict[str, float] = field(default_factory=dict)
    """Parameters as they are stored: a choice is its place among the choices"""
    distributions: dict[str, Distribution] = field(default_factory=dict)
    started_at: float = math.nan
    """Seconds since 1970; nan: not known"""
    ended_at: float = math.nan
    intermediate: dict[int, float] = field(default_factory=dict)
    """Step → what the trial reported there"""
    user_attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def params(self) -> dict[str, Any]:
        """Parameters as people know them."""
        return {name: self.distributions[name].external(value) for name, value in self.internals.items()}

    @property
    def duration_s(self) -> float:
        """Return how long it took; nan while it runs."""
        return self.ended_at - self.started_at

    @property
    def run_ids(self) -> tuple[str, ...]:
        """Runs of the daemon that made this trial; none when it was made elsewhere."""
        found = self.user_attrs.get(RUNS_ATTRIBUTE)
        return tuple(str(run_id) for run_id in found) if isinstance(found, list) else ()

    def copy(self) -> Trial:
        """Return a trial that no longer changes with this one."""
        names = ("internals", "distributions", "intermediate", "user_attrs")
        mutable: dict[str, Any] = {name: dict(getattr(self, name)) for name in names}
        return replace(self, **mutable)


@dataclass(frozen=True)
class Parameter:
    """One parameter over all trials."""

    name: str
    distributions: tuple[Distribution, ...]
    """All that it was drawn from, in the order they came; usually one"""
    internal: Floats
    """One number per trial, a choice as its index; nan for trials without it"""

    @property
    def latest(self) -> Distribution:
        """Return the distribution that it was drawn from last."""
        return self.distributions[-1]


@dataclass(frozen=True)
class StudySummary:
    """A study among several in one file."""

    name: str
    directions: tuple[Direction, ...]
    trials: int


@dataclass(frozen=True)
class Study:
    """Everything of one study at one moment."""

    name: str
    directions: tuple[Direction, ...]
    trials: tuple[Trial, ...]
    """Ordered by number"""
    user_attrs: Mapping[str, Any] = field(default_factory=dict)
    metric_names: tuple[str, ...] = ()
    """Names of the objectives, if the study has them"""
    path: Path | None = None
    notices: tuple[str, ...] = ()
    """Notices about how it was read"""

    def __len__(self) -> int:
        return len(self.trials)

    # ------------------------------------------------------------------ columns

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """Return the number of each trial."""
        return np.fromiter((trial.number for trial in self.trials), np.int64, len(self.trials))

    @cached_property
    def states(self) -> NDArray[np.int8]:
        """Numbers of `TrialState`."""
        return np.fromiter((trial.state.value for trial in self.trials), np.int8, len(self.trials))

    @cached_property
    def values(self) -> Floats:
        """A row for each trial, a column for each objective; nan where a trial has none."""
        found = np.full((len(self.trials), max(1, len(self.directions))), np.nan)
        for row, trial in enumerate(self.trials):
            if trial.values:
                found[row, : len(trial.values)] = trial.values[: found.shape[1]]
        return found

    @cached_property
    def started_at(self) -> Floats:
        """Return when each trial started, in seconds since 1970."""
        return np.fromiter((trial.started_at for trial in self.trials), np.float64, len(self.trials))

    @cached_property
    def durations(self) -> Floats:
        """Return how long each trial took; nan while it runs."""
        return np.fromiter((trial.duration_s for trial in self.trials), np.float64, len(self.trials))

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Parameters by name, in the order in which trials requested them."""
        columns: dict[str, Floats] = {}
        drawn_from: dict[str, dict[Distribution, None]] = {}
        last: dict[str, Distribution] = {}
        for row, trial in enumerate(self.trials):
            for name, value in trial.internals.items():
                column = columns.get(name)
                if column is None:
                    column = columns[name] = np.full(len(self.trials), np.nan)
                    drawn_from[name] = {}
                column[row] = value
                distribution = trial.distributions[name]
                if distribution is not last.get(name):
                    last[name] = distribution
                    drawn_from[name][distribution] = None
        return {name: Parameter(name, tuple(drawn_from[name]), column) for name, column in columns.items()}

    def count(self, state: TrialState) -> int:
        """Return how many trials are in this state."""
        return int(np.count_nonzero(self.states == state.value))

    # ------------------------------------------------------------------ the best

    @property
    def has_several_objectives(self) -> bool:
        """Whether trials have more than one objective."""
        return len(self.directions) > 1

    def is_maximized(self, objective: int = 0) -> bool:
        """Return whether a larger value of this objective is better."""
        return bool(self.directions) and self.directions[objective] is Direction.MAXIMIZE

    @cached_property
    def best_rows(self) -> tuple[int, ...]:
        """The best trial; with several objectives those that no other one beats in all of them, by number."""
        rows = np.flatnonzero(self.states == TrialState.COMPLETE.value)
        rows = rows[~np.isnan(self.values[rows]).any(axis=1)]
        if not len(rows):
            return ()
        losses = self._losses(rows)
        if losses.shape[1] == 1:
            return (int(rows[int(np.argmin(losses[:, 0]))]),)
        return tuple(int(row) for row in rows[_undominated(losses)])

    @property
    def best(self) -> Trial | None:
        """The best trial; with several objectives the first of the best."""
        return self.trials[self.best_rows[0]] if self.best_rows else None

    def best_so_far(self, objective: int = 0) -> Floats:
        """For each trial the best value up to it, of those that were completed; nan before the first."""
        complete = self.states == TrialState.COMPLETE.value
        values = np.where(complete, self.values[:, objective], np.nan)
        better = np.fmax if self.is_maximized(objective) else np.fmin
        return np.asarray(better.accumulate(values)) if len(values) else values

    def _losses(self, rows: NDArray[np.int64]) -> Floats:
        signs = [-1.0 if self.is_maximized(place) else 1.0 for place in range(self.values.shape[1])]
        return np.asarray(self.values[rows] * np.array(signs))

    def trial(self, number: int) -> Trial:
        """Return the trial of this number; KeyError when there is none."""
        row = self.row_of(number)
        if row is None:
            raise KeyError(number)
        return self.trials[row]

    def row_of(self, number: int) -> int | None:
        """Return the row of a trial number; None when there is none."""
        # Numbers count from 0 without gaps, unless rows were removed by hand.
        if 0 <= number < len(self.trials) and self.trials[number].number == number:
            return number
        found = np.flatnonzero(self.numbers == number)
        return int(found[0]) if len(found) else None


def in_order(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Return trials by number; running ones are copied, so that a reader never sees them change."""
    kept = [trial if trial.state.is_finished else trial.copy() for trial in trials]
    kept.sort(key=lambda trial: trial.number)
    return tuple(kept)


def _undominated(losses: Floats) -> NDArray[np.bool_]:
    """Return which rows no other row beats: as low everywhere and lower somewhere."""
    keep = np.ones(len(losses), bool)
    for place, row in enumerate(losses):
        if keep[place]:
            beaten = (losses >= row).all(axis=1) & (losses > row).any(axis=1)
            keep[beaten] = False
    return keep


# ---------------------------------------------------------------- distributions


class Kind(StrEnum):
    """The kind of values of a distribution."""

    FLOAT = "float"
    INT = "int"
    CATEGORICAL = "categorical"


@dataclass(frozen=True)
class Distribution:
    """A range of numbers, or a list of choices. Storages keep a choice as its place in that list."""

    kind: Kind
    low: float = math.nan
    high: float = math.nan
    step: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()

    def __hash__(self) -> int:  # a choice may be a list, which has no hash
        return hash((self.kind, self.low, self.high, self.step, self.log, len(self.choices)))

    def holds(self, internal: float) -> bool:
        """Return whether a stored number means a value at all; damaged files have others."""
        if self.kind is Kind.CATEGORICAL:
            return 0 <= internal < len(self.choices)
        return math.isfinite(internal)

    def external(self, internal: float) -> Any:
        """Return a stored number as the value people know."""
        if self.kind is Kind.CATEGORICAL:
            return self.choices[int(internal)]
        return int(internal) if self.kind is Kind.INT else float(internal)

    def internal(self, external: Any) -> float:
        """Return the number under which a value is stored; ValueError when it is not among the choices."""
        return float(self.choices.index(external)) if self.kind is Kind.CATEGORICAL else float(external)

    @property
    def is_single(self) -> bool:
        """Nothing to choose: one value only."""
        if self.kind is Kind.CATEGORICAL:
            return len(self.choices) == 1
        if self.step is not None:
            return self.high - self.low < self.step
        return self.low == self.high


_OLD_NAMES = {
    # Until Optuna 2 each shape had a class of its own.
    "UniformDistribution": (Kind.FLOAT, False),
    "LogUniformDistribution": (Kind.FLOAT, True),
    "DiscreteUniformDistribution": (Kind.FLOAT, False),
    "IntUniformDistribution": (Kind.INT, False),
    "IntLogUniformDistribution": (Kind.INT, True),
}
_NAMES = {"FloatDistribution": Kind.FLOAT, "IntDistribution": Kind.INT, "CategoricalDistribution": Kind.CATEGORICAL}


def distribution_of(text: str) -> Distribution:
    """Read Optuna's JSON, also its short form; ValueError when it is neither."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError(f"no distribution: {text[:80]}")
    name = document.get("name", "")
    attributes = document.get("attributes") if name else document
    if not isinstance(attributes, dict):
        raise ValueError(f"no distribution: {text[:80]}")
    if name in _OLD_NAMES:
        kind, is_log = _OLD_NAMES[name]
        return _range(kind, {**attributes, "log": is_log, "step": attributes.get("q", attributes.get("step"))})
    try:
        kind = _NAMES[name] if name else Kind(str(document.get("type")))
    except (KeyError, ValueError):
        raise ValueError(f"unknown distribution {name or document.get('type')!r}") from None
    if kind is Kind.CATEGORICAL:
        choices = attributes.get("choices")
        if not isinstance(choices, list):
            raise ValueError(f"no choices: {text[:80]}")
        return Distribution(kind, choices=tuple(choices))
    return _range(kind, attributes)


def _range(kind: Kind, attributes: Mapping[str, Any]) -> Distribution:
    low, high, step = attributes.get("low"), attributes.get("high"), attributes.get("step")
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        raise ValueError(f"a range without its ends: {dict(attributes)}")
    if step is None and kind is Kind.INT:
        step = 1
    return Distribution(kind, float(low), float(high), None if step is None else float(step), bool(attributes["log"]))


class Distributions:
    """Thousands of trials write the same few texts: each is read once."""

    def __init__(self) -> None:
        self._known: dict[str, Distribution] = {}

    def __getitem__(self, text: str) -> Distribution:
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = distribution_of(text)
        return found
