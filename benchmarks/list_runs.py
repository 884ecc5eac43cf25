"""`mosaic runs` over many runs: CPU of the command and of the daemon, against a bare Python start."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

from gym_gui.testing import RunningDaemon
from measure import Sample, cpu_of, fill_registry, print_table, temporary_home

MOSAIC = Path(sys.executable).with_name("mosaic")


def children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_of_command(argv: list[str], daemon: RunningDaemon) -> float:
    before, serving = children_cpu(), cpu_of(daemon.pid)
    subprocess.run(argv, env=daemon.variables, stdout=subprocess.DEVNULL, check=True)
    return children_cpu() - before + cpu_of(daemon.pid) - serving


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--runs", type=int, default=10_000)
    arguments = parser.parse_args()
    commands = {
        "bare `python -c pass`": [sys.executable, "-c", "pass"],
        "mosaic runs": [str(MOSAIC), "runs"],
        "mosaic runs --all": [str(MOSAIC), "runs", "--all"],
        "mosaic runs --all --json": [str(MOSAIC), "runs", "--all", "--json"],
    }
    samples: dict[str, list[float]] = {name: [] for name in commands}
    with temporary_home() as (home, config_home):
        fill_registry(home, arguments.runs)
        with RunningDaemon(home, config_home) as daemon:
            for _ in range(arguments.pairs):
                for name, argv in commands.items():
                    samples[name].append(cpu_of_command(argv, daemon))
    peer = Sample(tuple(samples["bare `python -c pass`"])).median
    rows = [
        (name, f"{sample}  {sample.median / peer:6.1f} ×")
        for name, values in samples.items()
        if (sample := Sample(tuple(values)))
    ]
    print_table(f"listing {arguments.runs} runs (CPU seconds of command + daemon; to reach: 1.000)", rows)


if __name__ == "__main__":
    main()
