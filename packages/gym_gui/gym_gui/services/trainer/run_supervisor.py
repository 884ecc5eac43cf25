"""One live attempt of a run: from its started process to its honest end.

The supervisor owns the run's process handle. Everything that happens to the run while it has a process goes
through here: lifecycle events, heartbeats, limits, pause, release, cancel, and what its end means.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import shutil
import signal
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
from mosaic_wire.lifecycle import LAST_FIGURES, LifecycleKind, LifecycleReader, RunLifecycleEvent, bounded_payload
from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.config.settings import Settings
from gym_gui.services.trainer.errors import (
    InvalidTransition,
    NotAllowed,
    NotPossibleNow,
    RegistryUnwritable,
)
from gym_gui.services.trainer.executors.base import WorkerHandle
from gym_gui.services.trainer.file_threads import look_at, work_on
from gym_gui.services.trainer.finalise import finalise
from gym_gui.services.trainer.fsm import RunEvent, RunStatus
from gym_gui.services.trainer.journal import RETRY_S, Journal, with_headline
from gym_gui.services.trainer.limits import shortage
from gym_gui.services.trainer.masking import SecretMask
from gym_gui.services.trainer.metrics.store import MEAN_RETURN, SPS_TAG
from gym_gui.services.trainer.records import Headline, RunRecord, StoryEvent, plausible_step
from gym_gui.services.trainer.supervision import BAD_INPUT, Ending, EndingFacts, conclude, paused_before, when_it_ended
from gym_gui.services.trainer.tokens import digest
from gym_gui.services.trainer.worker_logs import LogFollower, cap_logs, tail_text
from gym_gui.wording.run_view import STATE_WORDS

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
_MOST_TRIES = 60
"""How often the last words of a worker are tried to be read while the daemon itself is in trouble"""
_EVENTS_A_LOOK, _EVENTS_WAITING = 100, 10_000
_MOST_EVENTS = 100_000
"""Of one attempt that are stored; a worker that has more to tell floods the registry"""
_COMPLAINT_CHARACTERS = 1500
_FULL_BYTES = 1 << 20
"""With less room than this a disk is full"""
_QUIET_BEATS = 3
"""After so many missed heartbeats it is worth looking whether the worker is stopped"""


@dataclass(frozen=True)
class Finished:
    """How a supervised attempt ended: the record after the ending was stored."""

    record: RunRecord
    ending: Ending


class RunSupervisor:
    """Watches one process tree; `task` ends when the tree is gone and the ending is stored."""

    def __init__(
        self,
        record: RunRecord,
        handle: WorkerHandle,
        *,
        home: Home,
        journal: Journal,
        settings: Settings,
        secrets: Mapping[str, str],
        on_gone: Callable[[], None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.record = record
        self._handle = handle
        self._on_gone = on_gone
        self._home, self._journal, self._settings = home, journal, settings
        self._mask = SecretMask(secrets.values())
        self._monotonic = monotonic
        self._folder = home.run_folder(record.run_id)
        self._reader = LifecycleReader(self._folder.lifecycle, after_seq=record.lifecycle_seq)
        self._unapplied: deque[RunLifecycleEvent] = deque()
        self._events_taken = 0
        self._logs = home.run_logs(record.run_id)
        self._followers = [
            LogFollower(self._logs / f"{name}.log", record.run_id, clean=self._mask.text)
            for name in ("stdout", "stderr")
        ]
        self._last_beat = monotonic()
        self._paused_since: float | None = monotonic() if record.status is RunStatus.PAUSE else None
        self._paused_s = 0.0
        self._resumed_at = float("-inf")
        self._stood_still = False
        # A daemon that died while it cleaned up a faulted run goes on cleaning.
        self._fault = record.reason if record.status is RunStatus.FAULT else ""
        self._failure, self._failed_for_good = "", False
        self._unrecorded_cancel: str | None = None
        """The reason of a cancel that the registry could not take; it is recorded with the end"""
        self._is_concluded = False
        self._last_words: LifecycleKind | None = None
        self._disk_was_full = False
        self._gave_up = False
        self.is_ending = False
        """Its tree has ended, or is to end"""
        self._reading, self._capping = threading.Lock(), threading.Lock()
        self._poked = asyncio.Event()
        self._controls: asyncio.Queue[pb.ControlCommand] | None = None
        self._lock = asyncio.Lock()

    async def recall(self, story: Iterable[StoryEvent]) -> None:
        """Remember what an earlier daemon knew: how long the run was paused, the last words it did not act on."""
        self._paused_s = paused_before(story, self.record.attempt, time.time())
        for event in await look_at(_known_endings, self._folder.lifecycle, self.record):
            self._hear_last_words(event)
            self._note_last_figures(event.payload)

    def give_up(self, error: BaseException) -> bool:
        """End the run with this reason, its files unread: to look at them has failed again and again; True once."""
        if self._gave_up:
            return False
        self._gave_up = True
        self._fault = self._fault or f"the daemon could not follow it: {type(error).__name__}: {error}"[:500]
        return True

    # ------------------------------------------------------------------ what others ask

    def has_token(self, token_sha256: str) -> bool:
        return token_sha256 in (self.record.run_token_sha256, self.record.session_token_sha256)

    def check_session(self, token: str) -> None:
        """Refuse a worker call that does not carry this run's session token."""
        known = self.record.session_token_sha256
        if not known or not hmac.compare_digest(known, digest(token)):
            raise NotAllowed(f"run {self.record.run_id}: the session token is missing, wrong, or another run's")

    def heartbeat(self, headline: Headline, lifecycle_seq: int) -> None:
        """Take the figures of a heartbeat and look after the run."""
        self._last_beat = self._monotonic()
        self._journal.keep_headline(self.record.run_id, headline)
        self.record = with_headline(self.record, headline)
        self._poked.set()
        if lifecycle_seq <= self._reader.last_seq:
            self._journal.publish(self.record, [])

    def heard_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Curves have news: watchers need not wait for the next heartbeat."""
        record = self.record
        self.record = replace(
            record,
            metrics=dict(values),
            step=max(record.step, plausible_step(step, record.total)),
            episodic_return=values.get(MEAN_RETURN, record.episodic_return),
            sps=values.get(SPS_TAG, record.sps),
        )
        self._journal.tell_figures(self.record)

    def controls(self) -> asyncio.Queue[pb.ControlCommand]:
        """A fresh queue for the worker's control stream, holding what it has not obeyed yet."""
        self._controls = asyncio.Queue()
        self._send_wanted()
        return self._controls

    def _send_wanted(self) -> None:
        kinds = {
            "pause": pb.ControlCommand.PAUSE,
            "release": pb.ControlCommand.RELEASE,
            "resume": pb.ControlCommand.RESUME,
        }
        if self._controls is not None and (kind := kinds.get(self.record.pause_requested)) is not None:
            self._controls.put_nowait(pb.ControlCommand(kind=kind))

    def grant(self, credits: int) -> None:
        """Let the worker send so much telemetry again."""
        if self._controls is not None:
            self._controls.put_nowait(pb.ControlCommand(kind=pb.ControlCommand.CREDITS, credits=credits))

    async def registered(self, **changes: Any) -> RunRecord:
        """Store a registration that was found valid."""
        async with self._lock:
            self._last_beat = self._monotonic()
            if self.record.status is RunStatus.HSHK:
                self.record = await self._journal.apply(
                    self.record.run_id, RunEvent.REGISTERED, expected=RunStatus.HSHK, insist=False, **changes
                )
            else:  # the reply to an earlier, accepted call was lost
                self.record = await self._journal.record(self.record.run_id, "", insist=False, **changes)
        self._poked.set()
        return self.record

    async def cancel(self, reason: str = "") -> RunRecord:
        """Ask for the end; the supervisor's task brings it about, also while the registry cannot be written."""
        # Without the lock: who holds it may wait for the disk.
        if not (self.record.cancel_requested or self.record.status is RunStatus.TERM):
            try:
                await self._record_cancel(reason, insist=False)
            except RegistryUnwritable as error:
                if self._is_concluded:
                    raise
                logger.warning("run %s is ended; its cancel is recorded later: %s", self.record.run_id, error)
                self._unrecorded_cancel = reason
                self.record = replace(self.record, cancel_requested=True, cancel_reason=reason)
        self._poked.set()
        return self.record

    async def _record_cancel(self, reason: str, *, insist: bool) -> None:
        changes: dict[str, Any] = {"cancel_requested": True, "cancel_reason": reason}
        self.record = await self._journal.record(
            self.record.run_id, "cancel_requested", reason=reason, insist=insist, **changes
        )

    @property
    def _is_cancelled(self) -> bool:
        return self.record.cancel_requested or self._unrecorded_cancel is not None

    async def pause(self, *, release: bool) -> RunRecord:
        """Hold the run at its next safe point, or stop it by signal where the worker cannot hold itself."""
        async with self._lock:
            record = self.record
            held = record.status is RunStatus.PAUSE and release and not record.paused_by_signal
            if record.status is not RunStatus.EXEC and not held:
                raise NotPossibleNow(_why_not_paused(record))
            able = record.capabilities.get("supports_pause", False)
            if release and not (able and record.capabilities.get("supports_checkpointing", False)):
                raise NotPossibleNow(
                    f"run {record.run_id}: worker {record.worker_type!r} cannot write a checkpoint, so its resources "
                    "cannot be released; pause without --release keeps the process, cancel ends it"
                )
            if able:
                wanted = "release" if release else "pause"
                self.record = await self._journal.record(
                    record.run_id, f"{wanted}_requested", pause_requested=wanted, insist=False
                )
                self._send_wanted()
            else:
                self.record = await self._journal.apply(
                    record.run_id, RunEvent.PAUSED, reason="stopped by signal: this worker cannot pause itself",
                    paused_by_signal=True, insist=False,
                )  # fmt: skip
                self._handle.signal_tree(signal.SIGSTOP)
                self._paused_since = self._monotonic()
            return self.record

    async def resume(self) -> RunRecord:
        """Let a paused run go on."""
        async with self._lock:
            record = self.record
            if record.status is not RunStatus.PAUSE:
                state = "running already" if record.status is RunStatus.EXEC else STATE_WORDS[record.status]
                raise NotPossibleNow(f"run {record.run_id} is {state}; only a paused run can be resumed")
            if record.paused_by_signal:
                self.record = await self._journal.apply(
                    record.run_id, RunEvent.RESUMED, paused_by_signal=False, insist=False
                )
                self._handle.signal_tree(signal.SIGCONT)
                self._note_resumed()
            else:
                self.record = await self._journal.record(
                    record.run_id, "resume_requested", pause_requested="resume", insist=False
                )
                self._send_wanted()
            return self.record

    def _note_resumed(self) -> None:
        if self._paused_since is not None:
            self._paused_s += self._monotonic() - self._paused_since
        self._paused_since = None
        self._last_beat = self._resumed_at = self._monotonic()

    # ------------------------------------------------------------------ watching

    async def run(self) -> Finished:
        """Watch until the tree is gone and the ending is stored."""
        exited = asyncio.create_task(self._handle.wait())
        self._last_beat = self._monotonic()  # nobody listened before
        try:
            while not (exited.done() or self._fault or self._is_cancelled):
                poke, look_s = asyncio.create_task(self._poked.wait()), self._next_look_s()
                due = self._monotonic() + look_s
                await asyncio.wait({exited, poke}, timeout=look_s, return_when=asyncio.FIRST_COMPLETED)
                poke.cancel()
                self._poked.clear()
                limit = "" if exited.done() else await self._look()
                self._forgive(self._monotonic() - due)
                if not exited.done():  # otherwise its exit code and its last words tell how it ended
                    self._fault = self._fault or self._broken_limit(limit)
            return await self._end(exited)
        finally:
            exited.cancel()

    def _forgive(self, late_s: float) -> None:
        """A daemon that itself stood still (SIGSTOP, a starved machine, a locked registry) could hear nobody."""
        if late_s > self._settings.heartbeat_s:
            self._last_beat = min(self._monotonic(), self._last_beat + late_s)

    def _next_look_s(self) -> float:
        """Seconds until something could be wrong; a heartbeat wakes us before that."""
        quiet = self._monotonic() - self._last_beat
        if self.record.paused_by_signal:
            return 3600.0
        limit = self._silence_limit_s()
        looks = [limit - quiet if quiet < limit else self._settings.heartbeat_s]
        if quiet < (looking := _QUIET_BEATS * self._settings.heartbeat_s):
            looks.append(looking - quiet)
        if (left := self._wallclock_left_s()) is not None:
            looks.append(left)
        if not self._handle.is_limited:
            looks.append(_LIMIT_POLL_S)
        if self._unapplied:
            looks.append(RETRY_S)
        return max(0.05, min(looks))

    def _silence_limit_s(self) -> float:
        if self.record.status is RunStatus.HSHK:
            return self._settings.handshake_s
        return self.record.silence_s or self._settings.silence_s

    def _wallclock_left_s(self) -> float | None:
        if self.record.max_wallclock_minutes is None or self._paused_since is not None:
            return None
        return self.record.max_wallclock_minutes * 60 + self._paused_s - self._handle.elapsed_s()

    async def _look(self) -> str:
        """Read what the worker wrote; return which limit of the kernel its processes broke."""
        limit = await look_at(self._look_at_files)
        # What cannot be stored now is stored by a later look: a cancel and the worker's end do not wait for the disk.
        with suppress(RegistryUnwritable):
            async with self._lock:
                # Nor for all of a flood.
                await self._apply_lifecycle(at_most=_EVENTS_A_LOOK, insist=False)
            await self._update_flags()
        return limit

    def _look_at_files(self) -> str:
        """In a thread, all at once: with many runs the way there and back costs more than the look."""
        if self._reading.acquire(blocking=False):  # else the look before this one still waits for the disk
            try:
                self._read_lifecycle_file()
                self._tend_logs()
            finally:
                self._reading.release()
        return self._handle.limit_hit() or ""

    async def _update_flags(self) -> None:
        quiet = self._monotonic() - self._last_beat
        is_worth_a_look = quiet >= min(_QUIET_BEATS * self._settings.heartbeat_s, self._silence_limit_s())
        stopped = is_worth_a_look and self._handle.is_stopped()
        if self._stood_still and not stopped:
            self._last_beat = self._resumed_at = self._monotonic()  # let go on, it gets its time to say so
        self._stood_still = stopped
        stalled = stopped and not self.record.paused_by_signal
        # The clock of a worker that was stopped went on; what it stood still then is not its fault.
        since_step = min(self.record.seconds_since_step or 0.0, self._monotonic() - self._resumed_at)
        no_progress = self.record.status is RunStatus.EXEC and since_step > _NO_PROGRESS_S
        for flag, now, told in (
            ("stalled", stalled, "its processes are stopped (SIGSTOP); SIGCONT lets it go on"),
            ("no_progress", no_progress, f"no step for more than {_NO_PROGRESS_S:.0f} s"),
        ):
            if now != getattr(self.record, flag):
                kind = flag if now else f"{flag}_over"
                changes: dict[str, Any] = {flag: now}
                self.record = await self._journal.record(
                    self.record.run_id, kind, reason=told if now else "", insist=False, **changes
                )

    def _broken_limit(self, kernels: str) -> str:
        """Which limit was broken; `kernels`: one that the process tree ran into."""
        quiet, limit = self._monotonic() - self._last_beat, self._silence_limit_s()
        if quiet >= limit and not (self.record.paused_by_signal or self._stood_still):
            if self.record.status is RunStatus.HSHK:
                return f"the worker did not register within {limit:g} s"
            return f"the worker was silent for more than {limit:g} s"
        left = self._wallclock_left_s()
        if left is not None and left <= 0:
            unit = "minute" if self.record.max_wallclock_minutes == 1 else "minutes"
            return f"out of wall-clock time: more than {self.record.max_wallclock_minutes:g} {unit}"
        return kernels

    def clean(self, path: Path) -> None:
        """Blot the run's secrets out of a log before somebody reads it."""
        self._mask.follow(path)

    def _tend_logs(self) -> None:
        for follower in self._followers:
            follower.follow()
        for folder in (self._logs, self._folder.logs):
            for path in _log_files(folder):
                self._mask.follow(path)
        self.cap_logs()

    def cap_logs(self) -> None:
        """In a thread. Workers write to files, so only a look at their size holds a flood back."""
        cap_mb = self._settings.log_cap_mb
        with self._capping:
            for older in cap_logs((self._logs, self._folder.logs), cap_mb << 20):
                self._mask.follow(older, anew=True)
                logger.warning("run %s: its logs outgrew %d MB, %s was cut", self.record.run_id, cap_mb, older.stem)

    def _read_lifecycle_file(self, *, is_last_try: bool = False) -> bool:
        """In a thread. Only the task that watches calls it. False: the daemon itself is in trouble, try again."""
        try:
            if len(self._unapplied) < _EVENTS_WAITING:
                self._unapplied.extend(self._reader.read())
        except OSError as error:
            if shortage(error) and not is_last_try:
                return False
            self._fault = self._fault or f"its lifecycle file cannot be read: {error.strerror} ({error.filename})"
        return True

    async def _apply_lifecycle(self, *, at_most: int = sys.maxsize, insist: bool = True) -> None:
        """Apply new lifecycle events; each is stored together with its number, so none counts twice."""
        for _ in range(min(at_most, len(self._unapplied))):
            event = self._unapplied[0]
            is_ours = event.run_id == self.record.run_id and event.attempt == self.record.attempt
            if is_ours and (self._events_taken < _MOST_EVENTS or event.event.ends_the_run):
                await self._take(event, insist)
            elif is_ours and self._events_taken == _MOST_EVENTS:
                logger.warning("run %s: only %d of its lifecycle events are stored", event.run_id, _MOST_EVENTS)
            self._events_taken += is_ours
            self._unapplied.popleft()
        if self._unapplied or self._reader.has_more:
            self._poked.set()

    def _hear_last_words(self, event: RunLifecycleEvent) -> None:
        self._last_words = event.event
        self._disk_was_full = self._is_the_disk_full()
        if event.event is LifecycleKind.RUN_FAILED:
            self._failure = _failure_text(self._mask.document(event.payload))
            self._failed_for_good = event.payload.get("final") is True

    def _note_last_figures(self, payload: Mapping[str, Any]) -> None:
        """An ending tells how far the run came; while no daemon listened, no heartbeat did."""
        record, figures = self.record, payload.get(LAST_FIGURES)
        figures = figures if isinstance(figures, Mapping) else {}
        step, told = payload.get("step", figures.get("step")), figures.get("episodic_return")
        if type(step) is int and record.step < step < 1 << 63:
            last_return = told if isinstance(told, float) else record.episodic_return
            headline = Headline(step, record.total, last_return, record.sps, record.seconds_since_step)
            self._journal.keep_headline(record.run_id, headline)

    async def _take(self, event: RunLifecycleEvent, insist: bool) -> None:
        run_id, payload = self.record.run_id, bounded_payload(self._mask.document(event.payload))
        if event.event is LifecycleKind.HEARTBEAT:
            return
        if event.event.ends_the_run:
            self._hear_last_words(event)
            self._note_last_figures(payload)
            result = {key: value for key, value in payload.items() if key != LAST_FIGURES}
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
        changes = {"lifecycle_seq": event.seq}
        if status_event is RunEvent.PAUSED and self.record.status is RunStatus.PAUSE and payload.get("release"):
            # It was held already; now it lets go of its process. What that means shows when it has exited.
            self.record = await self._journal.record(
                run_id, "releasing", payload=payload, lifecycle_seq=event.seq, insist=insist
            )
            return
        if status_event is RunEvent.PAUSED:
            self._paused_since = self._monotonic()
            released = self.record.pause_requested == "release" and payload.get("release") is True
            changes["pause_requested"] = "release" if released else ""
        elif status_event is RunEvent.RESUMED:
            self._note_resumed()
            changes["pause_requested"] = ""
        try:
            self.record = await self._journal.apply(run_id, status_event, payload=payload, insist=insist, **changes)
        except InvalidTransition as error:
            # A worker that says things out of order harms only itself.
            logger.warning("%s; the worker's %s is ignored", error, event.event)
            self.record = await self._journal.record(
                run_id, "out_of_order", reason=str(error), payload=payload, lifecycle_seq=event.seq, insist=insist
            )

    # ------------------------------------------------------------------ ending

    async def _end(self, exited: asyncio.Task[int | None]) -> Finished:
        """Make sure the tree is gone, read its last words, store what they mean."""
        self.is_ending = True
        self._disk_was_full = self._disk_was_full or self._is_the_disk_full()
        if self._fault and not (self._is_cancelled or self._has_completed or self.record.status is RunStatus.FAULT):
            with suppress(RegistryUnwritable):  # `_store` does it then
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
        self._on_gone()  # its slots are free for the next run while this one's ending is written down
        async with self._lock:
            await self._read_lifecycle_after_fault()
            if self._unrecorded_cancel is not None:
                await self._record_cancel(self._unrecorded_cancel, insist=True)
            self._is_concluded = True
            exit_record = None if self._gave_up else await look_at(ExitRecord.read, self._folder.exit_record)
            if exit_record is not None and exit_record.attempt != self.record.attempt:
                exit_record = None
            ending = conclude(
                EndingFacts(
                    status=self.record.status,
                    exit_code=code,
                    last_words=self._last_words,
                    failure=self._failure,
                    exit_record=exit_record,
                    cancel_requested=self.record.cancel_requested,
                    release_requested=self.record.pause_requested == "release",
                    fault=self._fault or (limit or ""),
                    complaint=await look_at(self._complaint) if code == BAD_INPUT else "",
                    failed_for_good=self._failed_for_good,
                    cancel_reason=self.record.cancel_reason,
                )
            )
            if ending.event is RunEvent.FAULTED and self._disk_was_full and "No space left" not in ending.reason:
                # A worker that found no room could not write why it failed either.
                ending = replace(ending, reason=f"{ending.reason}; the disk is full ({self._home.root})")
            return await self._store(ending, when_it_ended(self.record, exit_record, time.time()))

    @property
    def _has_completed(self) -> bool:
        return self._last_words is LifecycleKind.RUN_COMPLETED

    def _complaint(self) -> str:
        """What a worker that refused its config said about it."""
        text = self._mask.text(tail_text(self._logs / "stderr.log", lines=20)).strip()
        return text if len(text) <= _COMPLAINT_CHARACTERS else f"… {text[-_COMPLAINT_CHARACTERS:]}"

    def _is_the_disk_full(self) -> bool:
        try:
            return shutil.disk_usage(self._home.root).free < _FULL_BYTES
        except OSError:
            return False

    async def _read_lifecycle_after_fault(self) -> None:
        tries = 0
        while self.record.status is not RunStatus.FAULT and not self._gave_up:
            if not await look_at(self._read_last_words, is_last_try=tries >= _MOST_TRIES):
                tries += 1
                await asyncio.sleep(RETRY_S)
                continue
            await self._apply_lifecycle()
            if not self._reader.has_more:
                return

    def _read_last_words(self, *, is_last_try: bool) -> bool:
        if not self._reading.acquire(timeout=RETRY_S):  # a look that nobody waits for any more is still at it
            return is_last_try and self.give_up(TimeoutError(f"{self._folder.lifecycle} cannot be read"))
        try:
            return self._read_lifecycle_file(is_last_try=is_last_try)
        finally:
            self._reading.release()

    async def _store(self, ending: Ending, finished_at: float) -> Finished:
        run_id = self.record.run_id
        process_gone: dict[str, Any] = {"pid": 0, "stalled": False, "no_progress": False, "paused_by_signal": False}
        if not self._gave_up:
            await look_at(self._tend_logs)
            await work_on(self._mask.clean_run, self._home, run_id)
        await self._journal.flush_headlines()
        if ending.event is RunEvent.RELEASED:
            self.record = await self._journal.apply(
                run_id,
                RunEvent.RELEASED,
                reason=ending.reason,
                released=True,
                pause_requested="",
                gpu_ids=(),
                **process_gone,
            )
            return Finished(self.record, ending)
        if ending.event is RunEvent.FAULTED:
            if self.record.status is not RunStatus.FAULT:
                self.record = await self._journal.apply(run_id, RunEvent.FAULTED, reason=ending.reason)
            self.record = await self._journal.record(run_id, "", fault_reason=ending.reason, **process_gone)
            return Finished(self.record, ending)
        await finalise(self._folder, self.record, _OUTCOME_WORDS[ending.event], ending.reason)
        self.record = await self._journal.apply(
            run_id,
            ending.event,
            reason=ending.reason,
            payload={} if self._gave_up else await look_at(output_tails, self._home, run_id, self._mask),
            pause_requested="",
            finished_at=finished_at,
            **process_gone,
        )
        return Finished(self.record, ending)


