"""The controller against runs that a test plays: what it asks for, when it decides, what it writes down."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from mosaic_wire.capabilities import WorkerCapabilities
from mosaic_wire.child_runs import ChildRun
from mosaic_wire.errors import ChildRunRefused
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.ids import new_run_id
from mosaic_wire.session import WorkerSession
from mosaic_wire.sweep_settings import SweepSettings, read_settings
from optuna.trial import FrozenTrial, TrialState
from sweep_worker.controller import SweepController, SweepFailed, SweepPlan
from sweep_worker.study import REASON, RUNS, VERDICT, Study, StudyPlace, rungs
from sweep_worker.trial_runs import AGGREGATES

TRIAL = {
    "tags": ["mine"],
    "metadata": {
        "worker": {
            "type": "played",
            "config": {"algo": "played", "env_id": "none", "total_timesteps": 100, "extras": {"algo_params": {"k": 1}}},
        }
    },
}


class PlayedRuns:
    """Runs that do what a test says; `script` is asked for what becomes of each run."""

    def __init__(self) -> None:
        self.submitted: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, ChildRun] = {}
        self.cancelled: dict[str, str] = {}
        self.refusal = ""
        self.curves: dict[str, list[tuple[int, float]]] = {}
        self.most_at_once = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, config: Mapping[str, Any], *, key: str) -> ChildRun:
        if self.refusal:
            raise ChildRunRefused(self.refusal)
        if key not in self.submitted:
            self.submitted[key] = dict(config)
            self.runs[key] = ChildRun(new_run_id(), "EXEC", total=100)
        going = [run for run in self.runs.values() if not run.is_over]
        self.most_at_once = max(self.most_at_once, len(going))
        return self.runs[key]

    def key_of(self, run_id: str) -> str:
        return next(key for key, run in self.runs.items() if run.run_id == run_id)

    def cancel(self, run_id: str, reason: str) -> None:
        self.cancelled[run_id] = reason
        key = self.key_of(run_id)
        if not self.runs[key].is_over:
            self.runs[key] = replace(self.runs[key], status="TERM", outcome="cancelled", reason=reason)

    def curve(
        self, run_id: str, tags: tuple[str, ...], *, since_step: int = 0, until_step: int | None = None
    ) -> list[tuple[int, float]]:
        end = math.inf if until_step is None else until_step
        return [point for point in self.curves.get(run_id, []) if since_step <= point[0] <= end]

    def poll(self, timeout_s: float) -> list[ChildRun]:
        """Every run continues by a quarter of its steps, its return with its parameter; then it ends."""
        found = []
        for key, run in list(self.runs.items()):
            if not run.is_over:
                x = self.submitted[key]["metadata"]["worker"]["config"]["extras"]["algo_params"]["x"]
                run = self.step(key, run, x)
                self.runs[key] = run
            found.append(run)
        return found

    def step(self, key: str, run: ChildRun, x: float) -> ChildRun:
        step = min(100, run.step + 25)
        ended = {"status": "TERM", "outcome": "completed", "has_completed": True} if step == 100 else {}
        return replace(run, step=step, episodic_return=x * step, **ended)


def settings(**others: Any) -> SweepSettings:
    document = {"parameters": {"x": {"kind": "float", "low": 0.0, "high": 1.0}}, "trial": TRIAL, "sampler": "random"}
    found, problems = read_settings({**document, **others})
    assert found is not None, problems
    return found


class Sweep:
    """A controller and all it needs; `again` is the next controller of the same run."""

    def __init__(self, folder: Path, *, trials: int, runs: PlayedRuns | None = None, run_id: str = "", **others: Any):
        self.folder, self.trials, self.others = folder, trials, others
        self.settings, self.runs = settings(**others), runs or PlayedRuns()
        self.run_id = run_id or new_run_id()
        self.session = WorkerSession(self.run_id, folder, capabilities=WorkerCapabilities("sweep"), target=None)
        self.session.open()
        self.study = Study.open(
            StudyPlace("journal", "study", folder),
            self.settings,
            seed=1,
            total_timesteps=100,
            report_problem=self.session.print_error,
            is_stopping=lambda: True,
        )
        self.plan = SweepPlan(self.run_id, self.settings, trials, 100)
        self.controller = SweepController(self.plan, self.session, self.study, self.runs)

    def again(self, runs: PlayedRuns | None = None, **others: Any) -> Sweep:
        return Sweep(
            self.folder, runs=runs or self.runs, run_id=self.run_id, **{"trials": self.trials, **self.others, **others}
        )

    def told(self) -> list[FrozenTrial]:
        return self.study.trials()

    def close(self) -> None:
        self.controller.progress.close()
        self.session.close()


class Dies(BaseException):
    """kill -9."""


@pytest.fixture
def make(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    made: list[Sweep] = []

    def make(**options: Any) -> Sweep:
        made.append(Sweep(tmp_path, **options))
        return made[-1]

    yield make
    for sweep in made:
        sweep.close()


def test_every_trial_is_a_run_with_its_values_and_tags(make) -> None:
    sweep = make(trials=3, seeds=[4, 5])
    assert sweep.controller.run() is ExitOutcome.COMPLETED
    assert list(sweep.runs.submitted) == [f"{sweep.run_id}/{t}/{s}/1" for t in range(3) for s in (4, 5)]
    for trial in sweep.told():
        assert trial.state is TrialState.COMPLETE
        for seed, run_id in zip((4, 5), trial.user_attrs[RUNS], strict=True):
            config = sweep.runs.submitted[sweep.runs.key_of(run_id)]
            part = config["metadata"]["worker"]["config"]
            assert part["seed"] == seed
            assert part["extras"]["algo_params"] == {"k": 1, "x": trial.params["x"]}
            assert config["tags"] == ["mine", f"trial:{trial.number}"]
        assert trial.value == pytest.approx(100 * trial.params["x"])
    assert (sweep.controller.progress.finished, sweep.controller.progress.best) == (
        3,
        max(trial.value for trial in sweep.told()),
    )


@pytest.mark.parametrize("parallel", [1, 2, 3])
def test_no_more_trials_at_a_time_than_asked_for(make, parallel: int) -> None:
    sweep = make(trials=6, parallel=parallel)
    sweep.controller.run()
    assert sweep.runs.most_at_once == parallel


def test_a_bad_trial_is_pruned_and_its_run_is_cancelled_with_the_reason(make) -> None:
    sweep = make(trials=8, pruner="median", warmup_trials=1, reports=4)
    sweep.controller.run()
    pruned = [trial for trial in sweep.told() if trial.state is TrialState.PRUNED]
    assert pruned
    for trial in pruned:
        (run_id,) = trial.user_attrs[RUNS]
        assert "pruned at step" in sweep.runs.cancelled[run_id]
        assert f"trial {trial.number} of sweep {sweep.run_id}" in sweep.runs.cancelled[run_id]
        assert trial.user_attrs[VERDICT] == "pruned"
        better = [known for known in sweep.told() if known.state is TrialState.COMPLETE]
        assert any(known.params["x"] > trial.params["x"] for known in better)
    assert sweep.controller.progress.pruned == len(pruned)


@pytest.mark.parametrize("pruner", ["none", "percentile", "hyperband", "asha"])
def test_every_pruner_brings_a_sweep_to_its_end(make, pruner: str) -> None:
    sweep = make(trials=9, pruner=pruner, warmup_trials=1, reports=4, parallel=3)
    assert sweep.controller.run() is ExitOutcome.COMPLETED
    ends = {trial.state.name for trial in sweep.told()}
    assert ends <= {"COMPLETE", "PRUNED"}
    assert "COMPLETE" in ends
    assert ("PRUNED" in ends) is (pruner != "none")


def test_after_its_time_a_sweep_starts_no_more_trials(make) -> None:
    sweep = make(trials=50, timeout_minutes=1)
    sweep.study.ask().note(mosaic_sweep=sweep.run_id)
    (known,) = sweep.told()
    known.datetime_start -= timedelta(hours=1)
    assert sweep.controller.run() is ExitOutcome.COMPLETED
    assert len(sweep.told()) == 1, "the one that was begun comes to its end"


def test_trials_of_others_in_a_shared_study_are_left_alone(make) -> None:
    sweep = make(trials=2)
    sweep.study.ask().note(mosaic_sweep="01ARZ3NDEKTSV4RRFFQ69G5FAV")
    sweep.controller._plan = replace(sweep.plan, is_shared=True)
    sweep.controller.run()
    assert [trial.state.name for trial in sweep.told()] == ["RUNNING", "COMPLETE", "COMPLETE"]


def test_a_trial_is_compared_at_the_same_steps_whatever_it_heard_when(make) -> None:
    assert rungs(100, 4) == [25, 50, 75]
    assert rungs(10, 20) == list(range(1, 10))
    sweep = make(trials=2, pruner="median", warmup_trials=5, reports=4, seeds=[1, 2])
    sweep.controller.run()
    for trial in sweep.told():
        assert list(trial.intermediate_values) == [25, 50, 75]


def test_the_figure_at_a_step_comes_from_the_curve_up_to_it(make) -> None:
    class WithCurves(PlayedRuns):
        def submit(self, config: Mapping[str, Any], *, key: str) -> ChildRun:
            run = super().submit(config, key=key)
            self.curves.setdefault(run.run_id, [(step, float(step)) for step in range(0, 101, 5)])
            return run

    sweep = make(trials=1, runs=WithCurves(), pruner="median", reports=2)
    sweep.controller.run()
    (trial,) = sweep.told()
    assert trial.intermediate_values == {50: pytest.approx(sum(range(0, 51, 5)) / 11)}
    assert trial.value == pytest.approx(50.0), "the mean of the last hundred episodes, here of all"


def test_a_failed_run_fails_its_trial_and_ends_the_other_seeds(make) -> None:
    class OneFails(PlayedRuns):
        def step(self, key: str, run: ChildRun, x: float) -> ChildRun:
            if "/1/7/" in key:
                return replace(run, status="TERM", outcome="failed", reason="out of memory")
            return super().step(key, run, x)

    sweep = make(trials=3, runs=OneFails(), seeds=[6, 7])
    sweep.controller.run()
    assert [trial.state.name for trial in sweep.told()] == ["COMPLETE", "FAIL", "COMPLETE"]
    failed = sweep.told()[1]
    assert "seed 7) failed: out of memory" in failed.user_attrs[REASON]
    assert list(sweep.runs.cancelled) == [failed.user_attrs[RUNS][0]]
    assert sweep.controller.progress.failed == 1


def test_a_config_the_daemon_refuses_fails_its_trial(make) -> None:
    runs = PlayedRuns()
    runs.refusal = "num_minibatches does not divide the batch"
    sweep = make(trials=5, runs=runs, give_up_after=3)
    with pytest.raises(SweepFailed, match="3 trials failed in a row, the last: the daemon refused its run"):
        sweep.controller.run()
    assert [trial.state.name for trial in sweep.told()] == ["FAIL"] * 3


def test_a_sweep_without_any_result_reports_it(make) -> None:
    runs = PlayedRuns()
    runs.refusal = "no"
    with pytest.raises(SweepFailed, match="none of the 2 trials has a result"):
        make(trials=2, runs=runs).controller.run()


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_an_objective_that_is_no_number_fails_the_trial(make, value: float | None) -> None:
    class Odd(PlayedRuns):
        def step(self, key: str, run: ChildRun, x: float) -> ChildRun:
            odd = value if "/0/" in key else 1.0
            return replace(run, status="TERM", outcome="completed", episodic_return=odd)

    sweep = make(trials=2, runs=Odd())
    sweep.controller.run()
    assert [trial.state.name for trial in sweep.told()] == ["FAIL", "COMPLETE"]
    assert "has no 'mean_return_100'" in sweep.told()[0].user_attrs[REASON]


def test_a_grid_ends_with_its_last_combination(make) -> None:
    choices = {"x": {"kind": "categorical", "choices": [0.1, 0.2, 0.3]}}
    sweep = make(trials=50, sampler="grid", parameters=choices)
    sweep.controller.run()
    assert sorted(trial.params["x"] for trial in sweep.told()) == [0.1, 0.2, 0.3]
    assert sweep.controller.progress.total == 3


# ---------------------------------------------------------------- dying


@pytest.mark.parametrize("dies_at", range(1, 40, 3))
def test_a_controller_that_dies_anywhere_is_taken_up_where_it_was(make, monkeypatch, dies_at: int) -> None:
    """Every write to the study is a place to die at; the next controller loses nothing and doubles nothing."""
    sweep = make(trials=4, parallel=2, pruner="median", warmup_trials=1, reports=4)
    from sweep_worker.study import StudyJournal

    real, writes = StudyJournal.append_logs, 0

    def append_logs(self: StudyJournal, logs: list[dict[str, Any]]) -> None:
        nonlocal writes
        writes += 1
        if writes == dies_at:
            raise Dies
        real(self, logs)

    monkeypatch.setattr(StudyJournal, "append_logs", append_logs)
    with suppress(Dies):
        sweep.controller.run()
    again = make(
        trials=4, runs=sweep.runs, run_id=sweep.run_id, parallel=2, pruner="median", warmup_trials=1, reports=4
    )
    assert again.controller.run() is ExitOutcome.COMPLETED
    trials = again.told()
    assert [trial.number for trial in trials] == list(range(4))
    assert all(trial.state.is_finished() for trial in trials)
    used = [run_id for trial in trials for run_id in trial.user_attrs[RUNS]]
    assert sorted(used) == sorted(run.run_id for run in again.runs.runs.values())
    for trial in trials:
        (run,) = (again.runs.runs[again.runs.key_of(run_id)] for run_id in trial.user_attrs[RUNS])
        expected = {"completed": TrialState.COMPLETE, "cancelled": TrialState.PRUNED}[run.outcome]
        assert trial.state is expected
    again.controller.run()
    assert len(again.told()) == 4, "a sweep that is done stays done"


def test_a_stopped_sweep_ends_its_runs_and_its_trials_count_for_nothing(make) -> None:
    class Slow(PlayedRuns):
        def poll(self, timeout_s: float) -> list[ChildRun]:
            sweep.session.stop_requested.set()
            return []

    sweep = make(trials=4, parallel=2, runs=Slow())
    assert sweep.controller.run() is ExitOutcome.CANCELLED
    assert len(sweep.runs.cancelled) == 2
    assert all(trial.user_attrs["mosaic_interrupted"] for trial in sweep.told())
    values = [trial.params for trial in sweep.told()]
    again = make(trials=4, parallel=2, run_id=sweep.run_id)
    again.controller.run()
    counted = [trial for trial in again.told() if not trial.user_attrs.get("mosaic_interrupted")]
    assert len(counted) == 4
    assert [trial.params for trial in counted[:3]] == values, "two that ran, and the next one, which was prepared"


def test_trials_of_the_sweep_before_are_given_up(make) -> None:
    sweep = make(trials=3)
    sweep.study.ask().note(mosaic_sweep="01ARZ3NDEKTSV4RRFFQ69G5FAV")
    sweep.controller._plan = replace(sweep.plan, parent="01ARZ3NDEKTSV4RRFFQ69G5FAV")
    sweep.controller.run()
    assert sweep.told()[0].user_attrs[REASON] == "its sweep ended before it"
    assert [trial.state.name for trial in sweep.told()] == ["FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]


def test_what_seeds_give_together() -> None:
    values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0]
    assert AGGREGATES["mean"](values) == pytest.approx(15.125)
    assert AGGREGATES["median"](values) == 3.5
    assert (AGGREGATES["min"](values), AGGREGATES["max"](values)) == (0.0, 100.0)
    assert AGGREGATES["iqm"](values) == pytest.approx(3.5)
    assert AGGREGATES["iqm"]([7.0]) == 7.0
