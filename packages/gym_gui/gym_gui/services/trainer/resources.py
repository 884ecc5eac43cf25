"""Resources: what runs request, what the machine has, and which run holds what.

A run gets as many GPUs as are free between `gpus_mandatory` and `gpus`. A run that requests GPUs of which none is
mandatory waits for at least one on a machine that has any, and runs on the CPU on a machine without GPUs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
from mosaic_wire.errors import Problem

from gym_gui.config.settings import Settings
from gym_gui.services.trainer.cgroups import cpu_quota, memory_ceiling
from gym_gui.services.trainer.gpu import Gpu, GPUAllocator, detect_gpus
from gym_gui.services.trainer.records import RunRecord

_ROUNDING = 1e-9
"""Tolerance for sums of fractions such as 0.1"""


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """The resources that one run requests."""

    cpus: float = 1.0
    gpus: int = 0
    gpus_mandatory: int = 0
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """The resources that the machine has for runs."""

    cpus: float
    memory_mb: int
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Reservation:
    """The resources that one run holds."""

    cpus: float
    memory_mb: int = 0
    gpu_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FreeResources:
    """The resources that no run holds; never negative, even if restored runs hold more than there is."""

    cpus: float
    memory_mb: int
    gpus: tuple[Gpu, ...]


class ResourceLedger:
    """Records what every run holds and reserves no more than there is."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._held: dict[str, Reservation] = {}
        self._gpus = GPUAllocator(inventory.gpus)

    def lacking(self, request: ResourceRequest) -> list[Problem]:
        """Return the parts of the request that this machine can never meet."""
        have = self.inventory
        lacking: list[Problem] = []
        if request.cpus > have.cpus + _ROUNDING:
            text = f"needs {_count(request.cpus, 'CPU')}, this machine has {have.cpus:g} for runs"
            lacking.append(Problem("resources.cpus", text))
        if request.memory_mb is not None and request.memory_mb > have.memory_mb:
            text = f"needs {request.memory_mb} MB of memory, this machine has {have.memory_mb} MB for runs"
            lacking.append(Problem("resources.memory_mb", text))
        if request.gpus_mandatory > len(have.gpus):
            text = f"needs {_count(request.gpus_mandatory, 'GPU')}, this machine has {len(have.gpus) or 'none'}"
            lacking.append(Problem("resources.gpus", text))
        return lacking

    def impossible(self, request: ResourceRequest) -> str | None:
        """Return why this machine can never meet the request, or None."""
        lacking = [problem.message for problem in self.lacking(request)]
        remedy = "request less under `resources`, or run it on a larger machine"
        return "; ".join([*lacking, remedy]) if lacking else None

    def reserve(self, run_id: str, request: ResourceRequest) -> Reservation | str:
        """Reserve everything the request needs, or nothing and return what is missing."""
        if run_id in self._held:
            raise ValueError(f"run {run_id} already holds a reservation")
        free = self.free()
        missing: list[str] = []
        if request.cpus > free.cpus + _ROUNDING:
            missing.append(f"{_count(request.cpus, 'CPU')} ({free.cpus:g} of {self.inventory.cpus:g} free)")
        memory_mb = request.memory_mb or 0
        if memory_mb > free.memory_mb:
            missing.append(f"{memory_mb} MB of memory ({free.memory_mb} of {self.inventory.memory_mb} MB not promised)")
        gpus_at_least, gpus_at_most = self._gpu_range(request)
        if gpus_at_least > len(free.gpus):
            missing.append(
                f"{_count(gpus_at_least, 'GPU')} ({len(free.gpus) or 'none'} of {len(self.inventory.gpus)} free)"
            )
        if missing:
            return "waiting for " + " and ".join(missing)
        gpu_ids = self._gpus.allocate(run_id, min(gpus_at_most, len(free.gpus)))
        assert gpu_ids is not None, "free() and the allocator disagree"
        reservation = Reservation(cpus=request.cpus, memory_mb=memory_mb, gpu_ids=gpu_ids)
        self._held[run_id] = reservation
        return reservation

    def _gpu_range(self, request: ResourceRequest) -> tuple[int, int]:
        if not self.inventory.gpus:
            return request.gpus_mandatory, request.gpus_mandatory
        return max(request.gpus_mandatory, min(request.gpus, 1)), max(request.gpus, request.gpus_mandatory)

    def restore(self, run_id: str, reservation: Reservation) -> None:
        """Record what a re-attached run holds, even if that is more than there is."""
        self._held[run_id] = reservation
        self._gpus.release(run_id)
        self._gpus.restore(run_id, reservation.gpu_ids)

    def release(self, run_id: str) -> None:
        """Release what this run holds, if anything."""
        self._held.pop(run_id, None)
        self._gpus.release(run_id)

    def held(self, run_id: str) -> Reservation | None:
        """Return the reservation of this run, or None."""
        return self._held.get(run_id)

    @property
    def is_idle(self) -> bool:
        """Return whether no run has or is getting a process."""
        return not self._held

    def holder_of(self, gpu_id: str) -> str | None:
        """Return the run that holds this GPU."""
        return self._gpus.holder_of(gpu_id)

    def free(self) -> FreeResources:
        """Return the resources that no run holds."""
        return FreeResources(
            cpus=max(0.0, round(self.inventory.cpus - math.fsum(each.cpus for each in self._held.values()), 9)),
            memory_mb=max(0, self.inventory.memory_mb - sum(each.memory_mb for each in self._held.values())),
            gpus=self._gpus.free,
        )


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}" + ("" if number == 1 else "s")


