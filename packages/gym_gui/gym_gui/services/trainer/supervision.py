"""What the end of a worker means. Pure: facts in, one event and one sentence out."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from mosaic_wire.exit_record import ExitOutcome, ExitRecord
from mosaic_wire.lifecycle import LifecycleKind

from gym_gui.services.trainer.fsm import RunEvent, RunStatus
from gym_gui.services.trainer.records import RunRecord, StoryEvent

BAD_INPUT = 2
"""Exit code of a worker that cannot use its config"""
CANCELLED_ON_REQUEST = "cancelled on request"


@dataclass(frozen=True)
class Ending:
    """The event an ended worker causes, and why."""

    event: RunEvent
    reason: str
    is_final: bool = False
    """A fault that a retry cannot cure"""


@dataclass(frozen=True)
class EndingFacts:
    """Everything known once the worker's process is gone and its files have been read to the end."""

    status: RunStatus
    exit_code: int | None
    """None: it was not our child, so nobody told"""
    last_words: LifecycleKind | None = None
    """The ending event in this attempt's lifecycle, if any"""
    failure: str = ""
    """The worker's own account of its failure"""
    exit_record: ExitRecord | None = None
    """Of this attempt"""
    cancel_requested: bool = False
    release_requested: bool = False
    fault: str = ""
    """Why the daemon itself ended it (silence, wall-clock, memory); empty: it did not"""
    complaint: str = ""
    """What it wrote to stderr, if it refused its config"""
    failed_for_good: bool = False
    """The worker said that its failure would only repeat itself"""
    cancel_reason: str = ""


def conclude(facts: EndingFacts) -> Ending:
    """Decide how an attempt ended.

    What the worker finished wins over what was asked of it: a run that completed before the cancel reached
    it has completed.
    """
    code, record = facts.exit_code, facts.exit_record
    if code is None and record is not None:
        code = record.exit_code
    # The daemon may have ended a worker that had finished and then hung: its exit.json counts, not our signal.
    hung = facts.fault and record is not None and record.outcome is ExitOutcome.COMPLETED
    is_done = facts.last_words is LifecycleKind.RUN_COMPLETED and (code == 0 or hung)
    if is_done and facts.status is RunStatus.EXEC:
        return Ending(RunEvent.COMPLETED, "completed")
    if facts.cancel_requested:
        return Ending(RunEvent.CANCELLED, facts.cancel_reason or CANCELLED_ON_REQUEST)
    if facts.fault:
        return Ending(RunEvent.FAULTED, facts.fault)
    if is_done:
        return Ending(RunEvent.FAULTED, f"it reported run_completed in state {facts.status}, before run_started")
    if facts.release_requested and facts.status is RunStatus.PAUSE:
        if record is not None and record.outcome is ExitOutcome.RELEASED:
            return Ending(RunEvent.RELEASED, "checkpointed; CPUs and GPUs are free again")
        return Ending(RunEvent.FAULTED, f"it was to be released but {describe_exit(code)}")
    if facts.failure:
        return Ending(RunEvent.FAULTED, facts.failure, is_final=facts.failed_for_good)
    if code == 0 and facts.last_words is None:
        return Ending(RunEvent.FAULTED, "it exited with code 0 without reporting run_completed")
    if facts.last_words is LifecycleKind.RUN_CANCELLED:
        return Ending(RunEvent.FAULTED, "it was ended by a signal that did not come from MOSAIC (SIGTERM)")
    if code == BAD_INPUT and facts.complaint:
        return Ending(RunEvent.FAULTED, f"it refused its config: {facts.complaint}", is_final=True)
    return Ending(RunEvent.FAULTED, f"its process {describe_exit(code)}")


def paused_before(story: Iterable[StoryEvent], attempt: int, now: float) -> float:
    """How long this attempt was paused under earlier daemons; their clocks are gone, the story's is all there is."""
    total, since = 0.0, None
    for event in story:
        if event.attempt != attempt:
            continue
        if event.kind == RunEvent.PAUSED:
            since = event.timestamp
        elif event.kind == RunEvent.RESUMED and since is not None:
            total, since = total + max(0.0, event.timestamp - since), None
    return total if since is None else total + max(0.0, now - since)


def when_it_ended(record: RunRecord, told: ExitRecord | None, now: float) -> float:
    """What its exit.json says: while no daemon looked, only the worker knows; otherwise now."""
    if told is None or told.attempt != record.attempt or not record.started_at <= told.finished_at <= now:
        return now
    return told.finished_at


def describe_exit(code: int | None) -> str:
    """`-9` becomes «was killed by SIGKILL»."""
    if code is None:
        return "is gone and left no exit.json"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"
    return f"exited with code {code}"
