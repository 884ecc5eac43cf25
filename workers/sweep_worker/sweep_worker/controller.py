"""The controller: keeps trials going, hears how they do, and writes down what became of each exactly once.

A trial is in the study before its runs are asked for, and they are asked for with keys made of its number. So whatever
dies when, the next controller finds every trial in one of three places: told, or running with runs that it finds again
by their keys, or running without runs, which it then asks for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, Self

from mosaic_wire.child_runs import ChildRun
from mosaic_wire.errors import ChildRunRefused, SessionStopped
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.session import CommandKind, WorkerSession
from mosaic_wire.sweep_settings import SweepSettings
from optuna.trial import FrozenTrial, TrialState

from sweep_worker.aggregates import AGGREGATES
from sweep_worker.objectives import Curves
from sweep_worker.progress import SweepProgress
from sweep_worker.searching import rungs
from sweep_worker.study import CONFIG, INTERRUPTED, REASON, RUNS, SEEDS, SWEEP, VERDICT, Study, Trial, running
from sweep_worker.trial_runs import TrialRuns, Verdict

_POLL_S = 0.5
_ATTEMPT = 1


class Runs(Curves, Protocol):
    """Who trains: the daemon (`mosaic_wire.child_runs`), or a rehearsal."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def submit(self, config: Mapping[str, Any], *, key: str) -> ChildRun: ...
    def cancel(self, run_id: str, reason: str) -> None: ...
    def poll(self, timeout_s: float) -> list[ChildRun]: ...


class GivenUp(Exception):
    """Too many trials failed one after the other."""


@dataclass(frozen=True)
class SweepPlan:
    """What one controller works on."""

    run_id: str
    settings: SweepSettings
    trials: int
    total_timesteps: int
    """Of a trial"""
    parent: str = ""
    """The sweep that this one goes on from"""
    is_shared: bool = False
    """Others may have trials in this study, too"""


