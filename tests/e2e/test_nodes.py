"""Runs on nodes: a worker in a process without the daemon's home, over TLS; what it writes arrives here.

Daemon, node process and worker are real, on loopback. `test_node_journey.py` adds the network between them, another
user and a hidden home.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from gym_gui.services.trainer.certificates import NodeCertificates, make_certificates
from gym_gui.services.trainer.local_daemon import running_record
from gym_gui.testing import NodeEngine, RunningDaemon, certificate, processes_of, random_config
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.node import Bootstrap
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.proto.trainer_pb2_grpc import TrainerServiceStub
from mosaic_wire.run_status import RunStatus
from mosaic_wire.testing import wait_until

QUICK = {"heartbeat_s": 0.2, "grace_s": 1, "silence_s": 20, "handshake_s": 60, "min_free_disk_mb": 0}


def free_port() -> int:
    """A restarted daemon has to find its port free and the same."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def made_cluster(folder: Path) -> Iterator[SimpleNamespace]:
    """A daemon that listens for nodes, and an engine that starts them here with nothing of its environment."""
    home, config, scratch = Home(folder / "home"), folder / "config", folder / "node"
    scratch.mkdir()
    nodes = {"listen": "127.0.0.1", "port": free_port(), "silence_s": 60}
    daemon = RunningDaemon(home, config, settings={**QUICK, "nodes": nodes})
    make_certificates(NodeCertificates.below(config), ["127.0.0.1"])

    def start(bootstrap: Path) -> subprocess.Popen[bytes]:
        return start_node(bootstrap, scratch, bootstrap.with_suffix(".log"))

    engine = NodeEngine(home, config, folder, module="random_worker.cli", name="faraway", start=start)
    try:
        daemon.start()
        yield SimpleNamespace(daemon=daemon, engine=engine, scratch=scratch, config=config)
    finally:
        daemon.close()
        engine.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    with made_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """For a test that kills the daemon."""
    with made_cluster(tmp_path) as cluster:
        yield cluster


