"""Fault 6: the disk fills up while a config, the database, a log, a checkpoint, an event file or telemetry is written.

Later there is room.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from gym_gui.services.trainer.errors import NotPossibleNow, RegistryUnwritable
from gym_gui.services.trainer.process_tree import process_state
from gym_gui.testing import RunningDaemon, install_scripted_worker, processes_of, scripted_config
from mosaic_wire.capabilities import Lane
from mosaic_wire.checkpoints import last_good_checkpoint
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until


class SmallDisk:
    """A disk of a few megabytes that can be filled to the last byte and emptied again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ballast = root / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as stream:
            for size in (256 * 1024, 4096, 1):
                with suppress(OSError):
                    while stream.write(b"\0" * size):
                        pass

    def is_full(self) -> bool:
        return os.statvfs(self.root).f_bavail == 0

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)


@pytest.fixture
def disk(home: Home) -> Iterator[SmallDisk]:
    home.root.mkdir()
    mount(home.root, "size=24m")
    yield SmallDisk(home.root)
    unmount(home.root)


def mount(folder: Path, options: str) -> None:
    command = ["mount", "-t", "tmpfs", "-o", options, "mosaic-test", str(folder)]
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def daemon(disk: SmallDisk, make_daemon) -> Iterator[RunningDaemon]:
    """A daemon on the small disk; it needs some room to end its runs."""
    yield make_daemon()
    disk.make_room()


def test_a_submission_that_finds_no_room_is_refused_and_leaves_nothing(daemon: RunningDaemon, disk: SmallDisk) -> None:
    daemon.wait_for(daemon.submit(timesteps=3).run_id)
    configs = set(daemon.home.configs.iterdir())
    disk.fill()
    for _ in range(3):
        with pytest.raises(RegistryUnwritable, match=r"was not accepted: its config cannot be written|is full"):
            daemon.submit(timesteps=3)
    assert len(daemon.client.list().runs) == 1  # it lives, and answers
    assert set(daemon.home.configs.iterdir()) == configs
    disk.make_room()
    assert daemon.wait_for(daemon.submit(timesteps=3).run_id).outcome == "completed"


def test_a_run_whose_folder_finds_no_inode_waits_until_there_is_one(make_daemon) -> None:
    daemon = make_daemon()
    runs = daemon.home.runs
    mount(runs, "size=8m,nr_inodes=1")
    try:
        run_id = daemon.submit(timesteps=3).run_id
        daemon.wait_for_run(run_id, lambda run: run.status == "INIT" and "no inodes are left" in run.queue_reason)
        subprocess.run(["mount", "-o", "remount,nr_inodes=0", str(runs)], check=True)
        assert daemon.wait_for(run_id).outcome == "completed"
    finally:
        unmount(runs)


def test_a_run_waits_for_room_on_the_disk_of_the_runs_where_that_is_another(make_daemon) -> None:
    daemon = make_daemon(min_free_disk_mb=16)
    runs = daemon.home.runs
    mount(runs, "size=8m")
    try:
        run_id = daemon.submit(timesteps=3).run_id
        daemon.wait_for_run(run_id, lambda run: f"8 MB free under {runs}" in run.queue_reason)
        assert daemon.client.health().disk_mb_free == 8
        subprocess.run(["mount", "-o", "remount,size=64m", str(runs)], check=True)
        assert daemon.wait_for(run_id).outcome == "completed"
    finally:
        unmount(runs)


def test_an_export_that_finds_no_room_leaves_no_half_archive(make_daemon, tmp_path: Path) -> None:
    daemon = make_daemon()
    run_id = daemon.wait_for(daemon.submit(timesteps=3, log_mb=4).run_id).run_id
    (tmp_path / "small").mkdir()
    for folder, said in (
        (tmp_path / "small", "small/run.tar.gz cannot be written and was removed"),
        (daemon.home.archive, "cannot be packed in"),
    ):
        folder.mkdir(exist_ok=True)
        mount(folder, "size=8k")
        try:
            target = tmp_path / "small" / "run.tar.gz"
            export = [Path(sys.executable).with_name("mosaic"), "export", run_id, "-o", target]
            done = subprocess.run(export, env=daemon.variables, capture_output=True, text=True, check=False)
            assert (done.returncode, said in done.stderr, "No space left on device" in done.stderr) == (1, True, True)
            assert (list(folder.iterdir()), target.exists()) == ([], False)
        finally:
            unmount(folder)


