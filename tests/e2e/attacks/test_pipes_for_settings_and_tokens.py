"""A pipe or device in the place of a file that is read at the start is refused in a sentence, never waited on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mosaic_wire import env
from mosaic_wire.paths import Home

NO_FILE = "it is a pipe, socket or device, not a plain file"
REMOTE = ["--connect", "192.0.2.1:1"]


def mosaic(*message: str | Path) -> tuple[int, str]:
    ended = subprocess.run([sys.executable, "-m", "gym_gui", *message], capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("place", ["settings", "token"])
def test_a_daemon_says_what_stands_there(home: Home, place: str) -> None:
    home.create()
    pipe = home.token if place == "token" else Path(os.environ[env.MOSAIC_CONFIG_HOME]) / "settings.toml"
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe, 0o600)
    code, said = mosaic("daemon", "start")
    assert code != 0
    assert str(pipe) in said
    assert NO_FILE in said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["trainer/start.lock", "logs/daemon.log", "trainer/trainer.lock"])
@pytest.mark.parametrize("is_read", [False, True])
def test_a_pipe_for_a_lock_or_a_log_is_named(home: Home, name: str, is_read: bool) -> None:
    home.create()
    os.mkfifo(home.root / name, 0o600)
    reader = os.open(home.root / name, os.O_RDONLY | os.O_NONBLOCK) if is_read else None
    code, said = mosaic("daemon", "start")
    if reader is not None:
        os.close(reader)
    assert (code, str(home.root / name) in said, "not a plain file" in said) == (1, True, True), said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["daemon.json", "token"])
def test_a_folder_for_the_daemons_record_or_token_is_named(home: Home, name: str) -> None:
    home.create()
    (home.trainer / name).mkdir()
    code, said = mosaic("daemon", "start")
    assert (code, str(home.trainer / name) in said, "is a folder" in said) == (1, True, True), said
    assert not [text for text in ("Traceback", "never awaited", "other users") if text in said], said


def test_a_home_that_is_none_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = mosaic("--home", "", "runs")
    assert (code, "--home names no folder" in said, list(tmp_path.iterdir())) == (2, True, [])
    code, said = mosaic("--home", "/dev/null", "runs")
    assert (code, "no trainer daemon runs for /dev/null" in said, "Errno" in said) == (1, True, False), said


@pytest.mark.parametrize("option", ["--token-file", "--tls-ca"])
def test_a_client_says_what_it_was_given(tmp_path: Path, option: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "token").write_text("0" * 64)
    given = ["--token-file", tmp_path / "token"] if option == "--tls-ca" else []
    for file in (tmp_path / "pipe", Path("/dev/zero")):
        code, said = mosaic(*REMOTE, *given, option, file, "runs")
        assert (code in (1, 2), NO_FILE in said, str(file) in said) == (True, True, True), said


def test_a_token_that_is_none_is_no_traceback(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, env.MOSAIC_DAEMON_TOKEN.encode(), b"\xff")
    code, said = mosaic("--connect", "127.0.0.1:1", "runs")
    assert (code, f"{env.MOSAIC_DAEMON_TOKEN} holds no token" in said, "Traceback" in said) == (2, True, False), said
    home.create()
    with home.token.open("wb") as stream:
        os.fchmod(stream.fileno(), 0o600)
        stream.truncate((64 << 20) + 1)
    code, said = mosaic("daemon", "start")
    assert (code, "holds no token" in said, "is larger than" in said, "Traceback" in said) == (1, True, True, False), (
        said
    )


def test_what_stands_in_the_place_of_the_telemetry_store_is_set_aside(make_daemon, home: Home) -> None:
    daemon = make_daemon(start=False)
    home.create()
    home.telemetry_database.parent.mkdir()
    os.mkfifo(home.telemetry_database)
    daemon.start()
    assert home.telemetry_database.is_file()
    assert "telemetry.sqlite is not a file: it was renamed to telemetry.sqlite.damaged-" in daemon.log()
