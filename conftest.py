"""Guards around every test: nothing leaks, no unexpected log line, no user's real home is touched."""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from mosaic_wire import env
from mosaic_wire.paths import Home
from mosaic_wire.testing import wait_until

LEAVE_S = 30.0
"""Seconds after a test in which its processes and threads must disappear"""
ORPHAN_SEGMENT_S = 60.0
"""Seconds that a segment without a process may remain: another test may have killed its writer, and its daemon may be
about to remove it."""

SHARED_MEMORY = Path("/dev/shm")
SEGMENT_PATTERN = "mosaic-*"

# Helpers that the standard library starts once and keeps on purpose.
KEPT_BY_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

# What a shell of the developer may hold and a test must not see.
# COLUMNS and LINES come from pytest-xdist too, and would overrule the terminals that tests open.
FOREIGN_NAMES = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
FOREIGN_PREFIXES = ("MOSAIC_", "CLEANRL_", "GYM_GUI_", "TRACK_", "WANDB_", "KEYRING_", "PYTHON_KEYRING_")


# Modules that take twenty seconds and more, though they have few tests, the longest first. Begun at the end, one of
# them would keep one process busy alone.
LONG_MODULES = (
    "tests/e2e/test_cleanrl_modes.py",
    "tests/e2e/test_window.py",
    "tests/e2e/test_sweep.py",
    "tests/e2e/test_stalled_and_silent.py",
    "packages/gym_gui/tests/ui/test_main_window.py",
    "workers/cleanrl_worker/tests/test_conformance.py",
    "tests/e2e/test_limits.py",
    "tests/e2e/test_plot_and_compare.py",
    "workers/cleanrl_worker/tests/test_dqn.py",
    "tests/docs/test_runbooks.py",
    "workers/cleanrl_worker/tests/test_qdagger.py",
    "tests/e2e/test_pause_and_release.py",
    "workers/cleanrl_worker/tests/test_off_policy.py",
    "tests/e2e/test_scheduling.py",
    "tests/e2e/test_telemetry_lane.py",
    "packages/gym_gui/tests/test_mosaic_cli_process.py",
    "workers/cleanrl_worker/tests/test_tracking.py",
    "tests/e2e/test_damaged_files.py",
    "packages/gym_gui/tests/ui/test_human_panel.py",
    "packages/mosaic_extras/tests/test_install_extras.py",
    "tests/e2e/test_lineage.py",
    "tests/e2e/test_submission_checks.py",
    "tests/e2e/test_cleanrl_checkpoints.py",
    "tests/e2e/attacks/test_locked_registry.py",
    "workers/cleanrl_worker/tests/test_preflight.py",
    "workers/human_worker/tests/test_conformance.py",
    "workers/llm_worker/tests/test_play.py",
    "workers/llm_worker/tests/test_conformance.py",
    "tests/e2e/test_scripts.py",
    "packages/gym_gui/tests/test_local_executor.py",
    "packages/gym_gui/tests/test_executor_contract.py",
    "tests/e2e/test_slurm.py",
    "workers/cleanrl_worker/tests/test_ppo_presets.py",
    "tests/e2e/test_daemon_restart.py",
    "tests/e2e/test_bench.py",
)


def pytest_configure() -> None:
    from hypothesis import HealthCheck, settings  # here, because pytest has loaded its plugin by now

    # The time of an example means nothing on a busy machine.
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest modules first, then those with the most tests: whoever is done early takes a small one."""
    tests = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[int, int, str]:
        name = str(item.path.relative_to(config.rootpath)) if item.path.is_relative_to(config.rootpath) else ""
        first = LONG_MODULES.index(name) if name in LONG_MODULES else len(LONG_MODULES)
        return first, -tests[item.path], str(item.path)

    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def _nobodys_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test that forgets its `home` gets an empty one, never the checkout's `var/` or the user's keyring."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(FOREIGN_PREFIXES) or name in FOREIGN_NAMES:
                patch.delenv(name)
        patch.setenv(env.MOSAIC_HOME, str(tmp_path_factory.mktemp("nobodys-home")))
        patch.setenv(env.MOSAIC_CONFIG_HOME, str(tmp_path_factory.mktemp("nobodys-config")))
        patch.setenv(env.MOSAIC_CACHE_HOME, str(tmp_path_factory.mktemp("nobodys-cache")))
        patch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
        patch.setenv("MOSAIC_TEST_CACHE", str(tmp_path_factory.mktemp("warm-cache")))  # see gym_gui.testing
        yield


@pytest.fixture(scope="session", autouse=True)
def _signals_as_in_a_terminal() -> None:
    """nohup, or a script that starts the tests in the background, would have every process here ignore Ctrl+C."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


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


