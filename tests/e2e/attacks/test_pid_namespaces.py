"""A daemon started in a container on the same home neither starts a run again nor ends it: it listens to its worker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.local_daemon import running_record
from gym_gui.testing import RunningDaemon, processes_of
from mosaic_wire.frames import FrameWriter, fastlane_path
from mosaic_wire.ids import new_run_id
from mosaic_wire.testing import wait_until

NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
if os.getuid() != 0:
    NAMESPACE[1:1] = ["--user", "--map-root-user"]
INSIDE = f"""
import os, sys
command = [*{NAMESPACE!r}, sys.executable, "-m", "gym_gui.services.trainer.daemon", "run"]
os.execvp(command[0], command)
"""


@pytest.fixture
def outside(make_daemon) -> RunningDaemon:
    """A daemon as people start it."""
    made = subprocess.run([*NAMESPACE, sys.executable, "-c", ""], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"this machine allows no PID namespace: {made.stderr.strip()}")
    return make_daemon()


@pytest.fixture
def container(outside: RunningDaemon) -> Iterator[RunningDaemon]:
    """A daemon of the same home in a PID namespace of its own; not started yet."""
    quick = {"heartbeat_s": 0.2, "grace_s": 0.5, "min_free_disk_mb": 0}
    inside = RunningDaemon(outside.home, outside.config_home / "inside", script=INSIDE, settings=quick)
    yield inside
    if running_record(outside.home) is not None and inside._process is not None:
        end(inside)


def begin(inside: RunningDaemon) -> None:
    inside.spawn()
    assert wait_until(lambda: running_record(inside.home) is not None), inside.log()


def end(inside: RunningDaemon) -> None:
    with TrainerClient.connect(inside.home) as client:
        client.shutdown()
    inside.wait_for_exit()
    inside._process = None


def test_a_run_is_heard_across_namespaces_and_trained_once(outside: RunningDaemon, container: RunningDaemon) -> None:
    run_id = outside.submit(timesteps=120, steps_per_second=20, scheduling={"retries": 3}).run_id
    pid = outside.wait_for(run_id, "EXEC").pid
    outside.stop()
    begin(container)
    before = container.client.get(run_id).step
    run = container.wait_for_run(run_id, lambda run: run.step > before)
    assert (run.status, run.attempt, run.pid) == ("EXEC", 1, pid)
    assert "keeps running in another PID namespace" in container.log()
    ended = container.wait_for(run_id)
    assert (ended.outcome, ended.attempt, ended.step) == ("completed", 1, 120)
    assert len([event for event in outside.lifecycle(run_id) if event.event == "run_started"]) == 1
    end(container)


def test_a_daemon_that_sees_the_worker_again_takes_it_back(outside: RunningDaemon, container: RunningDaemon) -> None:
    run_id = outside.submit(timesteps=10**6, steps_per_second=20).run_id
    outside.wait_for(run_id, "EXEC")
    outside.stop()
    begin(container)
    container.client.cancel(run_id, reason="enough")  # it cannot be ended from there
    assert wait_until(lambda: "cannot be ended yet" in container.log())
    assert processes_of(run_id)
    end(container)
    outside.start()
    assert outside.wait_for(run_id).outcome == "cancelled"
    assert processes_of(run_id) == []


def test_frames_of_a_writer_in_another_namespace_stay(outside: RunningDaemon, container: RunningDaemon) -> None:
    writer = FrameWriter(fastlane_path(new_run_id()))
    outside.stop()
    begin(container)  # a daemon sweeps what killed workers have left
    assert writer.path.exists()
    end(container)
    writer.close()
