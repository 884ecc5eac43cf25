"""Pause keeps the process and its slots, release gives both back; whatever the daemon does in between."""

from __future__ import annotations

import json
import shutil

import pytest
from gym_gui.services.trainer.errors import NotPossibleNow
from gym_gui.services.trainer.process_tree import process_state
from gym_gui.testing import RunningDaemon, install_scripted_worker, processes_of, scripted_config
from mosaic_wire.testing import wait_until

ENDLESS = {"timesteps": 1_000_000, "steps_per_second": 200}
ONE_CPU = {"cpus": {"requested": 1}}


def start(daemon: RunningDaemon, **parameters) -> str:
    run = daemon.submit(**{**ENDLESS, **parameters}, resources=ONE_CPU)
    return daemon.wait_for(run.run_id, "EXEC").run_id


def release(daemon: RunningDaemon, run_id: str) -> None:
    daemon.client.pause(run_id, release=True)
    daemon.wait_for_run(run_id, lambda run: "released" in run.flags)


def start_one_that_cannot_pause(daemon: RunningDaemon) -> str:
    install_scripted_worker(
        daemon.home,
        "simple",
        """
        session = open_session()
        session.started()
        for step in range(1, config.total_timesteps + 1):
            session.progress(step, config.total_timesteps)
            if session.stop_requested.wait(0.005):
                session.finish(ExitOutcome.CANCELLED, exit_code=130)
                sys.exit(130)
        session.finish(ExitOutcome.COMPLETED, exit_code=0)
        """,
    )
    run = daemon.client.submit(scripted_config("simple", timesteps=400)).run
    return daemon.wait_for(run.run_id, "EXEC").run_id


def test_a_paused_run_keeps_its_process_and_its_slot_and_continues(daemon: RunningDaemon) -> None:
    run_id = start(daemon)
    free = daemon.client.health().cpus_free
    daemon.client.pause(run_id)
    paused = daemon.wait_for(run_id, "PAUSE")
    assert processes_of(run_id) == [paused.pid]
    assert daemon.client.health().cpus_free == free
    with pytest.raises(NotPossibleNow, match=f"is already paused; `mosaic resume {run_id}` continues it"):
        daemon.client.pause(run_id)
    # It holds: heartbeats continue, steps do not.
    beats = daemon.wait_for_run(run_id, lambda run: run.seconds_since_step > 0.5)
    daemon.client.resume(run_id)
    running = daemon.wait_for_run(run_id, lambda run: run.status == "EXEC" and run.step > beats.step)
    assert (running.pid, running.attempt) == (paused.pid, 1)
    with pytest.raises(NotPossibleNow, match="is already running; only a paused run can be resumed"):
        daemon.client.resume(run_id)


def test_a_released_run_gives_everything_back_and_later_ends_as_if_nothing_had_been(daemon: RunningDaemon) -> None:
    undisturbed = daemon.wait_for(daemon.submit(timesteps=300, seed=7).run_id)
    run_id = start(daemon, timesteps=300, seed=7, steps_per_second=100)
    release(daemon, run_id)
    run = daemon.client.get(run_id)
    assert (run.status, run.pid, processes_of(run_id)) == ("PAUSE", 0, [])
    assert daemon.client.health().cpus_free == daemon.client.health().cpus_total

    assert daemon.client.resume(run_id).status == "INIT"
    ended = daemon.wait_for(run_id)

    assert (ended.run_id, ended.outcome, ended.attempt) == (run_id, "completed", 2)
    assert json.loads(ended.result_json) == json.loads(undisturbed.result_json)
    kinds = daemon.event_kinds(run_id)
    assert [kinds.count(kind) for kind in ("released", "requeued", "checkpoint_loaded")] == [1, 1, 1]


def test_a_resumed_run_goes_through_the_queue_again(daemon: RunningDaemon) -> None:
    run_id = start(daemon)
    release(daemon, run_id)
    cpus = daemon.client.health().cpus_total
    other = daemon.submit(**ENDLESS, resources={"cpus": {"requested": cpus}}).run_id
    daemon.wait_for(other, "EXEC")
    daemon.client.resume(run_id)
    waiting = daemon.wait_for_run(run_id, lambda run: "waiting for 1 CPU" in run.queue_reason)
    assert waiting.status == "INIT"
    daemon.client.cancel(other)
    assert daemon.wait_for(run_id, "EXEC").attempt == 2


