"""What is opened for the first time opens at once: each tab, workspace and dialog of a fresh window."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from gym_gui.testing import RunningDaemon
from gym_gui.ui import warm_up

SCRIPT = Path(__file__).with_name("first_openings.py")
LIMIT_MS = 50.0
LIMITS_MS = {"form train": 100.0, "form clone": 100.0}
"""What still takes longer: a form of a hundred fields is made in one piece (55 to 70 ms)"""
TRIES = 3
"""CPU of a machine that others use, too, is dearer than it need be: what an opening costs is the least of so many"""


@pytest.mark.parametrize("name", warm_up.MODULES)
def test_what_is_loaded_before_it_is_needed_exists(name: str) -> None:
    """A name that was changed elsewhere would be passed over in silence."""
    assert find_spec(name) is not None


def open_everything(daemon: RunningDaemon, run_id: str, settings: Path) -> dict[str, tuple[float, str]]:
    own = {"QT_QPA_PLATFORM": "offscreen", "XDG_CONFIG_HOME": str(settings)}
    command = [sys.executable, str(SCRIPT), str(daemon.home.root), run_id]
    variables = {**daemon.variables, **own}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    told: dict[str, tuple[float, str]] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_nothing_holds_the_window_up_when_it_is_first_opened(window_daemon: RunningDaemon, tmp_path: Path) -> None:
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 1_024}
    run = window_daemon.client.submit({"metadata": {"worker": {"type": "cleanrl", "config": config}}}).run
    assert window_daemon.wait_for(run.run_id, timeout_s=120).outcome == "completed"
    too_long: dict[str, str] | None = None
    for number in range(TRIES):
        told = open_everything(window_daemon, run.run_id, tmp_path / str(number))
        assert {"tab live", "tab replay", "workspace play", "settings of the daemon", "form train"} <= told.keys()
        long = {name: report for name, (ms, report) in told.items() if ms > LIMITS_MS.get(name, LIMIT_MS)}
        too_long = {name: report for name, report in long.items() if too_long is None or name in too_long}
        if not too_long:
            break
    assert not too_long, "\n".join(f"{name}: {report}" for name, report in too_long.items())
