"""The training process: python -m cleanrl_worker.launcher [OPTIONS] ALGO [flags]

Started by the worker with two pipes. The options select a mode other than training from scratch, see `modes`.
`--script …` runs an unmodified script instead (see scripts/running.py); the hooks it needs are installed in this
process alone.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from mosaic_wire import env

from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.registry import resolve

if TYPE_CHECKING:
    from cleanrl_worker.training.channel import PipeChannel

logger = logging.getLogger(__name__)

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED = 1, 2, 130


def main() -> int:
    """Train, and report to the worker how it ended before the process exits."""
    if sys.argv[1:2] == ["--script"]:
        from cleanrl_worker.scripts import running

        return running.main(sys.argv[2:])
    signal.signal(signal.SIGTERM, _exit)  # nothing to save yet; replaced once training has a safe point
    signal.signal(signal.SIGINT, _exit)
    parser = argparse.ArgumentParser(prog="cleanrl_worker.launcher", allow_abbrev=False)
    parser.add_argument("--resume-from", type=Path)
    parser.add_argument("--curriculum", type=json.loads)
    parser.add_argument("--evaluate", type=json.loads)
    parser.add_argument("--play", type=json.loads)
    parser.add_argument("algo")
    parser.add_argument("flags", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    entry = resolve(arguments.algo)
    if "--cuda" in arguments.flags:  # requested explicitly: flags that are left out are not passed on
        os.environ[env.MOSAIC_GPUS_MANDATORY] = "1"

    gc.disable()  # torch's modules stay: collecting garbage in them takes a quarter of the start
    import tyro

    from cleanrl_worker.training.channel import PipeChannel

    channel = PipeChannel(int(os.environ[env.CLEANRL_CONTROL_FD]), int(os.environ[env.CLEANRL_PROGRESS_FD]))
    try:
        module = importlib.import_module(entry.module)
        gc.freeze()
        gc.enable()
        args = tyro.cli(getattr(module, entry.preset), args=arguments.flags)
        _work(entry.name, module, args, arguments, channel)
    except (BadInput, TrainingStopped) as error:
        logger.error("%s", error)
        channel.send("failed", {"error": str(error), "error_type": type(error).__name__})
        return EXIT_BAD_INPUT if isinstance(error, BadInput) else EXIT_FAILED
    except Exception as error:  # the boundary of the process: whatever an environment raises is the run's failure
        logger.exception("training failed")
        channel.send("failed", {"error": str(error) or type(error).__name__, "error_type": type(error).__name__})
        return EXIT_FAILED
    return 0


def _work(algo: str, module: ModuleType, args: Any, arguments: argparse.Namespace, channel: PipeChannel) -> None:
    """Run the mode that the options select; each imports what it needs."""
    folder, tensorboard = Path(os.environ[env.CLEANRL_RUN_DIR]), Path(os.environ[env.CLEANRL_TENSORBOARD_DIR])
    if arguments.evaluate is not None or arguments.play is not None:
        from cleanrl_worker.training.run import RunContext

        run = RunContext(algo, folder, channel, tensorboard=tensorboard)
        if arguments.evaluate is not None:
            from cleanrl_worker.eval.batched import evaluate_run

            evaluate_run(run, channel, module, args, arguments.evaluate)
        else:
            from cleanrl_worker.eval.interactive import play_run

            play_run(run, channel, module, args, arguments.play)
    elif arguments.curriculum is not None:
        from cleanrl_worker.wrappers.curriculum import run_curriculum_training

        run_curriculum_training(
            algo,
            args,
            module.train,
            arguments.curriculum,
            folder,
            channel,
            tensorboard=tensorboard,
            resume=arguments.resume_from,
        )
    else:
        from cleanrl_worker.training.standalone import run_algorithm

        run_algorithm(algo, args, module.train, folder, channel, tensorboard=tensorboard, resume=arguments.resume_from)


def _end(code: int) -> None:
    if "cleanrl_worker.training.metrics" in sys.modules:  # not for scripts: they have W&B to themselves
        from cleanrl_worker.training.metrics import leave

        leave(code)
    sys.exit(code)


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(EXIT_STOPPED)


if __name__ == "__main__":
    _end(main())
