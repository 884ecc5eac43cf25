"""MOSAIC's sweep worker: chooses values, has the daemon train them, and learns from what comes out."""

from __future__ import annotations

from mosaic_wire.capabilities import Lane, WorkerCapabilities

__version__ = "0.1.0"


def get_worker_metadata() -> WorkerCapabilities:
    """Return what this worker can do; the `mosaic.workers` entry point names this function."""
    return WorkerCapabilities(
        worker_type="sweep",
        env_families=("any",),
        supports_checkpointing=True,
        supports_pause=True,
        estimated_memory_mb=160,
        lane=Lane.ANALYTICS,
        submits_runs=True,
    )
