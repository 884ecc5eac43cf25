"""The metric bridge: a thread of the worker that reads growing event files and sends new points to the daemon.

It follows any script that writes TensorBoard files, unmodified. The files are the spool: each batch names where it
begins and ends in them, and the daemon knows up to where it has them. If the daemon was unreachable, restarted, or
refused a batch under load, the next batch begins there. The daemon itself reads what a killed worker did not publish.
Its answers set the interval: longer without a viewer.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from mosaic_wire.event_files import EventFolderReader
from mosaic_wire.event_records import EventBatch
from mosaic_wire.limits import MAX_METRIC_TAG, too_long
from mosaic_wire.proto import trainer_pb2 as messages

INTERVAL_S = 1.0
"""Polling interval of the files until the daemon requests another one"""
_LONGEST_INTERVAL_S = 60.0
BYTES_A_POINT = 48
"""The minimum size of a scalar in an event file"""
MOST_BYTES = 2 << 20
_MOST_CREDITS = MOST_BYTES // BYTES_A_POINT
LAST_TRY_S = 5.0
"""How long an ending waits for the daemon, which otherwise reads the rest itself"""


class MetricLink(Protocol):
    """Sends batches to the daemon; None means that a batch has to be sent again later."""

    def publish_metrics(self, request: messages.PublishRunMetricsRequest) -> messages.PublishRunMetricsResponse | None:
        """Send a batch of points; raise when the daemon refuses it."""


class MetricBridge:
    """Follows the event files of one run: `start` after registration, `stop` when they are complete."""

    def __init__(
        self,
        run_id: str,
        events: Path,
        publisher: MetricLink,
        *,
        beside: bool = False,
        interval_s: float = INTERVAL_S,
        on_accepted: Callable[[Sequence[EventBatch]], None] | None = None,
    ) -> None:
        """`beside`: see `EventFolderReader`; `on_accepted` gets every batch that the daemon accepted, once."""
        self._beside = beside
        self._run_id, self._events, self._publisher, self._interval_s = run_id, events, publisher, interval_s
        self._on_accepted, self._batches = on_accepted, list[EventBatch]()
        self._reader = self._reader_at(None)
        self._position: Any = None
        self._unsent: messages.PublishRunMetricsRequest | None = None
        self._was_refused = self._has_complained = False
        self._credits = _MOST_CREDITS
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def _reader_at(self, position: Any) -> EventFolderReader:
        # The reader imports numpy only for more than a megabyte at a time; a worker otherwise never loads it.
        return EventFolderReader(self._events, beside=self._beside, position=position)

    def start(self) -> None:
        """Start the thread that follows the event files."""
        self._thread = threading.Thread(target=self._follow, name="mosaic-metrics", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = LAST_TRY_S) -> None:
        """Send the rest and stop, waiting no longer than `timeout_s`."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _follow(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            wait_s = self._interval_s if (requested := self.poll()) is None else requested
        while self.poll() == 0.0:  # the rest
            pass

    def poll(self) -> float | None:
        """Send one batch of new points; return the seconds until the next poll (0: there is more; None: as usual)."""
        request = self._unsent or self._next_batch()
        if request is None:
            return None
        self._unsent = request
        answer = self._publisher.publish_metrics(request)
        if answer is None:
            return None
        self._credits = answer.credits or _MOST_CREDITS  # zero credits are temporary
        if 0 < answer.interval_s <= _LONGEST_INTERVAL_S:
            self._interval_s = answer.interval_s
        if answer.accepted:
            self._position, self._unsent, self._was_refused = json.loads(request.after_json), None, False
            if self._on_accepted is not None:
                self._on_accepted(self._batches)
            self._batches = []
            return 0.0 if self._reader.has_more else None
        if not answer.credits:
            # Throttled: points that arrive meanwhile join the next batch.
            self._go_to(self._position)
            return answer.retry_after_s
        self._go_to(json.loads(answer.position_json) if answer.position_json else None)
        again, self._was_refused = self._was_refused, True
        return None if again else 0.0  # do not retry at once with a daemon that accepts nothing

    def _go_to(self, position: Any) -> None:
        """Continue from the daemon's position, or from the beginning if that is invalid."""
        self._unsent = None
        try:
            self._reader = self._reader_at(position)
        except ValueError:
            self._reader, position = self._reader_at(None), None
        self._position = position

    def _next_batch(self) -> messages.PublishRunMetricsRequest | None:
        batches = self._reader.read(max(1, min(MOST_BYTES, self._credits * BYTES_A_POINT)))
        if not batches:
            return None
        for batch in batches:
            self._leave_out_long_tags(batch)
        self._batches = batches
        return messages.PublishRunMetricsRequest(
            run_id=self._run_id,
            before_json=json.dumps(self._position) if self._position is not None else "",
            after_json=json.dumps(self._reader.position()),
            folders=[_folder(batch) for batch in batches],
        )

    def _leave_out_long_tags(self, batch: EventBatch) -> None:
        for tag in [tag for tag in batch.columns if len(batch.folder) + len(tag) > MAX_METRIC_TAG]:
            del batch.columns[tag]
            if not self._has_complained:
                self._has_complained = True
                message = too_long(f"the metric tag {tag[:40]!r}…", len(batch.folder) + len(tag), MAX_METRIC_TAG)
                print(f"{message}; it is left out, and so is every other one of that length", file=sys.stderr)  # noqa: T201


def _folder(batch: EventBatch) -> messages.MetricFolder:
    return messages.MetricFolder(
        folder=batch.folder,
        is_reset=batch.is_reset,
        drop_from=batch.drop_from,
        columns=[
            messages.MetricColumn(tag=tag, steps=column.steps, wall_times=column.wall_times, values=column.values)
            for tag, column in batch.columns.items()
        ],
    )
