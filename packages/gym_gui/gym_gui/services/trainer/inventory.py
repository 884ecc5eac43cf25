"""What this machine has for runs, as it really is, less what the settings keep back."""

from __future__ import annotations

import os

import psutil

from gym_gui.config.settings import Settings
from gym_gui.services.trainer.gpu import detect_gpus
from gym_gui.services.trainer.resources import Inventory


def detect_inventory(settings: Settings) -> Inventory:
    """CPUs this process may use, memory and GPUs of the machine; the settings may say less (or more)."""
    cpus = float(len(os.sched_getaffinity(0)))
    memory_mb = psutil.virtual_memory().total >> 20
    return Inventory(
        cpus=cpus if settings.cpus is None else settings.cpus,
        memory_mb=memory_mb if settings.memory_mb is None else settings.memory_mb,
        gpus=detect_gpus(),
    )
