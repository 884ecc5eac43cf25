"""What the dispatcher knows of an executor: start a worker, find it again, watch it, end it with all it started."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gym_gui.services.trainer.process_tree import ProcessIdentity, TreeUsage

__all__ = ["Executor", "Launch", "TreeUsage", "WorkerHandle"]


@dataclass(frozen=True)
class Launch:
    """One attempt of a run, ready to be started."""

    run_id: str
    attempt: int
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    """The whole environment; it holds secrets, so it is never printed"""
    cwd: Path
    stdout: Path
    stderr: Path
    mark: str
    memory_mb: int | None = None
    max_processes: int = 4096
    """Processes and threads of the whole tree"""
    cpus: float = 1.0
    """Its weight when CPUs are scarce; not a ceiling"""


class WorkerHandle(Protocol):
    """A worker and everything it started."""

    @property
    def identity(self) -> ProcessIdentity: ...

    @property
    def mark(self) -> str: ...

    async def wait(self) -> int | None:
        """Wait for the worker's own end: its exit code, negative for a signal, None when it is not our child."""
        ...

    async def stop_tree(self, grace_s: float, *, first_signal: int = signal.SIGTERM) -> bool:
        """End the whole tree: ask, wait, kill; True when verified that nothing is left."""
        ...

    def signal_tree(self, signal_number: int) -> int:
        """Signal every process of the tree; return how many there were."""
        ...

    def is_stopped(self) -> bool:
        """Tell whether the worker stands still (SIGSTOP)."""
        ...

    @property
    def is_limited(self) -> bool:
        """Whether limits are enforced without anybody asking; otherwise `limit_hit` wants to be asked often."""
        ...

    def usage(self) -> TreeUsage: ...

    def elapsed_s(self) -> float: ...

    def limit_hit(self) -> str | None:
        """Say which limit the tree ran into, or None."""
        ...

    def close(self) -> None:
        """Let go of it; a living worker lives on."""
        ...


class Executor(Protocol):
    """Where workers run."""

    async def submit(self, launch: Launch) -> WorkerHandle:
        """Start the worker; SpawnFailed with a sentence when that is not possible."""
        ...

    async def attach(
        self,
        identity: ProcessIdentity | None,
        mark: str,
        *,
        memory_mb: int | None = None,
        max_processes: int = 4096,
        output: Path | None = None,
    ) -> WorkerHandle | None:
        """Take over a worker an earlier daemon started; None when nothing of its tree is left.

        `output`: where its stdout goes, given when it may run in another container, where nobody here sees it.
        """
        ...

    def find(self, mark: str) -> ProcessIdentity | None:
        """Return the worker with this mark, or what is left of its tree; None: nothing was started, or all is gone."""
        ...

    def close(self) -> None: ...
