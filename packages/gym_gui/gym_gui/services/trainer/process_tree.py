"""Processes of a run: identities that are safe against pid reuse, and the whole process tree.

A run's tree is more than its children: processes that left the session, were adopted by init after a double fork, or
carry the run's mark in their environment belong to it as well.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mosaic_wire import env

from gym_gui.services.trainer.limits import shortage

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MARK_PREFIX = f"{env.MOSAIC_RUN_MARK}=".encode()
_HOME_PREFIX = f"{env.MOSAIC_HOME}=".encode()
_PIDFD_SIGNAL_PROCESS_GROUP = 4
"""Flag of pidfd_send_signal since Linux 6.9: signal the whole process group at once"""
_MAX_ROUNDS = 50
"""Scans for new processes of a tree that keeps forking"""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/<pid>/stat that are used here."""

    pid: int
    state: str
    ppid: int
    group: int
    session: int
    threads: int
    start_ticks: int
    resident_pages: int

    @property
    def has_exited(self) -> bool:
        """Return whether it is a zombie without threads (Z is also shown for a dead main thread with live siblings)."""
        return self.state in "ZX" and self.threads <= 1


ProcessTable = Mapping[int, ProcessStat]
"""Every process of this machine by pid, at one moment"""


def read_stat(pid: int) -> ProcessStat | None:
    """Return the stat of a process, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            line = stream.read()
    except OSError as error:
        if shortage(error):
            raise  # an unreadable process must not count as missing
        return None
    # The command name is in parentheses and may itself hold spaces and parentheses.
    fields = line[line.rfind(b")") + 2 :].split()
    if len(fields) < 22:
        return None
    return ProcessStat(
        pid=pid,
        state=fields[0].decode(),
        ppid=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        resident_pages=int(fields[21]),
    )


def read_process_table() -> ProcessTable:
    """Return every process; those that start or exit meanwhile may be missing."""
    table: dict[int, ProcessStat] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (stat := read_stat(int(name))) is not None:
            table[stat.pid] = stat
    return table


@cache
def boot_id() -> str:
    """Return the id of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id") as stream:
        return stream.read().strip()


@cache
def pid_namespace() -> str:
    """Return the id of the PID namespace of this process."""
    return os.readlink("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, distinct from later ones with the same pid and from those of other containers."""

    pid: int
    start_ticks: int
    boot_id: str
    namespace: str = field(default_factory=pid_namespace)

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the process that has this pid now, zombies included."""
        stat = read_stat(pid)
        return None if stat is None else cls.from_stat(stat)

    @classmethod
    def from_stat(cls, stat: ProcessStat) -> ProcessIdentity:
        """Return the identity of the process with this stat."""
        return cls(stat.pid, stat.start_ticks, boot_id())

    @property
    def is_of_this_machine(self) -> bool:
        """Return whether its pid is valid here: the same boot and the same PID namespace."""
        return self.boot_id == boot_id() and self.namespace == pid_namespace()

    def stat(self) -> ProcessStat | None:
        """Return its stat now, or None when the pid is free or was reused."""
        if not self.is_of_this_machine:
            return None
        stat = read_stat(self.pid)
        return stat if stat is not None and stat.start_ticks == self.start_ticks else None

    def is_alive(self) -> bool:
        """Return whether the process exists; a zombie does not count."""
        stat = self.stat()
        return stat is not None and not stat.has_exited


def process_state(pid: int) -> str | None:
    """Return the state letter (R, S, D, T, Z …), or None when there is no such process."""
    stat = read_stat(pid)
    return None if stat is None else stat.state


def elapsed_s(identity: ProcessIdentity) -> float:
    """Return the seconds since it started, suspend included, unaffected by clock changes."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - identity.start_ticks / _TICKS_PER_SECOND)


def read_mark(pid: int) -> str | None:
    """Return the run mark in this process's environment; None when it has none or may not be read."""
    return _read_variable(pid, _MARK_PREFIX)


def read_home(pid: int) -> Path | None:
    """Return the MOSAIC home in this process's environment; None when it has none or may not be read."""
    found = _read_variable(pid, _HOME_PREFIX)
    return Path(found) if found else None


def _read_variable(pid: int, prefix: bytes) -> str | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            environment = stream.read()
    except OSError as error:
        if shortage(error):
            raise
        return None
    for variable in environment.split(b"\0") if prefix in environment else ():
        if variable.startswith(prefix):
            return variable[len(prefix) :].decode(errors="replace")
    return None


def marked_processes(
    mark: str, *, table: ProcessTable | None = None, not_before: int = 0, known: Collection[int] = ()
) -> list[ProcessIdentity]:
    """Return every live process with this mark in its environment, oldest first.

    `known` processes and those started before `not_before` (in ticks) are skipped. This also avoids waiting: the
    environment of a process that forks all the time is locked most of the time.
    """
    if not mark:
        return []
    table = read_process_table() if table is None else table
    found = [
        stat
        for stat in table.values()
        if stat.start_ticks >= not_before
        and stat.pid not in known
        and not stat.has_exited
        and read_mark(stat.pid) == mark
    ]
    found.sort(key=lambda stat: (stat.start_ticks, stat.pid))
    return [ProcessIdentity.from_stat(stat) for stat in found]


def tree_of(
    identity: ProcessIdentity | None,
    mark: str,
    *,
    members: Iterable[int | ProcessIdentity] = (),
    table: ProcessTable | None = None,
) -> list[ProcessIdentity]:
    """Return every live process of a run, its leader first, then by age.

    These are the leader, its session, all processes with the mark, `members` (from a control group or an earlier
    scan), and all their descendants. The session counts only while the leader exists, if only as a zombie: after
    that, its id may have been reused.
    """
    table = read_process_table() if table is None else table
    found: set[int] = set()
    not_before = 0
    if identity is not None and identity.is_of_this_machine:
        not_before = identity.start_ticks
        leader = table.get(identity.pid)
        if leader is not None and leader.start_ticks == identity.start_ticks:
            found.add(leader.pid)
            # Only a session leader's pid names a session; a plain child shares its parent's.
            found.update(stat.pid for stat in table.values() if stat.session == leader.pid)
    found.update(_pids_of_members(members, table))
    _add_descendants(found, table)
    if marked := marked_processes(mark, table=table, not_before=not_before, known=found):
        found.update(process.pid for process in marked)
        _add_descendants(found, table)
    found -= {os.getpid(), 1}  # the daemon and init are never workers, whatever their environment contains
    alive = [table[pid] for pid in found if pid in table and not table[pid].has_exited]
    first = -1 if identity is None else identity.pid
    alive.sort(key=lambda stat: (stat.pid != first, stat.start_ticks, stat.pid))
    return [ProcessIdentity.from_stat(stat) for stat in alive]


def _pids_of_members(members: Iterable[int | ProcessIdentity], table: ProcessTable) -> Iterable[int]:
    for member in members:
        if isinstance(member, int):
            yield member
        elif (stat := table.get(member.pid)) is not None and stat.start_ticks == member.start_ticks:
            yield member.pid


def _add_descendants(found: set[int], table: ProcessTable) -> None:
    children: dict[int, list[int]] = {}
    for stat in table.values():
        children.setdefault(stat.ppid, []).append(stat.pid)
    waiting = list(found)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)


