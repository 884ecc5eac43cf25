"""The Management workspace and its pages about the daemon, workers and saved filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mosaic_wire.paths import Home
from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import Qt, QUrl, Signal
from PySide6.QtGui import QDesktopServices, QHideEvent, QShowEvent
from PySide6.QtWidgets import (
    QFormLayout,
    QFrame,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.local_daemon import log_tail
from gym_gui.ui import theme
from gym_gui.ui.background import Background
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase
from gym_gui.ui.management.daemon_control import DaemonControl
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import caption, confirm, fill, named, push_button, styled, timer
from gym_gui.ui.widgets.tables import ColumnSpec, RowsTable, TableRow
from gym_gui.wording import formats
from gym_gui.wording.run_view import parsed


class FiltersPage(QWidget):
    """The daemon stores filters, so every window and the command share them."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("filters_page")
        self._link = link
        self.banner = Banner(parent=self)
        explanation = QLabel(self.tr("Filters are saved above the list of runs; delete them here."))
        explanation.setProperty("role", "caption")
        self.table = RowsTable(
            [ColumnSpec(self.tr("Name"), 20), ColumnSpec(self.tr("Shows"), 40)],
            name="filters_table",
            accessible=self.tr("Saved filters"),
            multiple=True,
        )
        self.table.itemSelectionChanged.connect(self._offer)
        self.delete_button = named(QPushButton(self.tr("&Delete…")), "delete_filters")
        self.delete_button.setAccessibleName(self.tr("Delete the selected filters"))
        self.delete_button.clicked.connect(self._ask_to_delete)
        buttons = fill(QHBoxLayout(), self.delete_button, 1)
        fill(QVBoxLayout(self), self.banner, explanation, (self.table, 1), buttons, margins=12, spacing=10)
        self._offer()
        link.state_changed.connect(lambda _state: self.poll() if self.isVisible() else None)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.poll()

    def poll(self) -> None:
        if self._link.state.phase is LinkPhase.CONNECTED:
            self._link.call(lambda client: client.filters(), owner=self, done=self._show, failed=self._failed)

    def _show(self, filters: dict[str, dict[str, Any]]) -> None:
        self.banner.clear()
        self.table.fill(TableRow(name, [name, self._facts_text(query)]) for name, query in sorted(filters.items()))
        if not filters:
            self.banner.set_message(self.tr("No filter is saved yet."))

    def _failed(self, text: str) -> None:
        self.banner.set_message(text, "bad", action=self.tr("Retry"), on_action=self.poll)

    def _facts_text(self, query: Mapping[str, Any]) -> str:
        window = query.get("window")
        if isinstance(window, Mapping):  # saved by a window: complete, the other keys are for the command
            facets = window.get("facets")
            query = {
                "text": window.get("text"),
                **(facets if isinstance(facets, Mapping) else {}),
                "include_archived": query.get("include_archived"),
            }
        parts = []
        for key, value in query.items():
            if value in ("", [], False, None, 0):
                continue
            text_of_value = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            parts.append(key.replace("_", " ") + ("" if value is True else f": {text_of_value}"))
        return "; ".join(parts) or self.tr("all runs")

    def _offer(self) -> None:
        self.delete_button.setEnabled(bool(self.table.chosen()))

    def _ask_to_delete(self) -> None:
        names = self.table.chosen()

        def delete() -> None:
            self._link.call(
                lambda client: _delete(client, names),
                owner=self,
                done=lambda _nothing: self.poll(),
                failed=self._failed,
            )

        if names:
            confirm(
                self,
                self.tr("Delete the saved filters {}?").format(", ".join(names)),
                self.tr("No run is deleted."),
                yes=self.tr("Delete"),
                on_yes=delete,
            )


def _delete(client: TrainerClient, names: Sequence[str]) -> None:
    for name in names:
        client.delete_filter(name)


