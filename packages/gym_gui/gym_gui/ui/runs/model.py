"""The runs as a Qt table: sorted, filtered and grouped in here, because a proxy does it a hundred times slower.

News of running runs only touch the cells that changed, a few times a second; rows change places at most every
`SETTLE_MS`, so that nothing jumps away under the mouse. Whoever looks keeps selection and place: rows are moved, not
replaced, unless most of them change.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

from mosaic_wire.proto import trainer_pb2 as pb
from PySide6.QtCore import (
    QAbstractTableModel,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    Qt,
    QTimer,
    Signal,
)

from gym_gui.ui.runs import grouping
from gym_gui.ui.runs.filtering import Facet, RunFilter
from gym_gui.ui.runs.grouping import Group
from gym_gui.ui.runs.rows import (
    LIVE_COLUMNS,
    RIGHT_ALIGNED,
    SORT_KEYS,
    Column,
    Row,
    explanation_of_column,
    in_order,
    title_of_column,
)

Entry = Row | Group
Index = QModelIndex | QPersistentModelIndex

FLUSH_MS = 250
"""How often changed cells are drawn anew; nobody reads figures that change faster"""
SETTLE_MS = 2_000
"""How long rows may stand where they no longer belong"""
_MOST_ROWS, _MOST_PIECES = 200, 12
"""More rows, or more separate stretches of them, come and go cheaper by showing everything anew"""
_PREPARED_AT_ONCE = 300
"""Rows made ready for filtering in one go, while nothing else is to be done"""

# Qt asks with plain numbers; comparing those is several times cheaper than comparing with the enum.
_DISPLAY = int(Qt.ItemDataRole.DisplayRole)
_TOOLTIP = int(Qt.ItemDataRole.ToolTipRole)
_ALIGNMENT = int(Qt.ItemDataRole.TextAlignmentRole)
_ACCESSIBLE = int(Qt.ItemDataRole.AccessibleTextRole)
_RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
_COLUMNS = tuple(Column)
_NOWHERE = QModelIndex()


class RunsModel(QAbstractTableModel):
    """All runs, of which those are shown that fit the filter."""

    counts_changed = Signal(int, int)  # runs shown, runs there are (archived ones only where they are shown)
    about_to_move = Signal()  # rows come, go or change places; once for all of it, unlike Qt's own signals
    moved = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.filter = RunFilter()
        self.sort_column, self.sort_order = Column.STARTED, Qt.SortOrder.DescendingOrder
        self.is_grouped = False
        self.is_held = False
        """While somebody points at a row (an open menu, a pressed mouse button) rows keep their places"""
        self.is_better_reset = False
        """Asked of whoever hears `about_to_move`: much is selected, and Qt would move all of it cell by cell"""
        self._rows: dict[str, Row] = {}
        self._newest_first: list[Row] = []
        self._archived = 0
        self._sorted: list[Row] = []
        self._shown: list[Entry] = []
        self._positions: dict[str, int] | None = None
        self._closed: set[str] = set()
        self._groups: dict[str, Group] = {}
        self._curves: dict[str, tuple[float, ...]] = {}
        self._changed: dict[str, Row] = {}
        self._new: list[Row] = []
        self._is_out_of_place = self._settles_now = False
        self._flushed_at = 0.0
        self._unprepared: list[Row] = []
        self._prepare_timer = QTimer(self, interval=0)
        self._prepare_timer.timeout.connect(self.prepare)
        self._flush_timer = QTimer(self, singleShot=True, interval=FLUSH_MS)
        self._flush_timer.timeout.connect(self.flush)
        self._settle_timer = QTimer(self, singleShot=True, interval=SETTLE_MS)
        self._settle_timer.timeout.connect(self.settle)

    # ------------------------------------------------------------------ what the daemon tells

    def load(self, runs: Iterable[pb.Run]) -> None:
        """All runs there are, instead of those known."""
        self._flush_timer.stop()
        self._settle_timer.stop()
        self._changed.clear()
        self._new.clear()
        self._groups.clear()
        self._rows = {run.run_id: Row(run) for run in runs}
        self._newest_first = sorted(self._rows.values(), key=attrgetter("number"), reverse=True)
        self._curves = {run_id: curve for run_id, curve in self._curves.items() if run_id in self._rows}
        self._unprepared = list(self._rows.values())
        self._prepare_timer.start()
        self._sort_all()
        self._arrange(afresh=True)

    @property
    def is_prepared(self) -> bool:
        """Whether filter and groups find everything ready"""
        return not self._unprepared

    def prepare(self) -> None:
        """Some rows more made ready for filter and groups."""
        now, self._unprepared = self._unprepared[:_PREPARED_AT_ONCE], self._unprepared[_PREPARED_AT_ONCE:]
        for row in now:
            row.prepare()
            grouping.configuration_of(row)
        if not self._unprepared:
            self._prepare_timer.stop()

    def update(self, runs: Iterable[pb.Run]) -> None:
        """Newer records of some runs, and new runs; shown with the next flush."""
        for run in runs:
            row = self._rows.get(run.run_id)
            if row is None:
                row = self._rows[run.run_id] = Row(run)
                self._new.append(row)
            else:
                self._replace(row, run)
        if not self._flush_timer.isActive():
            # The first news after a while are shown at once.
            wait_ms = FLUSH_MS - round((time.monotonic() - self._flushed_at) * 1000)
            if wait_ms > 0:
                self._flush_timer.start(wait_ms)
            else:
                self.flush()

    def _replace(self, row: Row, run: pb.Run) -> None:
        if run.archived != row.is_archived:
            self._settles_now = True  # somebody did that and waits for it
        if not self._is_out_of_place:
            key = SORT_KEYS[self.sort_column]
            before = key(row), self.filter.fits(row)
            row.replace(run)
            self._is_out_of_place = before != (key(row), self.filter.fits(row))
        else:
            row.replace(run)
        self._changed[row.entry_id] = row

    def remove(self, run_ids: Iterable[str]) -> None:
        """These runs are gone."""
        gone = {run_id for run_id in run_ids if self._rows.pop(run_id, None) is not None}
        if not gone:
            return
        for run_id in gone:
            self._curves.pop(run_id, None)
            self._changed.pop(run_id, None)
        self._sorted = [row for row in self._sorted if row.entry_id not in gone]
        self._newest_first = [row for row in self._newest_first if row.entry_id not in gone]
        self._archived = sum([row.is_archived for row in self._sorted])
        self._new = [row for row in self._new if row.entry_id not in gone]
        self._arrange()

    def set_curve(self, run_id: str, curve: tuple[float, ...]) -> None:
        """The short curve that is drawn beside the return."""
        if self._curves.get(run_id) != curve and run_id in self._rows:
            self._curves[run_id] = curve
            if (position := self.position_of(run_id)) is not None:
                cell = self.index(position, Column.RETURN)
                self.dataChanged.emit(cell, cell)

    def flush(self) -> None:
        """Show what has come since the last time."""
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
        if self._settles_now:
            self._settles_now = False
            self.settle()
        elif self._is_out_of_place and not self._settle_timer.isActive():
            self._settle_timer.start()

    def tick(self, positions: range) -> None:
        """A second has passed: durations on the screen are longer now."""
        if any(run.started_at and not run.finished_at for run in self.runs_shown_at(positions)):
            self.dataChanged.emit(self.index(positions[0], Column.DURATION), self.index(positions[-1], Column.DURATION))

    def _forget_figures_of(self, changed: dict[str, Row]) -> list[int]:
        positions = self._all_positions()
        families = {grouping.configuration_of(row).family for row in changed.values()}
        groups = [entry for entry in self._groups.values() if entry.configuration.family in families]
        for group in groups:
            group.forget_figures()
        return [positions[group.entry_id] for group in groups if group.entry_id in positions]

    def settle(self) -> None:
        """Every row into its place."""
        if self.is_held:
            self._settle_timer.start()
            return
        self._settle_timer.stop()
        self._sort_all()
        self._arrange()

    # ------------------------------------------------------------------ what the person chooses

    def set_filter(self, wanted: RunFilter) -> None:
        if wanted != self.filter:
            self.filter = wanted
            self._arrange()

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        is_done = (self.sort_column, self.sort_order) == (column, order) and not self._is_out_of_place
        if column < 0 or is_done:  # below 0 while the header is being built; and Qt asks twice
            return
        self.sort_column, self.sort_order = Column(column), order
        self._sort_all()
        self._arrange()

    def set_grouped(self, grouped: bool) -> None:
        if grouped != self.is_grouped:
            self.is_grouped = grouped
            self._arrange(afresh=True)

    def set_open(self, group: Group, is_open: bool) -> None:
        """Show or hide the runs of a group."""
        if is_open:
            self._closed.discard(group.entry_id)
        else:
            self._closed.add(group.entry_id)
        self._arrange()

    # ------------------------------------------------------------------ what others ask

    def run(self, run_id: str) -> pb.Run | None:
        row = self._rows.get(run_id)
        return None if row is None else row.run

    def entry_at(self, position: int) -> Entry:
        return self._shown[position]

    def position_of(self, entry_id: str) -> int | None:
        """Where a run (or a group) is shown; None when it is not."""
        return self._all_positions().get(entry_id)

    def runs_at(self, positions: Iterable[int]) -> list[pb.Run]:
        """The runs of these rows, each once; a group stands for its runs."""
        found: dict[str, pb.Run] = {}
        for position in sorted(positions):
            entry = self._shown[position]
            for row in entry.rows if isinstance(entry, Group) else [entry]:
                found[row.entry_id] = row.run
        return list(found.values())

    def runs_shown_at(self, positions: Iterable[int]) -> list[pb.Run]:
        """The runs of these rows that have a row of their own."""
        entries = (self._shown[position] for position in positions if position < len(self._shown))
        return [entry.run for entry in entries if isinstance(entry, Row)]

    def curve_of(self, run_id: str) -> tuple[float, ...]:
        return self._curves.get(run_id, ())

    def facet_counts(self, facet: Facet) -> dict[str, int]:
        """Values of a facet with the number of runs that have them, among those that fit everything else."""
        return dict(self.filter.counts(facet, self._sorted))

    def all_tags(self) -> list[str]:
        return sorted({tag for row in self._sorted for tag in row.run.tags})

    @property
    def total(self) -> int:
        return len(self._rows)

    # ------------------------------------------------------------------ what Qt asks

    def rowCount(self, parent: Index = _NOWHERE) -> int:
        return 0 if parent.isValid() else len(self._shown)

    def columnCount(self, parent: Index = _NOWHERE) -> int:
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
        if role == _ACCESSIBLE and column is Column.NAME and isinstance(entry, Group):
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

    # ------------------------------------------------------------------ order and place

    def _sort_all(self) -> None:
        # Equal ones stay newest first.
        descending = self.sort_order == Qt.SortOrder.DescendingOrder
        self._sorted = in_order(self._newest_first, self.sort_column, descending=descending)
        self._archived = sum([row.is_archived for row in self._sorted])
        self._is_out_of_place = False

    def _wanted(self) -> tuple[list[Entry], int]:
        """What should be shown, and how many runs that are."""
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
        """Bring what is shown to what should be shown, with as little commotion as possible."""
        wanted, count = self._wanted()
        if afresh or wanted != self._shown:
            self.is_better_reset = False
            self.about_to_move.emit()
            if afresh or self.is_better_reset or not self._change_gently(wanted):
                self.beginResetModel()
                self._put(wanted)
                self.endResetModel()
            self.moved.emit()
        if self.is_grouped and wanted:
            self._redraw(0, len(wanted) - 1)  # the lines of groups may say something else now
        hidden = 0 if self.filter.show_archived else self._archived
        self.counts_changed.emit(count, max(count, len(self._sorted) - hidden))

    def _put(self, entries: list[Entry]) -> None:
        self._shown = entries
        self._positions = None

    def _all_positions(self) -> dict[str, int]:
        if self._positions is None:
            self._positions = {entry.entry_id: position for position, entry in enumerate(self._shown)}
        return self._positions

    def _change_gently(self, wanted: list[Entry]) -> bool:
        """Remove, move, insert; False when a fresh start is cheaper."""
        if not self._shown or not wanted or abs(len(wanted) - len(self._shown)) > _MOST_ROWS:
            return False
        before, after = set(self._shown), set(wanted)
        gone, new = before - after, after - before
        if len(gone) + len(new) > _MOST_ROWS:
            return False
        leaving = pieces([at for at, entry in enumerate(self._shown) if entry in gone] if gone else [])
        coming = pieces([at for at, entry in enumerate(wanted) if entry in new] if new else [])
        if len(leaving) + len(coming) > _MOST_PIECES:
            return False
        for first, last in reversed(leaving):
            self.beginRemoveRows(_NOWHERE, first, last)
            self._put(self._shown[:first] + self._shown[last + 1 :])
            self.endRemoveRows()
        self._reorder([entry for entry in wanted if entry not in new] if new else wanted)
        for first, last in coming:
            self.beginInsertRows(_NOWHERE, first, last)
            self._put(self._shown[:first] + wanted[first : last + 1] + self._shown[first:])
            self.endInsertRows()
        return True

    def _reorder(self, wanted: list[Entry]) -> None:
        """The same entries in another order."""
        if wanted == self._shown:
            return
        self.layoutAboutToBeChanged.emit()
        before = self.persistentIndexList()
        ids = [self._shown[index.row()].entry_id for index in before]
        self._put(wanted)
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
    """Ascending numbers as stretches, both ends included: 1 2 3 7 → (1, 3), (7, 7)."""
    if not positions:
        return []
    breaks = [at for at, (one, next_one) in enumerate(pairwise(positions), start=1) if next_one != one + 1]
    starts, ends = [0, *breaks], [*breaks, len(positions)]
    return [(positions[start], positions[end - 1]) for start, end in zip(starts, ends, strict=True)]
