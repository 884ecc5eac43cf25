"""Runs that a worker asks its daemon for, where its capabilities say `submits_runs` (a sweep).

    with session.child_runs() as children:
        run = children.submit(config, key="trial-0")
        for run in children.poll(timeout_s=1):
            …

The daemon may vanish and return at any time: calls are sent again until it answers or the session is to stop, and after
a gap every run that is still awaited is told anew. What was submitted with a key is never doubled.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

import grpc

from mosaic_wire.errors import ChildRunRefused, SessionStopped
from mosaic_wire.proto import trainer_pb2 as messages

if TYPE_CHECKING:
    from mosaic_wire.daemon_link import DaemonLink

RUN_ID_HEADER = "x-mosaic-run-id"

_FIRST_RETRY_S, _LONGEST_RETRY_S = 0.1, 2.0
_CALL_S = 30.0
_AWAY = frozenset({
    grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED,
})  # fmt: skip
"""The daemon is away, or its disk is full: it answers when that is over"""
_ODD = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN})
_ODD_TRIES = 5
"""A daemon that fails in the same way so often will not do better"""

COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"

T = TypeVar("T")


@dataclass(frozen=True)
class ChildRun:
    """What its worker needs to know of a run it asked for."""

    run_id: str
    status: str
    outcome: str = ""
    """completed | failed | cancelled, once it is over; `deleted` when somebody removed it"""
    reason: str = ""
    step: int = 0
    total: int = 0
    episodic_return: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    has_completed: bool = False
    """Its worker said so: what it has to tell is told, though its process may not be gone yet"""
    event_seq: int = 0

    @property
    def is_over(self) -> bool:
        return bool(self.outcome)

    @classmethod
    def of(cls, run: messages.Run) -> ChildRun:
        return cls(
            run.run_id, run.status, run.outcome, run.reason, run.step, run.total,
            run.episodic_return if run.HasField("episodic_return") else None, dict(run.metrics),
            bool(run.result_json) or run.outcome == COMPLETED, run.event_seq,
        )  # fmt: skip


class ChildRuns:
    """The runs of one worker session. Calls are made by one thread; another one follows what happens to the runs."""

    def __init__(self, link: DaemonLink, run_id: str, stop: threading.Event) -> None:
        self._stub = link.stub
        self._metadata = (*link.session_metadata, (RUN_ID_HEADER, run_id))
        self._stop = stop
        self._awaited: dict[str, int] = {}
        """Runs that are not over, and the newest event known of each"""
        self._heard_from = 0
        """The stream tells what happened after this event"""
        self._lock = threading.Lock()
        self._news: queue.SimpleQueue[ChildRun] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._wanted = threading.Event()
        self._stream: Any = None
        self._thread = threading.Thread(target=self._follow, name="mosaic-child-runs", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._wanted.set()
        if self._stream is not None:
            self._stream.cancel()
        self._thread.join(timeout=2)

    # -- asking

    def submit(self, config: Mapping[str, Any], *, key: str) -> ChildRun:
        """Queue a run, or find the one queued with this key; raises ChildRunRefused with the daemon's words."""
        request = messages.SubmitRunRequest(config_json=json.dumps(config), idempotency_key=key)
        run = ChildRun.of(self._call(self._stub.SubmitRun, request).run)
        if run.is_over:
            return run
        with self._lock:
            self._awaited[run.run_id] = run.event_seq
            # A run that was known already may have gone on after this answer and before the stream began.
            is_behind = run.event_seq < self._heard_from
        self._wanted.set()
        if is_behind:
            run = self.get(run.run_id)
            with self._lock:
                self._awaited[run.run_id] = run.event_seq
                if run.is_over:
                    del self._awaited[run.run_id]
        return run

    def cancel(self, run_id: str, reason: str) -> None:
        """Bring a run to its end; one that is over already, or was deleted, is left as it is."""
        try:
            self._call(self._stub.CancelRun, messages.CancelRunRequest(run_id=run_id, reason=reason))
        except ChildRunRefused as refusal:
            if refusal.code not in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND):
                raise

    def get(self, run_id: str) -> ChildRun:
        """How it is now."""
        try:
            return ChildRun.of(self._call(self._stub.GetRun, messages.RunRequest(run_id=run_id)))
        except ChildRunRefused as refusal:
            if refusal.code is grpc.StatusCode.NOT_FOUND:
                return ChildRun(run_id, "TERM", "deleted", "its run was deleted")
            raise

    def unfinished(self) -> list[ChildRun]:
        """Every run of this worker that is not over."""
        request = messages.ListRunsRequest(
            statuses=("INIT", "HSHK", "RDY", "EXEC", "PAUSE", "FAULT"), include_archived=True
        )
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
        """Every point between two steps of the first of these curves that a run has; empty when it has none of them."""
        request = messages.StreamRunMetricsRequest(
            run_id=run_id, tags=tags, since_step=since_step, until_step=until_step, max_points=-1
        )

        def read(message: messages.StreamRunMetricsRequest, **options: Any) -> dict[str, list[tuple[int, float]]]:
            found: dict[str, list[tuple[int, float]]] = {}
            for news in self._stub.StreamRunMetrics(message, **options):
                for curve in news.curves:
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
        """Ask until there is an answer; SessionStopped when the session is to end meanwhile."""
        pause_s, odd = _FIRST_RETRY_S, 0
        while True:
            try:
                return method(request, metadata=self._metadata, timeout=_CALL_S)
            except grpc.RpcError as error:
                code, words = error.code(), error.details() or ""
            odd += code in _ODD
            if (code not in _AWAY and code not in _ODD) or odd >= _ODD_TRIES:
                raise ChildRunRefused(words, code)
            if self._stop.wait(pause_s):
                raise SessionStopped("stopped while the daemon was away")
            pause_s = min(2 * pause_s, _LONGEST_RETRY_S)

    # -- hearing

    def poll(self, timeout_s: float) -> list[ChildRun]:
        """What has changed, waiting at most so long for the first change."""
        found: list[ChildRun] = []
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                wait_s = 0.0 if found else max(0.0, deadline - time.monotonic())
                run = self._news.get(timeout=wait_s) if wait_s else self._news.get_nowait()
            except queue.Empty:
                return found
            with self._lock:
                # What was told anew after a gap may be newer than what follows it in the stream.
                if run.event_seq and run.event_seq < self._awaited.get(run.run_id, run.event_seq + 1):
                    continue
                self._awaited[run.run_id] = run.event_seq
                if run.is_over:
                    del self._awaited[run.run_id]
            found.append(run)

    def _follow(self) -> None:
        """Tell every change of an awaited run; after a gap, how each of them is now."""
        pause_s = _FIRST_RETRY_S
        while not self._closed.is_set():
            self._wanted.wait()  # nothing to follow before the first submission
            if self._closed.is_set():
                return
            opened_at = time.monotonic()
            with suppress(grpc.RpcError, ValueError):  # ValueError: the channel was closed under us
                self._follow_once()
            lasted = time.monotonic() - opened_at > _LONGEST_RETRY_S
            pause_s = _FIRST_RETRY_S if lasted else min(2 * pause_s, _LONGEST_RETRY_S)
            self._closed.wait(pause_s)

    def _follow_once(self) -> None:
        options: dict[str, Any] = {"metadata": self._metadata}
        newest = self._stub.ListRuns(messages.ListRunsRequest(limit=1), timeout=_CALL_S, **options).last_seq
        with self._lock:
            self._heard_from, awaited = newest, list(self._awaited)
        for run_id in awaited:
            try:
                run = self._stub.GetRun(messages.RunRequest(run_id=run_id), timeout=_CALL_S, **options)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise
                self._news.put(ChildRun(run_id, "TERM", "deleted", "its run was deleted"))
                continue
            self._news.put(ChildRun.of(run))
        self._stream = self._stub.WatchRuns(messages.WatchRunsRequest(since_seq=newest), **options)
        if self._closed.is_set():
            self._stream.cancel()
        for update in self._stream:
            if update.HasField("event") and update.event.kind == "deleted":
                self._news.put(ChildRun(update.run.run_id, "TERM", "deleted", "its run was deleted"))
            else:
                self._news.put(ChildRun.of(update.run))
