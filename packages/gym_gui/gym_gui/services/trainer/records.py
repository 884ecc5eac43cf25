"""What the registry hands out and takes in: frozen records, no behaviour beyond reading them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mosaic_wire.limits import MAX_STEP

from gym_gui.services.trainer.fsm import RunOutcome, RunStatus

_BEYOND_TOTAL = 16
"""A script's curves may count frames or agents' steps: so many to each step of its total"""

PauseRequest = Literal["", "pause", "release", "resume"]


@dataclass(frozen=True, slots=True)
class Parent:
    """The finished run, and its checkpoint, that a run started from."""

    run_id: str
    step: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Headline:
    """The few numbers a heartbeat carries."""

    step: int = 0
    total: int = 0
    """0: the worker does not know; the registry keeps what it had"""
    episodic_return: float | None = None
    sps: float | None = None
    seconds_since_step: float | None = None
    metrics: Mapping[str, float] | None = None
    """last values of important curves; None: nothing new, the registry keeps what it had"""


@dataclass(frozen=True, slots=True)
class NewRun:
    """What `submit` needs to know about a run."""

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
    """redacted by the caller; the registry stores what it is given"""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as the registry knows it; one field is one column."""

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
    """the run whose worker asked for this one; empty: a client did"""
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
    """the newest story event of this run"""

    # ---- for the daemon alone; never sent to a client
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
    """of the daemon that started it; empty: an older one, taken for ours"""

    @property
    def flags(self) -> tuple[str, ...]:
        """What a client shows beside the status; a finished run has none."""
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
    """Return a step that a curve told if it can be the run's, else 0: any script may write a point at any step."""
    most = min(MAX_STEP, _BEYOND_TOTAL * total) if total else MAX_STEP
    return step if step <= most else 0


DELETED = "deleted"
"""The kind of the one event that is told and not stored: the story of a deleted run goes with it"""


@dataclass(frozen=True, slots=True)
class StoryEvent:
    """One thing that happened to a run; `seq` counts over all runs of the home."""

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
    """Which runs to list; the fields of ListRunsRequest."""

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
    """asked for by the worker of this run"""
    before_number: int = 0
    """submitted before this one; 0: from the newest on"""


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs, newest first. `matching`, of a first page, counts before the limit; `last_seq`: watch on from there."""

    runs: tuple[RunRecord, ...]
    matching: int
    last_seq: int