def test_a_cancel_is_answered_though_the_ending_finds_no_room(make_daemon) -> None:
    daemon = make_daemon()
    mount(daemon.home.runs, "size=1m")
    disk = SmallDisk(daemon.home.runs)
    try:
        run_id = daemon.submit(timesteps=10**6, steps_per_second=100).run_id
        pid = daemon.wait_for(run_id, "EXEC").pid
        disk.fill()
        os.kill(pid, signal.SIGKILL)
        daemon.wait_for(run_id, "FAULT")
        trouble = f"run {run_id}: its manifest cannot be written"
        assert wait_until(lambda: trouble in daemon.client.health().trouble)
        assert daemon.log().count(trouble) == 1
        assert "cancelling" in daemon.client.cancel(run_id).flags
        disk.make_room()
        assert daemon.wait_for(run_id).outcome in ("cancelled", "failed")
    finally:
        unmount(daemon.home.runs)


def test_a_state_change_that_finds_no_room_is_made_up_for_later(daemon: RunningDaemon, disk: SmallDisk) -> None:
    killed = daemon.submit(timesteps=1_000_000, steps_per_second=100).run_id
    completes = daemon.submit(timesteps=200, steps_per_second=100).run_id
    pid = daemon.wait_for(killed, "EXEC").pid
    other_pid = daemon.wait_for(completes, "EXEC").pid
    disk.fill()
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: "is full" in daemon.client.health().trouble, timeout_s=60)
    wait_for_the_end_without_room(daemon, completes, other_pid)
    assert {daemon.client.get(run_id).outcome for run_id in (killed, completes)} == {""}
    disk.make_room()
    ended = daemon.wait_for(killed)
    assert (ended.outcome, "SIGKILL" in ended.reason) == ("failed", True)
    # Its ending may have found no room: then it did not complete, and says why.
    other = daemon.wait_for(completes)
    assert other.outcome == "completed" or tells_of_the_disk(other.reason), other.reason
    assert wait_until(lambda: daemon.client.health().trouble == "")
    assert daemon.wait_for(daemon.submit(timesteps=3).run_id).outcome == "completed"


def test_a_full_disk_is_named_to_who_tags_a_run_and_a_cancel_ends_its_worker_all_the_same(
    daemon: RunningDaemon, disk: SmallDisk
) -> None:
    run_id = daemon.submit(timesteps=1_000_000, steps_per_second=50).run_id
    daemon.wait_for(run_id, "EXEC")
    disk.fill()
    tagging = [Path(sys.executable).with_name("mosaic"), "tag", run_id, "kept"]
    tagged = subprocess.run(tagging, env=daemon.variables, capture_output=True, text=True, check=False)
    assert (tagged.returncode, "is full" in tagged.stderr) == (1, True), tagged.stderr
    assert "cancelling" in daemon.client.cancel(run_id, reason="no room").flags
    assert wait_until(lambda: not processes_of(run_id), timeout_s=60)
    disk.make_room()
    ended = daemon.wait_for(run_id)
    assert (ended.outcome, ended.reason) == ("cancelled", "no room")


def wait_for_the_end_without_room(daemon: RunningDaemon, run_id: str, pid: int) -> None:
    """Either the worker could still report its end, or the daemon has noticed it: not even a zombie is left."""

    def has_ended() -> bool:
        reported = any(event.event.ends_the_run for event in daemon.lifecycle(run_id))
        return process_state(pid) is None or (reported and not processes_of(run_id))

    assert wait_until(has_ended, timeout_s=60)


