"""The waiting line: who may start next, and why the others wait. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gym_gui.services.trainer.records import RunRecord

if TYPE_CHECKING:
    from gym_gui.services.trainer.resources import ResourceLedger


class RunQueue:
    """Queued runs by priority, then by order of submission.

    A run that does not fit keeps its place: what it needs is set aside, and a later, smaller run may go first only
    with what is left over. So nothing starves, and a run that waits for a GPU does not idle the CPUs.
    """

    def __init__(self) -> None:
        self._runs: dict[str, RunRecord] = {}
        self._order: list[str] | None = None
        self._weightless: set[str] = set()
        """Runs that ask for no CPU and no GPU (a sweep): nobody can be in their way"""
        self._reasons: dict[str, str] = {}
        self._waiting: set[str] = set()
        """Runs that could not start when it was their turn"""
        self._set_aside_cpus = 0.0
        self._set_aside_gpus = 0

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._runs

    def add(self, record: RunRecord) -> None:
        """Put a run in line; one that is in line already gets its new place."""
        self._runs[record.run_id] = record
        self._order = None
        if record.cpus <= 0 and record.gpus == 0:
            self._weightless.add(record.run_id)

    def get(self, run_id: str) -> RunRecord | None:
        return self._runs.get(run_id)

    def remove(self, run_id: str) -> None:
        self._weightless.discard(run_id)
        self._waiting.discard(run_id)
        if self._runs.pop(run_id, None) is not None and self._order is not None:
            self._order.remove(run_id)
        self._reasons.pop(run_id, None)

    def candidates(self, ledger: ResourceLedger) -> Iterator[RunRecord]:
        """Runs to try now, in order. The caller removes each one it started and calls `blocked` for each other."""
        self._set_aside_cpus, self._set_aside_gpus = 0.0, 0
        self._reasons.clear()
        for run_id in tuple(self._ordered()):
            record = self._runs.get(run_id)
            if record is None:
                continue
            if run_id in self._weightless:
                yield record
                continue
            free, kept = ledger.free(), self._set_aside_cpus
            if kept > 0 and free.cpus <= kept and len(free.gpus) <= self._set_aside_gpus:
                if not self._weightless:
                    return  # nobody behind could start
                continue
            if kept > 0 and record.cpus > free.cpus - kept:
                self._keep_place(record, "waiting behind runs that were queued earlier")
                continue
            yield record

    def blocked(self, record: RunRecord, reason: str) -> bool:
        """Keep the place of a run that cannot start now; True the first time."""
        self._keep_place(record, reason)
        is_new = record.run_id not in self._waiting
        self._waiting.add(record.run_id)
        return is_new

    def _keep_place(self, record: RunRecord, reason: str) -> None:
        self._reasons[record.run_id] = reason
        self._set_aside_cpus += record.cpus
        self._set_aside_gpus += record.gpus

    def reason(self, run_id: str) -> str:
        """Why this run waits, for people; empty when it does not wait here."""
        if run_id not in self._runs:
            return ""
        if known := self._reasons.get(run_id):
            return known
        ahead = self._ordered().index(run_id)
        return f"waiting: {ahead} queued before it" if ahead else "about to start"

    def _ordered(self) -> list[str]:
        if self._order is None:
            self._order = sorted(self._runs, key=lambda key: (-self._runs[key].priority, self._runs[key].number))
        return self._order
