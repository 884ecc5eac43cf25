"""What the kernel allows this process, and which errors are the daemon's own trouble and no run's fault."""

from __future__ import annotations

import errno
import resource
from contextlib import suppress

_MOST_DESCRIPTORS = 1 << 17
"""More than any home needs; some machines allow a billion, and tables are made for it"""
_usual: tuple[int, int] | None = None

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO, errno.ENOBUFS})


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


def is_shortage(error: BaseException | None) -> bool:
    """Tell whether the daemon itself lacks something now (descriptors, processes, memory): no fault of a run."""
    if isinstance(error, OSError):
        return error.errno in _SHORTAGES
    if isinstance(error, RuntimeError):
        return "can't start new thread" in str(error)
    return isinstance(error, MemoryError)
