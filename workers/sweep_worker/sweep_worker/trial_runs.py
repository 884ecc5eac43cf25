"""One trial while it runs: a run per seed, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from mosaic_wire.child_runs import CANCELLED, COMPLETED, ChildRun
from mosaic_wire.sweep_settings import SweepSettings, with_parameters

from sweep_worker.aggregates import AGGREGATES
from sweep_worker.objectives import Curves, RunFigure
from sweep_worker.study import Trial

_REASON_CHARACTERS = 300


class Verdict(StrEnum):
    """What was decided about a trial before its runs ended."""

    NONE = ""
    PRUNED = "pruned"
    FAILED = "failed"


@dataclass
class TrialRuns:
    """A trial and its runs. Pure but for the figures it reads."""

    trial: Trial
    parameters: Mapping[str, Any]
    settings: SweepSettings
    curves: Curves
    rungs: Sequence[int]
    """Steps at which it is compared with others, those behind it left out"""
    runs: dict[int | None, ChildRun] = field(default_factory=dict)
    """By seed"""
    verdict: Verdict = Verdict.NONE
    reason: str = ""
    _figures: dict[int | None, RunFigure] = field(default_factory=dict)
    _reached: dict[int | None, float] = field(default_factory=dict)
    """By seed, the figure at the next rung"""

    def __post_init__(self) -> None:
        self._figures = {seed: RunFigure(self.settings.metric, self.curves) for seed in self.settings.seeds}
        self.rungs = list(self.rungs)

    def config_of(self, seed: int | None) -> dict[str, Any]:
        """The run config of one of its runs."""
        document = with_parameters(self.settings.trial, self.parameters)
        worker = document["metadata"]["worker"]["config"]
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
        return [self.runs[seed].run_id for seed in self.settings.seeds if seed in self.runs]

    @property
    def unfinished(self) -> list[ChildRun]:
        return [run for run in self.runs.values() if not run.is_over]

    @property
    def is_over(self) -> bool:
        return not self.unfinished

    @property
    def is_ending(self) -> bool:
        """All it has to tell is told, or it is being ended: the next trial may come up to the slot it leaves."""
        return self.verdict is not Verdict.NONE or all(run.is_over or run.has_completed for run in self.runs.values())

    @property
    def has_completed(self) -> bool:
        """Every seed was trained to its end, whatever was decided meanwhile."""
        return len(self.runs) == len(self.settings.seeds) and all(
            run.outcome == COMPLETED for run in self.runs.values()
        )

    def failure(self) -> str:
        """Why one of its runs ended without a result; empty: none did."""
        for seed, run in self.runs.items():
            if run.is_over and run.outcome != COMPLETED:
                what = "was cancelled" if run.outcome == CANCELLED else run.outcome
                return f"run {run.run_id} (seed {seed}) {what}: {run.reason}"[:_REASON_CHARACTERS]
        return ""

    def next_report(self) -> tuple[int, float] | None:
        """The figure at the next rung, once every seed has come that far; None: not yet."""
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
        """By seed, what its run came to."""
        return {seed: self._figures[seed].at(self.runs[seed]) for seed in self.settings.seeds}
