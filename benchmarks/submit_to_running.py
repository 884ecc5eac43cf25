"""From submission to a training worker: how much CPU the daemon adds to a bare start of the same worker."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from gym_gui.testing import RunningDaemon, random_config
from measure import alternate, cpu_of, fill_registry, print_table, temporary_home
from mosaic_wire.ids import new_run_id
from mosaic_wire.run_request import worker_part


def through_the_daemon(daemon: RunningDaemon) -> float:
    """CPU of the daemon from the submission until the run trains, plus the worker's own until then."""
    before = cpu_of(daemon.pid)
    with daemon.client.watch() as updates:
        run_id = daemon.submit(timesteps=1_000_000, steps_per_second=1).run_id
        for update in updates:
            if update.run.run_id == run_id and update.run.status == "EXEC":
                spent = cpu_of(daemon.pid) - before + cpu_of(update.run.pid)
                break
    daemon.client.cancel(run_id)
    daemon.wait_for(run_id)
    return spent


def bare(folder: Path, daemon: RunningDaemon) -> float:
    """CPU of the same worker started by hand, until it says that it trains."""
    run_id = new_run_id()
    config = worker_part(random_config(timesteps=1_000_000, steps_per_second=1))
    path = folder / f"{run_id}.json"
    path.write_text(json.dumps({**config, "run_id": run_id}))
    worker = subprocess.Popen(
        [sys.executable, "-m", "random_worker.cli", "--config", str(path), "--run-id", run_id],
        stdout=subprocess.PIPE,
        env=daemon.variables,
    )
    assert worker.stdout is not None
    with worker:
        while b"run_started" not in worker.stdout.readline():
            pass
        spent = cpu_of(worker.pid)
        worker.kill()
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--finished", type=int, default=1_000, help="finished runs in the registry")
    arguments = parser.parse_args()
    with temporary_home() as (home, config_home):
        fill_registry(home, arguments.finished)
        with RunningDaemon(home, config_home) as daemon:
            through_the_daemon(daemon)  # the first submission describes the worker and fills caches
            ours, peer = alternate(
                lambda: through_the_daemon(daemon), lambda: bare(config_home, daemon), pairs=arguments.pairs
            )
    print_table(
        f"submit → training, {arguments.finished} finished runs in the registry (CPU seconds)",
        [
            ("through the daemon (daemon + worker)", str(ours)),
            ("bare start of the worker", str(peer)),
            ("more", f"{ours.median - peer.median:8.3f}  (to reach: 0.250)"),
            ("ratio", f"{ours.median / peer.median:8.3f}"),
        ],
    )


if __name__ == "__main__":
    main()
