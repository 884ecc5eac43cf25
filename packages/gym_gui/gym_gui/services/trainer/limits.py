"""What the kernel allows this process, and which errors are the daemon's own trouble and no run's fault."""

from __future__ import annotations

import errno
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

_MOST_DESCRIPTORS = 1 << 17
"""More than any home needs; some machines allow a billion, and tables are made for it"""
_usual: tuple[int, int] | None = None

_TOO_MANY_PROCESSES = "the limit on processes is reached; end some, or raise it (ulimit -u)"
_SHORTAGES = {
    errno.EAGAIN: _TOO_MANY_PROCESSES,
    errno.ENOMEM: "there is not enough memory",
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n)",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENOSPC: "no room or no inodes are left on its disk (df -h, df -i)",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "the disk does not answer as it should (input/output error)",
}


def raise_descriptor_limit() -> int:
    """Raise the soft limit on descriptors to the hard one; return it. Children get the usual one: `usual_limits`."""
    global _usual
    soft, hard = _usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def usual_limits(pid: int) -> None:
    """Give a child the limit on descriptors that the daemon was started with; programs with select() rely on it."""
    if _usual is not None:
        with suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _usual)


class StartedThreads(ThreadPoolExecutor):
    """Has all of its threads from the beginning: a limit on processes that is reached later takes none of them away."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, thread_name_prefix=name)
        gate = threading.Barrier(count)
        try:
            for _ in range(count):
                self.submit(gate.wait)
        except RuntimeError:
            gate.abort()
            raise


def shortage(error: BaseException | None) -> str:
    """Say what the daemon itself lacks now (processes, memory, a sound disk): no fault of a run. Or nothing."""
    if isinstance(error, OSError):
        return _SHORTAGES.get(error.errno or 0, "")
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return _TOO_MANY_PROCESSES
    return _SHORTAGES[errno.ENOMEM] if isinstance(error, MemoryError) else ""