class SweepController:
    """Runs one sweep to its end. One thread."""

    def __init__(self, plan: SweepPlan, session: WorkerSession, study: Study, runs: Runs) -> None:
        self._plan, self._settings, self._session, self._study, self._runs = plan, plan.settings, session, study, runs
        self._active: dict[int, TrialRuns] = {}
        self._prepared: list[TrialRuns] = []
        """Trials with values and without runs: a free slot does not wait for a sampler"""
        grid = self._settings.grid_size() if self._settings.sampler == "grid" else None
        self._wanted = plan.trials if grid is None else min(plan.trials, grid)
        self._counted = 0
        """Trials that have ended, those that were interrupted left out"""
        self._failed_in_a_row, self._last_failure = 0, ""
        self._no_more_at = float("inf")
        self._command: CommandKind | None = None
        self.progress = SweepProgress(session, self._wanted, maximize=self._settings.direction == "maximize")

    # ------------------------------------------------------------------ the loop

    def run(self) -> ExitOutcome:
        """Go on until every trial has ended, or somebody wants it otherwise."""
        try:
            outcome = self._run()
        except SessionStopped:
            outcome = ExitOutcome.CANCELLED
        if outcome is ExitOutcome.CANCELLED:
            self._interrupt("its sweep was cancelled")
        return outcome

    def _run(self) -> ExitOutcome:
        self._take_up()
        while not self._session.stop_requested.is_set():
            if (command := self._session.next_command()) is not None:
                self._command = None if command is CommandKind.RESUME else command
            if self._command is None:
                self._start_trials()
                if not self._prepared and self._may_ask():
                    self._prepared.append(self._prepare(self._study.ask()))
            if not self._active:
                if self._command is None:
                    self._check_result()
                    return ExitOutcome.COMPLETED
                if self._hold():
                    return ExitOutcome.RELEASED
                continue
            for run in self._runs.poll(_POLL_S):
                self._hear(run)
        return ExitOutcome.CANCELLED

    def _hold(self) -> bool:
        """Nothing trains any more: pause. True: end the process, the study keeps everything."""
        self.progress.save()
        command = self._command
        if command is CommandKind.PAUSE:
            command = self._session.hold({"step": self.progress.finished})
        self._command = None
        return command is CommandKind.RELEASE

    def _start_trials(self) -> None:
        """As many at a time as was asked for; one whose runs have told all they had to makes room already."""
        while sum(not each.is_ending for each in self._active.values()) < self._settings.parallel:
            if self._session.stop_requested.is_set():
                return
            if self._prepared:
                self._begin(self._prepared.pop(0))
            elif self._may_ask():
                self._begin(self._prepare(self._study.ask()))
            else:
                return

    def _may_ask(self) -> bool:
        return self._counted + len(self._prepared) + len(self._active) < self._wanted and (
            time.monotonic() < self._no_more_at
        )

    # ------------------------------------------------------------------ beginning

    def _take_up(self) -> None:
        """Find out what is done, and go on with what is not."""
        if self._settings.timeout_minutes:
            self._no_more_at = time.monotonic() + self._settings.timeout_minutes * 60 - self._age_s()
        for known in list(running(self._study.trials())):
            if self._is_left_behind(known):
                self._study.give_up(known, "its sweep ended before it")
        self._study.try_again()
        for known in self._study.trials():
            if known.state.is_finished() and not known.user_attrs.get(INTERRUPTED):
                self._counted += 1
                self.progress.count(known.state, known.value)
        self.progress.tell()
        for known in list(running(self._study.trials())):
            if self._plan.is_shared and known.user_attrs.get(SWEEP) != self._plan.run_id:
                continue  # somebody else's
            each = self._prepare(self._study.take_up(known))
            if RUNS in known.user_attrs:
                self._begin(each)
            else:
                self._prepared.append(each)

    def _age_s(self) -> float:
        """How long ago the first trial of this sweep began, under whichever controller."""
        own = [known for known in self._study.trials() if known.user_attrs.get(SWEEP) == self._plan.run_id]
        begins = [known.datetime_start.timestamp() for known in own if known.datetime_start is not None]
        return time.time() - min(begins) if begins else 0.0

    def _is_left_behind(self, known: FrozenTrial) -> bool:
        """Whether a running trial is one of an earlier sweep, whose runs ended with it."""
        owner = known.user_attrs.get(SWEEP, self._plan.run_id)
        if self._plan.is_shared:
            return bool(owner == self._plan.parent)
        return bool(owner != self._plan.run_id)

    def _prepare(self, trial: Trial) -> TrialRuns:
        """Choose its values; those that were chosen before are found again."""
        trial.note(**{SWEEP: self._plan.run_id})
        values = trial.values(self._settings)
        steps = rungs(self._plan.total_timesteps, self._settings.reports) if self._settings.pruner != "none" else []
        if steps:
            reported = trial.last_report()
            steps = [step for step in steps if step > reported]
        known = trial.attributes
        each = TrialRuns(trial, values, self._settings, self._runs, steps)
        each.verdict, each.reason = Verdict(known.get(VERDICT, "")), str(known.get(REASON, ""))
        trial.note(**{CONFIG: values, SEEDS: list(self._settings.seeds)})
        return each

    def _begin(self, each: TrialRuns) -> None:
        """Ask for its runs; those that were asked for before are found again."""
        trial = each.trial
        self._active[trial.number] = each
        try:
            for seed in self._settings.seeds:
                key = f"{self._plan.run_id}/{trial.number}/{seed}/{_ATTEMPT}"
                each.runs[seed] = self._runs.submit(each.config_of(seed), key=key)
        except ChildRunRefused as refusal:
            self._decide(each, Verdict.FAILED, f"the daemon refused its run: {refusal}")
        trial.note(**{RUNS: each.run_ids})
        self.progress.running = len(self._active)
        self.progress.tell()
        if each.verdict is not Verdict.NONE:
            self._cancel(each)
        self._look_at(each)

    # ------------------------------------------------------------------ hearing

    def _hear(self, run: ChildRun) -> None:
        for each in list(self._active.values()):
            if run.run_id in each.run_ids:
                seed = next(seed for seed, known in each.runs.items() if known.run_id == run.run_id)
                each.runs[seed] = run
                self._look_at(each)
                return

    def _look_at(self, each: TrialRuns) -> None:
        """Decide what can be decided about a trial."""
        if each.verdict is Verdict.NONE and (failure := each.failure()):
            self._decide(each, Verdict.FAILED, failure)
        while each.verdict is Verdict.NONE and not each.is_over and (report := each.next_report()) is not None:
            step, value = report
            if each.trial.is_pruned_at(value, step):
                words = f"pruned at step {step}: {value:g} is too little"
                if self._settings.direction == "minimize":
                    words = f"pruned at step {step}: {value:g} is too much"
                self._decide(each, Verdict.PRUNED, words)
        if each.is_over:
            self._end(each)

    def _decide(self, each: TrialRuns, verdict: Verdict, reason: str) -> None:
        """Write the verdict down first: whoever comes after a crash carries it out."""
        each.verdict, each.reason = verdict, reason
        each.trial.note(**{REASON: reason, VERDICT: str(verdict)})
        self._cancel(each)

    def _cancel(self, each: TrialRuns, reason: str = "") -> None:
        reason = reason or (each.reason if each.verdict is Verdict.PRUNED else f"its trial failed: {each.reason}")
        for run in each.unfinished:
            self._runs.cancel(run.run_id, f"trial {each.trial.number} of sweep {self._plan.run_id}: {reason}"[:400])

    # ------------------------------------------------------------------ ending

    def _end(self, each: TrialRuns) -> None:
        """Tell the study what became of a trial whose runs are all over."""
        del self._active[each.trial.number]
        self._counted += 1
        self.progress.running = len(self._active)
        if each.has_completed:
            self._complete(each)
        elif each.verdict is Verdict.PRUNED:
            each.trial.prune()
            self.progress.count(TrialState.PRUNED, None)
            self._failed_in_a_row = 0
        else:
            self._fail(each)
        self.progress.tell()

    def _complete(self, each: TrialRuns) -> None:
        found = each.objectives()
        missing = [each.runs[seed].run_id for seed, value in found.items() if value is None]
        if missing:
            each.reason = f"run {missing[0]} has no {self._settings.metric!r}, or it is not a number"
            each.trial.note(**{REASON: each.reason, VERDICT: str(Verdict.FAILED)})
            self._fail(each)
            return
        values = [value for value in found.values() if value is not None]
        value = AGGREGATES[self._settings.aggregate](values)
        if each.verdict is not Verdict.NONE:  # it was quicker than its end
            each.trial.note(**{REASON: "", VERDICT: ""})
        each.trial.complete(value, values)
        self.progress.count(TrialState.COMPLETE, value)
        self._failed_in_a_row = 0

    def _fail(self, each: TrialRuns) -> None:
        each.trial.fail()
        self.progress.count(TrialState.FAIL, None)
        self._session.complain(f"trial {each.trial.number} failed: {each.reason}")
        self._failed_in_a_row += 1
        self._last_failure = each.reason
        if 0 < self._settings.give_up_after <= self._failed_in_a_row:
            self._interrupt("its sweep was given up")
            raise GivenUp(f"{self._failed_in_a_row} trials failed one after the other, the last: {each.reason}")

    def _check_result(self) -> None:
        """A sweep without a single result has not done what it was asked for."""
        if self.progress.failed and self.progress.failed == self.progress.finished:
            raise GivenUp(f"none of the {self.progress.finished} trials has a result, the last: {self._last_failure}")

    def _interrupt(self, reason: str) -> None:
        """End every trial that is still going; it counts for nothing."""
        for each in [*self._active.values(), *self._prepared]:
            with suppress(SessionStopped):  # the daemon is away: it ends them with this run
                self._cancel(each, reason)
            each.trial.interrupt(reason)
        self._active.clear()
        self._prepared.clear()
        self.progress.running = 0
        self.progress.tell()
