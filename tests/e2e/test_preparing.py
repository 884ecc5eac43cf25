"""A run that asks for it waits in INIT while its worker prepares what it lacks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, random_config
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

# The reference worker with a `--prepare` of its own: it takes as long as a file is missing, and fails on request.
WORKER = """
import json, pathlib, sys, time
folder = pathlib.Path(__file__).parent
if "--prepare" in sys.argv:
    print("noise that is not JSON", flush=True)
    print(json.dumps({"phase": "fetching", "message": "fetching the world"}), flush=True)
    while not (folder / "go").exists():
        time.sleep(0.05)
    if (folder / "fail").exists():
        print(json.dumps({"phase": "failed", "message": "the world is sold out"}), flush=True)
        sys.exit(1)
    print(json.dumps({"phase": "ready", "message": "the world is here"}), flush=True)
    sys.exit(0)
from random_worker.cli import main
sys.exit(main())
"""


@pytest.fixture
def daemon(home: Home, tmp_path: Path) -> Iterator[RunningDaemon]:
    folder = home.workers / "careful"
    folder.mkdir(parents=True)
    program = folder / "worker.py"
    program.write_text(WORKER)
    from random_worker.cli import describe

    spec = {**describe().to_json(), "name": "careful", "argv": [sys.executable, str(program)], "prepares": True}
    (folder / "worker.json").write_text(json.dumps(spec))
    with RunningDaemon(home, tmp_path / "config", settings={"heartbeat_s": 0.3, "grace_s": 2}) as running:
        yield running


def submit(daemon: RunningDaemon) -> str:
    config = random_config(timesteps=20, extras={"install_missing": True})
    config["metadata"]["worker"]["type"] = "careful"
    run = daemon.client.submit(config).run
    assert wait_until(lambda: "fetching the world" in daemon.client.get(run.run_id).queue_reason)
    assert daemon.client.get(run.run_id).status == "INIT"
    return run.run_id


def allow(daemon: RunningDaemon, *, fail: bool = False) -> None:
    folder = daemon.home.workers / "careful"
    if fail:
        (folder / "fail").touch()
    (folder / "go").touch()


def test_it_starts_once_its_environment_is_ready_and_the_history_tells(daemon: RunningDaemon) -> None:
    run_id = submit(daemon)
    allow(daemon)
    assert daemon.wait_for(run_id).outcome == "completed"
    events = [(event.kind, event.reason) for event in daemon.client.history(run_id)]
    assert ("preparing", "fetching the world") in events
    kinds = [kind for kind, _ in events]
    assert kinds.index("prepared") < kinds.index("dispatched")


def test_it_fails_with_the_reason_when_that_cannot_be_done(daemon: RunningDaemon) -> None:
    run_id = submit(daemon)
    allow(daemon, fail=True)
    run = daemon.wait_for(run_id)
    assert run.outcome == "failed"
    assert "could not be prepared: the world is sold out" in run.reason


def test_a_restarted_daemon_prepares_anew(daemon: RunningDaemon) -> None:
    run_id = submit(daemon)
    daemon.stop()
    daemon.start()
    assert wait_until(lambda: "fetching" in daemon.client.get(run_id).queue_reason)
    allow(daemon)
    assert daemon.wait_for(run_id).outcome == "completed"


def test_it_can_be_cancelled_meanwhile(daemon: RunningDaemon) -> None:
    run_id = submit(daemon)
    daemon.client.cancel(run_id)
    assert daemon.wait_for(run_id).outcome == "cancelled"
    allow(daemon)
    assert daemon.client.get(run_id).status == "TERM"
