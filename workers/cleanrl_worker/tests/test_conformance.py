"""The contract every worker keeps, for this one: tiny CartPole runs through the real processes."""

from __future__ import annotations

import sys
from types import FunctionType

import pytest
from mosaic_wire.conformance import WorkerConformance


def slow(test: FunctionType) -> FunctionType:
    """A copy, because a mark stays on the function it is given to: other workers share it."""
    return pytest.mark.slow(FunctionType(test.__code__, test.__globals__, test.__name__, test.__defaults__))


class TestCleanRLWorker(WorkerConformance):
    worker_argv = [sys.executable, "-m", "cleanrl_worker.cli"]
    worker_config = {
        "algo": "ppo",
        "env_id": "CartPole-v1",
        "total_timesteps": 64,
        "seed": 1,
        "extras": {"algo_params": {"num_steps": 8, "anneal_lr": False}},
    }
    endless_config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 10**12, "seed": 1}
    patience_s = 120

    # What the session of mosaic_wire does for every worker: in `make test` the reference worker shows it.
    test_a_daemon_may_arrive_late = slow(WorkerConformance.test_a_daemon_may_arrive_late)
    test_a_nested_config_works_too = slow(WorkerConformance.test_a_nested_config_works_too)
    test_a_run_completes_when_the_daemon_is_gone_for_good = slow(
        WorkerConformance.test_a_run_completes_when_the_daemon_is_gone_for_good
    )
    test_a_run_outlives_a_restart_of_the_daemon = slow(WorkerConformance.test_a_run_outlives_a_restart_of_the_daemon)
    test_a_paused_run_can_be_cancelled = slow(WorkerConformance.test_a_paused_run_can_be_cancelled)
    test_sigterm_cancels_a_run_without_a_daemon = slow(WorkerConformance.test_sigterm_cancels_a_run_without_a_daemon)
    test_lifecycle_lines_also_go_to_stdout = slow(WorkerConformance.test_lifecycle_lines_also_go_to_stdout)
