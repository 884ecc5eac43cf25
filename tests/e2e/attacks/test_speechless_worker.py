"""A worker that never answers `--describe` keeps its own submissions waiting, however many, and no other worker's."""

from __future__ import annotations

import json
import sys
import threading

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import TrainerError
from gym_gui.testing import RunningDaemon, random_config
from mosaic_wire.testing import wait_until

SPEECHLESS = "import pathlib, time; pathlib.Path(__file__).with_name('asked').touch(); time.sleep(3600)"
IMPATIENT = """
import sys
from gym_gui.services.trainer import catalog, daemon
catalog.WorkerCatalog.__init__.__kwdefaults__["describe_timeout_s"] = 15.0
sys.exit(daemon.main([]))
"""
WAITING = 12
"""More than the threads of any pool of the daemon"""


def test_other_runs_are_submitted_started_and_cancelled_meanwhile(make_daemon) -> None:
    daemon: RunningDaemon = make_daemon(script=IMPATIENT)
    folder = daemon.home.workers / "speechless"
    folder.mkdir(parents=True)
    (folder / "worker.py").write_text(SPEECHLESS)
    argv = [sys.executable, "-S", str(folder / "worker.py")]
    (folder / "worker.json").write_text(json.dumps({"name": "speechless", "argv": argv}))
    config = random_config()
    config["metadata"]["worker"]["type"] = "speechless"
    answers: list[str] = []

    def submit() -> None:
        with TrainerClient.connect(daemon.home, timeout_s=120) as client:
            try:
                client.submit(config)
            except TrainerError as error:
                answers.append(str(error))

    threads = [threading.Thread(target=submit) for _ in range(WAITING)]
    for thread in threads:
        thread.start()
    assert wait_until((folder / "asked").exists, timeout_s=60)
    assert daemon.wait_for(daemon.submit(timesteps=3).run_id).outcome == "completed"
    going = daemon.wait_for(daemon.submit(timesteps=1_000_000, steps_per_second=20).run_id, "EXEC").run_id
    daemon.client.cancel(going)
    assert daemon.wait_for(going).outcome == "cancelled"
    assert answers == []  # all of that while they wait
    for thread in threads:
        thread.join()
    assert len(answers) == WAITING
    assert all("gave no answer within 15 s" in answer for answer in answers)
