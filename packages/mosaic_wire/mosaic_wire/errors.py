"""Errors of the wire package.

WireError
├── InvalidRunId           a run id is not a ULID
├── ConfigProblems         a config document is wrong in one or more places
├── SpecError              a worker description cannot be used
├── DamagedCheckpoint      a checkpoint is not what was written
├── ChildRunRefused        the daemon refused a run that a worker submitted
├── GivenUp                a run failed in a way that would repeat
└── SessionError           the worker cannot talk to its daemon
    ├── RegistrationRefused   the daemon refused this worker
    └── SessionStopped        SIGTERM came before the daemon answered
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class WireError(Exception):
    """Root of the expected errors of this package."""


class InvalidRunId(WireError, ValueError):
    """A run id is not a ULID and must not be used in a path."""

    def __init__(self, text: object) -> None:
        super().__init__(
            f"{str(text)[:80]!r} is not a run id: expected a ULID, 26 characters of 0-9 and A-Z without I, L, O, U"
        )


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a document: where, what was expected, and the nearest valid name."""

    path: str
    message: str
    suggestion: str | None = None

    def __str__(self) -> str:
        hint = f" Did you mean {self.suggestion!r}?" if self.suggestion else ""
        return f"{self.path or '(top level)'}: {self.message}{hint}"


class ConfigProblems(WireError, ValueError):
    """Every problem of a document at once."""

    def __init__(self, what: str, problems: Sequence[Problem]) -> None:
        self.what = what
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"{what} has {count}:", *(f"  {problem}" for problem in self.problems)]))


class SpecError(WireError):
    """A worker's description is missing or cannot be used."""


class DamagedCheckpoint(WireError, ValueError):
    """A checkpoint was changed after it was written and must not be used."""


class GivenUp(WireError):
    """A run failed in a way that would repeat, so that a retry is pointless; the message is the reason."""


class SessionError(WireError):
    """The worker cannot reach its daemon."""


class RegistrationRefused(SessionError):
    """The daemon refused this worker."""


class TelemetryRefused(WireError):
    """The daemon refused this run's steps or episodes."""


class ChildRunRefused(WireError):
    """The daemon refused a request of a worker that submits runs."""

    def __init__(self, message: str, code: object = None) -> None:
        super().__init__(message)
        self.code = code
        """gRPC's status code"""


class SessionStopped(SessionError):
    """The worker was asked to stop before the daemon answered."""
