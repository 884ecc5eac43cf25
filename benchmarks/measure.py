"""How the benchmarks measure: CPU time of processes, alternating pairs, one table."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gym_gui.services.trainer.fsm import RunEvent
from gym_gui.services.trainer.records import NewRun
from gym_gui.services.trainer.registry import RunRegistry
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home


def cpu_of(pid: int) -> float:
    """CPU seconds of a live process, all of its threads, to the nanosecond (the kernel's clock of that process)."""
    process_clock = (~pid << 3) | 2  # how clock_getcpuclockid(3) names it
    return time.clock_gettime(process_clock)


def cpu_with_ended_children(pid: int) -> float:
    """CPU seconds of a process and of every child it has waited for, in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def memory_mb_of(pid: int) -> float:
    """Proportional memory of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no Pss line")


@dataclass(frozen=True)
class Sample:
    """Several measurements of one thing."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{self.median:8.3f}  ({min(self.values):.3f} – {max(self.values):.3f})"


def alternate(
    ours: Callable[[], float], peer: Callable[[], float], *, pairs: int, report: Callable[[str], None] = print
) -> tuple[Sample, Sample]:
    """Measure both, taking turns and swapping who goes first: what drifts on the machine hits both alike."""
    mine, theirs = [], []
    for pair in range(pairs):
        for measure, results in ((ours, mine), (peer, theirs))[:: 1 if pair % 2 == 0 else -1]:
            results.append(measure())
        report(f"  pair {pair + 1}/{pairs}: ours {mine[-1]:.3f}, peer {theirs[-1]:.3f}")
    return Sample(tuple(mine)), Sample(tuple(theirs))


@dataclass(frozen=True)
class TwoHorizons:
    """CPU seconds of a short and of a long run of the same thing, measured several times."""

    short: Sample
    long: Sample

    def microseconds_per_step(self, horizons: tuple[int, int]) -> Sample:
        """What a step costs when the start is left out."""
        steps = horizons[1] - horizons[0]
        pairs = zip(self.short.values, self.long.values, strict=True)
        return Sample(tuple((long - short) / steps * 1e6 for short, long in pairs))


def alternate_horizons(
    ours: Callable[[int], float], peer: Callable[[int], float], *, horizons: tuple[int, int], pairs: int
) -> tuple[TwoHorizons, TwoHorizons]:
    """`alternate` for a short and a long run each."""
    short_ours: list[float] = []
    short_peer: list[float] = []

    def both(measure: Callable[[int], float], shorts: list[float]) -> float:
        shorts.append(measure(horizons[0]))
        return measure(horizons[1])

    long_ours, long_peer = alternate(lambda: both(ours, short_ours), lambda: both(peer, short_peer), pairs=pairs)
    return TwoHorizons(Sample(tuple(short_ours)), long_ours), TwoHorizons(Sample(tuple(short_peer)), long_peer)


def print_shares(
    what: str,
    names: tuple[str, str],
    ours: TwoHorizons,
    peer: TwoHorizons,
    horizons: tuple[int, int],
    *,
    to_reach: float,
    first_to_reach: float | None = None,
) -> None:
    """The table of two runs side by side, start and steps apart."""
    per_step = [both.microseconds_per_step(horizons) for both in (ours, peer)]
    reach = f"  (to reach: {first_to_reach:.3f})" if first_to_reach else ""
    print_table(
        f"{what}: CPU of a short run ({horizons[0]:,} steps) and a long one ({horizons[1]:,})",
        [
            *((f"a step, {name} (µs)", str(sample)) for name, sample in zip(names, per_step, strict=True)),
            ("ratio of a step", f"{per_step[0].median / per_step[1].median:8.3f}  (to reach: {to_reach:.3f})"),
            *((f"the short run, {name} (s)", str(both.short)) for name, both in zip(names, (ours, peer), strict=True)),
            ("ratio of the short run", f"{ours.short.median / peer.short.median:8.3f}{reach}"),
            *((f"the long run, {name} (s)", str(both.long)) for name, both in zip(names, (ours, peer), strict=True)),
            ("ratio of the long run, start included", f"{ours.long.median / peer.long.median:8.3f}"),
        ],
    )


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    print(f"\n{title}")
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")
    load = os.getloadavg()[0]
    print(f"  {'load of the machine':<{width}}  {load:.1f} on {os.cpu_count()} cores")


@contextmanager
def temporary_home() -> Iterator[tuple[Home, Path]]:
    """A home and a config folder for one benchmark."""
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-", ignore_cleanup_errors=True) as folder:
        yield Home(Path(folder) / "home"), Path(folder) / "config"


def fill_registry(home: Home, count: int) -> None:
    """Put this many finished runs into a registry that no daemon serves yet."""
    home.create()
    with RunRegistry(home.database) as registry:
        for number in range(count):
            run_id = new_run_id()
            registry.submit(
                NewRun(
                    run_id=run_id,
                    worker_type="cleanrl",
                    name=f"cleanrl-ppo-{number:05d}",
                    algo="ppo",
                    env_id="CartPole-v1",
                    seed=number % 5,
                    total=500_000,
                    tags=("bench", f"group-{number % 20}"),
                    extras={"algo_params": {"learning_rate": 2.5e-4, "num_envs": 4}},
                )
            )
            registry.apply(run_id, RunEvent.CANCELLED, reason="made for a benchmark")