# ---------------------------------------------------------------- inventory


def detect_inventory(settings: Settings) -> Inventory:
    """Return the CPUs, memory and GPUs of the machine or the container, unless the settings override them."""
    cpus = float(len(os.sched_getaffinity(0)))
    if (quota := cpu_quota()) is not None:
        cpus = min(cpus, quota)
    memory_bytes: int = psutil.virtual_memory().total
    if (ceiling := memory_ceiling()) is not None:
        memory_bytes = min(memory_bytes, ceiling.total_bytes)
    return Inventory(
        cpus=cpus if settings.cpus is None else settings.cpus,
        memory_mb=memory_bytes >> 20 if settings.memory_mb is None else settings.memory_mb,
        gpus=detect_gpus(),
    )


# ---------------------------------------------------------------- run queue


class RunQueue:
    """Queued runs by priority, then by order of submission.

    A run that does not fit keeps its place: its resources are set aside, and a later, smaller run may start first
    only with the rest. So no run starves, and a run that waits for a GPU does not leave the CPUs idle.
    """

    def __init__(self) -> None:
        self._runs: dict[str, RunRecord] = {}
        self._order: list[str] | None = None
        self._weightless: set[str] = set()
        """Runs that need nothing of this machine: sweeps, and those of other executors"""
        self._reasons: dict[str, str] = {}
        self._waiting: set[str] = set()
        """Runs that could not start when it was their turn"""
        self._set_aside_cpus = 0.0
        self._set_aside_gpus = 0

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._runs

    def count(self, executor: str) -> int:
        """Return how many runs wait for this executor; empty: this machine."""
        return sum(record.executor == executor for record in self._runs.values())

    def add(self, record: RunRecord) -> None:
        """Queue a run, or move a queued one to its new place."""
        self._runs[record.run_id] = record
        self._order = None
        if record.executor or (record.cpus <= 0 and record.gpus == 0):
            self._weightless.add(record.run_id)

    def get(self, run_id: str) -> RunRecord | None:
        """Return a queued run, or None."""
        return self._runs.get(run_id)

    def remove(self, run_id: str) -> None:
        """Remove a run from the queue."""
        self._weightless.discard(run_id)
        self._waiting.discard(run_id)
        if self._runs.pop(run_id, None) is not None and self._order is not None:
            self._order.remove(run_id)
        self._reasons.pop(run_id, None)

    def candidates(self, ledger: ResourceLedger) -> Iterator[RunRecord]:
        """Yield the runs to try now; the caller removes those it starts and calls `blocked` for the remaining ones."""
        self._set_aside_cpus, self._set_aside_gpus = 0.0, 0
        self._reasons.clear()
        for run_id in tuple(self._ordered()):
            record = self._runs.get(run_id)
            if record is None:
                continue
            if run_id in self._weightless:
                yield record
                continue
            free, reserved = ledger.free(), self._set_aside_cpus
            if reserved > 0 and free.cpus <= reserved and len(free.gpus) <= self._set_aside_gpus:
                if not self._weightless:
                    return  # no later run could start
                continue
            if reserved > 0 and record.cpus > free.cpus - reserved:
                self._keep_place(record, "waiting behind runs that were queued earlier")
                continue
            yield record

    def blocked(self, record: RunRecord, reason: str) -> bool:
        """Keep the place of a run that cannot start now; return whether it is blocked for the first time."""
        self._keep_place(record, reason)
        is_new = record.run_id not in self._waiting
        self._waiting.add(record.run_id)
        return is_new

    def _keep_place(self, record: RunRecord, reason: str) -> None:
        self._reasons[record.run_id] = reason
        if record.run_id not in self._weightless:
            self._set_aside_cpus += record.cpus
            self._set_aside_gpus += record.gpus

    def reason(self, run_id: str) -> str:
        """Return why this run waits, or an empty text if it is not queued."""
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
