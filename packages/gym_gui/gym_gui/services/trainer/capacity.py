"""Check free memory and disk space before a run starts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

import psutil
from mosaic_wire.paths import Home

from gym_gui.services.trainer.cgroups import memory_ceiling
from gym_gui.services.trainer.resources import ResourceRequest


class CapacityProbe(Protocol):
    """Measures free memory and disk space; tests replace it."""

    def free_memory_mb(self) -> int:
        """Return the memory available now."""

    def free_disk_mb(self, folder: Path) -> int:
        """Return the free space of the disk that holds this folder."""


class MachineProbe:
    """Measures this machine and the container around the daemon."""

    def free_memory_mb(self) -> int:
        """Return the memory that new processes can use without swapping."""
        free: int = psutil.virtual_memory().available
        if (ceiling := memory_ceiling()) is not None:
            free = min(free, ceiling.free_bytes)
        return free >> 20

    def free_disk_mb(self, folder: Path) -> int:
        """Return the free space of the disk that holds, or will hold, this folder."""
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return shutil.disk_usage(folder).free >> 20


class CapacityGuard:
    """Checks that the machine has room for a run and a reserve for everything else."""

    def __init__(
        self,
        home: Home,
        *,
        min_free_disk_mb: int = 512,
        min_free_memory_mb: int = 256,
        probe: CapacityProbe | None = None,
    ) -> None:
        self._home = home
        self._min_free_disk_mb = min_free_disk_mb
        self._min_free_memory_mb = min_free_memory_mb
        self._probe: CapacityProbe = MachineProbe() if probe is None else probe

    def shortage(
        self, request: ResourceRequest, estimated_memory_mb: int, *, promised_memory_mb: int = 0
    ) -> str | None:
        """Return what is short for this run now, or None.

        A run needs the memory it requests, else what its worker estimates. `promised_memory_mb`: memory that runs
        which were just started will use but have not allocated yet.
        """
        needed_mb = estimated_memory_mb if request.memory_mb is None else request.memory_mb
        free_mb = max(0, self._probe.free_memory_mb() - promised_memory_mb)
        if needed_mb + self._min_free_memory_mb > free_mb:
            return (
                f"waiting for memory: needs about {needed_mb} MB, {free_mb} MB free "
                f"({self._min_free_memory_mb} MB stay in reserve)"
            )
        # The runs folder may be a link to another disk.
        disk_mb, folder = min((self._probe.free_disk_mb(each), each) for each in (self._home.root, self._home.runs))
        if disk_mb < self._min_free_disk_mb:
            return (
                f"waiting for disk space: {disk_mb} MB free under {folder}, "
                f"{self._min_free_disk_mb} MB are needed; delete runs you no longer need"
            )
        return None
