"""Report the result of a training as one JSON object; the coverage pages are made of these.

    python -m cleanrl_worker.tools.learning_results run [--python P] ppo --env-id CartPole-v1 --seed 1 > result.json
    python -m cleanrl_worker.tools.learning_results read RUN_FOLDER > result.json

`run` trains alone, in a folder that is removed afterwards (keep it with --folder), and measures what that cost.
`read` reports a run that has ended, of this worker or of a CleanRL script; what its files do not hold stays null.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mosaic_wire.event_files import EventFolderReader, ScalarColumn

from cleanrl_worker.analytics import cpu_model
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.scripts.runtime import parameters_in
from cleanrl_worker.training.args import COMPUTED

EPISODES = 100
"""The last so many training episodes are averaged"""
PACKAGES = ("torch", "gymnasium", "numpy", "ale-py", "minigrid", "mujoco", "envpool", "procgen", "pettingzoo", "box2d")
"""Packages whose version may change what is learned"""
RETURNS, SPS, PARAMETERS = "charts/episodic_return", "charts/SPS", "hyperparameters/text_summary"


@dataclass(frozen=True)
class LearningResult:
    """One training, one seed."""

    algo: str
    env_id: str
    seed: int
    total_timesteps: int
    """Steps requested; `steps` are those that were made"""
    steps: int
    mean_last_100: float | None
    """Mean return (of whole games, as the environment pays) over the last 100 training episodes; None without any"""
    episodes: int
    """Training episodes that ended"""
    best_mean_100: float | None
    """The largest mean over 100 episodes in a row: shows what was reached and lost again"""
    evaluation: Mapping[str, float] | None = None
    """mean, std and episodes of an evaluation after training"""
    cpu_seconds: float | None = None
    wall_seconds: float | None = None
    sps: float | None = None
    """Steps a second as the run charted it last, start-up not counted"""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Those that were not left at their defaults; all of them where the defaults are not known"""
    source: str = "mosaic"
    """`upstream` for a script of CleanRL"""
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""
    load: Sequence[float] | None = None
    """Load of the machine at the start and at the end; a machine under load trains slower, not worse"""
    command: str = ""
    date: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as the coverage pages read it."""
        return asdict(self)


def main(argv: Sequence[str] | None = None) -> int:
    """Train or read a run, and print its result as JSON."""
    parser = argparse.ArgumentParser(
        prog="cleanrl_worker.tools.learning_results", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train, then report")
    run.add_argument("--python", default=sys.executable, help="interpreter of a requirement set")
    run.add_argument("--folder", type=Path, help="where the run's files stay")
    run.add_argument("algo")
    run.add_argument("flags", nargs=argparse.REMAINDER)
    read = commands.add_parser("read", help="report a run that has ended")
    read.add_argument("folder", type=Path)
    read.add_argument("--cpu-seconds", type=float)
    read.add_argument("--ran-as", default="", help="the command it was started with")
    arguments = parser.parse_args(argv)
    if arguments.command == "run":
        result = train_and_report(arguments.algo, arguments.flags, python=arguments.python, folder=arguments.folder)
    else:
        result = replace(
            read_result(arguments.folder),
            cpu_seconds=arguments.cpu_seconds,
            command=arguments.ran_as,
            versions=versions_in(sys.executable),
            machine=this_machine(),
        )
    sys.stdout.write(json.dumps(result.to_json(), indent=1, sort_keys=True) + "\n")
    return 0


# ---------------------------------------------------------------- reading


def read_result(folder: Path) -> LearningResult:
    """Return the result in the files of a run."""
    columns, texts = _read_events(folder)
    flags = parameters_in(texts.get(PARAMETERS, ""))
    if not flags:
        raise SystemExit(f"{folder} has no event file with the run's hyperparameters")
    algo = _algo_of(folder) or flags.get("exp_name", "")
    returns = columns.get(RETURNS, ScalarColumn())
    times = [moment for column in columns.values() for moment in (column.wall_times[0], column.wall_times[-1])]
    sps = columns.get(SPS)
    return LearningResult(
        algo=algo,
        env_id=flags.get("env_id", ""),
        seed=int(flags.get("seed", 0)),
        total_timesteps=int(flags.get("total_timesteps", 0)),
        steps=max((column.steps[-1] for tag, column in columns.items() if not tag.startswith("eval")), default=0),
        mean_last_100=_mean(returns.values[-EPISODES:]),
        best_mean_100=best_mean(returns.values),
        episodes=len(returns),
        wall_seconds=round(max(times) - min(times), 1) if times else None,
        sps=round(sps.values[-1], 1) if sps is not None else None,
        flags=changed_flags(algo, flags),
        date=time.strftime("%Y-%m-%d", time.gmtime(max(times))) if times else "",
    )


def _read_events(folder: Path) -> tuple[dict[str, ScalarColumn], dict[str, str]]:
    """Return all curves of a run, and its texts; what a resumed run wrote again counts once."""
    reader = EventFolderReader(folder, texts=True)
    columns: dict[str, ScalarColumn] = {}
    texts: dict[str, str] = {}
    while True:
        for batch in reader.read():
            if batch.drop_from is not None:
                for column in columns.values():
                    column.drop_from(batch.drop_from)
            for tag, added in batch.columns.items():
                column = columns.setdefault(tag, ScalarColumn())
                column.steps.extend(added.steps)
                column.wall_times.extend(added.wall_times)
                column.values.extend(added.values)
            texts |= {text.tag: text.text for text in batch.texts}
        if not reader.has_more:
            return {tag: column for tag, column in columns.items() if column}, texts


def changed_flags(algo: str, flags: Mapping[str, str]) -> dict[str, str]:
    """Return the flags that differ from the defaults; env_id, seed and the like are separate."""
    entry = DEFAULT_ALGO_REGISTRY.get(algo)
    defaults = {spec.name: str(spec.default) for spec in entry.spec().fields} if entry is not None else {}
    elsewhere = {"env_id", "seed", "total_timesteps", *(name for name in COMPUTED if defaults.get(name) == "0")}
    return {k: v for k, v in sorted(flags.items()) if k not in elsewhere and defaults.get(k) != v}


def _algo_of(folder: Path) -> str:
    """Return the algorithm's name from a checkpoint of the run: --exp-name may be anything."""
    for state in sorted(folder.glob("checkpoints/*/state.json")):
        return str(json.loads(state.read_text()).get("algo", ""))
    return ""


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


