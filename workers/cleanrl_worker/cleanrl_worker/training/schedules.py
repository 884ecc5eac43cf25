"""Values that change with the steps of a run: exploration, learning rates, exponents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LinearSchedule:
    """From `start` to `end` in a straight line over `duration` steps, then `end` for ever."""

    start: float
    end: float
    duration: float
    """0: `end` from the first step on"""

    def __call__(self, step: float) -> float:
        if step >= self.duration:
            return self.end
        return self.start + (self.end - self.start) * (step / self.duration)

    def over(self, steps: np.ndarray) -> np.ndarray:
        """The values at many steps at once, the same numbers to the bit."""
        if self.duration <= 0:
            return np.full(len(steps), float(self.end))
        values = self.start + (self.end - self.start) * (steps / self.duration)
        return np.where(steps >= self.duration, float(self.end), values)


def times_passed(every: int, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """How many multiples of `every` lie between two counts of steps: what is to be done that often is due so often."""
    return after // every - before // every
