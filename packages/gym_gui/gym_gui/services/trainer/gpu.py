"""GPUs: what the machine really has, and who holds which."""

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
    """One GPU, or one slice of a partitioned one; its id can stand in CUDA_VISIBLE_DEVICES."""

    id: str
    name: str = ""
    memory_mb: int = 0


class GPUAllocator:
    """Hands out whole GPUs to runs; a GPU has at most one holder, except after `restore`."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = tuple(gpus)
        self._held: dict[str, tuple[str, ...]] = {}

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self._gpus

    @property
    def free(self) -> tuple[Gpu, ...]:
        taken = {gpu_id for ids in self._held.values() for gpu_id in ids}
        return tuple(gpu for gpu in self._gpus if gpu.id not in taken)

    def holder_of(self, gpu_id: str) -> str | None:
        """Return the run that holds this GPU."""
        return next((run_id for run_id, ids in self._held.items() if gpu_id in ids), None)

    def allocate(self, run_id: str, count: int) -> tuple[str, ...] | None:
        """Give this run `count` GPUs, or None when there are not enough free ones."""
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
        """Note what a re-attached run holds, even if the machine or another run disagrees."""
        if gpu_ids:
            self._held[run_id] = tuple(gpu_ids)

    def release(self, run_id: str) -> None:
        """Take back what this run holds, if anything."""
        self._held.pop(run_id, None)


def detect_gpus(environment: Mapping[str, str] | None = None) -> tuple[Gpu, ...]:
    """Return the GPUs this machine has and we may use; none without an NVIDIA driver.

    A CUDA_VISIBLE_DEVICES of the daemon's own environment is obeyed: it may be one tenant of a shared machine.
    """
    environment = os.environ if environment is None else environment
    return choose_visible(_detect_all(), environment.get(env.CUDA_VISIBLE_DEVICES))


def choose_visible(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that a CUDA_VISIBLE_DEVICES value names by number or by (shortened) id; None: all."""
    if visible is None:
        return tuple(gpus)
    chosen: list[Gpu] = []
    for word in visible.split(","):
        word = word.strip()
        if word.isdecimal():
            found = gpus[int(word)] if int(word) < len(gpus) else None
        else:
            found = next((gpu for gpu in gpus if word and gpu.id.startswith(word)), None)
        if found is None:
            break  # as CUDA does: what follows an unknown device is invisible
        if found not in chosen:
            chosen.append(found)
    return tuple(chosen)


def _detect_all() -> tuple[Gpu, ...]:
    # Imported here: most machines that run this have no GPU, and the ledger needs only the dataclass above.
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
                # One broken card must not take the others away.
                logger.warning("GPU %d cannot be used: %s", index, error)
    finally:
        pynvml.nvmlShutdown()
    return tuple(gpus)


def _describe(pynvml: Any, handle: Any) -> list[Gpu]:
    """Return the GPU, or its slices when it is partitioned (MIG): CUDA then accepts only those."""
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
                continue  # an empty place
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
