"""The life of a run: states, events, one transition table. Pure: no I/O, no clock, no threads."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType

from mosaic_wire.run_status import RunOutcome, RunStatus

from gym_gui.services.trainer.errors import InvalidTransition

__all__ = ["OUTCOMES", "TRANSITIONS", "RunEvent", "RunOutcome", "RunStatus", "advance"]


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


S, E = RunStatus, RunEvent

TRANSITIONS: MappingProxyType[tuple[RunStatus, RunEvent], RunStatus] = MappingProxyType(
    {
        (S.INIT, E.DISPATCHED): S.HSHK,
        (S.HSHK, E.REGISTERED): S.RDY,
        (S.RDY, E.STARTED): S.EXEC,
        (S.EXEC, E.PAUSED): S.PAUSE,
        (S.PAUSE, E.RESUMED): S.EXEC,
        (S.PAUSE, E.RELEASED): S.PAUSE,  # its process has exited, its resources are free
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
"""The outcome that an event into TERM sets"""


def advance(run_id: str, status: RunStatus, event: RunEvent) -> RunStatus:
    """Return the next status or raise; the registry stores it with compare-and-swap."""
    if (following := TRANSITIONS.get((status, event))) is None:
        raise InvalidTransition(run_id, status, event)
    return following
