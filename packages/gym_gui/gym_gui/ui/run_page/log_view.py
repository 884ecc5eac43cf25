"""Draw the visible lines of a log and request the missing ones.

    view.set_count(13_000_000)
    view.requested.connect(read_and_then_call_provide)          (generation, first row, number of rows)
    view.provide(generation, first, lines)

It caches a few pages of text, however long the log is. It does not know whether a row is a line of a file or a
search result.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPoint, QRect, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFontMetrics,
    QKeyEvent,
    QKeySequence,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QWidget

from gym_gui.ui import theme
from gym_gui.ui.run_page.log_index import LogLevel, LogLine, level_of
from gym_gui.ui.widgets.parts import CodeFont, named

PAGE = 256
"""Rows that are requested at once"""
_CACHED_PAGES = 12
_SHOWN_CHARACTERS = 4000
"""Characters drawn of a row; copying takes the whole line"""


class LogView(QAbstractScrollArea):
    """Rows of text with line numbers, drawn from the lines passed to `provide`."""

    requested = Signal(int, int, int)  # generation, first row, rows
    copy_requested = Signal(int, int)  # first row, rows
    follow_changed = Signal(bool)
    row_activated = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, "log_view", self.tr("Log lines"))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.viewport().setCursor(Qt.CursorShape.IBeamCursor)
        self._pages: OrderedDict[int, tuple[int, Sequence[LogLine]]] = OrderedDict()
        self._requested_pages: set[int] = set()
        self.generation = 0
        self.count = 0
        self.follows = True
        self._is_scrolling_itself = False
        self._widest = 0
        self._needle = ""
        self._anchor: int | None = None
        self._cursor: int | None = None
        CodeFont(self)
        self.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        self.horizontalScrollBar().valueChanged.connect(self.viewport().update)
        self.verticalScrollBar().setAccessibleName(self.tr("Position in the log"))

    # ------------------------------------------------------------------ content

    @property
    def first_row(self) -> int:
        return self.verticalScrollBar().value()

    def rows_on_screen(self) -> int:
        return max(1, self.viewport().height() // self._row_height())

    def set_count(self, count: int) -> None:
        """Set the number of rows; when following, stay at the end."""
        if count == self.count:
            return
        self.count = count
        self._update_bars()
        if self.follows:
            self._scroll_to_end()
        self.viewport().update()

    def reset(self, count: int = 0) -> None:
        """Discard all rows and show others."""
        self.generation += 1
        self._pages.clear()
        self._requested_pages.clear()
        self._widest = 0
        self._anchor = self._cursor = None
        self.count = -1
        self.set_count(count)

    def forget_pages(self) -> None:
        """Request the text of the same rows again; show the old text until it arrives."""
        self._requested_pages.clear()
        self.generation += 1
        self._ask_for(*self._visible())

    def provide(self, generation: int, first: int, lines: Sequence[LogLine]) -> None:
        """Apply requested lines; answers to outdated requests are dropped."""
        page = first // PAGE
        if generation != self.generation:
            return
        self._requested_pages.discard(page)
        self._pages[page] = generation, lines
        self._pages.move_to_end(page)
        while len(self._pages) > _CACHED_PAGES:
            self._pages.popitem(last=False)
        metrics = QFontMetrics(self.font())
        longest = max((line.text for line in lines), key=len, default="")[:_SHOWN_CHARACTERS]
        width = metrics.horizontalAdvance(longest)
        if width > self._widest:
            self._widest = width
            self._update_bars()
        self.viewport().update()

    def line(self, row: int) -> LogLine | None:
        """Return a row's line if it is cached."""
        _, lines = self._pages.get(row // PAGE, (0, ()))
        position = row % PAGE
        return lines[position] if position < len(lines) else None

    def highlight(self, text: str) -> None:
        self._needle = text.lower()
        self.viewport().update()

    # ------------------------------------------------------------------ position

    def set_follows(self, follows: bool) -> None:
        """Set whether to stay at the end while rows are added."""
        if follows:
            self._scroll_to_end()
        if follows != self.follows:
            self.follows = follows
            self.follow_changed.emit(follows)

    def scroll_to(self, row: int) -> None:
        """Center this row and select it."""
        self._anchor = self._cursor = row
        self.verticalScrollBar().setValue(row - self.rows_on_screen() // 2)
        self.viewport().update()

    def selected_rows(self) -> tuple[int, int] | None:
        """Return the first selected row and the number of rows."""
        if self._anchor is None or self._cursor is None:
            return None
        return min(self._anchor, self._cursor), abs(self._anchor - self._cursor) + 1

    def _on_scrolled(self, value: int) -> None:
        self._ask_for(*self._visible())
        self.viewport().update()
        if not self._is_scrolling_itself:
            self.set_follows(value >= self.verticalScrollBar().maximum())

    def _scroll_to_end(self) -> None:
        self._is_scrolling_itself = True
        self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())
        self._is_scrolling_itself = False
        self._ask_for(*self._visible())

    def _visible(self) -> tuple[int, int]:
        first = self.verticalScrollBar().value()
        return first, min(self.count, first + self.rows_on_screen() + 1)

    def _ask_for(self, first: int, end: int) -> None:
        if end <= first:
            return
        for page in range(first // PAGE, (end - 1) // PAGE + 1):
            generation, lines = self._pages.get(page, (-1, ()))
            rows = min(PAGE, self.count - page * PAGE)
            if page not in self._requested_pages and (generation != self.generation or len(lines) < rows):
                self._requested_pages.add(page)
                self.requested.emit(self.generation, page * PAGE, rows)

    # ------------------------------------------------------------------ drawing

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:
            self._fit()

    def _fit(self) -> None:
        """Adjust the scroll range to the new size; stay at the end if it was shown."""
        self._update_bars()
        if self.follows:
            self._scroll_to_end()
        self._ask_for(*self._visible())

    def paintEvent(self, _event: QPaintEvent) -> None:
        colors = theme.colors()
        metrics, height = self.fontMetrics(), self._row_height()
        gutter = self._gutter_width()
        left = gutter + metrics.averageCharWidth() - self.horizontalScrollBar().value()
        selected = self.selected_rows()
        with QPainter(self.viewport()) as painter:
            painter.fillRect(self.viewport().rect(), QColor(colors.surface))
            first, end = self._visible()
            for row in range(first, end):
                area = QRect(0, (row - first) * height, self.viewport().width(), height)
                if selected is not None and selected[0] <= row < selected[0] + selected[1]:
                    painter.fillRect(area, _faint(colors.accent, 60))
                line = self.line(row)
                painter.setClipRect(area.adjusted(gutter, 0, 0, 0))
                self._draw_text(painter, QPoint(left, area.top()), line, colors)
                painter.setClipping(False)
                self._draw_number(painter, QRect(0, area.top(), gutter, height), line, colors)

    def _draw_text(self, painter: QPainter, at: QPoint, line: LogLine | None, colors: theme.Colors) -> None:
        metrics = self.fontMetrics()
        if line is None:
            painter.setPen(QColor(colors.muted))
            painter.drawText(at.x(), at.y() + metrics.ascent() + 1, "…")
            return
        text = line.text[:_SHOWN_CHARACTERS]
        if self._needle:
            lowered = text.lower()
            start = lowered.find(self._needle)
            while start >= 0:
                before = metrics.horizontalAdvance(text[:start])
                width = metrics.horizontalAdvance(text[start : start + len(self._needle)])
                mark = QRect(at.x() + before, at.y(), width, self._row_height())
                painter.fillRect(mark, _faint(colors.warning, 90))
                start = lowered.find(self._needle, start + len(self._needle))
        loud = {LogLevel.ERRORS: colors.bad, LogLevel.WARNINGS: colors.warning}
        painter.setPen(QColor(loud.get(level_of(text), colors.text)))
        painter.drawText(at.x(), at.y() + metrics.ascent() + 1, text)

    def _draw_number(self, painter: QPainter, area: QRect, line: LogLine | None, colors: theme.Colors) -> None:
        painter.fillRect(area, QColor(colors.window))
        if line is not None and line.number is not None:
            painter.setPen(QColor(colors.muted))
            inner = area.adjusted(0, 0, -self.fontMetrics().averageCharWidth(), 0)
            painter.drawText(inner, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, f"{line.number:,}")

    def _row_height(self) -> int:
        return self.fontMetrics().height() + 2

    def _gutter_width(self) -> int:
        digits = max(5, len(f"{max(0, self.count):,}") + 1)
        # Matches carry line numbers of the whole file, which may have more digits than the number of matches.
        numbers = [line.number for row in self._edge_rows() if (line := self.line(row)) and line.number]
        digits = max([digits, *(len(f"{number:,}") + 1 for number in numbers)])
        return self.fontMetrics().averageCharWidth() * (digits + 1)

    def _edge_rows(self) -> tuple[int, int]:
        first, end = self._visible()
        return first, max(first, end - 1)

    def _update_bars(self) -> None:
        rows = self.rows_on_screen()
        self.verticalScrollBar().setRange(0, max(0, self.count - rows))
        self.verticalScrollBar().setPageStep(rows)
        room = self.viewport().width() - self._gutter_width() - 2 * self.fontMetrics().averageCharWidth()
        self.horizontalScrollBar().setRange(0, max(0, self._widest - room))
        self.horizontalScrollBar().setPageStep(max(1, room))
        self.horizontalScrollBar().setSingleStep(self.fontMetrics().averageCharWidth() * 4)

    # ------------------------------------------------------------------ keys and mouse

    def keyPressEvent(self, event: QKeyEvent) -> None:
        selected = self.selected_rows()
        if event.matches(QKeySequence.StandardKey.Copy) and selected is not None:
            self.copy_requested.emit(*selected)
        elif event.matches(QKeySequence.StandardKey.SelectAll) and self.count:
            self._anchor, self._cursor = 0, self.count - 1
            self.viewport().update()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self._cursor is not None:
            self.row_activated.emit(self._cursor)
        elif event.key() in _MOVES:
            self._move(event.key(), extend=bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier))
        else:
            super().keyPressEvent(event)

    def _move(self, key: int, *, extend: bool) -> None:
        page = self.rows_on_screen()
        first, end = self._visible()
        current = self._cursor if self._cursor is not None else (end if key in _UPWARDS else first - 1)
        steps = {
            Qt.Key.Key_Up: -1,
            Qt.Key.Key_Down: 1,
            Qt.Key.Key_PageUp: -page,
            Qt.Key.Key_PageDown: page,
            Qt.Key.Key_Home: -self.count,
            Qt.Key.Key_End: self.count,
        }
        self._cursor = max(0, min(self.count - 1, current + steps[Qt.Key(key)]))
        if not extend or self._anchor is None:
            self._anchor = self._cursor
        bar = self.verticalScrollBar()
        if self._cursor < bar.value():
            bar.setValue(self._cursor)
        elif self._cursor >= bar.value() + page:
            bar.setValue(self._cursor - page + 1)
        self.viewport().update()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        row = self._row_at(event.position().toPoint())
        if row is not None and event.button() == Qt.MouseButton.LeftButton:
            self._cursor = row
            if not event.modifiers() & Qt.KeyboardModifier.ShiftModifier or self._anchor is None:
                self._anchor = row
            self.viewport().update()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if event.buttons() & Qt.MouseButton.LeftButton and self._anchor is not None:
            row = self._row_at(event.position().toPoint())
            if row is not None:
                self._cursor = row
                self.viewport().update()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        row = self._row_at(event.position().toPoint())
        if row is not None:
            self.row_activated.emit(row)

    def _row_at(self, point: QPoint) -> int | None:
        row = self.verticalScrollBar().value() + max(0, point.y()) // self._row_height()
        return row if row < self.count else None


_UPWARDS = (Qt.Key.Key_Up, Qt.Key.Key_PageUp, Qt.Key.Key_Home)
_MOVES = (*_UPWARDS, Qt.Key.Key_Down, Qt.Key.Key_PageDown, Qt.Key.Key_End)


def _faint(name: str, alpha: int) -> QColor:
    color = QColor(name)
    color.setAlpha(alpha)
    return color
