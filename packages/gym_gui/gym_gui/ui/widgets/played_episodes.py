"""The episodes of a game, as they end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem, QWidget


class PlayedEpisodes(QTableWidget):
    """One row an episode; a person does not play thousands."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(0, 5, parent)
        self.setObjectName("played_episodes")
        self.setAccessibleName(self.tr("Episodes played in this game"))
        self.setHorizontalHeaderLabels(
            [self.tr("Episode"), self.tr("Seed"), self.tr("Steps"), self.tr("Return"), self.tr("Ended by")]
        )
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setTabKeyNavigation(False)
        self.setShowGrid(False)
        self.verticalHeader().hide()
        self.verticalHeader().setDefaultSectionSize(round(self.fontMetrics().height() * 1.6))
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self.horizontalHeader().setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self.setMaximumHeight(self.fontMetrics().height() * 7)

    def clear_episodes(self) -> None:
        self.setRowCount(0)

    def add_episode(self, message: Mapping[str, Any], seed: int) -> None:
        """From an `episode_done` message."""
        ended = self.tr("time limit") if message["truncated"] else self.tr("the game")
        if message.get("ended_by") == "player":
            ended = self.tr("you")
        texts = (
            str(int(message["episode_index"]) + 1), str(seed), str(message["episode_length"]),
            number(message["episode_reward"]), ended,
        )  # fmt: skip
        row = self.rowCount()
        self.insertRow(row)
        for column, text in enumerate(texts):
            self.setItem(row, column, QTableWidgetItem(text))
        self.scrollToBottom()


def number(value: Any) -> str:
    """As short as it can be without hiding what happened."""
    return f"{float(value):.2f}".rstrip("0").rstrip(".") if isinstance(value, int | float) else "–"
