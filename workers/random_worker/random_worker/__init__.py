"""MOSAIC's reference worker: the smallest complete one. Copy it to write your own."""

from __future__ import annotations

from mosaic_wire.capabilities import Lane, WorkerCapabilities

__version__ = "0.1.0"


def get_worker_metadata() -> WorkerCapabilities:
    """Return what this worker can do; the `mosaic.workers` entry point names this function."""
    return WorkerCapabilities(
        worker_type="random",
        env_families=("none", "gymnasium"),
        action_spaces=("discrete", "continuous"),
        observation_spaces=("vector", "image"),
        supports_checkpointing=True,
        supports_pause=True,
        estimated_memory_mb=48,
        lane=Lane.ANALYTICS,
    )