class WorkersPage(QWidget):
    """Asks the daemon when it is first shown, and on request."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("workers_page")
        self._link = link
        self._workers: dict[str, pb.Worker] = {}
        self._is_asked = False
        self.banner = Banner(parent=self)
        self.table = RowsTable(
            [
                ColumnSpec(self.tr("Name"), 10),
                ColumnSpec(self.tr("What"), 16),
                ColumnSpec(self.tr("Version"), 8),
                ColumnSpec(self.tr("Algorithms"), 8, right=True),
                ColumnSpec(self.tr("State"), 10),
                ColumnSpec(self.tr("Found by"), 20),
            ],
            name="workers_table",
            accessible=self.tr("Installed workers"),
        )
        self.table.itemSelectionChanged.connect(self._show_details)
        self.details = named(QPlainTextEdit(readOnly=True), "worker_details", self.tr("About the selected worker"))
        self.details.setFont(theme.monospace())
        self.details.setPlaceholderText(self.tr("Select a worker to see its details."))
        self.details.setMaximumHeight(self.fontMetrics().height() * 10)
        self.refresh_button = named(QPushButton(self.tr("&Refresh")), "refresh_workers")
        self.refresh_button.setAccessibleName(self.tr("Ask every worker again"))
        self.refresh_button.setToolTip(self.tr("Asks every worker again for its description; takes some seconds."))
        self.refresh_button.clicked.connect(lambda: self.poll(refresh=True))
        explanation = caption(
            "",
            self.tr("A worker is a program that trains or plays. One that cannot be used shows why and what to do."),
            wraps=True,
        )
        head = fill(QHBoxLayout(), (explanation, 1), self.refresh_button)
        fill(QVBoxLayout(self), self.banner, head, (self.table, 1), self.details, margins=12, spacing=10)
        link.state_changed.connect(self._link_changed)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._is_asked:
            self.poll()

    def poll(self, *, refresh: bool = False) -> None:
        self._is_asked = True
        self.refresh_button.setEnabled(False)
        self.banner.set_message(self.tr("Asking the workers…"))
        self._link.call(
            lambda client: list(client.workers(refresh=refresh)),
            owner=self,
            done=self.show_workers,
            failed=self._failed,
        )

    def show_workers(self, workers: Iterable[pb.Worker]) -> None:
        self.refresh_button.setEnabled(True)
        self._workers = {worker.name: worker for worker in workers}
        self.table.fill(
            TableRow(
                worker.name,
                [
                    worker.name,
                    worker.display_name,
                    worker.version,
                    _algorithms(worker),
                    self.tr("has a problem") if worker.problem else self.tr("ready"),
                    worker.origin,
                ],
                tip=worker.problem,
            )
            for worker in self._workers.values()
        )
        failing = [worker.name for worker in self._workers.values() if worker.problem]
        if not self._workers:
            self.banner.set_message(self.tr("No worker is installed. `pip install` one, then refresh."), "warning")
        elif failing:
            self.banner.set_message(
                self.tr("Cannot be used now: {}. Select it below to see how to fix it.").format(", ".join(failing)),
                "warning",
            )
            if not self.table.chosen():
                row = self.table.row_of(failing[0])
                if row is not None:
                    self.table.selectRow(row)
        else:
            self.banner.clear()

    def _failed(self, text: str) -> None:
        self._is_asked = False
        self.refresh_button.setEnabled(True)
        self.banner.set_message(text, "bad", action=self.tr("Retry"), on_action=self.poll)

    def _link_changed(self, _state: object) -> None:
        if self._link.state.phase is LinkPhase.CONNECTED and self.isVisible() and not self._is_asked:
            self.poll()

    def _show_details(self) -> None:
        chosen = self.table.chosen()
        worker = self._workers.get(chosen[0]) if chosen else None
        if worker is None:
            self.details.clear()
            return
        spec = parsed(worker.spec_json)
        spec = spec if isinstance(spec, dict) else {}
        algorithms = [str(entry.get("name")) for entry in spec.get("algorithms", ()) if isinstance(entry, dict)]
        lines = [
            worker.problem,
            self.tr("Found by: {}").format(worker.origin),
            self.tr("Started as: {}").format(" ".join(map(str, spec.get("argv", ())))) if spec.get("argv") else "",
            self.tr("Algorithms: {}").format(", ".join(algorithms)) if algorithms else "",
        ]
        self.details.setPlainText("\n".join(filter(None, lines)))


def _algorithms(worker: pb.Worker) -> str:
    spec = parsed(worker.spec_json)
    algorithms = spec.get("algorithms") if isinstance(spec, dict) else None
    return str(len(algorithms)) if isinstance(algorithms, list) else ""


REFRESH_MS = 2_000
_LINES = 200


class DaemonPage(QWidget):
    """Polls the daemon's health while it is visible."""

    def __init__(
        self, link: DaemonLink, control: DaemonControl, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("daemon_page")
        self._link, self._control, self._home = link, control, home
        self._log = ""
        self._health: pb.Health | None = None
        self._timer = timer(self, self.poll, REFRESH_MS)
        self._build()
        link.state_changed.connect(lambda _state: self._show_state())
        control.busy_changed.connect(self._busy)
        control.done.connect(self._done)
        control.failed.connect(self._failed)
        self._show_state()

    def _build(self) -> None:
        self.banner = Banner(parent=self)
        self.state = named(QLabel(), "daemon_state", role="title")
        self.start_button = push_button("start_daemon", self.tr("&Start"), self._control.start)
        self.stop_button = push_button("stop_daemon", self.tr("S&top…"), self._ask_to_stop)
        self.restart_button = push_button("restart_daemon", self.tr("&Restart"), self._control.restart)
        self.restart_button.setToolTip(self.tr("Changed settings take effect. Runs keep running."))
        head = fill(QHBoxLayout(), (self.state, 1), self.start_button, self.stop_button, self.restart_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 12, 12, 12)
        layout.setSpacing(10)
        fill(layout, self.banner, head, self._facts_card(), self._log_part(), (self.log, 1))
        if self._home is None:
            layout.addStretch(1)

    def _facts_card(self) -> QFrame:
        card = styled(QFrame(), "card")
        self._form = QFormLayout(card)
        self._form.setContentsMargins(12, 10, 12, 10)
        self._form.setHorizontalSpacing(18)
        self._facts: dict[str, QLabel] = {}
        for key, title in (
            ("address", self.tr("Address")),
            ("pid", self.tr("Process")),
            ("version", self.tr("Version")),
            ("uptime", self.tr("Up")),
            ("home", self.tr("Home")),
            ("runs", self.tr("Runs")),
            ("cpus", self.tr("CPUs")),
            ("memory", self.tr("Memory")),
            ("gpus", self.tr("GPUs")),
            ("disk", self.tr("Disk")),
        ):
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
        """Return the log and its title."""
        self.log = named(QPlainTextEdit(), "daemon_log", self.tr("The end of the daemon's log"))
        self.log.setReadOnly(True)
        self.log.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.log.setMaximumBlockCount(_LINES)
        self.log.setFont(theme.monospace())
        self.log.setPlaceholderText(self.tr("The daemon has written nothing yet."))
        self.log_title = styled(QLabel(textInteractionFlags=Qt.TextInteractionFlag.TextSelectableByMouse), "caption")
        self.open_log = push_button("open_daemon_log", self.tr("&Open the log"), self._open_log)
        log_head = fill(QHBoxLayout(), (self.log_title, 1), self.open_log)
        if self._home is not None:
            self.log_title.setText(self.tr("End of {}").format(self._home.daemon_log))
        else:
            self.log_title.setText(self.tr("The daemon is on another machine; its log is there."))
            self.log.hide()
            self.open_log.hide()
        return log_head

    # ------------------------------------------------------------------ polling

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._timer.start()
        self.poll()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()

    def poll(self) -> None:
        """Request health and log."""
        if self._link.is_connected:
            self._link.call(lambda client: client.health(), owner=self, done=self._show_health, failed=self._forget)
        if self._home is not None:
            file = self._home.daemon_log
            self._link.background.run(lambda: _tail(file), owner=self, done=self._show_log)

    def _forget(self, _error: str) -> None:
        """Ignore the error: the daemon exited between two polls, and the link reports it."""
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
            self.banner.set_message(health.trouble, "bad")

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
            self.tr("The daemon runs")
            if is_there
            else self.tr("Looking for the daemon…")
            if state.phase is LinkPhase.CONNECTING
            else self.tr("The daemon does not respond")
        )
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
            text = self.tr("The daemon is on another machine; start it there with `mosaic daemon start`.")
            self.start_button.setToolTip(text)
            self.restart_button.setToolTip(text)

    # ------------------------------------------------------------------ actions

    def _ask_to_stop(self) -> None:
        running = self._health.running if self._health is not None else 0
        text = (
            self.tr("{} runs keep running without it; the next daemon recovers them.").format(running)
            if running
            else self.tr("No run is active; queued runs wait for the next daemon.")
        )
        if not self._control.can_start:
            text += " " + self.tr("It can be started again only on its own machine.")
        confirm(
            self,
            self.tr("Stop the daemon?"),
            text,
            yes=self.tr("Stop"),
            on_yes=self._control.stop,
            is_dangerous=not self._control.can_start,
        )

    def _busy(self, text: str) -> None:
        if text:
            self.banner.set_message(text)
        self._show_state()

    def _done(self, text: str) -> None:
        self.banner.set_message(text)
        self.poll()

    def _failed(self, text: str) -> None:
        if self._control.can_start and self.stop_button.isEnabled():
            self.banner.set_message(text, "bad", action=self.tr("Kill its process"), on_action=self._control.force)
        else:
            self.banner.set_message(text, "bad")

    def _open_log(self) -> None:
        if self._home is not None:
            QDesktopServices.openUrl(QUrl.fromLocalFile(str(self._home.daemon_log)))


