"""The window while many runs publish: its memory over the time, and the longest iteration of its event loop."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from gym_gui.testing import RunningDaemon, random_config
from measure import print_table, temporary_home

# A real window with the page of one live run open; it looks at itself every ten seconds.
WINDOW = """
import json, sys, time
from pathlib import Path
from gym_gui import app
from gym_gui.app import GarbageCollection
from slot_watch import SlotWatch
from mosaic_wire.paths import find_home
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

seconds, run_id = float(sys.argv[1]), sys.argv[2]
application = QApplication(sys.argv[:1])
garbage = GarbageCollection(application)
garbage.start()
parts = app.build_window(application, find_home())
parts.window.show()
parts.link.start()
memory_mb = []

def resident_mb():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

def begin():
    watch.__enter__()
    began.append(time.process_time())

def open_live(shown):
    parts.window.runs.page.open_tab("live")

def open_page():
    parts.window.open_run(run_id)
    parts.window.runs.page.run_shown.connect(open_live)

watch, began = SlotWatch(), []
sampling = QTimer(interval=10_000)
sampling.timeout.connect(lambda: memory_mb.append(resident_mb()))
sampling.start()
parts.link.runs_loaded.connect(lambda runs: QTimer.singleShot(0, open_page))
QTimer.singleShot(15_000, begin)  # opening it is measured elsewhere
QTimer.singleShot(round(1000 * (seconds + 15)), application.quit)
application.exec()
watch.__exit__(None, None, None)
share = (time.process_time() - began[0]) / seconds
memory_mb.append(resident_mb())
parts.close()
print(json.dumps({"memory_mb": memory_mb, "longest_ms": watch.longest_ms, "report": watch.report(), "share": share}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=2, help="the issue asks for 30")
    arguments = parser.parse_args()
    seconds = 60 * arguments.minutes
    with temporary_home() as (home, config_home):
        settings = {"heartbeat_s": 1, "min_free_disk_mb": 0, "min_free_memory_mb": 0}
        with RunningDaemon(home, config_home, settings=settings) as daemon:
            config = random_config(timesteps=100_000_000, steps_per_second=20, resources={"cpus": {"requested": 0}})
            runs = [daemon.client.submit(config).run.run_id for _ in range(arguments.runs)]
            for run_id in runs:
                daemon.wait_for(run_id, "EXEC", timeout_s=600)
            own = {"QT_QPA_PLATFORM": "offscreen", "XDG_CONFIG_HOME": str(config_home)}
            own["PYTHONPATH"] = str(Path(__file__).parent)
            argv = [sys.executable, "-c", WINDOW, str(seconds), runs[-1]]
            done = subprocess.run(
                argv,
                env={**daemon.variables, **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                check=True,
            )
    results = json.loads(done.stdout.splitlines()[-1])
    memory = results["memory_mb"]
    print_table(
        f"a window over {arguments.runs} live runs for {arguments.minutes:g} minutes",
        [
            ("memory after 20 s (MB)", f"{memory[1]:8.0f}"),
            ("memory in the middle (MB)", f"{memory[len(memory) // 2]:8.0f}"),
            ("memory at the end (MB)", f"{memory[-1]:8.0f}  (to reach: 250, flat)"),
            ("longest iteration of the event loop (ms of CPU)", f"{results['longest_ms']:8.1f}  (to reach: 50)"),
            ("CPU of the window (% of a core)", f"{100 * results['share']:8.1f}"),
        ],
    )
    if results["longest_ms"] > 50:
        print(results["report"])


if __name__ == "__main__":
    main()
