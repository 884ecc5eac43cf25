"""pip, started so that it can only do what it is asked: clean environment, output to a file, the lock inherited."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleanrl_worker.requirement_sets.errors import InstallFailed

POLL_S = 0.1
STOP_S = 10.0
TAIL_LINES = 12

# Variables that would send packages elsewhere, or let Python find other ones first.
_DIVERTING = (
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONPLATLIBDIR", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__",
    "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_FORCE_REINSTALL", "PIP_IGNORE_INSTALLED",
    "PIP_UPGRADE", "PIP_REQUIREMENT", "PIP_CONSTRAINT", "PIP_EDITABLE", "PIP_DRY_RUN", "PIP_REPORT", "PIP_NO_COMPILE",
    "PIP_REQUIRE_HASHES", "PIP_QUIET", "PIP_VERBOSE", "PIP_LOG", "PIP_WHEEL_DIR",
)  # fmt: skip

_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)
_NO_NETWORK = re.compile(
    r"NewConnectionError|Temporary failure in name resolution|Name or service not known|Network is unreachable"
    r"|ProxyError|ReadTimeoutError|ConnectTimeout|Connection refused|Max retries exceeded",
    re.IGNORECASE,
)
_NOT_FOUND = re.compile(r"No matching distribution found for (\S+)")


def clean_environment(cache: Path) -> dict[str, str]:
    """The environment for pip and for the checks; the user's index and proxy settings stay."""
    kept = {name: value for name, value in os.environ.items() if name not in _DIVERTING}
    return {
        **kept, "PIP_CACHE_DIR": str(cache), "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore", "PIP_PROGRESS_BAR": "off", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


@contextmanager
def child(argv: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program and end it when we leave, whatever makes us leave."""
    process: subprocess.Popen[bytes] | None = None
    try:
        with _undisturbed():  # a signal between fork and the assignment would leave it running
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, **options)
        yield process
    finally:
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put off SIGINT and SIGTERM until the end; elsewhere than in the main thread they never interrupt anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _: came.append(number)) for number in wanted]
    try:
        yield
    finally:
        for number, handler in zip(wanted, before, strict=True):
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


def run_logged(
    argv: Sequence[str], *, log: Path, env: dict[str, str], cwd: Path, lock: int, poll: Callable[[], None]
) -> int:
    """Run a program with its output appended to `log`, calling `poll` meanwhile and once more at its end."""
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(argv)}\n".encode())
        output.flush()
        with child(argv, stdout=output, stderr=subprocess.STDOUT, cwd=cwd, env=env, pass_fds=[lock]) as process:
            while process.poll() is None:
                poll()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
            poll()
            return process.returncode


def run_captured(argv: Sequence[str], *, env: dict[str, str], cwd: Path, lock: int, timeout_s: float) -> Captured:
    """Run a program and return what it said; raise subprocess.TimeoutExpired."""
    with child(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, env=env, pass_fds=[lock]) as process:
        output, errors = process.communicate(timeout=timeout_s)
    return Captured(process.returncode, output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))


@dataclass(frozen=True)
class Captured:
    """How a program ended and what it printed."""

    code: int
    output: str
    errors: str


class LogTail:
    """New lines of a file that somebody is writing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = ""

    def lines(self) -> list[str]:
        """Complete lines since the last call."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *complete, self._rest = (self._rest + data.decode("utf-8", "replace")).split("\n")
        return complete


def failure(what: str, log: Path, command: str) -> InstallFailed:
    """The error for a program that failed: the likely cause, its last lines, and what to do."""
    try:
        with log.open("r", encoding="utf-8", errors="replace") as stream:
            last = deque((line.rstrip() for line in stream if line.strip()), maxlen=200)
    except OSError:
        last = deque()
    text = "\n".join(last)
    missing = _NOT_FOUND.search(text)
    if _NO_SPACE.search(text):
        cause = "The disk is full: make room"
    elif _NO_NETWORK.search(text):
        cause = "The package index cannot be reached: check the network and pip's settings (pip config list)"
    elif missing:
        cause = f"No file of {missing[1]} fits this Python and this machine, or the index cannot be reached"
    else:
        cause = "See the last lines below"
    tail = "\n".join(f"    {line[:300]}" for line in list(last)[-TAIL_LINES:])
    return InstallFailed(f"{what}. {cause}; then repeat: {command}\n{tail}\n  (all of it: {log})")
