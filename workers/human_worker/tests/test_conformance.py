"""The human worker keeps the contract that every worker has to keep; in place of a person, its demonstration plays."""

from __future__ import annotations

import sys

from mosaic_wire.conformance import WorkerConformance


class TestHumanWorker(WorkerConformance):
    worker_argv = [sys.executable, "-m", "human_worker.cli"]
    worker_config = {
        "algo": "human",
        "env_id": "CartPole-v1",
        "total_timesteps": 50,
        "seed": 1,
        "extras": {"autoplay_hz": 100},
    }
    endless_config = {**worker_config, "total_timesteps": 10**9}
