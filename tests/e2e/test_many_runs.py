"""Fault 9: many queued and finished runs: nothing is lost, memory stays flat, the database is never locked."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.fsm import RunEvent
from gym_gui.services.trainer.records import NewRun
from gym_gui.services.trainer.registry import RunRegistry
from gym_gui.testing import RunningDaemon, random_config
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def fill_with_finished_runs(home: Home, count: int) -> None:
    """A history, written as a daemon would have written it."""
    home.create()
    with RunRegistry(home.database) as registry:
        for number in range(count):
            run_id = new_run_id()
            registry.submit(NewRun(run_id, "random", name=f"old {number}", algo="random", tags=(f"t{number % 7}",)))
            registry.apply(run_id, RunEvent.CANCELLED, reason="cancelled on request")


def check_many(make_daemon, home: Home, *, finished: int, queued: int) -> None:
    fill_with_finished_runs(home, finished)
    daemon: RunningDaemon = make_daemon()
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    blocker = daemon.submit(timesteps=10_000_000, steps_per_second=20, resources=everything).run_id
    daemon.wait_for(blocker, "EXEC")
    waiting = submit_from_several_clients(daemon, random_config(timesteps=2, resources=everything), queued)

    for _ in range(2):
        page = daemon.client.list()
        assert (len(page.runs), page.matching) == (finished + queued + 1,) * 2
        numbers = [run.number for run in page.runs]
        assert numbers == sorted(numbers, reverse=True)
        assert len({run.run_id for run in page.runs}) == len(page.runs)
        assert {run.run_id for run in daemon.client.list(statuses=["INIT"]).runs} == set(waiting)
        some = daemon.client.list(tags=["t3"], limit=5)
        assert (len(some.runs), some.matching) == (5, len(range(3, finished, 7)))
        assert daemon.client.health().queued == queued
        assert daemon.client.get(blocker).status == "EXEC"
        daemon.restart()

    # However often it is asked, it does not grow.
    for _ in range(5):
        daemon.client.list()
    before = resident_mb(daemon.pid)
    for _ in range(30):
        daemon.client.list()
    assert resident_mb(daemon.pid) < before + 24 + finished / 500

    # A few of them run, in their order; the rest is cancelled.
    last = waiting[-3:]
    for run_id in waiting[:-3]:
        daemon.client.cancel(run_id)
    daemon.client.cancel(blocker)
    assert [daemon.wait_for(run_id).outcome for run_id in last] == ["completed"] * 3
    assert wait_until(lambda: not daemon.unfinished(), timeout_s=120)
    assert daemon.client.list(outcomes=["cancelled"]).matching == finished + queued - 3 + 1
    assert "locked" not in daemon.log()
    assert "Traceback" not in daemon.log()


def submit_from_several_clients(daemon: RunningDaemon, config: dict, count: int) -> list[str]:
    """Run ids in the order in which they were accepted; others list the runs all the while."""
    accepted: list[tuple[int, str]] = []
    failures: list[Exception] = []
    done = threading.Event()

    def submit(share: int) -> None:
        try:
            with TrainerClient.connect(daemon.home, timeout_s=120) as client:
                for _ in range(share):
                    run = client.submit(config).run
                    accepted.append((run.number, run.run_id))
        except Exception as error:  # noqa: BLE001 - reported below
            failures.append(error)

    def look() -> None:
        try:
            with TrainerClient.connect(daemon.home, timeout_s=120) as client:
                while not done.wait(0.1):
                    client.list(limit=50)
        except Exception as error:  # noqa: BLE001 - reported below
            failures.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    shares = [count // 4, count // 4, count // 4, count - 3 * (count // 4)]
    threads = [threading.Thread(target=submit, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    looking.join()
    assert failures == []
    return [run_id for _, run_id in sorted(accepted)]


@pytest.mark.slow  # test_chaos.py has dozens in every CI
def test_hundreds_of_runs(make_daemon, home: Home) -> None:
    check_many(make_daemon, home, finished=700, queued=60)


@pytest.mark.fault
@pytest.mark.timeout(1200)
def test_ten_thousand_finished_and_a_thousand_queued_runs(make_daemon, home: Home) -> None:
    check_many(make_daemon, home, finished=10_000, queued=1000)


def test_runs_that_are_deleted_the_moment_they_end_leave_no_trouble(daemon: RunningDaemon) -> None:
    runs = [daemon.submit(timesteps=2).run_id for _ in range(10)]
    left = set(runs)

    def delete_what_has_ended() -> bool:
        for run in daemon.client.list(statuses=["TERM"]).runs:
            daemon.client.delete(run.run_id)
            left.discard(run.run_id)
        return not left

    assert wait_until(delete_what_has_ended, timeout_s=60, poll_s=0.001)
    assert len(daemon.client.list().runs) == 0
    assert daemon.wait_for(daemon.submit(timesteps=2).run_id).outcome == "completed"
    assert "Traceback" not in daemon.log()
