"""The longest iteration of the window's event loop during openings and updates, compared with plain Qt.

Openings: each tab, workspace, page and dialog of a fresh window, as packages/gym_gui/tests/ui/first_openings.py opens
them; peer: a plain form of 100 fields. Updates: six live charts with all their points, against six plain pyqtgraph
plots; the newest steps of a live run, against a plain table of as many rows. CPU milliseconds of the window's thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from gym_gui.testing import RunningDaemon
from measure import Sample, print_table, temporary_home

TESTS = Path(__file__).resolve().parents[1] / "packages/gym_gui/tests/ui"
TARGET_MS = 50.0

OPENINGS = """
import sys
from pathlib import Path
from first_openings import Openings
from mosaic_wire.paths import Home
from PySide6.QtWidgets import QDialog, QFormLayout, QLineEdit
from slot_watch import SlotWatch

class Measured(Openings):
    def measure(self, name, open_it, is_there=lambda: True):
        with SlotWatch() as watch:
            self.open(name, open_it, is_there)
        self.results[name] = watch.longest_ms

    def begin(self):
        super().begin()
        self.measure_dialog(PEER, self.plain_form)

    def plain_form(self):
        dialog = QDialog(self.window)
        layout = QFormLayout(dialog)
        for number in range(100):
            layout.addRow(f"field {number}", QLineEdit(str(number), dialog))
        dialog.show()

PEER = "plain form"
Measured(Home(Path(sys.argv[1]))).open_everything(sys.argv[2])
"""
UPDATES = """
import json, sys
import numpy as np
import pyqtgraph as pg
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.run_page.telemetry_tab import KEEP, TelemetryTab
from gym_gui.services.analytics.curves import Curve
from gym_gui.ui.charts.board import ChartBoard
from gym_gui.ui.charts.curves import MAX_FOLLOWED_POINTS, ChartChoice, headline_tags
from mosaic_wire.paths import find_home
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.telemetry import encode
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication, QTableWidget, QTableWidgetItem
from slot_watch import SlotWatch

application = QApplication(sys.argv[:1])
theme.apply(application, theme.ThemeChoice.LIGHT)
background = Background()
link = DaemonLink(lambda: TrainerClient.connect(find_home()), background)
TAGS = ["charts/episodic_return", "charts/episodic_length", "charts/SPS"]
TAGS += ["losses/policy_loss", "losses/value_loss", "losses/entropy"]
FULL, rng, results = 2 * MAX_FOLLOWED_POINTS - 100, np.random.default_rng(1), {}
RUN = pb.Run(run_id="01ARZ3NDEKTSV4RRFFQ69G5FAV", status="EXEC", worker_type="human")

def measure(name, work, ms=800):
    with SlotWatch() as watch:
        QTimer.singleShot(0, work)
        loop = QEventLoop()
        QTimer.singleShot(ms, loop.quit)
        loop.exec()
    results[name] = watch.longest_ms

def shown(widget):
    widget.resize(1200, 800)
    widget.show()
    return widget

def six_charts():
    steps = np.arange(FULL, dtype=np.float64)
    curves = [Curve(RUN.run_id, tag, steps, steps, rng.normal(size=FULL), 100_000) for tag in TAGS]
    charts.feed._add(RUN.run_id, [[(curve, True) for curve in curves]])

def six_plots():
    for plot in plots:
        plot.plot(np.arange(FULL), rng.normal(size=FULL), clear=True)

def steps():
    pixels = encode(np.zeros((84, 84, 3), np.uint8))
    made = [pb.RunStep(seq=1 + n, observation=pixels, action=encode([0.1, 0.2]), info_json="{}") for n in range(2_000)]
    tab.recent_steps.ingest(made, 0, "")
    measure("2,000 steps at once", tab._show_steps)

def rows():
    for row in range(KEEP):
        for column in range(8):
            table.setItem(row, column, QTableWidgetItem(f"{row} {column}"))

charts = shown(ChartBoard(link, "charts_tab", ChartChoice(), headline_tags))
charts.set_runs([RUN])
charts.show_tags(TAGS)
charts.feed.store.follow(RUN.run_id)
measure("six live charts", six_charts)
charts.hide()
plots = [shown(pg.PlotWidget()) for _ in TAGS]
measure("six plain plots", six_plots)
for plot in plots:
    plot.hide()
tab = shown(TelemetryTab(link))
tab.show_run(RUN)
steps()
tab.hide()
table = shown(QTableWidget(KEEP, 8))
measure("plain table", rows)
link.stop()
background.close()
print(json.dumps(results))
"""
PEERS = {"six live charts": "six plain plots", "2,000 steps at once": "plain table"}
FORM = "plain form"


def measured_by(script: str, daemon: RunningDaemon, settings: Path, *arguments: str) -> dict[str, float]:
    variables = {
        **daemon.variables,
        "QT_QPA_PLATFORM": "offscreen",
        "XDG_CONFIG_HOME": str(settings),
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(Path(__file__).parent)]),
    }
    argv = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(argv, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-4000:])
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {}
    with temporary_home() as (home, config_home), RunningDaemon(home, config_home) as daemon:
        config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 1_024}
        run = daemon.client.submit({"metadata": {"worker": {"type": "cleanrl", "config": config}}}).run
        daemon.wait_for(run.run_id, timeout_s=300)
        for number in range(arguments.rounds):
            settings = config_home / str(number)
            answer = measured_by(OPENINGS, daemon, settings, str(home.root), run.run_id)
            for name, ms in {**answer, **measured_by(UPDATES, daemon, settings)}.items():
                found.setdefault(name, []).append(ms)
    rows = []
    for name, times in found.items():
        peer = PEERS.get(name, FORM)
        ratio = statistics.median(times) / statistics.median(found[peer])
        ratio_text = "" if name in (FORM, *PEERS.values()) else f"   {ratio:5.2f} × {peer}"
        rows.append((name, f"{Sample(tuple(times))}{ratio_text}"))
    print_table(f"longest iteration of the event loop (ms of CPU; to reach: {TARGET_MS:.0f})", rows)


if __name__ == "__main__":
    main()
