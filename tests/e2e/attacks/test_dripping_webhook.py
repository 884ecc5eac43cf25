"""A webhook that answers one header line at a time, for ever, holds up nothing but itself and keeps to its deadline."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from gym_gui.testing import RunningDaemon
from mosaic_wire.testing import wait_until

IMPATIENT = """
import sys
from gym_gui.services.trainer import daemon, hooks
hooks._TIMEOUT_S = {seconds}
sys.exit(daemon.main([]))
"""
ENDINGS = 12
"""More than the threads of the daemon's usual pool"""


class Dripping:
    """A server that never ends its headers."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self.callers = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}/"

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.callers += 1
            threading.Thread(target=self._drip, args=(connection,), daemon=True).start()

    def _drip(self, connection: socket.socket) -> None:
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not self._over.wait(0.4):
                try:
                    connection.sendall(b"X-More: yes\r\n")
                except OSError:
                    return

    def close(self) -> None:
        self._over.set()
        self._listening.close()


@pytest.fixture
def dripping() -> Iterator[Dripping]:
    server = Dripping()
    yield server
    server.close()


@pytest.mark.parametrize("seconds", [2.0, pytest.param(30.0, marks=pytest.mark.fault)])
def test_endings_beyond_every_pool_leave_submissions_and_daemon_stop_alone(
    make_daemon, dripping: Dripping, seconds: float
) -> None:
    daemon: RunningDaemon = make_daemon(on_end_webhook=dripping.address, script=IMPATIENT.format(seconds=seconds))
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    blocker = daemon.submit(timesteps=1_000_000, steps_per_second=20, resources=everything).run_id
    queued = [daemon.submit(timesteps=5, resources=everything).run_id for _ in range(ENDINGS)]
    for run_id in queued:
        daemon.client.cancel(run_id)
    assert wait_until(lambda: dripping.callers > 0, timeout_s=60)
    daemon.client.cancel(blocker)
    assert daemon.wait_for(daemon.submit(timesteps=3).run_id).outcome == "completed"  # while they drip

    def reported() -> list[str]:
        return [event.reason for event in daemon.client.history(queued[0]) if event.kind == "hook_failed"]

    assert wait_until(reported, timeout_s=seconds + 60), daemon.log()
    assert reported() == [f"on_end_webhook took longer than {seconds:g} s and was ended"]
    assert daemon.stop() == 0
