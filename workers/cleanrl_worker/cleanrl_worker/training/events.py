"""TensorBoard event files: scalars, histograms, text and hyper-parameters, flushed within a second.

The events are built here because torch's SummaryWriter takes several times as long per scalar, and PPO logs
two for every episode.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from cleanrl_worker.errors import TrainingStopped

FLUSH_S = 1
Mirror = Callable[[Mapping[str, float], int], None]
_DT_STRING = 7
_BUCKETS = 64


class EventWriter:
    """Writes one event file; without a folder none. `mirrors` are told every scalar as well.

    Where an earlier attempt left event files, readers drop what those say after step `resume_at` (-1: everything).
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        resume_at: int = -1,
        mirrors: Sequence[Mirror] = (),
    ) -> None:
        self._folder, self._mirrors = folder, mirrors
        self._writer: EventFileWriter | None = None
        self.goes_on = False
        """An earlier attempt has written here, and readers keep what it said up to `resume_at`"""
        if folder is None:
            return
        with self._said_of_the_disk():
            folder.mkdir(parents=True, exist_ok=True)
            goes_on = any(folder.glob("events.out.tfevents.*"))
            self._writer = EventFileWriter(str(folder), max_queue_size=1000, flush_secs=FLUSH_S)
        self.goes_on = goes_on and resume_at >= 0
        if goes_on:
            start = SessionLog(status=SessionLog.START)
            self._add(Event(wall_time=time.time(), step=resume_at + 1, session_log=start))

    def _add(self, event: Event) -> None:
        if self._writer is None:
            return
        with self._said_of_the_disk():  # what the writing thread met comes up here, at the next event
            self._writer.add_event(event)

    @contextmanager
    def _said_of_the_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            words = error.strerror or error
            raise TrainingStopped(f"the event file in {self._folder} could not be written: {words}") from error

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.add_scalars({tag: value}, step)

    def add_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write values of one step in one event: a record's checksum is computed in Python, byte by byte."""
        # NaN and infinities have no place on a chart; the algorithm reports them.
        finite = {tag: x for tag, x in values.items() if math.isfinite(x)}
        for mirror in self._mirrors:
            mirror(finite, step)
        if self._writer is not None:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=x) for tag, x in finite.items()])
            self._add(Event(wall_time=time.time(), step=step, summary=summary))

    def add_text(self, tag: str, text: str, step: int = 0) -> None:
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=_DT_STRING, string_val=[text.encode()], tensor_shape=shape)
        summary = Summary(value=[Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor)])
        self._add(Event(wall_time=time.time(), step=step, summary=summary))

    def add_histogram(self, tag: str, values: np.ndarray, weights: np.ndarray | None, step: int) -> None:
        """How values are spread: samples, or with `weights` points (in rising order) that each carry so much."""
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
            min=float(values.min()) if values.size else 0.0, max=float(values.max()) if values.size else 0.0,
            num=float(weights.sum()), sum=float((values * weights).sum()),
            sum_squares=float((values * values * weights).sum()),
            bucket_limit=limits.tolist(), bucket=counts.tolist(),
        )  # fmt: skip
        self._add(
            Event(wall_time=time.time(), step=step, summary=Summary(value=[Summary.Value(tag=tag, histo=histogram)]))
        )

    def begin_session(self, hyperparameters: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """Let TensorBoard's HPARAMS tab have a row for this run: its flags, and the newest values of some charts."""
        columns = [api_pb2.HParamInfo(name=key, type=_kind(value)) for key, value in hyperparameters.items()]
        figures = [api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag)) for tag in metrics]
        experiment = api_pb2.Experiment(hparam_infos=columns, metric_infos=figures)
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
        """Say in the HPARAMS tab that it is over."""
        status = api_pb2.Status.Value("STATUS_SUCCESS" if completed else "STATUS_FAILURE")
        end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
        self._add_to_session(metadata.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=end))

    def _add_to_session(self, tag: str, content: plugin_data_pb2.HParamsPluginData) -> None:
        described = metadata.create_summary_metadata(content)
        summary = Summary(value=[Summary.Value(tag=tag, metadata=described, tensor=metadata.NULL_TENSOR)])
        self._add(Event(wall_time=time.time(), step=0, summary=summary))

    def flush(self) -> None:
        if self._writer is not None:
            with self._said_of_the_disk():
                self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            with self._said_of_the_disk():
                self._writer.close()


def _kind(value: Any) -> Any:
    if isinstance(value, bool):
        return api_pb2.DataType.Value("DATA_TYPE_BOOL")
    number = isinstance(value, int | float)
    return api_pb2.DataType.Value("DATA_TYPE_FLOAT64" if number else "DATA_TYPE_STRING")
