"""What the tests of this worker share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llm_worker.testing import FakeEndpoint, solve
from mosaic_wire.paths import Home
from mosaic_wire.testing import PlayDaemon, WorkerProcess

ARGV = [sys.executable, "-m", "llm_worker.cli"]
os.environ |= {"SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
Start = Callable[..., WorkerProcess]


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    """An endpoint that plays perfectly and applies JSON schemas."""
    with FakeEndpoint(solve) as endpoint:
        yield endpoint


@pytest.fixture
def daemon() -> Iterator[PlayDaemon]:
    with PlayDaemon() as daemon:
        yield daemon


@pytest.fixture
def start(tmp_path: Path, endpoint: FakeEndpoint) -> Iterator[Start]:
    """Start the worker on FrozenLake without slipping, against the endpoint."""
    started: list[WorkerProcess] = []

    def start(
        env_id: str = "FrozenLake-v1", *, steps: int = 6, options: dict[str, Any] | None = None, **extras: Any
    ) -> WorkerProcess:
        usual = {"base_url": endpoint.address, "model": "perfect", "retry_wait_s": 0.01}
        if env_id == "FrozenLake-v1":
            usual["env_kwargs"] = "is_slippery=false"
        config = {"algo": "llm", "env_id": env_id, "total_timesteps": steps, "seed": 1, "extras": {**usual, **extras}}
        home = Home(tmp_path / "home")
        started.append(WorkerProcess(ARGV, config, home, **(options or {})))
        return started[-1]

    yield start
    for worker in started:
        worker.close()
