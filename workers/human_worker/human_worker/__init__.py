"""MOSAIC's human worker: environments played by hand; every step is recorded."""

from __future__ import annotations

from mosaic_wire.capabilities import Lane, WorkerCapabilities

__version__ = "0.1.0"


def get_worker_metadata() -> WorkerCapabilities:
    """Return what this worker can do; the `mosaic.workers` entry point names this function."""
    return WorkerCapabilities(
        worker_type="human",
        supported_paradigms=("sequential", "human"),
        env_families=("gymnasium", "minigrid", "atari", "box2d", "mujoco"),
        action_spaces=("discrete", "multi_discrete", "multi_binary", "continuous"),
        observation_spaces=("vector", "image", "dict"),
        supports_pause=True,
        estimated_memory_mb=160,
        lane=Lane.TELEMETRY,
    )
