"""Limits of the daemon's process, and errors that are shortages of the daemon instead of faults of a run."""

from __future__ import annotations

import errno
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

_MAX_DESCRIPTORS = 1 << 17
"""More than any home needs; some machines allow a billion, for which tables would be allocated"""
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
    """Raise the soft limit on descriptors to the hard one and return it; `restore_limits` undoes this for children."""
    global _usual
    soft, hard = _usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def restore_limits(pid: int) -> None:
    """Set a child's limit on descriptors to the one the daemon was started with, which programs with select() need."""
    if _usual is not None:
        with suppress(OSError, ValueError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _usual)


class StartedThreads(ThreadPoolExecutor):
    """An executor that starts all its threads at once, so that a process limit reached later does not matter."""

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
    """Return what the daemon itself lacks (processes, memory, a working disk) for this error, or an empty text."""
    if isinstance(error, OSError):
        return _SHORTAGES.get(error.errno or 0, "")
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return _TOO_MANY_PROCESSES
    return _SHORTAGES[errno.ENOMEM] if isinstance(error, MemoryError) else ""
