"""Sweeps end to end: a real daemon, a real controller, trials that are real runs, and all of them are killed."""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gym_gui.cli import main
from gym_gui.services.analytics.studies.readers import open_study
from gym_gui.services.analytics.studies.study import Study, Trial, TrialState
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import InvalidConfig
from gym_gui.testing import RunningDaemon, install_scripted_worker, processes_of, scripted_config
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until

HILL = """
import time
session = open_session(supports_pause=True)
with session:
    session.started()
    given, total = config.parameters, config.total_timesteps
    height = 100 * (1 - abs(given["x"] - 0.7))
    for step in range(1, total + 1):
        if session.stop_requested.wait(given.get("step_s", 0.005)):
            session.finish(ExitOutcome.CANCELLED, exit_code=130)
            raise SystemExit(130)
        if given.get("falls_at") == step and given["x"] > given.get("falls_above", -1):
            os.kill(os.getpid(), 9)
        session.progress(step, total, height * step / total + config.seed)
    session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""
"""A worker whose return depends on its parameter: best at x = 0.7"""

CANARY = "canary-81c7e0f2a9d4"
X = {"kind": "float", "low": 0.0, "high": 1.0}
ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def sweep_config(trial: dict[str, Any], *, trials: int, seed: int = 1, **settings: Any) -> dict[str, Any]:
    """The run config of a sweep."""
    worker = trial["metadata"]["worker"]["config"]
    worker.pop("seed", None)
    parameters = {"parameters": {"x": X}, "trial": trial, "parallel": 2, "sampler": "random", **settings}
    config = {
        "algo": "sweep",
        "env_id": worker["env_id"],
        "total_timesteps": trials,
        "seed": seed,
        "extras": {"algo_params": parameters},
    }
    return {"metadata": {"worker": {"type": "sweep", "config": config}}}


def hill(*, timesteps: int = 40, **parameters: Any) -> dict[str, Any]:
    return scripted_config("hill", timesteps=timesteps, **parameters)


@pytest.fixture(scope="module")
def lasting(shared_daemon: RunningDaemon) -> RunningDaemon:
    """A daemon for the tests that leave it alive."""
    install_scripted_worker(shared_daemon.home, "hill", HILL, supports_pause=True)
    return shared_daemon


@pytest.fixture(scope="module")
def client(lasting: RunningDaemon) -> TrainerClient:
    return lasting.client


@pytest.fixture
def mortal(daemon: RunningDaemon) -> RunningDaemon:
    """A daemon to be killed."""
    install_scripted_worker(daemon.home, "hill", HILL, supports_pause=True)
    return daemon


def study_of(run: pb.Run) -> Study:
    return open_study(Path(run.run_dir) / "study.journal")


def trials_of(run: pb.Run) -> list[Trial]:
    return list(study_of(run).trials)


def children_of(daemon: RunningDaemon, run: pb.Run) -> dict[str, pb.Run]:
    return {child.run_id: child for child in daemon.client.list(submitted_by=run.run_id).runs}


def check_each_ended_once(daemon: RunningDaemon, run: pb.Run, *, trials: int) -> Counter[TrialState]:
    """Every trial has ended, with runs of its own that fit its end; no run is left over, none counts twice."""
    children = children_of(daemon, run)
    found = trials_of(run)
    counted = [trial for trial in found if not trial.user_attrs.get("mosaic_interrupted")]
    assert len(counted) == trials
    used: list[str] = []
    for trial in found:
        outcomes = [children[run_id].outcome for run_id in trial.run_ids]
        used += trial.run_ids
        assert trial.state in ENDED, f"trial {trial.number} is {trial.state}"
        if trial.state is TrialState.COMPLETE:
            assert outcomes, f"trial {trial.number} has no runs"
            assert set(outcomes) == {"completed"}
            assert len(trial.values) == 1
        elif trial.state is TrialState.PRUNED:
            assert "cancelled" in outcomes
            assert "failed" not in outcomes
            assert "pruned" in trial.user_attrs["mosaic_reason"]
        else:
            assert trial.user_attrs["mosaic_reason"]
        for run_id in trial.run_ids:
            assert f"trial:{trial.number}" in children[run_id].tags
            assert f"sweep:{run.run_id}" in children[run_id].tags
    assert sorted(used) == sorted(children), "a run without a trial, or one of two trials"
    assert all(child.status == "TERM" for child in children.values())
    # The journal itself: each trial is created once and finished once.
    assert all(trial.number == place for place, trial in enumerate(found))
    return Counter(trial.state for trial in counted)


def kill_controller(run: pb.Run) -> None:
    os.kill(run.pid, signal.SIGKILL)


# ---------------------------------------------------------------- how it should go


def test_a_sweep_finds_the_top_and_ends_trials_that_do_badly(lasting: RunningDaemon, client: TrainerClient) -> None:
    config = sweep_config(
        hill(timesteps=60, step_s=0.02), trials=8, sampler="tpe", pruner="median", warmup_trials=2, startup_trials=4
    )
    submitted = client.submit(config).run
    assert (submitted.cpus, submitted.retries) == (0, 20), "it reserves nothing and is started again after a crash"
    run = lasting.wait_for(submitted.run_id)
    assert run.outcome == "completed", run.reason
    ends = check_each_ended_once(lasting, run, trials=8)
    assert ends[TrialState.PRUNED] > 0, ends
    assert ends[TrialState.FAIL] == 0
    study = study_of(run)
    best = max(trial.values[0] for trial in study.trials if trial.state is TrialState.COMPLETE)
    assert (run.step, run.total, run.episodic_return) == (8, 8, pytest.approx(best))
    children = children_of(lasting, run)
    for trial in study.trials:
        (child,) = (children[run_id] for run_id in trial.run_ids)
        if trial.state is TrialState.PRUNED:
            assert "pruned at step" in child.reason
            assert child.step < child.total, "it was really ended"
        else:
            assert trial.values[0] == pytest.approx(100 * (1 - abs(trial.params["x"] - 0.7)) + 1)
    assert lasting.manifest(run.run_id).optuna_db_path == "study.journal"
    tags = {entry.tag for entry in client.metric_tags(run.run_id)}
    assert {"sweep/best", "sweep/objective", "sweep/pruned", "sweep/running"} <= tags


def test_the_seeds_of_a_trial_give_one_objective(lasting: RunningDaemon, client: TrainerClient) -> None:
    config = sweep_config(hill(), trials=1, seeds=[1, 5, 9], aggregate="median")
    run = lasting.wait_for(client.submit(config).run.run_id)
    assert check_each_ended_once(lasting, run, trials=1)[TrialState.COMPLETE] == 1
    for trial in trials_of(run):
        seeds = [children_of(lasting, run)[run_id].seed for run_id in trial.run_ids]
        assert seeds == trial.user_attrs["mosaic_seeds"] == [1, 5, 9]
        assert trial.values[0] == sorted(trial.user_attrs["mosaic_values"])[1]


def test_a_sweep_starts_when_every_cpu_is_taken(lasting: RunningDaemon, client: TrainerClient) -> None:
    everything = {"cpus": {"requested": client.health().cpus_total}}
    holder = lasting.submit(timesteps=1_000_000, steps_per_second=50, resources=everything)
    lasting.wait_for(holder.run_id, "EXEC")
    waiting = lasting.submit(timesteps=10, resources=everything)
    run = client.submit(sweep_config(hill(), trials=1)).run
    assert lasting.wait_for(run.run_id).outcome == "completed"
    assert client.get(waiting.run_id).status == "INIT", "it is queued before the sweep and waits"
    client.cancel(waiting.run_id)
    client.cancel(holder.run_id)


def test_a_failed_trial_does_not_end_the_sweep(lasting: RunningDaemon, client: TrainerClient) -> None:
    run = client.submit(sweep_config(hill(falls_at=10, falls_above=0.5), trials=4, seed=4)).run
    run = lasting.wait_for(run.run_id)
    ends = check_each_ended_once(lasting, run, trials=4)
    assert run.outcome == "completed"
    assert ends[TrialState.FAIL] == sum(trial.params["x"] > 0.5 for trial in trials_of(run)) > 0
    assert ends[TrialState.COMPLETE] > 0
    failed = next(trial for trial in trials_of(run) if trial.state is TrialState.FAIL)
    assert "SIGKILL" in failed.user_attrs["mosaic_reason"]


def test_a_sweep_whose_trials_all_fail_gives_up_and_says_why(lasting: RunningDaemon, client: TrainerClient) -> None:
    run = client.submit(sweep_config(hill(falls_at=2), trials=50, give_up_after=2, parallel=1)).run
    run = lasting.wait_for(run.run_id)
    assert (run.outcome, run.attempt) == ("failed", 1), "a retry would only repeat it"
    assert "2 trials failed in a row" in run.reason
    assert check_each_ended_once(lasting, run, trials=2)[TrialState.FAIL] == 2


def test_wrong_settings_are_reported_before_anything_runs(lasting: RunningDaemon, client: TrainerClient) -> None:
    config = sweep_config(hill(), trials=3, sampler="tpee", parallel=0)
    with pytest.raises(InvalidConfig) as refused:
        client.submit(config)
    reported = str(refused.value)
    assert "sampler" in reported
    assert "parallel" in reported


def test_secrets_of_a_sweep_reach_its_trials_and_no_file(lasting: RunningDaemon, client: TrainerClient) -> None:
    trial = hill()
    trial["metadata"]["worker"]["config"]["extras"]["wandb_api_key"] = CANARY
    run = lasting.wait_for(client.submit(sweep_config(trial, trials=1)).run.run_id)
    assert run.outcome == "completed", run.reason
    (child,) = children_of(lasting, run)
    config = lasting.home.config_file(child).read_text()
    assert "secret_ref" in config, "the trial has the secret, and its config a reference"
    address = f"postgresql://me:{CANARY}@127.0.0.1:1/studies"
    failed = lasting.wait_for(client.submit(sweep_config(hill(), trials=1, storage=address)).run.run_id)
    assert (failed.outcome, failed.attempt) == ("failed", 1)
    assert "the study cannot be opened" in failed.reason
    found = [path for path in lasting.home.root.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert found == []


def test_the_command_starts_shows_and_trains_with_the_best(
    lasting: RunningDaemon, client: TrainerClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def mosaic(*text: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["--home", str(lasting.home.root), *text])
        return int(ended.value.code or 0), capsys.readouterr().out

    (tmp_path / "search.toml").write_text(
        'algo = "script"\nworker = "hill"\nenv_id = "none"\ntotal_timesteps = 20\ntrials = 2\nparallel = 2\n'
        'sampler = "random"\n[parameters]\nx = "float:0:1"\n[fixed]\nstep_s = 0.005\n[resources]\ncpus = 0\n'
    )
    code, out = mosaic("sweep", str(tmp_path / "search.toml"), "--name", "look")
    assert code == 0, out
    assert out.count(": completed, return") == 2, "a line for each trial"
    (run,) = (run for run in client.list().runs if run.name == "look")
    best = max(trials_of(run), key=lambda trial: trial.values[0])
    code, out = mosaic("sweep", "show", run.run_id, "--json")
    assert json.loads(out)[0]["number"] == best.number
    code, out = mosaic("sweep", "best", run.run_id)
    assert f"trial {best.number}:" in out
    assert f"none --total-timesteps 20 --step-s 0.005 --x {best.params['x']!r}" in out, out
    code, out = mosaic("compare", "--with-tag", f"sweep:{run.run_id}", "--no-baseline")
    assert (code, "none: 2 runs" in out) == (0, True), "trials of a sweep that is named are meant"
    code, out = mosaic("train", "--from-trial", run.run_id, "--seed", "7", "-d", "--json")
    assert code == 0, out
    for document in json.loads(out):
        trained = lasting.wait_for(document["run_id"])
        assert json.loads(trained.extras_json)["algo_params"] == {"step_s": 0.005, "x": best.params["x"]}
        assert (trained.outcome, trained.submitted_by) == ("completed", "")
        assert f"from-trial:{best.number}" in trained.tags


# ---------------------------------------------------------------- going on


def test_a_finished_sweep_continues_with_more_trials(lasting: RunningDaemon, client: TrainerClient) -> None:
    first = lasting.wait_for(client.submit(sweep_config(hill(), trials=1)).run.run_id)
    again = lasting.wait_for(client.resume(first.run_id, additional_timesteps=1).run_id)
    assert (again.outcome, again.step, again.total) == ("completed", 2, 2)
    assert again.parent.run_id == first.run_id
    known, more = trials_of(first), trials_of(again)
    assert [trial.params for trial in more[:1]] == [trial.params for trial in known]
    assert len(more) == 2
    assert {run_id for trial in more[1:] for run_id in trial.run_ids} == set(children_of(lasting, again))


def test_a_cancelled_sweep_ends_its_trials_and_can_be_resumed(lasting: RunningDaemon, client: TrainerClient) -> None:
    run = client.submit(sweep_config(hill(timesteps=100, step_s=0.02), trials=3)).run
    lasting.wait_for_run(run.run_id, lambda run: len(children_of(lasting, run)) >= 2)
    client.cancel(run.run_id)
    run = lasting.wait_for(run.run_id)
    assert run.outcome == "cancelled"
    assert wait_until(lambda: all(child.status == "TERM" for child in children_of(lasting, run).values()))
    assert {child.outcome for child in children_of(lasting, run).values()} == {"cancelled"}
    assert all("cancelled" in child.reason for child in children_of(lasting, run).values())
    check_each_ended_once(lasting, run, trials=0)
    tried = [trial.params for trial in trials_of(run)]
    again = lasting.wait_for(client.resume(run.run_id).run_id)
    ended = [trial for trial in trials_of(again) if not trial.user_attrs.get("mosaic_interrupted")]
    assert [trial.state for trial in ended] == [TrialState.COMPLETE] * 3
    assert [trial.params for trial in ended[: len(tried)]] == tried, "what was interrupted is tried again"


@pytest.mark.slow  # a cancelled one ends its trials in every CI
def test_a_paused_sweep_lets_its_trials_end_and_starts_no_more(lasting: RunningDaemon, client: TrainerClient) -> None:
    run = client.submit(sweep_config(hill(timesteps=50), trials=30)).run
    lasting.wait_for_run(run.run_id, lambda run: run.step >= 1)
    client.pause(run.run_id)
    run = lasting.wait_for(run.run_id, "PAUSE")
    children = children_of(lasting, run)
    assert all(child.status == "TERM" for child in children.values())
    client.resume(run.run_id)
    lasting.wait_for_run(run.run_id, lambda run: len(children_of(lasting, run)) > len(children))
    client.pause(run.run_id, release=True)
    run = lasting.wait_for_run(run.run_id, lambda run: "released" in run.flags)
    assert not processes_of(run.run_id)
    before = run.step
    client.resume(run.run_id)
    lasting.wait_for_run(run.run_id, lambda run: run.step > before)
    client.cancel(run.run_id)
    assert lasting.wait_for(run.run_id).outcome == "cancelled"
    assert wait_until(lambda: all(child.status == "TERM" for child in children_of(lasting, run).values()))


# ---------------------------------------------------------------- kill -9


def kill_at_random(daemon: RunningDaemon, config: dict[str, Any], *, seed: int, kills: int) -> tuple[pb.Run, str]:
    """Kill the controller at random moments, as often as asked for; the ended run, and when it was killed."""
    chance, moments = random.Random(seed), []
    run_id = daemon.client.submit(config).run.run_id
    for _ in range(kills):
        run = daemon.wait_for_run(
            run_id, lambda run: run.status == "TERM" or (run.status == "EXEC" and run.pid), timeout_s=90
        )
        moment = chance.uniform(0.05, 0.9)
        wait_until(lambda: daemon.client.get(run_id).status == "TERM", timeout_s=moment)
        run = daemon.client.get(run_id)
        if run.status != "EXEC" or not run.pid:
            continue
        moments.append(f"at trial {run.step} of {run.total}, after {moment:.2f} s")
        kill_controller(run)
        attempt = run.attempt
        daemon.wait_for_run(run_id, lambda run, known=attempt: run.attempt > known or run.status == "TERM")
    history = f"seed {seed}: killed {'; '.join(moments)}"
    run = daemon.wait_for(run_id, timeout_s=200)
    assert run.outcome == "completed", f"{run.reason} ({history})"
    return run, history


@pytest.mark.parametrize("seed", [7])
def test_a_killed_controller_is_started_again_and_loses_nothing(
    lasting: RunningDaemon, client: TrainerClient, seed: int
) -> None:
    config = sweep_config(hill(timesteps=40, step_s=0.02), trials=5, pruner="median", warmup_trials=1, seed=seed)
    run, history = kill_at_random(lasting, config, seed=seed, kills=1)
    assert run.attempt == 2, history
    check_each_ended_once(lasting, run, trials=5)


@pytest.mark.fault
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(8))
def test_a_controller_killed_again_and_again_loses_nothing(
    lasting: RunningDaemon, client: TrainerClient, seed: int
) -> None:
    config = sweep_config(
        hill(timesteps=30, step_s=0.01), trials=20, pruner="median", warmup_trials=1, seed=seed, seeds=[1, 2]
    )
    run, _ = kill_at_random(lasting, config, seed=seed, kills=4)
    check_each_ended_once(lasting, run, trials=20)


def test_a_torn_journal_is_mended_and_the_sweep_continues(lasting: RunningDaemon, client: TrainerClient) -> None:
    run = client.submit(sweep_config(hill(timesteps=50, step_s=0.02), trials=3)).run
    run = lasting.wait_for_run(run.run_id, lambda run: run.pid and len(children_of(lasting, run)) == 2)
    kill_controller(run)
    with (Path(run.run_dir) / "study.journal").open("ab") as journal:
        journal.write(b'{"op_code":6,"worker_id":"x","trial_id":0,"sta')  # what a power cut leaves
    run = lasting.wait_for(run.run_id)
    assert (run.outcome, run.attempt) == ("completed", 2), run.reason
    check_each_ended_once(lasting, run, trials=3)
    assert "half an entry" in lasting.output(run.run_id, "stderr")


def test_a_killed_daemon_is_waited_for(mortal: RunningDaemon) -> None:
    run = mortal.client.submit(sweep_config(hill(timesteps=40, step_s=0.02), trials=4)).run
    run = mortal.wait_for_run(run.run_id, lambda run: run.step >= 1 and run.pid)
    pid = run.pid
    mortal.kill()
    mortal.start()
    run = mortal.wait_for(run.run_id)
    assert (run.outcome, run.attempt) == ("completed", 1), "the controller itself went on"
    assert pid
    ends = [(child.outcome, child.reason) for child in children_of(mortal, run).values()]
    assert check_each_ended_once(mortal, run, trials=4)[TrialState.COMPLETE] == 4, ends


@pytest.mark.fault
def test_daemon_and_controller_killed_together(mortal: RunningDaemon) -> None:
    run = mortal.client.submit(sweep_config(hill(timesteps=40, step_s=0.02), trials=4)).run
    run = mortal.wait_for_run(run.run_id, lambda run: run.pid and len(children_of(mortal, run)) >= 2)
    mortal.kill()
    kill_controller(run)
    mortal.start()
    run = mortal.wait_for(run.run_id)
    assert run.outcome == "completed", run.reason
    check_each_ended_once(mortal, run, trials=4)


def test_trials_of_a_sweep_that_is_over_are_ended_by_the_next_daemon(mortal: RunningDaemon) -> None:
    config = sweep_config(hill(timesteps=10_000), trials=2)
    config["scheduling"] = {"retries": 0}
    run = mortal.client.submit(config).run
    run = mortal.wait_for_run(run.run_id, lambda run: run.pid and len(children_of(mortal, run)) == 2)
    mortal.kill()
    kill_controller(run)
    mortal.start()
    assert mortal.wait_for(run.run_id).outcome == "failed"
    assert wait_until(lambda: all(child.status == "TERM" for child in children_of(mortal, run).values()))
    assert {child.outcome for child in children_of(mortal, run).values()} == {"cancelled"}
    assert all(run.run_id in child.reason for child in children_of(mortal, run).values())


# ---------------------------------------------------------------- the real thing


@pytest.mark.fault
@pytest.mark.timeout(900)
def test_ppo_on_cartpole_finds_prunes_is_killed_and_finishes(lasting: RunningDaemon, client: TrainerClient) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    trial = {
        "metadata": {
            "worker": {
                "type": "cleanrl",
                "config": {
                    "algo": "ppo",
                    "env_id": "CartPole-v1",
                    "total_timesteps": 8_192,
                    "extras": {"algo_params": {"num_envs": 4, "cuda": False}},
                },
            }
        }
    }
    config = sweep_config(
        trial,
        trials=8,
        seed=seed,
        sampler="tpe",
        startup_trials=4,
        pruner="median",
        warmup_trials=2,
        reports=8,
        parameters={
            "learning_rate": {"kind": "float", "low": 1e-6, "high": 1e-2, "log": True},
            "num_steps": {"kind": "int", "low": 32, "high": 128, "step": 32},
            "anneal_lr": {"kind": "categorical", "choices": [True, False]},
        },
    )
    run, history = kill_at_random(lasting, config, seed=seed, kills=2)
    ends = check_each_ended_once(lasting, run, trials=8)
    assert ends[TrialState.COMPLETE] >= 2, history
    complete = [trial for trial in trials_of(run) if trial.state is TrialState.COMPLETE]
    best = max(complete, key=lambda trial: trial.values[0])
    worst = min(complete, key=lambda trial: trial.values[0])
    assert best.values[0] > worst.values[0], f"learning rates from 1e-6 to 1e-2 cannot all learn alike ({history})"
