"""Fault 12: cancel in each state, twice, from many at once, during a resume: one terminal record, no process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import NotPossibleNow
from gym_gui.testing import RunningDaemon, install_scripted_worker, processes_of, scripted_config
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until

ENDLESS = {"timesteps": 1_000_000, "steps_per_second": 100}


@pytest.fixture
def daemon(emptied_daemon: RunningDaemon) -> RunningDaemon:
    """The daemon of the module: each test looks at its own runs."""
    return emptied_daemon


def queued(daemon: RunningDaemon) -> str:
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    daemon.wait_for(daemon.submit(**ENDLESS, resources=everything).run_id, "EXEC")
    run = daemon.submit(**ENDLESS, resources=everything)
    return daemon.wait_for(run.run_id, "INIT").run_id


def unregistered(daemon: RunningDaemon) -> str:
    return daemon.wait_for(daemon.submit(**ENDLESS, never_register=True).run_id, "HSHK").run_id


def registered(daemon: RunningDaemon) -> str:
    install_scripted_worker(daemon.home, "shy", "session = open_session()\nsession.stop_requested.wait()\n")
    return daemon.wait_for(daemon.client.submit(scripted_config("shy")).run.run_id, "RDY").run_id


def training(daemon: RunningDaemon) -> str:
    return daemon.wait_for(daemon.submit(**ENDLESS).run_id, "EXEC").run_id


def held(daemon: RunningDaemon) -> str:
    run_id = training(daemon)
    daemon.client.pause(run_id)
    return daemon.wait_for(run_id, "PAUSE").run_id


def stopped(daemon: RunningDaemon) -> str:
    """Paused by SIGSTOP: it must go on to hear of its end."""
    install_scripted_worker(
        daemon.home, "simple", "session = open_session()\nsession.started()\nsession.stop_requested.wait()\n"
    )
    run_id = daemon.wait_for(daemon.client.submit(scripted_config("simple")).run.run_id, "EXEC").run_id
    assert "paused_by_signal" in daemon.client.pause(run_id).flags
    return run_id


def released(daemon: RunningDaemon) -> str:
    run_id = training(daemon)
    daemon.client.pause(run_id, release=True)
    return daemon.wait_for_run(run_id, lambda run: "released" in run.flags).run_id


def faulted(daemon: RunningDaemon) -> str:
    """In FAULT for as long as its stubborn children get to end themselves."""
    run_id = daemon.submit(
        **ENDLESS,
        spawn_children=1,
        stubborn_children=True,
        ignore_sigterm=True,
        resources={"max_wallclock_minutes": 0.01},
    ).run_id
    return daemon.wait_for(run_id, "FAULT").run_id


def waiting_for_its_retry(daemon: RunningDaemon) -> str:
    run_id = daemon.submit(**ENDLESS, scheduling={"retries": 50}, fail_at_step=2).run_id
    return daemon.wait_for_run(run_id, lambda run: run.status == "INIT" and run.attempt > 2).run_id


STATES: dict[str, Callable[[RunningDaemon], str]] = {
    "INIT": queued,
    "HSHK": unregistered,
    "RDY": registered,
    "EXEC": training,
    "PAUSE, held": held,
    "PAUSE, stopped by signal": stopped,
    "PAUSE, released": released,
    "FAULT": faulted,
    "INIT, between two attempts": waiting_for_its_retry,
}


def check_the_one_end(daemon: RunningDaemon, run_id: str) -> None:
    run = daemon.wait_for(run_id)
    assert (run.outcome, run.reason, run.pid) == ("cancelled", "cancelled on request", 0)
    assert processes_of(run_id) == []
    events = list(daemon.client.history(run_id))
    assert [event.kind for event in events if event.to_status == "TERM"] == ["cancelled"]
    if daemon.home.run_folder(run_id).root.exists():
        manifest = daemon.manifest(run_id)
        assert (manifest.outcome, manifest.finalised_by is None) == ("cancelled", False)


@pytest.mark.parametrize("state", STATES)
def test_a_cancel_in_any_state_ends_the_run_once(daemon: RunningDaemon, state: str) -> None:
    for _ in range(5):
        run_id = STATES[state](daemon)
        try:
            daemon.client.cancel(run_id)
            break
        except NotPossibleNow:  # on a busy machine its children may have ended by now
            assert state == "FAULT"
    daemon.client.cancel(run_id)  # asking again is harmless
    check_the_one_end(daemon, run_id)
    assert daemon.client.cancel(run_id).outcome == "cancelled"
    assert "Traceback" not in daemon.log()


def test_runs_cancelled_in_any_state_stay_so_after_a_restart(make_daemon) -> None:
    daemon = make_daemon()
    runs = [STATES[state](daemon) for state in ("INIT", "PAUSE, held", "PAUSE, released", "RDY")]
    for run_id in runs:
        daemon.client.cancel(run_id)
    for run_id in runs:
        check_the_one_end(daemon, run_id)
    daemon.restart()
    for run_id in runs:
        check_the_one_end(daemon, run_id)
    assert "Traceback" not in daemon.log()


@pytest.mark.parametrize("state", ["INIT", "EXEC", "PAUSE, released"])
def test_many_clients_cancel_the_same_run_at_once(daemon: RunningDaemon, state: str) -> None:
    run_id = STATES[state](daemon)
    answers: list[pb.Run | Exception] = []
    together = threading.Barrier(8)

    def cancel() -> None:
        with TrainerClient.connect(daemon.home, timeout_s=60) as client:
            together.wait()
            try:
                answers.append(client.cancel(run_id))
            except Exception as error:  # noqa: BLE001 - judged below
                answers.append(error)

    threads = [threading.Thread(target=cancel) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer for answer in answers if isinstance(answer, Exception)] == []
    check_the_one_end(daemon, run_id)
    assert "Traceback" not in daemon.log()


def test_a_queued_run_that_a_dead_daemon_had_begun_to_launch_gets_its_manifest(daemon: RunningDaemon) -> None:
    run_id = queued(daemon)
    daemon.home.run_folder(run_id).root.mkdir()  # made before the process is started
    daemon.client.cancel(run_id)
    check_the_one_end(daemon, run_id)
    assert daemon.manifest(run_id).finalised_by == "daemon"


def test_a_cancel_during_a_resume_wins(daemon: RunningDaemon) -> None:
    runs = [released(daemon) for _ in range(3)]
    for run_id in runs:
        daemon.client.resume(run_id)
        daemon.client.cancel(run_id)
    for run_id in runs:
        check_the_one_end(daemon, run_id)
    assert "Traceback" not in daemon.log()


def test_runs_cancelled_the_moment_they_were_submitted_all_end_and_give_everything_back(daemon: RunningDaemon) -> None:
    # The launch, and whatever comes before it, is caught at many different points.
    runs = [daemon.submit(**ENDLESS, resources={"cpus": {"requested": 0.1}}).run_id for _ in range(12)]
    for run_id in runs:
        daemon.client.cancel(run_id)
    for run_id in runs:
        run = daemon.wait_for(run_id)
        assert run.outcome == "cancelled"
        events = list(daemon.client.history(run_id))
        assert [event.kind for event in events if event.to_status == "TERM"] == ["cancelled"]
        assert processes_of(run_id) == []
    health = daemon.client.health()
    assert health.cpus_free == health.cpus_total
    assert "Traceback" not in daemon.log()


def test_a_worker_that_ignores_sigterm_is_killed_with_the_children_that_left_its_session(make_daemon) -> None:
    daemon = make_daemon(grace_s=0.5)
    run = daemon.submit(**ENDLESS, ignore_sigterm=True, spawn_children=3, detach_children=True, stubborn_children=True)
    daemon.wait_for(run.run_id, "EXEC")
    assert wait_until(lambda: len(processes_of(run.run_id)) == 4, timeout_s=60)
    daemon.client.cancel(run.run_id)
    check_the_one_end(daemon, run.run_id)


def test_a_cancelled_run_writes_its_last_checkpoint_within_the_grace(make_daemon) -> None:
    daemon = make_daemon(grace_s=60)
    run_id = training(daemon)
    daemon.client.cancel(run_id)
    check_the_one_end(daemon, run_id)
    manifest = daemon.manifest(run_id)
    assert manifest.finalised_by == "worker"
    assert [entry.kind for entry in manifest.checkpoints] == ["last"]


def test_what_has_ended_cannot_be_cancelled(daemon: RunningDaemon) -> None:
    run = daemon.wait_for(daemon.submit(timesteps=3).run_id)
    with pytest.raises(NotPossibleNow, match="has already ended: completed"):
        daemon.client.cancel(run.run_id)
    assert daemon.client.get(run.run_id).outcome == "completed"


def test_a_stranger_who_kills_the_worker_is_not_mistaken_for_a_cancel(daemon: RunningDaemon) -> None:
    run_id = training(daemon)
    os.kill(daemon.client.get(run_id).pid, signal.SIGTERM)
    run = daemon.wait_for(run_id)
    assert (run.outcome, "did not come from MOSAIC" in run.reason) == ("failed", True)
