"""The LLM multi-step worker: hybrid, a little telemetry for its prompts and analytics behind it."""

from __future__ import annotations

from mosaic_wire.capabilities import Lane

from gym_gui.ui.presenters.workers.base import WorkerPresenter


class LlmWorkerPresenter(WorkerPresenter):
    name = "llm"
    lane = Lane.HYBRID
