"""Measurements of the benchmarks: CPU time of processes, alternating pairs, one table."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from gym_gui.services.trainer import registry_queries as sql
from gym_gui.services.trainer.fsm import RunStatus
from gym_gui.services.trainer.records import HistoryEvent, NewRun
from gym_gui.services.trainer.registry import SUBMITTED, RunRegistry
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
    """Measure both, taking turns and swapping the order: what drifts on the machine hits both alike."""
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
        """Return what a step costs when the start is left out."""
        steps = horizons[1] - horizons[0]
        pairs = zip(self.short.values, self.long.values, strict=True)
        return Sample(tuple((long - short) / steps * 1e6 for short, long in pairs))


def side_by_side(
    ours: Callable[[int], float], peer: Callable[[int], float], *, horizons: tuple[int, int], pairs: int
) -> tuple[TwoHorizons, TwoHorizons]:
    """Measure both at the same time, each on a CPU of its own, swapping CPUs: a neighbor's noise hits both alike.

    On a shared machine the same run differs by a tenth from one minute to the next, far more than what is looked for.
    Both callables run in a thread bound to one CPU, and so does what they start.
    """
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise SystemExit("this benchmark runs two things side by side and needs two CPUs")
    taken: dict[Callable[[int], float], dict[int, list[float]]] = {ours: {}, peer: {}}
    for pair in range(pairs):
        for steps in horizons:
            with ThreadPoolExecutor(2) as threads:
                places = cpus[:2][:: 1 if pair % 2 == 0 else -1]
                running = [
                    threads.submit(_bound, what, steps, cpu) for what, cpu in zip((ours, peer), places, strict=True)
                ]
                for what, future in zip((ours, peer), running, strict=True):
                    taken[what].setdefault(steps, []).append(future.result())
        mine, theirs = (taken[what][horizons[1]][-1] for what in (ours, peer))
        print(f"  pair {pair + 1}/{pairs}: ours {mine:.3f}, peer {theirs:.3f}")
    short, long = horizons
    both = [TwoHorizons(Sample(tuple(taken[what][short])), Sample(tuple(taken[what][long]))) for what in (ours, peer)]
    return both[0], both[1]


def _bound(measure: Callable[[int], float], steps: int, cpu: int) -> float:
    os.sched_setaffinity(0, {cpu})  # this thread alone, and what it starts
    return measure(steps)


def bind(pid: int, cpus: Collection[int]) -> None:
    """Bind a running process, all of its threads and what they start from now on."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), cpus)


def cpu_of_command(argv: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None) -> float:
    """CPU seconds of a command and of everything it waited for."""
    with (folder / "output.log").open("ab") as log:
        process = subprocess.Popen(
            argv, cwd=folder, env={**os.environ, **(variables or {})}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{[*argv]} ended with {process.returncode}: {(folder / 'output.log').read_text()[-2000:]}")
    return used.ru_utime + used.ru_stime


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
    steps, shorts, longs = ratios(*per_step), ratios(ours.short, peer.short), ratios(ours.long, peer.long)
    reach = f"  (to reach: {first_to_reach:.3f})" if first_to_reach else ""
    print_table(
        f"{what}: CPU of a short run ({horizons[0]:,} steps) and a long one ({horizons[1]:,})",
        [
            *((f"a step, {name} (µs)", str(sample)) for name, sample in zip(names, per_step, strict=True)),
            ("ratio of a step", f"{steps}  (to reach: {to_reach:.3f})"),
            *((f"the short run, {name} (s)", str(both.short)) for name, both in zip(names, (ours, peer), strict=True)),
            ("ratio of the short run", f"{shorts}{reach}"),
            *((f"the long run, {name} (s)", str(both.long)) for name, both in zip(names, (ours, peer), strict=True)),
            ("ratio of the long run, start included", str(longs)),
        ],
    )


def ratios(ours: Sample, peer: Sample) -> Sample:
    """Pair by pair: what drifts from pair to pair is in both and cancels out."""
    return Sample(tuple(mine / theirs for mine, theirs in zip(ours.values, peer.values, strict=True)))


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
    with RunRegistry(home.database) as registry, registry._database.write() as connection:
        for number in range(count):
            run_id = new_run_id()
            run = NewRun(
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
            over = {"status": RunStatus.TERM, "outcome": "cancelled", "reason": "made for a benchmark"}
            columns = {field.name: getattr(run, field.name) for field in fields(run)}
            sql.insert_row(connection, "runs", {**columns, **over, "created_at": 1.7e9, "finished_at": 1.7e9})
            for kind, before, after in ((SUBMITTED, "", RunStatus.INIT), ("cancelled", RunStatus.INIT, RunStatus.TERM)):
                seq = sql.append_event(connection, HistoryEvent(0, run_id, 1.7e9, kind, before, after, "", {}, 1))
            sql.update_run(connection, run_id, {"event_seq": seq})
