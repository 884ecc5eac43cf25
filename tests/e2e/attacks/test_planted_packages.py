"""Commands that start Python in a folder of another user import nothing that lies there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gym_gui.services.analytics.web_servers import has_package
from gym_gui.testing import RunningDaemon
from mosaic_wire import env


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Packages in the working folder that report when they are imported."""
    for package in ("cleanrl_worker", "mosaic_planted"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('PLANTED')")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_worker_in_the_working_folder_is_not_run(shared_daemon: RunningDaemon, planted: Path) -> None:
    home, config = str(shared_daemon.home.root), str(shared_daemon.config_home)
    argv = [str(Path(sys.executable).with_name("mosaic")), "extras", "list"]
    environment = {**os.environ, env.MOSAIC_HOME: home, env.MOSAIC_CONFIG_HOME: config}
    done = subprocess.run(argv, cwd=planted, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "atari" in done.stdout


@pytest.mark.usefixtures("planted")
def test_a_package_in_the_working_folder_is_not_found() -> None:
    assert not has_package(sys.executable, "mosaic_planted")
