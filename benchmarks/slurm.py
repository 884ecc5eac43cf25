"""Runs on Slurm: what the daemon adds to the engine's own time, a cancel, and many short runs against plain sbatch."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from gym_gui.testing import RunningDaemon, random_config
from gym_gui.testing_slurm import SlurmCluster, why_no_slurm
from measure import print_table, temporary_home
from mosaic_wire.ids import new_run_id
from mosaic_wire.run_request import worker_part
from mosaic_wire.testing import wait_until

ENDLESS: dict[str, Any] = {"timesteps": 1_000_000, "steps_per_second": 50}


def on_cluster(**parameters: Any) -> dict[str, Any]:
    config = random_config(resources={"cpus": {"requested": 1}}, **parameters)
    return {**config, "scheduling": {"executor": "cluster"}}


def first_line_of_a_job(cluster: SlurmCluster, folder: Path) -> float:
    """Seconds from sbatch to the first line of an echo: the engine's own time."""
    output = folder / f"{time.monotonic_ns()}.out"
    began = time.monotonic()
    cluster.run("sbatch", f"--output={output}", "--wrap=echo ready")
    assert wait_until(lambda: output.exists() and output.stat().st_size, poll_s=0.01)
    return time.monotonic() - began


def first_line_of_a_run(daemon: RunningDaemon) -> tuple[float, float]:
    """Seconds from the submission to the worker's first line, and from the cancel to no job."""
    began = time.monotonic()
    run_id = daemon.client.submit(on_cluster(**ENDLESS)).run.run_id
    output = daemon.home.run_logs(run_id) / "stdout.log"
    assert wait_until(lambda: output.exists() and output.stat().st_size, poll_s=0.01)
    took = time.monotonic() - began
    daemon.wait_for(run_id, "EXEC")
    began = time.monotonic()
    daemon.client.cancel(run_id)
    daemon.wait_for(run_id)
    return took, time.monotonic() - began


def plain_loop(cluster: SlurmCluster, folder: Path, runs: int, parameters: dict[str, Any]) -> float:
    """Seconds for the same worker command in a loop of sbatch, without a daemon, until the last job has ended."""
    began = time.monotonic()
    for _ in range(runs):
        run_id = new_run_id()
        config = folder / f"{run_id}.json"
        config.write_text(json.dumps({**worker_part(random_config(**parameters)), "run_id": run_id}))
        command = f"{sys.executable} -m random_worker.cli --config {config} --run-id {run_id}"
        cluster.run("sbatch", "--output=/dev/null", f"--wrap=MOSAIC_HOME={folder} exec {command}")
    assert wait_until(lambda: not cluster.jobs(), timeout_s=1800, poll_s=0.2)
    return time.monotonic() - began


def through_the_daemon(daemon: RunningDaemon, runs: int, parameters: dict[str, Any]) -> float:
    """Seconds for as many runs through the daemon, until the last one has ended."""
    began = time.monotonic()
    known = [daemon.client.submit(on_cluster(**parameters)).run.run_id for _ in range(runs)]
    assert wait_until(lambda: not daemon.unfinished(), timeout_s=1800, poll_s=0.2)
    took = time.monotonic() - began
    assert all(daemon.client.get(run_id).outcome == "completed" for run_id in known)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    if reason := why_no_slurm():
        sys.exit(f"no Slurm cluster can be started: {reason}")
    one_second = {"timesteps": 20, "steps_per_second": 20}
    # One CPU per node: with more, this machine's cores, not Slurm, would limit both ways.
    with SlurmCluster(cpus=1) as cluster, temporary_home() as (home, config_home):
        settings = {"heartbeat_s": 1, "executors": {"cluster": {"type": "slurm", "max_submitted": 1000}}}
        with RunningDaemon(home, config_home, settings=settings, environment=cluster.environment) as daemon:
            first_line_of_a_run(daemon)  # describes the worker and fills caches
            engine = [first_line_of_a_job(cluster, config_home) for _ in range(arguments.repeats)]
            starts, cancels = zip(*(first_line_of_a_run(daemon) for _ in range(arguments.repeats)), strict=True)
            plain = ours = 0.0
            for _ in range(arguments.rounds):  # taking turns: what drifts on the machine hits both alike
                plain += plain_loop(cluster, config_home, arguments.runs // arguments.rounds, one_second)
                ours += through_the_daemon(daemon, arguments.runs // arguments.rounds, one_second)
    over = median(starts) - median(engine)
    print_table(
        f"Slurm, 3 nodes on this machine (wall seconds, medians of {arguments.repeats})",
        [
            ("sbatch → first line of an echo", f"{median(engine):8.2f}"),
            ("submit → first line of the worker", f"{median(starts):8.2f}"),
            ("over the engine's own time", f"{over:8.2f}  (to reach: 2.00)"),
            ("cancel → ended", f"{median(cancels):8.2f}  (to reach: 5.00)"),
            (f"{arguments.runs} one-second runs, sbatch in a loop", f"{plain:8.1f}"),
            (f"{arguments.runs} one-second runs, through the daemon", f"{ours:8.1f}"),
            ("ratio", f"{ours / plain:8.3f}  (to reach: 1.150)"),
        ],
    )


if __name__ == "__main__":
    main()
