"""Shared memory that is full, read-only, or full of another user's files never costs a training."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A mount namespace of its own: the /dev/shm of everybody else stays as it is.
NAMESPACE = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
SETUPS = {
    "full": "mount -t tmpfs -o size=4k,mode=1777 tmpfs /dev/shm; head -c 4096 /dev/zero > /dev/shm/full",
    "read-only": "mount -t tmpfs -o ro tmpfs /dev/shm",
    "taken": "mount -t tmpfs -o mode=1777 tmpfs /dev/shm; mkdir -m 777 /dev/shm/mosaic-0; touch /dev/shm/mosaic-0/x",
}
PUBLISH = """
import logging, sys
from mosaic_wire.frames import FrameReader, FrameWriter, fastlane_path
logging.basicConfig(format="%(message)s")
writer, reader = FrameWriter(fastlane_path("run")), FrameReader(fastlane_path("run"))
reader.read()
for number in range(3):
    writer.is_due()
    writer.publish(bytes(12), 2, 2)
    writer.set_statistics(last_reward=0, rolling_return=0, step_rate_hz=0)
    writer.notice("notice")
print("frames" if reader.read() else "no frames", fastlane_path("run").parent.name)
writer.close()
"""
FLAGS = {"algo": "ppo", "env-id": "CartPole-v1", "total-timesteps": 256, "num-envs": 2, "num-steps": 32}
TRAIN = ["-m", "cleanrl_worker.cli", *(f"--{name}={value}" for name, value in FLAGS.items())]


def run_in(setup: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [*NAMESPACE, "sh", "-ec", f'{SETUPS[setup]}; exec "$@"', "sh", sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    made = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"this machine allows no mount namespace: {made.stderr.strip()}")


@pytest.mark.parametrize("setup", ["full", "read-only"])
def test_shared_memory_that_takes_nothing_switches_frames_off_with_one_note(setup: str) -> None:
    done = run_in(setup, ["-c", PUBLISH])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no frames")
    assert done.stderr.count("no live frames") == 1
    assert "/dev/shm" in done.stderr


def test_another_users_folder_of_our_name_is_not_used() -> None:
    done = run_in("taken", ["-c", PUBLISH])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("frames mosaic-0-")


def test_a_training_ends_well_without_shared_memory(home) -> None:
    done = run_in("full", TRAIN)
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("no live frames") <= 1
