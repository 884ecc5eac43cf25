"""At the user's limit on processes the daemon lives on, says so, and runs wait or go on; none fails for it."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import NotPossibleNow
from gym_gui.testing import WARM_CACHE, RunningDaemon
from mosaic_wire.paths import Home

NOBODY = 65534
# Root has no such limit: the daemon becomes another user, who may still read where this interpreter lies.
BECOME = (
    [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        "--inh-caps=+dac_read_search",
        "--ambient-caps=+dac_read_search",
    ]
    if os.getuid() == 0
    else []
)
SCRIPT = f"""
import os, sys
command = [*{BECOME!r}, sys.executable, "-m", "gym_gui.services.trainer.daemon", "run"]
os.execvp(command[0], command)
"""
REACHED = "the limit on processes is reached"


@pytest.fixture
def daemon(home: Home, make_daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunningDaemon:
    monkeypatch.delenv(WARM_CACHE, raising=False)  # it would make the home root's
    if BECOME and subprocess.run([*BECOME, "true"], check=False).returncode:
        pytest.skip("this machine does not let root become another user")
    config = tmp_path / "config"
    for folder in (home.root, config):
        folder.mkdir(parents=True, exist_ok=True)
        if BECOME:
            os.chown(folder, NOBODY, NOBODY)
    (home.root / "logs").mkdir(exist_ok=True)
    if BECOME:
        os.chown(home.root / "logs", NOBODY, NOBODY)
    return make_daemon(script=SCRIPT, environment={"HOME": str(home.root)})


def limit_processes(daemon: RunningDaemon, limit: str) -> None:
    subprocess.run([*BECOME, "prlimit", f"--nproc={limit}:", f"--pid={daemon.pid}"], check=True)


def test_at_the_limit_runs_wait_and_say_why_and_the_daemon_lives(daemon: RunningDaemon) -> None:
    _, hard = daemon_limit(daemon)
    going = daemon.submit(timesteps=1_000_000, steps_per_second=50).run_id
    daemon.wait_for(going, "EXEC")
    limit_processes(daemon, "1")
    waiting = daemon.submit(timesteps=5).run_id
    run = daemon.wait_for_run(waiting, lambda run: REACHED in run.queue_reason)
    assert (run.status, run.attempt) == ("INIT", 1)
    with ThreadPoolExecutor(16) as pool:  # more clients at once than it has threads
        assert set(pool.map(lambda _: ask(daemon.home), range(64))) == {2}
    before = daemon.client.get(going).step
    daemon.wait_for_run(going, lambda run: run.step > before)
    limit_processes(daemon, hard)
    assert daemon.wait_for(waiting).outcome == "completed"
    assert daemon.client.get(going).status == "EXEC"
    assert daemon.client.health().pid == daemon.pid


def test_a_worker_that_cannot_be_asked_at_the_limit_is_no_broken_worker(daemon: RunningDaemon) -> None:
    _, hard = daemon_limit(daemon)
    limit_processes(daemon, "1")
    with pytest.raises(NotPossibleNow, match=REACHED):
        daemon.submit(timesteps=5)
    limit_processes(daemon, hard)
    assert daemon.wait_for(daemon.submit(timesteps=5).run_id).outcome == "completed"


def daemon_limit(daemon: RunningDaemon) -> tuple[str, str]:
    lines = Path(f"/proc/{daemon.pid}/limits").read_text().splitlines()
    soft, hard = next(line for line in lines if line.startswith("Max processes")).split()[2:4]
    return soft, hard


def ask(home: Home) -> int:
    with TrainerClient.connect(home, timeout_s=30) as client:
        return len(client.list().runs)
