"""What keeps a daemon from starting is reported in one line: a busy port, a lock, a newer or damaged database."""

from __future__ import annotations

import fcntl
import os
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from gym_gui.services.trainer.registry import RunRegistry
from gym_gui.testing import RunningDaemon
from mosaic_wire import env
from mosaic_wire.paths import Home


@pytest.fixture
def stopped(make_daemon) -> RunningDaemon:
    """A daemon that has served its home before."""
    daemon = make_daemon()
    daemon.wait_for(daemon.submit(timesteps=3).run_id)
    daemon.stop()
    return daemon


def refusal(daemon: RunningDaemon, *flags: str) -> str:
    """The one line with which a daemon refuses to start."""
    refused = daemon.attempt(*flags)
    assert refused.returncode == 1, refused.stderr
    lines = refused.stderr.strip().splitlines()
    assert len(lines) == 1, refused.stderr
    assert " ERROR " in lines[0]
    return lines[0]


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_a_busy_port_is_reported_and_harms_nothing(stopped: RunningDaemon, busy_port: int) -> None:
    reported = refusal(stopped, "--port", str(busy_port))
    assert f"127.0.0.1:{busy_port} is busy or not an address of this machine; choose another with --port" in reported
    stopped.start()  # on a free one, with everything it knew
    assert [run.outcome for run in stopped.client.list().runs] == ["completed"]


def test_leftovers_of_a_killed_daemon_lock_no_client_out(stopped: RunningDaemon) -> None:
    stopped.start()
    stopped.kill()
    home = stopped.home
    left = [home.lock, home.daemon_record, home.socket]
    assert all(path.exists() for path in left)
    home.lock.write_text("1\n")  # a living process, but not one that holds the lock
    stopped.start()
    assert stopped.client.health().pid == stopped.pid
    assert home.lock.read_text() == f"{stopped.pid}\n"


@pytest.fixture
def unstarted(make_daemon, home: Home) -> RunningDaemon:
    """A daemon whose home has a registry."""
    home.create()
    RunRegistry(home.database).close()
    return make_daemon(start=False)


def test_a_lock_that_is_held_names_its_holder(unstarted: RunningDaemon) -> None:
    with unstarted.home.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        reported = refusal(unstarted)
    assert f"a daemon (pid {os.getpid()}) already serves {unstarted.home.root}" in reported
    assert "mosaic daemon stop" in reported


def test_a_database_of_a_newer_version_is_left_untouched(unstarted: RunningDaemon) -> None:
    database = unstarted.home.database
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    before = database.read_bytes()
    reported = refusal(unstarted)
    assert "was written by a newer MOSAIC (schema version 999" in reported
    assert "Update MOSAIC, or set MOSAIC_HOME" in reported
    assert database.read_bytes() == before
    assert list(database.parent.glob(f"{database.name}-*")) == []


def test_a_database_that_is_none_of_ours_is_reported_and_kept(unstarted: RunningDaemon) -> None:
    database = unstarted.home.database
    whole = database.read_bytes()
    with sqlite3.connect(database.with_name("other")) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    for content in (whole[: len(whole) // 2], b"\xff" * 8192, database.with_name("other").read_bytes()):
        database.write_bytes(content)
        assert f"{database} is damaged or not a MOSAIC registry" in refusal(unstarted)
        assert database.read_bytes() == content
    database.unlink()
    database.mkdir()
    assert f"{database} is not a file, but the registry's path; move it away" in refusal(unstarted)


def test_a_home_that_is_no_folder_is_reported(make_daemon, tmp_path: Path) -> None:
    daemon = make_daemon(start=False)
    file = tmp_path / "a file"
    file.touch()
    for home in (file, file / "below"):
        reported = refusal(daemon, "--home", str(home))
        assert f"the home {home} cannot be used" in reported
        assert "set MOSAIC_HOME to another folder" in reported


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_home_of_another_user_is_refused(make_daemon, home: Home) -> None:
    daemon = make_daemon(start=False)
    home.trainer.mkdir(parents=True)
    os.chown(home.trainer, 65534, 65534)
    reported = refusal(daemon)
    assert f"{home.trainer} must be a folder of this user" in reported
    os.chown(home.trainer, 0, 0)


def test_a_config_folder_inside_the_home_is_refused_because_of_the_secrets(make_daemon, home: Home) -> None:
    daemon = make_daemon(start=False, environment={env.MOSAIC_CONFIG_HOME: str(home.root / "config")})
    reported = refusal(daemon)
    assert "archives and backups of runs would contain secrets" in reported
    assert env.MOSAIC_CONFIG_HOME in reported


def test_something_in_the_place_of_the_socket_is_reported(unstarted: RunningDaemon) -> None:
    unstarted.home.socket.mkdir()
    try:
        reported = unstarted.attempt()
    finally:
        unstarted.home.socket.rmdir()
    assert reported.returncode == 1
    assert f"the unix socket {unstarted.home.socket} cannot be used" in reported.stderr.splitlines()[-1]
    assert "Traceback" not in reported.stderr
