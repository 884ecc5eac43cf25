"""The training process: python -m cleanrl_worker.launcher [--resume-from FOLDER] ALGO [flags]

Started by the worker with two pipes. `--script …` runs an unmodified script instead (see scripts/running.py); the hooks
it needs are installed in this process alone.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from mosaic_wire import env

from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.registry import resolve

logger = logging.getLogger(__name__)

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_STOPPED = 1, 2, 130


def main() -> int:
    """Train, and tell the worker how it ended before the process does."""
    if sys.argv[1:2] == ["--script"]:
        from cleanrl_worker.scripts import running

        return running.main(sys.argv[2:])
    signal.signal(signal.SIGTERM, _leave)  # nothing to save yet; replaced once training has a safe point
    signal.signal(signal.SIGINT, _leave)
    parser = argparse.ArgumentParser(prog="cleanrl_worker.launcher", allow_abbrev=False)
    parser.add_argument("--resume-from", type=Path)
    parser.add_argument("algo")
    parser.add_argument("flags", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    entry = resolve(arguments.algo)

    import tyro

    from cleanrl_worker.training.channel import PipeChannel
    from cleanrl_worker.training.standalone import run_algorithm

    channel = PipeChannel(int(os.environ[env.CLEANRL_CONTROL_FD]), int(os.environ[env.CLEANRL_PROGRESS_FD]))
    try:
        module = importlib.import_module(entry.module)
        args = tyro.cli(module.Args, args=arguments.flags)
        run_algorithm(
            entry.name,
            args,
            module.train,
            Path(os.environ[env.CLEANRL_RUN_DIR]),
            channel,
            tensorboard=Path(os.environ[env.CLEANRL_TENSORBOARD_DIR]),
            resume=arguments.resume_from,
        )
    except (BadInput, TrainingStopped) as error:
        logger.error("%s", error)
        channel.tell("failed", {"error": str(error), "error_type": type(error).__name__})
        return EXIT_BAD_INPUT if isinstance(error, BadInput) else EXIT_FAILED
    except Exception as error:  # the boundary of the process: whatever an environment raises is the run's failure
        logger.exception("training failed")
        channel.tell("failed", {"error": str(error) or type(error).__name__, "error_type": type(error).__name__})
        return EXIT_FAILED
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(EXIT_STOPPED)


if __name__ == "__main__":
    sys.exit(main())
