"""Faults 7 and 8 for the CleanRL worker: killed and damaged runs continue from what is whole, to the same bits."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gym_gui.testing import RunningDaemon, processes_of
from mosaic_extras.testing import lend_sets
from mosaic_wire.checkpoints import good_checkpoints, last_good_checkpoint, verify_checkpoint
from mosaic_wire.files import read_json_object
from mosaic_wire.paths import Home, RunFolder
from mosaic_wire.testing import wait_until
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

PATIENCE_S = 300

OFF_POLICY = {"learning_starts": 200, "buffer_size": 600}
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "dqn": ("CartPole-v1", 12_000, {**OFF_POLICY, "train_frequency": 4}),
    "ppo": ("CartPole-v1", 20_480, {"num_steps": 64}),
    "c51": ("CartPole-v1", 6000, {**OFF_POLICY, "train_frequency": 4}),
    "pqn": ("CartPole-v1", 20_480, {"num_steps": 64}),
    "ppo_continuous_action": ("Pendulum-v1", 8192, {"num_steps": 512}),
    "rpo_continuous_action": ("Pendulum-v1", 8192, {"num_steps": 512}),
    "ddpg_continuous_action": ("Pendulum-v1", 1000, OFF_POLICY),
    "td3_continuous_action": ("Pendulum-v1", 1000, OFF_POLICY),
    "sac_continuous_action": ("Pendulum-v1", 800, OFF_POLICY),
    "ppo MiniGrid": ("MiniGrid-Empty-5x5-v0", 8192, {"num_steps": 64}),
    "ppo_continuous_action MuJoCo": ("Hopper-v4", 8192, {"num_steps": 512}),
    "td3_continuous_action MuJoCo": ("HalfCheetah-v4", 1000, OFF_POLICY),
    "ppo_atari": ("PongNoFrameskip-v4", 2048, {"num_envs": 4, "num_steps": 32}),
    "ppo_atari_lstm": ("BreakoutNoFrameskip-v4", 2048, {"num_envs": 4, "num_steps": 32}),
    "dqn_atari": ("BreakoutNoFrameskip-v4", 1200, OFF_POLICY),
    "c51_atari": ("PongNoFrameskip-v4", 1200, OFF_POLICY),
    "rainbow_atari": ("BreakoutNoFrameskip-v4", 800, OFF_POLICY),
    "sac_atari": ("BreakoutNoFrameskip-v4", 400, {"learning_starts": 100, "buffer_size": 300}),
}
"""Algorithm (and where) → environment, steps, flags: long enough to be killed in the middle"""

IN_EVERY_CI = ("dqn",)
"""With a replay buffer; what a killed `ppo` goes on to test_cli.py of the worker tests"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("checkpoints")
    settings = {"heartbeat_s": 0.2, "grace_s": 10, "min_free_disk_mb": 0}
    home = Home(folder / "home")
    lend_sets(home, "atari", "minigrid", "mujoco")
    with RunningDaemon(home, folder / "config", settings=settings) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def undisturbed(daemon: RunningDaemon) -> Callable[[str], RunFolder]:
    """The same run of an algorithm that is never interrupted; made once."""
    folders: dict[str, RunFolder] = {}

    def run(algo: str) -> RunFolder:
        if algo not in folders:
            folders[algo] = completed(daemon, daemon.client.submit(config(algo)).run.run_id)
        return folders[algo]

    return run


