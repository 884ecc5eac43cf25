"""The result of an evaluation: statistics of its returns, by batch and over all, and a histogram. No Qt."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReturnStatistics:
    """Statistics of the returns of some episodes."""

    title: str
    episodes: int
    mean: float
    std: float
    minimum: float
    median: float
    maximum: float


def statistics_of(title: str, returns: Sequence[float]) -> ReturnStatistics:
    mean, std, median = statistics.fmean(returns), statistics.pstdev(returns), statistics.median(returns)
    return ReturnStatistics(title, len(returns), mean, std, min(returns), median, max(returns))


def table_of(returns: Sequence[float], per_batch: int) -> list[ReturnStatistics]:
    """Return the statistics of all episodes, then of each batch if there are several (the last may be incomplete)."""
    if not returns:
        return []
    batches = [returns[start : start + per_batch] for start in range(0, len(returns), max(1, per_batch))]
    rows = [statistics_of("", returns)]
    if len(batches) > 1:
        rows += [statistics_of(str(number), batch) for number, batch in enumerate(batches, start=1)]
    return rows


@dataclass(frozen=True)
class Bars:
    """A histogram with bars of equal width."""

    starts: tuple[float, ...]
    width: float
    counts: tuple[int, ...]


def bars_of(returns: Sequence[float]) -> Bars:
    """Return a histogram (Sturges' rule, more bars for many episodes); equal returns are one bar."""
    finite = [value for value in returns if math.isfinite(value)]
    if not finite:
        return Bars((), 1.0, ())
    low, high = min(finite), max(finite)
    if low == high:
        return Bars((low - 0.5,), 1.0, (len(finite),))
    number = min(24, max(4, math.ceil(math.log2(len(finite))) + 1, math.ceil(math.sqrt(len(finite)))))
    width = (high - low) / number
    counts = [0] * number
    for value in finite:
        counts[min(number - 1, int((value - low) / width))] += 1
    return Bars(tuple(low + place * width for place in range(number)), width, tuple(counts))
