"""Charts of 100 runs with 100,000 points each: CPU until they are drawn, and of each redraw; against plain pyqtgraph.

A real daemon serves real event files. The daemon thins curves (its pyramid keeps extremes), so the window's process
never sees more points than a screen shows. Peer: the same window process asks for every point and gives each curve to
`PlotWidget.plot` as it comes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from gym_gui.services.trainer.fsm import RunEvent
from gym_gui.services.trainer.records import NewRun
from gym_gui.services.trainer.registry import RunRegistry
from gym_gui.testing import RunningDaemon
from measure import Sample, cpu_of, print_table, temporary_home
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home

TAG = "charts/episodic_return"
SEEDS = 5
OPEN_TARGET_S, REDRAW_TARGET_MS = 2.0, 40.0

# What both need: an application, a connected link, and a way to count CPU of the whole process.
COMMON = """
import json, sys, time
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from mosaic_wire.paths import find_home
from PySide6.QtWidgets import QApplication

SIZE = (1280, 700)
application = QApplication(sys.argv[:1])
theme.apply(application, theme.ThemeChoice.LIGHT)
background = Background()
link = DaemonLink(lambda: TrainerClient.connect(find_home()), background)
runs, results = [], {}
link.runs_loaded.connect(runs.extend)
link.start()

def until(holds):
    while not holds():
        application.processEvents()
        time.sleep(0.002)

def cpu_ms(work):
    before = time.thread_time()
    work()
    application.processEvents()
    return (time.thread_time() - before) * 1000

