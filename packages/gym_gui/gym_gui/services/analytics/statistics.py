"""Statistics of few runs: interquartile mean, percentile bootstrap, probability of improvement.

The definitions are those of Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice"
(2021), and of their library rliable. Every draw is seeded: the same runs give the same figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from gym_gui.services.analytics.curves import Floats

Statistic = Callable[[Floats], Floats]
"""Reduces the last axis of a table: a row is one sample"""
RESAMPLES = 2_000
FEWEST_RUNS = 3
"""With two runs, a bootstrap interval would just be their range"""
ENOUGH_SEEDS = 5
"""Minimum number of runs for a reliable bootstrap interval"""
_CUT = 0.25
_FEW = 200
"""Up to so many values the draws are kept: a thousand runs have the same hundred last episodes to resample"""
_AT_ONCE = 2_000_000
"""Numbers that one step of the bootstrap holds: 100,000 episodes are resampled in pieces"""


@dataclass(frozen=True)
class Interval:
    """A range, both ends included."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % confidence interval, or None without enough data."""

    value: float
    interval: Interval | None

    def complement(self) -> Estimate:
        """Return the estimate of the opposite event, for a probability."""
        interval = self.interval
        return Estimate(1 - self.value, interval and Interval(1 - interval.high, 1 - interval.low))


def mean(values: ArrayLike) -> Floats:
    """Return the mean over the last axis."""
    return np.asarray(np.mean(np.asarray(values, np.float64), axis=-1))


def median(values: ArrayLike) -> Floats:
    """Return the median over the last axis."""
    return np.asarray(np.median(np.asarray(values, np.float64), axis=-1))


def iqm(values: ArrayLike) -> Floats:
    """Return the interquartile mean over the last axis; a quarter of the values, rounded down, is cut at each end."""
    table = np.sort(np.asarray(values, np.float64), axis=-1)
    size = table.shape[-1]
    if not size:
        raise ValueError("the interquartile mean of nothing")
    cut = int(_CUT * size)
    return np.asarray(table[..., cut : size - cut].mean(axis=-1))


def resample_counts(size: int, resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """Return how often each of `size` items is drawn with replacement, one row per resample."""
    generator = np.random.default_rng(seed)
    return generator.multinomial(size, np.full(size, 1 / size), resamples).astype(np.float64)


def iqm_weights(counts: Floats) -> Floats:
    """Return the weight of each sorted value in the interquartile mean, given its number of repetitions (by row)."""
    size = counts.shape[1]
    cut = int(_CUT * size)
    up_to = np.clip(np.cumsum(counts, axis=1), cut, size - cut)
    return np.asarray(np.diff(up_to, axis=1, prepend=cut) / (size - 2 * cut))


@lru_cache(maxsize=16)
def _mean_draws(size: int, resamples: int, seed: int) -> Floats:
    """Return the weight of each value in the mean of each resample."""
    return resample_counts(size, resamples, seed) / size


@lru_cache(maxsize=16)
def _iqm_draws(size: int, resamples: int, seed: int) -> Floats:
    return iqm_weights(resample_counts(size, resamples, seed))


def bootstrap_interval(
    values: ArrayLike | Sequence[ArrayLike],
    statistic: Statistic = mean,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Return the percentile bootstrap interval of a statistic, or None for fewer than two values.

    A list of arrays are strata (the runs of one task each): each is resampled on its own, and the statistic sees all of
    them in one row.
    """
    strata = _strata(values)
    size = sum(map(len, strata))
    if size < 2:
        return None
    if len(strata) == 1 and size <= _FEW and statistic in (mean, iqm):
        weights = _iqm_draws(size, resamples, seed) if statistic is iqm else _mean_draws(size, resamples, seed)
        ordered = np.sort(strata[0])
        # Subtract one of them, so that equal values have an interval of zero width.
        return _percentiles(weights @ (ordered - ordered[0]) + ordered[0], level)
    generator = np.random.default_rng(seed)
    rows = max(1, _AT_ONCE // size)
    drawn: list[Floats] = []
    for begin in range(0, resamples, rows):
        number = min(rows, resamples - begin)
        parts = [stratum[generator.integers(0, len(stratum), (number, len(stratum)))] for stratum in strata]
        drawn.append(np.atleast_1d(statistic(np.concatenate(parts, axis=1))))
    return _percentiles(np.concatenate(drawn), level)


def interval_over_runs(values: Sequence[float], statistic: Statistic = mean) -> Interval | None:
    """Return the bootstrap interval over independent runs, or None for fewer than three."""
    return bootstrap_interval(values, statistic) if len(values) >= FEWEST_RUNS else None


def difference_interval(
    xs: ArrayLike, ys: ArrayLike, *, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Return the percentile bootstrap interval of mean(X) - mean(Y), both resampled."""
    x, y = np.asarray(xs, np.float64).ravel(), np.asarray(ys, np.float64).ravel()
    from_here = y[0]  # what is equal differs by nothing, not by a rounding error
    drawn = _mean_draws(len(x), resamples, seed) @ (x - from_here)
    drawn = drawn - _mean_draws(len(y), resamples, seed + 1) @ (y - from_here)
    return _percentiles(drawn, level)


def probability_of_improvement(
    xs: ArrayLike | Sequence[ArrayLike],
    ys: ArrayLike | Sequence[ArrayLike],
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Estimate:
    """Return the probability of improvement P(X > Y) + ½ P(X = Y), averaged over tasks.

    Lists of arrays are tasks in the same order; X and Y are resampled on their own, task by task.
    """
    tasks = list(zip(_strata(xs), _strata(ys), strict=True))
    if not tasks or any(not len(x) or not len(y) for x, y in tasks):
        raise ValueError("a probability of improvement needs at least one run on each side")
    value = 0.0
    drawn = np.zeros(resamples)
    for task, (x, y) in enumerate(tasks):
        better = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        value += float(better.mean()) / len(tasks)
        x_draws = _mean_draws(len(x), resamples, seed + 2 * task)
        y_draws = _mean_draws(len(y), resamples, seed + 2 * task + 1)
        drawn += np.einsum("bi,bi->b", x_draws @ better, y_draws) / len(tasks)
    enough = all(min(len(x), len(y)) >= FEWEST_RUNS for x, y in tasks)
    return Estimate(value, _percentiles(drawn, level) if enough else None)


def _strata(values: ArrayLike | Sequence[ArrayLike]) -> list[Floats]:
    if isinstance(values, list | tuple) and values and not np.isscalar(values[0]):
        return [np.asarray(stratum, np.float64).ravel() for stratum in values]
    return [np.asarray(values, np.float64).ravel()]


def _percentiles(drawn: Floats, level: float) -> Interval:
    tail = 50 * (1 - level)
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return Interval(float(low), float(high))