def tells_of_the_disk(reason: str) -> bool:
    return any(message in reason for message in ("No space left on device", "disk is full", "could be written"))


@pytest.mark.parametrize("parameters", [{"log_mb": 64}, {"checkpoint_every": 20}], ids=["a log", "a checkpoint"])
def test_a_run_that_fills_the_disk_fails_for_that_reason_and_its_checkpoint_is_intact(
    daemon: RunningDaemon, disk: SmallDisk, parameters: dict[str, int]
) -> None:
    first = daemon.submit(timesteps=1_000_000, steps_per_second=200, checkpoint_every=20).run_id
    folder = daemon.home.run_folder(first)
    assert wait_until(lambda: last_good_checkpoint(folder) is not None, timeout_s=60)
    if "log_mb" in parameters:
        flood = daemon.submit(timesteps=1_000_000, steps_per_second=200, **parameters).run_id
        assert wait_until(disk.is_full, timeout_s=60)
        pid = daemon.client.get(flood).pid
    else:
        pid = daemon.client.get(first).pid
        disk.fill()
        flood = first
    wait_for_the_end_without_room(daemon, flood, pid)
    good = last_good_checkpoint(folder)
    assert good is not None
    disk.make_room()
    if flood != first:
        (daemon.home.run_logs(flood) / "stdout.log").write_bytes(b"")
    ended = daemon.wait_for(flood)
    assert ended.outcome == "failed"
    assert tells_of_the_disk(ended.reason), ended.reason
    # What it had reached before is not lost: it can be continued.
    with suppress(NotPossibleNow):  # it found no room either, and is over
        daemon.client.cancel(first)
    daemon.wait_for(first)
    child = daemon.client.resume(first, checkpoint=good.path)
    assert (child.parent.run_id, child.parent.step) == (first, good.step)
    assert daemon.wait_for(child.run_id, "EXEC", "TERM").status == "EXEC"


