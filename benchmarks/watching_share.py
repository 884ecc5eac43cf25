"""Cost of watching: ppo through the daemon, without and with a viewer, against the bare script.

Metric bridge and FastLane are on. Measures the CPU of training and worker per step, without the start, which two
horizons cancel; the bare script runs at the same time on the other CPU. The CPU of the daemon itself and the time for
rendering are printed separately. The viewer requests 30 frames per second, mode `single`.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from daemon_share import by_hand
from gym_gui.testing import RunningDaemon
from measure import (
    Sample,
    TwoHorizons,
    bind,
    cpu_of,
    cpu_with_ended_children,
    print_table,
    ratios,
    side_by_side,
    temporary_home,
)
from mosaic_wire.frames import FrameReader, fastlane_path
from mosaic_wire.proto import trainer_pb2 as pb

FPS = 30
UNWATCHED, WATCHED = "no viewer", "a viewer"
TO_REACH = {UNWATCHED: 1.02, WATCHED: 1.10}


@dataclass
class Viewer:
    """Reads a run's frames as a window does, and counts them."""

    run_id: str
    seen: int = 0
    drawing_s: float = 0.0
    began: float = 0.0
    ended: float = 0.0
    _stopping: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        reader = FrameReader(fastlane_path(self.run_id), interval_s=1 / FPS)
        while not self._stopping.wait(1 / FPS):
            if reader.read() is not None:
                self.began = self.began or time.monotonic()
                self.ended = time.monotonic()
                self.seen += 1
            self.drawing_s = max(self.drawing_s, reader.drawing_s)
        reader.close()

    @contextmanager
    def watching(self) -> Iterator[None]:
        thread = threading.Thread(target=self.watch)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()


class Bench:
    """Runs trainings and keeps what they took."""

    def __init__(self, daemon: RunningDaemon, folder: Path) -> None:
        self._daemon, self._folder = daemon, folder
        self.daemon_share: dict[str, list[float]] = {UNWATCHED: [], WATCHED: []}
        self.worker_share: dict[str, list[float]] = {UNWATCHED: [], WATCHED: []}
        self.rates: list[float] = []
        self.drawing: list[float] = []

    def bare(self, steps: int) -> float:
        return by_hand(self._folder, steps)

    def unwatched(self, steps: int) -> float:
        return self._train(UNWATCHED, steps, None)

    def watched(self, steps: int) -> float:
        viewer = Viewer("")
        cpu_s = self._train(WATCHED, steps, viewer)
        if (seconds := viewer.ended - viewer.began) > 1:
            self.rates.append(viewer.seen / seconds)
            self.drawing.append(100 * viewer.drawing_s / seconds)
        return cpu_s

    def _train(self, name: str, steps: int, viewer: Viewer | None) -> float:
        """CPU seconds of worker and training; the daemon waits for the one, and that for the other."""
        daemon, config = self._daemon, {"algo": "ppo", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": steps}
        bind(daemon.pid, os.sched_getaffinity(0))
        own, whole = cpu_of(daemon.pid), cpu_with_ended_children(daemon.pid)
        run_id = daemon.client.submit({"metadata": {"worker": {"type": "cleanrl", "config": config}}}).run.run_id
        if viewer is not None:
            viewer.run_id = run_id
            with viewer.watching():
                run, worker = self._ended(run_id)
        else:
            run, worker = self._ended(run_id)
        if run.outcome != "completed":
            raise SystemExit(f"run {run_id} did not complete: {run.reason}")
        own = cpu_of(daemon.pid) - own
        self.daemon_share[name].append(own)
        self.worker_share[name].append(worker)
        return cpu_with_ended_children(daemon.pid) - whole - own

    def _ended(self, run_id: str) -> tuple[pb.Run, float]:
        """Poll rarely, because polling costs CPU; return the ended run and the CPU seconds of its worker."""
        worker = 0.0
        while (run := self._daemon.client.get(run_id)).status != "TERM":
            with suppress(OSError):
                worker = cpu_of(run.pid) if run.pid else worker
            time.sleep(0.5)
        return run, worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--short", type=int, default=100_000, help="steps of the run that is subtracted")
    arguments = parser.parse_args()
    horizons = (arguments.short, arguments.steps)
    with temporary_home() as (home, config_home), RunningDaemon(home, config_home) as daemon:
        Bench(daemon, config_home).unwatched(1_000)  # the daemon asks its workers what they are, once
        bench = Bench(daemon, config_home)
        rows: list[tuple[str, str]] = []
        for name, ours in ((UNWATCHED, bench.unwatched), (WATCHED, bench.watched)):
            print(name)
            both = side_by_side(ours, bench.bare, horizons=horizons, pairs=arguments.pairs)
            step, bare = (taken.microseconds_per_step(horizons) for taken in both)
            rows += [(f"a step, {name} (µs)", str(step)), ("a step, the bare script beside it (µs)", str(bare))]
            rows.append((f"ratio, {name}", f"{ratios(step, bare)}  (to reach: {TO_REACH[name]:.3f})"))
    for process, taken in (("the worker's part", bench.worker_share), ("the daemon besides", bench.daemon_share)):
        for name, shares in taken.items():
            own = TwoHorizons(Sample(tuple(shares[0::2])), Sample(tuple(shares[1::2]))).microseconds_per_step(horizons)
            rows.append(
                (f"{process}, {name} (µs a step)", f"{own}  {100 * own.median / bare.median:.1f} % of a bare step")
            )
    if bench.rates:
        rows.append(("frames per second", f"{Sample(tuple(bench.rates))}  (asked for: {FPS})"))
        rows.append(("drawing, % of wall time", f"{Sample(tuple(bench.drawing))}  (at most: 5)"))
    print_table(f"ppo on CartPole-v1, steps {horizons[0]:,} → {horizons[1]:,}, {arguments.pairs} pairs", rows)


if __name__ == "__main__":
    main()
