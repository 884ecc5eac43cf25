"""The daemon: is it there, where, since when, what does it say; start, stop, restart."""

from __future__ import annotations

from pathlib import Path

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt, QTimer, QUrl
from PySide6.QtGui import QDesktopServices, QHideEvent, QShowEvent
from PySide6.QtWidgets import (
    QFormLayout,
    QFrame,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.local_daemon import log_tail
from gym_gui.ui import theme
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase
from gym_gui.ui.management.daemon_control import DaemonControl
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.confirm import confirm
from gym_gui.wording import formats

LOOK_AGAIN_MS = 2_000
_LINES = 200


class DaemonPage(QWidget):
    """Asks for the daemon's health while it is seen."""

    def __init__(
        self, link: DaemonLink, control: DaemonControl, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("daemon_page")
        self._link, self._control, self._home = link, control, home
        self._log = ""
        self._health: pb.Health | None = None
        self._timer = QTimer(self)
        self._timer.setInterval(LOOK_AGAIN_MS)
        self._timer.timeout.connect(self.look)
        self._build()
        link.state_changed.connect(lambda _state: self._show_state())
        control.busy_changed.connect(self._busy)
        control.done.connect(self._done)
        control.failed.connect(self._failed)
        self._show_state()

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self.state = QLabel()
        self.state.setObjectName("daemon_state")
        self.state.setProperty("role", "title")
        self.start_button = self._button("start_daemon", self.tr("&Start"), self._control.start)
        self.stop_button = self._button("stop_daemon", self.tr("S&top…"), self._ask_to_stop)
        self.restart_button = self._button("restart_daemon", self.tr("&Restart"), self._control.restart)
        self.restart_button.setToolTip(self.tr("Changed settings take effect. Runs go on meanwhile."))
        head = QHBoxLayout()
        head.addWidget(self.state, 1)
        for button in (self.start_button, self.stop_button, self.restart_button):
            head.addWidget(button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 12, 12, 12)
        layout.setSpacing(10)
        layout.addWidget(self.banner)
        layout.addLayout(head)
        layout.addWidget(self._facts_card())
        layout.addLayout(self._log_part())
        layout.addWidget(self.log, 1)
        if self._home is None:
            layout.addStretch(1)

    def _facts_card(self) -> QFrame:
        card = QFrame()
        card.setProperty("role", "card")
        self._form = QFormLayout(card)
        self._form.setContentsMargins(12, 10, 12, 10)
        self._form.setHorizontalSpacing(18)
        self._facts: dict[str, QLabel] = {}
        for key, title in (
            ("address", self.tr("Address")), ("pid", self.tr("Process")), ("version", self.tr("Version")),
            ("uptime", self.tr("Up")), ("home", self.tr("Home")), ("runs", self.tr("Runs")),
            ("cpus", self.tr("CPUs")), ("memory", self.tr("Memory")), ("gpus", self.tr("GPUs")),
            ("disk", self.tr("Disk")),
        ):  # fmt: skip
            caption, value = QLabel(title), QLabel("–")
            caption.setProperty("role", "caption")
            value.setObjectName(f"daemon_{key}")
            value.setWordWrap(True)
            value.setTextInteractionFlags(
                Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
            )
            self._form.addRow(caption, value)
            self._facts[key] = value
        return card

    def _log_part(self) -> QHBoxLayout:
        """The log, and the line above it."""
        self.log = QPlainTextEdit()
        self.log.setObjectName("daemon_log")
        self.log.setAccessibleName(self.tr("The end of the daemon's log"))
        self.log.setReadOnly(True)
        self.log.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.log.setMaximumBlockCount(_LINES)
        self.log.setFont(theme.monospace())
        self.log.setPlaceholderText(self.tr("The daemon has written nothing yet."))
        self.log_title = QLabel()
        self.log_title.setProperty("role", "caption")
        self.log_title.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.open_log = self._button("open_daemon_log", self.tr("&Open the log"), self._open_log)
        log_head = QHBoxLayout()
        log_head.addWidget(self.log_title, 1)
        log_head.addWidget(self.open_log)
        if self._home is not None:
            self.log_title.setText(self.tr("End of {}").format(self._home.daemon_log))
        else:
            self.log_title.setText(self.tr("The daemon is on another machine; its log is there."))
            self.log.hide()
            self.open_log.hide()
        return log_head

    def _button(self, name: str, text: str, clicked: object) -> QPushButton:
        button = QPushButton(text)
        button.setObjectName(name)
        button.setAccessibleName(text.replace("&", "").replace("…", ""))
        button.clicked.connect(lambda: clicked() if callable(clicked) else None)
        return button

    # ------------------------------------------------------------------ looking

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._timer.start()
        self.look()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()

    def look(self) -> None:
        """Ask again for health and log."""
        if self._link.is_connected:
            self._link.call(lambda client: client.health(), owner=self, done=self._show_health, failed=self._forget)
        if self._home is not None:
            file = self._home.daemon_log
            self._link.background.run(lambda: _tail(file), owner=self, done=self._show_log)

    def _forget(self, _words: str) -> None:
        """It went away between two looks; the link says so."""
        self._health = None
        self._show_state()

    def _show_health(self, health: pb.Health) -> None:
        self._health = health
        self._show_state()
        available, total = (formats.size(mb * 2**20) for mb in (health.memory_mb_available, health.memory_mb_total))
        gpus = "\n".join(
            f"{gpu.id}  {gpu.name}, " + (self.tr("reserved") if gpu.reserved_by else self.tr("free"))
            for gpu in health.gpus
        )
        for key, text in {
            "address": "\n".join(health.addresses),
            "pid": str(health.pid),
            "version": health.version,
            "uptime": formats.duration(health.uptime_s),
            "home": health.home,
            "runs": self.tr("{running} running, {queued} queued").format(running=health.running, queued=health.queued),
            "cpus": self.tr("{free:g} of {total:g} free").format(free=health.cpus_free, total=health.cpus_total),
            "memory": self.tr("{available} of {total} available").format(available=available, total=total),
            "gpus": gpus or self.tr("none"),
            "disk": self.tr("{} free").format(formats.size(health.disk_mb_free * 2**20)),
        }.items():
            self._facts[key].setText(text)
        if health.trouble:
            self.banner.say(health.trouble, "bad")

    def _show_log(self, text: str) -> None:
        if text == self._log:
            return
        self._log = text
        bar = self.log.verticalScrollBar()
        follows, place = bar.value() >= bar.maximum() - 2, bar.value()
        self.log.setPlainText(text)
        bar.setValue(bar.maximum() if follows else place)

    def _show_state(self) -> None:
        state = self._link.state
        is_there = state.phase is LinkPhase.CONNECTED
        self.state.setText(
            self.tr("The daemon runs") if is_there
            else self.tr("Looking for the daemon…") if state.phase is LinkPhase.CONNECTING
            else self.tr("No daemon answers")
        )  # fmt: skip
        if not is_there:
            self._health = None
            for label in self._facts.values():
                label.setText("–")
            if self._home is not None:
                self._facts["home"].setText(str(self._home.root))
            self._facts["address"].setText(state.detail or "–")
        elif self._health is None and self.isVisible():
            self._link.call(lambda client: client.health(), owner=self, done=self._show_health, failed=lambda _: None)
        idle = not self._control.is_busy
        self.start_button.setEnabled(idle and not is_there and self._control.can_start)
        self.stop_button.setEnabled(idle and is_there)
        self.restart_button.setEnabled(idle and self._control.can_start)
        if not self._control.can_start:
            words = self.tr("The daemon is on another machine; start it there with `mosaic daemon start`.")
            self.start_button.setToolTip(words)
            self.restart_button.setToolTip(words)

    # ------------------------------------------------------------------ doing

    def _ask_to_stop(self) -> None:
        running = self._health.running if self._health is not None else 0
        words = (
            self.tr("{} runs go on without it; the next daemon takes them over.").format(running) if running
            else self.tr("No run is working now; queued runs wait for the next daemon.")
        )  # fmt: skip
        if not self._control.can_start:
            words += " " + self.tr("It can be started again only on its own machine.")
        confirm(
            self, self.tr("Stop the daemon?"), words, yes=self.tr("Stop"), on_yes=self._control.stop,
            is_dangerous=not self._control.can_start,
        )  # fmt: skip

    def _busy(self, words: str) -> None:
        if words:
            self.banner.say(words)
        self._show_state()

    def _done(self, words: str) -> None:
        self.banner.say(words)
        self.look()

    def _failed(self, words: str) -> None:
        if self._control.can_start and self.stop_button.isEnabled():
            self.banner.say(words, "bad", action=self.tr("End its process"), on_action=self._control.force)
        else:
            self.banner.say(words, "bad")

    def _open_log(self) -> None:
        if self._home is not None:
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(self._home.daemon_log)))


def _tail(file: Path) -> str:
    return "\n".join(log_tail(file, lines=_LINES))
