"""Claim queued runs, launch and supervise them, and release their resources.

A run is never started twice: it is claimed in the registry (with the mark its processes will carry) before its process
is started. A daemon that replaces one that died in between finds the process by its mark, or knows that there is none.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from mosaic_wire.checkpoints import last_good_checkpoint
from mosaic_wire.errors import WireError
from mosaic_wire.exit_record import ExitRecord
from mosaic_wire.files import NotAPlainFile
from mosaic_wire.frames import remove_frames
from mosaic_wire.lifecycle import LifecycleReader
from mosaic_wire.paths import Home

from gym_gui.config.settings import Settings
from gym_gui.logging_config.log_constants import LOG_TRAINER_RUN_WAITS
from gym_gui.services.trainer.capacity import CapacityGuard
from gym_gui.services.trainer.catalog import WorkerCatalog, run_in_catalog
from gym_gui.services.trainer.errors import (
    EngineUnavailable,
    InvalidTransition,
    NotPossibleNow,
    RunNotFound,
    TrainerError,
)
from gym_gui.services.trainer.executors.contract import NO_PROCESS, Attempt, Executor, Machines, Worker
from gym_gui.services.trainer.file_threads import run_long_io, run_quick_io
from gym_gui.services.trainer.finalize import finalize
from gym_gui.services.trainer.fsm import RunEvent, RunStatus
from gym_gui.services.trainer.hooks import EndHooks
from gym_gui.services.trainer.journal import REATTACHED, Journal, log_about
from gym_gui.services.trainer.launching import INSTALL_MISSING, RunLauncher, end_leftovers
from gym_gui.services.trainer.limits import shortage
from gym_gui.services.trainer.metrics.hub import MetricHub
from gym_gui.services.trainer.metrics.store import run_statistics
from gym_gui.services.trainer.process_tree import ProcessIdentity, pid_namespace, read_home
from gym_gui.services.trainer.records import (
    INTERRUPTIONS,
    LOCAL,
    NODE_LOST,
    PREEMPTED,
    HistoryEvent,
    RunRecord,
    RunStatistics,
)
from gym_gui.services.trainer.resources import Reservation, ResourceLedger, ResourceRequest, RunQueue
from gym_gui.services.trainer.run_files import last_checkpoint_step, size_of_run
from gym_gui.services.trainer.run_supervisor import Finished, RunSupervisor, output_tails
from gym_gui.services.trainer.secrets import SecretStore
from gym_gui.services.trainer.streams import TelemetryAsyncHub
from gym_gui.services.trainer.supervision import CANCELLED_ON_REQUEST, ended_at
from gym_gui.services.trainer.tokens import digest
from gym_gui.services.trainer.worker_logs import SecretMask, cap_log

logger = logging.getLogger(__name__)

T = TypeVar("T")
_CAPACITY_RECHECK_S = 3.0
_CANCEL_REPLY_S = 2.0
"""How long a cancel request waits for the end of the run before it answers that the run is being cancelled"""
_CANCEL_S = 5.0
"""How long an orderly stop waits for runs that are being cancelled; the next daemon ends the rest"""
_STATISTICS_FLUSH_S = 1.0
_MAX_RETRY_WAIT_S = 60.0
_RETRY_S = 1.0
_STARTING = (RunStatus.INIT, RunStatus.HSHK)
"""States of a run with a process that has not allocated its memory yet"""
_MAX_NODES_LOST = 5
"""After so many nodes that failed under a run, each further one counts as a fault of the run"""
_MAX_FAILURES = 10
"""A run that cannot be supervised or recovered is closed after this many failures"""
_LOG_POLL_S, _LOG_POLL_PER_RUN_S = 0.25, 0.005
"""Seconds between two checks of the sizes of logs, plus this many per live run"""


class TrainerDispatcher:
    """Starts, supervises and ends runs; owns every run that has a process or waits for one."""

    def __init__(
        self,
        home: Home,
        *,
        journal: Journal,
        catalog: WorkerCatalog,
        executors: Mapping[str, Executor],
        ledger: ResourceLedger,
        guard: CapacityGuard,
        secret_store: SecretStore,
        metrics: MetricHub,
        telemetry: TelemetryAsyncHub,
        settings: Settings,
        grpc_target: str,
    ) -> None:
        self._home, self._journal, self._settings = home, journal, settings
        self._metrics, self._telemetry = metrics, telemetry
        self._catalog, self._executors, self._ledger, self._guard = catalog, executors, ledger, guard
        self._secret_store, self._hooks = secret_store, EndHooks(settings)
        self._launcher = RunLauncher(
            home,
            journal=journal,
            catalog=catalog,
            executors=executors,
            secret_store=secret_store,
            settings=settings,
            grpc_target=grpc_target,
        )
        self.queue = RunQueue()
        self._handed_over: dict[str, str] = {}
        """By run that an engine queues or runs, the executor"""
        self.supervisors: dict[str, RunSupervisor] = {}
        self._token_owners: dict[str, str] = {}
        self._launching: dict[str, asyncio.Event] = {}
        self._being_launched: dict[str, RunRecord] = {}
        self._unrecovered: set[str] = set()
        """Runs of an earlier daemon that may have a process without a supervisor"""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._preparing: dict[str, str] = {}
        self._preparations: dict[str, asyncio.Task[None]] = {}
        self._prepared: set[str] = set()
        self._wake, self._recovered, self._has_live_runs = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._halted_until = -math.inf
        """No run is started before this time, because the daemon itself lacks a resource"""
        self._flush_planned = False
        self._stopping = False
        journal.on_change = self._refresh_live_record

    def _refresh_live_record(self, record: RunRecord) -> None:
        """Pass a record stored by another part of the daemon to the run's supervisor, unless it is older."""
        supervisor = self.supervisors.get(record.run_id)
        if supervisor is not None and record.event_seq >= supervisor.record.event_seq:
            supervisor.record = record

    # ------------------------------------------------------------------ life of the dispatcher

    async def start(self) -> None:
        """Recover every unfinished run, then serve the queue."""
        for threads in (run_quick_io, run_long_io, run_in_catalog):
            threads.start()
        await end_leftovers(self._home)
        for record in await self._journal.read(self._journal.registry.unfinished):
            try:
                await self._recover(record)
            except Exception as error:
                # Boundary of a run: one that cannot be recovered must not keep the daemon from serving other runs.
                logger.exception("run %s could not be recovered; will retry", record.run_id)
                self._unrecovered.add(record.run_id)
                await self._journal.record(record.run_id, "recovery_failed", reason=str(error))
                self._spawn(self._recover_later(record.run_id), f"recovery {record.run_id}")
        for record in await self._journal.read(self._journal.registry.unsettled):
            self._spawn(self._ended(record), f"end {record.run_id}")
        self._recovered.set()
        self._spawn(self._serve_queue(), "queue")
        self._spawn(self._cancel_orphans(), "orphans")
        self._spawn(self._cap_logs(), "logs")

    async def finish_cancels(self) -> None:
        """Give runs that are being cancelled time to end: they must not continue training without a daemon."""
        cancelled = {f"run {run_id}" for run_id, each in self.supervisors.items() if each.is_cancelled}
        if ending := [task for task in self._tasks if task.get_name() in cancelled]:
            await asyncio.wait(ending, timeout=_CANCEL_S)

    async def stop(self) -> None:
        """Detach from every run without ending it; the next daemon attaches again."""
        self._stopping = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await run_quick_io.drain()
        await run_long_io.drain()
        await self._journal.flush_statistics()

    def _spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("task %s of the dispatcher died", task.get_name(), exc_info=error)

    @property
    def is_halted(self) -> bool:
        """Return whether starting of runs is halted."""
        return self._halted_until == math.inf

    def halt(self, is_halted: bool) -> None:
        """Halt the starting of runs, or continue it."""
        self._halted_until = math.inf if is_halted else -math.inf
        self._wake.set()

    # ------------------------------------------------------------------ queue

    def enqueue(self, record: RunRecord) -> None:
        """Queue a run; if its environment has to be prepared, do that first."""
        if record.extras.get(INSTALL_MISSING) is True and record.run_id not in self._prepared:
            self._preparing[record.run_id] = "preparing environment"
            task = self._spawn(self._prepare_and_enqueue(record), f"prepare {record.run_id}")
            self._preparations[record.run_id] = task
            return
        self.queue.add(record)
        self._wake.set()

    def waiting_reason(self, run_id: str) -> str:
        """Return why a queued run has not started yet."""
        if (supervisor := self.supervisors.get(run_id)) is not None:
            return supervisor.waits_for
        return self._preparing.get(run_id) or self.queue.reason(run_id)

    async def machines(self) -> dict[str, tuple[str, Machines, int, int]]:
        """Return by executor its type, its machines, and how many runs of this daemon wait for it and run there."""
        answers = await asyncio.gather(*(executor.machines() for executor in self._executors.values()))
        found = {}
        for (name, executor), machines in zip(self._executors.items(), answers, strict=True):
            own = "" if name == LOCAL else name
            live = [each.record.status for each in self.supervisors.values() if each.record.executor == own]
            queued = self.queue.count(own) + live.count(RunStatus.INIT)
            found[name] = executor.type, machines, queued, len(live) - live.count(RunStatus.INIT)
        return found

    def _report_preparing(self, run_id: str, message: str) -> None:
        self._preparing[run_id] = f"preparing environment: {message}"

    async def _prepare_and_enqueue(self, record: RunRecord) -> None:
        run_id = record.run_id
        try:
            problem = await self._launcher.prepare(record, self._report_preparing)
        except (TrainerError, WireError, OSError) as error:
            problem = str(error)
        except asyncio.CancelledError:  # its installer has ended
            if self._stopping:
                raise
            problem = "cancelled"
        finally:
            self._preparing.pop(run_id, None)
            del self._preparations[run_id]
        current = await self._journal.read(self._journal.registry.get, run_id)
        if current.cancel_requested:
            await self._end_cancelled(run_id)
            return
        if problem:
            await self._fault_without_process(current, f"its environment could not be prepared: {problem}")
            return
        self._prepared.add(run_id)
        self.enqueue(await self._journal.record(run_id, "prepared"))

    def reprioritize(self, record: RunRecord) -> None:
        """Move a queued run to the place that its new priority gives it."""
        self.queue.add(record)
        self._wake.set()

    async def _serve_queue(self) -> None:
        while True:
            try:
                short = await self._start_what_fits()
            except Exception as error:
                # Boundary of the queue: after any error, the runs in it must not wait forever.
                lacking = shortage(error)
                logger.error("the queue could not be served; will retry: %s", lacking or error, exc_info=not lacking)
                short = True
            # Nothing wakes the daemon when a shortage of memory or disk ends; every other change does.
            try:
                async with asyncio.timeout(_CAPACITY_RECHECK_S if short else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _start_what_fits(self) -> bool:
        """Start queued runs by priority, then age; return whether the machine lacks memory or disk."""
        if short := time.monotonic() < self._halted_until:
            return short
        handed_over = Counter(self._handed_over.values())
        for record in self.queue.candidates(self._ledger):
            if record.executor:
                waits = self._why_not_handed_over(record, handed_over)
            else:
                started = [each.record for each in self.supervisors.values() if each.record.status in _STARTING]
                starting = [each for each in (*self._being_launched.values(), *started) if not each.executor]
                waits = await asyncio.to_thread(self._shortage, record, starting)
            if record.run_id not in self.queue:
                continue  # cancelled while the machine was checked
            if waits is not None:
                self._wait(record, waits)
                short = True
                continue
            reservation = self._reserve(record)
            if isinstance(reservation, str):
                self._wait(record, reservation)
                continue
            handed_over[record.executor] += 1
            self.queue.remove(record.run_id)
            self._launching[record.run_id], self._being_launched[record.run_id] = asyncio.Event(), record
            self._spawn(self._launch_and_supervise(record, reservation), f"run {record.run_id}")
        return short

    def _why_not_handed_over(self, record: RunRecord, handed_over: Mapping[str, int]) -> str | None:
        """Return why a run cannot be handed over to its engine now, or None."""
        name = record.executor
        if (executor := self._executors.get(name)) is None:
            return f"waiting for executor {name!r}, which is not in the settings: add [executors.{name}], or cancel it"
        if handed_over[name] >= executor.max_submitted:
            return f"waiting: {handed_over[name]} runs are already with {name} (max_submitted)"
        return executor.trouble() or None

    def _reserve(self, record: RunRecord) -> Reservation | str:
        """Reserve what the run needs of this machine: nothing if an engine runs it."""
        if not record.executor:
            return self._ledger.reserve(record.run_id, request_of(record))
        return self._hold(record)

    def _hold(self, record: RunRecord) -> Reservation:
        """Record what a run that has, or gets, a process holds."""
        reservation = Reservation(record.cpus, record.memory_mb or 0, record.gpu_ids)
        if record.executor:
            self._handed_over[record.run_id], reservation = record.executor, Reservation(0.0)
        self._ledger.restore(record.run_id, reservation)
        return reservation

    def _wait(self, record: RunRecord, reason: str) -> None:
        if self.queue.blocked(record, reason):
            log_about(record, LOG_TRAINER_RUN_WAITS, "waits", reason)
            self._journal.publish(record, [])  # clients saw that it is about to start

    def _estimate_mb(self, record: RunRecord) -> int:
        try:
            return self._catalog.get(record.worker_type).capabilities.estimated_memory_mb
        except (TrainerError, WireError, OSError):
            return 0

    def _shortage(self, record: RunRecord, starting: Sequence[RunRecord]) -> str | None:
        """Return which resource is short for this run (in a thread: the worker may have to be described first)."""
        # Memory that runs which were just started will use but have not allocated yet.
        promised_mb = sum(each.memory_mb or self._estimate_mb(each) for each in starting)
        return self._guard.shortage(request_of(record), self._estimate_mb(record), promised_memory_mb=promised_mb)

    # ------------------------------------------------------------------ launching

    async def _launch_and_supervise(self, record: RunRecord, reservation: Reservation) -> None:
        run_id = record.run_id
        try:
            launched = await self._launcher.launch(record, reservation.gpu_ids)
            current = await self._journal.read(self._journal.registry.get, run_id)
            supervisor = None if launched is None else self._supervisor(current, *launched)
        except EngineUnavailable as error:
            await self._launch_later(record, str(error))
            return
        except Exception as error:
            # Boundary of a run: its slots must be released after any error.
            if lacking := shortage(error) or shortage(error.__cause__):
                self._halted_until = max(self._halted_until, time.monotonic() + _CAPACITY_RECHECK_S)
                await self._launch_later(record, f"the daemon cannot start it now: {lacking}")
                return
            is_known = isinstance(error, TrainerError | WireError | OSError)
            logger.error("run %s could not be started: %s", run_id, error, exc_info=not is_known)
            self._release(run_id)
            self._launched(run_id)
            await self._fault_without_process(record, f"it could not be started: {error}")
            return
        if supervisor is None:  # cancelled while it was being prepared
            self._release(run_id)
            self._launched(run_id)
            await self._end_cancelled(run_id)
            return
        await self._supervise(supervisor)

    async def _launch_later(self, record: RunRecord, reason: str) -> None:
        """Put a run back in the queue: the daemon lacks processes, memory or disk space, or an engine is away."""
        record = await self._journal.record(record.run_id, "", **_NO_PROCESS)
        self._release(record.run_id)
        if record.cancel_requested:
            self._launched(record.run_id)
            await self._end_cancelled(record.run_id)
            return
        self.queue.add(record)
        self._wait(record, reason)
        self._launched(record.run_id)

    def _supervisor(self, record: RunRecord, handle: Worker, secrets: Mapping[str, str]) -> RunSupervisor:
        supervisor = RunSupervisor(
            record,
            handle,
            home=self._home,
            journal=self._journal,
            settings=self._settings,
            secrets=secrets,
            on_exit=lambda: self._release(record.run_id),
        )
        self.supervisors[record.run_id] = supervisor
        self._has_live_runs.set()
        self._launched(record.run_id)
        return supervisor

    def _launched(self, run_id: str) -> None:
        self._being_launched.pop(run_id, None)
        if (event := self._launching.pop(run_id, None)) is not None:
            event.set()

    async def supervisor_of(self, run_id: str) -> RunSupervisor | None:
        """Return the supervisor of a live run; wait for a launch in progress, whose worker may call early."""
        if (event := self._launching.get(run_id)) is not None:
            await event.wait()
        return self.supervisors.get(run_id)

    async def has_token(self, token: str) -> bool:
        """Return whether this is the run token or the session token of a live run."""
        token_sha256 = digest(token)
        if not self._has_token(token_sha256):
            for event in list(self._launching.values()):
                await event.wait()
        return self._has_token(token_sha256)

    def _has_token(self, token_sha256: str) -> bool:
        """Return whether a live run has this token; cache its owner, so that a heartbeat does not search all runs."""
        supervisor = self.supervisors.get(self._token_owners.get(token_sha256, ""))
        if supervisor is None or not supervisor.has_token(token_sha256):
            self._token_owners.pop(token_sha256, None)
            supervisor = next((each for each in self.supervisors.values() if each.has_token(token_sha256)), None)
            if supervisor is not None:
                self._token_owners[token_sha256] = supervisor.record.run_id
        return supervisor is not None

    # ------------------------------------------------------------------ supervising

    async def _supervise(self, supervisor: RunSupervisor) -> None:
        run_id = supervisor.record.run_id
        await self._recovered.wait()  # no worker can be silent before all are recovered
        finished = await self._watch(supervisor)
        self.supervisors.pop(run_id, None)
        self._token_owners = {token: owner for token, owner in self._token_owners.items() if owner != run_id}
        await self._handle_ending(finished)

    def _release(self, run_id: str) -> None:
        """Free the slots of a run whose process tree has ended."""
        self._handed_over.pop(run_id, None)
        self._ledger.release(run_id)
        self._wake.set()

    async def _watch(self, supervisor: RunSupervisor) -> Finished:
        """Supervise a run to its end and survive errors on the way (a full disk, an unreadable file, a bug)."""
        logged, failures = "", 0
        while True:
            try:
                return await supervisor.run()
            except Exception as error:
                # Boundary of a run: it stays supervised and keeps its slots until its process tree has ended.
                if (text := repr(error)) != logged:
                    logger.exception("run %s cannot be supervised; will retry", supervisor.record.run_id)
                    logged = text
                failures += _is_permanent(error, is_ending=supervisor.is_ending)
                if failures >= _MAX_FAILURES and supervisor.give_up(error):
                    logger.error(
                        "run %s is closed after %d failures of its supervision", supervisor.record.run_id, failures
                    )
                await asyncio.sleep(_RETRY_S)

    async def _cap_logs(self) -> None:
        """Cap logs, also those of workers that flood them between two heartbeats."""
        while True:
            await self._has_live_runs.wait()
            try:
                await run_quick_io(self._cap_logs_of, tuple(self.supervisors.values()))
            except Exception:
                # Boundary of the logs: one that cannot be read must not let other logs grow.
                logger.exception("the sizes of logs cannot be checked; will retry")
            if not self.supervisors:
                self._has_live_runs.clear()
            await asyncio.sleep(max(_LOG_POLL_S, len(self.supervisors) * _LOG_POLL_PER_RUN_S))

    def _cap_logs_of(self, supervisors: Sequence[RunSupervisor]) -> None:
        for supervisor in supervisors:
            supervisor.cap_logs()
        cap_log(self._home.daemon_log, self._settings.log_cap_mb << 20)

    async def _handle_ending(self, finished: Finished) -> None:
        record = finished.record
        if finished.ending.interruption:
            self._spawn(self._run_hooks([record], finished.ending.interruption), "hooks")
        if finished.ending.event is RunEvent.FAULTED:
            await self._retry_or_give_up(record, retry=not finished.ending.is_final)
        elif record.status is RunStatus.TERM:
            await self._ended(record)

    async def _fault_without_process(self, record: RunRecord, reason: str) -> None:
        faulted = await self._journal.apply(
            record.run_id, RunEvent.FAULTED, reason=reason, claimed=False, fault_reason=reason, queue_reason=""
        )
        self._wake.set()
        await self._retry_or_give_up(faulted, retry=False)

    async def _retry_or_give_up(self, record: RunRecord, *, retry: bool = True) -> None:
        """Move a run out of FAULT: back to the queue if its retries allow that, else to its end."""
        try:
            await self._resolve_fault(record, retry=retry)
        except InvalidTransition:
            logger.info("run %s was cancelled before it could be retried or given up", record.run_id)

    async def _resolve_fault(self, record: RunRecord, *, retry: bool) -> None:
        run_id, reason = record.run_id, record.fault_reason or record.reason
        record = await self._journal.read(self._journal.registry.get, run_id)
        events = await self._journal.read(self._journal.registry.history, run_id)
        counts, last = Counter(event.kind for event in events), _last_interruption(events)
        # Preemption is the engine's policy and costs no retry; nor do lost nodes, unless the run seems to be the cause.
        is_free = last == PREEMPTED or (last == NODE_LOST and counts[NODE_LOST] <= _MAX_NODES_LOST)
        free = counts[PREEMPTED] + min(counts[NODE_LOST], _MAX_NODES_LOST) - is_free
        retried = counts[RunEvent.RETRIED] - free
        if record.cancel_requested:
            await self._end_cancelled(run_id)
        elif retry and (is_free or retried < record.retries):
            wait_s = _RETRY_S if is_free else min(_MAX_RETRY_WAIT_S, 2.0**retried)
            again = await self._journal.apply(
                run_id,
                RunEvent.RETRIED,
                reason=f"attempt {record.attempt + 1} after: {reason}",
                attempt=record.attempt + 1,
                **_NO_PROCESS,
            )
            await asyncio.sleep(wait_s)
            await self._enqueue_current(again.run_id)
        else:
            mask = SecretMask((await asyncio.to_thread(self._secret_store.known, run_id)).values())
            await finalize(self._home.run_folder(run_id), record, "failed", reason, self._journal.report_trouble)
            tails, exit_record = dict[str, str](), None
            with suppress(OSError):  # the reason is known; its output is worth one try
                tails = await run_quick_io(output_tails, self._home, run_id, mask)
                exit_record = await run_quick_io(ExitRecord.read, self._home.run_folder(run_id).exit_record)
            if (await self._journal.read(self._journal.registry.get, run_id)).cancel_requested:  # meanwhile
                await self._end_cancelled(run_id)
                return
            ended = await self._journal.apply(
                run_id,
                RunEvent.GIVEN_UP,
                reason=reason,
                payload=tails,
                finished_at=ended_at(record, exit_record, time.time()),
            )
            await self._ended(ended)

    async def _enqueue_current(self, run_id: str) -> None:
        """Queue a run unless it was cancelled while it waited for its retry."""
        record = await self._journal.read(self._journal.registry.get, run_id)
        if record.status is RunStatus.INIT:
            self.enqueue(record)

    async def _ended(self, record: RunRecord) -> None:
        """Clean up after a run: cancel its children, store its statistics and size, run the operator's hook."""
        await self._cancel_children(record.run_id)
        await self._journal.flush_statistics()
        self._telemetry.end(record.run_id)
        remove_frames(record.run_id)
        curves, size, checkpoint_step = None, 0, 0
        try:
            curves = await self._metrics.finish(record.run_id)
            size = await run_long_io(size_of_run, self._home, record.run_id)
            checkpoint_step = await run_long_io(last_checkpoint_step, self._home, record.run_id)
        except Exception:
            # Boundary of a run: it is over, so the hook must run.
            logger.exception("run %s: its curves or its size cannot be read", record.run_id)
        with suppress(RunNotFound):  # deleted right after its end
            statistics = run_statistics(RunStatistics.of(record), curves, checkpoint_step=checkpoint_step)
            self._journal.queue_statistics(record.run_id, statistics)
            await self._journal.flush_statistics()
            record = await self._journal.record(record.run_id, "", size_bytes=size)
        await self._run_hooks([record])

    def plan_statistics_flush(self) -> None:
        """Schedule one write of the statistics of many heartbeats."""
        if not self._flush_planned:
            self._flush_planned = True
            self._spawn(self._flush_soon(), "statistics")

    async def _flush_soon(self) -> None:
        await asyncio.sleep(_STATISTICS_FLUSH_S)
        self._flush_planned = False
        await self._journal.flush_statistics()

    # ------------------------------------------------------------------ requests about runs without a process

    async def cancel(self, run_id: str, reason: str = "") -> RunRecord:
        """Cancel an unfinished run and return its record."""
        if not await self.cancel_waiting([run_id], reason):
            return await self._journal.read(self._journal.registry.get, run_id)
        if (supervisor := await self.supervisor_of(run_id)) is not None:
            return await supervisor.cancel(reason)
        return await self.cancel_queued(run_id, reason)

    async def _cancel_children(self, submitter: str) -> None:
        """Cancel the unfinished runs that the worker of this run submitted."""
        records = await self._journal.read(self._journal.registry.unfinished_of, submitter)
        reason = f"cancelled with run {submitter}, which submitted it"
        for run_id in await self.cancel_waiting([record.run_id for record in records], reason):
            await self.cancel(run_id, reason)

    async def _cancel_orphans(self) -> None:
        """Cancel children of runs that ended while an earlier daemon died."""
        records = await self._journal.read(self._journal.registry.unfinished)
        alive = {record.run_id for record in records}
        for submitter in {record.submitted_by for record in records} - alive - {""}:
            await self._cancel_children(submitter)

    async def cancel_waiting(self, run_ids: Sequence[str], reason: str) -> list[str]:
        """Cancel the queued runs that never had a process in one transaction; return the ids that remain."""
        queued = [record for run_id in run_ids if (record := self.queue.get(run_id)) is not None]
        fresh = {each.run_id: each for each in queued if each.attempt == 1 and each.run_id not in self._prepared}
        if not fresh:
            return list(run_ids)
        for run_id in fresh:  # first, so that none of them is started now
            self.queue.remove(run_id)
        changes: dict[str, dict[str, Any]] = {}
        ended: list[RunRecord] = []
        try:
            changes = await asyncio.to_thread(self._changes_of_cancelled, fresh, reason)
            ended = await self._journal.cancel_many(list(changes), reason or CANCELLED_ON_REQUEST, changes)
        finally:
            for record in fresh.values():
                if record.run_id not in changes or not ended:
                    self.queue.add(record)
            self._wake.set()
        self._spawn(self._run_hooks(ended), "hooks")
        return [run_id for run_id in run_ids if run_id not in changes]

    def _changes_of_cancelled(self, run_ids: Iterable[str], reason: str) -> dict[str, dict[str, Any]]:
        """Return the columns to change, by run; omit runs with a folder (a launch had begun), which need a manifest."""
        request = {"cancel_requested": True, "cancel_reason": reason}
        return {
            run_id: {**request, "size_bytes": size_of_run(self._home, run_id)}
            for run_id in run_ids
            if not self._home.run_folder(run_id).root.exists()
        }

    async def _run_hooks(self, ended: Sequence[RunRecord], event: str = "ended") -> None:
        for record in ended:
            if problem := await self._hooks.run(record, event):
                with suppress(RunNotFound):
                    await self._journal.record(record.run_id, "hook_failed", reason=problem)

    async def cancel_queued(self, run_id: str, reason: str = "") -> RunRecord:
        """Cancel a run that has no process (queued, released, or waiting for its retry)."""
        record = await self._journal.record(
            run_id, "cancel_requested", reason=reason, cancel_requested=True, cancel_reason=reason, insist=False
        )
        if (preparation := self._preparations.get(run_id)) is not None:
            preparation.cancel()
            return record
        if run_id in self._launching or run_id in self._unrecovered:  # its launch, or recovery, notices the request
            return record
        if (supervisor := self.supervisors.get(run_id)) is not None:  # it was launched meanwhile
            return await supervisor.cancel(reason)
        self.queue.remove(run_id)
        self._wake.set()
        ending = self._spawn(self._end_cancelled(run_id), f"cancel {run_id}")
        ended, _ = await asyncio.wait(
            {ending}, timeout=_CANCEL_REPLY_S
        )  # its manifest may find no room for a long time
        return ending.result() if ended else record

    async def _end_cancelled(self, run_id: str) -> RunRecord:
        """End a cancelled run that has no process; concurrent requests end it once."""
        record = await self._journal.read(self._journal.registry.get, run_id)
        reason = record.cancel_reason or CANCELLED_ON_REQUEST
        if record.status is not RunStatus.TERM:
            await finalize(self._home.run_folder(run_id), record, "cancelled", reason, self._journal.report_trouble)
        try:
            record = await self._journal.apply(run_id, RunEvent.CANCELLED, reason=reason, **_NO_PROCESS)
        except InvalidTransition:
            return await self._journal.read(self._journal.registry.get, run_id)
        self._spawn(self._ended(record), f"end {run_id}")
        return record

    async def requeue_released(self, record: RunRecord) -> RunRecord:
        """Queue a released run again, to resume from its checkpoint."""
        folder = self._home.run_folder(record.run_id)
        if await run_long_io(last_good_checkpoint, folder) is None:
            raise NotPossibleNow(
                f"run {record.run_id} left no usable checkpoint in {folder.checkpoints}: it would start from scratch; "
                "cancel it and submit it anew"
            )
        again = await self._journal.apply(
            record.run_id,
            RunEvent.REQUEUED,
            expected=RunStatus.PAUSE,
            reason="resumed from its checkpoint",
            attempt=record.attempt + 1,
            released=False,
            pause_requested="",
            insist=False,
            **_NO_PROCESS,
        )
        self.enqueue(again)
        return again

    # ------------------------------------------------------------------ after a restart

    async def _recover_later(self, run_id: str) -> None:
        failures, problem = 0, ""
        while True:
            await asyncio.sleep(_RETRY_S)
            record = await self._journal.read(self._journal.registry.get, run_id)
            try:
                if failures < _MAX_FAILURES:
                    await self._recover(record)
                else:
                    await self._close_unrecovered(record, problem)
            except Exception as error:
                logger.debug(
                    "run %s still cannot be recovered", run_id, exc_info=True
                )  # the first failure was an error
                problem = f"{type(error).__name__}: {error}"
                failures += _is_permanent(error, is_ending=record.cancel_requested)
            else:
                self._unrecovered.discard(run_id)
                return

    async def _close_unrecovered(self, record: RunRecord, problem: str) -> None:
        """End a run whose recovery failed repeatedly: first its processes, then its record."""
        self.supervisors.pop(record.run_id, None)
        handle = await self._attach(record)
        if handle is not None and not await handle.stop_tree(self._settings.grace_s):
            raise NotPossibleNow(f"some processes of run {record.run_id} cannot be ended yet")
        self._release(record.run_id)
        reason = f"it could not be recovered: {problem}"[:500]
        if record.status is not RunStatus.FAULT:
            record = await self._journal.apply(record.run_id, RunEvent.FAULTED, reason=reason)
        record = await self._journal.record(record.run_id, "", fault_reason=reason, pid=0)
        await self._retry_or_give_up(record, retry=False)

    async def _recover(self, record: RunRecord) -> None:
        if record.status is RunStatus.INIT and not record.claimed:
            # A GPU driver that is not loaded yet after a reboot must not fail every queued GPU run; they wait.
            request = replace(request_of(record), gpus=0, gpus_mandatory=0)
            if record.cancel_requested:
                await self._end_cancelled(record.run_id)
            elif not record.executor and (reason := self._ledger.impossible(request)) is not None:
                await self._fault_without_process(record, reason)
            else:
                self.enqueue(record)
            return
        if record.status is RunStatus.PAUSE and record.released:
            return
        worker = await self._attach(record)
        is_untouched = worker is None and record.status is RunStatus.INIT
        if is_untouched and not await run_quick_io(self._has_lifecycle_events, record):
            # The daemon died between claim and start: no process was started.
            record = await self._journal.record(record.run_id, "", claimed=False, job_id="")
            self.enqueue(record)
            return
        await self._reattach(record, worker or Worker(_identity_of(record) or NO_PROCESS, record.mark))

    def _refuse_foreign_process(self, identity: ProcessIdentity | None) -> None:
        """Raise NotPossibleNow when the process belongs to another home, of which this home is a copy."""
        other = read_home(identity.pid) if identity is not None and identity.is_alive() else None
        if other is not None and (owner := Home(other).identity) and owner != self._home.identity:
            assert identity is not None
            raise NotPossibleNow(
                f"its process (pid {identity.pid}) belongs to {other}: this home is a copy, made while the run was "
                "active. It is not touched until it has ended there"
            )

    def _has_lifecycle_events(self, record: RunRecord) -> bool:
        """Return whether a claimed attempt wrote any lifecycle event."""
        reader = LifecycleReader(self._home.run_folder(record.run_id).lifecycle)
        try:
            return any(event.attempt == record.attempt for event in reader.read_to_the_end())
        except NotAPlainFile:
            return True  # whatever it is, the attempt put it there

    async def _attach(self, record: RunRecord) -> Worker | None:
        name = record.executor or LOCAL
        if (executor := self._executors.get(name)) is None:
            raise NotPossibleNow(
                f"it was handed over to executor {name!r}, which is not in the settings any more: "
                f"put [executors.{name}] back and restart the daemon"
            )
        identity = _identity_of(record)
        self._refuse_foreign_process(identity)
        attempt = Attempt(
            record.run_id,
            record.mark,
            self._home.run_logs(record.run_id) / "stdout.log",
            identity=identity,
            job_id=record.job_id,
            pid_namespace=record.pid_namespace,
            memory_mb=record.memory_mb,
            max_processes=self._settings.max_processes,
        )
        worker = await executor.attach(attempt)
        if worker is not None and identity is None:
            self._refuse_foreign_process(worker.identity)
        return worker

    async def _reattach(self, record: RunRecord, worker: Worker) -> None:
        run_id = record.run_id
        secrets = await asyncio.to_thread(self._secret_store.known, run_id)
        self._hold(record)
        supervisor = self._supervisor(record, worker, secrets)
        await supervisor.restore_history(await self._journal.read(self._journal.registry.history, run_id))
        await self._journal.record(run_id, REATTACHED, reason="a new daemon recovered the run")
        self._spawn(self._supervise(supervisor), f"run {run_id}")


def _last_interruption(events: Sequence[HistoryEvent]) -> str:
    """Return how the engine ended the last attempt, or an empty text if it did not."""
    kinds = [event.kind for event in events if event.kind in (RunEvent.RETRIED, RunEvent.REQUEUED, *INTERRUPTIONS)]
    return kinds[-1] if kinds and kinds[-1] in INTERRUPTIONS else ""


_NO_PROCESS: dict[str, Any] = {
    "pid": 0,
    "pid_namespace": "",
    "claimed": False,
    "mark": "",
    "run_token_sha256": "",
    "session_token_sha256": "",
    "worker_instance": "",
    "gpu_ids": (),
    "job_id": "",
}


def _identity_of(record: RunRecord) -> ProcessIdentity | None:
    if not record.pid:
        return None
    return ProcessIdentity(record.pid, record.start_ticks, record.boot_id, record.pid_namespace or pid_namespace())


def _is_permanent(error: Exception, *, is_ending: bool) -> bool:
    """Return whether an error will not pass by itself; the daemon may get resources back while the run continues."""
    if shortage(error):
        return False
    return is_ending if isinstance(error, OSError | TrainerError | WireError) else True


def request_of(record: RunRecord) -> ResourceRequest:
    """Return the resources that a run requests."""
    return ResourceRequest(record.cpus, record.gpus, record.gpus_mandatory, record.memory_mb)
