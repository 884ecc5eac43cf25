"""How busy this machine is: CPU, memory, GPUs. No Qt; asked in a background thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True)
class GpuUse:
    percent: int
    memory_used: int
    memory_total: int


@dataclass(frozen=True)
class MachineUse:
    """Percent of all cores together; bytes."""

    cpu_percent: float | None
    """None at the first question: there is nothing to compare with yet"""
    memory_used: int
    memory_total: int
    gpus: tuple[GpuUse, ...] = ()


class MachineMeter:
    """Asks the machine; the CPU figure is the mean since the last question.

    Not `psutil.cpu_percent`: it remembers the last question of each thread, and ours come from several.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._has_looked_for_gpus = False
        self._before: tuple[float, float] | None = None

    def read(self) -> MachineUse:
        memory = psutil.virtual_memory()
        return MachineUse(self._cpu_percent(), memory.total - memory.available, memory.total, self._gpus())

    def _cpu_percent(self) -> float | None:
        times = psutil.cpu_times()
        # `user` and `nice` hold the guests' time already.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle = times.idle + getattr(times, "iowait", 0.0)
        before, self._before = self._before, (total, idle)
        if before is None or total <= before[0]:
            return None
        return 100.0 * (1.0 - (idle - before[1]) / (total - before[0]))

    def _gpus(self) -> tuple[GpuUse, ...]:
        if not self._has_looked_for_gpus:
            self._has_looked_for_gpus = True
            import pynvml

            try:
                pynvml.nvmlInit()
                self._nvml = pynvml
            except pynvml.NVMLError:
                return ()
        if (nvml := self._nvml) is None:
            return ()
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                percent = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            except nvml.NVMLError:
                continue  # a card that fell off the bus, or a partitioned one that does not tell
            found.append(GpuUse(percent, int(memory.used), int(memory.total)))
        return tuple(found)
