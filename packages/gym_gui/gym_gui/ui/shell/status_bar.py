"""The status bar: daemon, runs, and how busy the machine is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psutil
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Signal
from PySide6.QtWidgets import QLabel, QStatusBar, QWidget

from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase, LinkState
from gym_gui.ui.shell.announcements import Counts
from gym_gui.ui.widgets.parts import named, timer
from gym_gui.wording import formats


@dataclass(frozen=True)
class GpuUse:
    percent: int
    memory_used: int
    memory_total: int


@dataclass(frozen=True)
class MachineUse:
    """Percent of all cores together; bytes."""

    cpu_percent: float | None
    """None for the first sample: CPU use is measured between two samples"""
    memory_used: int
    memory_total: int
    gpus: tuple[GpuUse, ...] = ()


class MachineMeter:
    """Sample the machine; CPU use is the mean since the last sample.

    Not `psutil.cpu_percent`: it keeps the last sample per thread, and several threads sample here.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._has_queried_gpus = False
        self._before: tuple[float, float] | None = None

    def read(self) -> MachineUse:
        memory = psutil.virtual_memory()
        return MachineUse(self._cpu_percent(), memory.total - memory.available, memory.total, self._gpus())

    def _cpu_percent(self) -> float | None:
        times = psutil.cpu_times()
        # `user` and `nice` include the guests' time.
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle = times.idle + getattr(times, "iowait", 0.0)
        before, self._before = self._before, (total, idle)
        if before is None or total <= before[0]:
            return None
        return 100.0 * (1.0 - (idle - before[1]) / (total - before[0]))

    def _gpus(self) -> tuple[GpuUse, ...]:
        if not self._has_queried_gpus:
            self._has_queried_gpus = True
            import pynvml

            try:
                pynvml.nvmlInit()
                self._nvml = pynvml
            except pynvml.NVMLError:
                return ()
        if (nvml := self._nvml) is None:
            return ()
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                percent = int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            except nvml.NVMLError:
                continue  # a lost device, or a MIG partition without utilization
            found.append(GpuUse(percent, int(memory.used), int(memory.total)))
        return tuple(found)


EVERY_MS = 3000


class StatusBar(QStatusBar):
    """Polls the daemon and the machine every few seconds in the background while the window is visible."""

    complaint_changed = Signal(str)  # the problem the daemon reports; "" for none
    unresponsive_changed = Signal(str)  # why a connected daemon does not respond; "" when it does

    def __init__(
        self, link: DaemonLink, background: Background, *, is_local: bool = True, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("status_bar")
        self._link, self._background, self._is_local = link, background, is_local
        self._meter: MachineMeter | None = None
        self._is_asking_daemon = self._is_asking_machine = False
        self._complaint = self._unresponsive = ""
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
        self._timer = timer(self, self.ask, EVERY_MS)
        self._timer.start()
        link.state_changed.connect(self.show_state)

    def show_state(self, state: LinkState) -> None:
        texts = {
            LinkPhase.CONNECTING: self.tr("Looking for the trainer daemon…")
            if not self._is_local
            else self.tr("Starting the trainer daemon…"),
            LinkPhase.CONNECTED: self.tr("Trainer daemon: connected"),
            LinkPhase.LOST: self.tr("Trainer daemon: not connected"),
        }
        self.daemon.setText(texts[state.phase])
        self.daemon.setToolTip(state.detail or state.target)
        if state.phase is LinkPhase.CONNECTED:
            self.ask()

    def show_counts(self, counts: Counts) -> None:
        parts = [self.tr("%n running", "", counts.running), self.tr("%n queued", "", counts.queued)]
        if counts.paused:
            parts.append(self.tr("%n paused", "", counts.paused))
        self.runs.setText(" · ".join(parts))

    def ask(self) -> None:
        """Poll now, unless a request is pending or the window is hidden."""
        if self.window().isMinimized():
            return
        if self._link.is_connected and not self._is_asking_daemon:
            self._is_asking_daemon = True
            self._link.call(
                lambda client: client.health(), owner=self, done=self._show_health, failed=self._set_unresponsive
            )
        if self._is_local and not self._is_asking_machine:
            self._is_asking_machine = True
            self._background.run(self._read_machine, owner=self, done=self._show_machine)

    def _read_machine(self) -> MachineUse:
        if self._meter is None:
            self._meter = MachineMeter()
        return self._meter.read()

    def _set_unresponsive(self, text: str) -> None:
        self._is_asking_daemon = False
        self.daemon.setToolTip(text)
        self._note_unresponsive(text)

    def _note_unresponsive(self, text: str) -> None:
        """Emit that a connected daemon does not respond, e.g. stopped by a signal; the link cannot detect that."""
        if text != self._unresponsive:
            self._unresponsive = text
            self.unresponsive_changed.emit(text)

    def _show_health(self, health: pb.Health) -> None:
        self._is_asking_daemon = False
        self._note_unresponsive("")
        if self._link.is_connected:
            self.daemon.setToolTip(
                self.tr("Version {version}, process {pid}, up {uptime}\nHome: {home}\nAddresses: {addresses}").format(
                    version=health.version,
                    pid=health.pid,
                    uptime=formats.duration(health.uptime_s),
                    home=health.home,
                    addresses=", ".join(health.addresses),
                )
            )
        if health.trouble != self._complaint:
            self._complaint = health.trouble
            self.complaint_changed.emit(health.trouble)
        reserved = self.tr("{used} of {total} CPUs reserved by runs").format(
            used=f"{max(0.0, health.cpus_total - health.cpus_free):g}", total=f"{health.cpus_total:g}"
        )
        self.cpu.setToolTip(reserved)
        if self._is_local:
            return
        # A remote daemon reports reservations, not the load of its machine.
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
        label = named(QLabel(self), name, accessible)
        label.setContentsMargins(6, 2, 6, 2)
        return label
