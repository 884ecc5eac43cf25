"""The History tab: all events of a run, updated live; expanding an event shows its details."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus
from PySide6.QtCore import QAbstractItemModel, QModelIndex, QObject, QPersistentModelIndex, QPoint, QRect, QSize, Qt
from PySide6.QtGui import QColor, QGuiApplication, QKeySequence, QPainter, QPen, QShortcut
from PySide6.QtWidgets import (
    QHBoxLayout,
    QHeaderView,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QTreeView,
    QVBoxLayout,
    QWidget,
)

from gym_gui.ui import theme
from gym_gui.ui.daemon_link import DaemonLink
from gym_gui.ui.run_page.run_labels import event_label
from gym_gui.ui.widgets.banner import Banner
from gym_gui.ui.widgets.parts import caption, fill, named, push_button
from gym_gui.ui.widgets.run_tab import RunTab
from gym_gui.wording import formats
from gym_gui.wording.run_view import parsed

_Index = QModelIndex | QPersistentModelIndex
_ROOT = QModelIndex()
_Role = Qt.ItemDataRole
EVENT_ROLE = _Role.UserRole + 1


EventColumn = IntEnum("EventColumn", ["TIME", "AFTER", "EVENT", "STATUS", "REASON"], start=0)


@dataclass(eq=False)
class _EventRow:
    event: pb.StoryEvent

    @cached_property
    def details(self) -> list[_Detail]:
        """Return the details of the event, parsed when the row is expanded."""
        payload = parsed(self.event.payload_json)
        pairs = {str(key): _text(value) for key, value in payload.items()} if isinstance(payload, dict) else {}
        pairs |= {"seq": str(self.event.seq), "attempt": str(self.event.attempt)}
        return [_Detail(self, *pair) for pair in pairs.items()]


@dataclass(eq=False)
class _Detail:
    row: _EventRow
    name: str
    value: str


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def move_of(event: pb.StoryEvent) -> str:
    """Return `INIT → HSHK`, or nothing when the status did not change."""
    if event.to_status and event.from_status != event.to_status:
        return f"{event.from_status} → {event.to_status}" if event.from_status else event.to_status
    return ""


class TimelineModel(QAbstractItemModel):
    """Events in order, without duplicates, with their details as children."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._rows: list[_EventRow] = []

    @property
    def last_seq(self) -> int:
        return self._rows[-1].event.seq if self._rows else 0

    def clear(self) -> None:
        self.beginResetModel()
        self._rows = []
        self.endResetModel()

    def add(self, events: Iterable[pb.StoryEvent]) -> int:
        """Add events in any order, ignoring known ones; return how many were new."""
        added = 0
        for event in sorted(events, key=lambda event: event.seq):
            place = self._place_of(event)
            if place < len(self._rows) and self._rows[place].event.seq == event.seq:
                continue
            self.beginInsertRows(_ROOT, place, place)
            self._rows.insert(place, _EventRow(event))
            self.endInsertRows()
            added += 1
        return added

    def _place_of(self, event: pb.StoryEvent) -> int:
        return bisect_left(self._rows, event.seq, key=lambda row: row.event.seq)

    def event_at(self, index: _Index) -> pb.StoryEvent | None:
        item = index.internalPointer() if index.isValid() else None
        row = item.row if isinstance(item, _Detail) else item
        return row.event if isinstance(row, _EventRow) else None

    def index(self, row: int, column: int, parent: _Index = _ROOT) -> QModelIndex:
        owner = parent.internalPointer() if parent.isValid() else None
        items = owner.details if isinstance(owner, _EventRow) else [] if parent.isValid() else self._rows
        return self.createIndex(row, column, items[row]) if 0 <= row < len(items) else QModelIndex()

    def parent(self, index: _Index = _ROOT) -> QModelIndex:  # type: ignore[override]
        item = index.internalPointer() if index.isValid() else None
        if not isinstance(item, _Detail):
            return QModelIndex()
        return self.createIndex(self._place_of(item.row.event), 0, item.row)

    def rowCount(self, parent: _Index = _ROOT) -> int:
        if not parent.isValid():
            return len(self._rows)
        item = parent.internalPointer()
        return len(item.details) if isinstance(item, _EventRow) and parent.column() == 0 else 0

    def hasChildren(self, parent: _Index = _ROOT) -> bool:
        return not parent.isValid() or isinstance(parent.internalPointer(), _EventRow)

    def columnCount(self, _parent: _Index = _ROOT) -> int:
        return len(EventColumn)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = _Role.DisplayRole) -> Any:
        if role != _Role.DisplayRole or orientation != Qt.Orientation.Horizontal:
            return None
        return (self.tr("Time"), self.tr("After"), self.tr("Event"), self.tr("Status"), self.tr("Reason"))[section]

    def data(self, index: _Index, role: int = _Role.DisplayRole) -> Any:
        item = index.internalPointer() if index.isValid() else None
        if isinstance(item, _Detail):
            return self._detail(item, index.column(), role)
        if not isinstance(item, _EventRow):
            return None
        if role == EVENT_ROLE:
            return item.event
        if role in (_Role.DisplayRole, _Role.AccessibleTextRole):
            return self._cell(item.event, index.row(), index.column()) or ("–" * (role != _Role.DisplayRole))
        is_reason = role == _Role.ToolTipRole and index.column() == EventColumn.REASON
        return item.event.reason or None if is_reason else None

    def _cell(self, event: pb.StoryEvent, row: int, column: int) -> str:
        if column == EventColumn.TIME:
            return formats.moment(event.timestamp)
        if column == EventColumn.AFTER:
            seconds = max(0.0, event.timestamp - self._rows[row - 1].event.timestamp) if row else 0.0
            return f"+{seconds:.1f} s" if row and seconds < 60 else f"+{formats.duration(seconds)}" if row else ""
        if column == EventColumn.EVENT:
            label = event_label(event.kind)
            return f"{label} ({self.tr('attempt')} {event.attempt})" if event.attempt > 1 else label
        return move_of(event) if column == EventColumn.STATUS else " ".join(event.reason.split())

    def _detail(self, item: _Detail, column: int, role: int) -> Any:
        if column == EventColumn.EVENT:
            muted = QColor(theme.colors().muted) if role == _Role.ForegroundRole else None
            return item.name if role == _Role.DisplayRole else muted
        if column != EventColumn.REASON:
            return None
        if role == _Role.DisplayRole:
            # The tool tip and a copy contain the whole text.
            lines = item.value.splitlines() or [""]
            return lines[-1][:500] + (f"  … (+{len(lines) - 1})" if len(lines) > 1 else "")
        return item.value[-4000:] if role == _Role.ToolTipRole else None

    def text_of(self, index: _Index) -> str:
        """Return the text that is copied for a row."""
        item = index.internalPointer() if index.isValid() else None
        if isinstance(item, _Detail):
            return f"{item.name}: {item.value}"
        event = self.event_at(index)
        cells = [self._cell(event, index.row(), column) for column in EventColumn] if event is not None else []
        return "  ".join(filter(None, cells))


