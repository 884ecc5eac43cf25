"""What this machine has for runs, as it really is, less what the settings keep back."""

from __future__ import annotations

import os

import psutil

from gym_gui.config.settings import Settings
from gym_gui.services.trainer.cgroup_mounts import cpu_quota, memory_ceiling
from gym_gui.services.trainer.gpu import detect_gpus
from gym_gui.services.trainer.resources import Inventory


def detect_inventory(settings: Settings) -> Inventory:
    """CPUs, memory and GPUs of the machine, or of the container we are in; the settings may say otherwise."""
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
