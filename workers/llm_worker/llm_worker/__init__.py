"""MOSAIC's LLM worker: a language model plays an environment over many steps."""

from __future__ import annotations

from mosaic_wire.capabilities import Lane, WorkerCapabilities

__version__ = "0.1.0"


def get_worker_metadata() -> WorkerCapabilities:
    """Return what this worker can do; the `mosaic.workers` entry point names this function."""
    return WorkerCapabilities(
        worker_type="llm",
        env_families=("gymnasium",),
        action_spaces=("discrete", "continuous"),
        observation_spaces=("vector", "image", "dict"),
        supports_checkpointing=True,
        supports_pause=True,
        estimated_memory_mb=400,
        lane=Lane.HYBRID,
    )
