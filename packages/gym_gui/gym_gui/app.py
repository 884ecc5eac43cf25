"""The window's composition root: create the services, pass them to the window, and run Qt's event loop."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType

from mosaic_wire import env
from mosaic_wire.errors import WireError
from mosaic_wire.paths import Home, config_home
from PySide6 import QtCore, QtGui, QtWidgets
from PySide6.QtCore import (
    QMessageLogContext,
    QObject,
    QSocketNotifier,
    Qt,
    QTimer,
    QtMsgType,
    Signal,
    qInstallMessageHandler,
)
from PySide6.QtWidgets import QApplication

from gym_gui import __version__
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.shell.crash_dialog import CrashReporter, FaultLog
from gym_gui.ui.shell.daemon_banner import LocalConnector, RemoteConnector
from gym_gui.ui.shell.main_window import MainWindow
from gym_gui.ui.theme import Appearance, ThemeChoice, application_icon

_EVERY_MS = 1_000
_MIDDLE_EVERY, _ALL_EVERY = 10, 60
"""Timer ticks between collections of the middle and the oldest generation"""


class GarbageCollection(QObject):
    """Collect garbage in the window's thread only, from `start` to `stop`.

    Python frees cycles in whichever thread allocates next. A widget in such a cycle would be destroyed in a thread that
    reads a stream, which Qt answers with "Timers cannot be started from another thread" or a crash.
    """

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._collections = 0
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.collect_if_due)

    def start(self) -> None:
        gc.disable()
        # Modules and their classes never become garbage; without them a full collection takes a few milliseconds.
        gc.freeze()
        self._timer.start(_EVERY_MS)

    def stop(self) -> None:
        self._timer.stop()
        gc.unfreeze()
        gc.enable()

    def collect_if_due(self) -> None:
        """Run the collections that are due."""
        self._collections += 1
        if self._collections % _ALL_EVERY == 0:
            gc.collect()
        elif self._collections % _MIDDLE_EVERY == 0:
            gc.collect(1)
        elif gc.get_count()[0] > gc.get_threshold()[0]:
            gc.collect(0)


MODULES = (
    "gym_gui.ui.run_page.page",
    "gym_gui.ui.run_page.live_tab",
    "gym_gui.ui.forms.dialog_factory",
    "gym_gui.Algo_docs.cleanrl_worker",
    "gym_gui.ui.charts.tab",
    "gym_gui.ui.charts.board",
    "gym_gui.ui.run_page.tensorboard_tab",
    "gym_gui.ui.replay.replay_tab",
    "gym_gui.ui.compare.panel",
    "gym_gui.ui.compare.comparison",
    "gym_gui.ui.play.human_panel",
    "gym_gui.ui.play.policy_panel",
    "gym_gui.ui.management.panel",
    "gym_gui.ui.management.sets_table",
    "gym_gui.ui.management.disk_use",
    "gym_gui.ui.management.settings_dialog",
    "gym_gui.ui.run_page.wandb_tab",
    "gym_gui.ui.studies.panel",
)
"""In the order in which users are likely to open them"""
QUIET_MS = 500
"""Delay after the runs are loaded, so that imports do not slow the first screen"""
NAMES_AT_ONCE = 100
"""Classes of Qt created in one turn of the event loop"""


class WarmUp(QObject):
    """Import tabs, workspaces and dialogs in a thread once the runs are loaded.

    The window imports them lazily so that it opens quickly; importing them in the slot that opens the Live tab would
    freeze it for 0.4 s.
    """

    finished = Signal()

    def __init__(self, link: DaemonLink, background: Background, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._background = background
        self._left = list(MODULES)
        self._qt_names = iter([(module, name) for module in (QtCore, QtGui, QtWidgets) for name in dir(module)])
        self.is_finished = False
        self._timer = QTimer(self, singleShot=True, interval=QUIET_MS)
        self._timer.timeout.connect(self._create_qt_classes)
        link.runs_loaded.connect(lambda _runs: self._timer.start(), Qt.ConnectionType.SingleShotConnection)

    def _create_qt_classes(self) -> None:
        """Create all classes of Qt in the window's thread (0.1 s), some at a time, before the first import in another.

        WORKAROUND: PySide6 creates a class when it is first named, and crashes when two threads do that at the same
        time. The imported modules name many of them; pyqtgraph names all.
        """
        some = list(itertools.islice(self._qt_names, NAMES_AT_ONCE))
        for module, name in some:
            getattr(module, name)
        QTimer.singleShot(0, self, self._create_qt_classes if some else self._next)

    def _next(self) -> None:
        """Load one module at a time, so that the window can process events in between."""
        if self._left:
            name = self._left.pop(0)
            self._background.run(lambda: _load(name), owner=self, done=lambda _: self._next())
        else:
            # Loaded modules never become garbage; freezing keeps the next collection from scanning them.
            gc.freeze()
            self.is_finished = True
            self.finished.emit()


def _load(name: str) -> None:
    with contextlib.suppress(ImportError):  # the tab that needs it reports the error
        import_module(name)


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Remote:
    """A daemon on another machine (or another port of this one)."""

    target: str
    token: str
    tls_ca: Path | None = None
    profile: str = ""
    """Its name in the settings"""
    options: str = ""
    """Options of `mosaic` that reach it"""


@dataclass
class WindowParts:
    """Everything one window consists of, and its shutdown."""

    window: MainWindow
    link: DaemonLink
    background: Background
    warm_up: WarmUp

    def close(self) -> None:
        """Disconnect from the daemon and end every thread; the daemon and its runs continue."""
        self.window.close()
        self.link.stop()
        self.background.close()


def build_window(
    application: QApplication, home: Home, remote: Remote | None = None, theme: ThemeChoice | None = None
) -> WindowParts:
    """Return a window that is not shown yet and a link that was not started."""
    if remote is not None:
        os.environ[env.MOSAIC_DAEMON_TOKEN] = remote.token  # for processes of the window that ask the daemon
    appearance = Appearance(application, choice=theme, parent=application)
    background = Background()
    connector = LocalConnector(home) if remote is None else RemoteConnector(remote.target, remote.token, remote.tls_ca)
    link = DaemonLink(connector, background)
    link.connect_options = remote.options if remote is not None else ""
    window = MainWindow(link, background, home if remote is None else None, appearance, connector=connector)
    if remote is not None:
        window.setWindowTitle(f"MOSAIC – {remote.profile or remote.target}")
    return WindowParts(window, link, background, WarmUp(link, background, window))


def main(home: Home, remote: Remote | None = None, theme: ThemeChoice | None = None) -> int:
    """Open the window and return when it is closed."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)-7s %(name)s | %(message)s", stream=sys.stderr)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # the banner shows connection problems
    qInstallMessageHandler(_log_qt)
    # Must be set before the application is created if QtWebEngine may be loaded later (ui/widgets/web_view.py).
    QApplication.setAttribute(Qt.ApplicationAttribute.AA_ShareOpenGLContexts)
    application = QApplication([sys.argv[0]])
    application.setApplicationName("mosaic")
    application.setApplicationDisplayName("MOSAIC")
    application.setApplicationVersion(__version__)
    application.setOrganizationName("MOSAIC")
    application.setDesktopFileName("mosaic")
    application.setWindowIcon(application_icon())
    if remote is None:
        with contextlib.suppress(OSError, WireError):  # the window reports an unusable home
            home.create()
    faults = FaultLog((home.root / "logs" if remote is None else config_home()) / "window-faults.log")
    faults.open()
    parts = build_window(application, home, remote, theme)
    reporter = CrashReporter(parts.window)
    reporter.install()
    ending = _EndOnSignal(application.quit, parts.window)
    if faults.previous is not None:
        parts.window.show_message(
            parts.window.tr(
                "The window ended abruptly last time; your runs were not affected. The traceback is in {file}."
            ).format(file=faults.previous)
        )
    parts.window.show()
    parts.link.start()  # after `show`: the window is visible before the first request
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
    """Close the window gracefully on Ctrl-C in the terminal and on SIGTERM.

    Python runs signal handlers only between its own instructions, and Qt's event loop executes none while it waits: the
    interpreter's wake-up socket interrupts it.
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
