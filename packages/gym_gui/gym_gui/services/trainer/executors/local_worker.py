"""A worker process on this machine: watched through a pidfd, ended together with everything it started."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from contextlib import suppress

from gym_gui.services.trainer.cgroups import AttemptGroup
from gym_gui.services.trainer.process_tree import (
    ProcessIdentity,
    ProcessTable,
    TreeUsage,
    elapsed_s,
    measure,
    read_process_table,
    read_stat,
    send_signal,
    signal_everyone,
    tree_of,
)

logger = logging.getLogger(__name__)

_KILL_TIMEOUT_S = 15.0
"""A process that SIGKILL did not end by then hangs in the kernel (a dead network disk)."""


class LocalWorker:
    """A worker process and everything it started.

    An ended child stays a zombie until `stop_tree` or `close`: as long as its pid is taken, its session's number
    cannot come to mean somebody else's.
    """

    def __init__(
        self,
        identity: ProcessIdentity,
        mark: str,
        *,
        pidfd: int | None,
        group: AttemptGroup | None,
        memory_mb: int | None,
        max_processes: int,
    ) -> None:
        self.identity = identity
        self.mark = mark
        self._pidfd = pidfd
        self._group = group
        self._memory_mb = memory_mb
        self._max_processes = max_processes
        self._known: tuple[ProcessIdentity, ...] = ()
        self._limit_hit: str | None = None
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int | None] = self._loop.create_future()
        if pidfd is None:
            self._exit.set_result(None)
        else:
            self._loop.add_reader(pidfd, self._on_exit, pidfd)

    # -- its end

    def _on_exit(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        if not self._exit.done():
            self._exit.set_result(_exit_code(pidfd))

    async def wait(self) -> int | None:
        """Wait for the worker's own end: its exit code, negative for a signal, None when it is not our child."""
        return await asyncio.shield(self._exit)

    async def stop_tree(self, grace_s: float, *, first_signal: int = signal.SIGTERM) -> bool:
        """End the whole tree: ask, wait for `grace_s`, kill; True when verified that nothing is left.

        After a normal exit this sweeps up what the worker left behind.
        """
        deadline = time.monotonic() + grace_s
        asked: set[ProcessIdentity] = set()
        if not await asyncio.to_thread(self._ask, first_signal, asked):
            self._reap()
            return True
        pause_s = 0.01
        while (left := deadline - time.monotonic()) > 0 and await asyncio.to_thread(self._is_anybody_left):
            with suppress(TimeoutError):
                # Wakes up early when the worker ends; what it leaves is looked at again and again.
                await asyncio.wait_for(self._pause_unless_ended(pause_s), min(pause_s, left))
            pause_s = min(pause_s * 1.5, 0.25)
            if self._exit.done():
                # Born after the first look: they have not been asked yet, and nobody else will.
                await asyncio.to_thread(self._ask, first_signal, asked)
        gone = await asyncio.to_thread(self._kill_until_gone, time.monotonic() + _KILL_TIMEOUT_S)
        if gone:
            self._reap()
        else:
            logger.error("run mark %s: processes are left that SIGKILL does not end", self.mark)
        return gone

    def _is_anybody_left(self) -> bool:
        return bool(self._tree())

    async def _pause_unless_ended(self, pause_s: float) -> None:
        if self._exit.done():
            await asyncio.sleep(pause_s)
        else:
            await self.wait()

    def _ask(self, signal_number: int, asked: set[ProcessIdentity]) -> bool:
        """Signal everybody who has not been asked; False when nobody is there."""
        if self._group is not None:
            self._group.thaw()
        tree = self._tree()
        for member in tree:
            if member not in asked:
                asked.add(member)
                send_signal(member, signal_number)
                send_signal(member, signal.SIGCONT)  # a stopped process hears SIGTERM only once it goes on
        return bool(tree)

    def _kill_until_gone(self, deadline: float) -> bool:
        pause_s = 0.002
        # A fork bomb without a group is stopped by one call before anybody tries to list it.
        send_signal(self.identity, signal.SIGSTOP, whole_group=True)
        while self._tree():
            if time.monotonic() > deadline:
                return False
            if self._group is not None:
                self._group.freeze()
            try:
                # First everybody stands still, so that nobody has children while we go through the list.
                members = signal_everyone(self._tree, signal.SIGSTOP)
                send_signal(self.identity, signal.SIGKILL, whole_group=True)
                for member in members:
                    send_signal(member, signal.SIGKILL)
            finally:
                if self._group is not None:
                    self._group.thaw()
            self._reap_adopted(members)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.1)
        return True

    def _reap_adopted(self, members: list[ProcessIdentity]) -> None:
        """Reap orphans of the tree that became ours because the daemon is the init of a container."""
        for member in members:
            stat = member.stat()
            if stat is not None and stat.is_gone and stat.ppid == os.getpid() and member != self.identity:
                with suppress(ChildProcessError):
                    os.waitpid(member.pid, os.WNOHANG)

    def _reap(self) -> None:
        if self._pidfd is None:
            return
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)

    # -- its life

    def _tree(self, table: ProcessTable | None = None) -> list[ProcessIdentity]:
        inside = self._group.pids() if self._group is not None else ()
        tree = tree_of(self.identity, self.mark, members=[*self._known, *inside], table=table)
        self._known = tuple(tree)
        return tree

    def signal_tree(self, signal_number: int) -> int:
        """Signal every process of the tree; return how many there were."""
        if signal_number == signal.SIGSTOP:
            return len(signal_everyone(self._tree, signal_number))
        return sum(send_signal(member, signal_number) for member in self._tree())

    def is_stopped(self) -> bool:
        """Tell whether the worker stands still (SIGSTOP); when it is gone, whether all it left do."""
        stat = self.identity.stat()
        if stat is not None and not stat.is_gone:
            return stat.state in "Tt"
        states = [stat.state for member in self._tree() if (stat := read_stat(member.pid)) is not None]
        return bool(states) and all(state in "Tt" for state in states)

    @property
    def is_limited(self) -> bool:
        """Whether the kernel enforces every limit; otherwise `limit_hit` measures, and wants to be asked often."""
        group = self._group
        if group is None or group.process_limit is None:
            return False
        return self._memory_mb is None or group.memory_limit_mb is not None

    def usage(self) -> TreeUsage:
        """Measure the tree now."""
        if self._group is not None:
            memory, threads = self._group.memory_bytes(), self._group.task_count()
            if memory is not None and threads is not None:
                return TreeUsage(memory, len(self._group.pids()), threads)
        table = read_process_table()
        usage = measure(tree := self._tree(table), table)
        if self._memory_mb is not None and usage.processes > 1 and usage.memory_bytes > self._memory_mb << 20:
            # Forked processes share pages; the cheap sum must not condemn them.
            usage = measure(tree, table, shared_once=True)
        return usage

    def elapsed_s(self) -> float:
        """Return how long ago the worker started, whatever the wall clock did since."""
        return elapsed_s(self.identity)

    def limit_hit(self) -> str | None:
        """Say which limit the tree ran into, or None; once hit, it stays hit."""
        if self._limit_hit is None:
            self._limit_hit = self._find_limit_hit()
        return self._limit_hit

    def _find_limit_hit(self) -> str | None:
        group = self._group
        if group is not None and (hit := group.limit_hit()) is not None:
            return hit
        if self.is_limited:
            return None
        usage = self.usage()
        if self._memory_mb is not None and usage.memory_bytes > self._memory_mb << 20:
            return f"it uses {usage.memory_bytes >> 20} MB of memory, more than its limit of {self._memory_mb} MB"
        if usage.threads > self._max_processes:
            return f"it has {usage.threads} processes and threads, more than its limit of {self._max_processes}"
        return None

    def close(self) -> None:
        """Let go of it: reap it if it ended, remove its empty group; a living worker lives on."""
        if self._group is not None:
            self._limit_hit = self._limit_hit or self._group.limit_hit()
            if not self._group.pids():
                self._group.remove()
            self._group = None
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            self._reap()
            os.close(self._pidfd)
            self._pidfd = None
        if not self._exit.done():
            self._exit.cancel()


def _exit_code(pidfd: int) -> int | None:
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None  # an earlier daemon's child, or somebody reaped it before us
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
