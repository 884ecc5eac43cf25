"""Fixtures of the end-to-end and fault tests: real daemons in homes of their own, quick to lose patience."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from gym_gui.cli import main
from gym_gui.testing import RunningDaemon
from mosaic_wire import env
from mosaic_wire.paths import Home

QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "silence_s": 20, "handshake_s": 60, "min_free_disk_mb": 0}
"""Short beats and graces; silence and handshake stay long, because a busy machine must not look like a fault."""

MakeDaemon = Callable[..., RunningDaemon]
Mosaic = Callable[..., tuple[int, str, str]]

_FEWER = os.environ.get("MOSAIC_FAULT_RUNS", "")  # read here: the tests' guard forgets MOSAIC_… variables


def fault_runs(usual: int) -> int:
    """How many runs a long fault test takes; MOSAIC_FAULT_RUNS makes it fewer on a machine that others use, too."""
    return min(usual, int(_FEWER)) if _FEWER else usual


@pytest.fixture
def make_daemon(home: Home, tmp_path: Path) -> Iterator[MakeDaemon]:
    """Make (and start, by default) a daemon of the test's home; it is closed with all its runs."""
    with ExitStack() as stack:

        def make(*, start: bool = True, script: str = "", environment: dict[str, str] | None = None, **settings: Any):
            daemon = RunningDaemon(
                home, tmp_path / "config", settings={**QUICK, **settings}, environment=environment, script=script
            )
            stack.callback(daemon.close)
            if start:
                daemon.start()
            return daemon

        yield make


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> RunningDaemon:
    """A daemon with the quick settings."""
    return make_daemon()


@pytest.fixture
def emptied_daemon(shared_daemon: RunningDaemon) -> Iterator[RunningDaemon]:
    """The daemon of the module; a test's runs end with it."""
    yield shared_daemon
    shared_daemon.end_runs()


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One daemon for a whole module, for tests that neither kill it nor look at all of its runs."""
    folder = tmp_path_factory.mktemp("shared")
    with RunningDaemon(Home(folder / "home"), folder / "config", settings=QUICK) as daemon:
        yield daemon


@pytest.fixture
def mosaic(shared_daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Mosaic:
    """Run a command against the shared daemon in this process; returns exit code, stdout and stderr."""
    monkeypatch.setenv(env.MOSAIC_HOME, str(shared_daemon.home.root))
    monkeypatch.setenv(env.MOSAIC_CONFIG_HOME, str(shared_daemon.config_home))

    def run(*text: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_:
            main(text)
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    return run
