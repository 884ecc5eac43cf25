"""Steps a second of our algorithms against CleanRL's unmodified scripts, with the same networks and hyper-parameters.

    make bench UPSTREAM=~/cleanrl
    .venv/bin/python benchmarks/algorithms.py --upstream ~/cleanrl --only ppo,dqn --json docs/workers/cleanrl/speed.json

Both train in one process with one thread, taking turns. Each measurement is two runs of different length, the shorter
one subtracted, so that imports and warm-up do not count. The scripts run with the requirement set `upstream`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from algorithm_cases import CASES, Case
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.requirement_sets import sets_needed
from cleanrl_worker.tools.learning_results import this_machine, versions_in
from measure import Sample
from mosaic_extras.errors import RequirementSetError
from mosaic_extras.overlays import interpreter_for
from mosaic_wire import env
from mosaic_wire.files import write_json_atomically
from mosaic_wire.paths import Home, find_home

ONE_THREAD = {**dict.fromkeys(env.THREAD_COUNTS, "1"), env.CUDA_VISIBLE_DEVICES: ""}


class Cost(NamedTuple):
    """Seconds of one command."""

    cpu: float
    wall: float


@dataclass(frozen=True)
class Side:
    """Ours or theirs: how a run of so many steps is started."""

    argv: Callable[[int], list[str]]
    variables: dict[str, str]
    folder: Path

    def cost(self, steps: int) -> Cost:
        """Train so long, in a process of its own."""
        log = self.folder / "output.log"
        began = time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.argv(steps),
                cwd=self.folder,
                env={**os.environ, **ONE_THREAD, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - began
        if process.returncode != 0:
            tail = log.read_text(errors="replace")[-2000:]
            raise SystemExit(f"{shlex.join(self.argv(steps))} ended with {process.returncode}:\n{tail}")
        return Cost(usage.ru_utime + usage.ru_stime, wall)

    def speed(self, short: int, long: int) -> Cost:
        """Steps per CPU second and per second on the clock, without what every run costs at its start."""
        start, whole = self.cost(short), self.cost(long)
        cpu, wall = whole.cpu - start.cpu, whole.wall - start.wall
        if cpu <= 0 or wall <= 0:
            raise SystemExit(f"{shlex.join(self.argv(long))}: the longer run took no longer; the machine is too busy")
        return Cost((long - short) / cpu, (long - short) / wall)


class Interpreters:
    """The Python of each requirement set: those of a home, or the given ones."""

    def __init__(self, home: Home, named: Sequence[str]) -> None:
        self._home = home
        self._named = dict(pair.split("=", 1) for pair in named)

    def having(self, sets: Sequence[str]) -> str:
        named = [self._named[name] for name in sets if name in self._named]
        return named[0] if named else str(interpreter_for(self._home, sets))


def sides(case: Case, checkout: Path, interpreters: Interpreters, folder: Path) -> tuple[Side, Side]:
    """Return how ours and theirs are run."""
    entry = DEFAULT_ALGO_REGISTRY[case.algo]
    flags = ["--env-id", case.env_id, "--seed", "1", *case.flags]
    our_python = interpreters.having(sets_needed(entry, case.env_id, {}))
    their_python = interpreters.having(["upstream"])
    script = checkout / "cleanrl" / f"{case.algo}.py"
    if not script.is_file():
        raise SystemExit(f"{script} is not there: --upstream names a checkout of CleanRL")
    places = [folder / name / case.name for name in ("ours", "upstream")]
    for place in places:
        place.mkdir(parents=True)
    ours = [our_python, "-m", "cleanrl_worker.algorithms", case.algo, *flags, *case.own_flags]
    theirs = [their_python, str(script), *flags]
    return (
        Side(lambda steps: [*ours, "--total-timesteps", str(steps)], {}, places[0]),
        # The scripts import their checkout's own modules.
        Side(lambda steps: [*theirs, "--total-timesteps", str(steps)], {"PYTHONPATH": str(checkout)}, places[1]),
    )


def measure(case: Case, both: tuple[Side, Side], *, pairs: int, steps: tuple[int, int]) -> dict[str, Any]:
    """Alternate, swapping the order; one entry of the results file."""
    found: tuple[list[Cost], list[Cost]] = ([], [])
    load = os.getloadavg()[0]
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            found[which].append(both[which].speed(*steps))
        ours, theirs = found[0][-1], found[1][-1]
        ratios = f"{ours.cpu / theirs.cpu:.2f} × by CPU, {ours.wall / theirs.wall:.2f} × by the clock"
        print(f"  pair {pair + 1}/{pairs}: {ours.cpu:,.0f} against {theirs.cpu:,.0f} steps per CPU second; {ratios}")
    speeds = {
        side: {unit: [round(getattr(cost, unit), 1) for cost in costs] for unit in Cost._fields}
        for side, costs in zip(("ours", "upstream"), found, strict=True)
    }
    return {
        "algo": case.algo,
        "env_id": case.env_id,
        "flags": list(case.flags),
        "own_flags": list(case.own_flags),
        "steps": list(steps),
        **speeds,
        "target": case.target,
        "moonshot": case.moonshot,
        "date": time.strftime("%Y-%m-%d"),
        "machine": this_machine(),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
    }


def name_of(result: dict[str, Any]) -> str:
    """Return what `Case.name` says."""
    return " ".join((result["algo"], result["env_id"], *result["own_flags"]))


def ratios_of(result: dict[str, Any], unit: str) -> Sample:
    """Ours by theirs, pair by pair."""
    pairs = zip(result["ours"][unit], result["upstream"][unit], strict=True)
    return Sample(tuple(ours / theirs for ours, theirs in pairs))


def print_results(results: Sequence[dict[str, Any]]) -> None:
    print(f"\n{'steps per CPU second, median':<42}{'upstream':>10}{'ours':>10}   ratio (spread; by the clock)")
    for result in results:
        ours, theirs = (Sample(tuple(result[side]["cpu"])).median for side in ("ours", "upstream"))
        by_cpu, by_clock = ratios_of(result, "cpu"), ratios_of(result, "wall")
        verdict = "moonshot" if by_cpu.median >= result["moonshot"] else "reached"
        if by_cpu.median < result["target"]:
            verdict = "MISSED"
        spread = f"({min(by_cpu.values):.2f} – {max(by_cpu.values):.2f}; {by_clock.median:.2f})"
        goal = f"to reach {result['target']:g}, moonshot {result['moonshot']:g}: {verdict}"
        print(f"  {name_of(result):<40}{theirs:>10,.0f}{ours:>10,.0f}   {by_cpu.median:5.2f} × {spread}  {goal}")
    print(f"  {this_machine()}; load {os.getloadavg()[0]:.1f}")


def store(path: Path, results: Sequence[dict[str, Any]], checkout: Path, interpreters: Interpreters) -> None:
    """Put the results into a file that may hold earlier ones of other cases."""
    earlier = json.loads(path.read_text())["cases"] if path.is_file() else []
    known = {name_of(entry): entry for entry in earlier}
    versions = {"ours": versions_in(sys.executable), "upstream": versions_in(interpreters.having(["upstream"]))}
    for result in results:
        script = (checkout / "cleanrl" / f"{result['algo']}.py").read_bytes()
        facts = {"versions": versions, "script_sha256": hashlib.sha256(script).hexdigest()}
        known[name_of(result)] = {**result, **facts}
    write_json_atomically(path, {"cases": [known[case.name] for case in CASES if case.name in known]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upstream", default=os.environ.get("UPSTREAM", ""), help="a checkout of CleanRL")
    parser.add_argument("--home", type=Path, help="the home with the requirement sets (default: MOSAIC's)")
    parser.add_argument(
        "--python", action="append", default=[], metavar="SET=PATH", help="an interpreter with that set"
    )
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one pair of a quarter of the steps: rough")
    parser.add_argument("--json", type=Path, help="where the results are kept; docs/workers/cleanrl/speed.json")
    arguments = parser.parse_args()
    if not arguments.upstream:
        print("skipped: it needs a checkout of CleanRL (make bench UPSTREAM=~/cleanrl) and the set `upstream`")
        return
    checkout = Path(arguments.upstream).expanduser().absolute()
    home = Home(arguments.home.absolute()) if arguments.home else find_home()
    interpreters = Interpreters(home, arguments.python)
    only = set(filter(None, arguments.only.split(",")))
    results = []
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-", ignore_cleanup_errors=True) as folder:
        for case in CASES:
            if only and case.algo not in only:
                continue
            if not DEFAULT_ALGO_REGISTRY[case.algo].module:
                print(f"{case.name}: not there yet")
                continue
            try:
                both = sides(case, checkout, interpreters, Path(folder))
            except RequirementSetError as error:
                print(f"{case.name}: skipped, {error}")
                continue
            steps = case.shorter(4) if arguments.quick else case.steps
            print(f"{case.name} {shlex.join(case.flags)} ({steps[0]:,} and {steps[1]:,} steps)")
            results.append(measure(case, both, pairs=1 if arguments.quick else arguments.pairs, steps=steps))
            if arguments.json:  # as they come: measuring them all takes a while
                store(arguments.json, results[-1:], checkout, interpreters)
    if results:
        print_results(results)


if __name__ == "__main__":
    main()