def pytest_collection_finish() -> None:
    """Freeze imported and collected objects, so that the garbage collector does not scan them again."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_leaks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a test that leaves processes, threads or shared memory behind; end the processes it left."""
    folder: Path | None = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    before, threads, segments = _pids(), set(threading.enumerate()), _segments()
    yield
    left: list[str] = []

    def processes_left() -> set[psutil.Process]:
        if not (new := _pids() - before):  # cheap, because this happens after each of thousands of tests
            return set()
        children = {child for child in _children() if child.pid in new and not _is_kept_by_a_daemon(child, before)}
        return children | (_working_in(folder, new) if folder else set())

    if not wait_until(lambda: not processes_left(), timeout_s=LEAVE_S):
        leaked = processes_left()
        left += [f"process {process.pid}: {_describe(process)}" for process in leaked]
        _end(leaked)

    def threads_left() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon]

    if not wait_until(lambda: not threads_left(), timeout_s=LEAVE_S):
        left += [f"thread {thread.name}" for thread in threads_left()]

    for path in _segments_left(segments, tmp_path_factory.getbasetemp()):
        left.append(f"shared memory {path}")
        path.unlink(missing_ok=True)
    if left:
        pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)


def _is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs; a zombie has exited, but its new parent may be slow to reap it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def _children() -> list[psutil.Process]:
    """Live descendants of this process."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            kept = any(name in argument for argument in child.cmdline() for name in KEPT_BY_PYTHON)
            if not kept and _is_alive(child):
                found.append(child)
    return found


def _working_in(folder: Path, pids: set[int]) -> set[psutil.Process]:
    """Processes of this test that left our tree (detached daemons, their workers): they name the test's folder."""
    named = re.compile(re.escape(os.fsencode(folder)) + rb"(?=[/\0\s:]|$)")
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = set()
    for pid in pids - ours:
        entry = Path("/proc", str(pid))
        with suppress(OSError, psutil.Error):
            command = (entry / "cmdline").read_bytes()
            is_mosaic = any(name in command for name in (b"gym_gui", b"mosaic", b"_worker"))
            if named.search((entry / "environ").read_bytes()) or (is_mosaic and named.search(command)):
                process = psutil.Process(pid)
                if _is_alive(process):
                    found.add(process)
    return found


def _is_kept_by_a_daemon(process: psutil.Process, before: set[int]) -> bool:
    """Return whether it is a check process, which a daemon of the module keeps between tests."""
    with suppress(psutil.Error):
        return process.cmdline()[-1:] == ["--check"] and process.ppid() in before
    return False


def _describe(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:300] or process.name()
    except psutil.Error:
        return "exited meanwhile"


def _end(processes: set[psutil.Process]) -> None:
    # Stopped first, so that none of them can start another while we go through the list.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            with suppress(psutil.Error):
                process.send_signal(number)
    wait_until(lambda: not any(_is_alive(process) for process in processes), timeout_s=LEAVE_S)


def _segments() -> set[Path]:
    # Each user has one folder for frames, which stays and is private; other tests remove folders of theirs meanwhile.
    found = set[Path]()
    for path in SHARED_MEMORY.glob(SEGMENT_PATTERN):
        with suppress(FileNotFoundError, PermissionError):
            found |= {each for each in path.iterdir() if not each.is_dir()} if path.is_dir() else {path}
    return found


def _segments_left(before: set[Path], ours: Path) -> set[Path]:
    """Return the new segments that stay, without those of other tests: their runs are in foreign folders, or in use."""
    suspects = {path for path in _segments() - before if not _is_of_a_foreign_run(path, ours)}

    def all_explained() -> bool:
        # Each for itself: a neighbor that kills one writer after the other always has one of them lying there.
        suspects.intersection_update(_segments())
        suspects.difference_update({path for path in suspects if _in_use_by_a_stranger(path)})
        return not suspects

    wait_until(all_explained, timeout_s=ORPHAN_SEGMENT_S)
    return suspects


def _is_of_a_foreign_run(segment: Path, ours: Path) -> bool:
    found = re.search(r"[0-9A-HJKMNP-TV-Z]{26}", segment.name)
    return found is not None and next(ours.rglob(f"{found[0]}*"), None) is None


def _in_use_by_a_stranger(segment: Path) -> bool:
    """Mapped (FastLane) or merely open (the frames of a game)."""
    ours = {os.getpid(), *(child.pid for child in _children())}
    return any(_has_open(entry, segment) for entry in Path("/proc").glob("[0-9]*") if int(entry.name) not in ours)


def _has_open(process: Path, file: Path) -> bool:
    with suppress(OSError):
        if os.fsencode(file) in (process / "maps").read_bytes():
            return True
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                if os.readlink(descriptor) == str(file):
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
