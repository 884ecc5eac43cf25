"""All processes of a worker on a node: found, and ended also when the node process itself is killed."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mosaic_wire import env

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05


def adopt_orphans() -> None:
    """Become the parent of descendants whose parents end, so that all of a worker's tree stays below this process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(but: int) -> None:
    """Reap adopted processes that have ended, except a child that is waited for elsewhere."""
    with suppress(ChildProcessError):
        options = os.WEXITED | os.WNOHANG
        while (ended := os.waitid(os.P_ALL, 0, options | os.WNOWAIT)) is not None and ended.si_pid != but:
            os.waitpid(ended.si_pid, 0)


def descendants(pid: int) -> list[int]:
    """Return the processes below this one that have not ended."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := _living_parent(name)) is not None:
            children.setdefault(parent, []).append(int(name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def marked(mark: str) -> list[int]:
    """Return the processes of this user with the mark in their environment."""
    marker = f"{env.MOSAIC_RUN_MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError), open(f"/proc/{name}/environ", "rb") as stream:
                if marker in stream.read().split(b"\0"):
                    found.append(int(name))
    return found


def end_all(find: Callable[[], list[int]], grace_s: float) -> None:
    """Terminate processes, wait, then kill those that remain, and whatever they started meanwhile."""
    _signal(first := find(), signal.SIGTERM)
    _signal(first, signal.SIGCONT)  # a stopped process receives SIGTERM only once it continues
    deadline = time.monotonic() + grace_s
    while find() and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    while left := find():
        _signal(left, signal.SIGSTOP)  # so that none of them forks while the others are killed
        _signal(left, signal.SIGKILL)
        time.sleep(_POLL_S)


def guard(mark: str, folder: Path) -> None:
    """Start a process that kills what has the mark, and removes a folder, once this process has ended, however it does.

    It is not a child, so that nothing that ends this process's tree ends it as well. Call it before any thread starts.
    """
    reading, writing = os.pipe()
    first = os.fork()
    if first:
        os.close(reading)
        os.waitpid(first, 0)
        return  # the other end of the pipe stays open as long as this process lives
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(writing)
    _watch(reading, mark, folder)
    os._exit(0)


def _watch(reading: int, mark: str, folder: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # its output would keep the engine waiting
        os.dup2(null, descriptor)
    os.read(reading, 1)
    end_all(lambda: marked(mark), 0.0)
    shutil.rmtree(folder, ignore_errors=True)


def _living_parent(name: str) -> int | None:
    try:
        with open(f"/proc/{name}/stat", "rb") as stream:
            state, parent = stream.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return None if state in b"ZX" else int(parent)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
