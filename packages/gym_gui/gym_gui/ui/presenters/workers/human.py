"""Human-Only: a person plays; every step is recorded through the telemetry lane."""

from __future__ import annotations

from mosaic_wire.capabilities import Lane

from gym_gui.ui.presenters.workers.base import WorkerPresenter


class HumanWorkerPresenter(WorkerPresenter):
    name = "human"
    lane = Lane.TELEMETRY