class TimelineView(QTreeView):
    """The events on a vertical line."""

    def __init__(self, model: TimelineModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, "timeline", self.tr("What happened to the run"))
        self.setModel(model)
        self.setItemDelegateForColumn(EventColumn.TIME, _DotDelegate(self))
        self.setUniformRowHeights(True)
        self.setAllColumnsShowFocus(True)
        self.setSelectionMode(QTreeView.SelectionMode.ExtendedSelection)
        self.setIndentation(round(self.fontMetrics().height() * 1.2))
        header = self.header()
        header.setStretchLastSection(True)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        char = self.fontMetrics().averageCharWidth()
        for column, chars in (
            (EventColumn.TIME, 30),
            (EventColumn.AFTER, 10),
            (EventColumn.EVENT, 30),
            (EventColumn.STATUS, 16),
        ):
            self.setColumnWidth(column, char * chars)


class _DotDelegate(QStyledItemDelegate):
    """Draw a dot on the line in front of the time, filled where the status changed."""

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:
        size = super().sizeHint(option, index)
        return QSize(size.width() + size.height(), round(size.height() * 1.4))  # spacing makes the tree easier to read

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        area: QRect = option.rect
        room = area.height()
        event = index.data(EVENT_ROLE)
        if event is None:
            self._draw_line(painter, area, index)
            return
        text = QStyleOptionViewItem(option)
        text.rect = area.adjusted(room, 0, 0, 0)
        super().paint(painter, text, index)
        colors = theme.colors()
        ended = event.kind if event.to_status == RunStatus.TERM else ""
        outcome = {"completed": "completed", "cancelled": "cancelled"}.get(ended, "failed")
        color = theme.color_of(pb.Run(status=event.to_status, outcome=outcome))
        middle, radius = QPoint(area.left() + room // 2, area.center().y()), max(3, room // 5)
        model = index.model()
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(colors.border), 2))
        if index.row() > 0:
            painter.drawLine(middle.x(), area.top(), middle.x(), middle.y())
        if index.row() < model.rowCount() - 1:
            painter.drawLine(middle.x(), middle.y(), middle.x(), area.bottom() + 1)
        painter.setPen(QPen(color, 2))
        painter.setBrush(color if move_of(event) else QColor(colors.surface))
        painter.drawEllipse(middle, radius, radius)
        painter.restore()

    def _draw_line(self, painter: QPainter, area: QRect, index: _Index) -> None:
        """Continue the line next to the details of an event, towards the next event."""
        parent, view = index.parent(), self.parent()
        if isinstance(view, QTreeView) and parent.row() < index.model().rowCount() - 1:
            across = view.visualRect(parent).left() + area.height() // 2
            painter.save()
            painter.setPen(QPen(QColor(theme.colors().border), 2))
            painter.setClipping(False)
            painter.drawLine(across, area.top(), across, area.bottom() + 1)
            painter.restore()


