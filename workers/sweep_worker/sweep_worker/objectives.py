"""How well a run does: the figure a sweep judges by, at the end and on the way."""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from mosaic_wire.child_runs import ChildRun
from mosaic_wire.sweep_settings import MEAN_RETURN

RETURN_TAG = "charts/episodic_return"
_EPISODES = 100


class Curves(Protocol):
    """Where points of curves come from."""

    def curve(
        self, run_id: str, tags: tuple[str, ...], *, since_step: int = 0, until_step: int | None = None
    ) -> list[tuple[int, float]]: ...


class RunFigure:
    """The figure of one run, read on as it trains: every point of its curve is looked at once."""

    def __init__(self, metric: str, curves: Curves) -> None:
        self._tag = RETURN_TAG if metric == MEAN_RETURN else metric
        self._is_return = metric == MEAN_RETURN
        self._curves = curves
        self._latest: deque[float] = deque(maxlen=_EPISODES if self._is_return else 1)
        self._read_to = -1

    def at(self, run: ChildRun, step: int | None = None) -> float | None:
        """The figure as it was at a step (None: at the end of the run); None: there is none."""
        points = self._curves.curve(run.run_id, (self._tag,), since_step=self._read_to + 1, until_step=step)
        self._latest.extend(value for _, value in points)
        if points:
            self._read_to = max(self._read_to, points[-1][0])
        if self._latest:
            return _finite(sum(self._latest) / len(self._latest))
        return self._told(run)

    def _told(self, run: ChildRun) -> float | None:
        """A worker without curves tells its return with its heartbeats, and the daemon the last of some others."""
        if not self._is_return:
            return _finite(run.metrics.get(self._tag))
        told = run.metrics.get(MEAN_RETURN)
        return _finite(run.episodic_return if told is None else told)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
