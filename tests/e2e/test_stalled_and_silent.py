"""Fault 4 and the silence limits: a stopped process is stalled, not failed; a silent one is failed, not stalled."""

from __future__ import annotations

import os
import signal

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable
from gym_gui.testing import RunningDaemon, install_scripted_worker, processes_of, scripted_config
from mosaic_wire.testing import wait_until

ENDLESS = {"timesteps": 1_000_000, "steps_per_second": 200}
SILENT = """
session = open_session()
session.started()
session._link.close()  # no heartbeat from here on
time.sleep(3600)
"""


def test_a_stopped_worker_is_shown_as_stalled_and_continues_when_it_is_continued(make_daemon) -> None:
    daemon = make_daemon(silence_s=1.5)
    runs = [daemon.submit(**ENDLESS).run_id for _ in range(3)]
    pids = [daemon.wait_for(run_id, "EXEC").pid for run_id in runs]
    for _ in range(2):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for run_id in runs:
            stalled = daemon.wait_for_run(run_id, lambda run: "stalled" in run.flags)
            assert stalled.status == "EXEC"
        # Far beyond the silence limit, and still it is no fault.
        beyond = daemon.client.health().uptime_s + 3
        assert wait_until(lambda end=beyond: daemon.client.health().uptime_s > end, timeout_s=60)
        assert {daemon.client.get(run_id).status for run_id in runs} == {"EXEC"}
        steps = [daemon.client.get(run_id).step for run_id in runs]
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        for run_id, step in zip(runs, steps, strict=True):
            run = daemon.wait_for_run(run_id, lambda run, step=step: run.step > step or run.status != "EXEC")
            assert run.status == "EXEC", run.reason
            daemon.wait_for_run(run_id, lambda run: "stalled" not in run.flags)
    kinds = daemon.event_kinds(runs[0])
    assert (kinds.count("stalled"), kinds.count("stalled_over"), kinds.count("faulted")) == (2, 2, 0)


def test_a_stalled_worker_is_still_stalled_for_the_next_daemon(daemon: RunningDaemon) -> None:
    run_id = daemon.submit(**ENDLESS).run_id
    pid = daemon.wait_for(run_id, "EXEC").pid
    os.kill(pid, signal.SIGSTOP)
    daemon.wait_for_run(run_id, lambda run: "stalled" in run.flags)
    daemon.restart()
    assert "stalled" in daemon.client.get(run_id).flags
    os.kill(pid, signal.SIGCONT)
    daemon.wait_for_run(run_id, lambda run: "stalled" not in run.flags)


def test_a_stalled_worker_can_be_cancelled(make_daemon) -> None:
    daemon = make_daemon(grace_s=60)
    run_id = daemon.submit(**ENDLESS).run_id
    os.kill(daemon.wait_for(run_id, "EXEC").pid, signal.SIGSTOP)
    daemon.wait_for_run(run_id, lambda run: "stalled" in run.flags)
    daemon.client.cancel(run_id)
    assert daemon.wait_for(run_id).outcome == "cancelled"
    # It was let go on to say its last words.
    assert daemon.manifest(run_id).finalised_by == "worker"


def test_a_silent_worker_faults_with_the_limit_named(make_daemon) -> None:
    daemon = make_daemon(silence_s=2)
    install_scripted_worker(daemon.home, "silent", SILENT)
    run = daemon.wait_for(daemon.client.submit(scripted_config("silent")).run.run_id)
    assert (run.outcome, run.reason) == ("failed", "the worker was silent for more than 2 s")
    assert processes_of(run.run_id) == []


def test_a_run_may_have_a_silence_limit_of_its_own(daemon: RunningDaemon) -> None:
    install_scripted_worker(daemon.home, "silent", SILENT)
    patient = daemon.client.submit(scripted_config("silent", scheduling={"silence_s": 600})).run.run_id
    run = daemon.wait_for(daemon.client.submit(scripted_config("silent", scheduling={"silence_s": 1})).run.run_id)
    assert run.reason == "the worker was silent for more than 1 s"
    assert daemon.client.get(patient).status == "EXEC"


def test_a_worker_that_never_registers_faults(make_daemon) -> None:
    daemon = make_daemon(handshake_s=1)
    run = daemon.wait_for(daemon.submit(**ENDLESS, never_register=True).run_id)
    assert (run.outcome, run.reason) == ("failed", "the worker did not register within 1 s")
    assert processes_of(run.run_id) == []


def test_a_worker_that_reports_slow_progress_is_left_alone(make_daemon) -> None:
    daemon = make_daemon(silence_s=1.5)
    run_id = daemon.submit(**ENDLESS, hang_at_step=3).run_id
    run = daemon.wait_for_run(run_id, lambda run: run.seconds_since_step > 3)
    assert run.status == "EXEC"


@pytest.mark.parametrize("frozen_s", [4, pytest.param(25, marks=pytest.mark.fault)])
def test_a_frozen_daemon_is_named_as_such_and_blames_no_run_afterwards(make_daemon, frozen_s: float) -> None:
    # The long form outlasts the deadline of the workers' calls: after it nothing is on its way to the daemon.
    daemon = make_daemon(silence_s=1.5)
    runs = [daemon.submit(**ENDLESS).run_id for _ in range(3)]
    pids = [daemon.wait_for(run_id, "EXEC").pid for run_id in runs]
    with TrainerClient.connect(daemon.home, timeout_s=frozen_s) as client:
        for _ in range(2):
            daemon.freeze()
            try:
                # Long beyond every limit it would hold its runs to.
                with pytest.raises(DaemonUnreachable, match=r"stopped by a signal and cannot answer; `kill -CONT"):
                    client.health()
                assert all(processes_of(run_id) for run_id in runs)
            finally:
                daemon.thaw()
            steps = {run_id: daemon.client.get(run_id).step for run_id in runs}
            for run_id in runs:
                run = daemon.wait_for_run(run_id, lambda run, step=steps[run_id]: run.step > step or run.outcome)
                assert run.status == "EXEC", run.reason
    assert [daemon.client.get(run_id).pid for run_id in runs] == pids
    assert not any("faulted" in daemon.event_kinds(run_id) for run_id in runs)