def _why_not_paused(record: RunRecord) -> str:
    if record.status is RunStatus.PAUSE:
        return f"run {record.run_id} is paused already; `mosaic resume {record.run_id}` continues it"
    return f"run {record.run_id} is {STATE_WORDS[record.status]}; only a running run can be paused"


_OUTCOME_WORDS = {RunEvent.COMPLETED: "completed", RunEvent.CANCELLED: "cancelled"}


def output_tails(home: Home, run_id: str, mask: SecretMask) -> dict[str, str]:
    """The last lines a run printed, redacted and bounded. The training process's own output tells more."""
    worker, training = home.run_logs(run_id), home.run_folder(run_id).logs
    return {
        f"{stream}_tail": mask.text(tail_text(training / f"{stream}.log") or tail_text(worker / f"{stream}.log"))
        for stream in ("stderr", "stdout")
    }


def _log_files(folder: Path) -> list[Path]:
    if folder.is_symlink():
        return []
    return [Path(entry.path) for entry in walk(folder, depth=1) if entry.name.endswith(".log")]


def _known_endings(lifecycle: Path, record: RunRecord) -> list[RunLifecycleEvent]:
    """Endings of this attempt that an earlier daemon has read already."""
    try:
        endings = [event for event in LifecycleReader(lifecycle).read_to_the_end() if event.event.ends_the_run]
    except OSError as error:
        if shortage(error):
            raise
        return []  # the first look faults the run for it
    return [event for event in endings if event.attempt == record.attempt and event.seq <= record.lifecycle_seq]


def _failure_text(payload: Mapping[str, Any]) -> str:
    kind, text = str(payload.get("error_type", "")), str(payload.get("error", "")).strip()
    if not kind or text.startswith(kind):
        return text[:2000] or "the worker reported run_failed without a reason"
    return f"{kind}: {text}"[:2000]
