"""The Spade BDI worker keeps the contract that every worker has to keep."""

from __future__ import annotations

from mosaic_extras.testing import interpreter_with
from mosaic_wire.conformance import WorkerConformance


class TestSpadeBdiWorker(WorkerConformance):
    worker_argv = [str(interpreter_with("agentspeak")), "-m", "spade_bdi_worker.cli"]
    worker_config = {
        "algo": "spade_bdi",
        "env_id": "FrozenLake-v1",
        "total_timesteps": 200,
        "seed": 1,
        # Recorded steps would be waited for when the daemon is gone for good.
        "extras": {"algo_params": {"eval_episodes": 2, "record_steps": False}},
    }
    endless_config = {**worker_config, "total_timesteps": 10**9, "extras": {}}
    modules_describe_must_not_import = ("torch", "numpy", "gymnasium", "agentspeak", "spade")
