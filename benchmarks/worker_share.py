"""Worker and launcher against the bare script: CPU per step, and CPU until the first step.

The bare script is `python -m cleanrl_worker.algorithms ppo …`: the same file, without worker, daemon and pipes. With
`--upstream CHECKOUT` the same for CleanRL's unmodified `ppo.py`, in the requirement set `upstream`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from measure import cpu_of_command, print_shares, side_by_side
from mosaic_extras.overlays import interpreter_for
from mosaic_extras.testing import lend_sets
from mosaic_wire import env
from mosaic_wire.ids import new_run_id
from mosaic_wire.paths import Home, find_home

ENV = "CartPole-v1"


def through_the_worker(folder: Path, steps: int, extras: dict[str, object]) -> float:
    run_id = new_run_id()
    config = {"run_id": run_id, "algo": "ppo", "env_id": ENV, "total_timesteps": steps, "seed": 1, "extras": extras}
    file = folder / "worker.json"
    file.write_text(json.dumps(config))
    # What the daemon gives a run of one CPU; the bare script limits its threads itself.
    variables = {env.MOSAIC_HOME: str(folder / "home"), env.CUDA_VISIBLE_DEVICES: ""}
    return cpu_of_command([sys.executable, "-m", "cleanrl_worker.cli", "--config", str(file)], folder, variables)


def by_hand(folder: Path, steps: int) -> float:
    flags = ["--env-id", ENV, "--total-timesteps", str(steps), "--seed", "1"]
    argv = [sys.executable, "-m", "cleanrl_worker.algorithms", "ppo", *flags]
    return cpu_of_command(argv, folder, {env.CUDA_VISIBLE_DEVICES: ""})


def script_by_hand(folder: Path, steps: int, checkout: Path, python: Path) -> float:
    flags = ["--env-id", ENV, "--total-timesteps", str(steps), "--seed", "1", "--no-cuda"]
    one_thread = dict.fromkeys(env.THREAD_COUNTS, "1")  # as a run of one CPU has it
    variables = {**one_thread, env.CUDA_VISIBLE_DEVICES: "", "PYTHONPATH": str(checkout)}
    return cpu_of_command([str(python), str(checkout / "cleanrl" / "ppo.py"), *flags], folder, variables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=512, help="steps of the run that measures the start: one batch")
    parser.add_argument("--upstream", type=Path, help="a checkout of CleanRL: its ppo.py instead of ours")
    parser.add_argument("--home", type=Path, help="the home with the requirement sets (default: MOSAIC's)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        checkout: Path | None = arguments.upstream.absolute() if arguments.upstream else None
        extras: dict[str, object] = {}
        if checkout is not None:
            having_sets = Home(arguments.home.absolute()) if arguments.home else find_home()
            lend_sets(Home(folder / "home"), "upstream", of=having_sets)
            python = interpreter_for(having_sets, ["upstream"])
            extras = {"source": str(checkout), "algo_params": {"cuda": False}}

        def ours(steps: int) -> float:
            return through_the_worker(folder, steps, extras)

        def peer(steps: int) -> float:
            return script_by_hand(folder, steps, checkout, python) if checkout else by_hand(folder, steps)

        horizons = (arguments.first, arguments.steps)
        measured = side_by_side(ours, peer, horizons=horizons, pairs=arguments.pairs)
    names = ("worker + launcher", "the bare script")
    whose = "CleanRL's ppo.py" if checkout else "ppo"
    print_shares(f"{whose} on {ENV}", names, *measured, horizons, to_reach=1.02, first_to_reach=1.2)


if __name__ == "__main__":
    main()
