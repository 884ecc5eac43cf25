"""Errors of the trainer, and the gRPC status each becomes.

TrainerError
├── InvalidTransition      an event that cannot happen in this state
├── StaleRun               another caller changed the run first (compare-and-swap lost)
├── RunNotFound
├── AmbiguousRunId         an abbreviation or a name fits several runs
├── InvalidConfig          a submitted config has problems (all of them listed)
├── UnknownWorker          no worker of this name is installed
├── SecretStoreError       secrets cannot be kept or read back
├── NotPossibleNow         a request that this run's state does not allow
├── NotAllowed             wrong or missing token
├── SpawnFailed            the worker process could not be started
├── EngineUnavailable      an executor's engine does not answer now
├── RegistryError          the database cannot be used
│   ├── RegistryTooNew     written by a newer MOSAIC
│   └── RegistryUnwritable disk full, read-only, damaged
├── HomeInUse              another daemon serves this home
├── ListenFailed           the address is busy or not allowed
├── ArchiveRefused         an archive that must not be unpacked
└── DaemonUnreachable      (client) no answer
"""

from __future__ import annotations

from collections.abc import Sequence

from mosaic_wire.errors import Problem


class TrainerError(Exception):
    """Root of the expected errors of the trainer; their messages are shown to the user."""


class InvalidTransition(TrainerError):
    """An event that cannot happen in this state."""

    def __init__(self, run_id: str, status: str, event: str) -> None:
        self.run_id, self.status, self.event = run_id, status, event
        super().__init__(f"run {run_id}: event {event!r} cannot happen in state {status}")


class StaleRun(TrainerError):
    """The run changed between reading and writing it."""

    def __init__(self, run_id: str, expected: str, found: str) -> None:
        self.run_id, self.expected, self.found = run_id, expected, found
        super().__init__(f"run {run_id} is {found} by now, not {expected}; check its state and try again")


class RunNotFound(TrainerError):
    """No run has this id."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"there is no run {run_id!r}; `mosaic runs --all` lists them")


class AmbiguousRunId(TrainerError):
    """An abbreviated id or a name matches several runs."""

    def __init__(self, prefix: str, matches: Sequence[str], count: int = 0) -> None:
        self.prefix, self.matches = prefix, tuple(matches)
        count = count or len(self.matches)
        shown = ", ".join(self.matches[:5]) + (" …" if count > 5 else "")
        super().__init__(f"{prefix!r} matches {count} runs: {shown}; give more of its id")


class InvalidConfig(TrainerError):
    """A submitted run config has problems; all of them are in `problems`."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"the run config has {count}:", *(f"  {problem}" for problem in self.problems)]))


class UnknownWorker(TrainerError):
    """No worker of this name is installed; `suggestion` is the nearest one that is."""

    def __init__(self, name: str, suggestion: str | None = None) -> None:
        self.name, self.suggestion = name, suggestion
        hint = f", did you mean {suggestion!r}?" if suggestion else ";"
        super().__init__(f"there is no worker {name[:80]!r}{hint} `mosaic workers` lists them")


class SecretStoreError(TrainerError):
    """Secrets cannot be stored or read; the message states where and a remedy."""


class NotPossibleNow(TrainerError):
    """The run's state does not allow the request; the message states why and a remedy."""


class NotAllowed(TrainerError):
    """A token is missing, wrong, or another run's."""


class SpawnFailed(TrainerError):
    """The worker process could not be started."""


class EngineUnavailable(TrainerError):
    """An executor's engine does not answer now; nothing was started, and a later try may work."""


class RegistryError(TrainerError):
    """The database cannot be used."""


class RegistryTooNew(RegistryError):
    """The database was written by a newer MOSAIC; it is left untouched."""


class RegistryUnwritable(RegistryError):
    """The database cannot be written now (disk full, read-only, damaged)."""


class HomeInUse(TrainerError):
    """Another daemon serves this home."""


class ListenFailed(TrainerError):
    """The daemon cannot or must not listen on this address."""


class ArchiveRefused(TrainerError):
    """An archive contains something that must not be unpacked; nothing was written."""


class DaemonUnreachable(TrainerError):
    """No daemon answers."""