def send_signal(identity: ProcessIdentity, signal_number: int, *, whole_group: bool = False) -> bool:
    """Signal this process, never a later owner of its pid; return False when it has exited or may not be signaled.

    `whole_group`: if it leads a session, signal its process group at once where the kernel supports that (a fork bomb
    is faster than any list of pids); otherwise only the process.
    """
    try:
        descriptor = os.pidfd_open(identity.pid)
    except OSError as error:
        if shortage(error):
            raise
        return False
    try:
        # The descriptor is opened first: if the identity matches now, it refers to the right process from then on.
        stat = identity.stat()
        if stat is None:
            return False
        if whole_group and stat.session == stat.group == stat.pid:
            try:
                signal.pidfd_send_signal(descriptor, signal_number, None, _PIDFD_SIGNAL_PROCESS_GROUP)
            except OSError:
                pass  # EINVAL before Linux 6.9
            else:
                return True
        signal.pidfd_send_signal(descriptor, signal_number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def signal_all(find: Callable[[], Sequence[ProcessIdentity]], signal_number: int) -> list[ProcessIdentity]:
    """Signal all processes that `find` returns, repeat until it returns no new ones, and return them all.

    With SIGSTOP this catches a tree that keeps forking: a stopped process starts no more children.
    """
    signaled: dict[ProcessIdentity, None] = {}
    for _ in range(_MAX_ROUNDS):
        new = [identity for identity in find() if identity not in signaled]
        if not new:
            break
        for identity in new:
            send_signal(identity, signal_number, whole_group=True)
        signaled.update(dict.fromkeys(new))
    return list(signaled)


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """The resource usage of a run's processes together."""

    memory_bytes: int
    processes: int
    threads: int


def measure(members: Iterable[ProcessIdentity], table: ProcessTable, *, shared_once: bool = False) -> TreeUsage:
    """Return the total usage of these processes.

    Memory is the sum of resident sizes, which counts shared pages once per process; `shared_once` counts proportional
    shares instead, for which the kernel has to walk every page table.
    """
    stats = [table[identity.pid] for identity in members if identity.pid in table]
    memory = sum((shared_once and _proportional_bytes(stat.pid)) or stat.resident_pages * PAGE_BYTES for stat in stats)
    return TreeUsage(memory_bytes=memory, processes=len(stats), threads=sum(stat.threads for stat in stats))


def _proportional_bytes(pid: int) -> int:
    import psutil  # imported late: clients that only compare identities start faster without it

    try:
        size: int = psutil.Process(pid).memory_full_info().pss
    except (psutil.Error, OSError):
        return 0
    return size
