"""What is opened for the first time waits for nothing: each tab, workspace and dialog of a fresh window."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from gym_gui import app as warm_up
from gym_gui.testing import RunningDaemon

SCRIPT = Path(__file__).with_name("first_openings.py")


@pytest.mark.parametrize("name", warm_up.MODULES)
def test_what_is_loaded_before_it_is_needed_exists(name: str) -> None:
    """A name that was changed elsewhere would be passed over in silence."""
    assert find_spec(name) is not None


def test_nothing_is_waited_for_when_it_is_first_opened(window_daemon: RunningDaemon, tmp_path: Path) -> None:
    """No import, no file, no call in the window's thread: what is needed was loaded before, or comes from a thread."""
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 512}
    run = window_daemon.client.submit({"metadata": {"worker": {"type": "cleanrl", "config": config}}}).run
    assert window_daemon.wait_for(run.run_id, timeout_s=120).outcome == "completed"
    own = {"QT_QPA_PLATFORM": "offscreen", "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, str(SCRIPT), str(window_daemon.home.root), run.run_id]
    variables = {**window_daemon.variables, **own}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    reported: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    assert {"tab live", "tab replay", "workspace play", "settings of the daemon", "form train"} <= reported.keys()
    waited = {name: calls for name, calls in reported.items() if calls}
    assert not waited, json.dumps(waited, indent=1)
