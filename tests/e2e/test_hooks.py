"""What the settings request at the end of a run: a command, a webhook. A failing one is reported and harmless."""

from __future__ import annotations

import base64
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, install_scripted_worker, scripted_config
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.testing import wait_until

KEEP = """
import json, os, sys
from pathlib import Path
folder = Path(sys.argv[1])
name = folder / os.environ["MOSAIC_RUN_ID"]
told = {"outcome": os.environ["MOSAIC_OUTCOME"], "message": json.load(sys.stdin), "arguments": sys.argv[2:]}
name.with_suffix(".tmp").write_text(json.dumps(told))
name.with_suffix(".tmp").rename(name)
"""


IMPATIENT = """
import logging, sys
from gym_gui.services.trainer import daemon, hooks
hooks._TIMEOUT_S = 2.0
sys.exit(daemon.main([]))
"""
"""A daemon that waits for its hooks for two seconds instead of thirty"""


@pytest.fixture
def reported(tmp_path: Path) -> Path:
    folder = tmp_path / "told"
    folder.mkdir()
    return folder


def heard(folder: Path, run_id: str) -> dict:
    assert wait_until((folder / run_id).exists)
    return json.loads((folder / run_id).read_text())


@pytest.fixture
def keeper(tmp_path: Path, reported: Path) -> list[str]:
    """A command that records its input."""
    script = tmp_path / "keep it.py"
    script.write_text(KEEP)
    return [sys.executable, str(script), str(reported), "$HOME; touch x"]


class Listener(ThreadingHTTPServer):
    """A web server that remembers what it was sent and answers with the status it is set to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posted: list[dict] = []
        self.logins: list[str | None] = []
        self.status = 200

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/runs?secret=x"


class _Handler(BaseHTTPRequestHandler):
    server: Listener

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Type"] == "application/json":
            self.server.posted.append(json.loads(body))
            self.server.logins.append(self.headers["Authorization"])
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def wait_for_kind(daemon: RunningDaemon, run_id: str, kind: str) -> str:
    """The reason of the story's event of this kind, once it is there."""
    found: list[str] = []

    def is_there() -> bool:
        found[:] = [event.reason for event in daemon.client.history(run_id) if event.kind == kind]
        return bool(found)

    assert wait_until(is_there, timeout_s=40), daemon.event_kinds(run_id)
    return found[0]


def test_command_and_webhook_hear_of_every_end(make_daemon, keeper, reported: Path, listener: Listener) -> None:
    daemon = make_daemon(on_end_command=keeper, on_end_webhook=listener.address)
    completed = daemon.submit(timesteps=10).run_id
    failed = daemon.submit(timesteps=10, fail_at_step=5).run_id
    install_scripted_worker(daemon.home, "gone", "")
    file = daemon.home.workers / "gone" / "worker.json"
    program = file.with_name("program")
    program.write_text("#!/nowhere/python\n")
    program.chmod(0o700)
    write_json_atomically(file, {**read_json_object(file), "argv": [str(program)]})
    impossible = daemon.client.submit(scripted_config("gone")).run.run_id
    cancelled = daemon.wait_for(daemon.submit(timesteps=10**6, steps_per_second=50).run_id, "EXEC").run_id
    daemon.client.cancel(cancelled)
    outcomes = {completed: "completed", failed: "failed", impossible: "failed", cancelled: "cancelled"}
    for run_id, outcome in outcomes.items():
        run = daemon.wait_for(run_id)
        message = heard(reported, run_id)
        assert message["outcome"] == run.outcome == outcome
        assert message["arguments"] == ["$HOME; touch x"]  # no shell has seen it
        assert message["message"]["run_id"] == run_id
        assert message["message"]["outcome"] == outcome
        assert message["message"]["reason"] == run.reason
        assert message["message"]["name"] == "random walk"
    assert heard(reported, completed)["message"]["step"] == 10
    assert "fail_at_step asked for an error" in heard(reported, failed)["message"]["reason"]
    assert wait_until(lambda: len(listener.posted) == 4)
    assert {post["run_id"]: post["outcome"] for post in listener.posted} == outcomes
    assert all("hook_failed" not in daemon.event_kinds(run_id) for run_id in outcomes)
    # A restart does not report an old end again.
    daemon.restart()
    daemon.wait_for(daemon.submit(timesteps=3).run_id)
    assert wait_until(lambda: len(listener.posted) == 5)


@pytest.mark.parametrize("status", [500, 302])  # following a redirect would lose the message: it becomes a GET
def test_hooks_that_fail_are_reported_in_the_history_and_hurt_nothing(
    make_daemon, listener: Listener, status: int
) -> None:
    listener.status = status
    daemon = make_daemon(on_end_command=["/nowhere/to/be/found"], on_end_webhook=listener.address)
    run = daemon.wait_for(daemon.submit(timesteps=10).run_id)
    reason = wait_for_kind(daemon, run.run_id, "hook_failed")
    assert "on_end_command '/nowhere/to/be/found' could not be started" in reason
    assert f"on_end_webhook failed: HTTP Error {status}" in reason
    assert "secret=x" not in reason
    assert daemon.client.get(run.run_id).outcome == "completed"
    assert daemon.wait_for(daemon.submit(timesteps=10).run_id).outcome == "completed"


def test_an_unanswered_webhook_and_a_command_that_complains(make_daemon, listener: Listener) -> None:
    address = listener.address
    listener.server_close()
    command = [sys.executable, "-S", "-c", "raise SystemExit(3)"]
    daemon = make_daemon(on_end_command=command, on_end_webhook=address)
    run = daemon.wait_for(daemon.submit(timesteps=10).run_id)
    reason = wait_for_kind(daemon, run.run_id, "hook_failed")
    assert "exited with code 3" in reason
    assert "on_end_webhook failed" in reason
    assert daemon.client.get(run.run_id).outcome == "completed"


def test_a_command_that_does_not_end_holds_up_no_other_run_and_is_ended_with_its_children(
    make_daemon, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    hang = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(3600)'])\n"
        f"print(os.getpid(), child.pid, file=open({str(pids)!r}, 'a'), flush=True)\n"
        "time.sleep(3600)\n"
    )
    script = tmp_path / "hang.py"
    script.write_text(hang)
    daemon = make_daemon(on_end_command=[sys.executable, "-S", str(script)], script=IMPATIENT)
    first = daemon.wait_for(daemon.submit(timesteps=3).run_id)
    second = daemon.wait_for(daemon.submit(timesteps=3).run_id)
    assert {first.outcome, second.outcome} == {"completed"}
    for run in (first, second):
        assert "took longer than 2 s and was ended" in wait_for_kind(daemon, run.run_id, "hook_failed")
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 4
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


def test_the_password_of_a_webhook_reaches_only_the_server(make_daemon, listener: Listener) -> None:
    daemon = make_daemon(on_end_webhook=listener.address.replace("://", "://me:s3same%21@"))
    listener.status = 500
    run_id = daemon.submit(timesteps=3).run_id
    reason = wait_for_kind(daemon, run_id, "hook_failed")
    assert listener.logins == [f"Basic {base64.b64encode(b'me:s3same!').decode()}"]
    assert "500" in reason
    assert not [text for text in (reason, daemon.log()) if "s3same" in text]
