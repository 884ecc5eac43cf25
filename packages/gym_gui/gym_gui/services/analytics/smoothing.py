"""Calmer curves: an exponential moving average, or the mean over a window. Both look back only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from gym_gui.services.analytics.curves import Floats

_SMALLEST = 1e-100
"""Weights below this leave room for a double to hold their inverse, and a sum of them"""


@dataclass(frozen=True)
class Smoothing:
    """How a curve is smoothed; `amount` is the weight of the past (0 to 1) of an average, or the points of a window."""

    kind: Literal["none", "ema", "window"] = "none"
    amount: float = 0.0

    @classmethod
    def ema(cls, weight: float) -> Self:
        """Raise ValueError for a weight that is no weight."""
        if not 0 <= weight < 1:
            raise ValueError(f"the weight of an average is from 0 to below 1, not {weight:g}")
        return cls("ema", weight) if weight else cls()

    @classmethod
    def window(cls, points: int) -> Self:
        if points < 1:
            raise ValueError(f"a window has at least one point, not {points}")
        return cls("window", float(points)) if points > 1 else cls()

    @property
    def is_on(self) -> bool:
        return self.kind != "none" and self.amount > (0 if self.kind == "ema" else 1)

    def apply(self, values: Floats) -> Floats:
        """The smoothed values, as many as there were."""
        if not self.is_on or len(values) < 2:
            return values
        return _average(values, self.amount) if self.kind == "ema" else _window(values, int(self.amount))

    def in_words(self) -> str:
        """`EMA 0.9`, `mean of 100`; empty without smoothing."""
        if not self.is_on:
            return ""
        return f"EMA {self.amount:g}" if self.kind == "ema" else f"mean of {self.amount:.0f}"


def _average(values: Floats, weight: float) -> Floats:
    """TensorBoard's: without the pull towards zero at its beginning. In stretches, each one sum of powers."""
    # y[t] = w·y[t-1] + (1-w)·x[t], so y[t] = w^t · (w·y[-1] + (1-w)·Σ x[i]·w^-i): as far as w^-i has room in a double.
    stretch = max(1, min(len(values), int(math.log(_SMALLEST) / math.log(weight))))
    powers = weight ** np.arange(stretch, dtype=np.float64)
    inverse = 1.0 / powers
    result = np.empty_like(values)
    past = 0.0
    for begin in range(0, len(values), stretch):
        part = values[begin : begin + stretch]
        size = len(part)
        sums = np.cumsum(part * inverse[:size])
        result[begin : begin + size] = powers[:size] * (weight * past + (1 - weight) * sums)
        past = float(result[begin + size - 1])
    return np.asarray(result / -np.expm1(math.log(weight) * np.arange(1, len(values) + 1)), np.float64)


def _window(values: Floats, points: int) -> Floats:
    """The mean of the last so many; of fewer at the beginning."""
    # Sums of large values lose the small ones: the level is taken off first.
    level = float(values.mean())
    sums = np.concatenate(([0.0], np.cumsum(values - level)))
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - points)
    return np.asarray((sums[last] - sums[first]) / (last - first) + level, np.float64)
