"""MOSAIC's CleanRL worker: single-file algorithms under CleanRL's names and flags."""

from __future__ import annotations

from mosaic_wire.capabilities import WorkerCapabilities

__version__ = "0.1.0"


def get_worker_metadata() -> WorkerCapabilities:
    """Return the worker's capabilities; the `mosaic.workers` entry point."""
    return WorkerCapabilities(
        worker_type="cleanrl",
        supported_paradigms=("sequential",),
        env_families=("gymnasium", "atari", "procgen", "mujoco", "dm_control", "minigrid", "babyai"),
        action_spaces=("discrete", "continuous"),
        observation_spaces=("vector", "image"),
        max_agents=1,
        supports_checkpointing=True,
        requires_gpu=False,
        estimated_memory_mb=512,
        supports_pause=True,
    )
