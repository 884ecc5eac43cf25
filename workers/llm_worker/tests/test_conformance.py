"""The LLM worker keeps the contract that every worker has to keep."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from llm_worker.testing import FakeEndpoint, solve
from mosaic_wire.conformance import WorkerConformance


class TestLlmWorker(WorkerConformance):
    worker_argv = [sys.executable, "-m", "llm_worker.cli"]
    modules_describe_must_not_import = ("torch", "jax", "tensorflow", "gymnasium", "numpy", "httpx", "asyncio")
    worker_config: ClassVar[dict[str, Any]] = {}
    endless_config: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _endpoint(cls) -> Iterator[None]:
        with FakeEndpoint(solve) as endpoint:
            extras = {"base_url": endpoint.address, "model": "perfect"}
            config = {"algo": "llm", "env_id": "FrozenLake-v1", "total_timesteps": 50, "seed": 1, "extras": extras}
            cls.worker_config = config
            cls.endless_config = {**config, "total_timesteps": 10**9}
            yield
