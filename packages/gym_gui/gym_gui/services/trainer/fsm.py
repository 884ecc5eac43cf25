"""The life of a run: states, events, one transition table. Pure: no I/O, no clock, no threads."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from gym_gui.services.trainer.errors import InvalidTransition


class RunStatus(StrEnum):
    """Where a run is in its life."""

    INIT = "INIT"
    """queued: waits for resources, or for its retry"""
    HSHK = "HSHK"
    """its process runs and has not registered yet"""
    RDY = "RDY"
    """registered, not started yet"""
    EXEC = "EXEC"
    """training"""
    PAUSE = "PAUSE"
    """held at a safe point, stopped by signal, or released (without a process)"""
    FAULT = "FAULT"
    """went wrong; its processes are being cleaned up, then it is retried or given up"""
    TERM = "TERM"
    """over, with an outcome and a reason"""

    # Names that older documents use.
    EXECUTING = EXEC
    TERMINATED = TERM

    @property
    def is_terminal(self) -> bool:
        return self is RunStatus.TERM

    @property
    def is_active(self) -> bool:
        """Has, or may have, a process and a reservation."""
        return self in (RunStatus.HSHK, RunStatus.RDY, RunStatus.EXEC, RunStatus.PAUSE, RunStatus.FAULT)


class RunEvent(StrEnum):
    """What can happen to a run."""

    DISPATCHED = "dispatched"
    REGISTERED = "registered"
    STARTED = "started"
    PAUSED = "paused"
    RESUMED = "resumed"
    RELEASED = "released"
    REQUEUED = "requeued"
    FAULTED = "faulted"
    RETRIED = "retried"
    GIVEN_UP = "given_up"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


class RunOutcome(StrEnum):
    """How a run ended; only TERM has one."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


S, E = RunStatus, RunEvent

TRANSITIONS: MappingProxyType[tuple[RunStatus, RunEvent], RunStatus] = MappingProxyType(
    {
        (S.INIT, E.DISPATCHED): S.HSHK,
        (S.HSHK, E.REGISTERED): S.RDY,
        (S.RDY, E.STARTED): S.EXEC,
        (S.EXEC, E.PAUSED): S.PAUSE,
        (S.PAUSE, E.RESUMED): S.EXEC,
        (S.PAUSE, E.RELEASED): S.PAUSE,  # the process is gone, the reservation is free
        (S.PAUSE, E.REQUEUED): S.INIT,  # a released run is resumed
        (S.EXEC, E.COMPLETED): S.TERM,
        # INIT faults when its process cannot be started or this machine can never meet the request.
        **{(status, E.FAULTED): S.FAULT for status in (S.INIT, S.HSHK, S.RDY, S.EXEC, S.PAUSE)},
        (S.FAULT, E.RETRIED): S.INIT,
        (S.FAULT, E.GIVEN_UP): S.TERM,
        **{(status, E.CANCELLED): S.TERM for status in S if status is not S.TERM},
    }
)

OUTCOMES: MappingProxyType[RunEvent, RunOutcome] = MappingProxyType(
    {E.COMPLETED: RunOutcome.COMPLETED, E.GIVEN_UP: RunOutcome.FAILED, E.CANCELLED: RunOutcome.CANCELLED}
)
"""The outcome that an event into TERM gives."""


def advance(run_id: str, status: RunStatus, event: RunEvent) -> RunStatus:
    """Return the next status or raise; the registry stores it with compare-and-swap."""
    if (following := TRANSITIONS.get((status, event))) is None:
        raise InvalidTransition(run_id, status, event)
    return following
