"""Nothing that an archive, a worker or an environment says steers the terminal or passes for a row of our own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pty
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon, random_config
from mosaic_wire.ids import new_run_id

EVIL = "\x1b]0;title\x07\x1b[2J\x1b[35m\x9b1m\u202etxt\rover\nFORGED  row"
MARKS = ("\x1b]", "\x1b[2J", "\x1b[35m", "\x9b", "\u202e", "\nFORGED", "\r\rover")
NOTED = "first line\n\tsecond, naïve 世界 👩\u200d🚀"


def mosaic(daemon: RunningDaemon, *message: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command, variables = [sys.executable, "-m", "gym_gui", *message], {**daemon.variables, **variables}
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, errors="replace", timeout=120, check=False
    )


def on_terminal(daemon: RunningDaemon, *message: str) -> str:
    """What a terminal receives from the command."""
    ours, theirs = pty.openpty()
    variables = {**daemon.variables, "TERM": "xterm-256color", "COLUMNS": "400"}
    command = [sys.executable, "-m", "gym_gui", *message]
    process = subprocess.Popen(command, env=variables, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    received = b""
    try:
        while data := os.read(ours, 1 << 16):
            received += data
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert process.wait(60) in (0, 1), received
    return received.decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def run_id(shared_daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run from an archive that was made with care."""
    done = shared_daemon.submit(timesteps=20)
    shared_daemon.wait_for(done.run_id, "TERM")
    data, foreign = b"".join(chunk.data for chunk in shared_daemon.client.export(done.run_id)), new_run_id()
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]
    del members["manifest.json"]
    members = {name: data.replace(done.run_id.encode(), foreign.encode()) for name, data in members.items()}
    run = json.loads(members["run.json"])
    run |= dict.fromkeys(("name", "algo", "env_id", "reason"), EVIL) | {"tags": [EVIL], "outcome": "failed"}
    run |= {"notes": NOTED, "extras": {EVIL: EVIL}, "result": {"evaluation": {}, EVIL: EVIL}}
    members["run.json"] = json.dumps(run).encode()
    reported = [json.loads(line) for line in members["story.jsonl"].splitlines()]
    members["story.jsonl"] = b"".join(json.dumps({**event, "reason": EVIL}).encode() + b"\n" for event in reported)
    hashes = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in members.items()}
    members["manifest.json"] = json.dumps({"format": 1, "run_id": foreign, "members": hashes}).encode()
    archive = tmp_path_factory.mktemp("archive") / "evil.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, data in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    shown = on_terminal(shared_daemon, "import", str(archive))
    assert_clean(shown)
    return foreign


def assert_clean(shown: str) -> None:
    for mark in MARKS:
        assert mark not in shown, repr(shown)


@pytest.mark.parametrize("command", ["runs", "show", "story", "compare", "watch", "tag"])
def test_an_imported_run_is_shown_without_its_escapes(shared_daemon: RunningDaemon, run_id: str, command: str) -> None:
    message = [command] if command == "runs" else [command, run_id]
    assert_clean(on_terminal(shared_daemon, *message))
    plain = mosaic(shared_daemon, *message)
    assert_clean(plain.stdout + plain.stderr)
    assert "\x1b" not in plain.stdout + plain.stderr


def test_what_a_person_wrote_is_shown_as_it_is_and_json_keeps_every_character(
    shared_daemon: RunningDaemon, run_id: str
) -> None:
    ended = mosaic(shared_daemon, "show", run_id)
    for line in NOTED.splitlines():
        assert line in ended.stdout
    ended = mosaic(shared_daemon, "show", run_id, "--json")
    assert ended.stdout.isascii() or not any(mark in ended.stdout for mark in ("\x9b", "\u202e"))
    (document,) = json.loads(ended.stdout)
    assert (document["name"], document["notes"]) == (EVIL, NOTED)


def test_a_terminal_that_is_not_unicode_gets_what_it_can_show(shared_daemon: RunningDaemon, run_id: str) -> None:
    for message in (["show", run_id], ["runs"], ["show", run_id, "--json"]):
        ended = mosaic(shared_daemon, *message, PYTHONIOENCODING="latin-1")
        assert (ended.returncode, ended.stderr) == (0, "")
    (document,) = json.loads(ended.stdout)
    assert document["notes"] == NOTED


def test_an_unknown_key_and_an_environment_that_fails_to_import_do_not_steer_the_terminal(
    shared_daemon: RunningDaemon, tmp_path: Path
) -> None:
    config = random_config()
    config["metadata"]["worker"]["config"][EVIL] = 1
    (tmp_path / "evil.json").write_text(json.dumps(config))
    (tmp_path / "evil_env.py").write_text(f"raise RuntimeError({EVIL!r})\n")
    for message in (["submit", str(tmp_path / "evil.json")], ["train", "ppo", "evil_env:Env"]):
        ended = mosaic(shared_daemon, *message, PYTHONPATH=str(tmp_path))
        assert ended.returncode == 2
        assert_clean(ended.stderr.replace("\nFORGED", ""))
        assert "\x1b" not in ended.stderr


def test_a_note_given_at_submission_holds_no_control_characters(shared_daemon: RunningDaemon, tmp_path: Path) -> None:
    config = random_config()
    config["metadata"]["worker"]["config"].setdefault("extras", {})["notes"] = "\x1b[2J"
    (tmp_path / "noted.json").write_text(json.dumps(config))
    ended = mosaic(shared_daemon, "submit", str(tmp_path / "noted.json"))
    assert (ended.returncode, "extras.notes" in ended.stderr) == (2, True)


def test_the_log_of_a_run_reaches_a_terminal_as_text_and_a_pipe_as_it_is(
    shared_daemon: RunningDaemon, run_id: str
) -> None:
    run = shared_daemon.client.get(run_id)
    log = Path(run.logs_dir) / "stderr.log"
    log.write_bytes(b"\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\n 10%\r 20%\n\xff\x00\n")
    shown = on_terminal(shared_daemon, "logs", run_id, "--stream", "stderr")
    assert "red\n 10%\r 20%\n" in shown
    assert_clean(shown)
    assert "\x1b" not in shown
    piped = subprocess.run(
        [sys.executable, "-m", "gym_gui", "logs", run_id, "--stream", "stderr"],
        env=shared_daemon.variables,
        capture_output=True,
        check=True,
    )
    assert piped.stdout == log.read_bytes()
