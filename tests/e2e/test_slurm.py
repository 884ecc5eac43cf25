"""Runs on a real Slurm cluster of three nodes: the daemon's side of it, from queue to preemption."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gym_gui.cli import executor_check, main
from gym_gui.services.trainer.certificates import NodeCertificates, make_certificates
from gym_gui.services.trainer.errors import InvalidConfig
from gym_gui.testing import RunningDaemon, install_scripted_worker, processes_of, random_config, scripted_config
from gym_gui.testing_slurm import SlurmCluster, why_no_slurm
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_request import Extras, run_request
from mosaic_wire.testing import wait_until

pytestmark = pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm() or "Slurm can be started")

ENDLESS = {"timesteps": 1_000_000, "steps_per_second": 200}
QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "silence_s": 60, "handshake_s": 60, "min_free_disk_mb": 0}
HILL = """
session = open_session()
with session:
    session.started()
    for step in range(1, config.total_timesteps + 1):
        if session.stop_requested.wait(0.01):
            session.finish(ExitOutcome.CANCELLED, exit_code=130)
            raise SystemExit(130)
        session.progress(step, config.total_timesteps, config.parameters["x"])
    session.finish(ExitOutcome.COMPLETED, exit_code=0)
"""
"""A worker of one second whose return is its parameter"""
INSIDE = """
import ctypes, logging, os, sys
assert ctypes.CDLL(None).setns(os.open({!r}, os.O_RDONLY), 0) == 0
from gym_gui.config.settings import load_settings
from gym_gui.services.trainer.daemon import run_daemon
from mosaic_wire.paths import find_home
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
sys.exit(run_daemon(find_home(), load_settings()))
"""
"""A daemon in a network namespace"""


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    """A cluster of this test alone: its controller and nodes may be killed."""
    with SlurmCluster() as cluster:
        yield cluster


@pytest.fixture
def daemon(cluster: SlurmCluster, home: Home, tmp_path: Path) -> Iterator[RunningDaemon]:
    """A daemon with the executor `cluster`."""
    executor = {"type": "slurm", "partition": "main", "poll_s": 0.5}
    hook = ["sh", "-c", f"cat >> {tmp_path}/hook.jsonl; echo >> {tmp_path}/hook.jsonl"]
    settings = {**QUICK, "executors": {"cluster": executor}, "on_end_command": hook}
    with RunningDaemon(home, tmp_path / "config", settings=settings, environment=cluster.environment) as daemon:
        yield daemon


def submit(daemon: RunningDaemon, *, resources: dict[str, Any] | None = None, **parameters: Any) -> pb.Run:
    config = random_config(resources=resources, **parameters)
    config.setdefault("scheduling", {})["executor"] = "cluster"
    return daemon.client.submit(config).run


def test_a_run_waits_in_slurm_runs_on_a_node_and_is_recovered_by_the_next_daemon(
    daemon: RunningDaemon, cluster: SlurmCluster
) -> None:
    with pytest.raises(InvalidConfig, match=r"there is no executor 'clutser'; known are local, cluster"):
        daemon.client.submit({**random_config(), "scheduling": {"executor": "clutser"}})
    four = {"cpus": {"requested": 4}}
    running = [submit(daemon, resources=four, **ENDLESS).run_id for _ in range(3)]
    nodes = {daemon.wait_for_run(run_id, lambda run: run.status == "EXEC" and run.node).node for run_id in running}
    assert nodes == {"n1", "n2", "n3"}, "4 CPUs each: more than this machine has, and it does not matter"
    waiting = submit(daemon, resources=four, timesteps=20).run_id
    daemon.wait_for_run(waiting, lambda run: run.queue_reason == "cluster: Pending: Resources")
    [local, slurm] = daemon.client.machines()
    assert (local.name, slurm.name, slurm.type) == ("local", "cluster", "slurm")
    assert [(node.name, node.cpus, node.cpus_free) for node in slurm.nodes] == [(f"n{n}", 4, 0) for n in (1, 2, 3)]
    assert (slurm.own_running, slurm.own_queued, slurm.pending) == (3, 1, 1)
    daemon.kill()
    cluster.run("scontrol", "update", f"job={cluster.jobs()[0]}", "comment=seen")
    daemon.start()
    for run_id in running:
        assert daemon.client.get(run_id).status == "EXEC"
    assert len(cluster.jobs()) == 4, "none was submitted twice"
    daemon.client.cancel(running[0])
    assert daemon.wait_for(running[0]).outcome == "cancelled"
    assert processes_of(running[0]) == []
    ended = daemon.wait_for(waiting)
    assert (ended.outcome, ended.attempt) == ("completed", 1)
    assert '"event":"run_completed"' in daemon.output(waiting)
    for run_id in running[1:]:
        assert daemon.client.get(run_id).attempt == 1


def test_a_preempted_run_continues_from_its_checkpoint(
    daemon: RunningDaemon, cluster: SlurmCluster, tmp_path: Path
) -> None:
    run_id = submit(daemon, timesteps=600, steps_per_second=150, checkpoint_every=50).run_id
    daemon.wait_for_run(run_id, lambda run: run.step > 120)
    preempt(cluster)
    daemon.wait_for_run(run_id, lambda run: run.attempt == 2 and run.status == "EXEC", timeout_s=120)
    ended = daemon.wait_for(run_id)
    assert (ended.outcome, ended.attempt, ended.retries, ended.step) == ("completed", 2, 0, 600)
    events = [event.kind for event in daemon.client.history(run_id)]
    assert events.count("preempted") == 1
    loaded = next(event for event in daemon.lifecycle(run_id) if event.event == "checkpoint_loaded")
    assert loaded.payload["step"] >= 50
    assert wait_until(lambda: [each["event"] for each in _hooks(tmp_path)] == ["preempted", "ended"])


def preempt(cluster: SlurmCluster) -> None:
    """Take all nodes for a moment."""
    cluster.run("sbatch", "--partition=urgent", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")


def _hooks(folder: Path) -> list[dict[str, Any]]:
    file = folder / "hook.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_the_commands_name_the_cluster_and_test_it(
    daemon: RunningDaemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mosaic(*text: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as exit_:
            main(text)
        return int(exit_.value.code or 0), capsys.readouterr().out

    code, out = mosaic("machines", "--json")
    assert code == 0
    [local, slurm] = json.loads(out)
    assert (local["type"], slurm["problem"], [node["gpus_free"] for node in slurm["nodes"]]) == (
        "local",
        None,
        [1, 1, 1],
    )
    code, out = mosaic(
        "train", "random", "none", "--worker", "random", "--on", "cluster", "--total-timesteps", "20", "-d"
    )
    run_id = out.split()[0]
    daemon.wait_for(run_id)
    code, out = mosaic("show", run_id)
    assert re.search(r"runs on +cluster, node n\d", out)
    monkeypatch.setattr(executor_check, "_STEPS_PER_SECOND", 0.0)  # ten seconds add nothing here
    code, out = mosaic("doctor", "--executor", "cluster")
    assert (code, [line[2:8].strip() for line in out.splitlines()[:4]]) == (0, ["execut", "start", "worker", "end"])
    code, out = mosaic("doctor", "--executor", "clutser")
    assert code == 1
    assert "did you mean 'cluster'?" in out


@pytest.mark.slow  # what nodes connect to is tested in every CI, in tests/e2e/test_nodes.py
def test_a_worker_on_another_machine_reaches_the_daemon_at_its_address_for_nodes(
    cluster: SlurmCluster, home: Home, tmp_path: Path
) -> None:
    """The home's socket leads nowhere from there; here it is taken away. The daemon is in the cluster's network."""
    network = f"/proc/{(cluster.folder / 'network.pid').read_text().strip()}/ns/net"
    settings = {
        **QUICK,
        "executors": {"cluster": {"type": "slurm", "poll_s": 0.5}},
        "nodes": {"listen": "127.0.0.1", "port": 0},
    }
    make_certificates(NodeCertificates.below(tmp_path / "config"), ["127.0.0.1"])
    with RunningDaemon(
        home, tmp_path / "config", settings=settings, environment=cluster.environment, script=INSIDE.format(network)
    ) as daemon:
        assert daemon.client.health().cpus_total
        home.socket.rename(home.socket.with_name("away"))
        ended = daemon.wait_for(submit(daemon, timesteps=20).run_id)
        assert (ended.outcome, ended.step) == ("completed", 20)
        assert not list(Path("/tmp").glob("mosaic-door-*"))
        home.socket.with_name("away").rename(home.socket)


@pytest.mark.slow
def test_a_controller_that_is_killed_and_started_again_loses_no_run(
    daemon: RunningDaemon, cluster: SlurmCluster
) -> None:
    run_id = submit(daemon, **ENDLESS, checkpoint_every=200).run_id
    daemon.wait_for_run(run_id, lambda run: run.step > 400)
    cluster.kill_controller()  # it may not have saved the job: then its node ends it later, and it is started again
    queued = submit(daemon, timesteps=20).run_id
    daemon.wait_for_run(queued, lambda run: "cluster: " in run.queue_reason, timeout_s=120)
    unwanted = submit(daemon, timesteps=20).run_id
    daemon.client.cancel(unwanted)
    assert daemon.wait_for(unwanted).outcome == "cancelled", "which needs no answer of Slurm"
    step = daemon.client.get(run_id).step
    daemon.wait_for_run(run_id, lambda run: run.step > step)
    cluster.start_controller()
    assert daemon.wait_for(queued, timeout_s=120).outcome == "completed"
    daemon.wait_for_run(run_id, lambda run: run.status == "EXEC" and run.step > step + 200, timeout_s=120)
    assert len(cluster.jobs()) == 1
    daemon.client.cancel(run_id)
    assert daemon.wait_for(run_id).outcome == "cancelled"
    assert cluster.jobs() == []


@pytest.mark.slow
def test_a_run_on_a_node_that_dies_continues_on_another(daemon: RunningDaemon, cluster: SlurmCluster) -> None:
    run_id = submit(daemon, timesteps=3000, steps_per_second=150, checkpoint_every=50).run_id
    node = daemon.wait_for_run(run_id, lambda run: run.step > 120 and run.node).node
    cluster.kill_node(node)
    ended = daemon.wait_for(run_id, timeout_s=170)
    assert (ended.outcome, ended.attempt, ended.step) == ("completed", 2, 3000)
    assert ended.node != node
    assert "node_lost" in daemon.event_kinds(run_id)


@pytest.mark.slow
def test_a_sweep_and_ten_seeds_end_right_although_a_node_dies(daemon: RunningDaemon, cluster: SlurmCluster) -> None:
    install_scripted_worker(daemon.home, "hill", HILL)
    trial = {**scripted_config("hill", timesteps=100), "scheduling": {"executor": "cluster"}}
    trial["metadata"]["worker"]["config"].pop("seed")
    ranges = {"x": {"kind": "float", "low": 0.0, "high": 1.0}}
    extras: Extras = {"algo_params": {"parameters": ranges, "trial": trial, "parallel": 6, "sampler": "random"}}
    config = run_request("sweep", algo="sweep", env_id="none", total_timesteps=30, seed=1, extras=extras)
    sweep = daemon.client.submit(config).run.run_id
    seeds = [
        submit(daemon, seed=seed, timesteps=300, steps_per_second=40, checkpoint_every=20) for seed in range(1, 11)
    ]
    daemon.wait_for_run(sweep, lambda run: run.step >= 3, timeout_s=120)
    on = {run.node for run in daemon.client.list(statuses=["EXEC"]).runs if run.node}
    victim = sorted(on)[0]
    cluster.kill_node(victim)
    assert daemon.wait_for(sweep, timeout_s=400).outcome == "completed"
    ended = [daemon.wait_for(run.run_id, timeout_s=200) for run in seeds]
    assert [(run.outcome, run.step) for run in ended] == [("completed", 300)] * 10
    trials = [run for run in daemon.client.list(include_archived=True).runs if run.submitted_by == sweep]
    assert [run.outcome for run in trials] == ["completed"] * 30
    again = [run for run in (*ended, *trials) if run.attempt > 1]
    assert again, "the node had runs"
    for run in again:
        assert "node_lost" in daemon.event_kinds(run.run_id)
    assert cluster.jobs() == []


@pytest.mark.slow
def test_a_training_that_is_preempted_three_times_ends_with_the_weights_of_an_undisturbed_one(
    daemon: RunningDaemon, cluster: SlurmCluster
) -> None:
    def train(*, executor: str) -> str:
        config = run_request(
            "cleanrl",
            algo="ppo",
            env_id="CartPole-v1",
            seed=3,
            total_timesteps=2_000_000,
            extras={"checkpoint_freq": 50_000, "algo_params": {"cuda": False}},
            scheduling={"executor": executor},
        )
        return daemon.client.submit(config).run.run_id

    undisturbed, run_id = train(executor="local"), train(executor="cluster")
    for attempt in (2, 3, 4):
        before = daemon.wait_for_run(run_id, lambda run: run.status == "EXEC" and run.step > 0, timeout_s=120).step
        daemon.wait_for_run(
            run_id, lambda run, at=before: run.step > at + 150_000 or run.status == "TERM", timeout_s=120
        )
        preempt(cluster)
        daemon.wait_for_run(run_id, lambda run, at=attempt: run.attempt == at, timeout_s=120)
    ended = daemon.wait_for(run_id, timeout_s=300)
    assert (ended.outcome, ended.attempt, ended.retries) == ("completed", 4, 0)
    assert daemon.event_kinds(run_id).count("preempted") == 3
    assert daemon.wait_for(undisturbed, timeout_s=300).outcome == "completed"
    assert _weights(daemon, run_id) == _weights(daemon, undisturbed)


def _weights(daemon: RunningDaemon, run_id: str) -> str:
    """The digest of the last checkpoint's tensors."""
    folder = daemon.home.run_folder(run_id)
    last = max(daemon.manifest(run_id).checkpoints, key=lambda entry: entry.step)
    return hashlib.sha256((folder.root / last.path / "state.safetensors").read_bytes()).hexdigest()
