"""The controller: starts trials, follows their runs and records each result exactly once.

A trial is in the study before its runs are submitted, with keys made of its number. So after any interruption
the next controller finds every trial in one of three states: ended, running with runs that it finds again
by their keys, or running without runs, which it then submits.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

from mosaic_wire.checkpoints import write_checkpoint
from mosaic_wire.child_runs import ChildRun
from mosaic_wire.errors import ChildRunRefused, SessionStopped
from mosaic_wire.event_files import ScalarEventWriter
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.session import CommandKind, WorkerSession
from mosaic_wire.sweep_settings import SweepSettings
from optuna.trial import FrozenTrial, TrialState

from sweep_worker.study import CONFIG, INTERRUPTED, REASON, RUNS, SEEDS, SWEEP, VERDICT, Study, Trial, rungs, running
from sweep_worker.trial_runs import AGGREGATES, Curves, TrialRuns, Verdict

_POLL_S = 0.5
_ATTEMPT = 1


class Runs(Curves, Protocol):
    """Runs the trials: the daemon (`mosaic_wire.child_runs`), or a rehearsal."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def submit(self, config: Mapping[str, Any], *, key: str) -> ChildRun: ...
    def cancel(self, run_id: str, reason: str) -> None: ...
    def poll(self, timeout_s: float) -> list[ChildRun]: ...


class SweepFailed(Exception):
    """Too many trials failed in a row."""


@dataclass(frozen=True)
class SweepPlan:
    """The task of one controller."""

    run_id: str
    settings: SweepSettings
    trials: int
    total_timesteps: int
    """Timesteps of each trial"""
    parent: str = ""
    """The id of the sweep that this one resumes"""
    is_shared: bool = False
    """Whether other sweeps may have trials in the same study"""


