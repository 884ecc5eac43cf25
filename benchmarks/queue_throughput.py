"""Many one-second runs on two slots, against the same commands started bare, two at a time (wall-clock)."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gym_gui.testing import RunningDaemon, random_config
from measure import print_table, temporary_home
from mosaic_wire.ids import new_run_id
from mosaic_wire.run_request import worker_part
from mosaic_wire.testing import wait_until

SLOTS = 2
SLEEP_S = 1.0


def through_the_daemon(daemon: RunningDaemon, runs: int) -> float:
    config = json.dumps(random_config(timesteps=1, sleep_s=SLEEP_S, resources={"cpus": {"requested": 1}}))
    began = time.monotonic()
    for _ in range(runs):
        daemon.client.submit(config)
    wait_until(lambda: _finished(daemon) == runs, timeout_s=runs * 10, poll_s=1.0)
    elapsed = time.monotonic() - began
    completed = daemon.client.list(outcomes=["completed"], limit=1).matching
    if completed != runs:
        raise SystemExit(f"only {completed} of {runs} runs completed")
    return elapsed


def _finished(daemon: RunningDaemon) -> int:
    return daemon.client.list(statuses=["TERM"], limit=1).matching


def bare(folder: Path, daemon: RunningDaemon, runs: int) -> float:
    """Return the floor: the same commands, two at a time, without a viewer."""
    config = worker_part(random_config(timesteps=1, sleep_s=SLEEP_S))
    path = folder / "worker.json"
    path.write_text(json.dumps(config))

    def start(_: int) -> None:
        argv = [sys.executable, "-m", "random_worker.cli", "--config", str(path), "--run-id", new_run_id()]
        subprocess.run(argv, env=daemon.variables, stdout=subprocess.DEVNULL, check=True)

    began = time.monotonic()
    with ThreadPoolExecutor(SLOTS) as pool:
        list(pool.map(start, range(runs)))
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000)
    arguments = parser.parse_args()
    settings = {"cpus": SLOTS}
    with temporary_home() as (home, config_home), RunningDaemon(home, config_home, settings=settings) as daemon:
        floor = bare(config_home, daemon, arguments.runs)
        ours = through_the_daemon(daemon, arguments.runs)
    print_table(
        f"{arguments.runs} runs of {SLEEP_S:g} s on {SLOTS} slots (seconds)",
        [
            ("through the daemon", f"{ours:8.1f}"),
            ("bare, two at a time", f"{floor:8.1f}"),
            ("ratio", f"{ours / floor:8.3f}  (to reach: 1.150)"),
        ],
    )


if __name__ == "__main__":
    main()
