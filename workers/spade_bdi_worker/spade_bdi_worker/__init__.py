"""MOSAIC's Spade BDI worker: agents that reason in AgentSpeak, learn by Q-learning and message each other."""

from __future__ import annotations

from mosaic_wire.capabilities import Lane, WorkerCapabilities

__version__ = "0.1.0"


def get_worker_metadata() -> WorkerCapabilities:
    """What this worker can do; the `mosaic.workers` entry point names this function."""
    return WorkerCapabilities(
        worker_type="spade_bdi",
        supported_paradigms=("sequential", "multi_agent"),
        env_families=("gymnasium", "minigrid"),
        action_spaces=("discrete",),
        observation_spaces=("discrete", "vector", "dict"),
        max_agents=16,
        supports_checkpointing=True,
        supports_pause=True,
        estimated_memory_mb=160,
        lane=Lane.TELEMETRY,
    )
