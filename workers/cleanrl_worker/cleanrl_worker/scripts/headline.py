"""How far a script is, read from the event files it writes: nobody has to change it for that."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire.event_files import EventFolderReader

LOOK_EVERY_S = 2.0
"""How often the event files are looked at"""

RETURN_TAGS = ("charts/episodic_return", "charts/episode_return", "rollout/ep_rew_mean", "episodic_return")
SPS_TAGS = ("charts/SPS", "time/fps", "SPS")
_EPISODES = 20


@dataclass(frozen=True)
class Headline:
    """What a heartbeat says of a run."""

    step: int = 0
    episodic_return: float | None = None
    """mean of the latest episodes"""
    sps: float | None = None


class HeadlineFollower:
    """Reads what was added to the event files below some folders; those of an earlier attempt do not count."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.newest = Headline()
        self._looked_at = time.monotonic()
        self._readers = [EventFolderReader(folder, bulk=False) for folder in folders]
        self._returns: deque[float] = deque(maxlen=_EPISODES)
        self._step = 0
        self._sps: float | None = None
        for reader in self._readers:
            reader.read()
            while reader.has_more:
                reader.read()

    def has_news(self, *, now: bool = False) -> bool:
        """Look when it is time to (or `now`); tell whether `newest` has changed."""
        if not now and time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return False
        self._looked_at = time.monotonic()
        earlier, self.newest = self.newest, self._read()
        return self.newest != earlier

    def _read(self) -> Headline:
        for reader in self._readers:
            while True:
                for batch in reader.read():
                    for tag, column in batch.columns.items():
                        self._take(tag, column.steps, column.values)
                if not reader.has_more:
                    break
        mean = sum(self._returns) / len(self._returns) if self._returns else None
        return Headline(self._step, mean, self._sps)

    def _take(self, tag: str, steps: Sequence[int], values: Sequence[float]) -> None:
        if tag.startswith("eval/"):  # evaluations count episodes, not steps
            return
        self._step = max(self._step, *steps)
        finite = [value for value in values if math.isfinite(value)]
        if tag in RETURN_TAGS:
            self._returns.extend(finite)
        elif tag in SPS_TAGS and finite:
            self._sps = finite[-1]
