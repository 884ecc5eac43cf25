"""A training process that lives and does not move: when to say so, and what to do (`extras.no_progress`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mosaic_wire.errors import Problem

POLICIES = ("leave", "kill")
"""`leave`: the daemon shows the flag `no_progress`, and that is all"""

NO_PROGRESS_S = 300.0

_STOPPED_S = 10.0
"""A round of the worker's loop that takes this long was a stop (SIGSTOP), not slow training"""


class ProgressWatch:
    """Hears what the training process says and notices when it has not moved for too long."""

    def __init__(self, extras: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._kills = extras.get("no_progress") == "kill"
        self._limit_s = float(extras.get("no_progress_s") or NO_PROGRESS_S)
        self._clock = clock
        self._moved_at = self._ticked_at = clock()
        self._step: Any = None
        self._is_paused = False

    def hear(self, message: Mapping[str, Any]) -> None:
        """Any message is a sign of life, but for a report that says the same step again."""
        kind = message.get("kind")
        if kind == "progress" and message.get("step") == self._step:
            return
        self._step = message.get("step", self._step)
        self._is_paused = kind == "paused" or (self._is_paused and kind != "resumed")
        self._moved_at = self._clock()

    def reason_to_end(self) -> str:
        """Why the training process should be ended now; empty: it should not."""
        now = self._clock()
        if now - self._ticked_at > _STOPPED_S or self._is_paused:
            self._moved_at += now - self._ticked_at
        self._ticked_at = now
        if self._kills and now - self._moved_at > self._limit_s:
            return f"no step for more than {self._limit_s:g} s (extras.no_progress says: kill)"
        return ""


def policy_problems(extras: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with `no_progress` and `no_progress_s`."""
    policy, limit = extras.get("no_progress") or POLICIES[0], extras.get("no_progress_s")
    if policy not in POLICIES:
        yield Problem("extras.no_progress", f"expected {' or '.join(POLICIES)}, got {policy!r}")
    if limit is not None and (type(limit) not in (int, float) or limit <= 0):
        yield Problem("extras.no_progress_s", f"expected a number of seconds above 0, got {limit!r}")
