"""Compares runs off the window's thread: loads their whole return curves in pieces, then computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, QTimer, Signal

from gym_gui.services.analytics.baselines import Baseline, baselines_for
from gym_gui.services.analytics.comparison import Comparison, compare_curves
from gym_gui.services.analytics.curves import RETURN_TAGS, Curve, load_curves
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.widgets.comparison_table import ComparedRow, rows_of

PIECE_RUNS = 8
_LIVE_MS = 8_000
"""How often the figures of runs that go on are made anew"""
_MOST_POINTS = 5_000_000
"""Of all curves together; runs longer than their share come thinned"""


@dataclass(frozen=True)
class Compared:
    """What a comparison found, ready to be shown."""

    comparison: Comparison
    rows: list[ComparedRow]
    groups: list[ComparedRow]
    is_thinned: bool
    """Some curves were too long to be read whole"""


class ComparisonFeed(QObject):
    """Figures of the runs that `set_runs` names; `found` carries them."""

    found = Signal(object)  # Compared
    progressed = Signal(int, int)
    failed = Signal(str)
    measuring = Signal(str)  # words about a baseline that is being measured; empty: it is over

    def __init__(self, link: DaemonLink, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._link = link
        self.runs: dict[str, pb.Run] = {}
        self._curves: dict[str, dict[str, Curve]] = {}
        self._final: set[str] = set()
        """Runs whose curves will not grow any more"""
        self._baselines: Mapping[str, Baseline | None] = {}
        self._environments: set[str] = set()
        self._is_active = False
        self._is_loading = False
        self._is_computing = False
        self._is_dirty = False
        self.is_measuring = False
        self._again = QTimer(self, interval=_LIVE_MS)
        self._again.timeout.connect(self._look_again)

    def set_runs(self, runs: Iterable[pb.Run]) -> None:
        self.runs = {run.run_id: run for run in runs}
        for gone in set(self._curves) - set(self.runs):
            del self._curves[gone]
            self._final.discard(gone)
        self._is_dirty = True
        self._go_on()

    def update_run(self, run: pb.Run) -> None:
        if run.run_id in self.runs:
            before, self.runs[run.run_id] = self.runs[run.run_id], run
            if before.status != run.status:
                self._curves.pop(run.run_id, None)
                self._is_dirty = True
                self._go_on()

    def set_active(self, active: bool) -> None:
        self._is_active = active
        if active:
            self._again.start()
            self._go_on()
        else:
            self._again.stop()

    def measure_baselines(self) -> None:
        """Have the daemon play a random policy in the environments that have no baseline; a minute, once."""
        if self.is_measuring:
            return
        self.is_measuring = True
        runs = list(self.runs.values())
        background = self._link.background

        def told(line: str) -> None:  # in the thread that waits
            background.in_window(lambda: self.measuring.emit(line), owner=self)

        self._link.call(
            lambda client: baselines_for(client, runs, measure=True, told=told),
            owner=self,
            done=self._measured,
            failed=self._not_measured,
        )
        self.measuring.emit(self.tr("measuring a random policy…"))

    def _measured(self, baselines: Mapping[str, Baseline | None]) -> None:
        self.is_measuring = False
        self._baselines = {**self._baselines, **baselines}
        if all(baseline is not None for baseline in baselines.values()):
            self.measuring.emit("")
        self._is_dirty = True
        self._go_on()

    def _not_measured(self, words: str) -> None:
        self.is_measuring = False
        self.measuring.emit("")
        self.failed.emit(words)

    # ---------------------------------------------------------------- loading

    def _look_again(self) -> None:
        for run in self.runs.values():
            if run.run_id not in self._final and run.status != "INIT":
                self._curves.pop(run.run_id, None)
                self._is_dirty = True
        self._go_on()

    def _go_on(self) -> None:
        if not self._is_active or self._is_loading or not self._link.is_connected:
            return
        missing = [run for run in self.runs.values() if run.run_id not in self._curves and run.status != "INIT"]
        environments = {run.env_id for run in self.runs.values()} - self._environments
        if not missing and not environments:
            self._compute()
            return
        self._is_loading = True
        piece, everyone = missing[:PIECE_RUNS], list(self.runs.values())
        points = max(2_000, _MOST_POINTS // len(everyone))

        def load(client: TrainerClient) -> tuple[dict[str, dict[str, Curve]], Mapping[str, Baseline | None]]:
            known = baselines_for(client, everyone, measure=False) if environments else {}
            return {run.run_id: _curves_of(client, run, points) for run in piece}, known

        self._link.call(
            load, owner=self, done=lambda answer: self._take(piece, environments, answer), failed=self._fail
        )

    def _take(
        self,
        piece: Sequence[pb.Run],
        environments: set[str],
        answer: tuple[dict[str, dict[str, Curve]], Mapping[str, Baseline | None]],
    ) -> None:
        self._is_loading = False
        curves, baselines = answer
        self._environments |= environments
        self._baselines = {**self._baselines, **baselines}
        self._curves.update({run_id: own for run_id, own in curves.items() if run_id in self.runs})
        self._final.update(run.run_id for run in piece if run.status == "TERM")
        self._is_dirty = True
        self.progressed.emit(len(self._curves), sum(run.status != "INIT" for run in self.runs.values()))
        self._go_on()

    def _fail(self, words: str) -> None:
        self._is_loading = False
        if self._link.is_connected:
            self.failed.emit(words)

    # ---------------------------------------------------------------- computing

    def _compute(self) -> None:
        if self._is_computing or not self._is_dirty:
            return
        self._is_computing, self._is_dirty = True, False
        runs, curves, baselines = list(self.runs.values()), dict(self._curves), dict(self._baselines)

        def compute() -> Compared:
            comparison = compare_curves(runs, curves, baselines=baselines)
            rows, groups = (rows_of(comparison, runs, grouped=grouped) for grouped in (False, True))
            thinned = any(curve.is_thinned for own in curves.values() for curve in own.values())
            return Compared(comparison, rows, groups, thinned)

        self._link.background.run(compute, owner=self, done=self._computed, failed=self._not_computed)

    def _computed(self, compared: Compared) -> None:
        self._is_computing = False
        self.found.emit(compared)
        self._go_on()

    def _not_computed(self, error: Exception) -> None:
        self._is_computing = False
        raise error


def _curves_of(client: TrainerClient, run: pb.Run, points: int) -> dict[str, Curve]:
    """A run that was deleted meanwhile has none."""
    try:
        return load_curves(client, [run], RETURN_TAGS, max_points=points)[run.run_id]
    except DaemonUnreachable:
        raise
    except TrainerError:
        return {}
