"""Show errors of the window itself as a report that can be copied."""

from __future__ import annotations

import faulthandler
import logging
import os
import platform
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import IO

from PySide6.QtCore import QObject, QSysInfo, Qt, Signal, qVersion
from PySide6.QtWidgets import QApplication, QDialog, QDialogButtonBox, QLabel, QPlainTextEdit, QVBoxLayout, QWidget

from gym_gui import __version__
from gym_gui.ui import theme
from gym_gui.ui.widgets.parts import fill, named

logger = logging.getLogger(__name__)


class ReportDialog(QDialog):
    """A text to read and to copy; not modal, the window stays usable."""

    def __init__(self, title: str, explanation: str, report: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("report_dialog")
        self.setWindowTitle(title)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        text = QLabel(explanation, wordWrap=True)
        self.text = named(QPlainTextEdit(report, readOnly=True), "report_text", self.tr("Report"))
        self.text.setFont(theme.monospace())
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        self.copy_button = buttons.addButton(self.tr("&Copy report"), QDialogButtonBox.ButtonRole.ActionRole)
        self.copy_button.setObjectName("copy_report")
        self.copy_button.clicked.connect(self.copy)
        fill(QVBoxLayout(self), text, (self.text, 1), buttons)
        width = self.fontMetrics().averageCharWidth()
        self.resize(width * 110, self.fontMetrics().height() * 26)

    def copy(self) -> None:
        QApplication.clipboard().setText(self.text.toPlainText())
        self.copy_button.setText(self.tr("Copied"))


class CrashReporter(QObject):
    """Show uncaught exceptions of any thread, each once."""

    caught = Signal(str, str)  # one line, the whole report

    def __init__(self, window: QWidget | None = None) -> None:
        super().__init__(window)
        self._window = window
        self._hooks = (sys.excepthook, threading.excepthook)
        self._shown: set[str] = set()
        self.caught.connect(self._show, Qt.ConnectionType.QueuedConnection)

    def install(self) -> None:
        sys.excepthook = self._handle
        threading.excepthook = self._handle_in_thread

    def uninstall(self) -> None:
        sys.excepthook, threading.excepthook = self._hooks

    def _handle(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None, where: str = "the window"
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            QApplication.quit()
            return
        logger.error("uncaught exception in %s", where, exc_info=(kind, error, trace))
        self.caught.emit(f"{kind.__name__}: {error}", report_of(kind, error, trace, where))

    def _handle_in_thread(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
            where = f"the thread {args.thread.name}" if args.thread else "a thread"
            self._handle(args.exc_type, args.exc_value, args.exc_traceback, where)

    def _show(self, line: str, report: str) -> None:
        if line in self._shown:  # a slot that fails with every timer tick must not fill the screen
            return
        self._shown.add(line)
        dialog = ReportDialog(
            self.tr("Something went wrong in the window"),
            self.tr(
                "Unexpected error: {line}\n\nYour runs are not affected, they belong to the trainer "
                "daemon. The window keeps running; if it misbehaves, close and reopen it. "
                "To report it, copy the text below and describe what you did just before."
            ).format(line=line),
            report,
            self._window,
        )
        dialog.show()


def report_of(kind: type[BaseException], error: BaseException, trace: TracebackType | None, where: str) -> str:
    """Return a bug report without secrets: no environment variables, no settings."""
    reported = "".join(traceback.format_exception(kind, error, trace))
    return f"{about_this_program()}\nIn {where}:\n\n{reported}"


def about_this_program() -> str:
    screen = QApplication.primaryScreen()
    size = f"{screen.size().width()}×{screen.size().height()}" if screen else "none"
    return (
        f"MOSAIC {__version__}\nPython {platform.python_version()}, Qt {qVersion()} ({QApplication.platformName()})\n"
        # Not platform.platform(): it starts a process, which would block a slot.
        f"{QSysInfo.prettyProductName()}, {QSysInfo.kernelType()} {QSysInfo.kernelVersion()}, "
        f"{QSysInfo.currentCpuArchitecture()}\nScreen {size}, process {os.getpid()}"
    )


class FaultLog:
    """The file to which `faulthandler` writes when a library crashes the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.previous: Path | None = None
        """Path of the previous window's traceback, if it crashed"""
        self._stream: IO[str] | None = None

    def open(self) -> None:
        """Start this window's log; keep the previous one if it is not empty."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() and self.path.stat().st_size > 0:
                self.previous = self.path.with_suffix(".previous.log")
                self.path.replace(self.previous)
            self._stream = self.path.open("w", encoding="utf-8")
        except OSError as error:
            logger.info("no fault log at %s: %s", self.path, error)
            return
        faulthandler.enable(self._stream, all_threads=True)

    def close(self) -> None:
        """Remove the log after an orderly exit."""
        if self._stream is not None:
            faulthandler.disable()
            self._stream.close()
            self._stream = None
            self.path.unlink(missing_ok=True)
