"""The runs as a Qt table: sorted, filtered and grouped here, because a proxy model is a hundred times slower.

Updates of running runs only repaint the cells that changed, a few times a second; rows move at most every `SETTLE_MS`,
so that they do not jump away under the mouse. Rows are moved instead of replaced unless most of them change, so views
keep selection and scroll position.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt, Signal

from gym_gui.ui.runs import grouping
from gym_gui.ui.runs.filtering import Facet, RunFilter
from gym_gui.ui.runs.grouping import Group
from gym_gui.ui.runs.rows import (
    LIVE_COLUMNS,
    RIGHT_ALIGNED,
    SORT_KEYS,
    RunColumn,
    RunRow,
    explanation_of_column,
    in_order,
    title_of_column,
)
from gym_gui.ui.widgets.parts import timer

Entry = RunRow | Group
Index = QModelIndex | QPersistentModelIndex

FLUSH_MS = 250
"""Interval of repaints of changed cells"""
SETTLE_MS = 2_000
"""Maximum delay before rows are sorted again"""
_MAX_ROWS, _MAX_CHUNKS = 200, 12
"""For more rows, or more separate ranges of rows, a model reset is faster"""
_PREPARED_AT_ONCE = 300
"""Rows prepared for filtering per idle event"""

# Qt asks with plain numbers; comparing those is several times cheaper than comparing with the enum.
_DISPLAY = int(Qt.ItemDataRole.DisplayRole)
_TOOLTIP = int(Qt.ItemDataRole.ToolTipRole)
_ALIGNMENT = int(Qt.ItemDataRole.TextAlignmentRole)
_ACCESSIBLE = int(Qt.ItemDataRole.AccessibleTextRole)
_RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
_COLUMNS = tuple(RunColumn)
_NO_PARENT = QModelIndex()


class RunsModel(QAbstractTableModel):
    """All runs; shows those that match the filter."""

    counts_changed = Signal(int, int)  # runs shown, runs there are (archived ones only where they are shown)
    about_to_move = Signal()  # once before all changes of rows, unlike Qt's signals
    moved = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.filter = RunFilter()
        self.sort_column, self.sort_order = RunColumn.STARTED, Qt.SortOrder.DescendingOrder
        self.is_grouped = False
        self.is_held = False
        """While the user points at a row (an open menu, a pressed mouse button) rows stay in place"""
        self.is_better_reset = False
        """Set by receivers of `about_to_move` with large selections, which Qt would move cell by cell"""
        self._rows: dict[str, RunRow] = {}
        self._newest_first: list[RunRow] = []
        self._archived = 0
        self._sorted: list[RunRow] = []
        self._shown: list[Entry] = []
        self._positions: dict[str, int] | None = None
        self._closed: set[str] = set()
        self._groups: dict[str, Group] = {}
        self._curves: dict[str, tuple[float, ...]] = {}
        self._changed: dict[str, RunRow] = {}
        self._new: list[RunRow] = []
        self._is_out_of_place = self._settle_at_once = False
        self._flushed_at = 0.0
        self._unprepared: list[RunRow] = []
        self._prepare_timer = timer(self, self.prepare)
        self._flush_timer = timer(self, self.flush, FLUSH_MS, single_shot=True)
        self._settle_timer = timer(self, self.settle, SETTLE_MS, single_shot=True)

    # ------------------------------------------------------------------ updates from the daemon

    def load(self, runs: Iterable[pb.Run]) -> None:
        """Replace all runs."""
        self._flush_timer.stop()
        self._settle_timer.stop()
        self._changed.clear()
        self._new.clear()
        self._groups.clear()
        self._rows = {run.run_id: RunRow(run) for run in runs}
        self._newest_first = sorted(self._rows.values(), key=attrgetter("number"), reverse=True)
        self._curves = {run_id: curve for run_id, curve in self._curves.items() if run_id in self._rows}
        self._unprepared = list(self._rows.values())
        self._prepare_timer.start()
        self._sort_all()
        self._arrange(afresh=True)

    @property
    def is_prepared(self) -> bool:
        """Return whether all rows are prepared for filter and groups."""
        return not self._unprepared

    def prepare(self) -> None:
        """Prepare some more rows for filter and groups."""
        now, self._unprepared = self._unprepared[:_PREPARED_AT_ONCE], self._unprepared[_PREPARED_AT_ONCE:]
        for row in now:
            row.prepare()
            grouping.configuration_of(row)
        if not self._unprepared:
            self._prepare_timer.stop()

    def update(self, runs: Iterable[pb.Run]) -> None:
        """Add or replace runs; shown with the next flush."""
        for run in runs:
            row = self._rows.get(run.run_id)
            if row is None:
                row = self._rows[run.run_id] = RunRow(run)
                self._new.append(row)
            else:
                self._replace(row, run)
        if not self._flush_timer.isActive():
            # The first updates after a pause are shown at once.
            wait_ms = FLUSH_MS - round((time.monotonic() - self._flushed_at) * 1000)
            if wait_ms > 0:
                self._flush_timer.start(wait_ms)
            else:
                self.flush()

    def _replace(self, row: RunRow, run: pb.Run) -> None:
        if run.archived != row.is_archived:
            self._settle_at_once = True  # the user expects a response
        if not self._is_out_of_place:
            key = SORT_KEYS[self.sort_column]
            before = key(row), self.filter.fits(row)
            row.replace(run)
            self._is_out_of_place = before != (key(row), self.filter.fits(row))
        else:
            row.replace(run)
        self._changed[row.entry_id] = row

    def remove(self, run_ids: Iterable[str]) -> None:
        """Remove these runs."""
        removed = {run_id for run_id in run_ids if self._rows.pop(run_id, None) is not None}
        if not removed:
            return
        for run_id in removed:
            self._curves.pop(run_id, None)
            self._changed.pop(run_id, None)
        self._sorted = [row for row in self._sorted if row.entry_id not in removed]
        self._newest_first = [row for row in self._newest_first if row.entry_id not in removed]
        self._archived = sum([row.is_archived for row in self._sorted])
        self._new = [row for row in self._new if row.entry_id not in removed]
        self._arrange()

    def set_curve(self, run_id: str, curve: tuple[float, ...]) -> None:
        """Set the sparkline that is drawn next to the return."""
        if self._curves.get(run_id) != curve and run_id in self._rows:
            self._curves[run_id] = curve
            if (position := self.position_of(run_id)) is not None:
                cell = self.index(position, RunColumn.RETURN)
                self.dataChanged.emit(cell, cell)

    def flush(self) -> None:
        """Show the updates since the last flush."""
        self._flush_timer.stop()
        self._flushed_at = time.monotonic()
        if self._new:
            self._newest_first = sorted(self._newest_first + self._new, key=attrgetter("number"), reverse=True)
            self._new.clear()
            self._sort_all()
            self._arrange()
        changed, self._changed = self._changed, {}
        positions = self._all_positions()
        touched = sorted(position for run_id in changed if (position := positions.get(run_id)) is not None)
        if self.is_grouped:
            touched = sorted({*touched, *self._forget_figures_of(changed)})
        for position in touched:
            self.dataChanged.emit(self.index(position, LIVE_COLUMNS[0]), self.index(position, LIVE_COLUMNS[-1]))
        if self._settle_at_once:
            self._settle_at_once = False
            self.settle()
        elif self._is_out_of_place and not self._settle_timer.isActive():
            self._settle_timer.start()

    def tick(self, positions: range) -> None:
        """Repaint the durations on the screen, every second."""
        if any(run.started_at and not run.finished_at for run in self.runs_shown_at(positions)):
            self.dataChanged.emit(
                self.index(positions[0], RunColumn.DURATION), self.index(positions[-1], RunColumn.DURATION)
            )

    def _forget_figures_of(self, changed: dict[str, RunRow]) -> list[int]:
        positions = self._all_positions()
        families = {grouping.configuration_of(row).family for row in changed.values()}
        groups = [entry for entry in self._groups.values() if entry.configuration.family in families]
        for group in groups:
            group.forget_figures()
        return [positions[group.entry_id] for group in groups if group.entry_id in positions]

    def settle(self) -> None:
        """Sort the rows now."""
        if self.is_held:
            self._settle_timer.start()
            return
        self._settle_timer.stop()
        self._sort_all()
        self._arrange()

    # ------------------------------------------------------------------ user input

    def set_filter(self, requested: RunFilter) -> None:
        if requested != self.filter:
            self.filter = requested
            self._arrange()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        is_done = (self.sort_column, self.sort_order) == (column, order) and not self._is_out_of_place
        if column < 0 or is_done:  # below 0 while the header is being built; and Qt asks twice
            return
        self.sort_column, self.sort_order = RunColumn(column), order
        self._sort_all()
        self._arrange()

    def set_grouped(self, grouped: bool) -> None:
        if grouped != self.is_grouped:
            self.is_grouped = grouped
            self._arrange(afresh=True)

    def set_open(self, group: Group, is_open: bool) -> None:
        """Expand or collapse a group."""
        if is_open:
            self._closed.discard(group.entry_id)
        else:
            self._closed.add(group.entry_id)
        self._arrange()

    # ------------------------------------------------------------------ queries

    def run(self, run_id: str) -> pb.Run | None:
        row = self._rows.get(run_id)
        return None if row is None else row.run

    def entry_at(self, position: int) -> Entry:
        return self._shown[position]

    def position_of(self, entry_id: str) -> int | None:
        """Return the row of a run or group; None if it is hidden."""
        return self._all_positions().get(entry_id)

    def runs_at(self, positions: Iterable[int]) -> list[pb.Run]:
        """Return the runs of these rows without duplicates; a group stands for its runs."""
        found: dict[str, pb.Run] = {}
        for position in sorted(positions):
            entry = self._shown[position]
            for row in entry.rows if isinstance(entry, Group) else [entry]:
                found[row.entry_id] = row.run
        return list(found.values())

    def runs_shown_at(self, positions: Iterable[int]) -> list[pb.Run]:
        """Return the runs of these rows, without groups."""
        entries = (self._shown[position] for position in positions if position < len(self._shown))
        return [entry.run for entry in entries if isinstance(entry, RunRow)]

    def curve_of(self, run_id: str) -> tuple[float, ...]:
        return self._curves.get(run_id, ())

    def facet_counts(self, facet: Facet) -> dict[str, int]:
        """Return the values of a facet with their number of runs among those that match everything else."""
        return dict(self.filter.counts(facet, self._sorted))

    def all_runs(self) -> list[pb.Run]:
        return [row.run for row in self._rows.values()]

    def all_tags(self) -> list[str]:
        return sorted({tag for row in self._sorted for tag in row.run.tags})

    @property
    def total(self) -> int:
        return len(self._rows)

    # ------------------------------------------------------------------ QAbstractTableModel

    def rowCount(self, parent: Index = _NO_PARENT) -> int:
        return 0 if parent.isValid() else len(self._shown)

    def columnCount(self, parent: Index = _NO_PARENT) -> int:
        return 0 if parent.isValid() else len(_COLUMNS)

    def data(self, index: Index, role: int = _DISPLAY) -> Any:
        if role not in (_DISPLAY, _TOOLTIP, _ALIGNMENT, _ACCESSIBLE) or not index.isValid():
            return None
        column = _COLUMNS[index.column()]
        if role == _ALIGNMENT:
            return _RIGHT if column in RIGHT_ALIGNED else _LEFT
        entry = self._shown[index.row()]
        if role == _TOOLTIP:
            return entry.tooltip(column)
        if role == _ACCESSIBLE and column is RunColumn.NAME and isinstance(entry, Group):
            return entry.full_title
        return entry.text(column)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = _DISPLAY) -> Any:
        if orientation != Qt.Orientation.Horizontal or not 0 <= section < len(_COLUMNS):
            return None
        if role == _DISPLAY:
            return title_of_column(_COLUMNS[section])
        if role == _TOOLTIP:
            return explanation_of_column(_COLUMNS[section])
        if role == _ALIGNMENT:
            return _RIGHT if _COLUMNS[section] in RIGHT_ALIGNED else _LEFT
        return None

    # ------------------------------------------------------------------ order

    def _sort_all(self) -> None:
        # Equal rows stay newest first.
        descending = self.sort_order == Qt.SortOrder.DescendingOrder
        self._sorted = in_order(self._newest_first, self.sort_column, descending=descending)
        self._archived = sum([row.is_archived for row in self._sorted])
        self._is_out_of_place = False

    def _requested(self) -> tuple[list[Entry], int]:
        """Return the entries to show, and their number of runs."""
        rows = self.filter.fitting(self._sorted)
        if not self.is_grouped:
            return [*rows], len(rows)
        entries = grouping.arranged(
            rows,
            self.sort_column,
            descending=self.sort_order == Qt.SortOrder.DescendingOrder,
            is_open=lambda entry_id: entry_id not in self._closed,
            known=self._groups,
        )
        return entries, len(rows)

    def _arrange(self, *, afresh: bool = False) -> None:
        """Update the rows with as few changes as possible."""
        requested, count = self._requested()
        if afresh or requested != self._shown:
            self.is_better_reset = False
            self.about_to_move.emit()
            if afresh or self.is_better_reset or not self._change_in_place(requested):
                self.beginResetModel()
                self._put(requested)
                self.endResetModel()
            self.moved.emit()
        if self.is_grouped and requested:
            self._redraw(0, len(requested) - 1)  # headers of groups may have changed
        hidden = 0 if self.filter.show_archived else self._archived
        self.counts_changed.emit(count, max(count, len(self._sorted) - hidden))

    def _put(self, entries: list[Entry]) -> None:
        self._shown = entries
        self._positions = None

    def _all_positions(self) -> dict[str, int]:
        if self._positions is None:
            self._positions = {entry.entry_id: position for position, entry in enumerate(self._shown)}
        return self._positions

    def _change_in_place(self, requested: list[Entry]) -> bool:
        """Remove, move and insert rows; return False if a reset is faster."""
        if not self._shown or not requested or abs(len(requested) - len(self._shown)) > _MAX_ROWS:
            return False
        before, after = set(self._shown), set(requested)
        removed, new = before - after, after - before
        if len(removed) + len(new) > _MAX_ROWS:
            return False
        leaving = pieces([at for at, entry in enumerate(self._shown) if entry in removed] if removed else [])
        coming = pieces([at for at, entry in enumerate(requested) if entry in new] if new else [])
        if len(leaving) + len(coming) > _MAX_CHUNKS:
            return False
        for first, last in reversed(leaving):
            self.beginRemoveRows(_NO_PARENT, first, last)
            self._put(self._shown[:first] + self._shown[last + 1 :])
            self.endRemoveRows()
        self._reorder([entry for entry in requested if entry not in new] if new else requested)
        for first, last in coming:
            self.beginInsertRows(_NO_PARENT, first, last)
            self._put(self._shown[:first] + requested[first : last + 1] + self._shown[first:])
            self.endInsertRows()
        return True

    def _reorder(self, requested: list[Entry]) -> None:
        """Reorder the same entries."""
        if requested == self._shown:
            return
        self.layoutAboutToBeChanged.emit()
        before = self.persistentIndexList()
        ids = [self._shown[index.row()].entry_id for index in before]
        self._put(requested)
        if ids:
            positions = self._all_positions()
            pairs = zip(ids, before, strict=True)
            self.changePersistentIndexList(
                before, [self.index(positions[entry_id], index.column()) for entry_id, index in pairs]
            )
        self.layoutChanged.emit()

    def _redraw(self, first: int, last: int) -> None:
        self.dataChanged.emit(self.index(first, 0), self.index(last, len(_COLUMNS) - 1))


def pieces(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as inclusive ranges: 1 2 3 7 → (1, 3), (7, 7)."""
    if not positions:
        return []
    breaks = [at for at, (one, next_one) in enumerate(pairwise(positions), start=1) if next_one != one + 1]
    starts, ends = [0, *breaks], [*breaks, len(positions)]
    return [(positions[start], positions[end - 1]) for start, end in zip(starts, ends, strict=True)]
