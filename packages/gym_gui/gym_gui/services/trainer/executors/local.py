"""Workers as processes of this machine: each in a session of its own, with output to files, outliving the daemon."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire.files import plain_file

from gym_gui.services.trainer.cgroups import AttemptGroup, Cgroups
from gym_gui.services.trainer.errors import SpawnFailed
from gym_gui.services.trainer.executors.base import Launch
from gym_gui.services.trainer.executors.gone import DistantWorker, is_held
from gym_gui.services.trainer.executors.local_worker import LocalWorker
from gym_gui.services.trainer.limits import StartedThreads, shortage, usual_limits
from gym_gui.services.trainer.process_tree import (
    ProcessIdentity,
    read_process_table,
    send_signal,
    session_leader,
    tree_of,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Started:
    identity: ProcessIdentity
    pidfd: int
    group: AttemptGroup | None


class LocalExecutor:
    """Starts, finds and re-attaches workers on this machine."""

    def __init__(self, *, use_cgroups: bool = True, cgroups: Cgroups | None = None) -> None:
        self._cgroups = (cgroups or Cgroups.detect()) if use_cgroups else None
        # One thread of its own: it passes through control groups, which no other thread of the daemon should.
        self._spawner = StartedThreads(1, "spawn")

    @property
    def has_cgroups(self) -> bool:
        """Whether the kernel enforces limits; otherwise `limit_hit` measures the tree each time it is asked."""
        return self._cgroups is not None

    async def submit(self, launch: Launch) -> LocalWorker:
        """Start the worker; SpawnFailed with a sentence when that is not possible."""
        starting = asyncio.get_running_loop().run_in_executor(self._spawner, self._start, launch)
        try:
            started = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Nobody will hold the handle, so nobody may be left running.
            starting.add_done_callback(_abandon)
            raise
        return LocalWorker(
            started.identity,
            launch.mark,
            pidfd=started.pidfd,
            group=started.group,
            memory_mb=launch.memory_mb,
            max_processes=launch.max_processes,
        )

    async def attach(
        self,
        identity: ProcessIdentity | None,
        mark: str,
        *,
        memory_mb: int | None = None,
        max_processes: int = 4096,
        output: Path | None = None,
    ) -> LocalWorker | DistantWorker | None:
        """Take over a worker an earlier daemon started; None when nothing of its tree is left.

        When only the worker itself has ended, `wait` returns at once and `stop_tree` sweeps up what it left.
        `identity` None: not known; whoever has the mark is taken.
        """
        known = identity
        if output is not None:
            identity = None  # its pid means nothing here; its mark does when it runs in a container inside ours
        group, tree = await asyncio.to_thread(self._look_for, identity, mark)
        if group is not None:
            group.thaw()  # an earlier daemon may have died in the middle of a kill
        if not tree:
            if group is not None:
                group.remove()
            if output is not None and await asyncio.to_thread(is_held, output):
                return DistantWorker(known or ProcessIdentity(0, 0, ""), mark, output)
            return None
        leader = tree[0] if identity is None else identity
        return LocalWorker(
            leader,
            mark,
            pidfd=_open_pidfd(leader),
            group=group,
            memory_mb=memory_mb,
            max_processes=max_processes,
        )

    def _look_for(
        self, identity: ProcessIdentity | None, mark: str
    ) -> tuple[AttemptGroup | None, list[ProcessIdentity]]:
        # Without a mark nothing was ever started: the run faulted before that.
        group = self._cgroups.find(mark) if self._cgroups is not None and mark else None
        return group, tree_of(identity, mark, members=group.pids() if group is not None else ())

    def find(self, mark: str) -> ProcessIdentity | None:
        """Return the worker with this mark, or what is left of its tree; None: nothing was started, or all is gone."""
        if (leader := session_leader(mark)) is not None:
            return leader
        _, leftovers = self._look_for(None, mark)
        return leftovers[0] if leftovers else None

    def close(self) -> None:
        """End the executor's thread; workers live on."""
        self._spawner.shutdown()

    # -- in the spawner thread

    def _start(self, launch: Launch) -> _Started:
        group = self._make_group(launch)
        try:
            with _output_files(launch) as outputs:
                if group is None:
                    pid = _spawn(launch, launch.argv, outputs)
                elif group.is_v2:
                    pid, is_inside = _spawn_through_entrance(launch, group, outputs)
                    group = group if is_inside else None
                else:
                    pid, is_inside = _spawn_from_inside(launch, group, outputs)
                    group = group if is_inside else None
        except (OSError, ValueError, IndexError) as error:
            if group is not None:
                group.remove()
            raise SpawnFailed(_why_not_started(launch, error)) from error
        identity = ProcessIdentity.of(pid)
        assert identity is not None, "an unreaped child always has an entry in /proc"
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            _kill_and_reap(identity, group)
            raise SpawnFailed(f"the worker cannot be watched: {error.strerror}") from error
        if group is None:
            _limit_processes_of_user(pid, launch.max_processes)
        return _Started(identity, pidfd, group)

    def _make_group(self, launch: Launch) -> AttemptGroup | None:
        if self._cgroups is None:
            return None
        try:
            return self._cgroups.create(
                launch.mark, memory_mb=launch.memory_mb, max_processes=launch.max_processes, cpus=launch.cpus
            )
        except OSError as error:
            logger.info("run %s: no control group, its limits are polled: %s", launch.run_id, error)
            return None


