"""What runs ask for, what the machine has, and who holds what. Pure: no I/O, no clock.

GPUs: a run gets as many as are free between `gpus_mandatory` and `gpus`. A run that would like GPUs and insists on
none waits for at least one on a machine that has any (a CPU run that takes days is not what it meant), and runs on
the CPU where there is none at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mosaic_wire.errors import Problem

from gym_gui.services.trainer.gpu import Gpu, GPUAllocator

_ROUNDING = 1e-9
"""Sums of fractions such as 0.1 are a little off."""


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """What one run asks for."""

    cpus: float = 1.0
    gpus: int = 0
    gpus_mandatory: int = 0
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the machine has for runs."""

    cpus: float
    memory_mb: int
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one run holds."""

    cpus: float
    memory_mb: int = 0
    gpu_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FreeResources:
    """What nobody holds; never below zero, also when restored runs hold more than there is."""

    cpus: float
    memory_mb: int
    gpus: tuple[Gpu, ...]


class ResourceLedger:
    """Knows what every run holds; gives out no more than there is."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self._held: dict[str, Reservation] = {}
        self._gpus = GPUAllocator(inventory.gpus)

    def lacking(self, request: ResourceRequest) -> list[Problem]:
        """What of the request this machine can never meet."""
        have = self.inventory
        lacking: list[Problem] = []
        if request.cpus > have.cpus + _ROUNDING:
            said = f"needs {_count(request.cpus, 'CPU')}, this machine has {have.cpus:g} for runs"
            lacking.append(Problem("resources.cpus", said))
        if request.memory_mb is not None and request.memory_mb > have.memory_mb:
            said = f"needs {request.memory_mb} MB of memory, this machine has {have.memory_mb} MB for runs"
            lacking.append(Problem("resources.memory_mb", said))
        if request.gpus_mandatory > len(have.gpus):
            said = f"needs {_count(request.gpus_mandatory, 'GPU')}, this machine has {len(have.gpus) or 'none'}"
            lacking.append(Problem("resources.gpus", said))
        return lacking

    def impossible(self, request: ResourceRequest) -> str | None:
        """Say why this machine can never meet the request, or None when it can."""
        lacking = [problem.message for problem in self.lacking(request)]
        cure = "ask for less under `resources`, or run it on a larger machine"
        return "; ".join([*lacking, cure]) if lacking else None

    def reserve(self, run_id: str, request: ResourceRequest) -> Reservation | str:
        """Reserve everything the request needs, or nothing and say what is missing."""
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
        """Note what a re-attached run holds; it may be more than there is, nothing new starts until it fits again."""
        self._held[run_id] = reservation
        self._gpus.release(run_id)
        self._gpus.restore(run_id, reservation.gpu_ids)

    def release(self, run_id: str) -> None:
        """Take back what this run holds, if anything."""
        self._held.pop(run_id, None)
        self._gpus.release(run_id)

    def held(self, run_id: str) -> Reservation | None:
        """Return what this run holds."""
        return self._held.get(run_id)

    @property
    def is_idle(self) -> bool:
        """Whether no run has, or is getting, a process."""
        return not self._held

    def holder_of(self, gpu_id: str) -> str | None:
        """Return the run that holds this GPU."""
        return self._gpus.holder_of(gpu_id)

    def free(self) -> FreeResources:
        """Return what nobody holds."""
        return FreeResources(
            cpus=max(0.0, _tidy(self.inventory.cpus - math.fsum(each.cpus for each in self._held.values()))),
            memory_mb=max(0, self.inventory.memory_mb - sum(each.memory_mb for each in self._held.values())),
            gpus=self._gpus.free,
        )


def _tidy(value: float) -> float:
    return round(value, 9)


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}" + ("" if number == 1 else "s")