def test_a_pause_outlives_the_daemon(daemon: RunningDaemon) -> None:
    run_id = start(daemon)
    daemon.client.pause(run_id)
    pid = daemon.wait_for(run_id, "PAUSE").pid
    daemon.restart()
    assert daemon.client.get(run_id).status == "PAUSE"
    daemon.client.pause(run_id, release=True)
    daemon.wait_for_run(run_id, lambda run: "released" in run.flags)
    assert processes_of(run_id) == []
    daemon.restart()
    assert daemon.client.get(run_id).flags == ["released"]
    assert daemon.client.health().cpus_free == daemon.client.health().cpus_total
    daemon.client.resume(run_id)
    assert daemon.wait_for(run_id, "EXEC").pid != pid


def test_a_pause_asked_for_just_before_the_daemon_died_is_not_forgotten(daemon: RunningDaemon) -> None:
    run_id = start(daemon)
    daemon.client.pause(run_id)
    daemon.restart()
    daemon.wait_for(run_id, "PAUSE")
    daemon.client.resume(run_id)
    daemon.restart()
    daemon.wait_for(run_id, "EXEC")


def test_a_worker_that_cannot_pause_is_stopped_by_signal_and_the_run_reports_it(daemon: RunningDaemon) -> None:
    run_id = start_one_that_cannot_pause(daemon)
    paused = daemon.client.pause(run_id)
    assert (paused.status, paused.flags) == ("PAUSE", ["paused_by_signal"])
    assert wait_until(lambda: process_state(paused.pid) == "T")
    daemon.restart()
    assert process_state(paused.pid) == "T"
    assert daemon.client.get(run_id).flags == ["paused_by_signal"]
    daemon.client.resume(run_id)
    assert daemon.wait_for(run_id).outcome == "completed"


def test_a_worker_without_checkpoints_is_not_released_but_reported_why(daemon: RunningDaemon) -> None:
    run_id = start_one_that_cannot_pause(daemon)
    with pytest.raises(NotPossibleNow, match="cannot write a checkpoint"):
        daemon.client.pause(run_id, release=True)
    assert daemon.wait_for(run_id).outcome == "completed"


def test_a_paused_run_does_not_use_up_its_wall_clock(daemon: RunningDaemon) -> None:
    limit_s = 5
    run = daemon.submit(**ENDLESS, resources={"max_wallclock_minutes": limit_s / 60})
    daemon.wait_for(run.run_id, "EXEC")
    daemon.client.pause(run.run_id)
    paused = daemon.wait_for_run(run.run_id, lambda run: run.status == "PAUSE" and run.seconds_since_step > limit_s)
    daemon.restart()  # the next daemon knows of the pause as well
    daemon.client.resume(run.run_id)
    daemon.wait_for_run(run.run_id, lambda run: run.status == "EXEC" and run.step > paused.step + 100)
    ended = daemon.wait_for(run.run_id)
    assert "out of wall-clock time" in ended.reason


def test_a_released_run_whose_checkpoint_is_missing_is_not_started_from_scratch_in_silence(
    daemon: RunningDaemon,
) -> None:
    run_id = start(daemon)
    release(daemon, run_id)
    shutil.rmtree(daemon.home.run_folder(run_id).checkpoints)
    with pytest.raises(NotPossibleNow, match="no usable checkpoint"):
        daemon.client.resume(run_id)
    assert daemon.client.get(run_id).status == "PAUSE"


@pytest.mark.parametrize("status", ["INIT", "TERM"])
def test_only_a_training_run_can_be_paused(daemon: RunningDaemon, status: str) -> None:
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    blocker = daemon.submit(**ENDLESS, resources=everything).run_id
    run_id = daemon.submit(**ENDLESS, resources=everything).run_id
    if status == "TERM":
        daemon.client.cancel(run_id)
    assert wait_until(lambda: daemon.client.get(run_id).status == status)
    with pytest.raises(NotPossibleNow, match=r"is (queued|over .cancelled.); only a running run can be paused"):
        daemon.client.pause(run_id)
    daemon.client.cancel(blocker)
