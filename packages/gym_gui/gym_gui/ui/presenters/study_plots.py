"""What the plots of a study draw, as arrays: parallel coordinates and slices. No Qt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gym_gui.services.analytics.studies import Parameter, Study, TrialState
from gym_gui.services.analytics.studies.distributions import Distribution, Kind
from gym_gui.ui.presenters.study_rows import number_text, value_text

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

MOST_LINES = 400
"""Parallel coordinates of more trials are a grey cloud, and slow"""
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
    """Completed trials that are not drawn: the worst ones"""

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
    """Completed trials; the objective stands first, then the parameters, the most important ones first."""
    values = study.values[:, objective]
    rows = np.flatnonzero((study.states == TrialState.COMPLETE.value) & np.isfinite(values))
    losses = -values[rows] if study.is_maximised(objective) else values[rows]
    best_first = rows[np.argsort(losses, kind="stable")]
    shown = best_first[:MOST_LINES]
    shades = tuple(part for part in np.array_split(shown[::-1], SHADES) if len(part))
    axes = [_objective_axis(title, values, shown)]
    order = sorted(study.parameters, key=lambda name: -(shares or {}).get(name, 0.0))
    for name in order:
        parameter = study.parameters[name]
        if np.isfinite(parameter.internal[shown]).any():
            axes.append(_parameter_axis(parameter, shown))
    return Parallel(tuple(axes), shades, len(best_first) - len(shown))


def _objective_axis(title: str, values: Floats, rows: Rows) -> AxisLine:
    low, high = _ends(values[rows])
    marks = (
        (Mark(0.0, number_text(low)), Mark(1.0, number_text(high))) if high > low else (Mark(0.5, number_text(low)),)
    )
    return AxisLine(title, _scaled(values, low, high), marks)


def _parameter_axis(parameter: Parameter, rows: Rows) -> AxisLine:
    latest, internal = parameter.latest, parameter.internal
    if latest.kind is Kind.CATEGORICAL:
        last = max(1, len(latest.choices) - 1)
        marks = tuple(Mark(place / last, value_text(choice)) for place, choice in enumerate(latest.choices))
        return AxisLine(parameter.name, internal / last, marks)
    places, (low, high) = on_scale(parameter, internal), _range_of(parameter)
    marks = (Mark(0.0, number_text(low)), Mark(1.0, number_text(high)))
    ends = on_scale(parameter, np.array([low, high]))
    return AxisLine(parameter.name, _scaled(places, float(ends[0]), float(ends[1])), marks)


def is_log(parameter: Parameter) -> bool:
    return parameter.latest.log and all(drawn.low > 0 for drawn in parameter.distributions)


def on_scale(parameter: Parameter, values: Floats) -> Floats:
    """As it was searched: powers of ten where that was logarithmic."""
    return np.log10(values) if is_log(parameter) else values


def _range_of(parameter: Parameter) -> tuple[float, float]:
    """What all trials could draw from."""
    drawn: tuple[Distribution, ...] = parameter.distributions
    return min(each.low for each in drawn), max(each.high for each in drawn)


def _ends(values: Floats) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)


def _scaled(values: Floats, low: float, high: float) -> Floats:
    if not math.isfinite(high - low) or high <= low:
        return np.where(np.isfinite(values), 0.5, np.nan)
    return (values - low) / (high - low)
