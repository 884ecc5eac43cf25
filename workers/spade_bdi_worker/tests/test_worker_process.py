"""The worker as the daemon starts it: what it records, and SPADE."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mosaic_extras.testing import interpreter_with, lend_sets
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.paths import Home
from mosaic_wire.reasoning import reasoning_of
from mosaic_wire.telemetry import decode
from mosaic_wire.testing import PlayDaemon, WorkerProcess, wait_until

Start = Callable[..., WorkerProcess]
LAKE = {"env_kwargs": "is_slippery=false", "eval_episodes": 0}


@pytest.fixture
def daemon() -> Iterator[PlayDaemon]:
    with PlayDaemon() as daemon:
        yield daemon


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[WorkerProcess] = []

    def start(sets: str = "agentspeak", env_id: str = "FrozenLake-v1", steps: int = 100, **parameters: Any):
        daemon = parameters.pop("daemon", None)
        config = {"algo": "spade_bdi", "env_id": env_id, "total_timesteps": steps, "seed": 1}
        config["extras"] = (
            {"algo_params": {**LAKE, **parameters}} if "Frozen" in env_id else {"algo_params": parameters}
        )
        home = Home(tmp_path / "home")
        lend_sets(home, *sets.split())
        argv = [str(interpreter_with(sets.split()[0])), "-m", "spade_bdi_worker.cli"]
        (tmp_path / "tmp").mkdir(exist_ok=True)
        started.append(WorkerProcess(argv, config, home, daemon=daemon, environment={"TMPDIR": str(tmp_path / "tmp")}))
        return started[-1]

    yield start
    for worker in started:
        worker.close()


def parts_of(step: Any) -> dict[str, Any]:
    return {part.title: part.items or part.text for part in reasoning_of(json.loads(step.info_json))}


def test_every_step_is_recorded_with_the_reasons_for_it(start: Start, daemon: PlayDaemon) -> None:
    worker = start(steps=100, daemon=daemon)
    assert worker.wait() == 0, worker.stderr()
    assert [step.seq for step in daemon.steps] == list(range(1, 101))
    for before, after in zip(daemon.steps, daemon.steps[1:], strict=False):
        parts = parts_of(after)
        assert f"state({decode(after.observation)})" in parts["Percepts"]
        assert parts["Plan"] == "+!act : state(S)   (q_learning.asl:3)"
        assert parts["Intentions"] == ("!act",)
        if after.episode == before.episode and decode(after.observation) != decode(before.observation):
            assert f"-state({decode(before.observation)})" in parts["Beliefs"]
            assert f"+state({decode(after.observation)})" in parts["Beliefs"]
    assert len(daemon.episodes) == daemon.steps[-1].episode + daemon.steps[-1].terminated


def test_the_stack_of_intentions_is_recorded_and_the_worker_enters_the_sets_it_needs(
    start: Start, daemon: PlayDaemon
) -> None:
    """`agentspeak` is where it is started; it continues in the joint environment with `minigrid`."""
    worker = start(
        "agentspeak minigrid", "MiniGrid-Empty-5x5-v0", 5, behaviour="planner", daemon=daemon, eval_episodes=0
    )
    assert worker.wait() == 0, worker.stderr()
    first = parts_of(daemon.steps[0])
    assert first["Intentions"][:2] == ("!act", "!act")
    assert first["Intentions"][-1].startswith("!turn_or(")
    assert first["Plan"].startswith("+!turn_or(Way, ")
    assert any(line.startswith("+aim(arrive, 3, 3)") for line in first["Beliefs"])
    assert worker.events()[-1].payload["step"] == 5


# ---------------------------------------------------------------- SPADE


def state_of(worker: WorkerProcess, step: int) -> dict[str, Any]:
    return json.loads((worker.folder.checkpoints / f"step-{step}" / "state.json").read_text())


@pytest.mark.parametrize(
    ("sets", "env_id", "parameters"),
    [
        ("spade", "FrozenLake-v1", {"behaviour": "teacher_pupil"}),
        pytest.param("spade", "FrozenLake-v1", {}, marks=pytest.mark.slow),
        pytest.param("spade minigrid", "MiniGrid-DoorKey-5x5-v0", {"behaviour": "planner"}, marks=pytest.mark.slow),
    ],
)
def test_both_engines_give_the_same_behaviour(
    start: Start, train: Any, sets: str, env_id: str, parameters: Any
) -> None:
    steps = 300 if "Lake" in env_id else 60
    parameters = {**(LAKE if "Lake" in env_id else {}), "eval_episodes": 0, **parameters}
    there = start(sets, env_id, steps, engine="spade", **parameters)
    here = train(env_id, steps, **parameters)
    assert here.code == 0, here.error
    assert there.wait() == 0, there.stderr()
    assert state_of(there, steps) == here.state(steps)


def test_spade_listens_on_loopback_only_and_leaves_nothing(start: Start, daemon: PlayDaemon, tmp_path: Path) -> None:
    worker = start("spade", steps=10**9, behaviour="teacher_pupil", engine="spade", daemon=daemon)
    assert wait_until(lambda: daemon.steps or worker.process.poll() is not None), worker.stderr()
    assert daemon.steps, worker.stderr()
    process = psutil.Process(worker.process.pid)
    listening = [each.laddr for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert len(listening) == 2, "clients and other servers; neither uploads nor the API for administrators"
    assert not process.children(recursive=True)
    assert not list((tmp_path / "tmp").glob("mosaic-xmpp-*")), "keys are not left lying while it runs"
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() == ExitOutcome.CANCELLED.exit_code, worker.stderr()
    assert worker.exit_record() is not None
    assert not worker.survivors()


def test_a_server_that_does_not_answer_faults_the_run_and_the_password_is_nowhere(start: Start) -> None:
    password = "canary-77aa31d0c9"
    account = {"server": "127.0.0.1", "port": 9, "jid": "anna@localhost", "password": password}
    worker = start("spade", behaviour="teacher_pupil", engine="spade", **account)
    assert worker.wait() == 1
    reason = worker.events()[-1].payload["error"]
    assert "127.0.0.1:9" in reason
    kept = [path for path in worker.home.root.rglob("*") if path.is_file() and path != worker.config_file]
    assert not [path for path in kept if password.encode() in path.read_bytes()]
