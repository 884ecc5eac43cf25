"""GPUs: those the machine has, and the processes that use them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mosaic_wire import env

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one slice of a partitioned one; its id is valid in CUDA_VISIBLE_DEVICES."""

    id: str
    name: str = ""
    memory_mb: int = 0


class GPUAllocator:
    """Allocates whole GPUs to runs; a GPU has at most one holder, except after `restore`."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = tuple(gpus)
        self._held: dict[str, tuple[str, ...]] = {}

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return the GPUs of the machine."""
        return self._gpus

    @property
    def free(self) -> tuple[Gpu, ...]:
        """Return the GPUs that no run holds."""
        held = {gpu_id for ids in self._held.values() for gpu_id in ids}
        return tuple(gpu for gpu in self._gpus if gpu.id not in held)

    def holder_of(self, gpu_id: str) -> str | None:
        """Return the run that holds this GPU."""
        return next((run_id for run_id, ids in self._held.items() if gpu_id in ids), None)

    def allocate(self, run_id: str, count: int) -> tuple[str, ...] | None:
        """Allocate `count` GPUs to this run and return their ids, or None when too few are free."""
        if run_id in self._held:
            raise ValueError(f"run {run_id} already holds GPUs")
        free = self.free
        if count > len(free):
            return None
        ids = tuple(gpu.id for gpu in free[:count])
        if ids:
            self._held[run_id] = ids
        return ids

    def restore(self, run_id: str, gpu_ids: Sequence[str]) -> None:
        """Record what a re-attached run holds, even if the machine has no such GPU or another run holds it."""
        if gpu_ids:
            self._held[run_id] = tuple(gpu_ids)

    def release(self, run_id: str) -> None:
        """Release the GPUs of this run, if any."""
        self._held.pop(run_id, None)


def detect_gpus(environment: Mapping[str, str] | None = None) -> tuple[Gpu, ...]:
    """Return the GPUs that runs may use; none without an NVIDIA driver.

    CUDA_VISIBLE_DEVICES in the daemon's environment limits them, for machines that are shared.
    """
    environment = os.environ if environment is None else environment
    return choose_visible(_detect_all(), environment.get(env.CUDA_VISIBLE_DEVICES))


def choose_visible(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that a CUDA_VISIBLE_DEVICES value names by number or by (shortened) id; None: all."""
    if visible is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for name in map(str.strip, visible.split(",")):
        if name.isdecimal():
            found = gpus[int(name)] if int(name) < len(gpus) else None
        else:
            found = next((gpu for gpu in gpus if name and gpu.id.startswith(name)), None)
        if found is None:
            break  # as in CUDA, devices after an unknown one are invisible
        if found not in chosen:
            chosen.append(found)
    return tuple(chosen)


def _detect_all() -> tuple[Gpu, ...]:
    # Imported late: only the detection needs it.
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    gpus: list[Gpu] = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                gpus.extend(_describe(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)))
            except pynvml.NVMLError as error:
                # One broken GPU must not hide other GPUs.
                logger.warning("GPU %d cannot be used: %s", index, error)
    finally:
        pynvml.nvmlShutdown()
    return tuple(gpus)


def _describe(pynvml: Any, handle: Any) -> list[Gpu]:
    """Return the GPU, or its slices if it is partitioned (MIG), because CUDA then accepts only those."""
    slices = []
    try:
        partitioned = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError:
        partitioned = False  # most cards cannot be partitioned
    if not partitioned:
        slices.append(handle)
    else:
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                slices.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
            except pynvml.NVMLError:
                continue  # no slice at this index
    return [
        Gpu(
            id=_text(pynvml.nvmlDeviceGetUUID(each)),
            name=_text(pynvml.nvmlDeviceGetName(handle)),
            memory_mb=int(pynvml.nvmlDeviceGetMemoryInfo(each).total) >> 20,
        )
        for each in slices
    ]


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
