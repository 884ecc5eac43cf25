"""Runs on a node across a network that breaks: two network namespaces, another user, and a home that is hidden there.

A short form of it, on loopback, is `test_nodes.py`, which runs in every CI.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gym_gui.services.trainer.certificates import NodeCertificates, make_certificates
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.testing import NodeEngine, processes_of
from gym_gui.testing_machines import NOBODY, SERVER, two_machines
from mosaic_wire.checkpoints import verify_checkpoint
from mosaic_wire.frames import FrameReader, fastlane_path
from mosaic_wire.lifecycle import LifecycleReader
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.paths import RunFolder
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until

PORT, PATIENCE_S, STEPS = 50056, 400, 614_400

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # real trainings; `test_nodes.py` runs in every CI


@pytest.fixture(scope="module")
def journey() -> Iterator[SimpleNamespace]:
    """A daemon on one side; on the other nodes, as a user who sees none of its files."""
    with ExitStack() as stack:
        sides = two_machines(stack)
        config = sides.server / "config"
        config.mkdir(mode=0o700)
        nodes = f'[nodes]\nlisten = "{SERVER}"\nport = {PORT}\nsilence_s = 300\n'
        quick = "heartbeat_s = 0.5\nsilence_s = 8\nmin_free_disk_mb = 0\n"
        (config / "settings.toml").write_text(quick + nodes)
        make_certificates(NodeCertificates.below(config), [SERVER])
        os.chown(sides.client, NOBODY, NOBODY)

        def start(bootstrap: Path) -> subprocess.Popen[Any]:
            with bootstrap.with_suffix(".log").open("w") as log:
                node = sides.on_client(sys.executable, "-m", "mosaic_wire.node", "-", output=log)
            assert node.stdin is not None
            node.stdin.write(bootstrap.read_text())
            node.stdin.close()
            return node

        engine = NodeEngine(sides.home, config, sides.server, module="cleanrl_worker.cli", name="faraway", start=start)
        stack.callback(engine.close)
        sides.start_daemon()
        stack.callback(sides.end_daemon, signal.SIGTERM)
        with TrainerClient.connect(sides.home, timeout_s=60) as client:
            yield SimpleNamespace(sides=sides, engine=engine, client=client)


def train(journey: SimpleNamespace, worker: str, *, retries: int = 0) -> str:
    part = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "seed": 1,
        "total_timesteps": STEPS,
        "extras": {"tensorboard_dir": "${VAR_TENSORBOARD_DIR}", "algo_params": {"checkpoint_freq": STEPS // 12}},
    }
    document = {
        "resources": {"cpus": {"requested": 0}},
        "scheduling": {"retries": retries},
        "metadata": {"worker": {"type": worker, "module": "cleanrl_worker.cli", "config": part}},
    }
    return str(journey.client.submit(document).run.run_id)


def wait_for(journey: SimpleNamespace, run_id: str, holds: Callable[[pb.Run], object]) -> pb.Run:
    assert wait_until(lambda: holds(journey.client.get(run_id)), timeout_s=PATIENCE_S, poll_s=0.1), journey.client.get(
        run_id
    )
    return journey.client.get(run_id)


def completed(journey: SimpleNamespace, run_id: str) -> RunFolder:
    run = wait_for(journey, run_id, lambda run: run.status == "TERM")
    assert run.outcome == "completed", run.reason
    folder = journey.sides.home.run_folder(run_id)
    manifest = AnalyticsManifest.read(folder.manifest)
    assert {entry.path for entry in manifest.checkpoints} == {
        f"checkpoints/{path.name}" for path in folder.checkpoints.glob("step-*")
    }
    assert not any(verify_checkpoint(folder.root / entry.path, entry.sha256) for entry in manifest.checkpoints)
    events = [event.seq for event in LifecycleReader(folder.lifecycle).read_to_the_end()]
    assert events == list(range(1, len(events) + 1))
    return folder


def weights_of(folder: RunFolder) -> str:
    (policy,) = (path for path in folder.root.glob("*.cleanrl_model") if path.name != "best.cleanrl_model")
    return hashlib.sha256(policy.read_bytes()).hexdigest()


def curve_of(journey: SimpleNamespace, run_id: str) -> list[tuple[int, float]]:
    (update,) = journey.client.metrics(run_id, ["charts/episodic_return"], max_points=10**6)
    (curve,) = update.curves
    return list(zip(curve.steps, curve.values, strict=True))


@pytest.fixture(scope="module")
def undisturbed(journey: SimpleNamespace) -> tuple[str, list[tuple[int, float]]]:
    """The weights and the curve of the same training on the daemon's machine."""
    run_id = train(journey, "cleanrl")
    return weights_of(completed(journey, run_id)), curve_of(journey, run_id)


