"""Runs that cannot go on: no progress, losses that are not finite, a full disk. Each ends with its reason."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cleanrl_worker.config import no_progress_problems
from cleanrl_worker.runtime import RESERVE_BYTES, DiskReserve, ProgressWatch
from mosaic_wire.checkpoints import last_good_checkpoint
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.testing import WorkerProcess, wait_until

ARGV = [sys.executable, "-m", "cleanrl_worker.cli"]
PATIENCE_S = 120
WORLDS = """
import os, time
import gymnasium as gym, numpy as np
class World(gym.Env):
    observation_space = gym.spaces.Box(-10, 10, (2,))
    action_space = gym.spaces.Discrete(2)
    steps = 0
    def __init__(self, after=0):
        self.after = after
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, dtype=np.float32), {}
    def step(self, action):
        World.steps += 1
        reward = 1.0
        if World.steps > self.after:
            reward = self.later()
        return np.zeros(2, dtype=np.float32), reward, False, World.steps % 20 == 0, {}
class NoNumber(World):
    def later(self):
        return float("nan")
class Stuck(World):
    def later(self):
        time.sleep(600)
gym.register("NoNumber-v0", NoNumber)
gym.register("Stuck-v0", Stuck)
"""
TINY = {"num_envs": 1, "num_steps": 32, "num_minibatches": 1, "update_epochs": 1}


def start(home, env_id: str, *, after: int = 0, extras: dict | None = None, **options) -> WorkerProcess:
    (home.root.parent / "worlds.py").write_text(WORLDS)
    paths = os.pathsep.join(filter(None, [str(home.root.parent), os.environ.get("PYTHONPATH")]))
    config = {
        "algo": "ppo",
        "env_id": env_id,
        "total_timesteps": 10**7,
        "seed": 1,
        "extras": {"algo_params": {**TINY, "checkpoint_freq": 64}, **(extras or {})},
    }
    if ":" in env_id:
        config["extras"]["env_kwargs"] = {"after": after}
    environment = {"PYTHONPATH": paths, **options.pop("environment", {})}
    return WorkerProcess(ARGV, config, home, environment=environment, **options)


# -- no progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def heard(watch: ProgressWatch, clock: Clock, *, until: float, message: dict | None = None) -> str:
    """Let time pass in rounds of a second; the reason to end, if one comes up."""
    while clock.now < until:
        clock.now += 1
        if message:
            watch.on_message(message)
        if reason := watch.reason_to_end():
            return reason
    return ""


def test_a_step_that_does_not_come_is_a_reason_to_end_only_if_asked_for():
    clock = Clock()
    leave, kill = ProgressWatch({}, clock), ProgressWatch({"no_progress": "kill"}, clock)
    assert heard(kill, clock, until=299) == ""
    assert heard(kill, clock, until=302) == "no step for more than 300 s (extras.no_progress says: kill)"
    clock.now = 0
    assert heard(leave, clock, until=5000) == ""


def test_reports_of_the_same_step_are_no_progress_and_other_words_are():
    clock = Clock()
    watch = ProgressWatch({"no_progress": "kill", "no_progress_s": 20}, clock)
    assert heard(watch, clock, until=10, message={"kind": "progress", "step": 5}) == ""
    assert heard(watch, clock, until=40, message={"kind": "progress", "step": 5}) != ""
    watch = ProgressWatch({"no_progress": "kill", "no_progress_s": 20}, clock)
    assert heard(watch, clock, until=140, message={"kind": "alive"}) == ""


def test_a_pause_and_a_stop_are_not_slow_training():
    clock = Clock()
    watch = ProgressWatch({"no_progress": "kill", "no_progress_s": 20}, clock)
    watch.on_message({"kind": "paused", "step": 1})
    assert heard(watch, clock, until=500) == ""
    watch.on_message({"kind": "resumed", "step": 1})
    clock.now += 1000  # SIGSTOP: this process did not run either
    assert watch.reason_to_end() == ""
    assert heard(watch, clock, until=clock.now + 25) != ""


def test_unknown_policies_are_refused():
    assert [problem.path for problem in no_progress_problems({"no_progress": "wait", "no_progress_s": -1})] == [
        "extras.no_progress",
        "extras.no_progress_s",
    ]
    assert list(no_progress_problems({"no_progress": "leave", "no_progress_s": 5})) == []


def test_a_run_without_progress_is_ended_with_that_reason(home):
    with start(home, "worlds:Stuck-v0", after=200, extras={"no_progress": "kill", "no_progress_s": 1}) as worker:
        assert worker.wait(PATIENCE_S) == 1
        failure = worker.events()[-1]
        assert str(failure.event) == "run_failed"
        assert failure.payload["error"] == "no step for more than 1 s (extras.no_progress says: kill)"
        assert failure.payload["error_type"] == "NoProgress"
        # Slow start-ups may use the second up before the first step; then there is no checkpoint to speak of.
        newest = last_good_checkpoint(worker.folder)
        assert failure.payload.get("checkpoint") == (newest.path if newest else None)


# -- losses


def test_rewards_that_are_not_finite_fail_the_run_and_keep_the_checkpoint_before(home):
    with start(home, "worlds:NoNumber-v0", after=100) as worker:
        assert worker.wait(PATIENCE_S) == 1
        failure = worker.events()[-1].payload
    assert failure["error"] == (
        "loss or weights are not finite at step 128: the environment gave observations or rewards that are not finite"
    )
    assert failure["error_type"] == "TrainingStopped"
    assert failure["checkpoint"] == "checkpoints/step-64"
    manifest = AnalyticsManifest.read(worker.folder.manifest)
    assert (manifest.outcome, manifest.reason) == ("failed", failure["error"])
    newest = last_good_checkpoint(worker.folder)
    assert newest is not None
    assert newest.step == 64


# -- no space left


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, small enough to fill."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield place
    assert wait_until(
        lambda: subprocess.run(["umount", str(place)], capture_output=True, check=False).returncode == 0, timeout_s=30
    )


def run_until_full(home, small_disk: Path, checkpoint_freq: int, *, until: str) -> None:
    """A run whose folder is on the small disk; once `until` is in its folder, the disk is filled to the last byte."""
    run_dir = small_disk / "run"
    run_dir.mkdir()
    extras = {
        "algo_params": {
            "num_envs": 4,
            "num_steps": 32,
            "num_minibatches": 1,
            "update_epochs": 1,
            "checkpoint_freq": checkpoint_freq,
        }
    }
    with start(home, "CartPole-v1", extras=extras, environment={"MOSAIC_RUN_DIR": str(run_dir)}) as worker:
        assert wait_until(lambda: list(run_dir.glob(until)), timeout_s=PATIENCE_S), worker.stderr()
        fill(small_disk / "filler")
        assert worker.wait(PATIENCE_S) == 1, worker.stderr()


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(4096))


def ending_on(small_disk: Path) -> tuple[dict, AnalyticsManifest]:
    from mosaic_wire.lifecycle import LifecycleReader
    from mosaic_wire.paths import RunFolder

    folder = RunFolder(small_disk / "run")
    last = LifecycleReader(folder.lifecycle).read()[-1]
    assert str(last.event) == "run_failed"
    return dict(last.payload), AnalyticsManifest.read(folder.manifest)


def test_a_full_disk_fails_the_run_and_leaves_the_earlier_checkpoints_whole(home, small_disk):
    from mosaic_wire.paths import RunFolder

    run_until_full(home, small_disk, 4096, until="checkpoints/step-*/state.json")
    failure, manifest = ending_on(small_disk)
    assert "No space left on device" in failure["error"]
    assert (manifest.outcome, manifest.reason) == ("failed", failure["error"])
    folder = RunFolder(small_disk / "run")
    newest = last_good_checkpoint(folder)
    assert newest is not None
    assert newest.path == failure["checkpoint"] == manifest.checkpoints[-1].path
    assert [path.name for path in folder.checkpoints.iterdir() if path.name.startswith(".")] == []
    assert not (folder.root / ".reserve").exists()


def test_events_that_cannot_be_written_fail_the_run_with_that_reason(home, small_disk):
    run_until_full(home, small_disk, 0, until="tensorboard/events.*")
    failure, manifest = ending_on(small_disk)
    assert "No space left on device" in failure["error"]
    assert "event file" in failure["error"]
    assert (manifest.outcome, manifest.finalised_by) == ("failed", "worker")


def test_the_reserve_is_real_room_and_is_given_back(tmp_path):
    reserve = DiskReserve(tmp_path)
    assert (tmp_path / ".reserve").stat().st_blocks * 512 >= RESERVE_BYTES
    reserve.release()
    reserve.release()
    assert list(tmp_path.iterdir()) == []
    DiskReserve(tmp_path / "nowhere").release()
