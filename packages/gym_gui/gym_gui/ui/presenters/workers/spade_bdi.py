"""The Spade BDI worker: a live worker, watched step by step."""

from __future__ import annotations

from mosaic_wire.capabilities import Lane

from gym_gui.ui.presenters.workers.base import WorkerPresenter


class SpadeBdiWorkerPresenter(WorkerPresenter):
    name = "spade_bdi"
    lane = Lane.TELEMETRY