def test_a_training_that_loses_three_nodes_is_the_same(
    journey: SimpleNamespace, undisturbed: tuple[str, list[tuple[int, float]]]
) -> None:
    run_id = train(journey, "faraway", retries=3)
    checkpoints = journey.sides.home.run_folder(run_id).checkpoints
    for attempt in (1, 2, 3):
        node = journey.engine.node(run_id, attempt)
        wait_for(journey, run_id, lambda run, attempt=attempt: run.attempt == attempt and run.status == "EXEC")
        before = {path.name for path in checkpoints.glob("step-*")}
        assert wait_until(
            lambda before=before: {path.parent.name for path in checkpoints.glob("step-*/state.json")} - before,
            timeout_s=PATIENCE_S,
        )
        node.kill()
        assert wait_until(lambda attempt=attempt: not _of_attempt(run_id, attempt)), "its processes are gone"
    folder = completed(journey, run_id)
    assert journey.client.get(run_id).attempt == 4
    assert (weights_of(folder), curve_of(journey, run_id)) == undisturbed


def _of_attempt(run_id: str, attempt: int) -> list[int]:
    """Return processes of a node's worker, not of the job that stands for it here."""
    return [
        pid for pid in processes_of(run_id) if f"{run_id}.{attempt}." in _mark(pid) and _mark(pid).endswith(".node")
    ]


def _mark(pid: int) -> str:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((text.decode() for text in variables if text.startswith(b"MOSAIC_RUN_MARK=")), "")


def test_frames_of_a_node_are_seen_here_and_drawn_only_then(journey: SimpleNamespace) -> None:
    run_id = train(journey, "faraway")
    wait_for(journey, run_id, lambda run: run.step > 500)
    reader = FrameReader(fastlane_path(run_id), interval_s=0.1)
    frames: list[Any] = []

    def looked() -> bool:
        if (frame := reader.read()) is not None:
            frames.append(frame)
        return len(frames) >= 3

    try:
        assert wait_until(looked, timeout_s=60), reader.notice()
        assert (frames[0].width, len(frames[0].pixels)) == (frames[0].width, 3 * frames[0].width * frames[0].height)
        assert frames[0].pixels.strip(b"\xff"), "something is drawn"
        assert frames[-1].number > frames[0].number
    finally:
        reader.close()
    journey.client.cancel(run_id)
    wait_for(journey, run_id, lambda run: run.outcome == "cancelled")


def test_a_training_outlives_the_link_and_the_daemon_and_is_the_same(
    journey: SimpleNamespace, undisturbed: tuple[str, list[tuple[int, float]]]
) -> None:
    run_id = train(journey, "faraway")
    wait_for(journey, run_id, lambda run: run.step > 60_000)
    (there,) = journey.sides.client.glob(f"mosaic-node-*/home/trainer/runs/{run_id}")
    journey.sides.set_link("down")
    before = {path.name for path in (there / "checkpoints").glob("step-*")}
    # Longer than a silent worker is allowed to be, and far enough that a checkpoint is made meanwhile.
    wait_until(lambda: False, timeout_s=12)
    assert wait_until(lambda: {path.name for path in (there / "checkpoints").glob("step-*")} - before)
    assert (journey.client.get(run_id).status, journey.client.get(run_id).flags) == ("EXEC", [])
    journey.sides.restart_daemon()
    journey.sides.set_link("up")
    folder = completed(journey, run_id)
    assert (weights_of(folder), curve_of(journey, run_id)) == undisturbed
    assert journey.client.get(run_id).attempt == 1
    assert journey.engine.node(run_id).wait(60) == 0
    assert not there.exists(), "the node's copy is removed"
    logs = journey.sides.home.run_logs(run_id) / "stdout.log"
    assert "run_completed" in logs.read_text()
    journey.sides.end_daemon(
        signal.SIGTERM
    )  # the guard of the tests takes it for a leak otherwise: this is the last test
