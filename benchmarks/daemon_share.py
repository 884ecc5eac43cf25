"""A run through the daemon against the same script started by hand: CPU seconds per step.

Each measurement is two runs, a short and a long one: their difference is what the steps cost, the short one what
starting costs. Both are printed, and so is the long run as a whole.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from gym_gui.testing import RunningDaemon
from measure import bind, cpu_of_command, cpu_with_ended_children, print_shares, side_by_side, temporary_home


def by_hand(folder: Path, steps: int) -> float:
    flags = ["--env-id", "CartPole-v1", "--total-timesteps", str(steps), "--seed", "1"]
    return cpu_of_command([sys.executable, "-m", "cleanrl_worker.algorithms", "ppo", *flags], folder)


def through_the_daemon(daemon: RunningDaemon, steps: int) -> float:
    """Everything: daemon, worker and training process (the daemon waits for the worker, the worker for training)."""
    config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": steps}
    bind(daemon.pid, os.sched_getaffinity(0))
    before = cpu_with_ended_children(daemon.pid)
    run = daemon.client.submit({"metadata": {"worker": {"type": "cleanrl", "config": config}}}).run
    with daemon.client.watch(run_id=run.run_id, since_seq=run.event_seq) as updates:
        ended = next(update.run for update in updates if update.run.status == "TERM")
    if ended.outcome != "completed":
        raise SystemExit(f"run {run.run_id} did not complete: {ended.reason}")
    return cpu_with_ended_children(daemon.pid) - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--short", type=int, default=100_000, help="steps of the run that is subtracted")
    arguments = parser.parse_args()
    with temporary_home() as (home, config_home), RunningDaemon(home, config_home) as daemon:
        horizons = (arguments.short, arguments.steps)
        ours, peer = side_by_side(
            lambda steps: through_the_daemon(daemon, steps),
            lambda steps: by_hand(config_home, steps),
            horizons=horizons,
            pairs=arguments.pairs,
        )
    print_shares("ppo on CartPole-v1", ("through the daemon", "by hand"), ours, peer, horizons, to_reach=1.02)


if __name__ == "__main__":
    main()