@pytest.mark.slow  # the worker's own tests fill a disk in every CI
def test_training_with_a_replay_buffer_that_fills_the_disk_fails_for_that_reason_and_can_be_continued(
    daemon: RunningDaemon, disk: SmallDisk
) -> None:
    flags = {"learning_starts": 300, "buffer_size": 100_000, "train_frequency": 10, "checkpoint_freq": 2000}
    worker = {
        "algo": "dqn",
        "env_id": "CartPole-v1",
        "seed": 1,
        "total_timesteps": 10_000_000,
        "extras": {"algo_params": flags},
    }
    config = {
        "resources": {"cpus": {"requested": 0}},
        "metadata": {"worker": {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": worker}},
    }
    run_id = daemon.client.submit(config).run.run_id
    folder = daemon.home.run_folder(run_id)
    assert wait_until(lambda: len(list(folder.checkpoints.glob("step-*"))) >= 2, timeout_s=120)
    pid = daemon.client.get(run_id).pid
    disk.fill()
    wait_for_the_end_without_room(daemon, run_id, pid)
    good = last_good_checkpoint(folder)
    assert good is not None
    assert list(folder.checkpoints.glob(".*")) == []  # no half of one keeps the room
    assert list((folder.checkpoints / "replay").glob(".*")) == []
    disk.make_room()
    ended = daemon.wait_for(run_id)
    assert ended.outcome == "failed"
    assert tells_of_the_disk(ended.reason), ended.reason
    child = daemon.client.resume(run_id, checkpoint=good.path)
    assert (child.parent.run_id, child.parent.step) == (run_id, good.step)
    assert daemon.wait_for_run(child.run_id, lambda run: run.step > good.step, timeout_s=120).status == "EXEC"


def cleanrl_config(algo: str, **flags: object) -> dict[str, object]:
    worker = {
        "algo": algo,
        "env_id": "CartPole-v1",
        "seed": 1,
        "total_timesteps": 10_000_000,
        "extras": {"algo_params": flags},
    }
    return {
        "resources": {"cpus": {"requested": 0}},
        "metadata": {"worker": {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": worker}},
    }


@pytest.mark.fault
def test_training_whose_event_file_finds_no_room_fails_for_that_reason_and_its_curves_stay(
    daemon: RunningDaemon, disk: SmallDisk
) -> None:
    run_id = daemon.client.submit(cleanrl_config("ppo", checkpoint_freq=0)).run.run_id
    daemon.wait_for_run(run_id, lambda run: run.metrics.get("charts/SPS"), timeout_s=120)
    pid = daemon.client.get(run_id).pid
    disk.fill()  # nothing else is written by this run: it is the event file that finds no room
    wait_for_the_end_without_room(daemon, run_id, pid)
    assert len(daemon.client.list().runs) == 1  # it lives, and answers
    disk.make_room()
    ended = daemon.wait_for(run_id)
    assert ended.outcome == "failed"
    assert "event file" in ended.reason, ended.reason
    assert tells_of_the_disk(ended.reason), ended.reason
    with daemon.client.metrics(run_id, ["charts/SPS"], max_points=-1) as stream:
        curve = next(curve for update in stream for curve in update.curves)
    steps = list(curve.steps)
    assert steps == sorted(set(steps))  # whole up to where the disk was full, nothing twice
    assert len(steps) == curve.total > 0
    again = daemon.client.submit(cleanrl_config("ppo")).run.run_id
    daemon.wait_for_run(again, lambda run: run.metrics.get("charts/SPS"), timeout_s=120)


LIVE = """
session = open_session(lane="telemetry")
session.started({})
telemetry = session.telemetry()
number = 0
while not Path(os.environ["MOSAIC_HOME"], "enough").exists():
    number += 1
    telemetry.step("x" * 500, number, 1.0, terminated=False, truncated=False)
    session.progress(number, 0)
    time.sleep(0.002)
session.finish(ExitOutcome.COMPLETED, payload={"step": number}, exit_code=0)
"""


def test_steps_that_find_no_room_are_kept_by_the_worker_until_there_is(disk: SmallDisk, make_daemon) -> None:
    daemon: RunningDaemon = make_daemon(start=False)
    install_scripted_worker(daemon.home, "live", LIVE, lane=Lane.TELEMETRY)
    daemon.start()
    try:
        run_id = daemon.client.submit(scripted_config("live")).run.run_id

        def stored() -> list[int]:
            with daemon.client.steps(run_id) as stream:
                return [step.seq for parcel in stream for step in parcel.steps]

        assert wait_until(lambda: len(stored()) > 50, timeout_s=60)
        disk.fill()
        # The run continues, and what it made waits in its memory.
        assert daemon.wait_for_run(run_id, lambda run: run.step > len(stored()) + 300).status == "EXEC"
        kept = len(stored())
    finally:
        disk.make_room()
    assert wait_until(lambda: len(stored()) > kept, timeout_s=60)
    (daemon.home.root / "enough").touch()
    ended = daemon.wait_for(run_id)
    assert ended.outcome == "completed"
    assert stored() == list(range(1, ended.step + 1))  # none lost, none twice


def test_a_daemon_does_not_start_on_a_full_disk_but_reports_it(disk: SmallDisk, make_daemon) -> None:
    daemon = make_daemon(start=False)
    disk.fill()
    refused = daemon.attempt()
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "No space left on device" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    disk.make_room()
    daemon.start()
    assert daemon.wait_for(daemon.submit(timesteps=3).run_id).outcome == "completed"


def test_a_daemon_does_not_start_on_a_read_only_disk_but_reports_it(disk: SmallDisk, home: Home, make_daemon) -> None:
    daemon = make_daemon()
    daemon.stop()
    subprocess.run(["mount", "-o", "remount,ro", str(home.root)], check=True)
    try:
        refused = daemon.attempt()
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(home.root)], check=True)
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "Read-only file system" in refused.stderr
