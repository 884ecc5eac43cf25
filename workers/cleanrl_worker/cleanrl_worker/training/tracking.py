"""Weights & Biases for our own algorithms: what goes to the event file goes there, too.

Everything is done by a thread of its own: training never waits for W&B, and goes on without it when it has trouble.
The mode, the key and the run's id come from the environment, see `wandb_settings.py`.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mosaic_wire import env

from cleanrl_worker.training.arguments import effective_values

logger = logging.getLogger(__name__)

FINISH_S = 30.0
"""How long the end of a training waits until W&B has everything"""
HURRIED_FINISH_S = 5.0
"""The same when somebody waits for the process to be gone, or it failed"""

_MOST_WAITING = 50_000
_STEP = "global_step"

_left_behind = threading.Event()
"""Set when W&B had trouble: its handlers at the exit of the process may not come to an end"""


class WandbTracker:
    """Mirrors scalars to one W&B run. `log` may be called before `start`; nothing is lost by that."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[Mapping[str, float], int] | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._news: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._trouble = ""
        self._exit_code = 0

    def start(self, args: Any) -> None:
        """Begin the run; its settings are the algorithm's flags."""
        # A daemon thread: one that hangs must not keep the process.
        self._thread = threading.Thread(target=self._work, args=(args,), name="wandb", daemon=True)
        self._thread.start()

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Hand values of one step over; costs next to nothing."""
        if self._trouble:
            return
        try:
            self._waiting.put_nowait((dict(values), step))
        except queue.Full:
            self._give_up(f"it does not keep up: {_MOST_WAITING} values wait")

    def news(self) -> dict[str, Any]:
        """What people should know of it and have not been told: `run_path` and `url`, or the `problem`."""
        facts: dict[str, Any] = {}
        while not self._news.empty():
            facts |= self._news.get()
        return facts

    def finish(self, timeout_s: float, *, exit_code: int = 0) -> None:
        """Let W&B write what it has, but wait no longer than this; the code says whether training went well."""
        if self._thread is None:
            return
        self._exit_code = exit_code
        thread, self._thread = self._thread, None
        with suppress(queue.Full):  # then it hangs, and is given up below
            self._waiting.put_nowait(None)
        thread.join(timeout_s)
        if thread.is_alive():
            self._give_up(f"it did not finish within {timeout_s:g} s; `wandb sync` sends what is in the run folder")

    def _work(self, args: Any) -> None:
        try:
            run = _begin(args)
            if not getattr(run, "offline", True):
                self._news.put({"run_path": run.path, "url": run.url})
            while (item := self._waiting.get()) is not None:
                values, step = item
                run.log({**values, _STEP: step})
            run.finish(exit_code=self._exit_code)
        except BaseException as error:  # noqa: BLE001 - somebody else's service: no trouble of it is the training's
            self._give_up(str(error) or type(error).__name__)

    def _give_up(self, reason: str) -> None:
        if self._trouble:
            return
        self._trouble = reason
        _left_behind.set()
        logger.warning("W&B had trouble and gets no more of this run; training goes on without it: %s", reason)
        self._news.put({"problem": reason})


def _begin(args: Any) -> Any:
    wandb = importlib.import_module("wandb")  # lazily: only a tracked run has it
    run = wandb.init(
        project=_chosen(args, "wandb_project_name", env.WANDB_PROJECT),
        entity=_chosen(args, "wandb_entity", env.WANDB_ENTITY),
        name=os.environ.get(env.WANDB_NAME) or f"{args.env_id}__{args.exp_name}__{args.seed}",
        config=effective_values(args),
    )
    # A run that goes on from a checkpoint makes some steps again: W&B's own counter could only go up.
    run.define_metric(_STEP)
    run.define_metric("*", step_metric=_STEP)
    return run


def _chosen(args: Any, name: str, variable: str) -> str | None:
    """A flag that somebody set, else the variable, else the flag's default."""
    value, default = getattr(args, name, None), getattr(type(args), name, None)
    return value if value != default else os.environ.get(variable) or value


def leave(code: int) -> None:
    """End this process; handlers that wait for a W&B that hangs are left out."""
    if _left_behind.is_set():
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
