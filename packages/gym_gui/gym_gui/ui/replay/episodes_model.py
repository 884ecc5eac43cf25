"""The recorded episodes of a run as a table, newest first; grows while the run goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt

from gym_gui.wording import formats

_NOWHERE = QModelIndex()
Index = QModelIndex | QPersistentModelIndex


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode that is over; `seq` is its number in the store."""

    seq: int
    episode: int
    agent_id: str
    episodic_return: float
    length: int
    ending: str
    timestamp: float


class EpisodesModel(QAbstractTableModel):
    """Row 0 is the episode that is being played, while one is; below it the newest first."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._episodes: list[Episode] = []
        self._live: int | None = None
        self._titles = [self.tr("Episode"), self.tr("Return"), self.tr("Length"), self.tr("End"), self.tr("When")]

    # ------------------------------------------------------------------ what its owner does

    def clear(self) -> None:
        self.beginResetModel()
        self._episodes, self._live = [], None
        self.endResetModel()

    def add(self, messages: list[pb.RunEpisode]) -> None:
        """Newer ones; those that are known already (a stream that was opened again) are passed over."""
        last = self.last_seq
        fresh = [_episode(message) for message in messages if message.seq > last]
        if not fresh:
            return
        first_row = 0 if self._live is None else 1
        self.beginInsertRows(_NOWHERE, first_row, first_row + len(fresh) - 1)
        self._episodes += fresh
        self.endInsertRows()
        if self._live is not None:
            self._live = self.next_episode
            self.dataChanged.emit(self.index(0, 0), self.index(0, 0))

    def set_live(self, is_live: bool) -> None:
        """Whether an episode may be being played now."""
        if is_live and self._live is None:
            self.beginInsertRows(_NOWHERE, 0, 0)
            self._live = self.next_episode
            self.endInsertRows()
        elif not is_live and self._live is not None:
            self.beginRemoveRows(_NOWHERE, 0, 0)
            self._live = None
            self.endRemoveRows()

    @property
    def last_seq(self) -> int:
        return self._episodes[-1].seq if self._episodes else 0

    @property
    def next_episode(self) -> int:
        """The number of the one that follows those that are over."""
        return self._episodes[-1].episode + 1 if self._episodes else 0

    @property
    def recorded(self) -> int:
        return len(self._episodes)

    def episode_at(self, row: int) -> tuple[int, bool] | None:
        """Its number in the run, and whether it is still being played."""
        if self._live is not None:
            if row == 0:
                return self._live, True
            row -= 1
        place = len(self._episodes) - 1 - row
        return (self._episodes[place].episode, False) if 0 <= place < len(self._episodes) else None

    def row_of(self, episode: int) -> int | None:
        """Where an episode stands that is over."""
        for place in range(len(self._episodes) - 1, -1, -1):
            if self._episodes[place].episode == episode:
                return len(self._episodes) - 1 - place + (self._live is not None)
        return None

    # ------------------------------------------------------------------ what Qt asks

    def rowCount(self, parent: Index = _NOWHERE) -> int:
        return 0 if parent.isValid() else len(self._episodes) + (self._live is not None)

    def columnCount(self, parent: Index = _NOWHERE) -> int:
        return 0 if parent.isValid() else len(self._titles)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return self._titles[section]
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.TextAlignmentRole:
            return _alignment(section)
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        row, column = index.row(), index.column()
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _alignment(column)
        if role not in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            return None
        if self._live is not None:
            if row == 0:
                return (f"{self._live}", "", "", self.tr("now"), "")[column]
            row -= 1
        episode = self._episodes[len(self._episodes) - 1 - row]
        if column == 0:
            return f"{episode.episode}" + (f" · {episode.agent_id}" if episode.agent_id else "")
        if column == 4 and role == Qt.ItemDataRole.DisplayRole:
            return formats.moment(episode.timestamp)[11:]
        return (
            "",
            formats.quantity(episode.episodic_return),
            formats.count(episode.length),
            self._ending(episode.ending),
            formats.moment(episode.timestamp),
        )[column]

    def _ending(self, ending: str) -> str:
        return {"terminated": self.tr("ended"), "truncated": self.tr("cut off")}.get(ending, "")


def _episode(message: pb.RunEpisode) -> Episode:
    ending = "truncated" if message.truncated else "terminated" if message.terminated else ""
    return Episode(
        message.seq, message.episode, message.agent_id, message.episodic_return, message.length, ending,
        message.timestamp,
    )  # fmt: skip


def _alignment(column: int) -> Qt.AlignmentFlag:
    side = Qt.AlignmentFlag.AlignRight if column in (1, 2) else Qt.AlignmentFlag.AlignLeft
    return side | Qt.AlignmentFlag.AlignVCenter
