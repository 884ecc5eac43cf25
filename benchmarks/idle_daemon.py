"""A daemon with nothing to do: CPU and memory, beside a bare Python that sleeps."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from gym_gui.testing import RunningDaemon
from measure import cpu_of, fill_registry, memory_mb_of, print_table, temporary_home


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--finished", type=int, default=10_000)
    arguments = parser.parse_args()
    with temporary_home() as (home, config_home):
        fill_registry(home, arguments.finished)
        with RunningDaemon(home, config_home) as daemon:
            run = daemon.submit(timesteps=10)  # it has worked, and now it rests
            daemon.wait_for(run.run_id)
            sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"])
            try:
                time.sleep(2)
                before = {pid: cpu_of(pid) for pid in (daemon.pid, sleeper.pid)}
                time.sleep(arguments.seconds)
                percent = {pid: (cpu_of(pid) - cpu) / arguments.seconds * 100 for pid, cpu in before.items()}
                memory = {pid: memory_mb_of(pid) for pid in before}
            finally:
                sleeper.kill()
                sleeper.wait()
    print_table(
        f"idle for {arguments.seconds:g} s, {arguments.finished} finished runs in the registry",
        [
            ("daemon, % of a core", f"{percent[daemon.pid]:8.3f}  (to reach: 1.000)"),
            ("sleeping Python, % of a core", f"{percent[sleeper.pid]:8.3f}"),
            ("daemon, MB", f"{memory[daemon.pid]:8.1f}  (to reach: 120)"),
            ("sleeping Python, MB", f"{memory[sleeper.pid]:8.1f}"),
        ],
    )


if __name__ == "__main__":
    main()
