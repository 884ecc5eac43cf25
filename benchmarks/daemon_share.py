"""A run through the daemon against the same script started by hand: CPU seconds per step."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

from gym_gui.testing import RunningDaemon
from measure import alternate, cpu_with_ended_children, print_table, temporary_home


def by_hand(folder: Path, steps: int) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    flags = {"--env-id": "CartPole-v1", "--total-timesteps": str(steps), "--seed": "1"}
    subprocess.run(
        [sys.executable, "-m", "cleanrl_worker.algorithms", "ppo", *(word for pair in flags.items() for word in pair)],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / steps * 1e6


def through_the_daemon(daemon: RunningDaemon, steps: int) -> float:
    """Everything: daemon, worker and training process (the daemon waits for the worker, the worker for training)."""
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": steps}
    before = cpu_with_ended_children(daemon.pid)
    run = daemon.client.submit({"metadata": {"worker": {"type": "cleanrl", "config": config}}}).run
    with daemon.client.watch(run_id=run.run_id, since_seq=run.event_seq) as updates:
        ended = next(update.run for update in updates if update.run.status == "TERM")
    if ended.outcome != "completed":
        raise SystemExit(f"run {run.run_id} did not complete: {ended.reason}")
    return (cpu_with_ended_children(daemon.pid) - before) / steps * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with temporary_home() as (home, config_home), RunningDaemon(home, config_home) as daemon:
        ours, peer = alternate(
            lambda: through_the_daemon(daemon, arguments.steps),
            lambda: by_hand(config_home, arguments.steps),
            pairs=arguments.pairs,
        )
    print_table(
        f"ppo on CartPole-v1, {arguments.steps} steps (CPU microseconds per step, start-up included)",
        [
            ("through the daemon (daemon + worker + training)", str(ours)),
            ("the same script by hand", str(peer)),
            ("ratio", f"{ours.median / peer.median:8.3f}  (to reach: 1.020)"),
        ],
    )


if __name__ == "__main__":
    main()
