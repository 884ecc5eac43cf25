"""Is there room now? Free memory and disk are looked at before a run starts, and the reason it waits is told."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Protocol

import psutil
from mosaic_wire.paths import Home

from gym_gui.services.trainer.cgroup_mounts import memory_ceiling
from gym_gui.services.trainer.resources import ResourceRequest


class CapacityProbe(Protocol):
    """Measures what is free; tests bring their own."""

    def free_memory_mb(self) -> int: ...

    def free_disk_mb(self, folder: Path) -> int: ...


class MachineProbe:
    """Asks this machine, and the container we are in."""

    def free_memory_mb(self) -> int:
        """Memory that new processes can have without anything being swapped out."""
        free: int = psutil.virtual_memory().available
        if (ceiling := memory_ceiling()) is not None:
            free = min(free, ceiling.free_bytes)
        return free >> 20

    def free_disk_mb(self, folder: Path) -> int:
        """Room on the disk that holds, or will hold, this folder."""
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return shutil.disk_usage(folder).free >> 20


class CapacityGuard:
    """Lets a run start only when the machine has room for it and the rest of the machine."""

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
        """Say what there is too little of for this run now, or None.

        A run needs the memory it asked for, else what its worker estimates. `promised_memory_mb`: what runs that
        were started a moment ago will take and do not show yet.
        """
        needed_mb = estimated_memory_mb if request.memory_mb is None else request.memory_mb
        free_mb = max(0, self._probe.free_memory_mb() - promised_memory_mb)
        if needed_mb + self._min_free_memory_mb > free_mb:
            return (
                f"waiting for memory: needs about {needed_mb} MB, {free_mb} MB free "
                f"({self._min_free_memory_mb} MB stay in reserve)"
            )
        disk_mb = self._probe.free_disk_mb(self._home.root)
        if disk_mb < self._min_free_disk_mb:
            return (
                f"waiting for disk space: {disk_mb} MB free under {self._home.root}, "
                f"{self._min_free_disk_mb} MB are needed; delete runs you no longer need"
            )
        return None
