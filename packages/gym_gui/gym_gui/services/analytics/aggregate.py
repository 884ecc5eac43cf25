"""Several seeds as one curve with a band: on a common grid, over the range that all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gym_gui.services.analytics.curves import Axis, Curve, Floats
from gym_gui.services.analytics.smoothing import Smoothing
from gym_gui.services.analytics.statistics import FEWEST_RUNS, iqm_weights, resample_counts

GRID_POINTS = 500
"""Places of the common grid: a figure has about as many pixels"""
_LEVEL = 0.95
_RESAMPLES = 2_000


class Band(StrEnum):
    """What lies around the line of several seeds."""

    NONE = "none"
    """the mean alone"""
    STD = "std"
    """mean ± one standard deviation over the seeds (n - 1)"""
    CI = "ci"
    """mean, with the 95 % interval of the percentile bootstrap over the seeds"""
    IQM = "iqm"
    """interquartile mean, with its 95 % interval of the percentile bootstrap"""


@dataclass(frozen=True, eq=False)
class Aggregated:
    """One line: its centre, and a band where there is one (a deviation needs two seeds, an interval three)."""

    x: Floats
    centre: Floats
    low: Floats | None
    high: Floats | None
    count: int
    """Curves it was made of"""


def aggregate(
    curves: Sequence[Curve],
    axis: Axis = Axis.STEP,
    band: Band = Band.STD,
    smoothing: Smoothing | None = None,
    *,
    points: int = GRID_POINTS,
) -> Aggregated | None:
    """The curves of several seeds as one; a single one stays as it is. None when they share no stretch of the axis.

    Each is smoothed first and then interpolated, so that seeds with more points do not weigh more.
    """
    smoothing = smoothing or Smoothing()
    present = [curve for curve in curves if len(curve)]
    if not present:
        return None
    if len(present) == 1:
        (only,) = present
        return Aggregated(only.axis(axis), smoothing.apply(only.values), None, None, 1)
    axes = [curve.axis(axis) for curve in present]
    grid = common_grid(axes, points)
    if grid is None:
        return None
    table = np.stack(
        [np.interp(grid, x, smoothing.apply(curve.values)) for x, curve in zip(axes, present, strict=True)]
    )
    centre, low, high = summarise(table, band)
    return Aggregated(grid, centre, low, high, len(present))


def common_grid(axes: Sequence[Floats], points: int = GRID_POINTS) -> Floats | None:
    """Places over the range that all axes cover, no denser than the densest of them; None where they do not meet."""
    first, last = max(float(x[0]) for x in axes), min(float(x[-1]) for x in axes)
    if last < first:
        return None
    if last == first:
        return np.array([first])
    longest = max(int(np.searchsorted(x, last, "right") - np.searchsorted(x, first, "left")) for x in axes)
    return np.linspace(first, last, max(2, min(points, longest)))


def summarise(table: Floats, band: Band) -> tuple[Floats, Floats | None, Floats | None]:
    """Centre, low and high of each column of a table with a row for each seed."""
    if band is Band.IQM:
        table = np.sort(table, axis=0)
        weights = iqm_weights(np.ones((1, len(table))))
        centre = (weights @ table)[0]
    else:
        centre = table.mean(axis=0)
    if len(table) < 2 or band is Band.NONE:
        return centre, None, None
    if band is Band.STD:
        spread = table.std(axis=0, ddof=1)
        return centre, centre - spread, centre + spread
    if len(table) < FEWEST_RUNS:
        return centre, None, None
    # How often each seed was drawn, as a matrix: all resamples of all columns are one product.
    counts = resample_counts(len(table), _RESAMPLES)
    weights = iqm_weights(counts) if band is Band.IQM else counts / len(table)
    tail = 50 * (1 - _LEVEL)
    low, high = np.percentile(weights @ table, [tail, 100 - tail], axis=0)
    return centre, low, high
