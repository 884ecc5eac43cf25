"""Supervise one live attempt of a run, from its started process to the end of its process tree.

The supervisor owns the run's process handle. It handles everything that happens while the run has a process:
lifecycle events, heartbeats, limits, pause, release, cancel, and how the attempt ended.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mosaic_wire.exit_record import ExitRecord
from mosaic_wire.files import walk
from mosaic_wire.lifecycle import (
    LAST_STATISTICS,
    LifecycleKind,
    LifecycleReader,
    RunLifecycleEvent,
    bounded_payload,
    shortened,
)
from mosaic_wire.limits import MAX_REASON
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.config.settings import Settings
from gym_gui.services.trainer.errors import InvalidTransition, NotAllowed, NotPossibleNow, RegistryUnwritable
from gym_gui.services.trainer.executors.contract import Worker
from gym_gui.services.trainer.file_threads import run_long_io, run_quick_io
from gym_gui.services.trainer.finalize import finalize
from gym_gui.services.trainer.fsm import OUTCOMES, RunEvent, RunStatus
from gym_gui.services.trainer.journal import RETRY_S, Journal, with_statistics
from gym_gui.services.trainer.limits import shortage
from gym_gui.services.trainer.metrics.store import CurveValues, run_statistics
from gym_gui.services.trainer.nodes import EVENTS, NodeSide, is_on_node
from gym_gui.services.trainer.records import HistoryEvent, RunRecord, RunStatistics
from gym_gui.services.trainer.supervision import BAD_INPUT, Ending, EndingFacts, conclude, ended_at, paused_seconds
from gym_gui.services.trainer.tokens import digest
from gym_gui.services.trainer.worker_logs import LogFollower, SecretMask, cap_logs, tail_text
from gym_gui.wording.run_view import STATE_LABELS

logger = logging.getLogger(__name__)

_STATUS_EVENTS = {
    LifecycleKind.RUN_STARTED: RunEvent.STARTED,
    LifecycleKind.PAUSED: RunEvent.PAUSED,
    LifecycleKind.RESUMED: RunEvent.RESUMED,
}
_LEFTOVER_GRACE_S = 2.0
"""Children of a worker that has ended get this long after SIGTERM"""
_LIMIT_POLL_S = 2.0
"""How often memory and process counts are measured where the kernel does not enforce them"""
_NO_PROGRESS_S = 300.0
_MAX_READ_TRIES = 60
"""How often reading a worker's last events is retried while the daemon itself lacks resources"""
_EVENTS_PER_POLL, _MAX_PENDING_EVENTS = 100, 10_000
_MAX_EVENTS = 100_000
"""Lifecycle events stored per attempt, so that no worker floods the registry"""
_STDERR_CHARACTERS = 1500
_FULL_BYTES = 1 << 20
"""A disk with less free space than this is full"""
_MISSED_BEATS = 3
"""After this many missed heartbeats the supervisor checks whether the worker is stopped"""


@dataclass(frozen=True)
class Finished:
    """A supervised attempt that has ended: the stored record and the ending."""

    record: RunRecord
    ending: Ending