class SweepController:
    """Runs one sweep to its end, in one thread."""

    def __init__(self, plan: SweepPlan, session: WorkerSession, study: Study, runs: Runs) -> None:
        self._plan, self._settings, self._session, self._study, self._runs = plan, plan.settings, session, study, runs
        self._active: dict[int, TrialRuns] = {}
        self._prepared: list[TrialRuns] = []
        """Trials that have values but no runs yet, so that a free slot does not wait for the sampler"""
        grid = self._settings.grid_size() if self._settings.sampler == "grid" else None
        self._target = plan.trials if grid is None else min(plan.trials, grid)
        self._counted = 0
        """Ended trials, without interrupted ones"""
        self._failed_in_a_row, self._last_failure = 0, ""
        self._deadline = float("inf")
        self._command: CommandKind | None = None
        self.progress = SweepProgress(session, self._target, maximize=self._settings.direction == "maximize")

    # ------------------------------------------------------------------ the loop

    def run(self) -> ExitOutcome:
        """Run until every trial has ended, or the sweep is stopped."""
        try:
            outcome = self._run()
        except SessionStopped:
            outcome = ExitOutcome.CANCELLED
        if outcome is ExitOutcome.CANCELLED:
            self._interrupt("its sweep was cancelled")
        return outcome

    def _run(self) -> ExitOutcome:
        self._recover()
        while not self._session.stop_requested.is_set():
            if (command := self._session.next_command()) is not None:
                self._command = None if command is CommandKind.RESUME else command
            if self._command is None:
                self._start_trials()
                if not self._prepared and self._may_start():
                    self._prepared.append(self._prepare(self._study.ask()))
            if not self._active:
                if self._command is None:
                    self._check_result()
                    return ExitOutcome.COMPLETED
                if self._pause():
                    return ExitOutcome.RELEASED
                continue
            for run in self._runs.poll(_POLL_S):
                self._handle_update(run)
        return ExitOutcome.CANCELLED

    def _pause(self) -> bool:
        """Pause, as no trial is running; return True to release the process, whose state is in the study."""
        self.progress.save()
        command = self._command
        if command is CommandKind.PAUSE:
            command = self._session.pause({"step": self.progress.finished})
        self._command = None
        return command is CommandKind.RELEASE

    def _start_trials(self) -> None:
        """Start trials up to `parallel`; one whose runs are only exiting does not count."""
        while sum(not each.is_ending for each in self._active.values()) < self._settings.parallel:
            if self._session.stop_requested.is_set():
                return
            if self._prepared:
                self._begin(self._prepared.pop(0))
            elif self._may_start():
                self._begin(self._prepare(self._study.ask()))
            else:
                return

    def _may_start(self) -> bool:
        return self._counted + len(self._prepared) + len(self._active) < self._target and (
            time.monotonic() < self._deadline
        )

    # ------------------------------------------------------------------ starting

    def _recover(self) -> None:
        """Restore the state of the study and continue its unfinished trials."""
        if self._settings.timeout_minutes:
            self._deadline = time.monotonic() + self._settings.timeout_minutes * 60 - self._age_s()
        for known in list(running(self._study.trials())):
            if self._is_orphaned(known):
                self._study.give_up(known, "its sweep ended before it")
        self._study.requeue_interrupted()
        for known in self._study.trials():
            if known.state.is_finished() and not known.user_attrs.get(INTERRUPTED):
                self._counted += 1
                self.progress.count(known.state, known.value)
        self.progress.report()
        for known in list(running(self._study.trials())):
            if self._plan.is_shared and known.user_attrs.get(SWEEP) != self._plan.run_id:
                continue  # not of this sweep
            each = self._prepare(self._study.recover(known))
            if RUNS in known.user_attrs:
                self._begin(each)
            else:
                self._prepared.append(each)

    def _age_s(self) -> float:
        """Return the seconds since the first trial of this sweep began, under any controller."""
        trials = [known for known in self._study.trials() if known.user_attrs.get(SWEEP) == self._plan.run_id]
        begins = [known.datetime_start.timestamp() for known in trials if known.datetime_start is not None]
        return time.time() - min(begins) if begins else 0.0

    def _is_orphaned(self, known: FrozenTrial) -> bool:
        """Return whether a running trial belongs to an earlier sweep, whose runs ended with it."""
        owner = known.user_attrs.get(SWEEP, self._plan.run_id)
        if self._plan.is_shared:
            return bool(owner == self._plan.parent)
        return bool(owner != self._plan.run_id)

    def _prepare(self, trial: Trial) -> TrialRuns:
        """Sample the trial's values, or restore those sampled before."""
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
        """Submit the trial's runs, or find those submitted before."""
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
        self.progress.report()
        if each.verdict is not Verdict.NONE:
            self._cancel(each)
        self._evaluate(each)

    # ------------------------------------------------------------------ updates

    def _handle_update(self, run: ChildRun) -> None:
        for each in list(self._active.values()):
            if run.run_id in each.run_ids:
                seed = next(seed for seed, known in each.runs.items() if known.run_id == run.run_id)
                each.runs[seed] = run
                self._evaluate(each)
                return

    def _evaluate(self, each: TrialRuns) -> None:
        """Prune, fail or end a trial if its runs allow it."""
        if each.verdict is Verdict.NONE and (failure := each.failure()):
            self._decide(each, Verdict.FAILED, failure)
        while each.verdict is Verdict.NONE and not each.is_over and (report := each.next_report()) is not None:
            step, value = report
            if each.trial.is_pruned_at(value, step):
                reason = f"pruned at step {step}: {value:g} is too little"
                if self._settings.direction == "minimize":
                    reason = f"pruned at step {step}: {value:g} is too much"
                self._decide(each, Verdict.PRUNED, reason)
        if each.is_over:
            self._end(each)

    def _decide(self, each: TrialRuns, verdict: Verdict, reason: str) -> None:
        """Store the verdict first, so that the next controller applies it after a crash."""
        each.verdict, each.reason = verdict, reason
        each.trial.note(**{REASON: reason, VERDICT: str(verdict)})
        self._cancel(each)

    def _cancel(self, each: TrialRuns, reason: str = "") -> None:
        reason = reason or (each.reason if each.verdict is Verdict.PRUNED else f"its trial failed: {each.reason}")
        for run in each.unfinished:
            self._runs.cancel(run.run_id, f"trial {each.trial.number} of sweep {self._plan.run_id}: {reason}"[:400])

    # ------------------------------------------------------------------ ending

    def _end(self, each: TrialRuns) -> None:
        """Store the result of a trial whose runs have all ended."""
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
        self.progress.report()

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
        if each.verdict is not Verdict.NONE:  # it completed before it was cancelled
            each.trial.note(**{REASON: "", VERDICT: ""})
        each.trial.complete(value, values)
        self.progress.count(TrialState.COMPLETE, value)
        self._failed_in_a_row = 0

    def _fail(self, each: TrialRuns) -> None:
        each.trial.fail()
        self.progress.count(TrialState.FAIL, None)
        self._session.print_error(f"trial {each.trial.number} failed: {each.reason}")
        self._failed_in_a_row += 1
        self._last_failure = each.reason
        if 0 < self._settings.give_up_after <= self._failed_in_a_row:
            self._interrupt("its sweep was stopped after failures")
            raise SweepFailed(f"{self._failed_in_a_row} trials failed in a row, the last: {each.reason}")

    def _check_result(self) -> None:
        """Raise SweepFailed for a sweep without any result."""
        if self.progress.failed and self.progress.failed == self.progress.finished:
            raise SweepFailed(
                f"none of the {self.progress.finished} trials has a result, the last: {self._last_failure}"
            )

    def _interrupt(self, reason: str) -> None:
        """End every running trial as interrupted."""
        for each in [*self._active.values(), *self._prepared]:
            with suppress(SessionStopped):  # unreachable: the daemon ends them with this run
                self._cancel(each, reason)
            each.trial.interrupt(reason)
        self._active.clear()
        self._prepared.clear()
        self.progress.running = 0
        self.progress.report()


