"""Which presenter shows a run.

presenters = PresenterRegistry()
presenters.for_entry(entry)          of the catalog
presenters.for_run(run)              by its worker type; by what the worker said of itself when nobody wrote one
"""

from __future__ import annotations

import json
from collections.abc import Callable

from mosaic_wire.capabilities import Lane
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.ui.presenters.workers.base import WorkerPresenter
from gym_gui.ui.presenters.workers.cleanrl import CleanRlWorkerPresenter
from gym_gui.ui.presenters.workers.human import HumanWorkerPresenter
from gym_gui.ui.presenters.workers.llm import LlmWorkerPresenter
from gym_gui.ui.presenters.workers.spade_bdi import SpadeBdiWorkerPresenter
from gym_gui.ui.presenters.workers.sweep import SweepRunPresenter
from gym_gui.ui.workers.catalog import BUILTIN, WorkerEntry, find

__all__ = [
    "CleanRlWorkerPresenter", "HumanWorkerPresenter", "LlmWorkerPresenter", "PresenterRegistry",
    "SpadeBdiWorkerPresenter", "WorkerPresenter",
]  # fmt: skip

Make = Callable[[Lane | None], WorkerPresenter]


class PresenterRegistry:
    """Presenters by name; one of each is made when it is first asked for."""

    def __init__(self) -> None:
        self._makers: dict[str, Make] = {}
        self._made: dict[tuple[str, Lane | None], WorkerPresenter] = {}
        for kind in (
            HumanWorkerPresenter, SpadeBdiWorkerPresenter, LlmWorkerPresenter, CleanRlWorkerPresenter,
            SweepRunPresenter,
        ):  # fmt: skip
            self.register(kind.name, kind)

    def register(self, name: str, make: Make) -> None:
        """Offer a presenter under the name that catalog entries use."""
        self._makers[name] = make

    def names(self) -> tuple[str, ...]:
        return tuple(self._makers)

    def get(self, name: str, lane: Lane | None = None) -> WorkerPresenter:
        """The presenter of this name; for a name nobody registered, the one that goes by the lane alone."""
        key = name, lane
        if key not in self._made:
            self._made[key] = self._makers.get(name, WorkerPresenter)(lane)
        return self._made[key]

    def for_entry(self, entry: WorkerEntry) -> WorkerPresenter:
        return self.get(entry.presenter, entry.lane)

    def for_run(self, run: pb.Run) -> WorkerPresenter:
        """The lane is what the worker said when it registered; before that, what its catalog entry says."""
        builtin = find(BUILTIN, run.worker_type)
        return self.get(builtin.presenter if builtin is not None else run.worker_type, _lane_of(run))


def _lane_of(run: pb.Run) -> Lane | None:
    try:
        told = json.loads(run.capabilities_json or "{}")
        return Lane(told["lane"]) if isinstance(told, dict) and "lane" in told else None
    except ValueError:
        return None
