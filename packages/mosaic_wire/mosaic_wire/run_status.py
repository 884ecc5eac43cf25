"""The states and outcomes of a run, as they travel between processes and are stored."""

from __future__ import annotations

from enum import StrEnum


class RunStatus(StrEnum):
    """Where a run is in its life. Equal to the text in messages: `run.status == RunStatus.TERM`."""

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
    """finished, with an outcome and a reason"""

    # Names that older documents use.
    EXECUTING = EXEC
    TERMINATED = TERM

    @property
    def is_terminal(self) -> bool:
        """Whether no event can change it any more."""
        return self is RunStatus.TERM

    @property
    def is_active(self) -> bool:
        """Whether the run has, or may have, a process and a reservation."""
        return self not in (RunStatus.INIT, RunStatus.TERM)


UNFINISHED = tuple(status for status in RunStatus if not status.is_terminal)


class RunOutcome(StrEnum):
    """How a run ended; only TERM has one."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
