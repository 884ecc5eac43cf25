"""A program that keeps the registry locked, or a disk that takes nothing, costs no run and keeps no client waiting."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from gym_gui.services.trainer.errors import RegistryUnwritable
from gym_gui.services.trainer.local_daemon import running_record
from gym_gui.testing import RunningDaemon, processes_of
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until


@contextmanager
def locked(home: Home) -> Iterator[None]:
    """Hold the write lock of the registry, as a backup program or a SQLite browser may."""
    with closing(sqlite3.connect(home.database, isolation_level=None, timeout=30)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        yield
        stranger.execute("ROLLBACK")


def let_pass(seconds: float) -> None:
    end = time.monotonic() + seconds
    assert wait_until(lambda: time.monotonic() > end, timeout_s=seconds + 60)


@pytest.mark.parametrize("held_s", [4, pytest.param(45, marks=pytest.mark.fault)])
def test_runs_that_complete_while_the_registry_is_locked_are_completed_and_not_trained_again(
    make_daemon, held_s: float
) -> None:
    daemon: RunningDaemon = make_daemon(silence_s=1.5)
    completes = daemon.submit(timesteps=100, steps_per_second=100, scheduling={"retries": 2}).run_id
    goes_on = daemon.submit(timesteps=1_000_000, steps_per_second=50).run_id
    for run_id in (completes, goes_on):
        daemon.wait_for(run_id, "EXEC")
    with locked(daemon.home):
        assert wait_until(lambda: not processes_of(completes), timeout_s=60)
        let_pass(held_s)  # far beyond the limit of silence
        assert daemon.client.get(goes_on).status == "EXEC"  # clients are answered meanwhile
    ended = daemon.wait_for(completes)
    assert (ended.outcome, ended.attempt) == ("completed", 1)
    assert not {"faulted", "retried"} & {*daemon.event_kinds(completes), *daemon.event_kinds(goes_on)}
    assert daemon.client.get(goes_on).status == "EXEC"


def test_runs_that_a_daemon_takes_up_while_the_registry_is_locked_are_not_called_silent(make_daemon) -> None:
    daemon: RunningDaemon = make_daemon(silence_s=1.5)
    runs = [daemon.submit(timesteps=1_000_000, steps_per_second=50).run_id for _ in range(2)]
    for run_id in runs:
        daemon.wait_for(run_id, "EXEC")
    daemon.kill()
    with locked(daemon.home):
        daemon.spawn()
        let_pass(4)

    def serves() -> bool:
        record = running_record(daemon.home)
        return record is not None and record.pid == daemon.pid

    assert wait_until(serves, timeout_s=60), daemon.log()
    for run_id in runs:
        daemon.wait_for_run(run_id, lambda run: "reattached" in daemon.event_kinds(run.run_id))
    let_pass(2)
    assert [daemon.client.get(run_id).status for run_id in runs] == ["EXEC"] * 2


def test_a_client_is_reported_that_the_registry_is_locked_and_a_cancel_ends_the_worker(make_daemon) -> None:
    daemon: RunningDaemon = make_daemon()
    run_id = daemon.submit(timesteps=1_000_000, steps_per_second=50).run_id
    daemon.wait_for(run_id, "EXEC")
    with locked(daemon.home):
        with pytest.raises(RegistryUnwritable, match="another program has held"):
            daemon.client.update(run_id, add_tags=["kept"])
        assert "cancelling" in daemon.client.cancel(run_id, reason="enough").flags
        assert wait_until(lambda: not processes_of(run_id), timeout_s=60)
        assert daemon.client.get(run_id).outcome == ""
    ended = daemon.wait_for(run_id)
    assert (ended.outcome, ended.reason) == ("cancelled", "enough")
    assert "cancel_requested" in daemon.event_kinds(run_id)
