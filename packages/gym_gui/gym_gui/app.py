"""The window's composition root: makes the services, gives them to the window, and runs Qt's loop."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from mosaic_wire.errors import WireError
from mosaic_wire.paths import Home, config_home
from PySide6.QtCore import QMessageLogContext, QObject, QSocketNotifier, Qt, QtMsgType, qInstallMessageHandler
from PySide6.QtWidgets import QApplication

from gym_gui import __version__
from gym_gui.ui.app_icon import application_icon
from gym_gui.ui.appearance import Appearance
from gym_gui.ui.background import Background
from gym_gui.ui.connector import LocalConnector, RemoteConnector
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.garbage import GarbageCollection
from gym_gui.ui.main_window import MainWindow
from gym_gui.ui.theme import ThemeChoice
from gym_gui.ui.warm_up import WarmUp
from gym_gui.ui.widgets.crash_dialog import CrashReporter, FaultLog

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Remote:
    """A daemon on another machine (or another port of this one)."""

    target: str
    token: str
    tls_ca: Path | None = None


@dataclass
class WindowParts:
    """Everything one window consists of, and its end."""

    window: MainWindow
    link: DaemonLink
    background: Background
    warm_up: WarmUp

    def close(self) -> None:
        """Leave the daemon and end every thread; the daemon and its runs go on."""
        self.window.close()
        self.link.stop()
        self.background.close()


def build_window(
    application: QApplication, home: Home, remote: Remote | None = None, theme: ThemeChoice | None = None
) -> WindowParts:
    """A window that is not shown yet and a link that has not started."""
    appearance = Appearance(application, choice=theme, parent=application)
    background = Background()
    connector = LocalConnector(home) if remote is None else RemoteConnector(remote.target, remote.token, remote.tls_ca)
    link = DaemonLink(connector, background)
    window = MainWindow(link, background, home if remote is None else None, appearance, connector=connector)
    return WindowParts(window, link, background, WarmUp(link, background, window))


def main(home: Home, remote: Remote | None = None, theme: ThemeChoice | None = None) -> int:
    """Open the window and return when it is closed."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)-7s %(name)s | %(message)s", stream=sys.stderr)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the banner says it better
    qInstallMessageHandler(_log_qt)
    # Only before the application is made can QtWebEngine be told that it may be loaded later (ui/widgets/web_view.py).
    QApplication.setAttribute(Qt.ApplicationAttribute.AA_ShareOpenGLContexts)
    application = QApplication([sys.argv[0]])
    application.setApplicationName("mosaic")
    application.setApplicationDisplayName("MOSAIC")
    application.setApplicationVersion(__version__)
    application.setOrganizationName("MOSAIC")
    application.setDesktopFileName("mosaic")
    application.setWindowIcon(application_icon())
    if remote is None:
        with contextlib.suppress(OSError, WireError):  # a home that cannot be used is told in the window
            home.create()
    faults = FaultLog((home.root / "logs" if remote is None else config_home()) / "window-faults.log")
    faults.open()
    parts = build_window(application, home, remote, theme)
    reporter = CrashReporter(parts.window)
    reporter.install()
    ending = _EndOnSignal(application.quit, parts.window)
    if faults.previous is not None:
        parts.window.say(
            parts.window.tr(
                "The window ended abruptly last time; your runs were not affected. What it saw last is in {file}."
            ).format(file=faults.previous)
        )
    parts.window.show()
    parts.link.start()  # after `show`: the window is there before anything is asked of a daemon
    garbage = GarbageCollection(application)
    garbage.start()
    try:
        return application.exec()
    finally:
        garbage.stop()
        parts.close()
        ending.close()
        reporter.uninstall()
        faults.close()


class _EndOnSignal(QObject):
    """Ctrl-C in the terminal and SIGTERM close the window in good order.

    Python runs its handlers only between two of its own instructions, and Qt's loop has none while it waits: the
    interpreter's wake-up socket makes it turn.
    """

    def __init__(self, end: Callable[[], object], parent: QObject) -> None:
        super().__init__(parent)
        self._end = end
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        self._notifier = QSocketNotifier(self._read.fileno(), QSocketNotifier.Type.Read, self)
        self._notifier.activated.connect(lambda: self._read.recv(64))

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._notifier.setEnabled(False)
        self._read.close()
        self._write.close()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._end()


_LEVELS = {
    QtMsgType.QtDebugMsg: logging.DEBUG,
    QtMsgType.QtInfoMsg: logging.INFO,
    QtMsgType.QtWarningMsg: logging.WARNING,
    QtMsgType.QtCriticalMsg: logging.ERROR,
    QtMsgType.QtFatalMsg: logging.CRITICAL,
}


def _log_qt(kind: QtMsgType, context: QMessageLogContext, message: str) -> None:
    logging.getLogger("qt").log(_LEVELS.get(kind, logging.WARNING), "%s", message)
