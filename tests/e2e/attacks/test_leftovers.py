"""Killed uploads and installers, also those that ignore SIGTERM, end with their run, their daemon or the next one."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, processes_of, random_config
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.testing import wait_until

# An installer that ignores SIGTERM, and so does what it has started.
WORKER = """
import json, signal, subprocess, sys, time
if "--prepare" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"], start_new_session=True)
    print(json.dumps({"phase": "fetching", "message": "fetching the world"}), flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def daemon(home: Home, make_daemon) -> RunningDaemon:
    program = home.workers / "stubborn" / "worker.py"
    program.parent.mkdir(parents=True)
    program.write_text(WORKER)
    from random_worker.cli import describe

    spec = {**describe().to_json(), "name": "stubborn", "argv": [sys.executable, str(program)], "prepares": True}
    program.with_name("worker.json").write_text(json.dumps(spec))
    return make_daemon()


def submit(daemon: RunningDaemon) -> str:
    config = random_config(timesteps=20, extras={"install_missing": True})
    config["metadata"]["worker"]["type"] = "stubborn"
    run_id = daemon.client.submit(config).run.run_id
    wait_for_installer(daemon, run_id)
    return run_id


def wait_for_installer(daemon: RunningDaemon, run_id: str) -> None:
    assert wait_until(lambda: "fetching" in daemon.client.get(run_id).queue_reason, timeout_s=60)
    assert wait_until(lambda: len(processes_of(run_id)) == 2, timeout_s=60)


def test_a_cancelled_or_deleted_run_leaves_no_installer(daemon: RunningDaemon) -> None:
    run_id = submit(daemon)
    assert "cancelling" in daemon.client.cancel(run_id, reason="enough").flags
    ended = daemon.wait_for(run_id)
    assert (ended.outcome, ended.reason) == ("cancelled", "enough")
    assert processes_of(run_id) == []
    daemon.client.delete(run_id)


def test_a_stopped_daemon_ends_its_installers_and_the_leftovers_of_a_killed_one_go_with_the_next(
    daemon: RunningDaemon,
) -> None:
    run_id = submit(daemon)
    assert daemon.stop() == 0
    assert processes_of(run_id) == []
    daemon.start()
    wait_for_installer(daemon, run_id)
    first = set(processes_of(run_id))
    upload = daemon.client._stub.ImportRun.future(half_an_archive(), metadata=daemon.client._metadata)
    assert wait_until(lambda: uploads(daemon), timeout_s=60)
    daemon.restart()
    assert upload.exception() is not None
    assert uploads(daemon) == []
    wait_for_installer(daemon, run_id)
    assert not first & set(processes_of(run_id))
    daemon.client.cancel(run_id)
    daemon.wait_for(run_id)
    assert processes_of(run_id) == []


def uploads(daemon: RunningDaemon) -> list[Path]:
    return list(daemon.home.trainer.glob("import-*.tar.gz"))


def half_an_archive() -> Iterator[pb.ArchiveChunk]:
    yield pb.ArchiveChunk(data=gzip.compress(b"x" * 4096)[:-8])  # what cannot be an archive is refused at once
    wait_until(lambda: False, timeout_s=3)
