"""Processes as the kernel sees them: identities that survive pid reuse, and everything that belongs to a run.

A run's tree is more than its children: whoever left the session, was adopted by init after a double fork, or carries
the run's mark in its environment belongs to it as well.
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
"""Flag of pidfd_send_signal since Linux 6.9: the whole process group, in one go."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One line of /proc/<pid>/stat, the fields that matter here."""

    pid: int
    state: str
    ppid: int
    group: int
    session: int
    threads: int
    start_ticks: int
    resident_pages: int

    @property
    def is_gone(self) -> bool:
        """A zombie has nothing left to run. (A dead main thread with living siblings also shows Z, but counts them.)"""
        return self.state in "ZX" and self.threads <= 1


ProcessTable = Mapping[int, ProcessStat]
"""Every process of this machine by pid, at one moment."""


def read_stat(pid: int) -> ProcessStat | None:
    """Read one process; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            line = stream.read()
    except OSError as error:
        if shortage(error):
            raise  # whoever cannot look must not say that nobody is there
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
    """Read every process once; what is born or dies meanwhile may be missing."""
    table: dict[int, ProcessStat] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (stat := read_stat(int(name))) is not None:
            table[stat.pid] = stat
    return table


@cache
def boot_id() -> str:
    """Return what tells this boot of the machine from every other."""
    with open("/proc/sys/kernel/random/boot_id") as stream:
        return stream.read().strip()


@cache
def pid_namespace() -> str:
    """Return what tells the pids that this process sees from those of a container, or of the host around it."""
    return os.readlink("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same pid, nor for one of another container."""

    pid: int
    start_ticks: int
    boot_id: str
    namespace: str = field(default_factory=pid_namespace)

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return who has this pid now, zombies included."""
        stat = read_stat(pid)
        return None if stat is None else cls.from_stat(stat)

    @classmethod
    def from_stat(cls, stat: ProcessStat) -> ProcessIdentity:
        return cls(stat.pid, stat.start_ticks, boot_id())

    @property
    def is_of_this_machine(self) -> bool:
        """Whether its pid means something here: the same boot, the same container."""
        return self.boot_id == boot_id() and self.namespace == pid_namespace()

    def stat(self) -> ProcessStat | None:
        """Return its state now, or None when the pid is free or somebody else's."""
        if not self.is_of_this_machine:
            return None
        stat = read_stat(self.pid)
        return stat if stat is not None and stat.start_ticks == self.start_ticks else None

    def is_alive(self) -> bool:
        """Tell whether it still runs or could; a zombie counts as gone."""
        stat = self.stat()
        return stat is not None and not stat.is_gone


def process_state(pid: int) -> str | None:
    """Return the state letter (R, S, D, T, Z …), or None when there is no such process."""
    stat = read_stat(pid)
    return None if stat is None else stat.state


def elapsed_s(identity: ProcessIdentity) -> float:
    """Return how long ago it started; time asleep counts, changes of the wall clock do not."""
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
    """Return every living process with this mark in its environment, oldest first.

    Not looked at are `known` ones and those started earlier than `not_before` (in ticks), who cannot have it. Besides
    time this saves waiting: the environment of a process that forks all the time is locked most of the time.
    """
    if not mark:
        return []
    table = read_process_table() if table is None else table
    found = [
        stat
        for stat in table.values()
        if stat.start_ticks >= not_before and stat.pid not in known and not stat.is_gone and read_mark(stat.pid) == mark
    ]
    found.sort(key=lambda stat: (stat.start_ticks, stat.pid))
    return [ProcessIdentity.from_stat(stat) for stat in found]


def session_leader(mark: str, *, table: ProcessTable | None = None) -> ProcessIdentity | None:
    """Return the oldest session leader with this mark; when it is gone, the oldest process that has the mark."""
    table = read_process_table() if table is None else table
    marked = marked_processes(mark, table=table)
    leaders = (identity for identity in marked if table[identity.pid].session == identity.pid)
    return next(leaders, marked[0] if marked else None)


def tree_of(
    identity: ProcessIdentity | None,
    mark: str,
    *,
    members: Iterable[int | ProcessIdentity] = (),
    table: ProcessTable | None = None,
) -> list[ProcessIdentity]:
    """Return every living process of a run, its leader first, then by age.

    These are the leader, its session, whoever has the mark, `members` (known from elsewhere: a control group, an
    earlier look), and all their descendants. The session counts only while the leader's pid is still its own, be it
    as a zombie: after that the number may have become a stranger's.
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
    found.update(_pids_still_theirs(members, table))
    _add_descendants(found, table)
    if marked := marked_processes(mark, table=table, not_before=not_before, known=found):
        found.update(process.pid for process in marked)
        _add_descendants(found, table)
    found -= {os.getpid(), 1}  # whatever an environment says, the daemon and init are nobody's workers
    alive = [table[pid] for pid in found if pid in table and not table[pid].is_gone]
    first = -1 if identity is None else identity.pid
    alive.sort(key=lambda stat: (stat.pid != first, stat.start_ticks, stat.pid))
    return [ProcessIdentity.from_stat(stat) for stat in alive]


def _pids_still_theirs(members: Iterable[int | ProcessIdentity], table: ProcessTable) -> Iterable[int]:
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
    """Signal exactly this process, never a later owner of its pid; False when it is gone or not ours to signal.

    `whole_group`: if it leads a session, its process group in one go where the kernel can (a fork bomb is faster than
    any list of pids); else just itself.
    """
    try:
        descriptor = os.pidfd_open(identity.pid)
    except OSError as error:
        if shortage(error):
            raise
        return False
    try:
        # The descriptor is taken first: if the numbers match now, it is the right process for good.
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


def signal_everyone(
    look: Callable[[], Sequence[ProcessIdentity]], signal_number: int, *, max_rounds: int = 50
) -> list[ProcessIdentity]:
    """Signal all that `look` finds, and look again until nobody new turns up; return whom it found.

    With SIGSTOP this pins down a tree that keeps forking: whoever stands still has no more children.
    """
    signalled: dict[ProcessIdentity, None] = {}
    for _ in range(max_rounds):
        new = [identity for identity in look() if identity not in signalled]
        if not new:
            break
        for identity in new:
            send_signal(identity, signal_number, whole_group=True)
        signalled.update(dict.fromkeys(new))
    return list(signalled)


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """What a run's processes use together."""

    memory_bytes: int
    processes: int
    threads: int


def measure(members: Iterable[ProcessIdentity], table: ProcessTable, *, shared_once: bool = False) -> TreeUsage:
    """Add up what these processes use.

    Memory is the sum of resident sizes, which counts shared pages once per process; `shared_once` divides them
    fairly, at the price of the kernel walking every page table.
    """
    stats = [table[identity.pid] for identity in members if identity.pid in table]
    memory = sum((shared_once and _proportional_bytes(stat.pid)) or stat.resident_pages * PAGE_BYTES for stat in stats)
    return TreeUsage(memory_bytes=memory, processes=len(stats), threads=sum(stat.threads for stat in stats))


def _proportional_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as stream:
            for line in stream:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
