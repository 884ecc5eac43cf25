"""Runs that a worker submits to its daemon, if its capabilities have `submits_runs` (a sweep).

    with session.child_runs() as children:
        run = children.submit(config, key="trial-0")
        for run in children.poll(timeout_s=1):
            …

The daemon may stop and restart at any time: calls are retried until it answers or the session stops, and after a gap
every awaited run is reported again. A submission with a key is never duplicated.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import grpc

from mosaic_wire.daemon_link import AWAY, FIRST_RETRY_S, LONGEST_RETRY_S, WorkerLink
from mosaic_wire.errors import ChildRunRefused, SessionStopped
from mosaic_wire.proto import trainer_pb2 as messages
from mosaic_wire.run_status import UNFINISHED, RunStatus

RUN_ID_HEADER = "x-mosaic-run-id"

_CALL_S = 30.0
_INTERNAL = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN})
_INTERNAL_TRIES = 5
"""Attempts of a call that fails with an internal error"""

COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"

T = TypeVar("T")


@dataclass(frozen=True)
class ChildRun:
    """The state of a run that a worker submitted."""

    run_id: str
    status: str
    outcome: str = ""
    """completed | failed | cancelled, once it is over; `deleted` when a client removed it"""
    reason: str = ""
    step: int = 0
    total: int = 0
    episodic_return: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    has_completed: bool = False
    """Whether its worker reported completion; its process may not have exited yet"""
    event_seq: int = 0

    @property
    def is_over(self) -> bool:
        """Return whether it has an outcome."""
        return bool(self.outcome)

    @classmethod
    def of(cls, run: messages.Run) -> ChildRun:
        """Return the state in a message."""
        return cls(
            run.run_id,
            run.status,
            run.outcome,
            run.reason,
            run.step,
            run.total,
            run.episodic_return if run.HasField("episodic_return") else None,
            dict(run.metrics),
            bool(run.result_json) or run.outcome == COMPLETED,
            run.event_seq,
        )


class ChildRuns:
    """Submits and follows the runs of one worker session; one thread makes calls, another one receives updates."""

    def __init__(self, link: WorkerLink, run_id: str, stop: threading.Event) -> None:
        self._stub = link.stub
        self._metadata = (*link.metadata, (RUN_ID_HEADER, run_id))
        self._stop = stop
        self._awaited: dict[str, int] = {}
        """Unfinished runs, with the newest event known of each"""
        self._streaming_from = 0
        """The event after which the stream starts"""
        self._lock = threading.Lock()
        self._updates: queue.SimpleQueue[ChildRun] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._has_runs = threading.Event()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._follow, name="mosaic-child-runs", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._has_runs.set()
        if self._stream is not None:
            self._stream.cancel()
        self._thread.join(timeout=2)

    # -- calls

    def submit(self, config: Mapping[str, Any], *, key: str) -> ChildRun:
        """Queue a run, or return the one queued with this key; raise ChildRunRefused with the daemon's message."""
        request = messages.SubmitRunRequest(config_json=json.dumps(config), idempotency_key=key)
        run = ChildRun.of(self._call(self._stub.SubmitRun, request).run)
        if run.is_over:
            return run
        with self._lock:
            self._awaited[run.run_id] = run.event_seq
            # A known run may have changed between this answer and the start of the stream.
            is_behind = run.event_seq < self._streaming_from
        self._has_runs.set()
        if is_behind:
            run = self.get(run.run_id)
            with self._lock:
                self._awaited[run.run_id] = run.event_seq
                if run.is_over:
                    del self._awaited[run.run_id]
        return run

    def cancel(self, run_id: str, reason: str) -> None:
        """Cancel a run unless it has ended or was deleted."""
        try:
            self._call(self._stub.CancelRun, messages.CancelRunRequest(run_id=run_id, reason=reason))
        except ChildRunRefused as refusal:
            if refusal.code not in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND):
                raise

    def get(self, run_id: str) -> ChildRun:
        """Return the state of a run now."""
        try:
            return ChildRun.of(self._call(self._stub.GetRun, messages.RunRequest(run_id=run_id)))
        except ChildRunRefused as refusal:
            if refusal.code is grpc.StatusCode.NOT_FOUND:
                return ChildRun(run_id, RunStatus.TERM, "deleted", "its run was deleted")
            raise

    def unfinished(self) -> list[ChildRun]:
        """Return every unfinished run of this worker."""
        request = messages.ListRunsRequest(statuses=UNFINISHED, include_archived=True)
        runs: list[ChildRun] = []
        while True:
            page = self._call(self._stub.ListRuns, request)
            runs += [ChildRun.of(run) for run in page.runs]
            if not page.next_before:
                return runs
            request.before_number = page.next_before

    def curve(
        self, run_id: str, tags: Sequence[str], *, since_step: int = 0, until_step: int | None = None
    ) -> list[tuple[int, float]]:
        """Return the points between two steps of the first of these curves that a run has; empty without any."""
        request = messages.StreamRunMetricsRequest(
            run_id=run_id, tags=tags, since_step=since_step, until_step=until_step, max_points=-1
        )

        def read(message: messages.StreamRunMetricsRequest, **options: Any) -> dict[str, list[tuple[int, float]]]:
            found: dict[str, list[tuple[int, float]]] = {}
            for update in self._stub.StreamRunMetrics(message, **options):
                for curve in update.curves:
                    found.setdefault(curve.tag, []).extend(zip(curve.steps, curve.values, strict=True))
            return found

        try:
            found = self._call(read, request)
        except ChildRunRefused as refusal:
            if refusal.code is grpc.StatusCode.NOT_FOUND:
                return []
            raise
        return next((found[tag] for tag in tags if found.get(tag)), [])

    def _call(self, method: Callable[..., T], request: Any) -> T:
        """Repeat a call until it is answered; raise SessionStopped when the session stops."""
        pause_s, internal_errors = FIRST_RETRY_S, 0
        while True:
            try:
                return method(request, metadata=self._metadata, timeout=_CALL_S)
            except grpc.RpcError as error:
                code, details = error.code(), error.details() or ""
            internal_errors += code in _INTERNAL
            if (code not in AWAY and code not in _INTERNAL) or internal_errors >= _INTERNAL_TRIES:
                raise ChildRunRefused(details, code)
            if self._stop.wait(pause_s):
                raise SessionStopped("stopped while the daemon was unreachable")
            pause_s = min(2 * pause_s, LONGEST_RETRY_S)

    # -- updates

    def poll(self, timeout_s: float) -> list[ChildRun]:
        """Return the changed runs, waiting up to `timeout_s` for the first change."""
        found: list[ChildRun] = []
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                wait_s = 0.0 if found else max(0.0, deadline - time.monotonic())
                run = self._updates.get(timeout=wait_s) if wait_s else self._updates.get_nowait()
            except queue.Empty:
                return found
            with self._lock:
                # A state reported again after a gap may be newer than the next updates of the stream.
                if run.event_seq and run.event_seq < self._awaited.get(run.run_id, run.event_seq + 1):
                    continue
                self._awaited[run.run_id] = run.event_seq
                if run.is_over:
                    del self._awaited[run.run_id]
            found.append(run)

    def _follow(self) -> None:
        """Queue every change of awaited runs, and after a gap, the state of each."""
        pause_s = FIRST_RETRY_S
        while not self._closed.is_set():
            self._has_runs.wait()  # wait for the first submission
            if self._closed.is_set():
                return
            opened_at = time.monotonic()
            with suppress(grpc.RpcError, ValueError):  # ValueError: the channel was closed meanwhile
                self._follow_once()
            lasted = time.monotonic() - opened_at > LONGEST_RETRY_S
            pause_s = FIRST_RETRY_S if lasted else min(2 * pause_s, LONGEST_RETRY_S)
            self._closed.wait(pause_s)

    def _follow_once(self) -> None:
        options: dict[str, Any] = {"metadata": self._metadata}
        newest = self._stub.ListRuns(messages.ListRunsRequest(limit=1), timeout=_CALL_S, **options).last_seq
        with self._lock:
            self._streaming_from, awaited = newest, list(self._awaited)
        for run_id in awaited:
            try:
                run = self._stub.GetRun(messages.RunRequest(run_id=run_id), timeout=_CALL_S, **options)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                self._updates.put(ChildRun(run_id, RunStatus.TERM, "deleted", "its run was deleted"))
                continue
            self._updates.put(ChildRun.of(run))
        self._stream = self._stub.WatchRuns(messages.WatchRunsRequest(since_seq=newest), **options)
        if self._closed.is_set():
            self._stream.cancel()
        for update in self._stream:
            if update.HasField("event") and update.event.kind == "deleted":
                self._updates.put(ChildRun(update.run.run_id, RunStatus.TERM, "deleted", "its run was deleted"))
            else:
                self._updates.put(ChildRun.of(update.run))
