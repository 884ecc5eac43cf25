"""A stranger without a token makes the daemon hold next to nothing, however much it sends."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from gym_gui.services.trainer.auth import PUBLISHING, SESSION_TOKEN_KEY
from gym_gui.services.trainer.local_daemon import running_record
from gym_gui.testing import RunningDaemon

CONNECTIONS, MESSAGE_BYTES, MEGABYTE = 40, 15 << 20, 1 << 20
MOST_GROWTH_BYTES = 64 * MEGABYTE
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
METHODS = ("SubmitRun", "RegisterWorker", *PUBLISHING, "ImportRun")


def memory_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def flood(daemon: RunningDaemon, method: str, *metadata: tuple[str, str], connections: int = CONNECTIONS) -> None:
    record = running_record(daemon.home)
    assert record is not None
    channels = [grpc.insecure_channel(record.tcp, options=OPTIONS) for _ in range(connections)]
    message = bytes(MESSAGE_BYTES)
    calls = [
        channel.unary_unary(f"/gymgui.trainer.TrainerService/{method}").future(message, metadata=metadata, timeout=60)
        for channel in channels
    ]
    assert {call.code() for call in calls} == {grpc.StatusCode.UNAUTHENTICATED}
    for channel in channels:
        channel.close()


@pytest.fixture
def daemon(make_daemon) -> RunningDaemon:
    return make_daemon(listen="127.0.0.1")


def test_messages_without_a_token_are_not_read(daemon: RunningDaemon) -> None:
    before = memory_of(daemon.pid)
    for method, metadata in (("SubmitRun", ()), ("Heartbeat", ((SESSION_TOKEN_KEY, "0" * 64),))):
        flood(daemon, method, *metadata)
    assert memory_of(daemon.pid) - before < MOST_GROWTH_BYTES
    assert daemon.client.health().pid == daemon.pid


@pytest.mark.fault
def test_no_method_reads_a_message_before_the_token_was_seen_however_often(daemon: RunningDaemon) -> None:
    flood(daemon, "GetHealth")
    before = memory_of(daemon.pid)
    for _ in range(5):
        for method in METHODS:
            flood(daemon, method)
            flood(daemon, method, ("authorization", "Bearer wrong"), (SESSION_TOKEN_KEY, "wrong"))
    assert memory_of(daemon.pid) - before < MOST_GROWTH_BYTES
    assert daemon.wait_for(daemon.submit(timesteps=5).run_id).outcome == "completed"
