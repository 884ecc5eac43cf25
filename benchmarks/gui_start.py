"""The window over many runs: CPU until it is shown and until its list is filled, against a bare Qt window."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from gym_gui.testing import RunningDaemon
from measure import Sample, fill_registry, print_table, temporary_home

# Both are measured from inside, from the start of the process: the CPU clock of all its threads, interpreter included.
OURS = """
import json, sys, time
from pathlib import Path
from gym_gui import app
from mosaic_wire.paths import find_home
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

application = QApplication(sys.argv[:1])
parts = app.build_window(application, find_home(), None, None)
parts.window.show()
results = {}

def shown():
    results["shown"] = time.process_time()

def loaded(runs):
    results["runs"] = len(runs)
    # After every listener has handled the runs and painted.
    QTimer.singleShot(0, lambda: QTimer.singleShot(0, end))

def end():
    parts.window.grab()
    results["filled"] = time.process_time()
    application.quit()

QTimer.singleShot(0, lambda: (parts.window.repaint(), shown(), parts.link.start()))
parts.link.runs_loaded.connect(loaded)
application.exec()
parts.close()
print(json.dumps(results))
"""
PEER = """
import json, sys, time
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication, QMainWindow, QTableView

application = QApplication(sys.argv[:1])
window = QMainWindow()
window.setCentralWidget(QTableView())
window.resize(1280, 800)
window.show()
results = {}

def shown():
    window.repaint()
    results["shown"] = time.process_time()
    window.grab()
    application.quit()

QTimer.singleShot(0, shown)
application.exec()
print(json.dumps(results))
"""


def start(script: str, environment: dict[str, str]) -> dict[str, float]:
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--runs", type=int, default=10_000)
    arguments = parser.parse_args()
    shown, filled, peer = [], [], []
    with temporary_home() as (home, config_home):
        fill_registry(home, arguments.runs)
        with RunningDaemon(home, config_home) as daemon:
            own = {"QT_QPA_PLATFORM": "offscreen", "XDG_CONFIG_HOME": str(config_home)}
            environment = {**daemon.variables, **own, "HOME": os.environ.get("HOME", "/")}
            for pair in range(arguments.pairs):
                bare = start(PEER, environment)
                ours = start(OURS, environment)
                assert ours["runs"] == arguments.runs, "the list did not arrive"
                peer.append(bare["shown"])
                shown.append(ours["shown"])
                filled.append(ours["filled"])
                print(
                    f"  pair {pair + 1}/{arguments.pairs}: ours {shown[-1]:.3f} / {filled[-1]:.3f}, peer {peer[-1]:.3f}"
                )
    bare_median = Sample(tuple(peer)).median
    print_table(
        f"a window over {arguments.runs:,} runs (CPU seconds since the process began; to reach: 1.000)",
        [
            ("bare QMainWindow with an empty QTableView, shown", str(Sample(tuple(peer)))),
            ("our window, shown", f"{Sample(tuple(shown))}  {Sample(tuple(shown)).median / bare_median:6.1f} ×"),
            (
                "our window, its list filled",
                f"{Sample(tuple(filled))}  {Sample(tuple(filled)).median / bare_median:6.1f} ×",
            ),
        ],
    )


if __name__ == "__main__":
    main()
