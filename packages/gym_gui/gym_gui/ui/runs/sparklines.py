"""Short curves beside the returns: fetched for the rows on the screen only, a few at a time, and kept."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QObject, Signal

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.ui.daemon_link import DaemonLink

TAG = "charts/episodic_return"
POINTS = 40
AT_ONCE = 6
"""Curves asked for in one go; a fast scroll must not queue up hundreds"""
REFRESH_S = 4.0
"""A growing curve is asked for again after this long"""
_MOST_KEPT = 1_000


@dataclass(frozen=True)
class _Kept:
    curve: tuple[float, ...]
    fetched_at: float
    step: int
    is_final: bool


class Sparklines(QObject):
    """Asks the daemon for the curves of the runs that `want` names; `arrived` tells of each that has changed."""

    arrived = Signal(str, object)  # run id, tuple[float, ...]

    def __init__(
        self, link: DaemonLink, parent: QObject | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(parent)
        self._link = link
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._wanted: tuple[pb.Run, ...] = ()
        self._is_busy = False

    def want(self, runs: Sequence[pb.Run]) -> None:
        """These runs are on the screen now."""
        self._wanted = tuple(runs)
        self._go_on()

    def forget(self, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:
            self._kept.pop(run_id, None)

    def _go_on(self) -> None:
        if self._is_busy or not self._link.is_connected:
            return
        due = [run for run in self._wanted if self._is_due(run)][:AT_ONCE]
        if not due:
            return
        self._is_busy = True
        asked = {run.run_id: run for run in due}
        self._link.call(
            lambda client: {run_id: fetch(client, run_id) for run_id in asked},
            owner=self,
            done=lambda curves: self._take(asked, curves),
            failed=lambda words: self._give_up(),
        )

    def _is_due(self, run: pb.Run) -> bool:
        kept = self._kept.get(run.run_id)
        if kept is None:
            return run.status not in ("INIT", "HSHK")  # it has not done anything yet
        if kept.is_final or kept.step == run.step:
            return run.status == "TERM" and not kept.is_final
        return self._clock() - kept.fetched_at >= REFRESH_S

    def _take(self, asked: dict[str, pb.Run], curves: dict[str, tuple[float, ...]]) -> None:
        self._is_busy = False
        now = self._clock()
        for run_id, curve in curves.items():
            run = asked[run_id]
            self._kept[run_id] = _Kept(curve, now, run.step, run.status == "TERM")
            self._kept.move_to_end(run_id)
            self.arrived.emit(run_id, curve)
        while len(self._kept) > _MOST_KEPT:
            old, _ = self._kept.popitem(last=False)
            self.arrived.emit(old, ())
        self._go_on()

    def _give_up(self) -> None:
        # The daemon is away; whoever looks asks again in a moment.
        self._is_busy = False


def fetch(client: TrainerClient, run_id: str) -> tuple[float, ...]:
    """The returns of a run, thinned; none when it has no such curve (or is gone by now)."""
    values: list[float] = []
    try:
        with client.metrics(run_id, [TAG], max_points=POINTS) as stream:
            for message in stream:
                for curve in message.curves:
                    if curve.is_reset:
                        values.clear()
                    values.extend(curve.values)
    except DaemonUnreachable:
        raise
    except TrainerError:
        return ()
    return tuple(value for value in values if math.isfinite(value))
