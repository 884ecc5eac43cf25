"""Decide what the end of a worker means: a pure function from facts to one event and one reason."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from mosaic_wire.exit_record import ExitOutcome, ExitRecord
from mosaic_wire.lifecycle import LifecycleKind

from gym_gui.services.trainer.fsm import RunEvent, RunStatus
from gym_gui.services.trainer.records import HistoryEvent, RunRecord

BAD_INPUT = 2
"""Exit code of a worker that cannot use its config"""
CANCELLED_ON_REQUEST = "cancelled on request"


@dataclass(frozen=True)
class Ending:
    """The event that the end of a worker causes, and why."""

    event: RunEvent
    reason: str
    is_final: bool = False
    """Whether a retry cannot help"""
    interruption: str = ""
    """One of INTERRUPTIONS, if the run is queued again without using up a retry"""


@dataclass(frozen=True)
class EndingFacts:
    """Everything known once the worker's process has exited and its files have been read."""

    status: RunStatus
    exit_code: int | None
    """None when the worker was not a child of this daemon"""
    ending_event: LifecycleKind | None = None
    """The ending event in this attempt's lifecycle file, if any"""
    failure: str = ""
    """The failure as the worker reported it"""
    exit_record: ExitRecord | None = None
    """The exit.json of this attempt, if any"""
    cancel_requested: bool = False
    release_requested: bool = False
    fault: str = ""
    """Why the daemon ended the worker (silence, wall-clock, memory); empty if it did not"""
    stderr: str = ""
    """The end of its stderr, if it refused its config"""
    failed_for_good: bool = False
    """Whether the worker reported that a retry would fail the same way"""
    cancel_reason: str = ""
    engine_reason: str = ""
    """Why its engine ended it; empty if it did not"""
    interruption: str = ""
    """The kind of that ending, if the run is to be queued again"""


def conclude(facts: EndingFacts) -> Ending:
    """Decide how an attempt ended.

    Completion has precedence over requests: a run that completed before the cancel reached it is completed.
    """
    code, record = facts.exit_code, facts.exit_record
    if code is None and record is not None:
        code = record.exit_code
    # The daemon may have killed a worker that hung after it had finished: its exit.json counts, not the signal.
    hung = facts.fault and record is not None and record.outcome is ExitOutcome.COMPLETED
    is_done = facts.ending_event is LifecycleKind.RUN_COMPLETED and (code == 0 or hung)
    if is_done and facts.status is RunStatus.EXEC:
        return Ending(RunEvent.COMPLETED, "completed")
    if facts.cancel_requested:
        return Ending(RunEvent.CANCELLED, facts.cancel_reason or CANCELLED_ON_REQUEST)
    if facts.fault:
        return Ending(RunEvent.FAULTED, facts.fault)
    if is_done:
        return Ending(RunEvent.FAULTED, f"it reported run_completed in state {facts.status}, before run_started")
    to_be_released = facts.release_requested and facts.status is RunStatus.PAUSE
    if to_be_released and record is not None and record.outcome is ExitOutcome.RELEASED:
        return Ending(RunEvent.RELEASED, "checkpointed; CPUs and GPUs are free again")
    if facts.engine_reason:
        return Ending(RunEvent.FAULTED, facts.engine_reason, interruption=facts.interruption)
    if to_be_released:
        return Ending(RunEvent.FAULTED, f"it was to be released, but {describe_exit(code)}")
    return _conclude_by_itself(facts, code)


def _conclude_by_itself(facts: EndingFacts, code: int | None) -> Ending:
    """Decide how an attempt ended that nothing but itself, or a stranger, ended."""
    if facts.failure:
        return Ending(RunEvent.FAULTED, facts.failure, is_final=facts.failed_for_good)
    if code == 0 and facts.ending_event is None:
        return Ending(RunEvent.FAULTED, "it exited with code 0 without reporting run_completed")
    if facts.ending_event is LifecycleKind.RUN_CANCELLED:
        return Ending(RunEvent.FAULTED, "it was ended by a signal that did not come from MOSAIC (SIGTERM)")
    if code == BAD_INPUT and facts.stderr:
        return Ending(RunEvent.FAULTED, f"it refused its config: {facts.stderr}", is_final=True)
    return Ending(RunEvent.FAULTED, f"its process {describe_exit(code)}")


def paused_seconds(events: Iterable[HistoryEvent], attempt: int, now: float) -> float:
    """Return how long this attempt was paused under earlier daemons, by the timestamps of its events."""
    total, since = 0.0, None
    for event in events:
        if event.attempt != attempt:
            continue
        if event.kind == RunEvent.PAUSED:
            since = event.timestamp
        elif event.kind == RunEvent.RESUMED and since is not None:
            total, since = total + max(0.0, event.timestamp - since), None
    return total if since is None else total + max(0.0, now - since)


def ended_at(record: RunRecord, exit_record: ExitRecord | None, now: float) -> float:
    """Return the end time that exit.json states (the worker may have ended while no daemon was running), or now."""
    if exit_record is None or exit_record.attempt != record.attempt:
        return now
    return exit_record.finished_at if record.started_at <= exit_record.finished_at <= now else now


def describe_exit(code: int | None) -> str:
    """Return an exit code as a phrase: `-9` becomes "was killed by SIGKILL"."""
    if code is None:
        return "exited and left no exit.json"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"
    return f"exited with code {code}"
