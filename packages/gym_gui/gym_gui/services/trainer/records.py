"""Frozen records that the registry stores and returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mosaic_wire.limits import MAX_STEP

from gym_gui.services.trainer.fsm import RunOutcome, RunStatus

_BEYOND_TOTAL = 16
"""A script's curves may count frames or agents' steps: up to this many per step of its total"""

LOCAL = "local"
"""The executor of runs that name none: this machine"""

PREEMPTED, NODE_LOST = INTERRUPTIONS = ("preempted", "node_lost")
"""How an engine ends an attempt without the run's doing; also the kinds of these events in its history"""

PauseRequest = Literal["", "pause", "release", "resume"]


@dataclass(frozen=True, slots=True)
class Parent:
    """The finished run, and its checkpoint, that a run started from."""

    run_id: str
    step: int
    sha256: str


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """The progress and performance of a run."""

    step: int = 0
    total: int = 0
    """0 if the worker does not know it; then the stored value is kept"""
    episodic_return: float | None = None
    sps: float | None = None
    seconds_since_step: float | None = None
    metrics: Mapping[str, float] | None = None
    """Last values of important curves; None keeps the stored ones"""

    @classmethod
    def of(cls, record: RunRecord) -> RunStatistics:
        """Return the statistics of a record."""
        return cls(record.step, record.total, record.episodic_return, record.sps, record.seconds_since_step)


@dataclass(frozen=True, slots=True)
class NewRun:
    """The fields of a run to submit."""

    run_id: str
    worker_type: str
    name: str = ""
    worker_id: str = ""
    algo: str = ""
    env_id: str = ""
    seed: int | None = None
    total: int = 0
    priority: int = 0
    tags: tuple[str, ...] = ()
    notes: str = ""
    parent: Parent | None = None
    submitted_by: str = ""
    cpus: float = 1.0
    gpus: int = 0
    gpus_mandatory: int = 0
    memory_mb: int | None = None
    max_wallclock_minutes: float | None = None
    silence_s: float | None = None
    retries: int = 0
    extras: Mapping[str, Any] = field(default_factory=dict)
    """Redacted by the caller"""
    executor: str = ""
    """Of the settings; empty: this machine"""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A stored run; each field is a column."""

    run_id: str
    number: int
    """order of submission, never reused"""
    status: RunStatus
    outcome: RunOutcome | None
    reason: str
    name: str
    worker_type: str
    worker_id: str
    algo: str
    env_id: str
    seed: int | None
    step: int
    total: int
    episodic_return: float | None
    sps: float | None
    seconds_since_step: float | None
    metrics: dict[str, float]
    """last values of important curves"""
    result: dict[str, Any] | None
    """payload of `run_completed`"""
    priority: int
    tags: tuple[str, ...]
    notes: str
    archived: bool
    queue_reason: str
    parent: Parent | None
    submitted_by: str
    """The run whose worker submitted this one; empty if a client did"""
    created_at: float
    """unix seconds, for display only; 0 means not yet (also below)"""
    started_at: float
    finished_at: float
    cpus: float
    gpus: int
    gpus_mandatory: int
    gpu_ids: tuple[str, ...]
    memory_mb: int | None
    max_wallclock_minutes: float | None
    silence_s: float | None
    attempt: int
    """1 is the first"""
    retries: int
    size_bytes: int
    protocol_version: int
    capabilities: dict[str, Any]
    extras: dict[str, Any]
    event_seq: int
    """The number of the newest event of this run"""

    # ---- internal to the daemon, never sent to a client
    pid: int
    """0: no process"""
    start_ticks: int
    boot_id: str
    mark: str
    run_token_sha256: str
    session_token_sha256: str
    worker_instance: str
    lifecycle_seq: int
    """the last lifecycle event that was applied"""
    cancel_requested: bool
    cancel_reason: str
    pause_requested: PauseRequest
    paused_by_signal: bool
    released: bool
    stalled: bool
    no_progress: bool
    fault_reason: str
    claimed: bool
    """the dispatcher reserved resources and may have started a process"""
    pid_namespace: str = ""
    """Of the daemon that started it; empty (an older MOSAIC) counts as the own one"""
    job_id: str = ""
    """The job of its executor's engine; empty on this machine"""

    # ---- sent to clients
    executor: str = ""
    """Of the settings; empty: this machine"""
    node: str = ""
    """Where its executor started it last; empty on this machine"""

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags that a client shows beside the status; a finished run has none."""
        if self.status.is_terminal:
            return ()
        shown = {
            "stalled": self.stalled,
            "no_progress": self.no_progress,
            "paused_by_signal": self.paused_by_signal,
            "released": self.released,
            "cancelling": self.cancel_requested,
            "pausing": self.pause_requested in ("pause", "release"),
        }
        return tuple(name for name, holds in shown.items() if holds)


def plausible_step(step: int, total: int) -> int:
    """Return a curve's step if it is plausible for the run, else 0: a script may write points at any step."""
    most = min(MAX_STEP, _BEYOND_TOTAL * total) if total else MAX_STEP
    return step if step <= most else 0


DELETED = "deleted"
"""The kind of the one event that is published but not stored, because a deleted run has no history"""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event in the history of a run; `seq` counts over all runs of the home."""

    seq: int
    run_id: str
    timestamp: float
    kind: str
    """`submitted`, the name of a state-machine event, or any other notable fact"""
    from_status: str
    """empty for `submitted` and for facts that are no state change"""
    to_status: str
    """empty for facts that are no state change"""
    reason: str
    payload: dict[str, Any]
    attempt: int


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A query for runs; the fields are those of ListRunsRequest."""

    statuses: tuple[str, ...] = ()
    """any of"""
    outcomes: tuple[str, ...] = ()
    """any of"""
    tags: tuple[str, ...] = ()
    """all of"""
    text: str = ""
    """somewhere in id, name, algo, env_id or notes; ASCII letters match in either case"""
    include_archived: bool = False
    limit: int = 0
    """0: all"""
    run_id_prefix: str = ""
    submitted_by: str = ""
    """Submitted by the worker of this run"""
    before_number: int = 0
    """submitted before this one; 0: from the newest on"""


@dataclass(frozen=True, slots=True)
class RunListing:
    """A page of runs, newest first. On the first page `matching` counts all; watch on from `last_seq`."""

    runs: tuple[RunRecord, ...]
    matching: int
    last_seq: int
