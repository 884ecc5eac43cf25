"""The reference worker keeps the contract that every worker has to keep."""

from __future__ import annotations

import sys

from mosaic_wire.conformance import WorkerConformance


class TestRandomWorker(WorkerConformance):
    worker_argv = [sys.executable, "-m", "random_worker.cli"]
    worker_config = {
        "algo": "random",
        "env_id": "none",
        "total_timesteps": 50,
        "seed": 1,
        "extras": {"steps_per_second": 100},
    }
    endless_config = {
        "algo": "random",
        "env_id": "none",
        "total_timesteps": 10**9,
        "seed": 1,
        "extras": {"steps_per_second": 100},
    }