def _tail(file: Path) -> str:
    return "\n".join(log_tail(file, lines=_LINES))


DAEMON, WORKERS, SETS, DISK, FILTERS = "daemon", "workers", "sets", "disk", "filters"


class ManagementPanel(QWidget):
    """Pages that are built when they are first shown."""

    run_opened = Signal(str)

    def __init__(
        self, link: DaemonLink, background: Background, home: Home | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setObjectName("management_panel")
        self._link, self._background, self._home = link, background, home
        self.control = DaemonControl(link, home, self)
        self.pages = named(QTabWidget(documentMode=True), "management_pages")
        self._builders: dict[str, Callable[[], QWidget]] = {
            DAEMON: self._daemon,
            WORKERS: self._workers,
            SETS: self._sets,
            DISK: self._disk,
            FILTERS: self._filters,
        }
        titles = {
            DAEMON: self.tr("&Daemon"),
            WORKERS: self.tr("&Workers"),
            SETS: self.tr("Requirement &sets"),
            DISK: self.tr("Disk &use"),
            FILTERS: self.tr("Saved f&ilters"),
        }
        self._built: dict[str, QWidget] = {}
        self._holders: list[QVBoxLayout] = []
        for name in self._builders:
            holder = QWidget()
            layout = QVBoxLayout(holder)
            layout.setContentsMargins(0, 0, 0, 0)
            self._holders.append(layout)
            self.pages.addTab(holder, titles[name])
        self.settings_button = named(QPushButton(self.tr("S&ettings…")), "open_settings", self.tr("Settings"))
        self.settings_button.clicked.connect(self.open_settings)
        self.pages.setCornerWidget(self.settings_button, Qt.Corner.TopRightCorner)
        self.pages.currentChanged.connect(self._build_page)
        fill(QVBoxLayout(self), self.pages, margins=0)
        self._build_page(0)

    def show_page(self, name: str) -> QWidget:
        """Show a page by its name and return its widget."""
        self.pages.setCurrentIndex(list(self._builders).index(name))
        return self._built[name]

    def open_settings(self) -> None:
        from gym_gui.ui.management.settings_dialog import SettingsDialog

        SettingsDialog(self._link, self._background, self._home, self).open()

    def _build_page(self, index: int) -> None:
        name = list(self._builders)[index]
        if name not in self._built:
            self._built[name] = self._builders[name]()
            self._holders[index].addWidget(self._built[name])

    def _daemon(self) -> QWidget:
        return DaemonPage(self._link, self.control, self._home)

    def _workers(self) -> QWidget:
        return WorkersPage(self._link)

    def _sets(self) -> QWidget:
        from gym_gui.ui.management.sets_table import SetsTable

        return SetsTable(self._link, self._background, self._home)

    def _disk(self) -> QWidget:
        from gym_gui.ui.management.disk_use import DiskUse

        page = DiskUse(self._link, self._background, self._home)
        page.run_opened.connect(self.run_opened)
        return page

    def _filters(self) -> QWidget:
        return FiltersPage(self._link)
