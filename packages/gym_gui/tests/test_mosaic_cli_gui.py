"""`mosaic gui` and `python -m gym_gui`: when they open a window, and what they say when they cannot."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from gym_gui.__main__ import arguments_for_mosaic
from gym_gui.cli.app import mosaic


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([], ["gui"]),
        (["--connect", "server:1", "--token-file", "token"], ["gui", "--connect", "server:1", "--token-file", "token"]),
        (["--theme", "dark"], ["gui", "--theme", "dark"]),
        (["--home=/tmp/home"], ["gui", "--home=/tmp/home"]),
        (["runs", "--all"], ["runs", "--all"]),
        (["--home", "/tmp/home", "runs"], ["--home", "/tmp/home", "runs"]),
        (["--help"], ["--help"]),
        (["--version"], ["--version"]),
    ],
)
def test_options_alone_open_the_window_and_a_command_is_mosaic(given, meant) -> None:
    assert arguments_for_mosaic(given) == meant


def test_without_qt_it_says_how_to_install_it(monkeypatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "PySide6" else find_spec(name))
    answer = CliRunner().invoke(mosaic, ["gui"])
    assert answer.exit_code == 1
    assert "pip install -r requirements/gui.txt" in answer.output


def test_without_a_screen_it_reports_it(monkeypatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    answer = CliRunner().invoke(mosaic, ["gui"])
    assert answer.exit_code == 1
    assert "no screen" in answer.output


def test_a_daemon_far_away_needs_its_token_and_its_certificate(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
    answer = CliRunner().invoke(mosaic, ["--connect", "server:50055", "gui"])
    assert answer.exit_code == 2
    assert "token" in answer.output
    (tmp_path / "token").write_text("0" * 64)
    command = [sys.executable, "-m", "gym_gui", "--connect", "server:50055", "--token-file", str(tmp_path / "token")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=60, check=False)
    assert done.returncode == 1
    assert "--tls-ca" in done.stderr


def test_no_other_command_loads_qt() -> None:
    script = (
        "import sys\nfrom gym_gui.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('PySide6', 'pyqtgraph')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "[]"