# ---------------------------------------------------------------- progress


EVENTS = "tensorboard"


class SweepProgress:
    """Counts trials and reports progress: the step is the number of ended trials, the return the best objective."""

    def __init__(self, session: WorkerSession, total: int, *, maximize: bool) -> None:
        self._session, self.total, self._maximize = session, total, maximize
        self.finished = self.pruned = self.failed = self.running = 0
        self.best: float | None = None
        self._last: float | None = None
        self._reported = -1
        self._began, self._finished_before = time.monotonic(), 0
        self._writer = ScalarEventWriter(session.run_folder.root / EVENTS)
        self.manifest = AnalyticsManifest(session.run_id)
        self.state: dict[str, Any] = {}
        """State stored in checkpoints besides the study"""

    def count(self, state: TrialState, value: float | None) -> None:
        """Count an ended trial."""
        self.finished += 1
        self.pruned += state is TrialState.PRUNED
        self.failed += state is TrialState.FAIL
        if state is TrialState.COMPLETE and value is not None:
            self._last = value
            if self.best is None or (value > self.best) is self._maximize:
                self.best = value
        else:
            self._last = None

    def report(self) -> None:
        """Report progress and write the sweep's curves, ignoring a full disk."""
        if self._reported < 0:
            self._finished_before = self.finished
        done, took_s = self.finished - self._finished_before, time.monotonic() - self._began
        self._session.progress(self.finished, self.total, self.best, done / took_s if done else None)
        if self.finished == self._reported:
            return
        self._reported = self.finished
        values: dict[str, float] = {"sweep/running": self.running, "sweep/pruned": self.pruned}
        values["sweep/failed"] = self.failed
        if self.best is not None:
            values["sweep/best"] = self.best
        if self._last is not None:
            values["sweep/objective"] = self._last
        with suppress(OSError):
            self._writer.add_scalars(values, self.finished)

    def save(self) -> None:
        """Write a checkpoint, which refers to the study."""
        folder = self._session.run_folder
        entry = write_checkpoint(folder, self.finished, self.state, kind="last")
        self.manifest = replace(self.manifest, checkpoints=(entry,))
        self.manifest.write(folder.manifest)
        self._session.emit(LifecycleKind.CHECKPOINT_SAVED, entry.to_json())

    def summary(self) -> dict[str, Any]:
        """Return the payload of the run's ending."""
        return {
            "step": self.finished,
            "total": self.total,
            "best": self.best,
            "pruned": self.pruned,
            "failed": self.failed,
        }

    def close(self) -> None:
        self._writer.close()
