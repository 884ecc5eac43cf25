"""A sweep of one-second trials on two slots, against the same runs queued straight into the daemon (wall-clock)."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import suppress
from typing import Any

from gym_gui.testing import RunningDaemon, random_config
from measure import cpu_of, print_table, temporary_home
from mosaic_wire.run_request import worker_part
from mosaic_wire.testing import wait_until

SLOTS = 2
TRIAL = {"timesteps": 100, "sleep_s": 1.0, "resources": {"cpus": {"requested": 1}}}
RANGES = {"exit_code": {"kind": "int", "low": 0, "high": 255}, "kill_signal": {"kind": "int", "low": 1, "high": 31}}
"""Parameters that cost nothing: they say how a worker would die if it were to"""


def straight(daemon: RunningDaemon, runs: int) -> float:
    """Return the floor: all of them in the queue at once."""
    before = daemon.client.list(outcomes=["completed"], limit=1).matching
    config = json.dumps(random_config(**TRIAL))
    began = time.monotonic()
    for _ in range(runs):
        daemon.client.submit(config)
    wait_until(lambda: not _unfinished(daemon), timeout_s=runs * 10, poll_s=0.5)
    elapsed = time.monotonic() - began
    completed = daemon.client.list(outcomes=["completed"], limit=1).matching - before
    if completed != runs:
        raise SystemExit(f"only {completed} of {runs} runs completed")
    return elapsed


def _unfinished(daemon: RunningDaemon) -> int:
    return daemon.client.list(statuses=["INIT", "HSHK", "RDY", "EXEC", "FAULT"], limit=1).matching


def swept(daemon: RunningDaemon, trials: int, sampler: str) -> tuple[float, float]:
    """Seconds from the submission of the sweep to its end, and CPU seconds of its controller."""
    trial = random_config(**TRIAL)
    worker_part(trial).pop("seed")
    settings: dict[str, Any] = {"parameters": RANGES, "trial": trial, "parallel": SLOTS, "sampler": sampler}
    config = {
        "algo": "sweep",
        "env_id": "none",
        "total_timesteps": trials,
        "seed": 1,
        "extras": {"algo_params": settings},
    }
    began = time.monotonic()
    run_id = daemon.client.submit({"metadata": {"worker": {"type": "sweep", "config": config}}}).run.run_id
    used = 0.0
    while (run := daemon.client.get(run_id)).status != "TERM":
        if run.pid:
            with suppress(OSError):  # it ended just now
                used = cpu_of(run.pid)
        time.sleep(0.5)
    elapsed = time.monotonic() - began
    completed = daemon.client.list(submitted_by=run_id, outcomes=["completed"], limit=1).matching
    if run.outcome != "completed" or completed != trials:
        raise SystemExit(f"the sweep {run.outcome} with {completed} of {trials} runs: {run.reason}")
    return elapsed, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--sampler", default="tpe")
    arguments = parser.parse_args()
    settings = {"cpus": SLOTS}
    with temporary_home() as (home, config_home), RunningDaemon(home, config_home, settings=settings) as daemon:
        # Half of the floor before, half after: what drifts on the machine hits both alike.
        half = arguments.trials // 2
        floor = straight(daemon, half)
        ours, used = swept(daemon, arguments.trials, arguments.sampler)
        floor += straight(daemon, arguments.trials - half)
    print_table(
        f"a sweep of {arguments.trials} trials of 1 s on {SLOTS} slots, sampler {arguments.sampler} (seconds)",
        [
            ("the sweep", f"{ours:8.1f}"),
            ("the same runs, queued at once", f"{floor:8.1f}"),
            ("ratio", f"{ours / floor:8.3f}  (to reach: 1.150)"),
            ("CPU of its controller", f"{used:8.1f}"),
        ],
    )


if __name__ == "__main__":
    main()
