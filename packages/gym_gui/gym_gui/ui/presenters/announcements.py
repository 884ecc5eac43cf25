"""What the window keeps count of about all runs: how many are live, and which have just ended. No Qt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mosaic_wire.proto import trainer_pb2 as pb


@dataclass(frozen=True)
class Counts:
    running: int = 0
    queued: int = 0
    paused: int = 0


class LiveRuns:
    """The runs that are not over, from the records as they come in."""

    def __init__(self) -> None:
        self._status: dict[str, str] = {}

    def replace(self, runs: Iterable[pb.Run]) -> list[pb.Run]:
        """Everything there is, after a (re)connection. Returns those that ended while nobody told us."""
        before = self._status
        everything = list(runs)
        self._status = {run.run_id: run.status for run in everything if run.status != "TERM"}
        return [run for run in everything if run.status == "TERM" and run.run_id in before]

    def update(self, runs: Iterable[pb.Run]) -> list[pb.Run]:
        """News of some runs. Returns those that have just ended; one that was over before is no news."""
        ended = []
        for run in runs:
            if run.status != "TERM":
                self._status[run.run_id] = run.status
            elif self._status.pop(run.run_id, None) is not None:
                ended.append(run)
        return ended

    @property
    def counts(self) -> Counts:
        statuses = list(self._status.values())
        queued, paused = statuses.count("INIT"), statuses.count("PAUSE")
        return Counts(running=len(statuses) - queued - paused, queued=queued, paused=paused)


@dataclass(frozen=True)
class Announcement:
    """One toast: about one run, or about several that ended together."""

    kind: str
    """completed | failed | cancelled; for several: failed when one of them is"""
    runs: tuple[pb.Run, ...]


AT_ONCE = 3
"""More ends than this in one batch are told in one sentence"""


def announce(ended: list[pb.Run]) -> list[Announcement]:
    """Toasts for these ends. Who cancels a run knows it; those are not announced."""
    worth_telling = [run for run in ended if run.outcome != "cancelled"]
    if len(worth_telling) <= AT_ONCE:
        return [Announcement(run.outcome or "completed", (run,)) for run in worth_telling]
    kind = "failed" if any(run.outcome == "failed" for run in worth_telling) else "completed"
    return [Announcement(kind, tuple(worth_telling))]