def median(work, times=15):
    return sorted(cpu_ms(work) for _ in range(times))[times // 2]

until(lambda: runs)
"""
OURS = (
    COMMON
    + """
from gym_gui.ui.charts.tab import ChartsTab

TAG, how = sys.argv[1], sys.argv[2]
tab = ChartsTab(link)
tab.resize(*SIZE)
tab.show()
application.processEvents()
before = time.process_time()
tab.show_run(runs[0])
tab.set_added(runs[1:])
tab.set_active(True)
until(lambda: tab.board is not None)
board = tab.board
board.controls.groups.setCurrentIndex(board.controls.groups.findData(how))
drawn = []
board.drawn.connect(lambda: drawn.append(1))

def is_whole():
    figure = board.figures.get(TAG)
    known = {run_id for line in figure.lines for run_id in line.run_ids} if figure is not None else set()
    return len(known) == len(runs) and board.is_settled

until(is_whole)
tab.grab()
results["open_s"] = time.process_time() - before
view = board.views[TAG]
results["lines"], results["points"] = len(view.entries), view.drawn_points()
box = view.plot.getPlotItem().vb
low, high = box.viewRange()[0]
shift = iter(range(1, 10_000))

def pan():
    part = (high - low) / 500 * next(shift)
    view.plot.setXRange(low + part, high + part, padding=0)

results["pan_ms"] = median(pan)
view.reset_zoom()
application.processEvents()
results["paint_ms"] = median(lambda: view.plot.viewport().repaint())
results["figure_ms"] = median(lambda: view.show_figure(board.figures[TAG], board.choice.axis))

def cross():
    view.pointed_at.emit(low + (high - low) / 500 * next(shift))

results["cross_ms"] = median(cross)
tab.set_active(False)
link.stop()
background.close()
print(json.dumps(results))
"""
)
PEER = (
    COMMON
    + """
import numpy as np
TAG = sys.argv[1]
before = time.process_time()
import pyqtgraph as pg

plot = pg.PlotWidget()
plot.resize(*SIZE)
plot.show()
curves = {}

def load(client):
    found = []
    for run in runs:
        with client.metrics(run.run_id, [TAG], max_points=-1) as stream:
            parts = [part for message in stream for part in message.curves]
        found.append((np.concatenate([part.steps for part in parts]), np.concatenate([part.values for part in parts])))
    return found

link.call(load, owner=link, done=lambda found: curves.update(enumerate(found)))
until(lambda: curves)
for number, (steps, values) in curves.items():
    plot.plot(steps, values, pen=pg.mkPen(pg.intColor(number, 8), width=1))
plot.grab()
results["open_s"] = time.process_time() - before
results["lines"], results["points"] = len(curves), sum(len(values) for _, values in curves.values())
low, high = plot.getPlotItem().vb.viewRange()[0]
shift = iter(range(1, 10_000))

def pan():
    part = (high - low) / 500 * next(shift)
    plot.setXRange(low + part, high + part, padding=0)

results["pan_ms"] = median(pan, times=3)
results["paint_ms"] = median(lambda: plot.viewport().repaint(), times=3)
link.stop()
background.close()
print(json.dumps(results))
"""
)


def write_events(path: Path, points: int, seed: int) -> None:
    """An event file as a script writes it: one scalar an event."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    rng, level = random.Random(seed), 0.0
    with path.open("wb") as stream:
        writer = RecordWriter(stream)
        writer.write(Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString())
        for index in range(points):
            level += (200 + 40 * seed - level) / (points / 4)
            value = Summary.Value(tag=TAG, simple_value=level + rng.gauss(0, 25))
            event = Event(wall_time=1.7e9 + index, step=index * 10, summary=Summary(value=[value]))
            writer.write(event.SerializeToString())


def fill(home: Home, runs: int, points: int) -> list[str]:
    """Finished runs in groups of five seeds; a few event files are shared by links, the daemon reads each run's own."""
    home.create()
    templates = []
    for seed in range(SEEDS):
        template = home.root / f"events-{seed}"
        write_events(template, points, seed)
        templates.append(template)
    ids = []
    with RunRegistry(home.database) as registry:
        for number in range(runs):
            run_id = new_run_id()
            registry.submit(
                NewRun(
                    run_id=run_id,
                    worker_type="cleanrl",
                    name=f"ppo-{number:04d}",
                    algo="ppo",
                    env_id="CartPole-v1",
                    seed=number % SEEDS,
                    total=points * 10,
                    extras={"algo_params": {"learning_rate": 1e-4 * (1 + number // SEEDS)}},
                )
            )
            registry.apply(run_id, RunEvent.CANCELLED, reason="made for a benchmark")
            folder = home.run_folder(run_id).tensorboard
            folder.mkdir(parents=True)
            os.link(templates[number % SEEDS], folder / "events.out.tfevents.1700000000.host.1.0")
            ids.append(run_id)
    return ids


def measure(script: str, daemon: RunningDaemon, environment: dict[str, str], *arguments: str) -> dict[str, float]:
    before = cpu_of(daemon.pid)
    argv = [sys.executable, "-c", script, TAG, *arguments]
    with tempfile.TemporaryDirectory() as settings:  # nothing is remembered from one measurement to the next
        variables = {**environment, "XDG_CONFIG_HOME": settings}
        done = subprocess.run(argv, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    answer["daemon_s"] = cpu_of(daemon.pid) - before
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--without-peer", action="store_true", help="Every point of every run takes a while.")
    arguments = parser.parse_args()
    kinds = {"lines": "each run", "std": "groups, mean ± std", "ci": "groups, 95 % bootstrap", "iqm": "groups, IQM"}
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in (*kinds, "peer")}
    with temporary_home() as (home, config_home):
        ids = fill(home, arguments.runs, arguments.points)
        with RunningDaemon(home, config_home) as daemon:
            for run_id in ids:  # as it is when runs have trained under this daemon: their pyramids are there
                total = sum(tag.points for tag in daemon.client.metric_tags(run_id))
                assert total == arguments.points, "some points are missing"
            own = {"QT_QPA_PLATFORM": "offscreen"}
            environment = {**daemon.variables, **own, "HOME": os.environ.get("HOME", "/")}
            for pair in range(arguments.pairs):
                for kind in kinds:
                    found[kind].append(measure(OURS, daemon, environment, kind))
                if not arguments.without_peer and pair == 0:
                    found["peer"].append(measure(PEER, daemon, environment))
                print(f"  round {pair + 1}/{arguments.pairs}: open {found['lines'][-1]['open_s']:.2f} s")
    print_table(
        f"charts of {arguments.runs:,} runs × {arguments.points:,} points (to reach: open {OPEN_TARGET_S} s, redraw "
        f"{REDRAW_TARGET_MS:.0f} ms of CPU)",
        [
            row
            for kind, name in {**kinds, "peer": "plain pyqtgraph, every point"}.items()
            for row in rows(name, found[kind])
        ],
    )


def rows(name: str, results: list[dict[str, float]]) -> list[tuple[str, str]]:
    if not results:
        return []
    labels = {
        "open_s": "open, window process (s)",
        "daemon_s": "open, daemon (s)",
        "pan_ms": "redraw, moved (ms)",
        "paint_ms": "redraw, unmoved (ms)",
        "figure_ms": "redraw, new figure (ms)",
        "cross_ms": "crosshair moved (ms)",
    }
    first = results[0]
    shown = [(f"{name}: lines, points on the screen", f"{first['lines']:.0f}, {first['points']:,.0f}")]
    for key, text in labels.items():
        if key in first:
            shown.append((f"  {text}", str(Sample(tuple(result[key] for result in results)))))
    return shown


if __name__ == "__main__":
    main()
