"""The contract every worker keeps, for this one: tiny CartPole runs through the real processes."""

from __future__ import annotations

import sys

from mosaic_wire.conformance import WorkerConformance


class TestCleanRLWorker(WorkerConformance):
    worker_argv = [sys.executable, "-m", "cleanrl_worker.cli"]
    worker_config = {
        "algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 64, "seed": 1,
        "extras": {"algo_params": {"num_steps": 8, "anneal_lr": False}},
    }  # fmt: skip
    endless_config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 10**12, "seed": 1}
    patience_s = 120
