"""Fixtures of the window's tests: no screen needed, a real daemon behind the link."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.testing import RunningDaemon
from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from mosaic_wire.paths import Home
from PySide6.QtCore import QSettings
from PySide6.QtWidgets import QApplication

QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "silence_s": 20, "handshake_s": 60, "min_free_disk_mb": 0}


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path) -> None:
    """Nobody's real window layout is read or changed."""
    QSettings.setDefaultFormat(QSettings.Format.IniFormat)
    QSettings.setPath(QSettings.Format.IniFormat, QSettings.Scope.UserScope, str(tmp_path / "qt-settings"))


@pytest.fixture
def dressed(qapp: QApplication) -> QApplication:
    """The application in its light theme."""
    theme.apply(qapp, theme.ThemeChoice.LIGHT)
    return qapp


@pytest.fixture
def background(qapp: QApplication) -> Iterator[Background]:
    background = Background()
    yield background
    background.close()


@pytest.fixture(scope="module")
def window_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One real daemon for the tests of a module."""
    folder = tmp_path_factory.mktemp("window")
    with RunningDaemon(Home(folder / "home"), folder / "config", settings=QUICK) as daemon:
        yield daemon


@pytest.fixture
def link(qtbot: object, window_daemon: RunningDaemon, background: Background) -> Iterator[DaemonLink]:
    """Connected to `window_daemon`."""
    link = DaemonLink(lambda: TrainerClient.connect(window_daemon.home), background)
    with qtbot.waitSignal(link.runs_loaded, timeout=30_000):  # type: ignore[attr-defined]
        link.start()
    yield link
    link.stop()
