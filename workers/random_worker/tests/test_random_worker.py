"""What the reference worker does beyond the contract: exact resumption, and faults on request."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mosaic_wire.checkpoints import last_good_checkpoint
from mosaic_wire.exit_record import ExitOutcome
from mosaic_wire.paths import Home
from mosaic_wire.session import CommandKind
from mosaic_wire.testing import PlayDaemon, WorkerProcess, wait_until

ARGV = [sys.executable, "-m", "random_worker.cli"]
ENDLESS = 10**9
Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[WorkerProcess] = []

    def start(
        total: int = 50, *, env_id: str = "none", seed: int = 1, options: Any = None, **extras: Any
    ) -> WorkerProcess:
        config = {"algo": "random", "env_id": env_id, "total_timesteps": total, "seed": seed, "extras": extras}
        started.append(WorkerProcess(ARGV, config, Home(tmp_path / "home"), **(options or {})))
        return started[-1]

    yield start
    for worker in started:
        worker.close()


def _has_started(worker: WorkerProcess) -> bool:
    return wait_until(lambda: "run_started" in worker.event_names() or worker.process.poll() is not None, timeout_s=60)


def test_a_released_and_resumed_walk_ends_where_an_undisturbed_one_does(start: Start) -> None:
    undisturbed = start(1234)
    assert undisturbed.wait() == 0
    with PlayDaemon() as daemon:
        first = start(1234, steps_per_second=300, options={"daemon": daemon})
        assert wait_until(lambda: daemon.heartbeats and daemon.heartbeats[-1].step > 150, timeout_s=60)
        assert wait_until(daemon.is_listened_to, timeout_s=60)
        daemon.send(CommandKind.RELEASE)
        assert first.wait() == 0
        entry = last_good_checkpoint(first.folder)
        assert entry is not None
        assert 150 <= entry.step < 1234
        second = start(
            1234,
            mode="resume_training",
            checkpoint_path=str(first.folder.root / entry.path),
            options={"daemon": daemon, "run_id": first.run_id, "attempt": 2},
        )
        assert second.wait() == 0, second.stderr()
    assert second.events()[-1].payload == undisturbed.events()[-1].payload
    assert [event.seq for event in second.events()] == list(range(1, len(second.events()) + 1))


def test_a_killed_walk_continues_exactly_from_its_last_checkpoint(start: Start) -> None:
    undisturbed = start(500)
    assert undisturbed.wait() == 0
    killed = start(500, checkpoint_every=100, kill_at_step=333)
    assert killed.wait() == -signal.SIGKILL
    assert killed.exit_record() is None
    entry = last_good_checkpoint(killed.folder)
    assert entry is not None
    assert entry.step == 300
    resumed = start(500, mode="resume_training", checkpoint_path=str(killed.folder.root / entry.path))
    assert resumed.wait() == 0, resumed.stderr()
    assert resumed.events()[-1].payload == undisturbed.events()[-1].payload


def test_the_seed_decides_the_walk(start: Start) -> None:
    ends = [start(300, seed=seed) for seed in (1, 1, 7)]
    assert [worker.wait() for worker in ends] == [0, 0, 0]
    first, again, other = (worker.events()[-1].payload for worker in ends)
    assert first == again != other


def test_a_gymnasium_environment_is_stepped(start: Start) -> None:
    pytest.importorskip("gymnasium")
    with PlayDaemon() as daemon:
        worker = start(200, env_id="CartPole-v1", options={"daemon": daemon})
        assert worker.wait() == 0, worker.stderr()
        assert daemon.heartbeats[-1].step == 200
        assert daemon.heartbeats[-1].episodic_return > 0


def test_an_unknown_environment_names_the_nearest(start: Start) -> None:
    pytest.importorskip("gymnasium")
    worker = start(env_id="CartPol-v1")
    assert worker.wait() == 2
    assert "Did you mean 'CartPole-v1'?" in worker.stderr()


def test_a_checkpoint_of_something_else_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"step": 5, "algo": "ppo"}))
    worker = start(mode="resume_training", checkpoint_path=str(tmp_path))
    assert worker.wait() == 2
    assert "is not a checkpoint of 'random'" in worker.stderr()
    assert start(mode="resume_training").wait() == 2


# -- faults on request


def test_an_error_becomes_a_failed_ending(start: Start) -> None:
    worker = start(fail_at_step=7)
    assert worker.wait() == 1
    last = worker.events()[-1]
    assert (str(last.event), last.payload["step"], last.payload["error_type"]) == ("run_failed", 7, "AskedToFail")
    record = worker.exit_record()
    assert record is not None
    assert (record.outcome, record.exit_code) == (ExitOutcome.FAILED, 1)
    assert "Traceback" in worker.stderr()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"exit_at_step": 3, "exit_code": 0}, 0),
        ({"exit_at_step": 3, "exit_code": 7}, 7),
        ({"kill_at_step": 3, "kill_signal": 9}, -9),
        ({"kill_at_step": 3, "kill_signal": 11}, -11),
    ],
)
def test_a_silent_death_leaves_no_ending(start: Start, fault: dict[str, int], code: int) -> None:
    worker = start(**fault)
    assert worker.wait() == code
    assert worker.event_names() == ["run_started"]
    assert worker.exit_record() is None


def test_ignore_sigterm_continues(start: Start) -> None:
    worker = start(ENDLESS, steps_per_second=100, checkpoint_every=5, ignore_sigterm=True)
    assert wait_until(lambda: "checkpoint_saved" in worker.event_names(), timeout_s=60)
    worker.process.send_signal(signal.SIGTERM)
    seen = len(worker.events())
    assert wait_until(lambda: len(worker.events()) > seen + 2, timeout_s=60)
    assert worker.process.poll() is None


def test_never_register_lives_on_without_a_word(start: Start) -> None:
    with PlayDaemon() as daemon:
        worker = start(never_register=True, options={"daemon": daemon})
        assert wait_until(lambda: _state(worker.process.pid) == "S", timeout_s=60)
        assert not daemon.registrations
        assert not list(worker.folder.root.iterdir())


def test_fork_and_exit_leaves_a_marked_child(start: Start) -> None:
    worker = start(fork_and_exit=True)
    assert worker.wait() == 0
    [child] = worker.survivors()
    assert os.getsid(child) == child


@pytest.mark.parametrize("detached", [False, True])
def test_children_carry_the_mark(start: Start, detached: bool) -> None:
    worker = start(ENDLESS, steps_per_second=10, spawn_children=2, detach_children=detached)
    assert wait_until(lambda: len(worker.survivors()) == 3, timeout_s=60)
    expected = 3 if detached else 1  # a child has its own session a moment after it is there
    assert wait_until(lambda: len({os.getsid(pid) for pid in worker.survivors()}) == expected, timeout_s=60)


def test_a_line_of_a_million_characters_and_garbage_do_not_hide_the_lifecycle(start: Start) -> None:
    worker = start(log_line_chars=1_000_000, lifecycle_garbage=True)
    assert worker.wait() == 0
    assert max(map(len, worker.stdout().splitlines())) == 1_000_000
    assert worker.event_names() == ["run_started", "run_completed"]


def test_memory_is_really_taken(start: Start) -> None:
    worker = start(ENDLESS, steps_per_second=10, memory_mb=150)
    assert wait_until(lambda: _resident_mb(worker.process.pid) > 150, timeout_s=60)


def test_sleep_s_can_be_cancelled(start: Start) -> None:
    worker = start(1, sleep_s=3600)
    assert _has_started(worker)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() == 130


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
