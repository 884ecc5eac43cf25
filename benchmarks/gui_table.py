"""The table of runs with 10,000 rows: show, sort, a key in the filter, 50 live runs; against Qt's own sorting proxy.

Peer: `QTableView` with its usual delegate over a `QSortFilterProxyModel` as it comes, on the same cells. Each step ends
when everything on the screen is painted. CPU milliseconds of the window's thread.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from gym_gui.ui import theme
from gym_gui.ui.runs.filtering import RunFilter
from gym_gui.ui.runs.model import RunsModel
from gym_gui.ui.runs.rows import RunColumn, RunRow
from gym_gui.ui.runs.view import RunsView
from measure import Sample, print_table
from mosaic_wire.ids import new_run_id
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, QSortFilterProxyModel, Qt
from PySide6.QtWidgets import QApplication, QTableView

SIZE = (1200, 700)
TYPED = ("c", "ca", "car", "cart", "cartp", "cartpole", "cartpole s", "cartpole se", "cartpole seed-3")
ENVS = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "ALE/Pong-v5", "Hopper-v5", "MiniGrid-Empty-8x8-v0")
ALGOS = ("ppo", "dqn", "c51", "sac", "td3", "ddpg")
Step = Callable[[], float]


def some_runs(count: int) -> list[pb.Run]:
    """Mostly finished runs, fifty of them at work."""
    rng, now = random.Random(7), time.time()
    runs = []
    for number in range(count):
        is_live = number >= count - 50
        algo, env_id, seed = rng.choice(ALGOS), rng.choice(ENVS), number % 5
        run = pb.Run(
            run_id=new_run_id(),
            number=number + 1,
            status="EXEC" if is_live else "TERM",
            outcome="" if is_live else rng.choice(["completed"] * 8 + ["failed", "cancelled"]),
            name=f"{algo}-{env_id}-seed-{seed}-{number:05d}",
            worker_type="cleanrl",
            algo=algo,
            env_id=env_id,
            seed=seed,
            step=rng.randrange(500_000),
            total=500_000,
            episodic_return=rng.uniform(-200, 500),
            sps=rng.uniform(200, 20_000),
            tags=["bench", f"group-{number % 20}"],
            created_at=now - 60 * (count - number),
            started_at=now - 60 * (count - number) + 2,
            finished_at=0 if is_live else now - 60 * (count - number) + 300,
            size_bytes=rng.randrange(10**7),
            extras_json='{"algo_params": {"learning_rate": %s}}' % rng.choice(["2.5e-4", "1e-3", "3e-4"]),  # noqa: UP031
        )
        runs.append(run)
    return runs


def cpu_ms(work: Callable[[], Any], application: QApplication) -> float:
    """CPU of this thread until the work is done and painted."""
    before = time.thread_time()
    work()
    application.processEvents()
    return (time.thread_time() - before) * 1000


class PlainModel(QAbstractTableModel):
    """The same cells, for the proxy: text to show, and what to sort by as another role."""

    def __init__(self, runs: list[pb.Run]) -> None:
        super().__init__()
        self._cells = [[row.text(column) for column in RunColumn] for row in map(RunRow, runs)]

    def rowCount(self, parent: QModelIndex | QPersistentModelIndex = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self._cells)

    def columnCount(self, parent: QModelIndex | QPersistentModelIndex = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(RunColumn)

    def data(self, index: QModelIndex | QPersistentModelIndex, role: int = 0) -> Any:
        return self._cells[index.row()][index.column()] if role == 0 else None


def measure_ours(runs: list[pb.Run], application: QApplication) -> dict[str, float]:
    model = RunsModel()
    view = RunsView(model)
    view.reset_widths()
    view.setSortingEnabled(True)
    view.sortByColumn(RunColumn.STARTED, Qt.SortOrder.DescendingOrder)
    view.resize(*SIZE)
    found: dict[str, float] = {}

    def show() -> None:
        model.load(runs)
        view.show()

    found["show"] = cpu_ms(show, application)

    def make_ready() -> None:
        while not model.is_prepared:  # in small pieces, whenever the window has nothing else to do
            application.processEvents()

    found["made ready for filter and groups, in idle moments"] = cpu_ms(make_ready, application)
    found["sort by return"] = cpu_ms(
        lambda: view.sortByColumn(RunColumn.RETURN, Qt.SortOrder.DescendingOrder), application
    )
    found["sort by name"] = cpu_ms(lambda: view.sortByColumn(RunColumn.NAME, Qt.SortOrder.AscendingOrder), application)
    keys = [cpu_ms(lambda text=text: model.set_filter(RunFilter(text)), application) for text in TYPED]
    found["a key in the filter, mean"], found["a key in the filter, worst"] = sum(keys) / len(keys), max(keys)
    found["filter cleared"] = cpu_ms(lambda: model.set_filter(RunFilter()), application)
    found["grouped by configuration"] = cpu_ms(lambda: model.set_grouped(True), application)
    model.set_grouped(False)
    view.sortByColumn(RunColumn.STARTED, Qt.SortOrder.DescendingOrder)
    application.processEvents()

    def live() -> None:
        # Ten rounds of updates a second; the table draws what has changed four times in that second.
        for round_ in range(10):
            updates = []
            for run in runs[-50:]:
                newer = pb.Run()
                newer.CopyFrom(run)
                newer.step, newer.episodic_return = run.step + 100 * round_, run.episodic_return + round_
                updates.append(newer)
            model.update(updates)
            if round_ % 3 == 2:
                model.flush()
                application.processEvents()
        model.flush()

    found["a second of 50 live runs at 10 Hz"] = cpu_ms(live, application)
    view.close()
    return found


def measure_peer(runs: list[pb.Run], application: QApplication) -> dict[str, float]:
    model = PlainModel(runs)
    proxy = QSortFilterProxyModel()
    proxy.setFilterKeyColumn(-1)
    proxy.setFilterCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
    view = QTableView()
    view.resize(*SIZE)
    found: dict[str, float] = {}

    def show() -> None:
        proxy.setSourceModel(model)
        view.setModel(proxy)
        view.show()

    found["show"] = cpu_ms(show, application)
    found["sort by return"] = cpu_ms(lambda: proxy.sort(RunColumn.RETURN, Qt.SortOrder.DescendingOrder), application)
    found["sort by name"] = cpu_ms(lambda: proxy.sort(RunColumn.NAME, Qt.SortOrder.AscendingOrder), application)
    keys = [cpu_ms(lambda text=text: proxy.setFilterFixedString(text), application) for text in TYPED]
    found["a key in the filter, mean"], found["a key in the filter, worst"] = sum(keys) / len(keys), max(keys)
    found["filter cleared"] = cpu_ms(lambda: proxy.setFilterFixedString(""), application)
    view.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--runs", type=int, default=10_000)
    arguments = parser.parse_args()
    application = QApplication([])
    theme.apply(application, theme.ThemeChoice.LIGHT)
    runs = some_runs(arguments.runs)
    ours: list[dict[str, float]] = []
    peer: list[dict[str, float]] = []
    for pair in range(arguments.pairs):
        turns = ((measure_ours, ours), (measure_peer, peer))
        for measure, results in turns if pair % 2 == 0 else turns[::-1]:
            results.append(measure(runs, application))
        key = "a key in the filter, worst"
        print(
            f"  pair {pair + 1}/{arguments.pairs}: worst key ours {ours[-1][key]:.1f} ms, peer {peer[-1][key]:.1f} ms"
        )
    rows = []
    for name in ours[0]:
        mine = Sample(tuple(result[name] for result in ours))
        text = str(mine)
        if name in peer[0]:
            theirs = Sample(tuple(result[name] for result in peer))
            text += f"   peer {theirs}   {mine.median / theirs.median:6.3f} ×"
        rows.append((name, text))
    print_table(f"table of {arguments.runs:,} runs (CPU ms; a key in the filter to reach: 30)", rows)


if __name__ == "__main__":
    main()
