"""Fault 3: however a worker dies, its run ends rightly, nothing of it lives on, and only then are its slots free."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, processes_of, scripted_config
from mosaic_wire.testing import wait_until

LONG = {"timesteps": 100_000, "steps_per_second": 100}

DEATHS: dict[str, tuple[dict[str, Any], str]] = {
    "SIGKILL": ({"kill_at_step": 3, "kill_signal": 9}, "killed by SIGKILL"),
    "SIGSEGV": ({"kill_at_step": 3, "kill_signal": 11}, "killed by SIGSEGV"),
    "an error of its own": ({"fail_at_step": 3}, "AskedToFail: fail_at_step asked for an error at step 3"),
    "exit 0 before the first step is done": ({"exit_at_step": 1}, "code 0 without reporting run_completed"),
    "another exit code without a word": ({"exit_at_step": 3, "exit_code": 7}, "exited with code 7"),
    "exit 0 before it registered, its child lives on": ({"fork_and_exit": True}, "code 0 without reporting"),
    "gone, its children live on": (
        {"kill_at_step": 3, "spawn_children": 2, "detach_children": True},
        "killed by SIGKILL",
    ),
    "gone, its children ignore SIGTERM": (
        {"kill_at_step": 3, "spawn_children": 2, "detach_children": True, "stubborn_children": True},
        "killed by SIGKILL",
    ),
}


@pytest.fixture
def daemon(emptied_daemon: RunningDaemon) -> RunningDaemon:
    return emptied_daemon


@pytest.mark.parametrize("death", DEATHS)
def test_a_dead_worker_is_a_failed_run_with_its_cause_and_nothing_of_it_is_left(
    daemon: RunningDaemon, death: str
) -> None:
    parameters, reason = DEATHS[death]
    run = daemon.wait_for(daemon.submit(**LONG, **parameters).run_id)
    # TERM means that the whole tree is gone, not that it soon will be.
    assert processes_of(run.run_id) == []
    assert (run.status, run.outcome, run.pid) == ("TERM", "failed", 0)
    assert reason in run.reason
    manifest = daemon.manifest(run.run_id)
    assert (manifest.outcome, manifest.reason) == ("failed", run.reason)
    events = list(daemon.client.history(run.run_id))
    assert [event.kind for event in events if event.to_status == "TERM"] == ["given_up"]
    assert daemon.client.health().cpus_free == daemon.client.health().cpus_total


def test_the_last_lines_of_a_failed_run_are_reported_at_its_end(daemon: RunningDaemon) -> None:
    run = daemon.wait_for(daemon.submit(**LONG, fail_at_step=3, print_line="the last thing it said").run_id)
    (end,) = [event for event in daemon.client.history(run.run_id) if event.to_status == "TERM"]
    assert "AskedToFail" in end.payload_json
    assert "the last thing it said" in end.payload_json


def test_slots_come_back_only_when_the_whole_tree_is_missing(daemon: RunningDaemon) -> None:
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    dying = daemon.submit(
        **LONG, resources=everything, kill_at_step=3, spawn_children=2, detach_children=True, stubborn_children=True
    )
    waiting = daemon.submit(**LONG, resources=everything)
    seen_too_early: list[int] = []

    def waiting_has_started() -> bool:
        status = daemon.client.get(waiting.run_id).status
        if status != "INIT":
            seen_too_early.extend(processes_of(dying.run_id))
        return status == "EXEC"

    assert wait_until(waiting_has_started, timeout_s=60)
    assert seen_too_early == []
    assert daemon.client.get(dying.run_id).outcome == "failed"


def test_a_completed_worker_that_leaves_children_is_swept_and_has_completed(daemon: RunningDaemon) -> None:
    run = daemon.wait_for(daemon.submit(timesteps=5, spawn_children=2, detach_children=True).run_id)
    assert run.outcome == "completed"
    assert processes_of(run.run_id) == []


def test_run_completed_is_not_believed_when_the_exit_code_says_otherwise(daemon: RunningDaemon) -> None:
    install_scripted_worker(
        daemon.home,
        "two_faced",
        """
        session = open_session()
        session.started()
        session.emit(LifecycleKind.RUN_COMPLETED, {})
        os._exit(3)
        """,
    )
    run = daemon.wait_for(daemon.client.submit(scripted_config("two_faced")).run.run_id)
    assert run.outcome == "failed"
    assert "exited with code 3" in run.reason


def test_a_worker_that_cannot_be_started_faults_with_the_reason(daemon: RunningDaemon) -> None:
    install_scripted_worker(daemon.home, "gone", "")
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    blocker = daemon.submit(**LONG, resources=everything)
    daemon.wait_for(blocker.run_id, "EXEC")
    config = scripted_config("gone")
    config["resources"] = everything
    run = daemon.client.submit(config).run
    (daemon.home.workers / "gone" / "worker.json").unlink()
    # The catalog looks at the files again only after a while.
    assert wait_until(lambda: "gone" not in [worker.name for worker in daemon.client.workers()])
    daemon.client.cancel(blocker.run_id)
    ended = daemon.wait_for(run.run_id)
    assert ended.outcome == "failed"
    assert "there is no worker 'gone'" in ended.reason
    assert daemon.wait_for(daemon.submit(timesteps=3).run_id).outcome == "completed"


BY_A_PARENT = """
import signal, sys
from gym_gui.services.trainer.daemon import main
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCONT})
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
sys.exit(main([]))
"""


def test_signals_that_the_daemons_parent_blocked_or_ignored_change_nothing(make_daemon) -> None:
    daemon = make_daemon(script=BY_A_PARENT)
    killed = daemon.wait_for(daemon.submit(timesteps=50, kill_at_step=5).run_id)
    assert "was killed by SIGKILL" in killed.reason
    run = daemon.wait_for(daemon.submit(timesteps=1_000_000, steps_per_second=50).run_id, "EXEC")
    blocked = re.search(r"SigBlk:\s+(\w+)", Path(f"/proc/{run.pid}/status").read_text())
    assert blocked is not None
    assert int(blocked[1], 16) == 0
    daemon.client.cancel(run.run_id)
    daemon.wait_for(run.run_id)
