"""A home with 100,000 finished runs: listing, restart, what other clients notice; cancelling 2,000 queued runs."""

from __future__ import annotations

import argparse
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.testing import RunningDaemon, random_config
from measure import Sample, cpu_of, cpu_of_command, fill_registry, print_table, temporary_home

MOSAIC = str(Path(sys.executable).with_name("mosaic"))


def cpu_of_start(daemon: RunningDaemon) -> float:
    """CPU seconds until a stopped daemon serves again."""
    daemon.stop()
    daemon.start()
    return cpu_of(daemon.pid)


def cpu_of_listing(daemon: RunningDaemon, *options: str) -> float:
    before = cpu_of(daemon.pid)
    command = cpu_of_command([MOSAIC, "runs", *options], daemon.config_home, daemon.variables)
    return command + cpu_of(daemon.pid) - before


def calls_meanwhile(daemon: RunningDaemon) -> Sample:
    """Measure the daemon's CPU between a client's request and its answer, while another client lists every run."""
    taken: list[float] = []
    with TrainerClient.connect(daemon.home, timeout_s=60) as other:
        run_id = other.list(limit=1).runs[0].run_id
        listing = threading.Thread(target=lambda: daemon.client.list(include_archived=True))
        listing.start()
        while listing.is_alive():
            before = cpu_of(daemon.pid)
            other.get(run_id)
            taken.append(cpu_of(daemon.pid) - before)
        listing.join()
    return Sample(tuple(taken))


def cpu_of_cancelling(daemon: RunningDaemon, count: int, watchers: int) -> tuple[float, float]:
    """CPU seconds of the daemon for cancelling so many queued runs: one by one, and all at once with watchers."""
    everything = {"cpus": {"requested": daemon.client.health().cpus_total}}
    blocker = daemon.submit(timesteps=10**9, steps_per_second=1, resources=everything).run_id
    daemon.wait_for(blocker, "EXEC")
    config = random_config(timesteps=5, resources=everything)
    queued = [daemon.client.submit(config).run.run_id for _ in range(2 * count)]
    began = cpu_of(daemon.pid)
    for run_id in queued[:count]:
        daemon.client.cancel(run_id)
    single = cpu_of(daemon.pid) - began
    with ExitStack() as stack:
        clients = [stack.enter_context(TrainerClient.connect(daemon.home, timeout_s=60)) for _ in range(watchers)]
        streams = [stack.enter_context(client.watch(since_seq=client.health().last_seq)) for client in clients]
        readers = [threading.Thread(target=_read, args=(stream, queued[-1])) for stream in streams]
        for reader in readers:
            reader.start()
        began = cpu_of(daemon.pid)
        daemon.client.cancel_many(queued[count:])
        for reader in readers:
            reader.join()
        together = cpu_of(daemon.pid) - began
    daemon.client.cancel(blocker)
    return single, together


def _read(stream: object, last: str) -> None:
    for update in stream:  # type: ignore[attr-defined]
        if update.run.run_id == last and update.run.status == "TERM":
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--queued", type=int, default=2_000)
    parser.add_argument("--watchers", type=int, default=300)
    arguments = parser.parse_args()
    with temporary_home() as (home, config_home), RunningDaemon(home, config_home) as daemon:
        bare = Sample(tuple(cpu_of_start(daemon) for _ in range(arguments.pairs)))
        single, together = cpu_of_cancelling(daemon, arguments.queued, arguments.watchers)
    with temporary_home() as (home, config_home):
        fill_registry(home, arguments.runs)
        with RunningDaemon(home, config_home) as daemon:
            starts = Sample(tuple(cpu_of_start(daemon) for _ in range(arguments.pairs)))
            first = Sample(tuple(cpu_of_listing(daemon) for _ in range(arguments.pairs)))
            python = [sys.executable, "-c", "pass"]
            floor = Sample(tuple(cpu_of_command(python, config_home) for _ in range(arguments.pairs)))
            everything = cpu_of_listing(daemon, "--all")
            calls = calls_meanwhile(daemon)
    print_table(
        f"{arguments.runs:,} finished runs, {arguments.queued:,} queued ones (CPU seconds)",
        [
            ("mosaic runs, command + daemon", f"{first}  (to reach: 1.000)"),
            ("… against a bare Python start", f"{first.median / floor.median:8.1f} ×"),
            ("mosaic runs --all, command + daemon", f"{everything:8.3f}"),
            ("restart of the daemon", f"{starts}  (to reach: 3.000)"),
            ("… against an empty home", f"{starts.median / bare.median:8.2f} ×"),
            ("another client's call meanwhile", f"{calls}  (to reach: 0.100)"),
            (f"cancel all, {arguments.watchers} watchers", f"{together:8.3f}  (to reach: 10.000)"),
            ("cancel one by one, no watcher", f"{single:8.3f}"),
        ],
    )


if __name__ == "__main__":
    main()
