"""Tables of the last steps and episodes of a live worker: the newest on top, a bounded number of them."""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.telemetry import decode
from PySide6.QtCore import QAbstractTableModel, QCoreApplication, QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableView, QWidget

from gym_gui.ui.replay.observations import short
from gym_gui.wording import formats

M = TypeVar("M", pb.RunStep, pb.RunEpisode)
_Index = QModelIndex | QPersistentModelIndex
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter


@dataclass(frozen=True)
class Column(Generic[M]):
    title: str
    write: Callable[[M], str]
    characters: int
    is_number: bool = True


class RecentModel(QAbstractTableModel, Generic[M]):
    """The newest `keep` messages, newest first. Cells are made when they are looked at: most never are."""

    def __init__(self, columns: Sequence[Column[M]], keep: int) -> None:
        super().__init__()
        self._columns: Sequence[Column[M]] = columns
        self._keep = keep
        self._rows: deque[M] = deque()
        self._texts: dict[tuple[int, int], str] = {}

    def add(self, fresh: Sequence[M]) -> None:
        """Put messages (oldest first) on top."""
        fresh = fresh[-self._keep :]
        if not fresh:
            return
        if len(fresh) == self._keep:  # nothing of what was there stays
            self.beginResetModel()
            self._rows = deque(reversed(fresh))
            self._texts.clear()
            self.endResetModel()
            return
        if (surplus := len(self._rows) + len(fresh) - self._keep) > 0:
            self.beginRemoveRows(QModelIndex(), len(self._rows) - surplus, len(self._rows) - 1)
            for _ in range(surplus):
                gone = self._rows.pop()
                for column in range(len(self._columns)):
                    self._texts.pop((gone.seq, column), None)
            self.endRemoveRows()
        self.beginInsertRows(QModelIndex(), 0, len(fresh) - 1)
        self._rows.extendleft(fresh)
        self.endInsertRows()

    @property
    def has_agents(self) -> bool:
        """Whether more than one may act: then each row names its agent."""
        return bool(self._rows) and bool(self._rows[0].agent_id)

    def clear(self) -> None:
        self.beginResetModel()
        self._rows.clear()
        self._texts.clear()
        self.endResetModel()

    def message(self, row: int) -> M | None:
        return self._rows[row] if 0 <= row < len(self._rows) else None

    @property
    def columns(self) -> Sequence[Column[M]]:
        return self._columns

    # -- Qt

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self._rows)

    def columnCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self._columns)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation == Qt.Orientation.Horizontal:
            if role == Qt.ItemDataRole.DisplayRole:
                return self._columns[section].title
            if role == Qt.ItemDataRole.TextAlignmentRole and self._columns[section].is_number:
                return _RIGHT
        return None

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if role == Qt.ItemDataRole.DisplayRole:
            message = self._rows[index.row()]
            key = (message.seq, index.column())
            if key not in self._texts:
                self._texts[key] = self._columns[index.column()].write(message)
            return self._texts[key]
        if role == Qt.ItemDataRole.TextAlignmentRole and self._columns[index.column()].is_number:
            return _RIGHT
        return None


def steps_model(keep: int = 500) -> RecentModel[pb.RunStep]:
    return RecentModel(
        (
            Column(_tr("Step"), lambda step: formats.count(step.seq), 10),
            Column(_tr("Episode"), lambda step: formats.count(step.episode), 8),
            Column(_tr("In episode"), lambda step: formats.count(step.index), 9),
            Column(_tr("Action"), _action, 20, is_number=False),
            Column(_tr("Reward"), lambda step: formats.quantity(step.reward), 9),
            Column(_tr("Ends"), _end, 14, is_number=False),
            Column(_tr("Agent"), lambda step: step.agent_id, 10, is_number=False),
            Column(_tr("Info"), _info, 24, is_number=False),
        ),
        keep,
    )


def episodes_model(keep: int = 500) -> RecentModel[pb.RunEpisode]:
    return RecentModel(
        (
            Column(_tr("Episode"), lambda episode: formats.count(episode.episode), 9),
            Column(_tr("Return"), lambda episode: formats.quantity(episode.episodic_return), 10),
            Column(_tr("Length"), lambda episode: formats.count(episode.length), 9),
            Column(_tr("Ends"), _end, 14, is_number=False),
            Column(_tr("Agent"), lambda episode: episode.agent_id, 10, is_number=False),
            Column(_tr("Finished"), lambda episode: _clock(episode.timestamp), 12, is_number=False),
        ),
        keep,
    )


class RecentTable(QTableView):
    """A table of a RecentModel, with columns as wide as their words need."""

    def __init__(self, model: RecentModel[Any], name: str, words: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName(name)
        self.setAccessibleName(words)
        self._model = model
        self.setModel(model)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setWordWrap(False)
        self.setShowGrid(False)
        self.setAlternatingRowColors(True)
        self.setTabKeyNavigation(False)
        self.verticalHeader().hide()
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self.verticalHeader().setDefaultSectionSize(round(self.fontMetrics().height() * 1.5))
        header = self.horizontalHeader()
        header.setStretchLastSection(True)
        header.setHighlightSections(False)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        for number, column in enumerate(model.columns):
            wide = max(column.characters, len(column.title) + 2)
            header.resizeSection(number, self.fontMetrics().averageCharWidth() * (wide + 1))
        self._agents = [column.title for column in model.columns].index(_tr("Agent"))
        self.setColumnHidden(self._agents, True)

    def show_agents_or_not(self) -> None:
        """Most runs have one agent without a name: a column for it would be empty."""
        if self.isColumnHidden(self._agents) and self._model.has_agents:
            self.setColumnHidden(self._agents, False)


def _tr(text: str) -> str:
    return QCoreApplication.translate("RecentTable", text)


def _action(step: pb.RunStep) -> str:
    try:
        value = decode(step.action)
    except (ValueError, OSError, EOFError, zlib.error):
        return _tr("unreadable")
    return "" if value is None else short(value)


def _end(message: pb.RunStep | pb.RunEpisode) -> str:
    return _tr("terminated") if message.terminated else _tr("truncated") if message.truncated else ""


def _info(step: pb.RunStep) -> str:
    if not step.info_json:
        return ""
    try:
        info = json.loads(step.info_json)
    except ValueError:
        return _tr("unreadable")
    return ", ".join(f"{key}: {short(value)}" for key, value in info.items()) if isinstance(info, dict) else short(info)


def _clock(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp).strftime("%H:%M:%S") if timestamp else ""
