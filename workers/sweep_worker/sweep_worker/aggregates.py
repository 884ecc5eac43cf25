"""What the seeds of a trial give together."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half: a quarter of the sorted values is left out at each end, as rliable does it."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    return statistics.fmean(ordered[cut : len(ordered) - cut])


AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
    "iqm": interquartile_mean,
}
