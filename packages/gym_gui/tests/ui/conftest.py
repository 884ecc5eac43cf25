"""Fixtures of the window's tests: no screen needed, a real daemon behind the link."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.testing import RunningDaemon
from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from mosaic_wire.paths import Home
from mosaic_wire.testing import GENEROUS_S
from PySide6.QtCore import QSettings
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

QUICK = {"heartbeat_s": 0.2, "grace_s": 2, "silence_s": 20, "handshake_s": 60, "min_free_disk_mb": 0}


@pytest.fixture(scope="session", autouse=True)
def _waits_are_generous() -> Iterator[None]:
    """pytest-qt gives up after one to five seconds; on a busy machine things take longer and are right all the same."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("waitUntil", "waitSignal", "waitSignals", "waitCallback", "waitExposed", "waitActive"):
            patch.setattr(QtBot, name, _with_generous_timeout(getattr(QtBot, name)))
        yield


def _with_generous_timeout(wait: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(wait)
    def patient(*arguments: object, timeout: float = 0, **options: object) -> object:
        return wait(*arguments, timeout=max(timeout, 1000 * GENEROUS_S), **options)

    return patient


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path) -> None:
    """No user's real window layout is read or changed."""
    QSettings.setDefaultFormat(QSettings.Format.IniFormat)
    # QSettings("MOSAIC", "mosaic") takes the native format, whatever the default is.
    for kind in (QSettings.Format.IniFormat, QSettings.Format.NativeFormat):
        QSettings.setPath(kind, QSettings.Scope.UserScope, str(tmp_path / "qt-settings"))


@pytest.fixture(autouse=True)
def _garbage_dies_here() -> Iterator[None]:
    """As in the window (`ui/.py`): no widget is freed by a thread that happens to allocate."""
    gc.disable()
    yield
    gc.collect(1)
    gc.enable()


@pytest.fixture
def themed(qapp: QApplication) -> QApplication:
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


@pytest.fixture(scope="session")
def make_video() -> Callable[..., Path]:
    """Writes a real video; picture n shows n as eight bars, black for 0 and white for 1, the lowest bit left."""

    def make(path: Path, *, frames: int = 60, width: int = 64, height: int = 48, fast_start: bool = True) -> Path:
        import av
        import numpy as np

        path.parent.mkdir(parents=True, exist_ok=True)
        options = {"movflags": "faststart"} if fast_start else {}
        with av.open(str(path), "w", options=options) as container:
            stream = container.add_stream("libx264", rate=30, options={"g": "12", "crf": "10"})
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for number in range(frames):
                bars = np.repeat([255 * (number >> bit & 1) for bit in range(8)], width // 8).astype(np.uint8)
                image = np.broadcast_to(bars[None, :, None], (height, width, 3)).copy()
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode())
        return path

    return make
