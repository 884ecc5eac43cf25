"""The sweep worker keeps the contract that every worker has to keep; nothing trains, the trials are rehearsed."""

from __future__ import annotations

import sys

from mosaic_wire.conformance import WorkerConformance

RANGES = {"x": {"kind": "float", "low": 0.0, "high": 1.0}, "y": {"kind": "categorical", "choices": ["a", "b"]}}


class TestSweepWorker(WorkerConformance):
    worker_argv = [sys.executable, "-m", "sweep_worker.cli"]
    worker_config = {
        "algo": "sweep",
        "env_id": "none",
        "total_timesteps": 5,
        "seed": 1,
        "extras": {"algo_params": {"parameters": RANGES, "sampler": "random", "rehearse_s": 0.05}},
    }
    endless_config = {
        "algo": "sweep",
        "env_id": "none",
        "total_timesteps": 1_000_000,
        "seed": 1,
        "extras": {"algo_params": {"parameters": RANGES, "sampler": "random", "rehearse_s": 0.05}},
    }
    modules_describe_must_not_import = ("torch", "jax", "tensorflow", "optuna", "numpy")
