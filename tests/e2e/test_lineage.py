"""A fault is retried under the same id from the last good checkpoint; a finished run is continued by a child."""

from __future__ import annotations

import json
import os
import signal

import pytest
from gym_gui.services.trainer.errors import NotPossibleNow
from gym_gui.testing import RunningDaemon, processes_of
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.manifest import sha256_of_file
from mosaic_wire.testing import wait_until


def starts(daemon: RunningDaemon, run_id: str) -> list[tuple[int, int]]:
    """Attempt and first step of each start, by the worker's own account."""
    events = daemon.lifecycle(run_id)
    return [(event.attempt, event.payload["step"]) for event in events if event.event is LifecycleKind.RUN_STARTED]


def test_a_fault_is_retried_under_the_same_id_from_the_last_good_checkpoint(daemon: RunningDaemon) -> None:
    undisturbed = daemon.wait_for(daemon.submit(timesteps=100, seed=3).run_id)
    run_id = daemon.submit(
        timesteps=100, seed=3, checkpoint_every=10, kill_at_step=37, faulty_attempts=1, scheduling={"retries": 2}
    ).run_id
    ended = daemon.wait_for(run_id)
    assert (ended.run_id, ended.outcome, ended.attempt) == (run_id, "completed", 2)
    assert starts(daemon, run_id) == [(1, 0), (2, 30)]
    assert json.loads(ended.result_json) == json.loads(undisturbed.result_json)
    story = {event.kind: event for event in daemon.client.history(run_id)}
    assert (story["retried"].from_status, story["retried"].to_status) == ("FAULT", "INIT")
    assert "killed by SIGKILL" in story["retried"].reason
    # The checkpoints of both attempts make one list.
    assert [entry.step for entry in daemon.manifest(run_id).checkpoints] == list(range(10, 101, 10))


def test_a_damaged_checkpoint_is_passed_over_when_a_run_is_retried(make_daemon) -> None:
    daemon = make_daemon()
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    run_id = daemon.submit(
        timesteps=100,
        checkpoint_every=10,
        steps_per_second=50,
        hang_at_step=37,
        faulty_attempts=1,
        scheduling={"retries": 1},
        resources=everything,
    ).run_id
    folder = daemon.home.run_folder(run_id)
    newest = folder.checkpoints / "step-30" / "state.json"
    assert wait_until(newest.exists, timeout_s=60)
    daemon.wait_for_run(run_id, lambda run: run.step >= 36)
    newest.write_bytes(newest.read_bytes()[:-20])
    daemon.kill()
    for pid in processes_of(run_id):
        os.kill(pid, signal.SIGKILL)
    daemon.start()
    assert daemon.wait_for(run_id).outcome == "completed"
    assert starts(daemon, run_id) == [(1, 0), (2, 20)]


def test_retries_are_counted_and_off_by_default(daemon: RunningDaemon) -> None:
    once = daemon.submit(timesteps=100, fail_at_step=5).run_id
    thrice = daemon.submit(timesteps=100, fail_at_step=5, scheduling={"retries": 2}).run_id
    assert (daemon.wait_for(once).outcome, daemon.client.get(once).attempt) == ("failed", 1)
    ended = daemon.wait_for(thrice)
    assert (ended.outcome, ended.attempt) == ("failed", 3)
    kinds = daemon.event_kinds(thrice)
    assert [kinds.count(kind) for kind in ("dispatched", "faulted", "retried", "given_up")] == [3, 3, 2, 1]
    assert [attempt for attempt, _ in starts(daemon, thrice)] == [1, 2, 3]


def test_a_run_that_waits_for_its_retry_survives_the_daemon(daemon: RunningDaemon) -> None:
    run_id = daemon.submit(timesteps=50, kill_at_step=5, faulty_attempts=2, scheduling={"retries": 3}).run_id
    daemon.wait_for_run(run_id, lambda run: run.status == "INIT" and run.attempt == 3)
    daemon.restart()
    ended = daemon.wait_for(run_id)
    assert (ended.outcome, ended.attempt) == ("completed", 3)
    assert [attempt for attempt, _ in starts(daemon, run_id)] == [1, 2, 3]