def _spawn(launch: Launch, argv: Sequence[str], outputs: tuple[int, int], *, pass_fds: Sequence[int] = ()) -> int:
    # Never preexec_fn: it runs Python between fork and exec, which hangs or aborts beside gRPC's threads.
    process = subprocess.Popen(
        argv,
        env=dict(launch.env),
        cwd=launch.cwd,
        stdin=subprocess.DEVNULL,
        stdout=outputs[0],
        stderr=outputs[1],
        close_fds=True,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    # From here on its pidfd tells when it ends; subprocess must neither poll it nor complain about it.
    process.returncode = 0
    usual_limits(process.pid)
    return process.pid


def _spawn_from_inside(launch: Launch, group: AttemptGroup, outputs: tuple[int, int]) -> tuple[int, bool]:
    """Version 1: return the pid, and whether it is inside the group."""
    with ExitStack() as inside:
        try:
            inside.enter_context(group.entered_by_this_thread())
        except OSError as error:
            logger.info("run %s: its control group cannot be entered, its limits are polled: %s", launch.run_id, error)
            group.remove()
            return _spawn(launch, launch.argv, outputs), False
        return _spawn(launch, launch.argv, outputs), True


_ENTRANCE = """
import _signal, os, sys
report, group, program = int(sys.argv[1]), sys.argv[2], sys.argv[4:]
try:
    with open(group, "w") as procs: procs.write("0")
except OSError:
    os.write(report, b"outside ")
if sys.argv[3] == "-": os.environ.pop("LC_CTYPE", None)
for number in (_signal.SIGPIPE, _signal.SIGXFSZ): _signal.signal(number, _signal.SIG_DFL)
os.set_inheritable(report, False)
try:
    os.execvp(program[0], program)
except OSError as error:
    os.write(report, str(error.errno).encode())
os._exit(127)
"""
"""Version 2 moves only whole processes, so the worker steps inside itself, as somebody else, before it becomes itself.
Moving it afterwards is too late: that takes the kernel milliseconds, in which a fork bomb has gone off outside. What
an interpreter does to its own signals and locale is undone, and a failing exec is reported through a pipe."""


def _spawn_through_entrance(launch: Launch, group: AttemptGroup, outputs: tuple[int, int]) -> tuple[int, bool]:
    """Return the pid, and whether it is inside the group; OSError as if it had been started directly."""
    if not launch.argv:
        raise IndexError("argv is empty")
    reading, writing = os.pipe()
    try:
        locale = "+" if "LC_CTYPE" in launch.env else "-"
        entrance = (sys.executable, "-I", "-S", "-c", _ENTRANCE, str(writing), str(group.entrance), locale)
        pid = _spawn(launch, (*entrance, *launch.argv), outputs, pass_fds=[writing])
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    with open(reading, "rb") as stream:
        report = stream.read().split()  # ends when the worker is itself: exec closes the other end
    is_inside = b"outside" not in report
    if report and report[-1].isdigit():
        os.waitpid(pid, 0)
        number = int(report[-1])
        raise OSError(number, os.strerror(number), launch.argv[0])
    if not is_inside:
        group.remove()
    return pid, is_inside


@contextmanager
def _output_files(launch: Launch) -> Iterator[tuple[int, int]]:
    """Open the worker's output for appending: what an earlier attempt wrote stays, and nobody else may read it."""
    with ExitStack() as stack:
        opened: dict[Path, int] = {}
        for path in (launch.stdout, launch.stderr):
            if path not in opened:
                path.parent.mkdir(parents=True, exist_ok=True)
                opened[path] = plain_file(os.fspath(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                stack.callback(os.close, opened[path])
        with suppress(OSError):  # the worker holds it while it lives (`DistantWorker`); some disks know no locks
            fcntl.flock(opened[launch.stdout], fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield opened[launch.stdout], opened[launch.stderr]


def _why_not_started(launch: Launch, error: Exception) -> str:
    program = launch.argv[0] if launch.argv else ""
    if not program:
        return "its description names no program (argv is empty)"
    if not launch.cwd.is_dir():
        return f"its folder {launch.cwd} does not exist"
    if not isinstance(error, OSError):
        return str(error)  # a null byte in an argument or variable
    where = str(error.filename or "")
    if where in (str(launch.stdout), str(launch.stderr), str(launch.stdout.parent), str(launch.stderr.parent)):
        return f"its output file {where} cannot be opened ({error.strerror}); check the disk and permissions"
    sentences = {
        errno.ENOENT: f"the program {program!r} was not found; is the worker (still) installed?",
        errno.EACCES: f"the program {program!r} may not be executed; check its permissions",
        errno.ENOEXEC: f"{program!r} is not a program this machine can run",
        errno.E2BIG: "its arguments and environment are too long",
    }
    return shortage(error) or sentences.get(error.errno or 0, f"{program!r}: {error.strerror}")


def _open_pidfd(identity: ProcessIdentity) -> int | None:
    """Return a descriptor that becomes readable when exactly this process ends; None when it has."""
    try:
        pidfd = os.pidfd_open(identity.pid)
    except OSError as error:
        if shortage(error):
            raise
        return None
    if identity.is_alive():
        return pidfd
    os.close(pidfd)
    return None


def _limit_processes_of_user(pid: int, max_processes: int) -> None:
    """Keep a fork bomb without a group from taking every process its user may have (root has no such limit)."""
    if os.geteuid() == 0:
        return
    mine = sum(stat.threads for stat in read_process_table().values() if _owner(stat.pid) == os.geteuid())
    _, hard = resource.prlimit(pid, resource.RLIMIT_NPROC)
    limit = mine + max_processes
    if hard == resource.RLIM_INFINITY or limit < hard:
        with suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_NPROC, (limit, limit))


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _kill_and_reap(identity: ProcessIdentity, group: AttemptGroup | None) -> None:
    send_signal(identity, signal.SIGKILL, whole_group=True)
    with suppress(ChildProcessError):
        os.waitpid(identity.pid, 0)
    if group is not None:
        group.remove()


def _abandon(starting: asyncio.Future[_Started]) -> None:
    if starting.cancelled() or starting.exception() is not None:
        return
    started = starting.result()
    os.close(started.pidfd)
    _kill_and_reap(started.identity, started.group)
