"""The bottom line of the window: the daemon in words, runs, and how busy the machine is."""

from __future__ import annotations

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QTimer, Signal
from PySide6.QtWidgets import QLabel, QStatusBar, QWidget

from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase, LinkState
from gym_gui.ui.machine_use import MachineMeter, MachineUse
from gym_gui.ui.presenters.announcements import Counts
from gym_gui.wording import formats

EVERY_MS = 3000


class StatusBar(QStatusBar):
    """Asks the daemon and the machine every few seconds, off the window's thread, while somebody can see it."""

    trouble_changed = Signal(str)  # what the daemon complains about; "" when all is well
    silence_changed = Signal(str)  # it is connected and does not answer: why, as far as we can tell; "" when it does

    def __init__(
        self, link: DaemonLink, background: Background, *, is_local: bool = True, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("status_bar")
        self._link, self._background, self._is_local = link, background, is_local
        self._meter: MachineMeter | None = None
        self._is_asking_daemon = self._is_asking_machine = False
        self._trouble = self._silence = ""
        self.daemon = self._label("status_daemon", self.tr("State of the trainer daemon"))
        self.runs = self._label("status_runs", self.tr("Running and queued runs"))
        self.cpu = self._label("status_cpu", self.tr("CPU use"))
        self.memory = self._label("status_memory", self.tr("Memory use"))
        self.gpu = self._label("status_gpu", self.tr("GPU use"))
        self.addWidget(self.daemon)
        self.addWidget(self.runs)
        for label in (self.cpu, self.memory, self.gpu):
            self.addPermanentWidget(label)
        self.show_state(link.state)
        self.show_counts(Counts())
        self._timer = QTimer(self)
        self._timer.setInterval(EVERY_MS)
        self._timer.timeout.connect(self.ask)
        self._timer.start()
        link.state_changed.connect(self.show_state)

    def show_state(self, state: LinkState) -> None:
        words = {
            LinkPhase.CONNECTING: self.tr("Looking for the trainer daemon…")
            if not self._is_local
            else self.tr("Starting the trainer daemon…"),
            LinkPhase.CONNECTED: self.tr("Trainer daemon: connected"),
            LinkPhase.LOST: self.tr("Trainer daemon: not connected"),
        }
        self.daemon.setText(words[state.phase])
        self.daemon.setToolTip(state.detail or state.target)
        if state.phase is LinkPhase.CONNECTED:
            self.ask()

    def show_counts(self, counts: Counts) -> None:
        parts = [self.tr("%n running", "", counts.running), self.tr("%n queued", "", counts.queued)]
        if counts.paused:
            parts.append(self.tr("%n paused", "", counts.paused))
        self.runs.setText(" · ".join(parts))

    def ask(self) -> None:
        """Ask now, unless an answer is still on its way or nobody sees it."""
        if self.window().isMinimized():
            return
        if self._link.is_connected and not self._is_asking_daemon:
            self._is_asking_daemon = True
            self._link.call(
                lambda client: client.health(), owner=self, done=self._show_health, failed=self._daemon_is_silent
            )
        if self._is_local and not self._is_asking_machine:
            self._is_asking_machine = True
            self._background.run(self._read_machine, owner=self, done=self._show_machine)

    def _read_machine(self) -> MachineUse:
        if self._meter is None:
            self._meter = MachineMeter()
        return self._meter.read()

    def _daemon_is_silent(self, words: str) -> None:
        self._is_asking_daemon = False
        self.daemon.setToolTip(words)
        self._note_silence(words)

    def _note_silence(self, words: str) -> None:
        """A daemon that is stopped by a signal keeps its connection and says nothing: the link cannot see that."""
        if words != self._silence:
            self._silence = words
            self.silence_changed.emit(words)

    def _show_health(self, health: pb.Health) -> None:
        self._is_asking_daemon = False
        self._note_silence("")
        if self._link.is_connected:
            self.daemon.setToolTip(
                self.tr("Version {version}, process {pid}, up {uptime}\nHome: {home}\nListens on: {addresses}").format(
                    version=health.version,
                    pid=health.pid,
                    uptime=formats.duration(health.uptime_s),
                    home=health.home,
                    addresses=", ".join(health.addresses),
                )
            )
        if health.trouble != self._trouble:
            self._trouble = health.trouble
            self.trouble_changed.emit(health.trouble)
        reserved = self.tr("{used} of {total} CPUs reserved by runs").format(
            used=f"{max(0.0, health.cpus_total - health.cpus_free):g}", total=f"{health.cpus_total:g}"
        )
        self.cpu.setToolTip(reserved)
        if self._is_local:
            return
        # A machine far away tells what is reserved, not how busy it is.
        self.cpu.setText(reserved)
        self._show_memory(health.memory_mb_total - health.memory_mb_available, health.memory_mb_total)
        taken = sum(bool(gpu.reserved_by) for gpu in health.gpus)
        self.gpu.setText(
            self.tr("{used} of {total} GPUs reserved").format(used=taken, total=len(health.gpus))
            if health.gpus
            else self.tr("no GPU")
        )

    def _show_machine(self, use: MachineUse) -> None:
        self._is_asking_machine = False
        percent = "–" if use.cpu_percent is None else f"{use.cpu_percent:.0f}"
        self.cpu.setText(self.tr("CPU {percent} %").format(percent=percent))
        self._show_memory(use.memory_used >> 20, use.memory_total >> 20)
        self.gpu.setText(
            " · ".join(
                self.tr("GPU {percent} %, {used} of {total}").format(
                    percent=gpu.percent, used=formats.size(gpu.memory_used), total=formats.size(gpu.memory_total)
                )
                for gpu in use.gpus
            )
            or self.tr("no GPU")
        )

    def _show_memory(self, used_mb: int, total_mb: int) -> None:
        self.memory.setText(
            self.tr("RAM {used} of {total}").format(
                used=formats.size(used_mb * 2**20), total=formats.size(total_mb * 2**20)
            )
        )

    def _label(self, name: str, accessible: str) -> QLabel:
        label = QLabel(self)
        label.setObjectName(name)
        label.setAccessibleName(accessible)
        label.setContentsMargins(6, 2, 6, 2)
        return label