def test_extending_a_finished_run_makes_a_child_that_continues_from_its_checkpoint(daemon: RunningDaemon) -> None:
    whole = daemon.wait_for(daemon.submit(timesteps=150, seed=5).run_id)
    parent = daemon.wait_for(daemon.submit(timesteps=100, seed=5, checkpoint_every=50, tags=("first",)).run_id)
    with pytest.raises(NotPossibleNow, match="add more with `mosaic extend"):
        daemon.client.resume(parent.run_id)

    child = daemon.client.resume(parent.run_id, additional_timesteps=50, idempotency_key="more")
    again = daemon.client.resume(parent.run_id, additional_timesteps=50, idempotency_key="more")

    assert again.run_id == child.run_id != parent.run_id
    checkpoint = daemon.home.run_folder(parent.run_id).checkpoints / "step-100" / "state.json"
    reported = (child.parent.run_id, child.parent.step, child.parent.sha256)
    assert reported == (parent.run_id, 100, sha256_of_file(checkpoint))
    ended = daemon.wait_for(child.run_id)
    assert (ended.outcome, ended.step, ended.total, ended.attempt) == ("completed", 150, 150, 1)
    assert json.loads(ended.result_json) == json.loads(whole.result_json)
    assert starts(daemon, child.run_id) == [(1, 100)]
    assert list(ended.tags) == ["first"]
    # The parent is as it was.
    after = daemon.client.get(parent.run_id)
    assert (after.status, after.outcome, after.total, after.event_seq) == ("TERM", "completed", 100, parent.event_seq)


def test_a_cancelled_run_is_resumed_by_a_child_from_the_checkpoint_one_names(daemon: RunningDaemon) -> None:
    run_id = daemon.submit(timesteps=200, steps_per_second=100, checkpoint_every=10).run_id
    daemon.wait_for_run(run_id, lambda run: run.step > 40)
    daemon.client.cancel(run_id)
    daemon.wait_for(run_id)
    named = daemon.client.resume(run_id, checkpoint="checkpoints/step-20")
    newest = daemon.client.resume(run_id)
    assert named.parent.step == 20
    assert newest.parent.step > 40
    for child in (named, newest):
        ended = daemon.wait_for(child.run_id)
        assert (ended.outcome, ended.step) == ("completed", 200)
        assert starts(daemon, child.run_id) == [(1, child.parent.step)]
    with pytest.raises(NotPossibleNow, match="has no checkpoint '999'; it has: checkpoints/step-10"):
        daemon.client.resume(run_id, checkpoint="999")


def test_a_child_may_have_a_child_of_its_own(daemon: RunningDaemon) -> None:
    first = daemon.wait_for(daemon.submit(timesteps=50, checkpoint_every=25).run_id)
    second = daemon.wait_for(daemon.client.resume(first.run_id, additional_timesteps=50).run_id)
    third = daemon.client.resume(second.run_id, additional_timesteps=50)
    assert (third.parent.run_id, third.parent.step) == (second.run_id, 100)
    assert daemon.wait_for(third.run_id).step == 150


def test_a_run_without_a_checkpoint_cannot_be_continued_and_reports_it(daemon: RunningDaemon) -> None:
    run = daemon.wait_for(daemon.submit(timesteps=10).run_id)
    with pytest.raises(NotPossibleNow, match="left no usable checkpoint"):
        daemon.client.resume(run.run_id, additional_timesteps=10)


def test_deleting_the_parent_does_not_hurt_a_child_that_has_begun(daemon: RunningDaemon) -> None:
    parent = daemon.wait_for(daemon.submit(timesteps=20, checkpoint_every=20, steps_per_second=100).run_id)
    child = daemon.client.resume(parent.run_id, additional_timesteps=200).run_id
    daemon.wait_for_run(child, lambda run: run.status == "TERM" or run.step > 20)
    daemon.client.delete(parent.run_id)
    assert daemon.wait_for(child).outcome == "completed"
    assert daemon.client.get(child).parent.run_id == parent.run_id
