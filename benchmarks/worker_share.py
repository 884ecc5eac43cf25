"""Worker and launcher against the bare script: CPU per step, and CPU until the first step.

The bare script is `python -m cleanrl_worker.algorithms ppo …`: the same file, without worker, daemon and pipes. With
`--script FILE` the same for an unmodified script (CleanRL's, say): `python FILE …` against `mosaic`'s way to run it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import alternate_horizons, print_shares
from mosaic_wire import env
from mosaic_wire.ids import new_run_id

ENV = "CartPole-v1"


def cpu_of_command(argv: list[str], folder: Path, variables: dict[str, str]) -> float:
    """CPU seconds of a command and of everything it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (folder / "output.log").open("ab") as log:
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
    if done.returncode != 0:
        raise SystemExit(f"{argv} ended with {done.returncode}: {(folder / 'output.log').read_text()[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def through_the_worker(folder: Path, steps: int, algo: str, extras: dict[str, object]) -> float:
    run_id = new_run_id()
    config = {
        "run_id": run_id, "algo": algo, "env_id": ENV, "total_timesteps": steps, "seed": 1, "extras": extras,
    }  # fmt: skip
    file = folder / "worker.json"
    file.write_text(json.dumps(config))
    # What the daemon gives a run of one CPU; the bare script limits its threads itself.
    variables = {env.MOSAIC_HOME: str(folder / "home"), env.CUDA_VISIBLE_DEVICES: ""}
    return cpu_of_command([sys.executable, "-m", "cleanrl_worker.cli", "--config", str(file)], folder, variables)


def by_hand(folder: Path, steps: int) -> float:
    flags = ["--env-id", ENV, "--total-timesteps", str(steps), "--seed", "1"]
    argv = [sys.executable, "-m", "cleanrl_worker.algorithms", "ppo", *flags]
    return cpu_of_command(argv, folder, {env.CUDA_VISIBLE_DEVICES: ""})


def script_by_hand(folder: Path, steps: int, script: Path) -> float:
    flags = ["--env-id", ENV, "--total-timesteps", str(steps), "--seed", "1", "--no-cuda"]
    return cpu_of_command([sys.executable, str(script), *flags], folder, {env.CUDA_VISIBLE_DEVICES: ""})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=512, help="steps of the run that measures the start: one batch")
    parser.add_argument("--script", type=Path, help="an unmodified script instead of our ppo")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        script: Path | None = arguments.script.absolute() if arguments.script else None
        extras: dict[str, object] = {"script_path": str(script), "algo_params": {"cuda": False}} if script else {}
        algo = script.stem if script else "ppo"

        def ours(steps: int) -> float:
            return through_the_worker(folder, steps, algo, extras)

        def peer(steps: int) -> float:
            return script_by_hand(folder, steps, script) if script else by_hand(folder, steps)

        horizons = (arguments.first, arguments.steps)
        measured = alternate_horizons(ours, peer, horizons=horizons, pairs=arguments.pairs)
    names = ("worker + launcher", "the bare script")
    print_shares(f"{algo} on {ENV}", names, *measured, horizons, to_reach=1.02, first_to_reach=1.2)


if __name__ == "__main__":
    main()