def config(algo: str, *, retries: int = 0, **flags: Any) -> dict[str, Any]:
    env_id, total, usual = CASES[algo]
    worker_config = {
        "algo": algo.split()[0],
        "env_id": env_id,
        "seed": 1,
        "total_timesteps": total,
        "extras": {"algo_params": {**usual, "checkpoint_freq": total // 8, **flags}},
    }
    return {
        "resources": {"cpus": {"requested": 0}},
        "scheduling": {"retries": retries},
        "metadata": {"worker": {"type": "cleanrl", "module": "cleanrl_worker.cli", "config": worker_config}},
    }


def completed(daemon: RunningDaemon, run_id: str) -> RunFolder:
    run = daemon.wait_for(run_id, timeout_s=PATIENCE_S)
    assert run.outcome == "completed", f"{run.reason}\n{daemon.output(run_id, 'stderr')[-2000:]}"
    folder = daemon.home.run_folder(run_id)
    manifest = daemon.manifest(run_id)
    on_disk = {f"checkpoints/{path.name}" for path in folder.checkpoints.glob("step-*")}
    assert {entry.path for entry in manifest.checkpoints} == on_disk
    for entry in manifest.checkpoints:
        assert verify_checkpoint(folder.root / entry.path, entry.sha256) is None
    return folder


def weights_hash(folder: RunFolder) -> str:
    (policy,) = (path for path in folder.root.glob("*.cleanrl_model") if path.name != "best.cleanrl_model")
    return hashlib.sha256(policy.read_bytes()).hexdigest()


def charts(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of all attempts."""
    reader = EventAccumulator(str(folder.tensorboard), size_guidance={"scalars": 0})
    reader.Reload()
    tags = [tag for tag in reader.Tags()["scalars"] if tag != "charts/SPS"]
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in tags}


def kill_at_the_next_checkpoint(daemon: RunningDaemon, run_id: str) -> None:
    folder = daemon.home.run_folder(run_id)
    before = set(folder.checkpoints.glob("step-*"))
    assert wait_until(lambda: set(folder.checkpoints.glob("step-*")) - before, timeout_s=PATIENCE_S)
    for pid in processes_of(run_id):
        os.kill(pid, signal.SIGKILL)


def loads(daemon: RunningDaemon, run_id: str) -> list[dict[str, Any]]:
    return [
        json.loads(event.payload_json) for event in daemon.client.history(run_id) if event.kind == "checkpoint_loaded"
    ]


# ---------------------------------------------------------------------- killed


@pytest.mark.timeout(600)
@pytest.mark.expects_log("tensorboard: Detected out of order event.step")
@pytest.mark.parametrize(
    "algo",
    [
        name if name in IN_EVERY_CI else pytest.param(name, marks=[pytest.mark.fault, pytest.mark.slow])
        for name in CASES
    ],
)
def test_a_killed_run_continues_to_the_same_weights_and_charts(
    daemon: RunningDaemon, undisturbed: Callable[[str], RunFolder], algo: str
) -> None:
    killed = daemon.client.submit(config(algo, retries=2)).run.run_id
    kill_at_the_next_checkpoint(daemon, killed)
    daemon.wait_for_run(killed, lambda run: run.attempt == 2 and run.status == "EXEC", timeout_s=PATIENCE_S)
    kill_at_the_next_checkpoint(daemon, killed)
    ours, theirs = completed(daemon, killed), undisturbed(algo)
    assert daemon.client.get(killed).attempt == 3
    assert weights_hash(ours) == weights_hash(theirs)
    assert charts(ours) == charts(theirs)
    for series in charts(ours).values():
        steps = [step for step, _ in series]
        assert steps == sorted(steps), "an attempt shows steps that the one before has shown"
    first, second = loads(daemon, killed)
    assert 0 < first["step"] <= second["step"]
    assert {first["environments"], second["environments"]} == {"exact"}


# ---------------------------------------------------------------------- damaged


def flipped(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


def own_files(folder: RunFolder, newest: Path, others: list[Path]) -> list[Path]:
    """The files of a checkpoint, and those parts of the replay buffer that only it refers to."""
    shared = {name: set() for name in (newest, *others)}
    for checkpoint in shared:
        listed = read_json_object(checkpoint / "state.json").get("shared", [])
        shared[checkpoint] = {file["path"] for file in listed}
    alone = shared[newest] - set().union(*(shared[other] for other in others))
    return [newest / "state.json", newest / "state.safetensors", *(folder.checkpoints / path for path in sorted(alone))]


@pytest.mark.slow  # test_lineage.py passes over a damaged one in every CI
@pytest.mark.parametrize("rounds", [60, pytest.param(1000, marks=pytest.mark.fault)])
def test_a_damaged_checkpoint_is_never_used_and_the_one_before_is(daemon: RunningDaemon, rounds: int) -> None:
    run_id = daemon.client.submit(config("dqn", keep_checkpoints=2)).run.run_id
    folder = completed(daemon, run_id)
    newest, before, *_ = [folder.root / entry.path for entry in good_checkpoints(folder)]
    files = own_files(folder, newest, [before])
    assert len(files) == 3
    rng = random.Random(rounds)
    for _ in range(rounds):
        file = rng.choice(files)
        data = file.read_bytes()
        position = rng.randrange(len(data) - 1)
        file.write_bytes(rng.choice([data[:position], flipped(data, position, rng.randrange(8)), b""]))
        found = last_good_checkpoint(folder)
        assert found is not None
        assert folder.root / found.path == before
        file.write_bytes(data)
    assert last_good_checkpoint(folder) == daemon.manifest(run_id).checkpoints[-1]
    # What a person asks of the daemon: the child goes on from the one before, and says so.
    segment = files[-1].read_bytes()
    files[-1].write_bytes(segment[:-1])
    step = int(before.name.removeprefix("step-"))
    child = daemon.client.resume(run_id, additional_timesteps=100)
    assert child.parent.step == step
    completed(daemon, child.run_id)
    (loaded,) = loads(daemon, child.run_id)
    assert (loaded["step"], loaded["environments"]) == (step, "exact")


@pytest.mark.slow  # test_lineage.py shows it in every CI
@pytest.mark.expects_log("tensorboard: Detected out of order event.step")
def test_a_retried_run_says_which_damaged_checkpoint_it_passed_over(
    daemon: RunningDaemon, undisturbed: Callable[[str], RunFolder]
) -> None:
    run_id = daemon.client.submit(config("dqn", retries=1)).run.run_id
    folder = daemon.home.run_folder(run_id)
    assert wait_until(lambda: len(list(folder.checkpoints.glob("step-*"))) >= 2, timeout_s=PATIENCE_S)
    for pid in processes_of(run_id):
        os.kill(pid, signal.SIGSTOP)
    newest = max(folder.checkpoints.glob("step-*"), key=lambda path: int(path.name[5:]))
    arrays = newest / "state.safetensors"
    arrays.write_bytes(flipped(arrays.read_bytes(), 5000, 3))
    for pid in processes_of(run_id):
        os.kill(pid, signal.SIGKILL)
    ours, theirs = completed(daemon, run_id), undisturbed("dqn")
    (loaded,) = loads(daemon, run_id)
    assert loaded["step"] < int(newest.name.removeprefix("step-"))
    (passed_over,) = loaded["passed_over"]
    assert passed_over.startswith(f"checkpoints/{newest.name}: ")
    assert "SHA-256 differs" in passed_over
    assert weights_hash(ours) == weights_hash(theirs)
    assert charts(ours) == charts(theirs)
