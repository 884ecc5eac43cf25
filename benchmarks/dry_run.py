"""The dry run: its CPU and memory against a bare Python start, first with nothing remembered, then again."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path

from measure import Sample, alternate, print_table, temporary_home
from mosaic_wire import env

WORKER = [sys.executable, "-m", "cleanrl_worker.cli", "--dry-run", "--algo", "ppo", "--total-timesteps", "50000"]
BARE = [sys.executable, "-c", "pass"]

# Runs a command and prints CPU seconds and the largest memory of any of its processes.
MEASURED = (
    "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode; "
    "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_maxrss / 1024); sys.exit(code)"
)


class Measured:
    """CPU of a command; keeps the memory it saw."""

    def __init__(self, argv: list[str], home: Path, *, forget: bool = False) -> None:
        self._argv, self._home, self._forget = argv, home, forget
        self.memory_mb: list[float] = []

    def __call__(self) -> float:
        if self._forget:
            for file in (self._home / "cache" / "environments").glob("*.json"):
                file.unlink()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, *self._argv],
            env={**os.environ, env.MOSAIC_HOME: str(self._home)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.memory_mb.append(float(done.stdout))
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--env-id", default="CartPole-v1")
    arguments = parser.parse_args()
    with temporary_home() as (home, _):
        home.create()
        argv = [*WORKER, "--env-id", arguments.env_id]
        fresh, again = Measured(argv, home.root, forget=True), Measured(argv, home.root)
        fresh_cpu, bare_cpu = alternate(fresh, Measured(BARE, home.root), pairs=arguments.pairs)
        again_cpu, _ = alternate(again, Measured(BARE, home.root), pairs=arguments.pairs)
    # Each figure holds the process that measures: one more bare start.
    rows = [
        ("dry run, nothing remembered: CPU s", fresh_cpu, fresh.memory_mb),
        ("dry run, the environment is known: CPU s", again_cpu, again.memory_mb),
    ]
    shown = [(name, f"{less(cpu, bare_cpu)}  (to reach: 1.000)") for name, cpu, _ in rows]
    shown += [
        (name.replace("CPU s", "largest process, MB"), f"{max(mb):8.1f}  (to reach: 120)") for name, _, mb in rows
    ]
    print_table("the dry run of ppo", [*shown, ("python -c pass, measured alike: CPU s", str(bare_cpu))])


def less(cpu: Sample, bare: Sample) -> Sample:
    """Without the process that measures, which is about half of a measured bare start."""
    return Sample(tuple(value - bare.median / 2 for value in cpu.values))


if __name__ == "__main__":
    main()
