"""Faults 1, 3, 4, 8, 12 and 16 with the workers that record their steps."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from gym_gui.testing import RunningDaemon, processes_of
from mosaic_extras.testing import lend_sets
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.run_request import run_request
from mosaic_wire.testing import wait_until

ENDLESS = 10**9
CANARY = "canary-90c2f7e1ab"
WORKERS: dict[str, dict[str, Any]] = {
    "spade_bdi": {"env_id": "FrozenLake-v1", "sets": ("agentspeak",), "parameters": {"eval_episodes": 0}}
}
"""Environment, requirement sets of the tests, and parameters of a run, by worker; its algorithm has its name"""
pytestmark = pytest.mark.timeout(600)
every_worker = pytest.mark.parametrize("worker", WORKERS)


def submit(daemon: RunningDaemon, worker: str, steps: int = ENDLESS, *, retries: int = 0, **parameters: Any) -> str:
    chosen = WORKERS[worker]
    lend_sets(daemon.home, *chosen["sets"])
    config = run_request(
        worker,
        algo=worker,
        env_id=chosen["env_id"],
        module=f"{worker}_worker.cli",
        total_timesteps=steps,
        seed=1,
        extras={"algo_params": {**chosen["parameters"], **parameters}},
        scheduling={"retries": retries},
    )
    return daemon.client.submit(config).run.run_id


def training(daemon: RunningDaemon, run_id: str) -> int:
    """Wait until it has stepped; return its pid."""
    return daemon.wait_for_run(run_id, lambda run: run.status == "EXEC" and run.step > 0).pid


def last_state(daemon: RunningDaemon, run_id: str, step: int) -> dict[str, Any]:
    return json.loads((daemon.home.run_folder(run_id).checkpoints / f"step-{step}" / "state.json").read_text())


@every_worker
def test_a_killed_daemon_and_a_stopped_worker_disturb_nothing_and_a_cancel_ends_it_once(make_daemon, worker) -> None:
    """Faults 1, 4 and 12, shortly."""
    daemon = make_daemon()
    run_id = submit(daemon, worker)
    pid = training(daemon, run_id)
    daemon.restart()
    assert daemon.client.get(run_id).pid == pid
    assert daemon.event_kinds(run_id).count("reattached") == 1
    os.kill(pid, signal.SIGSTOP)
    step = daemon.wait_for_run(run_id, lambda run: "stalled" in run.flags).step
    os.kill(pid, signal.SIGCONT)
    daemon.wait_for_run(run_id, lambda run: "stalled" not in run.flags and run.step > step)
    for _ in range(2):
        daemon.client.cancel(run_id)
    run = daemon.wait_for(run_id)
    assert (run.outcome, run.attempt) == ("cancelled", 1)
    story = list(daemon.client.history(run_id))
    assert [event.kind for event in story if event.to_status == "TERM"] == ["cancelled"]
    assert [event.event for event in daemon.lifecycle(run_id)].count(LifecycleKind.RUN_STARTED) == 1
    assert processes_of(run_id) == []
    assert daemon.manifest(run_id).finalised_by == "worker"


@pytest.mark.fault
@every_worker
def test_twenty_runs_outlive_the_kills_of_the_daemon(make_daemon, worker) -> None:
    daemon = make_daemon()
    runs = [submit(daemon, worker) for _ in range(20)]
    going = [run_id for run_id in runs if daemon.client.get(run_id).status != "INIT"]
    for run_id in going:
        training(daemon, run_id)
    pids = {run.run_id: run.pid for run in daemon.client.list().runs if run.status == "EXEC"}
    for _ in range(3):
        daemon.restart()
        listed = {run.run_id: run for run in daemon.client.list().runs}
        assert {run_id: listed[run_id].pid for run_id in pids} == pids
    for run_id in runs:
        daemon.client.cancel(run_id)
    for run_id in runs:
        run = daemon.wait_for(run_id)
        assert (run.outcome, processes_of(run_id)) == ("cancelled", [])


@pytest.mark.slow  # test_worker_deaths.py shows it with the reference worker in every CI
@every_worker
@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGSEGV])
def test_a_dead_worker_is_a_failed_run_and_nothing_of_it_is_left(make_daemon, worker, death) -> None:
    daemon = make_daemon()
    run_id = submit(daemon, worker)
    os.kill(training(daemon, run_id), death)
    run = daemon.wait_for(run_id)
    assert run.outcome == "failed"
    assert "its process was killed by SIG" in run.reason  # pygame turns SIGSEGV into SIGABRT
    assert processes_of(run_id) == []
    assert daemon.client.health().cpus_free == daemon.client.health().cpus_total


@pytest.mark.slow  # the worker's own tests show exact resume in every CI
@every_worker
def test_a_killed_run_continues_from_its_checkpoint_to_the_same_state(make_daemon, worker) -> None:
    """Fault 8."""
    daemon = make_daemon()
    steps, every = 40_000, 5_000
    whole = submit(daemon, worker, steps, checkpoint_every=every)
    killed = submit(daemon, worker, steps, checkpoint_every=every, retries=3)
    folder = daemon.home.run_folder(killed)
    assert wait_until(lambda: list(folder.checkpoints.glob("step-*")))
    os.kill(daemon.client.get(killed).pid, signal.SIGKILL)
    run, other = daemon.wait_for(killed, timeout_s=180), daemon.wait_for(whole, timeout_s=180)
    assert (run.outcome, run.attempt, other.outcome) == ("completed", 2, "completed"), run.reason
    kinds = [event.event for event in daemon.lifecycle(killed)]
    assert kinds.count(LifecycleKind.CHECKPOINT_LOADED) == 1
    assert last_state(daemon, killed, steps) == last_state(daemon, whole, steps)


@pytest.mark.slow
@every_worker
def test_a_cancel_while_it_is_held_or_resumed_wins(make_daemon, worker) -> None:
    daemon = make_daemon()
    held, resumed = submit(daemon, worker), submit(daemon, worker)
    for run_id in (held, resumed):
        training(daemon, run_id)
        daemon.client.pause(run_id, release=run_id == resumed)
    daemon.wait_for(held, "PAUSE")
    daemon.wait_for_run(resumed, lambda run: "released" in run.flags)
    daemon.client.resume(resumed)
    for run_id in (held, resumed):
        daemon.client.cancel(run_id)
        assert daemon.wait_for(run_id).outcome == "cancelled"
        assert [event.to_status for event in daemon.client.history(run_id)].count("TERM") == 1
        assert processes_of(run_id) == []


@pytest.mark.slow  # test_secrets_canary.py shows it for every place of a config in every CI
def test_the_password_of_an_account_is_found_nowhere(make_daemon) -> None:
    """Fault 16: it reaches SPADE, and a search of the whole home does not find it."""
    daemon = make_daemon()
    lend_sets(daemon.home, "spade")
    account = {"engine": "spade", "server": "127.0.0.1", "port": 9, "jid": "anna@localhost", "password": CANARY}
    run = daemon.wait_for(submit(daemon, "spade_bdi", 10, **account))
    assert (run.outcome, "127.0.0.1:9 cannot be reached" in run.reason) == ("failed", True)
    files = [path for path in daemon.home.root.rglob("*") if path.is_file() and "venvs" not in path.parts]
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
