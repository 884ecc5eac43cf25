"""What an executor does for the daemon, whatever engine is behind it (docs/adr/0008)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gym_gui.services.trainer.launch import Launch
from gym_gui.services.trainer.process_tree import ProcessIdentity, TreeUsage, pid_namespace

NO_PROCESS = ProcessIdentity(0, 0, "")
"""Stands for a process that is not of this machine, or was never seen"""


@dataclass(frozen=True)
class EngineEnding:
    """Why the engine, not the worker, ended an attempt."""

    reason: str
    kind: str = ""
    """One of INTERRUPTIONS (`records`), after which the run is queued again; empty: a fault like others"""


@dataclass(frozen=True)
class Attempt:
    """What the registry has stored of an attempt that an earlier daemon claimed."""

    run_id: str
    mark: str
    stdout: Path
    identity: ProcessIdentity | None = None
    """The process that was stored, if any"""
    job_id: str = ""
    """The engine's job that was stored, if any"""
    pid_namespace: str = ""
    memory_mb: int | None = None
    max_processes: int = 4096

    @property
    def is_in_other_container(self) -> bool:
        """Return whether it was started in another PID namespace, whose processes are invisible here."""
        return self.pid_namespace not in ("", pid_namespace())


@dataclass(eq=False)
class Worker:
    """A worker's process tree. This base class stands for one that has ended and left no process."""

    identity: ProcessIdentity
    mark: str
    """The run mark in the environment of its processes"""
    job_id: str = field(default="", kw_only=True)
    """The engine's job; empty on this machine"""

    # -- while it waits in its engine's queue

    async def started(self) -> None:
        """Wait until the engine reports that it has started it."""

    @property
    def waits_for(self) -> str:
        """Return why the engine has not started it yet, in the engine's words."""
        return ""

    @property
    def node(self) -> str:
        """Return the node it runs on; empty for this machine."""
        return ""

    # -- its end

    async def wait(self) -> int | None:
        """Wait for the worker's exit and return its code: negative for a signal, None if it is not known."""
        return None

    async def stop_tree(self, grace_s: float) -> bool:
        """Terminate the tree, wait, then kill it; return whether no process is left."""
        return True

    @property
    def engine_ending(self) -> EngineEnding | None:
        """Return why the engine ended it, if it did."""
        return None

    # -- its life

    async def pause_tree(self) -> None:
        """Stop every process of the tree (SIGSTOP)."""

    async def continue_tree(self) -> None:
        """Continue every process of the tree (SIGCONT)."""

    def is_stopped(self) -> bool:
        """Return whether the worker is stopped (SIGSTOP)."""
        return False

    @property
    def is_limited(self) -> bool:
        """Return whether others enforce the limits (the kernel, a node); otherwise `limit_hit` has to be polled."""
        return True

    def usage(self) -> TreeUsage:
        """Measure the tree now."""
        return TreeUsage(0, 0, 0)

    def elapsed_s(self) -> float:
        """Return the seconds since the worker started, unaffected by clock changes."""
        return 0.0

    def limit_hit(self) -> str | None:
        """Return which limit the tree has ever reached, or None."""
        return None

    def close(self) -> None:
        """Release the handle; a running worker keeps running."""


@dataclass(frozen=True)
class Node:
    """A machine that runs workers."""

    name: str
    state: str
    cpus: float
    cpus_free: float
    memory_mb: int
    gpus: int = 0
    gpus_free: int = 0


@dataclass(frozen=True)
class Machines:
    """What an executor has, and who waits for it."""

    nodes: tuple[Node, ...] = ()
    pending: int = 0
    """Jobs of all users that wait in the engine's queue"""
    problem: str = ""
    """Why the engine does not answer"""


class Executor(Protocol):
    """Starts workers and finds them again."""

    type: str
    """`local`, `slurm`"""
    max_submitted: int
    """Runs that the daemon hands over before the first of them ends; 0: as many as this machine's resources allow"""

    def trouble(self) -> str:
        """Return why no run can be handed over now, or an empty text."""
        ...

    async def submit(self, launch: Launch) -> Worker:
        """Start the worker, or queue it in the engine, exactly once.

        Raise SpawnFailed if that can never work, EngineUnavailable if it may work later.
        """
        ...

    async def attach(self, attempt: Attempt) -> Worker | None:
        """Return the worker of an earlier daemon, or None if no process is left of it.

        None also means that none will come: a submission whose answer was lost is found by its mark, or withdrawn.
        """
        ...

    async def machines(self) -> Machines:
        """Return the nodes and the queue."""
        ...

    def close(self) -> None:
        """Release what the executor holds; workers keep running."""
        ...
