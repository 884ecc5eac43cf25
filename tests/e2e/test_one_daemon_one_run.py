"""Fault 11: the same idempotency key makes one run, whoever asks; a home has one daemon, whoever starts another."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import NotPossibleNow
from gym_gui.services.trainer.local_daemon import running_record
from gym_gui.testing import RunningDaemon, random_config
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until

SUBMIT = """
import sys
from gym_gui.services.trainer.client import TrainerClient
with TrainerClient.connect(timeout_s=60) as client:
    sys.stdin.readline()
    response = client.submit(sys.argv[1], idempotency_key="from many processes")
print(response.run.run_id, response.already_known)
"""


def submit_from_threads(daemon: RunningDaemon, key: str, count: int) -> list[pb.SubmitRunResponse]:
    answers: list[pb.SubmitRunResponse] = []
    together = threading.Barrier(count)

    def submit() -> None:
        with TrainerClient.connect(daemon.home, timeout_s=60) as client:
            together.wait()
            answers.append(client.submit(random_config(timesteps=5), idempotency_key=key))

    threads = [threading.Thread(target=submit) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def check_it_is_one_run(daemon: RunningDaemon, run_id: str) -> None:
    assert daemon.wait_for(run_id).outcome == "completed"
    starts = [event for event in daemon.lifecycle(run_id) if event.event is LifecycleKind.RUN_STARTED]
    assert len(starts) == 1
    assert [run.run_id for run in daemon.client.list().runs] == [run_id]
    # Those who came too late left nothing lying about.
    assert [path.name for path in daemon.home.configs.glob("config-*")] == [f"config-{run_id}.json"]


def test_many_clients_with_the_same_key_at_once_make_one_run(daemon: RunningDaemon) -> None:
    answers = submit_from_threads(daemon, "the same", 8)
    assert len({answer.run.run_id for answer in answers}) == 1
    assert sorted(answer.already_known for answer in answers) == [False] + [True] * 7
    check_it_is_one_run(daemon, answers[0].run.run_id)


def test_clients_in_processes_of_their_own_with_the_same_key_make_one_run(daemon: RunningDaemon) -> None:
    config = json.dumps(random_config(timesteps=5))
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", SUBMIT, config],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=daemon.variables,
            text=True,
        )
        for _ in range(3)
    ]
    reported = [client.communicate("\n", timeout=90)[0].split() for client in clients]
    assert len({run_id for run_id, _ in reported}) == 1
    assert sorted(known for _, known in reported) == ["False", "True", "True"]
    check_it_is_one_run(daemon, reported[0][0])


def test_a_key_is_remembered_when_the_run_is_over_and_the_daemon_another(daemon: RunningDaemon) -> None:
    first = daemon.client.submit(random_config(timesteps=5), idempotency_key="kept").run
    daemon.wait_for(first.run_id)
    daemon.restart()
    again = daemon.client.submit(random_config(timesteps=5), idempotency_key="kept")
    assert (again.run.run_id, again.already_known, again.run.outcome) == (first.run_id, True, "completed")
    # Whoever asks for another training does not get this one.
    with pytest.raises(NotPossibleNow, match=f"was used for run {first.run_id}.*take a new key"):
        daemon.client.submit(random_config(timesteps=5, seed=9), idempotency_key="kept")
    check_it_is_one_run(daemon, first.run_id)


def test_the_same_config_without_a_key_makes_a_run_each_time(daemon: RunningDaemon) -> None:
    runs = [daemon.client.submit(random_config(timesteps=5)) for _ in range(2)]
    assert len({answer.run.run_id for answer in runs}) == 2
    assert not any(answer.already_known for answer in runs)
    for answer in runs:
        assert daemon.wait_for(answer.run.run_id).outcome == "completed"


def test_a_second_daemon_on_the_same_home_refuses_and_the_first_continues(daemon: RunningDaemon) -> None:
    run_id = daemon.submit(timesteps=1_000_000, steps_per_second=50).run_id
    pid = daemon.wait_for(run_id, "EXEC").pid
    record = daemon.home.daemon_record.read_bytes()
    for _ in range(3):
        second = daemon.attempt()
        assert second.returncode == 1
        assert f"a daemon (pid {daemon.pid}) already serves {daemon.home.root}" in second.stderr
        assert "Traceback" not in second.stderr
    assert daemon.home.daemon_record.read_bytes() == record
    before = daemon.client.get(run_id).step
    run = daemon.wait_for_run(run_id, lambda run: run.step > before)
    assert (run.pid, daemon.event_kinds(run_id).count("dispatched")) == (pid, 1)


def test_a_daemon_waits_for_what_its_killed_predecessor_was_starting(daemon: RunningDaemon) -> None:
    """Until it executes its program, a new process has the open files of the daemon, its lock among them."""
    daemon.kill()
    with daemon.home.lock.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = daemon.spawn()
        opened = Path(f"/proc/{process.pid}/fd")
        assert wait_until(lambda: any(path.resolve() == daemon.home.lock for path in opened.iterdir()), timeout_s=60)
        assert running_record(daemon.home) is None
    assert wait_until(lambda: process.poll() is not None or running_record(daemon.home) is not None, timeout_s=60)
    assert process.poll() is None, daemon.log()


def test_of_many_daemons_started_at_once_one_serves(daemon: RunningDaemon) -> None:
    daemon.stop()
    contenders = [
        subprocess.Popen(
            [sys.executable, "-m", "gym_gui.services.trainer.daemon", "run"],
            env=daemon.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(3)
    ]
    try:
        assert wait_until(lambda: sum(each.poll() is None for each in contenders) == 1, timeout_s=60)
        (winner,) = (each for each in contenders if each.poll() is None)
        assert wait_until(lambda: (record := running_record(daemon.home)) and record.pid == winner.pid, timeout_s=60)
        with TrainerClient.connect(daemon.home, timeout_s=60) as client:
            assert client.health().pid == winner.pid
        assert sorted(each.returncode or 0 for each in contenders) == [0, 1, 1]
    finally:
        for each in contenders:
            each.terminate()
            each.wait(60)
