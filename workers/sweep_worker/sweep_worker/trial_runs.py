"""One running trial: a run per seed, their objectives, and the aggregate over seeds."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from mosaic_wire.child_runs import CANCELLED, COMPLETED, ChildRun
from mosaic_wire.run_request import worker_part
from mosaic_wire.sweep_settings import MEAN_RETURN, SweepSettings, with_parameters

from sweep_worker.study import Trial

RETURN_TAG = "charts/episodic_return"
_EPISODES = 100


class Curves(Protocol):
    """A source of curve points."""

    def curve(
        self, run_id: str, tags: tuple[str, ...], *, since_step: int = 0, until_step: int | None = None
    ) -> list[tuple[int, float]]:
        """Return the points of these tags."""


class RunFigure:
    """The objective of one run, updated while it trains; each point of its curve is read once."""

    def __init__(self, metric: str, curves: Curves) -> None:
        self._tag = RETURN_TAG if metric == MEAN_RETURN else metric
        self._is_return = metric == MEAN_RETURN
        self._curves = curves
        self._latest: deque[float] = deque(maxlen=_EPISODES if self._is_return else 1)
        self._read_to = -1

    def at(self, run: ChildRun, step: int | None = None) -> float | None:
        """Return the objective at a step (None: at the end of the run), or None if there is none."""
        points = self._curves.curve(run.run_id, (self._tag,), since_step=self._read_to + 1, until_step=step)
        self._latest.extend(value for _, value in points)
        if points:
            self._read_to = max(self._read_to, points[-1][0])
        if self._latest:
            return _finite(sum(self._latest) / len(self._latest))
        return self._reported(run)

    def _reported(self, run: ChildRun) -> float | None:
        """Return the objective of a run without curves from its reported metrics or return."""
        if not self._is_return:
            return _finite(run.metrics.get(self._tag))
        mean = run.metrics.get(MEAN_RETURN)
        return _finite(run.episodic_return if mean is None else mean)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the interquartile mean, as rliable computes it."""
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


_REASON_CHARACTERS = 300


class Verdict(StrEnum):
    """The decision about a trial before its runs ended."""

    NONE = ""
    PRUNED = "pruned"
    FAILED = "failed"


@dataclass
class TrialRuns:
    """A trial and its runs; reads objectives and has no other side effects."""

    trial: Trial
    parameters: Mapping[str, Any]
    settings: SweepSettings
    curves: Curves
    rungs: Sequence[int]
    """The remaining steps at which it is compared with others"""
    runs: dict[int | None, ChildRun] = field(default_factory=dict)
    """By seed"""
    verdict: Verdict = Verdict.NONE
    reason: str = ""
    _figures: dict[int | None, RunFigure] = field(default_factory=dict)
    _reached: dict[int | None, float] = field(default_factory=dict)
    """By seed, the objective at the next rung"""

    def __post_init__(self) -> None:
        self._figures = {seed: RunFigure(self.settings.metric, self.curves) for seed in self.settings.seeds}
        self.rungs = list(self.rungs)

    def config_of(self, seed: int | None) -> dict[str, Any]:
        """Return the run config for a seed."""
        document = with_parameters(self.settings.trial, self.parameters)
        worker = worker_part(document)
        if seed is not None:
            worker["seed"] = seed
        several = f"-s{seed}" if len(self.settings.seeds) > 1 else ""
        name = document.get("run_name") or f"{worker['algo']}-{worker['env_id']}"
        document["run_name"] = f"{name[:160]}-t{self.trial.number}{several}"
        tags = [tag for tag in document.get("tags", []) if not tag.startswith("trial:")]
        document["tags"] = [*tags, f"trial:{self.trial.number}"]
        return document

    @property
    def run_ids(self) -> list[str]:
        """Return the ids of its runs, in the order of the seeds."""
        return [self.runs[seed].run_id for seed in self.settings.seeds if seed in self.runs]

    @property
    def unfinished(self) -> list[ChildRun]:
        """Return the runs that have not ended."""
        return [run for run in self.runs.values() if not run.is_over]

    @property
    def is_over(self) -> bool:
        """Return whether all of its runs have ended."""
        return not self.unfinished

    @property
    def is_ending(self) -> bool:
        """Return whether its runs have completed or are being cancelled, so that the next trial may start."""
        return self.verdict is not Verdict.NONE or all(run.is_over or run.has_completed for run in self.runs.values())

    @property
    def has_completed(self) -> bool:
        """Return whether every seed was trained to the end, whatever was decided meanwhile."""
        return len(self.runs) == len(self.settings.seeds) and all(
            run.outcome == COMPLETED for run in self.runs.values()
        )

    def failure(self) -> str:
        """Return why one of its runs ended without a result, or an empty text."""
        for seed, run in self.runs.items():
            if run.is_over and run.outcome != COMPLETED:
                what = "was cancelled" if run.outcome == CANCELLED else run.outcome
                return f"run {run.run_id} (seed {seed}) {what}: {run.reason}"[:_REASON_CHARACTERS]
        return ""

    def next_report(self) -> tuple[int, float] | None:
        """Return the next rung and the objective there, once every seed has reached it, else None."""
        while self.rungs:
            rung = self.rungs[0]
            for seed, run in self.runs.items():
                if seed in self._reached:
                    continue
                if run.step < rung and not run.is_over:
                    return None
                value = self._figures[seed].at(run, rung)
                if value is None and not run.is_over:
                    break  # no episode has ended yet: nothing to compare at this rung
                if value is not None:
                    self._reached[seed] = value
            reached, self._reached = self._reached, {}
            self.rungs = self.rungs[1:]
            if len(reached) == len(self.runs):
                return rung, AGGREGATES[self.settings.aggregate](list(reached.values()))
        return None

    def objectives(self) -> dict[int | None, float | None]:
        """Return the final objective of each seed."""
        return {seed: self._figures[seed].at(self.runs[seed]) for seed in self.settings.seeds}
