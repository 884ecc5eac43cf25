"""`mosaic gui` as a process: what it starts, what its end leaves, and what its death does not touch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.local_daemon import running_record, stop_process
from gym_gui.testing import WindowProcess, random_config
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until


@pytest.fixture
def opened(home: Home, tmp_path: Path) -> Iterator[WindowProcess]:
    """A window over an empty home: it starts a daemon."""
    (tmp_path / "config" / "settings.toml").write_text("port = 0\nmin_free_disk_mb = 0\n")
    window = WindowProcess(tmp_path / "qt", "--theme", "dark", variables=os.environ)
    window.open()
    yield window
    window.end(signal.SIGKILL)
    if (record := running_record(home)) is not None:
        assert stop_process(record, timeout_s=60)


def client_of(window: WindowProcess, home: Home) -> TrainerClient:
    assert wait_until(lambda: running_record(home) is not None or not window.is_open, timeout_s=120)
    assert window.is_open, window.stderr()
    return TrainerClient.connect(home, timeout_s=30)


def test_an_orderly_end_keeps_the_layout_and_stops_nothing(opened: WindowProcess, home: Home) -> None:
    client_of(opened, home).close()
    assert opened.end() == 0, opened.stderr()
    assert "Traceback" not in opened.stderr()
    assert running_record(home) is not None, "the daemon goes on"
    assert home.root.stat().st_mode & 0o077 == 0, "the home is private"
    assert list(opened.folder.rglob("mosaic*")), "the layout is kept"
    assert not list(home.root.rglob("window-faults*")), "nothing to report after an orderly end"


def test_no_class_of_qt_is_left_for_a_thread_to_create(home: Home) -> None:
    code = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from PySide6 import QtCore, QtGui, QtWidgets\n"
        "from gym_gui import app\n"
        "from mosaic_wire.paths import Home\n"
        "from gym_gui.ui.background import Background\n"
        "from gym_gui.ui.daemon_link import DaemonLink\n"
        "from gym_gui.ui.shell.daemon_banner import LocalConnector\n"
        "def load(name):\n"
        "    left = [n for each in (QtCore, QtGui, QtWidgets) for n in dir(each) if n not in vars(each)]\n"
        "    print(name, threading.current_thread() is threading.main_thread(), left)\n"
        "app.MODULES, app._load = ('first',), load\n"
        "application = QtWidgets.QApplication(sys.argv[:1])\n"
        "background = Background()\n"
        "link = DaemonLink(LocalConnector(Home(Path(sys.argv[1]))), background)\n"
        "warm_up = app.WarmUp(link, background)\n"
        "warm_up.finished.connect(application.quit)\n"
        "link.runs_loaded.emit([])\n"
        "application.exec()\n"
        "background.close()\n"
    )
    variables = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    done = subprocess.run(
        [sys.executable, "-c", code, home.root], capture_output=True, text=True, timeout=120, check=False, env=variables
    )
    assert (done.stdout, done.stderr) == ("first False []\n", "")


def test_a_window_that_is_killed_takes_no_run_along(opened: WindowProcess, home: Home) -> None:
    with client_of(opened, home) as client:
        run_id = client.submit(random_config(timesteps=40, steps_per_second=20)).run.run_id
        assert wait_until(lambda: client.get(run_id).status == "EXEC", timeout_s=120)
        opened.end(signal.SIGKILL)
        assert wait_until(lambda: client.get(run_id).status == "TERM", timeout_s=120)
        assert client.get(run_id).outcome == "completed"
