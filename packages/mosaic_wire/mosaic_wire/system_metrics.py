"""Resource usage of a run, sampled every few seconds by its worker as curves `system/*`.

CPU, memory, threads and disk traffic of the worker's whole process tree, the size of the run folder, and of the GPUs
the run was given their use and memory. Read from /proc; where there is none, nothing is written.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic_wire.event_files import ScalarEventWriter
from mosaic_wire.files import size_below

INTERVAL_S = 5.0
FOLDER = "system"
"""Below the run's event files: TensorBoard shows it as a run of its own"""
_DISK_EVERY = 6
"""Samples between two measurements of the folder's size, which may take a while"""
_MIB = 2**20


@dataclass
class TreeUse:
    """The resources a process tree has used so far and uses now."""

    cpu_s: float = 0.0
    memory_bytes: int = 0
    threads: int = 0
    processes: int = 0
    by_process: dict[tuple[int, int], tuple[float, int, int]] = field(default_factory=dict)
    """(pid, start time) → CPU seconds, bytes read, bytes written"""


def measure_tree(root: int, proc: Path = Path("/proc")) -> TreeUse:
    """Measure a process and its descendants."""
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    use = TreeUse()
    for pid in _tree(root, proc):
        try:
            fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        cpu_s = (int(fields[11]) + int(fields[12])) / ticks
        traffic = dict.fromkeys(("read_bytes", "write_bytes"), 0)
        with suppress(OSError):
            for line in (proc / str(pid) / "io").read_text().splitlines():
                name, _, value = line.partition(": ")
                if name in traffic:
                    traffic[name] = int(value)
        use.memory_bytes += int(fields[21]) * page
        use.threads += int(fields[17])
        use.processes += 1
        use.by_process[pid, int(fields[19])] = (cpu_s, traffic["read_bytes"], traffic["write_bytes"])
    use.cpu_s = sum(cpu_s for cpu_s, _, _ in use.by_process.values())
    return use


def _tree(root: int, proc: Path) -> Iterator[int]:
    pending = [root]
    while pending:
        pid = pending.pop()
        yield pid
        for children in (proc / str(pid) / "task").glob("*/children"):
            with suppress(OSError, ValueError):
                pending += map(int, children.read_text().split())


class SystemSampler:
    """A thread that records the resource usage of a run until it is stopped."""

    def __init__(
        self, run_folder: Path, events: Path, step: Callable[[], int], *, interval_s: float = INTERVAL_S
    ) -> None:
        self._run_folder, self._events, self._step, self._interval_s = run_folder, events, step, interval_s
        self._earlier: tuple[float, TreeUse] | None = None
        self._disk_mb = 0.0
        self._count = 0
        self._gpus = _gpus()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mosaic-system", daemon=True)

    def start(self) -> None:
        """Start the thread that samples."""
        if os.path.isdir("/proc/self"):
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(2)

    def _work(self) -> None:
        writer = ScalarEventWriter(self._events / FOLDER)
        while True:
            values = self.sample()
            with suppress(OSError):  # a full disk: this sample is lost
                if values:
                    writer.add_scalars(values, self._step())
            if self._stopping.wait(self._interval_s):
                writer.close()
                return

    def sample(self) -> dict[str, float]:
        """Return the values since the last sample; empty the first time."""
        now, use = time.monotonic(), measure_tree(os.getpid())
        earlier, self._earlier = self._earlier, (now, use)
        if self._count % _DISK_EVERY == 0:
            self._disk_mb = size_below(self._run_folder) / _MIB
        self._count += 1
        if earlier is None:
            return {}
        seconds, before = max(1e-9, now - earlier[0]), earlier[1].by_process
        grown = [0.0, 0.0, 0.0]
        for key, figures in use.by_process.items():
            # All usage of a new process is recent; the last usage of an ended one is lost.
            known = before.get(key, (0.0, 0, 0))
            for index in range(3):
                grown[index] += figures[index] - known[index]
        return {
            "cpu_percent": 100 * grown[0] / seconds,
            "memory_mb": use.memory_bytes / _MIB,
            "threads": float(use.threads),
            "processes": float(use.processes),
            "read_mb_s": grown[1] / seconds / _MIB,
            "written_mb_s": grown[2] / seconds / _MIB,
            "disk_mb": self._disk_mb,
            **_gpu_figures(self._gpus),
        }


def _gpus() -> Mapping[str, Any]:
    """Return handles of the run's GPUs; none without a reservation or NVIDIA's library."""
    ids = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.startswith("GPU-")]
    if not ids:
        return {}
    try:
        import pynvml

        pynvml.nvmlInit()
        return {str(index): pynvml.nvmlDeviceGetHandleByUUID(name) for index, name in enumerate(ids)}
    except Exception:  # noqa: BLE001 - a driver that is not there raises whatever it likes; then there are no figures
        return {}


def _gpu_figures(handles: Mapping[str, Any]) -> dict[str, float]:
    figures: dict[str, float] = {}
    if handles:
        import pynvml

        for name, handle in handles.items():
            with suppress(pynvml.NVMLError):
                figures[f"gpu{name}_percent"] = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
                figures[f"gpu{name}_memory_mb"] = pynvml.nvmlDeviceGetMemoryInfo(handle).used / _MIB
    return figures
