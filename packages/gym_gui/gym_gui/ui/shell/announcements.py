"""Count live runs and find those that just ended. No Qt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunOutcome, RunStatus


@dataclass(frozen=True)
class Counts:
    running: int = 0
    queued: int = 0
    paused: int = 0


class LiveRuns:
    """The runs that have not finished, updated with each record."""

    def __init__(self) -> None:
        self._status: dict[str, str] = {}

    def replace(self, runs: Iterable[pb.Run]) -> list[pb.Run]:
        """Set all runs after a (re)connection; return those that ended while disconnected."""
        before = self._status
        everything = list(runs)
        self._status = {run.run_id: run.status for run in everything if run.status != RunStatus.TERM}
        return [run for run in everything if run.status == RunStatus.TERM and run.run_id in before]

    def update(self, runs: Iterable[pb.Run]) -> list[pb.Run]:
        """Apply changed records; return the runs that have just ended."""
        ended = []
        for run in runs:
            if run.status != RunStatus.TERM:
                self._status[run.run_id] = run.status
            elif self._status.pop(run.run_id, None) is not None:
                ended.append(run)
        return ended

    @property
    def counts(self) -> Counts:
        statuses = list(self._status.values())
        queued, paused = statuses.count(RunStatus.INIT), statuses.count(RunStatus.PAUSE)
        return Counts(running=len(statuses) - queued - paused, queued=queued, paused=paused)


@dataclass(frozen=True)
class Announcement:
    """One toast: about one run, or about several that ended together."""

    kind: str
    """completed | failed | cancelled; for several: failed when one of them is"""
    runs: tuple[pb.Run, ...]


AT_ONCE = 3
"""If more runs end in one batch, one toast summarizes them"""


def announce(ended: list[pb.Run]) -> list[Announcement]:
    """Return the toasts for these runs. The user knows about cancelled ones; they are omitted."""
    notable = [run for run in ended if run.outcome != RunOutcome.CANCELLED]
    if len(notable) <= AT_ONCE:
        return [Announcement(run.outcome or "completed", (run,)) for run in notable]
    kind = "failed" if any(run.outcome == RunOutcome.FAILED for run in notable) else "completed"
    return [Announcement(kind, tuple(notable))]