def start_node(bootstrap: Path, scratch: Path, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "mosaic_wire.node", str(bootstrap)],
            env={"PATH": os.environ["PATH"], "HOME": str(scratch), "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def submit(cluster: SimpleNamespace, **options: Any) -> pb.Run:
    config = random_config(**options)
    config["metadata"]["worker"]["type"] = "faraway"
    return cluster.daemon.client.submit(config).run


def wait_for_step(cluster: SimpleNamespace, run_id: str, step: int) -> pb.Run:
    return cluster.daemon.wait_for_run(run_id, lambda run: run.step >= step and run.status == "EXEC")


def bootstrap_of(cluster: SimpleNamespace, run_id: str) -> Bootstrap:
    cluster.engine.node(run_id)
    return Bootstrap.from_json(read_json_object(cluster.engine.jobs / f"{run_id}-1.job"))


# ---------------------------------------------------------------------- a run


def test_a_run_on_a_node_looks_as_one_here(cluster: SimpleNamespace) -> None:
    run_id = submit(cluster, timesteps=300, checkpoint_every=100, steps_per_second=300).run_id
    with cluster.daemon.client.logs(run_id, follow=True) as chunks:
        followed = b"".join(chunk.data for chunk in chunks).decode()  # ends with the run
    run = cluster.daemon.wait_for(run_id)
    assert run.outcome == "completed", run.reason
    assert followed == cluster.daemon.output(run_id)
    manifest = cluster.daemon.manifest(run.run_id)
    assert (manifest.outcome, [entry.step for entry in manifest.checkpoints]) == ("completed", [100, 200, 300])
    assert "run_completed" in cluster.daemon.output(run.run_id)
    assert [event.event for event in cluster.daemon.lifecycle(run.run_id)][-1] == "run_completed"
    assert {"on_node", "registered", "completed"} <= set(cluster.daemon.event_kinds(run.run_id))
    assert cluster.engine.node(run.run_id).wait(60) == 0
    assert wait_until(lambda: not list(cluster.scratch.iterdir())), "the node keeps nothing"
    assert not list(cluster.daemon.home.run_folder(run.run_id).root.rglob(".*.upload"))
    # Its checkpoint is brought to the node that continues it.
    child = cluster.daemon.wait_for(cluster.daemon.client.resume(run_id, additional_timesteps=50).run_id)
    assert (child.outcome, child.step, child.parent.step) == ("completed", 350, 300), child.reason
    assert "checkpoint_loaded" in cluster.daemon.event_kinds(child.run_id)


@pytest.mark.slow  # test_node_files.py restarts the daemon's side between any two calls in every CI
def test_a_run_on_a_node_outlives_the_daemon_and_nothing_of_it_is_lost_or_doubled(own_cluster: SimpleNamespace) -> None:
    run_id = submit(own_cluster, timesteps=240, steps_per_second=80, checkpoint_every=20).run_id
    wait_for_step(own_cluster, run_id, 30)
    own_cluster.daemon.restart()
    run = own_cluster.daemon.wait_for(run_id)
    assert (run.outcome, run.attempt) == ("completed", 1), run.reason
    events = own_cluster.daemon.lifecycle(run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    printed = [line for line in own_cluster.daemon.output(run_id).splitlines() if line.startswith("{")]
    assert len(printed) == len(events)
    assert [entry.step for entry in own_cluster.daemon.manifest(run_id).checkpoints] == list(range(20, 241, 20))


def test_a_cancelled_run_leaves_no_process_on_its_node(cluster: SimpleNamespace) -> None:
    options = {"spawn_children": 2, "detach_children": True, "stubborn_children": True}
    run_id = submit(cluster, timesteps=10**6, steps_per_second=50, **options).run_id
    wait_for_step(cluster, run_id, 5)
    assert len(processes_of(run_id)) >= 4
    cluster.daemon.client.cancel(run_id)
    assert cluster.daemon.wait_for(run_id).outcome == "cancelled"
    cluster.engine.node(run_id).wait(
        60
    )  # the job's end, which this engine does not wait for longer than the grace time
    assert processes_of(run_id) == []


def test_a_killed_node_takes_its_processes_along_and_another_continues_from_the_checkpoint(
    cluster: SimpleNamespace,
) -> None:
    options = {"timesteps": 80, "checkpoint_every": 10, "seed": 7}
    beside = cluster.daemon.submit(**options).run_id
    run_id = submit(
        cluster,
        **options,
        steps_per_second=40,
        spawn_children=1,
        detach_children=True,
        stubborn_children=True,
        scheduling={"retries": 1},
    ).run_id
    kept = cluster.daemon.home.run_folder(run_id).checkpoints
    assert wait_until(lambda: len([*kept.glob("*/*.json")]) >= 2)
    node = cluster.engine.node(run_id)
    first = {path.name for path in kept.iterdir()}
    node.kill()
    assert wait_until(lambda: f"{run_id}-2" in cluster.engine.nodes)
    run = cluster.daemon.wait_for(run_id)
    assert (run.outcome, run.attempt) == ("completed", 2), run.reason
    assert first <= {path.name for path in kept.iterdir()}, "what had arrived is kept"
    assert "checkpoint_loaded" in cluster.daemon.event_kinds(run_id)
    events = cluster.daemon.lifecycle(run_id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1)), "one file over both attempts"
    undisturbed = cluster.daemon.wait_for(beside)
    assert run.result_json == undisturbed.result_json
    states = [
        read_json_object(Path(each.run_dir) / "checkpoints" / "step-80" / "state.json") for each in (run, undisturbed)
    ]
    assert states[0] == states[1]
    for path in cluster.scratch.iterdir():  # of the node that was killed
        subprocess.run(["rm", "-r", str(path)], check=True)


@pytest.mark.slow  # the same of PPO is in test_node_journey.py; this one is quick to run by hand
def test_a_node_pauses_and_releases_and_continues_elsewhere(cluster: SimpleNamespace) -> None:
    run_id = submit(cluster, timesteps=400, steps_per_second=100).run_id
    wait_for_step(cluster, run_id, 20)
    cluster.daemon.client.pause(run_id, release=True)
    run = cluster.daemon.wait_for_run(run_id, lambda run: run.status == RunStatus.PAUSE and not run.pid)
    assert cluster.engine.node(run_id).wait(60) == 0
    cluster.daemon.client.resume(run_id)
    run = cluster.daemon.wait_for(run_id)
    assert (run.outcome, run.step) == ("completed", 400), run.reason


def test_secrets_arrive_after_the_node_was_accepted_and_are_in_no_file(cluster: SimpleNamespace) -> None:
    secret = "not-a-real-key-0123456789"
    extras = {"wandb_api_key": secret}
    options = {"fail_at_step": 1, "fail_with_variable": "WANDB_API_KEY"}
    run = cluster.daemon.wait_for(submit(cluster, timesteps=5, extras=extras, **options).run_id)
    assert run.outcome == "failed"
    shown = submit(cluster, timesteps=5, **options)
    assert run.reason != cluster.daemon.wait_for(shown.run_id).reason, "with a key the worker saw one"
    for top in (cluster.daemon.home.root, cluster.engine.jobs):
        found = subprocess.run(["grep", "-rl", secret, str(top)], capture_output=True, text=True, check=False)
        assert found.stdout == ""


# ---------------------------------------------------------------------- the address for nodes


@pytest.fixture(scope="module")
def running(cluster: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """Two runs on nodes, and a connection to the address for nodes."""
    bootstraps = []
    for _ in range(2):
        run_id = submit(cluster, timesteps=10**6, steps_per_second=20).run_id
        wait_for_step(cluster, run_id, 1)
        bootstraps.append(bootstrap_of(cluster, run_id))
    ours, other = bootstraps
    credentials = grpc.ssl_channel_credentials(ours.authority.encode())
    with grpc.secure_channel(ours.address, credentials) as channel:
        yield SimpleNamespace(ours=ours, other=other, stub=TrainerServiceStub(channel), channel=channel)
    cluster.daemon.end_runs()


def refusal(call: Any, request: Any, **metadata: str) -> grpc.StatusCode:
    pairs = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    with pytest.raises(grpc.RpcError) as error:
        _all_of(call(request, metadata=pairs, timeout=30))
    return error.value.code()


def _all_of(answer: Any) -> None:
    if hasattr(answer, "__next__"):  # a stream is refused when it is read
        list(answer)


def test_only_workers_and_nodes_are_answered_there(cluster: SimpleNamespace, running: SimpleNamespace) -> None:
    token, run_id = cluster.daemon.home.token.read_text().strip(), running.ours.run_id
    calls = {
        "GetHealth": pb.GetHealthRequest(),
        "ListRuns": pb.ListRunsRequest(),
        "GetRun": pb.RunRequest(run_id=run_id),
        "SubmitRun": pb.SubmitRunRequest(config_json="{}"),
        "ReadRunFiles": pb.ReadRunFilesRequest(run_id=run_id),
        "Shutdown": pb.ShutdownRequest(),
        "OpenNode": pb.OpenNodeRequest(run_id=run_id),
        "SendRunFiles": pb.SendRunFilesRequest(run_id=run_id),
        "Heartbeat": pb.HeartbeatRequest(run_id=run_id),
    }
    for name, request in calls.items():
        for metadata in ({"authorization": f"Bearer {token}"}, {"x_mosaic_session_token": token}, {}):
            code = refusal(getattr(running.stub, name), request, **metadata)
            assert code is grpc.StatusCode.UNAUTHENTICATED, (name, metadata.keys())


def test_a_node_reaches_its_own_run_only(running: SimpleNamespace) -> None:
    theirs = {"x_mosaic_run_token": running.other.run_token}
    ours = {"x_mosaic_run_token": running.ours.run_token}
    run_id, denied = running.ours.run_id, grpc.StatusCode.UNAUTHENTICATED
    instance = f"node-{'0' * 32}"
    opening = pb.OpenNodeRequest(run_id=run_id, attempt=1, protocol_version=1, instance=instance)
    assert refusal(running.stub.OpenNode, opening, **theirs) is denied
    piece = pb.FilePiece(path="run/x", sha256="0")
    sending = pb.SendRunFilesRequest(run_id=run_id, instance=instance, pieces=[piece])
    assert refusal(running.stub.SendRunFiles, sending, **theirs) is denied
    frame = pb.SendRunFrameRequest(run_id=run_id, instance=instance)
    assert refusal(running.stub.SendRunFrame, frame, **theirs) is denied
    assert refusal(running.stub.ReadNodeInputs, pb.ReadRunFilesRequest(run_id=run_id), **theirs) is denied
    # With the right token, a second node of the run is refused, too, and so is every file that the run does not need.
    assert refusal(running.stub.OpenNode, opening, **ours) is grpc.StatusCode.FAILED_PRECONDITION
    assert refusal(running.stub.SendRunFiles, sending, **ours) is denied
    reading = pb.ReadRunFilesRequest(run_id=run_id, files=[pb.FileRange(path=f"{running.other.run_id}/run/exit.json")])
    assert refusal(running.stub.ReadNodeInputs, reading, **ours) is denied


def test_a_node_trusts_no_other_certificate(cluster: SimpleNamespace, running: SimpleNamespace, tmp_path: Path) -> None:
    stranger, _ = certificate(tmp_path, "stranger")
    document = {**running.ours.to_json(), "authority": stranger.read_text()}
    write_json_atomically(tmp_path / "bootstrap.json", document, mode=0o600)
    node = start_node(tmp_path / "bootstrap.json", tmp_path, tmp_path / "log")
    assert node.wait(60) == 2
    assert "its certificate is refused" in (tmp_path / "log").read_text()


def test_a_bootstrap_that_others_can_read_is_refused(running: SimpleNamespace, tmp_path: Path) -> None:
    write_json_atomically(tmp_path / "bootstrap.json", running.ours.to_json(), mode=0o644)
    node = start_node(tmp_path / "bootstrap.json", tmp_path, tmp_path / "log")
    assert node.wait(60) == 2
    assert "chmod 600" in (tmp_path / "log").read_text()


def test_the_address_is_known_and_checked(cluster: SimpleNamespace) -> None:
    record = running_record(cluster.daemon.home)
    assert record is not None
    assert any(address == f"{record.nodes} (nodes)" for address in cluster.daemon.client.health().addresses)
