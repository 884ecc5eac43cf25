"""Run an algorithm without worker and daemon, as one runs a CleanRL script."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import tyro
from mosaic_wire import env
from mosaic_wire.worker_config import canonical_flags

from cleanrl_worker.errors import BadInput, TrainingStopped
from cleanrl_worker.threads import set_numpy_threads
from cleanrl_worker.training.channel import Channel, ConsoleChannel
from cleanrl_worker.training.evaluation import Evaluation
from cleanrl_worker.training.metrics import leave
from cleanrl_worker.training.run import RunContext, Stop
from cleanrl_worker.wandb_settings import wandb_settings
from cleanrl_worker.wrappers.schedule import Schedule

Train = Callable[[Any, RunContext], Evaluation | None]


def run_alone(algo: str, args_type: type[Any], train: Train, argv: list[str] | None = None) -> None:
    """Parse the flags, train, and leave everything under `runs/<env>__<name>__<seed>__<time>/`."""
    argv = sys.argv[1:] if argv is None else argv
    if "--cuda" in argv:
        os.environ[env.MOSAIC_GPUS_MANDATORY] = "1"
    args = parse_args(algo, args_type, argv)
    name = args.env_id.replace("/", "_").replace(":", "_")
    folder = Path("runs") / f"{name}__{args.exp_name}__{args.seed}__{int(time.time())}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if args.track:
            _prepare_tracking(folder)
        stopped = run_algorithm(algo, args, train, folder, ConsoleChannel(), tensorboard=folder)
    except (BadInput, TrainingStopped) as error:
        sys.stderr.write(f"{error}\n")
        leave(2 if isinstance(error, BadInput) else 1)
    sys.stdout.write(f"everything is in {folder}\n")
    leave(130 if stopped else 0)


def parse_args(algo: str, args_type: type[Any], argv: list[str]) -> Any:
    """Read the flags, spelled as here or as CleanRL's scripts take them (`--env_id`, `--device-ids 0 1`)."""
    return tyro.cli(args_type, args=canonical_flags(argv), prog=f"python -m cleanrl_worker.algorithms {algo}")


def _prepare_tracking(folder: Path) -> None:
    """What the worker does for its runs: W&B's variables, and a refusal where the package is missing."""
    found = importlib.util.find_spec("wandb")
    if found is None or found.origin is None:  # a folder of that name with W&B's files in it is no package
        raise BadInput(f"--track needs the package wandb, which {sys.executable} does not have")
    settings = wandb_settings(folder.name, folder.absolute(), {}, os.environ)
    os.environ.update(settings.variables)
    if settings.reason:
        sys.stdout.write(f"W&B is {settings.mode}: {settings.reason}\n")


def run_algorithm(
    algo: str,
    args: Any,
    train: Train,
    folder: Path,
    channel: Channel,
    *,
    tensorboard: Path | None = None,
    resume: Path | None = None,
    curriculum: Schedule | None = None,
) -> Stop | None:
    """Train in this process; SIGTERM and Ctrl-C end it at the next safe point, with a checkpoint."""
    torch.set_num_threads(max(1, args.torch_threads))
    set_numpy_threads(max(1, args.torch_threads))
    keep_freed_memory()
    run = RunContext(
        algo, folder, channel, tensorboard=tensorboard, resume=resume, curriculum=curriculum, track=args.track
    )
    with stopped_by_signals(run):
        evaluation = train(args, run)
        run.end({"evaluation": evaluation.to_json()} if evaluation is not None else {})
    return run.stopped


@contextmanager
def stopped_by_signals(run: RunContext) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C ask for a stop at the next safe point; closes the event file whatever happens."""

    def stop(number: int, frame: FrameType | None) -> None:
        run.request_stop()

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
        run.finish_saving()
        run.writer.close()
    except BaseException:
        with suppress(Exception):  # what went wrong first is the reason, not that more is lost, too
            run.finish_saving()
        with suppress(TrainingStopped):
            run.writer.close()
        raise
    finally:
        run.finish_tracking(failed=True)  # where training has come to its end, this is done already
        for number, handler in earlier.items():
            signal.signal(number, handler)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt"""
_LARGEST_KEPT = 1 << 30


def keep_freed_memory() -> bool:
    """Let the C library keep freed blocks up to a gigabyte; return False if it does not support that.

    By default glibc maps every larger block anew and hands it back when it is freed. The kernel then clears the same
    pages for every layer of every minibatch: a fifth of the time of a convolutional network's update.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)) and bool(mallopt(_TRIM_THRESHOLD, -1))
