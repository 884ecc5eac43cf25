"""The LLM worker: steps per second beside a plain loop over the same endpoint, in parallel, and how fast it lets go.

A fake endpoint answers at once, so the worker itself is measured: describing, prompting, validating, recording.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import gymnasium
import httpx
from llm_worker.describers import describe_game
from llm_worker.testing import FakeEndpoint, Fault, solve
from mosaic_wire.paths import Home
from mosaic_wire.testing import PlayDaemon, WorkerProcess

STEPS = 1_000
ENV, KWARGS = "FrozenLake-v1", {"is_slippery": False}


def plain_loop(endpoint: FakeEndpoint) -> float:
    """Return steps per second of a loop that asks the endpoint and does nothing else."""
    env = gymnasium.make(ENV, **KWARGS)
    game = describe_game(env)
    observation, _ = env.reset(seed=0)
    with httpx.Client(trust_env=False) as client:
        began = time.perf_counter()
        for _ in range(STEPS):
            body = {"messages": [{"role": "user", "content": game.text(observation)}]}
            answer = client.post(f"{endpoint.address}/chat/completions", json=body).json()
            action = answer["choices"][0]["message"]["content"]
            observation, _, terminated, truncated, _ = env.step(game.actions[action])
            if terminated or truncated:
                observation, _ = env.reset()
        return STEPS / (time.perf_counter() - began)


def start(endpoint: FakeEndpoint, daemon: PlayDaemon, folder: str, **extras: object) -> WorkerProcess:
    settings = {"base_url": endpoint.address, "model": "perfect", "env_kwargs": KWARGS, **extras}
    config = {
        "algo": "llm",
        "env_id": ENV,
        "total_timesteps": extras.pop("steps", STEPS),
        "seed": 1,
        "extras": settings,
    }
    settings.pop("steps", None)
    return WorkerProcess([sys.executable, "-m", "llm_worker.cli"], config, Home(Path(folder) / "home"), daemon=daemon)


def worker(endpoint: FakeEndpoint, parallel: int) -> float:
    """Return steps per second of the worker, with every step in the telemetry."""
    with (
        tempfile.TemporaryDirectory() as folder,
        PlayDaemon() as daemon,
        start(endpoint, daemon, folder, parallel=parallel) as process,
    ):
        assert process.wait() == 0, process.stderr()
        first, last = daemon.steps[0].timestamp, daemon.steps[-1].timestamp
        assert len(daemon.steps) == STEPS
        return (STEPS - 1) / (last - first)


def cancelling(endpoint: FakeEndpoint) -> tuple[float, float]:
    """Return the seconds from SIGTERM to `run_cancelled`, and to the end of the process, in a request that hangs."""
    endpoint.faults.append(Fault(hangs=True))
    with (
        tempfile.TemporaryDirectory() as folder,
        PlayDaemon() as daemon,
        start(endpoint, daemon, folder, constraint="json_schema", timeout_s=3600) as process,
    ):
        assert endpoint.hanging.acquire(timeout=60)
        time.sleep(0.3)
        began = time.time()
        process.process.send_signal(signal.SIGTERM)
        assert process.wait() == 130
        gone = time.time() - began
        return process.events()[-1].timestamp - began, gone


def main() -> None:
    with FakeEndpoint(solve) as endpoint:
        plain = plain_loop(endpoint)
        print(f"{'what':44} {'steps/s':>9} {'ratio':>6}")
        print(f"{'a plain loop over the endpoint':44} {plain:9.0f} {1:6.2f}")
        for parallel in (1, 8):
            found = worker(endpoint, parallel)
            print(f"{f'the worker, {parallel} episode(s) at a time':44} {found:9.0f} {found / plain:6.2f}")
        ends = [cancelling(endpoint) for _ in range(5)]
        told, gone = (statistics.median(values) for values in zip(*ends, strict=True))
        print(f"cancelled while a request hangs: run_cancelled after {told:.2f} s, process ended after {gone:.2f} s")
        print(json.dumps({"longest_s": round(max(gone for _, gone in ends), 2)}))


if __name__ == "__main__":
    main()
