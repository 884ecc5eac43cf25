"""Short notes in the corner of the window: a run finished, a run failed. With a system tray, there too."""

from __future__ import annotations

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal
from PySide6.QtGui import QEnterEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QSystemTrayIcon, QVBoxLayout, QWidget

from gym_gui.ui import notices
from gym_gui.ui.presenters.announcements import Announcement
from gym_gui.wording import formats
from gym_gui.wording.run_view import title_of

AT_MOST = 4
"""Notes on the screen; an older one makes room"""
SHOWN_MS = {"completed": 8_000, "failed": 20_000}
_MARGIN = 12


class Toast(QFrame):
    """One note. It waits as long as the mouse is over it."""

    opened = Signal(str)  # run id
    closed = Signal()

    def __init__(self, title: str, text: str, *, tone: str, run_id: str, shown_ms: int, parent: QWidget) -> None:
        super().__init__(parent)
        self.setObjectName("toast")
        self.setProperty("role", "toast")
        self.setProperty("tone", tone)
        self.setAccessibleName(f"{title}. {text}")
        self._run_id = run_id
        heading = QLabel(title)
        heading.setTextFormat(Qt.TextFormat.PlainText)
        font = heading.font()
        font.setBold(True)
        heading.setFont(font)
        heading.setWordWrap(True)
        body = QLabel(text)
        body.setVisible(bool(text))
        body.setTextFormat(Qt.TextFormat.PlainText)
        body.setWordWrap(True)
        self._open = QPushButton(self.tr("Show"))
        self._open.setObjectName("toast_show")
        self._open.setAccessibleName(self.tr("Show this run"))
        self._open.clicked.connect(self._show_run)
        close = QPushButton(self.tr("Dismiss"))
        close.setObjectName("toast_dismiss")
        close.setAccessibleName(self.tr("Dismiss this note"))
        close.clicked.connect(self.dismiss)
        buttons = QHBoxLayout()
        buttons.addStretch(1)
        buttons.addWidget(self._open)
        buttons.addWidget(close)
        self._open.setVisible(bool(run_id))
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 8, 10, 8)
        layout.setSpacing(4)
        layout.addWidget(heading)
        layout.addWidget(body)
        layout.addLayout(buttons)
        self.setFixedWidth(self.fontMetrics().averageCharWidth() * 48)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(shown_ms)
        self._timer.timeout.connect(self.dismiss)
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
    """Places the notes of one window in its lower right corner, the newest at the bottom."""

    opened = Signal(str)  # run id

    def __init__(self, window: QWidget, *, above: QWidget | None = None, tray: QSystemTrayIcon | None = None) -> None:
        super().__init__(window)
        self._window, self._above, self._tray = window, above, tray
        self._toasts: list[Toast] = []
        self._told_in_tray = ""
        window.installEventFilter(self)
        if tray is not None:
            tray.messageClicked.connect(self._tray_clicked)

    def tell(self, announcement: Announcement) -> None:
        """Say how a run (or several) ended."""
        runs = announcement.runs
        failed = announcement.kind == "failed"
        if len(runs) == 1:
            title = self.tr("Run failed") if failed else self.tr("Run finished")
            text = _one_line(runs[0])
        else:
            failures = sum(run.outcome == "failed" for run in runs)
            title = self.tr("%n runs ended", "", len(runs))
            text = self.tr("{completed} completed, {failed} failed").format(
                completed=len(runs) - failures, failed=failures
            )
        self.say(
            title,
            text,
            tone="bad" if failed else "info",
            run_id=runs[0].run_id if len(runs) == 1 else "",
            shown_ms=SHOWN_MS["failed" if failed else "completed"],
            in_window=failed or notices.window_notes_wanted(),
        )

    def say(
        self, title: str, text: str, *, tone: str = "info", run_id: str = "", shown_ms: int = 8_000,
        in_window: bool = True,
    ) -> None:  # fmt: skip
        """Show a note; while the window is in the background also in the tray, if people want that."""
        if in_window:
            self._show(title, text, tone=tone, run_id=run_id, shown_ms=shown_ms)
        if self._tray is not None and not self._window.isActiveWindow() and notices.tray_notes_wanted():
            icon = QSystemTrayIcon.MessageIcon.Critical if tone == "bad" else QSystemTrayIcon.MessageIcon.Information
            self._told_in_tray = run_id
            self._tray.showMessage(title, text, icon, shown_ms)

    def _show(self, title: str, text: str, *, tone: str, run_id: str, shown_ms: int) -> None:
        toast = Toast(title, text, tone=tone, run_id=run_id, shown_ms=shown_ms, parent=self._window)
        toast.opened.connect(self.opened)
        toast.closed.connect(lambda: self._gone(toast))
        self._toasts.append(toast)
        while len(self._toasts) > AT_MOST:
            self._toasts[0].dismiss()
        self._arrange()  # before it is shown: in the wrong place it might find the mouse and wait for it
        toast.show()

    @property
    def shown(self) -> list[Toast]:
        return list(self._toasts)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            self._arrange()
        return False

    def _gone(self, toast: Toast) -> None:
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
        if self._told_in_tray:
            self.opened.emit(self._told_in_tray)


def _one_line(run: pb.Run) -> str:
    """What and how well, or why not."""
    if run.outcome == "failed":
        reason = " ".join(run.reason.split())
        return f"{title_of(run)}: {reason[:200]}" if reason else title_of(run)
    if run.HasField("episodic_return"):
        return f"{title_of(run)}: return {formats.quantity(run.episodic_return)}"
    return title_of(run)
