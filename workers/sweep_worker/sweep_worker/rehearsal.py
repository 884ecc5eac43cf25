"""A sweep without training, to try a sampler and to test the controller without a daemon.

The objective of a trial is how near its values are to the middle of their ranges, at most 100.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from mosaic_wire.child_runs import COMPLETED, ChildRun
from mosaic_wire.ids import new_run_id
from mosaic_wire.run_request import algo_params, run_request, worker_part
from mosaic_wire.run_status import RunStatus
from mosaic_wire.sweep_settings import ParameterRange, SweepSettings

TRIAL = run_request("rehearsal", algo="rehearsal", env_id="none", run_id=None)
TOTAL_TIMESTEPS = 1_000


@dataclass
class _Rehearsed:
    run: ChildRun
    ends_at: float
    value: float


class RehearsedRuns:
    """Simulates the runs of a daemon."""

    def __init__(self, settings: SweepSettings) -> None:
        self._settings = settings
        self._going: dict[str, _Rehearsed] = {}
        self._over: list[ChildRun] = []
        self._seq = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._going.clear()

    def submit(self, config: Mapping[str, Any], *, key: str) -> ChildRun:
        parameters = algo_params(worker_part(config)["extras"])
        distances = [_distance(each, parameters[each.name]) for each in self._settings.parameters]
        value = 100 * (1 - math.fsum(distance**2 for distance in distances) / len(distances))
        run = ChildRun(new_run_id(), RunStatus.EXEC, total=TOTAL_TIMESTEPS, event_seq=next(self._seq))
        self._going[run.run_id] = _Rehearsed(run, time.monotonic() + self._settings.rehearse_s, value)
        return run

    def cancel(self, run_id: str, reason: str) -> None:
        if (known := self._going.pop(run_id, None)) is not None:
            self._over.append(replace(known.run, status=RunStatus.TERM, outcome="cancelled", reason=reason))

    def poll(self, timeout_s: float) -> list[ChildRun]:
        """Return the updates of running and ended runs."""
        ends = [each.ends_at for each in self._going.values()]
        if not self._over and ends:
            quantum_s = self._settings.rehearse_s / max(1, self._settings.reports)
            time.sleep(max(0.0, min(timeout_s, quantum_s, min(ends) - time.monotonic())))
        found, self._over = self._over, []
        for run_id, each in list(self._going.items()):
            left = (each.ends_at - time.monotonic()) / self._settings.rehearse_s
            done = max(0.0, 1 - left)
            step = min(TOTAL_TIMESTEPS, int(TOTAL_TIMESTEPS * done))
            each.run = replace(each.run, step=step, episodic_return=each.value * min(1.0, done))
            if left <= 0:
                del self._going[run_id]
                each.run = replace(each.run, status=RunStatus.TERM, outcome=COMPLETED, has_completed=True)
            found.append(each.run)
        return found

    def curve(
        self, run_id: str, tags: tuple[str, ...], *, since_step: int = 0, until_step: int | None = None
    ) -> list[tuple[int, float]]:
        return []


def _distance(each: ParameterRange, value: Any) -> float:
    """Return the distance from the middle of the range (of choices, from the first one), 0 to 1."""
    if each.kind == "categorical":
        return each.choices.index(value) / max(1, len(each.choices) - 1)
    scale = math.log if each.log else float
    low, high, here = scale(each.low), scale(each.high), scale(value)
    return abs(2 * (here - low) / (high - low) - 1)