class HistoryTab(RunTab):
    """A list of events, newest at the end, updated as they arrive."""

    def __init__(self, link: DaemonLink, parent: QWidget | None = None) -> None:
        super().__init__(link, parent)
        self.setObjectName("history_tab")
        self.banner = Banner(parent=self)
        self.model = TimelineModel(self)
        self.view = TimelineView(self.model)
        self.count_label = caption("history_count")
        show, hide = self.tr("Show the details of every event"), self.tr("Hide the details of events")
        expand = push_button("history_expand", self.tr("E&xpand all"), self.view.expandAll, show)
        collapse = push_button("history_collapse", self.tr("Coll&apse all"), self.view.collapseAll, hide)
        bar = fill(QHBoxLayout(), (self.count_label, 1), expand, collapse)
        fill(QVBoxLayout(self), self.banner, bar, (self.view, 1), margins=8, spacing=6)
        in_view = Qt.ShortcutContext.WidgetWithChildrenShortcut
        QShortcut(QKeySequence.StandardKey.Copy, self.view, self._copy, context=in_view)
        link.events_arrived.connect(self._on_events_arrived)
        link.runs_loaded.connect(lambda _runs: self._load())

    def show_run(self, run: pb.Run) -> None:
        super().show_run(run)
        self.model.clear()
        self.banner.clear()
        self._show_count()
        self._load()

    def set_active(self, active: bool) -> None:
        super().set_active(active)
        self._load()

    def _load(self) -> None:
        """Load the missing events: all of them at first, after a lost connection the newer ones."""
        run = self.run
        if run is None or not self.is_active:
            return
        run_id, since = run.run_id, self.model.last_seq
        self.link.call(
            lambda client: list(client.history(run_id, since_seq=since)),
            owner=self,
            done=lambda events: self._add(run_id, events),
            failed=lambda message: self._show_failure(run_id, message),
        )

    def _on_events_arrived(self, events: tuple[pb.StoryEvent, ...]) -> None:
        if self.run is not None and self.is_active:
            self._add(self.run.run_id, events)

    def _add(self, run_id: str, events: Iterable[pb.StoryEvent]) -> None:
        if self.run is None or run_id != self.run.run_id:
            return  # another run was opened meanwhile
        self.banner.clear()
        bar = self.view.verticalScrollBar()
        was_at_end = bar.value() >= bar.maximum()
        own = [event for event in events if event.run_id == run_id]
        if self.model.add(own) and was_at_end and self.run.status != RunStatus.TERM:
            self.view.scrollToBottom()
        self._show_count()

    def _show_failure(self, run_id: str, message: str) -> None:
        if self.run is not None and run_id == self.run.run_id:
            text = self.tr("The history cannot be read: {why}").format(why=message)
            self.banner.set_message(text, "warning", action=self.tr("Try again"), on_action=self._load)

    def _show_count(self) -> None:
        events = formats.plural(self.model.rowCount(), "event")
        text = self.tr("{events}; select and copy with Ctrl+C, open a row for its details").format(events=events)
        self.count_label.setText(text if self.model.rowCount() else self.tr("No events yet"))

    def _copy(self) -> None:
        rows = self.view.selectionModel().selectedRows()
        rows.sort(key=lambda index: self.view.visualRect(index).top())
        if text := "\n".join(map(self.model.text_of, rows)):
            QGuiApplication.clipboard().setText(text)
