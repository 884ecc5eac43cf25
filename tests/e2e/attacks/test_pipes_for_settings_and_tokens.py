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


def mosaic(*words: str | Path) -> tuple[int, str]:
    ended = subprocess.run([sys.executable, "-m", "gym_gui", *words], capture_output=True, text=True, timeout=60)
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


@pytest.mark.parametrize("option", ["--token-file", "--tls-ca"])
def test_a_client_says_what_it_was_given(tmp_path: Path, option: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "token").write_text("0" * 64)
    given = ["--token-file", tmp_path / "token"] if option == "--tls-ca" else []
    for file in (tmp_path / "pipe", Path("/dev/zero")):
        code, said = mosaic(*REMOTE, *given, option, file, "runs")
        assert (code in (1, 2), NO_FILE in said, str(file) in said) == (True, True, True), said
