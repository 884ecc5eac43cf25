"""What happened to a run, as a line of events in time; each opens to show what it told."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QAbstractItemModel, QModelIndex, QObject, QPersistentModelIndex, QPoint, QRect, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPen
from PySide6.QtWidgets import QHeaderView, QStyledItemDelegate, QStyleOptionViewItem, QTreeView, QWidget

from gym_gui.ui import theme
from gym_gui.wording import formats
from gym_gui.wording.run_view import parsed

_Index = QModelIndex | QPersistentModelIndex
_ROOT = QModelIndex()
EVENT_ROLE = Qt.ItemDataRole.UserRole + 1


class Column(IntEnum):
    TIME = 0
    AFTER = 1
    EVENT = 2
    STATUS = 3
    REASON = 4


@dataclass(eq=False)
class _Row:
    event: pb.StoryEvent
    details: list[tuple[str, str]] | None = None
    """Read from the payload when somebody opens the row"""
    children: list[_Detail] = field(default_factory=list)


@dataclass(eq=False)
class _Detail:
    row: _Row
    number: int
    name: str
    value: str


def details_of(event: pb.StoryEvent) -> list[tuple[str, str]]:
    """What an event told, name by name."""
    payload = parsed(event.payload_json)
    found = [(str(key), _text(value)) for key, value in payload.items()] if isinstance(payload, dict) else []
    return [*found, ("seq", str(event.seq)), ("attempt", str(event.attempt))]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def move_of(event: pb.StoryEvent) -> str:
    """`INIT → HSHK`; empty when the status did not change."""
    if event.to_status and event.from_status != event.to_status:
        return f"{event.from_status} → {event.to_status}" if event.from_status else event.to_status
    return ""


class TimelineModel(QAbstractItemModel):
    """Events in their order, each once; below each of them what it told."""

    def __init__(self, event_word: Callable[[str], str], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._word = event_word
        self._rows: list[_Row] = []

    @property
    def last_seq(self) -> int:
        return self._rows[-1].event.seq if self._rows else 0

    def clear(self) -> None:
        self.beginResetModel()
        self._rows = []
        self.endResetModel()

    def add(self, events: Iterable[pb.StoryEvent]) -> int:
        """Take events in, whatever their order, each once; return how many were new."""
        added = 0
        for event in sorted(events, key=lambda event: event.seq):
            place = bisect_left(self._rows, event.seq, key=lambda row: row.event.seq)
            if place < len(self._rows) and self._rows[place].event.seq == event.seq:
                continue
            self.beginInsertRows(_ROOT, place, place)
            self._rows.insert(place, _Row(event))
            self.endInsertRows()
            added += 1
        return added

    def event_at(self, index: _Index) -> pb.StoryEvent | None:
        item = index.internalPointer() if index.isValid() else None
        return item.event if isinstance(item, _Row) else item.row.event if isinstance(item, _Detail) else None

    # ------------------------------------------------------------------ what Qt asks

    def index(self, row: int, column: int, parent: _Index = _ROOT) -> QModelIndex:
        if not parent.isValid():
            return self.createIndex(row, column, self._rows[row]) if 0 <= row < len(self._rows) else QModelIndex()
        owner = parent.internalPointer()
        if isinstance(owner, _Row) and 0 <= row < len(self._children(owner)):
            return self.createIndex(row, column, owner.children[row])
        return QModelIndex()

    def parent(self, index: _Index = _ROOT) -> QModelIndex:  # type: ignore[override]
        item = index.internalPointer() if index.isValid() else None
        if not isinstance(item, _Detail):
            return QModelIndex()
        place = bisect_left(self._rows, item.row.event.seq, key=lambda row: row.event.seq)
        return self.createIndex(place, 0, item.row)

    def rowCount(self, parent: _Index = _ROOT) -> int:
        if not parent.isValid():
            return len(self._rows)
        item = parent.internalPointer()
        return len(self._children(item)) if isinstance(item, _Row) and parent.column() == 0 else 0

    def hasChildren(self, parent: _Index = _ROOT) -> bool:
        return not parent.isValid() or isinstance(parent.internalPointer(), _Row)

    def columnCount(self, _parent: _Index = _ROOT) -> int:
        return len(Column)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if role != Qt.ItemDataRole.DisplayRole or orientation != Qt.Orientation.Horizontal:
            return None
        names = (self.tr("Time"), self.tr("After"), self.tr("Event"), self.tr("Status"), self.tr("Reason"))
        return names[section]

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        item = index.internalPointer() if index.isValid() else None
        if isinstance(item, _Detail):
            return self._detail(item, index.column(), role)
        if not isinstance(item, _Row):
            return None
        if role == EVENT_ROLE:
            return item.event
        if role == Qt.ItemDataRole.DisplayRole:
            return self._shown(item.event, index.row(), Column(index.column()))
        if role == Qt.ItemDataRole.ToolTipRole and index.column() == Column.REASON:
            return item.event.reason or None
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return self._shown(item.event, index.row(), Column(index.column())) or "–"
        return None

    def _shown(self, event: pb.StoryEvent, row: int, column: Column) -> str:
        if column is Column.TIME:
            return formats.moment(event.timestamp)
        if column is Column.AFTER:
            before = self._rows[row - 1].event.timestamp if row else event.timestamp
            return f"+{_span(event.timestamp - before)}" if row else ""
        if column is Column.EVENT:
            word = self._word(event.kind)
            return f"{word} ({self.tr('attempt')} {event.attempt})" if event.attempt > 1 else word
        return move_of(event) if column is Column.STATUS else " ".join(event.reason.split())

    def _detail(self, item: _Detail, column: int, role: int) -> Any:
        if role == Qt.ItemDataRole.DisplayRole:
            # A text of many lines is shown whole in the tool tip and when it is copied.
            lines = item.value.splitlines() or [""]
            more = f"  … (+{len(lines) - 1})" if len(lines) > 1 else ""
            return {Column.EVENT: item.name, Column.REASON: lines[-1][:500] + more}.get(Column(column))
        if role == Qt.ItemDataRole.ToolTipRole and column == Column.REASON:
            return item.value[-4000:]
        if role == Qt.ItemDataRole.ForegroundRole and column == Column.EVENT:
            return QColor(theme.colours().muted)
        return None

    def text_of(self, index: _Index) -> str:
        """What is copied of a row."""
        item = index.internalPointer() if index.isValid() else None
        if isinstance(item, _Detail):
            return f"{item.name}: {item.value}"
        if not isinstance(item, _Row):
            return ""
        parts = [self._shown(item.event, index.row(), column) for column in Column]
        return "  ".join(part for part in parts if part)

    def _children(self, row: _Row) -> list[_Detail]:
        if row.details is None:
            row.details = details_of(row.event)
            row.children = [_Detail(row, number, *pair) for number, pair in enumerate(row.details)]
        return row.children


def _span(seconds: float) -> str:
    return f"{max(0.0, seconds):.1f} s" if seconds < 60 else formats.duration(seconds)


class TimelineView(QTreeView):
    """The events below each other on a line; the newest is kept in sight."""

    def __init__(self, model: TimelineModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("timeline")
        self.setAccessibleName(self.tr("What happened to the run"))
        self.setModel(model)
        self.setItemDelegateForColumn(Column.TIME, _DotDelegate(self))
        self.setUniformRowHeights(True)
        self.setAllColumnsShowFocus(True)
        self.setSelectionMode(QTreeView.SelectionMode.ExtendedSelection)
        self.setIndentation(round(self.fontMetrics().height() * 1.2))
        header = self.header()
        header.setStretchLastSection(True)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        char = self.fontMetrics().averageCharWidth()
        for column, chars in ((Column.TIME, 30), (Column.AFTER, 10), (Column.EVENT, 30), (Column.STATUS, 16)):
            self.setColumnWidth(column, char * chars)


class _DotDelegate(QStyledItemDelegate):
    """A dot on a line in front of the time: filled where the status changed."""

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:
        size = super().sizeHint(option, index)
        return QSize(size.width() + size.height(), round(size.height() * 1.4))  # a tree is easier to read with some air

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        area: QRect = option.rect
        room = area.height()
        event = index.data(EVENT_ROLE)
        if event is None:
            self._go_on(painter, area, index)
            return
        text = QStyleOptionViewItem(option)
        text.rect = area.adjusted(room, 0, 0, 0)
        super().paint(painter, text, index)
        colours = theme.colours()
        ended = event.kind if event.to_status == "TERM" else ""
        outcome = {"completed": "completed", "cancelled": "cancelled"}.get(ended, "failed")
        colour = theme.colour_of(pb.Run(status=event.to_status, outcome=outcome))
        centre, radius = QPoint(area.left() + room // 2, area.center().y()), max(3, room // 5)
        model = index.model()
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(colours.border), 2))
        if index.row() > 0:
            painter.drawLine(centre.x(), area.top(), centre.x(), centre.y())
        if index.row() < model.rowCount() - 1:
            painter.drawLine(centre.x(), centre.y(), centre.x(), area.bottom() + 1)
        painter.setPen(QPen(colour, 2))
        painter.setBrush(colour if move_of(event) else QColor(colours.surface))
        painter.drawEllipse(centre, radius, radius)
        painter.restore()

    def _go_on(self, painter: QPainter, area: QRect, index: _Index) -> None:
        """The line passes by what an event told, towards the next one."""
        parent, view = index.parent(), self.parent()
        if isinstance(view, QTreeView) and parent.row() < index.model().rowCount() - 1:
            across = view.visualRect(parent).left() + area.height() // 2
            painter.save()
            painter.setPen(QPen(QColor(theme.colours().border), 2))
            painter.setClipping(False)
            painter.drawLine(across, area.top(), across, area.bottom() + 1)
            painter.restore()
