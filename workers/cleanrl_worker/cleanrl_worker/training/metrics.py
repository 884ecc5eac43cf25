"""A run's metrics in TensorBoard event files, and in Weights & Biases."""

from __future__ import annotations

import importlib
import logging
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from mosaic_wire import env
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from cleanrl_worker.errors import TrainingStopped
from cleanrl_worker.training.args import effective_values

FLUSH_S = 1
Mirror = Callable[[Mapping[str, float], int], None]
_DT_STRING = 7
_BUCKETS = 64


class EventWriter:
    """Writes one event file, or none without a folder. `mirrors` are called with every scalar, too.

    If an earlier attempt left event files, readers drop their events after step `resume_at` (-1: all events).
    """

    def __init__(self, folder: Path | None, *, resume_at: int = -1, mirrors: Sequence[Mirror] = ()) -> None:
        self._folder, self._mirrors = folder, mirrors
        self._writer: EventFileWriter | None = None
        self.continues = False
        """An earlier attempt wrote here, and readers keep its events up to `resume_at`"""
        if folder is None:
            return
        with self._disk_errors():
            folder.mkdir(parents=True, exist_ok=True)
            has_events = any(folder.glob("events.out.tfevents.*"))
            self._writer = EventFileWriter(str(folder), max_queue_size=1000, flush_secs=FLUSH_S)
        self.continues = has_events and resume_at >= 0
        if has_events:
            start = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=time.time(), step=resume_at + 1, session_log=start))

    def _add(self, event: Event) -> None:
        if self._writer is None:
            return
        with self._disk_errors():  # errors of the writing thread are raised here, at the next event
            self._writer.add_event(event)

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise TrainingStopped(f"the event file in {self._folder} could not be written: {reason}") from error

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Write one value."""
        self.add_scalars({tag: value}, step)

    def add_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write values of one step in one event: the checksum per event is slow, computed in Python."""
        # NaN and infinities cannot be drawn on a chart; the algorithm reports them.
        finite = {tag: x for tag, x in values.items() if math.isfinite(x)}
        for mirror in self._mirrors:
            mirror(finite, step)
        if self._writer is not None:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=x) for tag, x in finite.items()])
            self._add(Event(wall_time=time.time(), step=step, summary=summary))

    def add_text(self, tag: str, text: str) -> None:
        """Write a text for TensorBoard's TEXT tab."""
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=_DT_STRING, string_val=[text.encode()], tensor_shape=shape)
        summary = Summary(value=[Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor)])
        self._add(Event(wall_time=time.time(), summary=summary))

    def add_histogram(self, tag: str, values: np.ndarray, weights: np.ndarray | None, step: int) -> None:
        """Write a histogram of samples, or with `weights` of weighted points in rising order."""
        if self._writer is None:
            return
        if weights is None:
            finite = np.asarray(values, dtype=np.float64)
            finite = finite[np.isfinite(finite)]
            counts, edges = np.histogram(finite, _BUCKETS) if finite.size else (np.zeros(1), np.zeros(2))
            limits, values, weights = edges[1:], finite, np.ones_like(finite)
        else:
            counts, limits = weights, np.append((values[1:] + values[:-1]) / 2, values[-1])
        histogram = HistogramProto(
            min=float(values.min()) if values.size else 0.0,
            max=float(values.max()) if values.size else 0.0,
            num=float(weights.sum()),
            sum=float((values * weights).sum()),
            sum_squares=float((values * values * weights).sum()),
            bucket_limit=limits.tolist(),
            bucket=counts.tolist(),
        )
        self._add(
            Event(wall_time=time.time(), step=step, summary=Summary(value=[Summary.Value(tag=tag, histo=histogram)]))
        )

    def begin_session(self, hyperparameters: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Write this run's row of TensorBoard's HPARAMS tab: its flags, and the newest values of some charts."""
        columns = [api_pb2.HParamInfo(name=key, type=_kind(value)) for key, value in hyperparameters.items()]
        metric_infos = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag)) for tag in metrics]
        experiment = api_pb2.Experiment(hparam_infos=columns, metric_infos=metric_infos)
        start = plugin_data_pb2.SessionStartInfo(start_time_secs=time.time())
        for key, value in hyperparameters.items():
            if isinstance(value, bool):
                start.hparams[key].bool_value = value
            elif isinstance(value, int | float):
                start.hparams[key].number_value = value
            else:
                start.hparams[key].string_value = str(value)
        self._add_to_session(metadata.EXPERIMENT_TAG, plugin_data_pb2.HParamsPluginData(experiment=experiment))
        self._add_to_session(
            metadata.SESSION_START_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_start_info=start)
        )

    def end_session(self, *, completed: bool) -> None:
        """Write the final status for the HPARAMS tab."""
        status = api_pb2.Status.Value("STATUS_SUCCESS" if completed else "STATUS_FAILURE")
        end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
        self._add_to_session(metadata.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=end))

    def _add_to_session(self, tag: str, content: plugin_data_pb2.HParamsPluginData) -> None:
        described = metadata.create_summary_metadata(content)
        summary = Summary(value=[Summary.Value(tag=tag, metadata=described, tensor=metadata.NULL_TENSOR)])
        self._add(Event(wall_time=time.time(), step=0, summary=summary))

    def flush(self) -> None:
        """Write all events to disk."""
        if self._writer is not None:
            with self._disk_errors():
                self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            with self._disk_errors():
                self._writer.close()


def _kind(value: Any) -> Any:
    if isinstance(value, bool):
        return api_pb2.DataType.Value("DATA_TYPE_BOOL")
    number = isinstance(value, int | float)
    return api_pb2.DataType.Value("DATA_TYPE_FLOAT64" if number else "DATA_TYPE_STRING")


logger = logging.getLogger(__name__)

FINISH_S = 30.0
"""How long a finished training waits for W&B to send the rest"""
QUICK_FINISH_S = 5.0
"""The same for a training that was stopped or failed"""

_MAX_WAITING = 50_000
_STEP = "global_step"

_left_behind = threading.Event()
"""Set after a W&B problem: its exit handlers may hang"""


class WandbTracker:
    """Mirrors scalars to one W&B run. Values of `log` before `start` are kept."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[Mapping[str, float], int] | None] = queue.Queue(_MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._unreported: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._trouble = ""
        self._exit_code = 0

    def start(self, args: Any) -> None:
        """Start the run; its config are the algorithm's flags."""
        # A daemon thread: if it hangs, the process can still exit.
        self._thread = threading.Thread(target=self._work, args=(args,), name="wandb", daemon=True)
        self._thread.start()

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Queue values of one step."""
        if self._trouble:
            return
        try:
            self._waiting.put_nowait((dict(values), step))
        except queue.Full:
            self._give_up(f"it does not keep up: {_MAX_WAITING} values wait")

    def unreported(self) -> dict[str, Any]:
        """Return what was not reported yet: `run_path` and `url`, or the `problem`."""
        facts: dict[str, Any] = {}
        while not self._unreported.empty():
            facts |= self._unreported.get()
        return facts

    def finish(self, timeout_s: float, *, exit_code: int = 0) -> None:
        """Finish the W&B run within the timeout; `exit_code` is that of the training."""
        if self._thread is None:
            return
        self._exit_code = exit_code
        thread, self._thread = self._thread, None
        with suppress(queue.Full):  # it hangs; the timeout below handles it
            self._waiting.put_nowait(None)
        thread.join(timeout_s)
        if thread.is_alive():
            self._give_up(f"it did not finish within {timeout_s:g} s; `wandb sync` sends what is in the run folder")

    def _work(self, args: Any) -> None:
        try:
            run = _begin(args)
            if not getattr(run, "offline", True):
                self._unreported.put({"run_path": run.path, "url": run.url})
            while (item := self._waiting.get()) is not None:
                values, step = item
                run.log({**values, _STEP: step})
            run.finish(exit_code=self._exit_code)
        except BaseException as error:  # noqa: BLE001 - an external service must not fail the training
            self._give_up(str(error) or type(error).__name__)

    def _give_up(self, reason: str) -> None:
        if self._trouble:
            return
        self._trouble = reason
        _left_behind.set()
        logger.warning("W&B failed and receives no more data of this run; training continues without it: %s", reason)
        self._unreported.put({"problem": reason})


def _begin(args: Any) -> Any:
    wandb = importlib.import_module("wandb")  # lazily: only a tracked run has it
    run = wandb.init(
        project=_chosen(args, "wandb_project_name", env.WANDB_PROJECT),
        entity=_chosen(args, "wandb_entity", env.WANDB_ENTITY),
        name=os.environ.get(env.WANDB_NAME) or f"{args.env_id}__{args.exp_name}__{args.seed}",
        config=effective_values(args),
    )
    # A resumed run repeats some steps, but W&B's own step counter cannot go back.
    run.define_metric(_STEP)
    run.define_metric("*", step_metric=_STEP)
    return run


def _chosen(args: Any, name: str, variable: str) -> str | None:
    """Return the flag if it was set, else the variable, else the flag's default."""
    value, default = getattr(args, name, None), getattr(type(args), name, None)
    return value if value != default else os.environ.get(variable) or value


def leave(code: int) -> None:
    """Exit this process; skip the exit handlers if W&B hangs."""
    if _left_behind.is_set():
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
