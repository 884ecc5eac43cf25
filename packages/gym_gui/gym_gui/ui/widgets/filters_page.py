"""Saved filters of the runs table: what they ask for, and deleting them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from gym_gui.services.trainer.client import TrainerClient
from gym_gui.ui.daemon_link import DaemonLink, LinkPhase
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.confirm import confirm
from gym_gui.ui.widgets.rows_table import ColumnSpec, Row, RowsTable


class FiltersPage(QWidget):
    """They are kept by the daemon, so every window and the command see the same."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("filters_page")
        self._link = link
        self.banner = Banner(parent=self)
        explanation = QLabel(self.tr("Filters are saved above the runs table; here they are tidied up."))
        explanation.setProperty("role", "caption")
        self.table = RowsTable(
            [ColumnSpec(self.tr("Name"), 20), ColumnSpec(self.tr("Shows"), 40)],
            name="filters_table", accessible=self.tr("Saved filters"), multiple=True,
        )  # fmt: skip
        self.table.itemSelectionChanged.connect(self._offer)
        self.delete_button = QPushButton(self.tr("&Delete…"))
        self.delete_button.setObjectName("delete_filters")
        self.delete_button.setAccessibleName(self.tr("Delete the chosen filters"))
        self.delete_button.clicked.connect(self._ask_to_delete)
        buttons = QHBoxLayout()
        buttons.addWidget(self.delete_button)
        buttons.addStretch(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 12, 12, 12)
        layout.setSpacing(10)
        layout.addWidget(self.banner)
        layout.addWidget(explanation)
        layout.addWidget(self.table, 1)
        layout.addLayout(buttons)
        self._offer()
        link.state_changed.connect(lambda _state: self.look() if self.isVisible() else None)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.look()

    def look(self) -> None:
        if self._link.state.phase is LinkPhase.CONNECTED:
            self._link.call(lambda client: client.filters(), owner=self, done=self._show, failed=self._failed)

    def _show(self, filters: dict[str, dict[str, Any]]) -> None:
        self.banner.clear()
        self.table.fill(Row(name, [name, self._in_words(query)]) for name, query in sorted(filters.items()))
        if not filters:
            self.banner.say(self.tr("No filter is saved yet."))

    def _failed(self, words: str) -> None:
        self.banner.say(words, "bad", action=self.tr("Try again"), on_action=self.look)

    def _in_words(self, query: Mapping[str, Any]) -> str:
        window = query.get("window")
        if isinstance(window, Mapping):  # saved by a window: all of it is there, the rest is for the command
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
            said = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            parts.append(key.replace("_", " ") + ("" if value is True else f": {said}"))
        return "; ".join(parts) or self.tr("all runs")

    def _offer(self) -> None:
        self.delete_button.setEnabled(bool(self.table.chosen()))

    def _ask_to_delete(self) -> None:
        names = self.table.chosen()

        def delete() -> None:
            self._link.call(
                lambda client: _delete(client, names), owner=self,
                done=lambda _nothing: self.look(), failed=self._failed,
            )  # fmt: skip

        if names:
            confirm(
                self, self.tr("Delete the saved filters {}?").format(", ".join(names)),
                self.tr("No run is deleted."), yes=self.tr("Delete"), on_yes=delete,
            )  # fmt: skip


def _delete(client: TrainerClient, names: Sequence[str]) -> None:
    for name in names:
        client.delete_filter(name)
