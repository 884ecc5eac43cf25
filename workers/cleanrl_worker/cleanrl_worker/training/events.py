"""TensorBoard event files: scalars and text, flushed within two seconds.

The events are built here because torch's SummaryWriter takes several times as long per scalar, and PPO logs
two for every episode.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from cleanrl_worker.errors import TrainingStopped

FLUSH_S = 2
_DT_STRING = 7


class EventWriter:
    """Writes one event file; without a folder none. `mirror` is told every scalar as well.

    Where an earlier attempt left event files, readers drop what those say after step `resume_at` (-1: everything).
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        resume_at: int = -1,
        mirror: Callable[[Mapping[str, float], int], None] | None = None,
    ) -> None:
        self._folder, self._mirror = folder, mirror
        self._writer: EventFileWriter | None = None
        if folder is None:
            return
        with self._said_of_the_disk():
            folder.mkdir(parents=True, exist_ok=True)
            goes_on = any(folder.glob("events.out.tfevents.*"))
            self._writer = EventFileWriter(str(folder), max_queue_size=1000, flush_secs=FLUSH_S)
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
        if self._mirror is not None:
            self._mirror(finite, step)
        if self._writer is not None:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=x) for tag, x in finite.items()])
            self._add(Event(wall_time=time.time(), step=step, summary=summary))

    def add_text(self, tag: str, text: str, step: int = 0) -> None:
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=_DT_STRING, string_val=[text.encode()], tensor_shape=shape)
        summary = Summary(value=[Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor)])
        self._add(Event(wall_time=time.time(), step=step, summary=summary))

    def flush(self) -> None:
        if self._writer is not None:
            with self._said_of_the_disk():
                self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            with self._said_of_the_disk():
                self._writer.close()
