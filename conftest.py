"""Guards around every test: nothing leaks, nothing is logged by surprise, nobody's real home is touched."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from mosaic_wire import env
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

LEAVE_S = 5.0
"""How long after its end a test's processes, threads and segments may take to be gone."""

SHARED_MEMORY = Path("/dev/shm")
SEGMENT_PATTERN = "mosaic-*"

# Helpers that the standard library starts once and keeps on purpose.
KEPT_BY_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

# What a shell of the developer may hold and a test must not see.
# COLUMNS and LINES come from pytest-xdist too, and would overrule the terminals that tests open.
FOREIGN_NAMES = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
FOREIGN_PREFIXES = ("MOSAIC_", "CLEANRL_", "GYM_GUI_", "TRACK_", "WANDB_", "KEYRING_", "PYTHON_KEYRING_")


@pytest.fixture(scope="session", autouse=True)
def _nobodys_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test that forgets its `home` gets an empty one, never the checkout's `var/` or the user's keyring."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(FOREIGN_PREFIXES) or name in FOREIGN_NAMES:
                patch.delenv(name)
        patch.setenv(env.MOSAIC_HOME, str(tmp_path_factory.mktemp("nobodys-home")))
        patch.setenv(env.MOSAIC_CONFIG_HOME, str(tmp_path_factory.mktemp("nobodys-config")))
        patch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A MOSAIC home of this test alone, not created yet; the environment points at it."""
    home = Home(tmp_path / "home")
    config_home = tmp_path / "config"
    config_home.mkdir(mode=0o700)
    monkeypatch.setenv(env.MOSAIC_HOME, str(home.root))
    monkeypatch.setenv(env.MOSAIC_CONFIG_HOME, str(config_home))
    yield home
    if not home.socket.is_relative_to(home.root):  # the path was too long for the kernel; see Home.socket
        shutil.rmtree(home.socket.parent, ignore_errors=True)


# ---------------------------------------------------------------- leaks


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves processes, threads or shared memory behind; end the processes it left."""
    folder: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    children, threads, segments = set(_children()), set(threading.enumerate()), _segments()
    yield
    left: list[str] = []

    def processes_left() -> set[psutil.Process]:
        return (set(_children()) - children) | (_working_in(folder) if folder else set())

    if not wait_until(lambda: not processes_left(), timeout_s=LEAVE_S):
        leaked = processes_left()
        left += [f"process {process.pid}: {_describe(process)}" for process in leaked]
        _end(leaked)

    def threads_left() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon]

    if not wait_until(lambda: not threads_left(), timeout_s=LEAVE_S):
        left += [f"thread {thread.name}" for thread in threads_left()]

    def segments_left() -> set[Path]:
        # Under xdist a neighbour's segment is new as well; it is in use by a process outside our tree.
        return {path for path in _segments() - segments if not _in_use_by_a_stranger(path)}

    if not wait_until(lambda: not segments_left(), timeout_s=LEAVE_S):
        for path in segments_left():
            left.append(f"shared memory {path}")
            path.unlink(missing_ok=True)
    if left:
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)


def _is_alive(process: psutil.Process) -> bool:
    """A zombie counts as gone: whoever inherited it may be slow to collect it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _children() -> list[psutil.Process]:
    """Live descendants of this process."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            kept = any(name in argument for argument in child.cmdline() for name in KEPT_BY_PYTHON)
            if not kept and _is_alive(child):
                found.append(child)
    return found


def _working_in(folder: Path) -> set[psutil.Process]:
    """Processes of this test that left our tree (detached daemons, their workers): they name the test's folder."""
    named = re.compile(re.escape(os.fsencode(folder)) + rb"(?=[/\0\s:]|$)")
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) in ours:
            continue
        with suppress(OSError, psutil.Error):
            command = (entry / "cmdline").read_bytes()
            is_mosaic = any(name in command for name in (b"gym_gui", b"mosaic", b"_worker"))
            if named.search((entry / "environ").read_bytes()) or (is_mosaic and named.search(command)):
                process = psutil.Process(int(entry.name))
                if _is_alive(process):
                    found.add(process)
    return found


def _describe(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:300] or process.name()
    except psutil.Error:
        return "gone by now"


def _end(processes: set[psutil.Process]) -> None:
    # Stopped first, so that none of them can start another while we go through the list.
    for wanted in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            with suppress(psutil.Error):
                process.send_signal(wanted)
    wait_until(lambda: not any(_is_alive(process) for process in processes), timeout_s=LEAVE_S)


def _segments() -> set[Path]:
    return set(SHARED_MEMORY.glob(SEGMENT_PATTERN))


def _in_use_by_a_stranger(segment: Path) -> bool:
    ours = {os.getpid(), *(child.pid for child in _children())}
    needle = os.fsencode(segment)
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) not in ours:
            with suppress(OSError):
                if needle in (entry / "maps").read_bytes():
                    return True
    return False


# ---------------------------------------------------------------- log


class _Warnings(logging.Handler):
    """Keeps what was logged at WARNING or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name}: {record.getMessage()}")


@pytest.fixture(autouse=True)
def _no_surprising_log(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test during which this process logs a WARNING that no `expects_log` allows.

    A test that takes `caplog` reads the log itself and is not judged here.
    """
    allowed = [re.compile(pattern) for mark in request.node.iter_markers("expects_log") for pattern in mark.args]
    handler = _Warnings()
    logging.getLogger().addHandler(handler)
    yield
    logging.getLogger().removeHandler(handler)
    if "caplog" in request.fixturenames:
        return
    surprising = [line for line in handler.lines if not any(pattern.search(line) for pattern in allowed)]
    if surprising:
        pytest.fail(
            "logged by surprise (allow it with @pytest.mark.expects_log):\n  " + "\n  ".join(surprising[:20]),
            pytrace=False,
        )
