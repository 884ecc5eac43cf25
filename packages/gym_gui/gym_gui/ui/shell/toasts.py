"""Notifications in the corner of the window, and in the system tray, when runs end."""

from __future__ import annotations

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunOutcome
from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QEnterEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QSystemTrayIcon, QVBoxLayout, QWidget

from gym_gui.ui.settings import notifies
from gym_gui.ui.shell.announcements import Announcement
from gym_gui.ui.widgets.parts import fill, named, push_button, timer
from gym_gui.wording import formats
from gym_gui.wording.run_view import title_of

AT_MOST = 4
"""Toasts on the screen; a new one replaces the oldest"""
SHOWN_MS = {"completed": 8_000, "failed": 20_000}
_MARGIN = 12


class Toast(QFrame):
    """One notification. It stays as long as the mouse is over it."""

    opened = Signal(str)  # run id
    closed = Signal()

    def __init__(self, title: str, text: str, *, tone: str, run_id: str, shown_ms: int, parent: QWidget) -> None:
        super().__init__(parent)
        named(self, "toast", role="toast")
        self.setProperty("tone", tone)
        self.setAccessibleName(f"{title}. {text}")
        self._run_id = run_id
        heading = QLabel(title, textFormat=Qt.TextFormat.PlainText)
        font = heading.font()
        font.setBold(True)
        heading.setFont(font)
        heading.setWordWrap(True)
        body = QLabel(text)
        body.setVisible(bool(text))
        body.setTextFormat(Qt.TextFormat.PlainText)
        body.setWordWrap(True)
        self._open = push_button("toast_show", self.tr("Show"), self._show_run, self.tr("Show this run"))
        close = push_button("toast_dismiss", self.tr("Dismiss"), self.dismiss, self.tr("Dismiss this notification"))
        buttons = fill(QHBoxLayout(), 1, self._open, close)
        self._open.setVisible(bool(run_id))
        fill(QVBoxLayout(self), heading, body, buttons, margins=(12, 8, 10, 8), spacing=4)
        self.setFixedWidth(self.fontMetrics().averageCharWidth() * 48)
        self._timer = timer(self, self.dismiss, shown_ms, single_shot=True)
        self._timer.start()

    def dismiss(self) -> None:
        self._timer.stop()
        self.hide()
        self.closed.emit()
        self.deleteLater()

    def enterEvent(self, event: QEnterEvent) -> None:
        self._timer.stop()
        super().enterEvent(event)

    def leaveEvent(self, event: QEvent) -> None:
        self._timer.start()
        super().leaveEvent(event)

    def _show_run(self) -> None:
        self.opened.emit(self._run_id)
        self.dismiss()


class Toasts(QObject):
    """Show the toasts of one window in its lower right corner, the newest at the bottom."""

    opened = Signal(str)  # run id

    def __init__(self, window: QWidget, *, above: QWidget | None = None, tray: QSystemTrayIcon | None = None) -> None:
        super().__init__(window)
        self._window, self._above, self._tray = window, above, tray
        self._toasts: list[Toast] = []
        self._run_of_tray_message = ""
        window.installEventFilter(self)
        if tray is not None:
            tray.messageClicked.connect(self._tray_clicked)

    def announce(self, announcement: Announcement) -> None:
        """Show how one or several runs ended."""
        runs = announcement.runs
        failed = announcement.kind == "failed"
        if len(runs) == 1:
            title = self.tr("Run failed") if failed else self.tr("Run finished")
            text = _one_line(runs[0])
        else:
            failures = sum(run.outcome == RunOutcome.FAILED for run in runs)
            title = self.tr("%n runs ended", "", len(runs))
            text = self.tr("{completed} completed, {failed} failed").format(
                completed=len(runs) - failures, failed=failures
            )
        self.show_message(
            title,
            text,
            tone="bad" if failed else "info",
            run_id=runs[0].run_id if len(runs) == 1 else "",
            shown_ms=SHOWN_MS["failed" if failed else "completed"],
            in_window=failed or notifies("window"),
        )

    def show_message(
        self,
        title: str,
        text: str,
        *,
        tone: str = "info",
        run_id: str = "",
        shown_ms: int = 8_000,
        in_window: bool = True,
    ) -> None:
        """Show a toast; while the window is in the background also a tray message, if enabled."""
        if in_window:
            self._show(title, text, tone=tone, run_id=run_id, shown_ms=shown_ms)
        if self._tray is not None and not self._window.isActiveWindow() and notifies("tray"):
            icon = QSystemTrayIcon.MessageIcon.Critical if tone == "bad" else QSystemTrayIcon.MessageIcon.Information
            self._run_of_tray_message = run_id
            self._tray.showMessage(title, text, icon, shown_ms)

    def _show(self, title: str, text: str, *, tone: str, run_id: str, shown_ms: int) -> None:
        toast = Toast(title, text, tone=tone, run_id=run_id, shown_ms=shown_ms, parent=self._window)
        toast.opened.connect(self.opened)
        toast.closed.connect(lambda: self._forget_toast(toast))
        self._toasts.append(toast)
        while len(self._toasts) > AT_MOST:
            self._toasts[0].dismiss()
        self._arrange()  # before it is shown: under the mouse it would never close
        toast.show()

    @property
    def shown(self) -> list[Toast]:
        return list(self._toasts)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            self._arrange()
        return False

    def _forget_toast(self, toast: Toast) -> None:
        if toast in self._toasts:
            self._toasts.remove(toast)
        self._arrange()

    def _arrange(self) -> None:
        bottom = self._window.height() - _MARGIN
        if self._above is not None and self._above.isVisible():
            bottom -= self._above.height()
        for toast in reversed(self._toasts):
            toast.adjustSize()
            toast.move(self._window.width() - toast.width() - _MARGIN, bottom - toast.height())
            toast.raise_()
            bottom -= toast.height() + _MARGIN // 2

    def _tray_clicked(self) -> None:
        self._window.showNormal() if self._window.isMinimized() else self._window.show()
        self._window.raise_()
        self._window.activateWindow()
        if self._run_of_tray_message:
            self.opened.emit(self._run_of_tray_message)


def _one_line(run: pb.Run) -> str:
    """Return title and return of a run, or the reason for its failure."""
    if run.outcome == RunOutcome.FAILED:
        reason = " ".join(run.reason.split())
        return f"{title_of(run)}: {reason[:200]}" if reason else title_of(run)
    if run.HasField("episodic_return"):
        return f"{title_of(run)}: return {formats.quantity(run.episodic_return)}"
    return title_of(run)
