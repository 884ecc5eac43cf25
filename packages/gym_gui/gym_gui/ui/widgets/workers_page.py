"""Which workers are installed, and what is wrong with those that cannot be used."""

from __future__ import annotations

from collections.abc import Iterable

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPlainTextEdit, QPushButton, QVBoxLayout, QWidget

from gym_gui.ui import theme
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.rows_table import ColumnSpec, Row, RowsTable
from gym_gui.wording.run_view import parsed


class WorkersPage(QWidget):
    """Asks the daemon when it is first seen, and on request."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("workers_page")
        self._link = link
        self._workers: dict[str, pb.Worker] = {}
        self._is_asked = False
        self.banner = Banner(parent=self)
        self.table = RowsTable(
            [
                ColumnSpec(self.tr("Name"), 10), ColumnSpec(self.tr("What"), 16), ColumnSpec(self.tr("Version"), 8),
                ColumnSpec(self.tr("Algorithms"), 8, right=True), ColumnSpec(self.tr("State"), 10),
                ColumnSpec(self.tr("Found by"), 20),
            ],
            name="workers_table", accessible=self.tr("Installed workers"),
        )  # fmt: skip
        self.table.itemSelectionChanged.connect(self._show_details)
        self.details = QPlainTextEdit()
        self.details.setObjectName("worker_details")
        self.details.setAccessibleName(self.tr("About the chosen worker"))
        self.details.setReadOnly(True)
        self.details.setFont(theme.monospace())
        self.details.setPlaceholderText(self.tr("Choose a worker to read more about it."))
        self.details.setMaximumHeight(self.fontMetrics().height() * 10)
        self.refresh_button = QPushButton(self.tr("&Look again"))
        self.refresh_button.setObjectName("refresh_workers")
        self.refresh_button.setAccessibleName(self.tr("Ask every worker anew"))
        self.refresh_button.setToolTip(self.tr("Asks every worker anew what it can do; takes some seconds."))
        self.refresh_button.clicked.connect(lambda: self.look(refresh=True))
        explanation = QLabel(
            self.tr("A worker is a program that trains or plays. One that cannot be used says why, and what helps.")
        )
        explanation.setProperty("role", "caption")
        explanation.setWordWrap(True)
        head = QHBoxLayout()
        head.addWidget(explanation, 1)
        head.addWidget(self.refresh_button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 12, 12, 12)
        layout.setSpacing(10)
        layout.addWidget(self.banner)
        layout.addLayout(head)
        layout.addWidget(self.table, 1)
        layout.addWidget(self.details)
        link.state_changed.connect(self._link_changed)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._is_asked:
            self.look()

    def look(self, *, refresh: bool = False) -> None:
        self._is_asked = True
        self.refresh_button.setEnabled(False)
        self.banner.say(self.tr("Asking the workers…"))
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
            Row(
                worker.name,
                [
                    worker.name, worker.display_name, worker.version, _algorithms(worker),
                    self.tr("has a problem") if worker.problem else self.tr("ready"), worker.origin,
                ],
                tip=worker.problem,
            )
            for worker in self._workers.values()
        )  # fmt: skip
        troubled = [worker.name for worker in self._workers.values() if worker.problem]
        if not self._workers:
            self.banner.say(self.tr("No worker is installed. `pip install` one, then look again."), "warning")
        elif troubled:
            self.banner.say(
                self.tr("Cannot be used now: {}. Choose it below to see what helps.").format(", ".join(troubled)),
                "warning",
            )
            if not self.table.chosen():
                row = self.table.row_of(troubled[0])
                if row is not None:
                    self.table.selectRow(row)
        else:
            self.banner.clear()

    def _failed(self, words: str) -> None:
        self._is_asked = False
        self.refresh_button.setEnabled(True)
        self.banner.say(words, "bad", action=self.tr("Try again"), on_action=self.look)

    def _link_changed(self, _state: object) -> None:
        if self._link.state.phase is LinkPhase.CONNECTED and self.isVisible() and not self._is_asked:
            self.look()

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
