"""Workers as local processes: each in its own session, writing output to files, and outliving the daemon."""

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
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mosaic_wire.files import plain_file

from gym_gui.services.trainer.cgroups import AttemptGroup, Cgroups
from gym_gui.services.trainer.errors import SpawnFailed
from gym_gui.services.trainer.executors.contract import NO_PROCESS, Attempt, Machines, Worker
from gym_gui.services.trainer.launch import Launch
from gym_gui.services.trainer.limits import StartedThreads, restore_limits, shortage
from gym_gui.services.trainer.process_tree import (
    ProcessIdentity,
    ProcessTable,
    TreeUsage,
    elapsed_s,
    measure,
    read_process_table,
    read_stat,
    send_signal,
    signal_all,
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

    type, max_submitted = "local", 0

    def __init__(self, *, use_cgroups: bool = True, cgroups: Cgroups | None = None) -> None:
        self._cgroups = (cgroups or Cgroups.detect()) if use_cgroups else None
        # A dedicated thread, because it enters control groups, which no other thread of the daemon should.
        self._spawner = StartedThreads(1, "spawn")

    async def submit(self, launch: Launch) -> LocalWorker:
        """Start the worker and return its handle; raise SpawnFailed with a reason."""
        starting = asyncio.get_running_loop().run_in_executor(self._spawner, self._start, launch)
        try:
            started = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The handle is lost, so its processes must not be left running.
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

    async def attach(self, attempt: Attempt) -> Worker | None:
        """Return the worker that an earlier daemon started, or None when no process of its tree is left.

        When only the worker itself has ended, `wait` returns at once and `stop_tree` ends its leftover processes.
        Without an identity the tree consists of all processes that have the mark.
        """
        mark, identity = attempt.mark, attempt.identity
        if attempt.is_in_other_container:
            identity = None  # its pid is of another namespace; its mark is visible if that is inside ours
        group, tree = await asyncio.to_thread(self._find_tree, identity, mark)
        if group is not None:
            group.thaw()  # an earlier daemon may have died in the middle of a kill
        if tree:
            leader = identity or tree[0]
            pidfd, limits = _open_pidfd(leader), (attempt.memory_mb, attempt.max_processes)
            return LocalWorker(leader, mark, pidfd=pidfd, group=group, memory_mb=limits[0], max_processes=limits[1])
        if group is not None:
            group.remove()
        if not attempt.is_in_other_container:
            return None
        known = attempt.identity or NO_PROCESS
        if await asyncio.to_thread(is_held, attempt.stdout):
            logger.warning(
                "run %s keeps running in another PID namespace: its reports arrive, but it cannot be ended here",
                attempt.run_id,
            )
            return ForeignWorker(known, mark, attempt.stdout)
        return Worker(known, mark)

    def _find_tree(
        self, identity: ProcessIdentity | None, mark: str
    ) -> tuple[AttemptGroup | None, list[ProcessIdentity]]:
        # Without a mark no process was started: the run faulted before.
        group = self._cgroups.find(mark) if self._cgroups is not None and mark else None
        return group, tree_of(identity, mark, members=group.pids() if group is not None else ())

    def trouble(self) -> str:
        """Return nothing: the dispatcher measures this machine itself."""
        return ""

    async def machines(self) -> Machines:
        """Return nothing: the daemon knows what it has reserved of this machine."""
        return Machines()

    def close(self) -> None:
        """End the executor's thread; workers keep running."""
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
            raise SpawnFailed(_spawn_error(launch, error)) from error
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
    # Never preexec_fn: it runs Python between fork and exec, which hangs or aborts in a process with gRPC threads.
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
    # Its pidfd reports the exit from here on; subprocess must neither poll the process nor warn about it.
    process.returncode = 0
    restore_limits(process.pid)
    return process.pid


def _spawn_from_inside(launch: Launch, group: AttemptGroup, outputs: tuple[int, int]) -> tuple[int, bool]:
    """Start the worker from a thread inside the group (version 1); return its pid, and whether it is inside."""
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
"""Program that enters the group (version 2 moves only whole processes) and then executes the worker. Moving the worker
after its start would take milliseconds, in which a fork bomb multiplies outside the group. The program undoes what the
interpreter did to signals and locale, and reports a failed exec through a pipe."""


def _spawn_through_entrance(launch: Launch, group: AttemptGroup, outputs: tuple[int, int]) -> tuple[int, bool]:
    """Start the worker through `_ENTRANCE` (version 2); return its pid, and whether it is inside the group.

    Raise the OSError that a direct start would have raised.
    """
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
        report = stream.read().split()  # EOF: exec closed the other end
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
    """Open the worker's private output files, appending to those of earlier attempts."""
    with ExitStack() as stack:
        opened: dict[Path, int] = {}
        for path in (launch.stdout, launch.stderr):
            if path not in opened:
                path.parent.mkdir(parents=True, exist_ok=True)
                opened[path] = plain_file(os.fspath(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                stack.callback(os.close, opened[path])
        with suppress(OSError):  # held while the worker lives (see `ForeignWorker`); some disks have no locks
            fcntl.flock(opened[launch.stdout], fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield opened[launch.stdout], opened[launch.stderr]


def _spawn_error(launch: Launch, error: Exception) -> str:
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
    """Keep a fork bomb without a group from using up the user's process limit (root has none)."""
    if os.geteuid() == 0:
        return
    count = sum(stat.threads for stat in read_process_table().values() if _owner(stat.pid) == os.geteuid())
    _, hard = resource.prlimit(pid, resource.RLIMIT_NPROC)
    limit = count + max_processes
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


# ---------------------------------------------------------------- workers


_POLL_S = 1.0
_KILL_TIMEOUT_S = 15.0
"""A process that survives SIGKILL for this long hangs in the kernel (a dead network disk)"""


class LocalWorker(Worker):
    """A worker process and everything it started.

    A child that exited stays a zombie until `stop_tree` or `close`, so that its session id is not reused.
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
        super().__init__(identity, mark)
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
        """Wait for the worker's exit and return its code: negative for a signal, None for another daemon's child."""
        return await asyncio.shield(self._exit)

    async def stop_tree(self, grace_s: float) -> bool:
        """Terminate the tree, kill it after `grace_s`; return whether no process is left.

        After a normal exit this ends the processes that the worker left running.
        """
        deadline = time.monotonic() + grace_s
        signaled: set[ProcessIdentity] = set()
        if not await asyncio.to_thread(self._terminate, signaled):
            self._reap()
            return True
        pause_s = 0.01
        while (left := deadline - time.monotonic()) > 0 and bool(await asyncio.to_thread(self._tree)):
            with suppress(TimeoutError):
                # Wakes up early when the worker exits; its leftover processes are polled.
                await asyncio.wait_for(self._sleep_unless_ended(pause_s), min(pause_s, left))
            pause_s = min(pause_s * 1.5, 0.25)
            if self._exit.done():
                # Processes started after the first scan have not received SIGTERM yet.
                await asyncio.to_thread(self._terminate, signaled)
        exited = await asyncio.to_thread(self._kill_until_exited, time.monotonic() + _KILL_TIMEOUT_S)
        if exited:
            self._reap()
        else:
            logger.error("run mark %s: processes are left that SIGKILL does not end", self.mark)
        return exited

    async def _sleep_unless_ended(self, pause_s: float) -> None:
        if self._exit.done():
            await asyncio.sleep(pause_s)
        else:
            await self.wait()

    def _terminate(self, signaled: set[ProcessIdentity]) -> bool:
        """Send SIGTERM to each process that did not get it yet; return whether there are processes."""
        if self._group is not None:
            self._group.thaw()
        tree = self._tree()
        for member in tree:
            if member not in signaled:
                signaled.add(member)
                send_signal(member, signal.SIGTERM)
                send_signal(member, signal.SIGCONT)  # a stopped process receives SIGTERM only once it continues
        return bool(tree)

    def _kill_until_exited(self, deadline: float) -> bool:
        pause_s = 0.002
        # Stop a fork bomb without a group by one call before listing it.
        send_signal(self.identity, signal.SIGSTOP, whole_group=True)
        while self._tree():
            if time.monotonic() > deadline:
                return False
            if self._group is not None:
                self._group.freeze()
            try:
                # Stop all processes first, so that none of them forks while the list is processed.
                members = signal_all(self._tree, signal.SIGSTOP)
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
        """Reap orphans of the tree that became children of the daemon, where it is the init of a container."""
        for member in members:
            stat = member.stat()
            if stat is not None and stat.has_exited and stat.ppid == os.getpid() and member != self.identity:
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
            return len(signal_all(self._tree, signal_number))
        return sum(send_signal(member, signal_number) for member in self._tree())

    async def pause_tree(self) -> None:
        """Stop every process of the tree."""
        await asyncio.to_thread(self.signal_tree, signal.SIGSTOP)

    async def continue_tree(self) -> None:
        """Continue every process of the tree."""
        await asyncio.to_thread(self.signal_tree, signal.SIGCONT)

    def is_stopped(self) -> bool:
        """Return whether the worker is stopped (SIGSTOP), or after its exit, whether all its leftover processes are."""
        stat = self.identity.stat()
        if stat is not None and not stat.has_exited:
            return stat.state in "Tt"
        states = [stat.state for member in self._tree() if (stat := read_stat(member.pid)) is not None]
        return bool(states) and all(state in "Tt" for state in states)

    @property
    def is_limited(self) -> bool:
        """Return whether the kernel enforces every limit; otherwise `limit_hit` measures and has to be polled."""
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
            # Forked processes share pages, which the cheap sum counts several times.
            usage = measure(tree, table, shared_once=True)
        return usage

    def elapsed_s(self) -> float:
        """Return the seconds since the worker started, unaffected by clock changes."""
        return elapsed_s(self.identity)

    def limit_hit(self) -> str | None:
        """Return which limit the tree has ever reached, or None."""
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
        """Reap the worker if it exited and remove its empty group; a running worker keeps running."""
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
        return None  # an earlier daemon's child, or already reaped
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


@dataclass(eq=False)
class ForeignWorker(Worker):
    """A worker in another PID namespace: it reports to the daemon, but cannot be signaled or measured from here.

    It is alive while a process there holds the lock on its output, which it inherited with the open file.
    """

    output: Path

    async def wait(self) -> int | None:
        """Wait until its output is no longer locked."""
        while not await self.stop_tree(3600.0):
            pass
        return None

    async def stop_tree(self, grace_s: float) -> bool:
        """Wait up to `grace_s` for its end; it cannot be signaled from here."""
        deadline = time.monotonic() + grace_s
        while await asyncio.to_thread(is_held, self.output):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True


def is_held(output: Path) -> bool:
    """Return whether a process that writes to this file is alive in any container of this machine."""
    try:
        with output.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
