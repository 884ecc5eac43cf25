"""How far a sweep is: heartbeats, curves, checkpoints. For `mosaic runs`, `mosaic watch` and the window."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from mosaic_wire.checkpoints import write_checkpoint
from mosaic_wire.event_writer import ScalarEventWriter
from mosaic_wire.lifecycle import LifecycleKind
from mosaic_wire.manifest import AnalyticsManifest
from mosaic_wire.session import WorkerSession
from optuna.trial import TrialState

EVENTS = "tensorboard"


class SweepProgress:
    """Counts trials; step: those that have ended, return: the best objective so far."""

    def __init__(self, session: WorkerSession, total: int, *, maximize: bool) -> None:
        self._session, self.total, self._maximize = session, total, maximize
        self.finished = self.pruned = self.failed = self.running = 0
        self.best: float | None = None
        self._last: float | None = None
        self._told = -1
        self._began, self._finished_before = time.monotonic(), 0
        self._writer = ScalarEventWriter(session.run_folder.root / EVENTS)
        self.manifest = AnalyticsManifest(session.run_id)
        self.state: dict[str, Any] = {}
        """What a checkpoint holds beside the study"""

    def count(self, state: TrialState, value: float | None) -> None:
        """A trial has ended."""
        self.finished += 1
        self.pruned += state is TrialState.PRUNED
        self.failed += state is TrialState.FAIL
        if state is TrialState.COMPLETE and value is not None:
            self._last = value
            if self.best is None or (value > self.best) is self._maximize:
                self.best = value
        else:
            self._last = None

    def tell(self) -> None:
        """Let everybody know; a full disk costs the curves a point, nothing else."""
        if self._told < 0:
            self._finished_before = self.finished
        done, took_s = self.finished - self._finished_before, time.monotonic() - self._began
        self._session.progress(self.finished, self.total, self.best, done / took_s if done else None)
        if self.finished == self._told:
            return
        self._told = self.finished
        values: dict[str, float] = {"sweep/running": self.running, "sweep/pruned": self.pruned}
        values["sweep/failed"] = self.failed
        if self.best is not None:
            values["sweep/best"] = self.best
        if self._last is not None:
            values["sweep/objective"] = self._last
        with suppress(OSError):
            self._writer.add_scalars(values, self.finished)

    def save(self) -> None:
        """Write a checkpoint: it says where the study is, and the study is always up to date."""
        folder = self._session.run_folder
        entry = write_checkpoint(folder, self.finished, self.state, kind="last")
        self.manifest = replace(self.manifest, checkpoints=(entry,))
        self.manifest.write(folder.manifest)
        self._session.emit(LifecycleKind.CHECKPOINT_SAVED, entry.to_json())

    def summary(self) -> dict[str, Any]:
        """For the ending of the run."""
        return {
            "step": self.finished, "total": self.total, "best": self.best, "pruned": self.pruned, "failed": self.failed,
        }  # fmt: skip

    def close(self) -> None:
        self._writer.close()