def best_mean(values: Sequence[float], window: int = EPISODES) -> float | None:
    """Return the largest mean of `window` values in a row; None when there are fewer."""
    if len(values) < window:
        return None
    best = total = sum(values[:window])
    for first, next_value in zip(values, values[window:], strict=False):
        total += next_value - first
        best = max(best, total)
    return round(best / window, 3)


# ---------------------------------------------------------------- running


def train_and_report(algo: str, flags: Sequence[str], *, python: str, folder: Path | None) -> LearningResult:
    """Train without a worker, like a CleanRL script; its output goes to a file, and to stderr when it fails."""
    argv = [python, "-m", "cleanrl_worker.algorithms", algo, *flags]
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mosaic-learning-")))
        place.mkdir(parents=True, exist_ok=True)
        log = place / "output.txt"
        load, began = os.getloadavg()[0], time.monotonic()
        with log.open("wb") as output:
            process = subprocess.Popen(argv, cwd=place, stdout=output, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        wall_seconds = time.monotonic() - began
        log_text = log.read_text(errors="replace")
        if process.returncode != 0:
            raise SystemExit(f"{shlex.join(argv)} ended with exit code {process.returncode}:\n{log_text[-2000:]}")
        left = re.search(r"^everything is in (.+)$", log_text, re.MULTILINE)
        if left is None:
            raise SystemExit(f"{shlex.join(argv)} did not print where its files are:\n{log_text[-2000:]}")
        result = read_result(place / left[1])
    return replace(
        result,
        algo=algo,
        evaluation=_evaluation_in(log_text),
        cpu_seconds=round(usage.ru_utime + usage.ru_stime, 1),
        wall_seconds=round(wall_seconds, 1),
        versions=versions_in(python),
        machine=this_machine(),
        load=(round(load, 1), round(os.getloadavg()[0], 1)),
        command=shlex.join(["python", *argv[1:]]),
        date=time.strftime("%Y-%m-%d"),
    )


def _evaluation_in(log_text: str) -> dict[str, float] | None:
    """Return the values of the line in which a run reports how it ended."""
    found = re.findall(r"^ended .*?\bevaluation=(\{.*?\})", log_text, re.MULTILINE)
    if not found:
        return None
    result = ast.literal_eval(found[-1])
    return {"mean": result["mean_return"], "std": result["std_return"], "episodes": result["episodes"]}


def versions_in(python: str) -> dict[str, str]:
    """Return the versions that this interpreter trains with."""
    code = f"import json; from cleanrl_worker.analytics import versions_of; print(json.dumps(versions_of({PACKAGES})))"
    answer = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(answer.stdout)
    return found


def this_machine() -> str:
    """Return the processor and its usable cores."""
    return f"{cpu_model()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores"


if __name__ == "__main__":
    sys.exit(main())
