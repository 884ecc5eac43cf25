"""What an evaluation found: figures over its episodes, by batch and over all, and the bars of a histogram. No Qt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figures:
    """Over some episodes."""

    title: str
    episodes: int
    mean: float
    std: float
    minimum: float
    median: float
    maximum: float


def figures_of(title: str, returns: Sequence[float]) -> Figures:
    ordered = sorted(returns)
    number, half = len(ordered), len(ordered) // 2
    mean = sum(ordered) / number
    median = ordered[half] if number % 2 else (ordered[half - 1] + ordered[half]) / 2
    std = math.sqrt(sum((value - mean) ** 2 for value in ordered) / number)
    return Figures(title, number, mean, std, ordered[0], median, ordered[-1])


def table_of(returns: Sequence[float], per_batch: int) -> list[Figures]:
    """All episodes first, then each batch when there are several; a batch that is not complete counts as it is."""
    if not returns:
        return []
    batches = [returns[start : start + per_batch] for start in range(0, len(returns), max(1, per_batch))]
    rows = [figures_of("", returns)]
    if len(batches) > 1:
        rows += [figures_of(str(number), batch) for number, batch in enumerate(batches, start=1)]
    return rows


@dataclass(frozen=True)
class Bars:
    """A histogram: where each bar begins, how wide all of them are, and how high each is."""

    starts: tuple[float, ...]
    width: float
    counts: tuple[int, ...]


def bars_of(returns: Sequence[float], most: int = 24) -> Bars:
    """As many bars as say something (Sturges, and more for many episodes); equal returns make one bar."""
    finite = [value for value in returns if math.isfinite(value)]
    if not finite:
        return Bars((), 1.0, ())
    low, high = min(finite), max(finite)
    if low == high:
        return Bars((low - 0.5,), 1.0, (len(finite),))
    number = min(most, max(4, math.ceil(math.log2(len(finite))) + 1, math.ceil(math.sqrt(len(finite)))))
    width = (high - low) / number
    counts = [0] * number
    for value in finite:
        counts[min(number - 1, int((value - low) / width))] += 1
    return Bars(tuple(low + place * width for place in range(number)), width, tuple(counts))