class RunSupervisor:
    """Watches one process tree; `run` returns when no process is left and the ending is stored."""

    def __init__(
        self,
        record: RunRecord,
        handle: Worker,
        *,
        home: Home,
        journal: Journal,
        settings: Settings,
        secrets: Mapping[str, str],
        on_exit: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.record = record
        self._handle = handle
        self._on_exit = on_exit
        self._home, self._journal, self._settings = home, journal, settings
        self._mask = SecretMask(secrets.values())
        self._monotonic = monotonic
        self._folder = home.run_folder(record.run_id)
        self._reader = LifecycleReader(self._folder.lifecycle, after_seq=record.lifecycle_seq)
        self._unapplied: deque[RunLifecycleEvent] = deque()
        self._events_stored = 0
        self._logs = home.run_logs(record.run_id)
        self._followers = [
            LogFollower(self._logs / f"{name}.log", record.run_id, clean=self._mask.text)
            for name in ("stdout", "stderr")
        ]
        self._reported = RunStatistics.of(record)
        """The statistics the worker reported last, by heartbeat or ending event"""
        self._curves: CurveValues | None = None
        self._last_beat = self._node_seen_at = monotonic()
        self._node: NodeSide | None = None
        self._paused_since: float | None = monotonic() if record.status is RunStatus.PAUSE else None
        self._paused_s = 0.0
        self._resumed_at = float("-inf")
        self._was_stopped = False
        # An earlier daemon may have died while it cleaned up a faulted run; continue the cleanup.
        self._fault = record.reason if record.status is RunStatus.FAULT else ""
        self._failure, self._failed_for_good = "", False
        self._unrecorded_cancel: str | None = None
        """The reason of a cancel that the registry could not store; it is recorded with the ending"""
        self._is_concluded = False
        self._ending_event: LifecycleKind | None = None
        self._disk_was_full = False
        self._gave_up = False
        self.is_ending = False
        """Whether the process tree has ended or is being ended"""
        self._reading, self._capping = threading.Lock(), threading.Lock()
        self._wake = asyncio.Event()
        self._controls: asyncio.Queue[pb.ControlCommand] | None = None
        self._lock = asyncio.Lock()

    async def restore_history(self, events: Iterable[HistoryEvent]) -> None:
        """Restore what an earlier daemon knew: how long the run was paused, and ending events it did not act on."""
        self._paused_s = paused_seconds(events, self.record.attempt, time.time())
        for event in await run_quick_io(_earlier_endings, self._folder.lifecycle, self.record):
            self._note_ending_event(event)
            self._apply_last_statistics(event.payload)

    def give_up(self, error: BaseException) -> bool:
        """End the run for this error without reading its files again; return True the first time."""
        if self._gave_up:
            return False
        self._gave_up = True
        self._fault = self._fault or f"the daemon could not follow it: {type(error).__name__}: {error}"[:500]
        return True

    # ------------------------------------------------------------------ public

    def has_token(self, token_sha256: str) -> bool:
        """Return whether this is the digest of one of the run's tokens."""
        return token_sha256 in (self.record.run_token_sha256, self.record.session_token_sha256)

    def check_session(self, token: str) -> None:
        """Raise NotAllowed for a worker call without this run's session token."""
        known = self.record.session_token_sha256
        if not known or not hmac.compare_digest(known, digest(token)):
            raise NotAllowed(f"run {self.record.run_id}: the session token is missing, wrong, or another run's")

    def heartbeat(self, statistics: RunStatistics, lifecycle_seq: int) -> None:
        """Apply the statistics of a heartbeat and wake the supervisor."""
        self._last_beat = self._monotonic()
        self._reported = replace(statistics, total=statistics.total or self.record.total)
        self._update_statistics()
        self._wake.set()
        if lifecycle_seq <= self._reader.last_seq:
            self._journal.publish(self.record, [])

    def apply_curves(self, curves: CurveValues) -> None:
        """Apply new points of the run's curves and publish them before the next heartbeat."""
        self._curves = curves
        self._update_statistics()
        self._journal.publish(self.record, [])

    def _update_statistics(self) -> None:
        statistics = run_statistics(self._reported, self._curves)
        self._journal.queue_statistics(self.record.run_id, statistics)
        self.record = with_statistics(self.record, statistics)

    def controls(self) -> asyncio.Queue[pb.ControlCommand]:
        """Return a new queue for the worker's control stream, with the command it has not obeyed yet."""
        self._controls = asyncio.Queue()
        self._send_requested()
        return self._controls

    def _send_requested(self) -> None:
        kinds = {
            "pause": pb.ControlCommand.PAUSE,
            "release": pb.ControlCommand.RELEASE,
            "resume": pb.ControlCommand.RESUME,
        }
        if self._controls is not None and (kind := kinds.get(self.record.pause_requested)) is not None:
            self._controls.put_nowait(pb.ControlCommand(kind=kind))

    def grant(self, credits: int) -> None:
        """Grant the worker this many telemetry credits."""
        if self._controls is not None:
            self._controls.put_nowait(pb.ControlCommand(kind=pb.ControlCommand.CREDITS, credits=credits))

    @property
    def waits_for(self) -> str:
        """Return why its engine has not started it yet."""
        return self._handle.waits_for

    async def _dispatched(self) -> None:
        """Store that its process has started."""
        async with self._lock:
            if self.record.status is RunStatus.INIT:
                process = self._handle.identity
                self.record = await self._journal.apply(
                    self.record.run_id,
                    RunEvent.DISPATCHED,
                    expected=RunStatus.INIT,
                    pid=process.pid,
                    start_ticks=process.start_ticks,
                    boot_id=process.boot_id,
                    node=self._handle.node,
                    claimed=False,
                    queue_reason="",
                )
                self._last_beat = self._monotonic()

    async def registered(self, **changes: Any) -> RunRecord:
        """Store a valid registration and return the record."""
        await self._dispatched()  # it has started, whatever its engine has reported so far
        async with self._lock:
            self._last_beat = self._monotonic()
            if self.record.status is RunStatus.HSHK:
                self.record = await self._journal.apply(
                    self.record.run_id, RunEvent.REGISTERED, expected=RunStatus.HSHK, insist=False, **changes
                )
            else:  # the reply to an earlier, accepted call was lost
                self.record = await self._journal.record(self.record.run_id, "", insist=False, **changes)
        self._wake.set()
        return self.record

    # ------------------------------------------------------------------ its node

    def check_node(self, run_token: str, instance: str) -> None:
        """Raise NotAllowed for a call of a process that is not the node of this run."""
        self.check_run_token(run_token)
        if not is_on_node(instance) or self.record.worker_instance != instance:
            raise NotAllowed(f"run {self.record.run_id} is on another node, or on none")

    def check_run_token(self, run_token: str) -> None:
        """Raise NotAllowed for a token that is not this attempt's."""
        known = self.record.run_token_sha256
        if not run_token or not known or not hmac.compare_digest(known, digest(run_token)):
            raise NotAllowed(f"run {self.record.run_id}: the run token is missing, wrong, or another run's")

    async def open_node(self, instance: str, host: str) -> None:
        """Store on which node the worker will be."""
        async with self._lock:
            if self.record.worker_instance != instance:
                self.record = await self._journal.record(
                    self.record.run_id, "on_node", reason=f"on {host}", worker_instance=instance, insist=False
                )
        self._note_node(is_preparing=True)

    def node(self, *, is_preparing: bool = False) -> NodeSide:
        """Return where calls of the node arrive, and note that it was heard."""
        if self._is_concluded:
            raise NotAllowed(f"run {self.record.run_id} has no live worker")
        self._note_node(is_preparing)
        if self._node is None:
            self._node = NodeSide(self._home, self.record.run_id, self._settings)
        return self._node

    async def receive(self, request: pb.SendRunFilesRequest) -> list[pb.FileState]:
        """Write files that the node sent."""
        states = await self.node(is_preparing=request.is_preparing).receive(request.pieces, request.removed)
        if any(piece.path in EVENTS for piece in request.pieces):
            self._wake.set()
        return states

    def _note_node(self, is_preparing: bool) -> None:
        """Do not count time in which the link to the node was broken, or it was getting ready."""
        now = self._monotonic()
        away = now - self._node_seen_at
        if is_preparing or away > _MISSED_BEATS * self._settings.heartbeat_s:
            self._last_beat = min(now, self._last_beat + away)
        self._node_seen_at = now

    async def cancel(self, reason: str = "") -> RunRecord:
        """Request the end of the run; it is carried out even while the registry cannot be written."""
        # Not under the lock: its holder may be waiting for the disk.
        if not (self.record.cancel_requested or self.record.status is RunStatus.TERM):
            try:
                await self._record_cancel(reason, insist=False)
            except RegistryUnwritable as error:
                if self._is_concluded:
                    raise
                logger.warning("run %s is being ended; its cancel is recorded later: %s", self.record.run_id, error)
                self._unrecorded_cancel = reason
                self.record = replace(self.record, cancel_requested=True, cancel_reason=reason)
        self._wake.set()
        return self.record

    async def _record_cancel(self, reason: str, *, insist: bool) -> None:
        changes: dict[str, Any] = {"cancel_requested": True, "cancel_reason": reason}
        self.record = await self._journal.record(
            self.record.run_id, "cancel_requested", reason=reason, insist=insist, **changes
        )

    @property
    def is_cancelled(self) -> bool:
        """Return whether its end was requested."""
        return self.record.cancel_requested or self._unrecorded_cancel is not None

    async def pause(self, *, release: bool) -> RunRecord:
        """Pause the run at its next safe point, or stop it by signal if the worker cannot pause itself."""
        async with self._lock:
            record = self.record
            is_releasable = record.status is RunStatus.PAUSE and release and not record.paused_by_signal
            if record.status is not RunStatus.EXEC and not is_releasable:
                raise NotPossibleNow(_pause_refusal(record))
            can_pause = record.capabilities.get("supports_pause", False)
            if release and not (can_pause and record.capabilities.get("supports_checkpointing", False)):
                raise NotPossibleNow(
                    f"run {record.run_id}: worker {record.worker_type!r} cannot write a checkpoint, so its resources "
                    "cannot be released; pause without --release keeps the process, cancel ends it"
                )
            if can_pause:
                command = "release" if release else "pause"
                self.record = await self._journal.record(
                    record.run_id, f"{command}_requested", pause_requested=command, insist=False
                )
                self._send_requested()
            else:
                await self._handle.pause_tree()
                try:
                    self.record = await self._journal.apply(
                        record.run_id,
                        RunEvent.PAUSED,
                        reason="stopped by signal: this worker cannot pause itself",
                        paused_by_signal=True,
                        insist=False,
                    )
                except RegistryUnwritable:
                    await self._handle.continue_tree()
                    raise
                self._paused_since = self._monotonic()
            return self.record

    async def resume(self) -> RunRecord:
        """Continue a paused run."""
        async with self._lock:
            record = self.record
            if record.status is not RunStatus.PAUSE:
                state = "already running" if record.status is RunStatus.EXEC else STATE_LABELS[record.status]
                raise NotPossibleNow(f"run {record.run_id} is {state}; only a paused run can be resumed")
            if record.paused_by_signal:
                await self._handle.continue_tree()
                self.record = await self._journal.apply(
                    record.run_id, RunEvent.RESUMED, paused_by_signal=False, insist=False
                )
                self._note_resumed()
            else:
                self.record = await self._journal.record(
                    record.run_id, "resume_requested", pause_requested="resume", insist=False
                )
                self._send_requested()
            return self.record

    def _note_resumed(self) -> None:
        if self._paused_since is not None:
            self._paused_s += self._monotonic() - self._paused_since
        self._paused_since = None
        self._last_beat = self._resumed_at = self._monotonic()

    # ------------------------------------------------------------------ watching

    async def run(self) -> Finished:
        """Watch until no process is left, store the ending and return it."""
        exited = asyncio.create_task(self._handle.wait())
        try:
            await self._wait_for_start(exited)
            self._last_beat = self._monotonic()  # no heartbeat could be received before
            while not (exited.done() or self._fault or self.is_cancelled):
                wake, poll_s = asyncio.create_task(self._wake.wait()), self._next_poll_s()
                due = self._monotonic() + poll_s
                await asyncio.wait({exited, wake}, timeout=poll_s, return_when=asyncio.FIRST_COMPLETED)
                wake.cancel()
                self._wake.clear()
                limit = "" if exited.done() else await self._poll()
                self._discount_stall(self._monotonic() - due)
                if not exited.done():  # otherwise its exit code and last events decide how it ended
                    self._fault = self._fault or self._exceeded_limit(limit)
            return await self._end(exited)
        finally:
            exited.cancel()
            if self._node is not None:
                await self._node.close()

    async def _wait_for_start(self, exited: asyncio.Task[int | None]) -> None:
        """Wait while the run is in its engine's queue, then store that it has started."""
        started = asyncio.create_task(self._handle.started())
        try:
            await asyncio.sleep(0)  # on this machine it has started already
            while self.record.status is RunStatus.INIT and not (
                started.done() or exited.done() or self.is_cancelled or self._fault
            ):
                wake = asyncio.create_task(self._wake.wait())
                await asyncio.wait({started, exited, wake}, return_when=asyncio.FIRST_COMPLETED)
                wake.cancel()
                self._wake.clear()
            if started.done():
                started.result()
                await self._dispatched()
        finally:
            started.cancel()

    def _discount_stall(self, late_s: float) -> None:
        """Do not count time in which the daemon itself stalled (SIGSTOP, a busy machine, a locked registry)."""
        if late_s > self._settings.heartbeat_s:
            self._last_beat = min(self._monotonic(), self._last_beat + late_s)

    def _next_poll_s(self) -> float:
        """Return the seconds until a limit could be exceeded; a heartbeat wakes the supervisor earlier."""
        quiet = self._monotonic() - self._last_beat
        if self.record.paused_by_signal:
            return 3600.0
        limit = self._silence_limit_s()
        polls = [limit - quiet if quiet < limit else self._settings.heartbeat_s]
        if quiet < (suspicious := _MISSED_BEATS * self._settings.heartbeat_s):
            polls.append(suspicious - quiet)
        if (left := self._wallclock_left_s()) is not None:
            polls.append(left)
        if not self._handle.is_limited:
            polls.append(_LIMIT_POLL_S)
        if self._unapplied:
            polls.append(RETRY_S)
        return max(0.05, min(polls))

    def _silence_limit_s(self) -> float:
        is_new = self.record.status is RunStatus.HSHK
        limit = self._settings.handshake_s if is_new else self.record.silence_s or self._settings.silence_s
        if is_on_node(self.record.worker_instance):
            away = self._monotonic() - self._node_seen_at
            if away > _MISSED_BEATS * self._settings.heartbeat_s:  # the link is broken, the worker may be well
                return max(limit, self._settings.nodes.silence_s)
        return limit

    def _wallclock_left_s(self) -> float | None:
        if self.record.max_wallclock_minutes is None or self._paused_since is not None:
            return None
        return self.record.max_wallclock_minutes * 60 + self._paused_s - self._handle.elapsed_s()

    async def _poll(self) -> str:
        """Read what the worker wrote; return which kernel limit its processes exceeded, or an empty text."""
        limit = await run_quick_io(self._poll_files)
        # What cannot be stored now is stored by a later poll: a cancel or the worker's end must not wait for the disk.
        with suppress(RegistryUnwritable):
            async with self._lock:
                # Bounded, so that a flood of events delays neither of them.
                await self._apply_lifecycle(at_most=_EVENTS_PER_POLL, insist=False)
            await self._update_flags()
            if (node := self._handle.node) not in ("", self.record.node):  # reported after the worker had registered
                self.record = await self._journal.record(self.record.run_id, "", node=node, insist=False)
        return limit

    def _poll_files(self) -> str:
        """Read all files in one call to a thread; with many runs the switch costs more than the reading."""
        if self._reading.acquire(blocking=False):  # otherwise an earlier poll still waits for the disk
            try:
                self._read_lifecycle_file()
                self._process_logs()
            finally:
                self._reading.release()
        return self._handle.limit_hit() or ""

    async def _update_flags(self) -> None:
        quiet = self._monotonic() - self._last_beat
        is_suspicious = quiet >= min(_MISSED_BEATS * self._settings.heartbeat_s, self._silence_limit_s())
        stopped = is_suspicious and self._handle.is_stopped()
        if self._was_stopped and not stopped:
            self._last_beat = self._resumed_at = self._monotonic()  # continued: it gets the full time to report
        self._was_stopped = stopped
        stalled = stopped and not self.record.paused_by_signal
        # A stopped worker's clock keeps running; time it was stopped does not count as missing progress.
        since_step = min(self.record.seconds_since_step or 0.0, self._monotonic() - self._resumed_at)
        no_progress = self.record.status is RunStatus.EXEC and since_step > _NO_PROGRESS_S
        for flag, now, reason in (
            ("stalled", stalled, "its processes are stopped (SIGSTOP); SIGCONT continues them"),
            ("no_progress", no_progress, f"no step for more than {_NO_PROGRESS_S:.0f} s"),
        ):
            if now != getattr(self.record, flag):
                kind = flag if now else f"{flag}_over"
                changes: dict[str, Any] = {flag: now}
                self.record = await self._journal.record(
                    self.record.run_id, kind, reason=reason if now else "", insist=False, **changes
                )

    def _exceeded_limit(self, kernel_limit: str) -> str:
        """Return which limit was exceeded; `kernel_limit`: one that the process tree ran into."""
        quiet, limit = self._monotonic() - self._last_beat, self._silence_limit_s()
        if quiet >= limit and not (self.record.paused_by_signal or self._was_stopped):
            if self.record.status is RunStatus.HSHK:
                return f"the worker did not register within {limit:g} s"
            return f"the worker was silent for more than {limit:g} s"
        left = self._wallclock_left_s()
        if left is not None and left <= 0:
            unit = "minute" if self.record.max_wallclock_minutes == 1 else "minutes"
            return f"out of wall-clock time: more than {self.record.max_wallclock_minutes:g} {unit}"
        return kernel_limit

    def clean(self, path: Path) -> None:
        """Redact the run's secrets in a log before it is read."""
        self._mask.follow(path)

    def _process_logs(self) -> None:
        for follower in self._followers:
            follower.follow()
        for folder in (self._logs, self._folder.logs):
            for path in _log_files(folder):
                self._mask.follow(path)
        self.cap_logs()

    def cap_logs(self) -> None:
        """Truncate logs that outgrew their cap (runs in a thread)."""
        cap_mb = self._settings.log_cap_mb
        with self._capping:
            for older in cap_logs((self._logs, self._folder.logs), cap_mb << 20):
                self._mask.follow(older, anew=True)
                logger.warning("run %s: logs outgrew %d MB; %s was truncated", self.record.run_id, cap_mb, older.stem)

    def _read_lifecycle_file(self, *, is_last_try: bool = False) -> bool:
        """Read new lifecycle events (in a thread); return False when the daemon lacks resources and has to retry."""
        try:
            if len(self._unapplied) < _MAX_PENDING_EVENTS:
                self._unapplied.extend(self._reader.read())
        except OSError as error:
            if shortage(error) and not is_last_try:
                return False
            self._fault = self._fault or f"its lifecycle file cannot be read: {error.strerror} ({error.filename})"
        return True

    async def _apply_lifecycle(self, *, at_most: int = sys.maxsize, insist: bool = True) -> None:
        """Apply new lifecycle events; each is stored with its number, so that none is applied twice."""
        for _ in range(min(at_most, len(self._unapplied))):
            event = self._unapplied[0]
            is_ours = event.run_id == self.record.run_id and event.attempt == self.record.attempt
            if is_ours and (self._events_stored < _MAX_EVENTS or event.event.ends_the_run):
                await self._apply_event(event, insist)
            elif is_ours and self._events_stored == _MAX_EVENTS:
                logger.warning("run %s: only %d of its lifecycle events are stored", event.run_id, _MAX_EVENTS)
            self._events_stored += is_ours
            self._unapplied.popleft()
        if self._unapplied or self._reader.has_more:
            self._wake.set()

    def _note_ending_event(self, event: RunLifecycleEvent) -> None:
        self._ending_event = event.event
        self._disk_was_full = self._is_disk_full()
        if event.event is LifecycleKind.RUN_FAILED:
            self._failure = _failure_text(self._mask.document(event.payload))
            self._failed_for_good = event.payload.get("final") is True

    def _apply_last_statistics(self, payload: Mapping[str, Any]) -> None:
        """Apply the statistics of an ending event; heartbeats were lost while no daemon was running."""
        last = payload.get(LAST_STATISTICS)
        last = last if isinstance(last, Mapping) else {}
        step, last_return = payload.get("step", last.get("step")), last.get("episodic_return")
        if type(step) is int and self.record.step < step < 1 << 63:
            known = last_return if isinstance(last_return, float) else self.record.episodic_return
            self._reported = replace(self._reported, step=step, episodic_return=known)
            self._update_statistics()

    async def _apply_event(self, event: RunLifecycleEvent, insist: bool) -> None:
        run_id, payload = self.record.run_id, bounded_payload(self._mask.document(event.payload))
        if event.event is LifecycleKind.HEARTBEAT:
            return
        if event.event.ends_the_run:
            self._note_ending_event(event)
            self._apply_last_statistics(payload)
            result = {key: value for key, value in payload.items() if key != LAST_STATISTICS}
            changes: dict[str, Any] = {"result": result} if event.event is LifecycleKind.RUN_COMPLETED else {}
            self.record = await self._journal.record(
                run_id, f"worker_{event.event}", payload=payload, lifecycle_seq=event.seq, insist=insist, **changes
            )
            return
        status_event = _STATUS_EVENTS.get(event.event)
        if status_event is None:
            self.record = await self._journal.record(
                run_id, event.event, payload=payload, lifecycle_seq=event.seq, insist=insist
            )
            return
        changes, reason = {"lifecycle_seq": event.seq}, ""
        if status_event is RunEvent.PAUSED and self.record.status is RunStatus.PAUSE and payload.get("release"):
            # It was paused already and is now ending its process; the outcome follows when it has exited.
            self.record = await self._journal.record(
                run_id, "releasing", payload=payload, lifecycle_seq=event.seq, insist=insist
            )
            return
        if status_event is RunEvent.PAUSED:
            self._paused_since = self._monotonic()
            reason = shortened(str(payload.get("reason") or ""), MAX_REASON)
            released = self.record.pause_requested == "release" and payload.get("release") is True
            changes["pause_requested"] = "release" if released else ""
        elif status_event is RunEvent.RESUMED:
            self._note_resumed()
            changes["pause_requested"] = ""
        try:
            self.record = await self._journal.apply(
                run_id, status_event, reason=reason, payload=payload, insist=insist, **changes
            )
        except InvalidTransition as error:
            # Events out of order harm only the worker's own run.
            logger.warning("%s; the worker's %s is ignored", error, event.event)
            self.record = await self._journal.record(
                run_id, "out_of_order", reason=str(error), payload=payload, lifecycle_seq=event.seq, insist=insist
            )

    # ------------------------------------------------------------------ ending

    async def _end(self, exited: asyncio.Task[int | None]) -> Finished:
        """End the process tree, read its last events and store the ending."""
        self.is_ending = True
        self._disk_was_full = self._disk_was_full or self._is_disk_full()
        if self._fault and not (self.is_cancelled or self._has_completed or self.record.status is RunStatus.FAULT):
            with suppress(RegistryUnwritable):  # `_store` writes it later
                self.record = await self._journal.apply(
                    self.record.run_id, RunEvent.FAULTED, reason=self._fault, insist=False
                )
        grace = _LEFTOVER_GRACE_S if exited.done() else self._settings.grace_s
        while not await self._handle.stop_tree(grace):
            logger.error("run %s: some of its processes cannot be ended yet; will retry", self.record.run_id)
            await asyncio.sleep(1)
        code = await exited
        limit = self._handle.limit_hit()
        self._handle.close()
        self._on_exit()  # frees the slots for the next run before this run's ending is written
        async with self._lock:
            await self._read_lifecycle_after_fault()
            if self._unrecorded_cancel is not None:
                await self._record_cancel(self._unrecorded_cancel, insist=True)
            self._is_concluded = True
            exit_record = None if self._gave_up else await run_quick_io(ExitRecord.read, self._folder.exit_record)
            if exit_record is not None and exit_record.attempt != self.record.attempt:
                exit_record = None
            engine = self._handle.engine_ending
            ending = conclude(
                EndingFacts(
                    status=self.record.status,
                    exit_code=code,
                    ending_event=self._ending_event,
                    failure=self._failure,
                    exit_record=exit_record,
                    cancel_requested=self.record.cancel_requested,
                    release_requested=self.record.pause_requested == "release",
                    fault=self._fault or (limit or ""),
                    stderr=await run_quick_io(self._stderr_excerpt) if code == BAD_INPUT else "",
                    failed_for_good=self._failed_for_good,
                    cancel_reason=self.record.cancel_reason,
                    engine_reason=engine.reason if engine is not None else "",
                    interruption=engine.kind if engine is not None else "",
                )
            )
            if ending.event is RunEvent.FAULTED and self._disk_was_full and "No space left" not in ending.reason:
                # On a full disk the worker could not write why it failed either.
                ending = replace(ending, reason=f"{ending.reason}; the disk is full ({self._home.runs})")
            return await self._store(ending, ended_at(self.record, exit_record, time.time()))

    @property
    def _has_completed(self) -> bool:
        return self._ending_event is LifecycleKind.RUN_COMPLETED

    def _stderr_excerpt(self) -> str:
        """Return the end of stderr of a worker that refused its config."""
        text = self._mask.text(tail_text(self._logs / "stderr.log", lines=20)).strip()
        return text if len(text) <= _STDERR_CHARACTERS else f"… {text[-_STDERR_CHARACTERS:]}"

    def _is_disk_full(self) -> bool:
        try:
            return shutil.disk_usage(self._home.runs).free < _FULL_BYTES
        except OSError:
            return False

    async def _read_lifecycle_after_fault(self) -> None:
        tries = 0
        while self.record.status is not RunStatus.FAULT and not self._gave_up:
            if not await run_quick_io(self._read_last_events, is_last_try=tries >= _MAX_READ_TRIES):
                tries += 1
                await asyncio.sleep(RETRY_S)
                continue
            await self._apply_lifecycle()
            if not self._reader.has_more:
                return

    def _read_last_events(self, *, is_last_try: bool) -> bool:
        if not self._reading.acquire(timeout=RETRY_S):  # an earlier read that timed out still runs
            return is_last_try and self.give_up(TimeoutError(f"{self._folder.lifecycle} cannot be read"))
        try:
            return self._read_lifecycle_file(is_last_try=is_last_try)
        finally:
            self._reading.release()

    async def _store(self, ending: Ending, finished_at: float) -> Finished:
        run_id = self.record.run_id
        node = self._handle.node or self.record.node
        no_process: dict[str, Any] = {
            "node": node,
            "pid": 0,
            "stalled": False,
            "no_progress": False,
            "paused_by_signal": False,
        }
        if not self._gave_up:
            await run_quick_io(self._process_logs)
            await run_long_io(self._mask.clean_run, self._home, run_id)
        await self._journal.flush_statistics()
        if ending.event is RunEvent.RELEASED:
            self.record = await self._journal.apply(
                run_id,
                RunEvent.RELEASED,
                reason=ending.reason,
                released=True,
                pause_requested="",
                gpu_ids=(),
                **no_process,
            )
            return Finished(self.record, ending)
        if ending.event is RunEvent.FAULTED:
            if self.record.status is not RunStatus.FAULT:
                self.record = await self._journal.apply(run_id, RunEvent.FAULTED, reason=ending.reason)
            # An event of its own, so that operators can tell it from a fault, and retries are counted without it.
            kind, why = (ending.interruption, ending.reason) if ending.interruption else ("", "")
            self.record = await self._journal.record(run_id, kind, reason=why, fault_reason=ending.reason, **no_process)
            return Finished(self.record, ending)
        outcome = str(OUTCOMES[ending.event])
        await finalize(self._folder, self.record, outcome, ending.reason, self._journal.report_trouble)
        self.record = await self._journal.apply(
            run_id,
            ending.event,
            reason=ending.reason,
            payload={} if self._gave_up else await run_quick_io(output_tails, self._home, run_id, self._mask),
            pause_requested="",
            finished_at=finished_at,
            **no_process,
        )
        return Finished(self.record, ending)


def _pause_refusal(record: RunRecord) -> str:
    if record.status is RunStatus.PAUSE:
        return f"run {record.run_id} is already paused; `mosaic resume {record.run_id}` continues it"
    return f"run {record.run_id} is {STATE_LABELS[record.status]}; only a running run can be paused"


def output_tails(home: Home, run_id: str, mask: SecretMask) -> dict[str, str]:
    """Return the last lines of a run's output, redacted and bounded; those of the training process if it wrote any."""
    worker, training = home.run_logs(run_id), home.run_folder(run_id).logs
    return {
        f"{stream}_tail": mask.text(tail_text(training / f"{stream}.log") or tail_text(worker / f"{stream}.log"))
        for stream in ("stderr", "stdout")
    }


def _log_files(folder: Path) -> list[Path]:
    if folder.is_symlink():
        return []
    return [Path(entry.path) for entry in walk(folder, depth=1) if entry.name.endswith(".log")]


def _earlier_endings(lifecycle: Path, record: RunRecord) -> list[RunLifecycleEvent]:
    """Return ending events of this attempt that an earlier daemon has already read."""
    try:
        endings = [event for event in LifecycleReader(lifecycle).read_to_the_end() if event.event.ends_the_run]
    except OSError as error:
        if shortage(error):
            raise
        return []  # the first poll faults the run for it
    return [event for event in endings if event.attempt == record.attempt and event.seq <= record.lifecycle_seq]


def _failure_text(payload: Mapping[str, Any]) -> str:
    kind, text = str(payload.get("error_type", "")), str(payload.get("error", "")).strip()
    if not kind or text.startswith(kind):
        return text[:2000] or "the worker reported run_failed without a reason"
    return f"{kind}: {text}"[:2000]
