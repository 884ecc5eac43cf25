"""Any number of idle connections from a local user without a token costs no run and keeps no local client out."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from gym_gui.cli import main
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import TrainerError
from gym_gui.services.trainer.local_daemon import running_record
from gym_gui.services.trainer.tcp_door import DEFAULT_PORT
from gym_gui.testing import RunningDaemon
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

DESCRIPTORS = 1024
LIMITED = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {DESCRIPTORS}))
from gym_gui.services.trainer.daemon import main
sys.exit(main(["run"]))
"""
ENDLESS = {"timesteps": 1_000_000, "steps_per_second": 50}


@pytest.fixture
def daemon(make_daemon) -> RunningDaemon:
    """A daemon on a machine with the usual few descriptors, which listens on TCP."""
    return make_daemon(script=LIMITED, listen="127.0.0.1")


@contextmanager
def connections(address: object, count: int) -> Iterator[list[socket.socket]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 500), hard))
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    try:
        with ExitStack() as stack:
            opened = []
            for _ in range(count):
                stranger = stack.enter_context(socket.socket(family))
                stranger.settimeout(5)
                with suppress(OSError):  # refused: as it should be
                    stranger.connect(address)
                    opened.append(stranger)
            yield opened
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors_of(daemon: RunningDaemon) -> int:
    return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))


@pytest.mark.parametrize("door", ["tcp", "unix"])
def test_idle_connections_leave_the_daemon_its_descriptors(daemon: RunningDaemon, door: str) -> None:
    record = running_record(daemon.home)
    assert record is not None
    host, _, port = record.tcp.rpartition(":")
    run_id = daemon.submit(**ENDLESS).run_id
    daemon.wait_for(run_id, "EXEC")
    with connections((host, int(port)) if door == "tcp" else str(daemon.home.socket), 1300):
        assert wait_until(lambda: descriptors_of(daemon) < DESCRIPTORS * 3 / 4)
        before = daemon.client.get(run_id).step
        daemon.wait_for_run(run_id, lambda run: run.step > before)
        if door == "tcp":  # the socket is another door: new clients and new workers get in
            with TrainerClient.connect(daemon.home) as client:
                assert client.get(run_id).status == "EXEC"
            assert daemon.wait_for(daemon.submit(timesteps=5).run_id).outcome == "completed"
            assert "refused a TCP connection from 127.0.0.1" in daemon.log()
    assert daemon.client.get(run_id).status == "EXEC"


def test_without_being_asked_the_daemon_listens_on_no_port(make_daemon) -> None:
    daemon = make_daemon()
    record = running_record(daemon.home)
    assert record is not None
    assert (record.tcp, list(daemon.client.health().addresses)) == ("", [daemon.home.target])
    inodes = {link.name for link in Path(f"/proc/{daemon.pid}/fd").iterdir() if "socket:" in str(link.readlink())}
    assert inodes
    sockets = {str(Path(f"/proc/{daemon.pid}/fd/{name}").readlink())[8:-1] for name in inodes}
    for table in ("tcp", "tcp6"):
        lines = Path(f"/proc/{daemon.pid}/net/{table}").read_text().splitlines()[1:]
        assert not [line for line in lines if line.split()[9] in sockets]


def test_a_worker_is_started_with_the_usual_limit_on_descriptors(daemon: RunningDaemon) -> None:
    run = daemon.wait_for(daemon.submit(**ENDLESS).run_id, "EXEC")
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in (daemon.pid, run.pid)}
    assert limits == {daemon.pid: (DESCRIPTORS, DESCRIPTORS), run.pid: (256, DESCRIPTORS)}


def test_a_daemon_without_descriptors_faults_no_run(make_daemon) -> None:
    daemon = make_daemon(silence_s=60)
    usual = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    going = daemon.submit(**ENDLESS).run_id
    daemon.wait_for(going, "EXEC")
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
    try:
        with pytest.raises(TrainerError, match=r"(?i)too many (open )?files"):
            daemon.submit(timesteps=5)
        before = daemon.client.get(going).step
        daemon.wait_for_run(going, lambda run: run.step > before)
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, usual)
    assert daemon.wait_for(daemon.submit(timesteps=5).run_id).outcome == "completed"
    assert daemon.client.get(going).status == "EXEC"


def test_a_daemon_that_found_its_usual_port_taken_says_where_it_listens(home: Home, capsys) -> None:
    with socket.socket() as stranger:
        with suppress(OSError):  # taken by another process: as good
            stranger.bind(("127.0.0.1", DEFAULT_PORT))
            stranger.listen()
        try:
            with pytest.raises(SystemExit):
                main(["daemon", "start", "--listen"])
            record = running_record(home)
            assert record is not None
            assert not record.tcp.endswith(f":{DEFAULT_PORT}")
            assert f"TCP {record.tcp})" in capsys.readouterr().out
        finally:
            with pytest.raises(SystemExit):
                main(["daemon", "stop"])
