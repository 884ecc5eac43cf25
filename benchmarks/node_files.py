"""What a run on a node costs beside its training: CPU of the node process and of the daemon, with everything over TLS.

The node process relays the worker's calls (metrics, heartbeats) and sends logs, event files, checkpoints and the other
files. The peer is the CPU of the worker's own processes in the same run. Its start is counted apart: it does not grow.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import psutil
from gym_gui.services.trainer.certificates import NodeCertificates, make_certificates
from gym_gui.testing import NodeEngine, RunningDaemon
from measure import cpu_of, print_table, temporary_home
from mosaic_wire.testing import wait_until

TO_REACH = 0.02


def cpu_of_tree(pid: int) -> float:
    """CPU seconds of everything below a process: the worker, its training process and what they waited for."""
    total = 0.0
    for process in psutil.Process(pid).children(recursive=True):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def measure(daemon: RunningDaemon, engine: NodeEngine, steps: int) -> tuple[float, float, float, float]:
    """CPU seconds of training, node process (its start, then the rest) and daemon of one run."""
    before = cpu_of(daemon.pid)
    part = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": steps, "extras": {}}
    worker = {"type": "faraway", "module": "cleanrl_worker.cli", "config": part}
    run_id = daemon.client.submit({"resources": {"cpus": {"requested": 0}}, "metadata": {"worker": worker}}).run.run_id
    node = engine.node(run_id)
    daemon.wait_for_run(run_id, lambda run: run.step > 0, timeout_s=120)
    start, training, own = cpu_of(node.pid), 0.0, 0.0

    def sampled() -> bool:
        nonlocal training, own
        try:
            training, own = max(training, cpu_of_tree(node.pid)), cpu_of(node.pid)
        except (OSError, psutil.Error):
            return True  # it has ended
        return node.poll() is not None

    if not wait_until(sampled, timeout_s=1800, poll_s=0.2):
        raise SystemExit("the run did not end")
    run = daemon.wait_for(run_id)
    if run.outcome != "completed":
        raise SystemExit(f"the run failed: {run.reason}")
    return training, start, own - start, cpu_of(daemon.pid) - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500_000)
    steps = parser.parse_args().steps
    with temporary_home() as (home, config):
        settings = {"nodes": {"listen": "127.0.0.1", "port": 0}}
        daemon = RunningDaemon(home, config, settings=settings)
        make_certificates(NodeCertificates.below(config), ["127.0.0.1"])
        scratch = config / "node"
        scratch.mkdir()

        def start(bootstrap: Path) -> subprocess.Popen[bytes]:
            variables = {"PATH": os.environ["PATH"], "HOME": str(scratch), "TMPDIR": str(scratch)}
            return subprocess.Popen([sys.executable, "-m", "mosaic_wire.node", str(bootstrap)], env=variables)

        engine = NodeEngine(home, config, scratch, module="cleanrl_worker.cli", name="faraway", start=start)
        try:
            with daemon:
                training, started, sent, daemons = measure(daemon, engine, steps)
        finally:
            engine.close()
    print_table(
        f"ppo on CartPole-v1, {steps:,} steps on a node",
        [
            ("CPU of the worker and its training", f"{training:8.2f} s"),
            ("CPU of the node process until the first step", f"{started:8.2f} s"),
            ("CPU of the node process from then on", f"{sent:8.2f} s"),
            ("as a share of the training", f"{sent / training:8.2%}  (to reach: {TO_REACH:.0%})"),
            ("CPU of the daemon for the whole run", f"{daemons:8.2f} s  ({daemons / training:.2%})"),
        ],
    )


if __name__ == "__main__":
    main()
