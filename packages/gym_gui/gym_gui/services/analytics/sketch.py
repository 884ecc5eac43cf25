"""A figure as text: lines of braille dots, for a terminal on a machine far away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gym_gui.services.analytics.curves import Floats
from gym_gui.services.analytics.figure import Figure, Line
from gym_gui.wording import formats

COLOURS = ("blue", "red", "green", "magenta", "yellow", "cyan", "bright_blue", "bright_black")
"""Of the lines, by number"""
Row = list[tuple[str, int | None]]
"""Texts, and the number of the line that colours each"""
Range = tuple[float, float]
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""By row and column: the bits of a braille character"""
_EMPTY = 0x2800
_NUMBERS = "123456789abcdefghijklmnopqrstuvwxyz"
"""A line has its number at its end, so that nothing is told by colour alone"""


def sketch(figure: Figure, *, width: int = 80, height: int = 16) -> list[Row]:
    """The figure as rows of text, the axis below it."""
    lines = [line for line in figure.lines if not line.is_faint and len(line.x)]
    if not lines:
        return []
    columns_x = [_scaled(line.x, figure.log_x) for line in lines]
    columns_y = [_scaled(line.y, figure.log_y) for line in lines]
    x_range, y_range = _range(columns_x), _range(columns_y)
    low, high = (formats.quantity(_unscaled(value, figure.log_y)) for value in y_range)
    edge = max(len(low), len(high))
    board = _Board(max(10, width - edge - 2), height, x_range, y_range)
    for index, (x, y) in enumerate(zip(columns_x, columns_y, strict=True)):
        board.paint(index, x, y)
    labels = {0: high, height - 1: low}
    rows: list[Row] = [[(f"{labels.get(row, ''):>{edge}} │", None), *board.row(row)] for row in range(height)]
    first, last = (formats.short_count(_unscaled(value, figure.log_x)) for value in x_range)
    ends = f"{first}{f'{last} {figure.x_label}':>{max(1, board.columns - len(first))}}"
    return [*rows, [(f"{'':>{edge}} └{'─' * board.columns}", None)], [(f"{'':>{edge}}  {ends}", None)]]


def mark_of(index: int) -> str:
    """What stands at the end of a line, and before its name."""
    return _NUMBERS[index % len(_NUMBERS)]


def visible(figure: Figure) -> list[Line]:
    """The lines that a sketch shows, in the order of their numbers."""
    return [line for line in figure.lines if not line.is_faint and len(line.x)]


class _Board:
    """Characters of two by four dots each."""

    def __init__(self, columns: int, height: int, x_range: Range, y_range: Range) -> None:
        self.columns, self._height, self._x_range, self._y_range = columns, height, x_range, y_range
        self._dots: NDArray[np.int64] = np.zeros((height, columns), np.int64)
        self._owners: NDArray[np.int64] = np.full((height, columns), -1)
        self._marks: dict[tuple[int, int], int] = {}

    def paint(self, index: int, x: Floats, y: Floats) -> None:
        places = np.linspace(*self._x_range, self.columns * 2)
        first, last = np.searchsorted(places, (x[0], x[-1]))
        low, high = self._y_range
        at = np.interp(places, x, y)
        heights = np.rint((1 - np.clip((at - low) / (high - low), 0, 1)) * (self._height * 4 - 1)).astype(int)
        before: int | None = None
        for place in range(int(first), int(min(last, len(places) - 1)) + 1):
            now = int(heights[place])
            for row in range(min(now, before), max(now, before) + 1) if before is not None else (now,):
                self._set(index, row, place)  # a steep stretch is a line, not two dots
            before = now
        if before is not None:
            self._marks[before // 4, min(int(last), len(places) - 1) // 2] = index

    def _set(self, index: int, row: int, place: int) -> None:
        self._dots[row // 4, place // 2] |= _DOTS[row % 4][place % 2]
        self._owners[row // 4, place // 2] = index

    def row(self, row: int) -> Row:
        cells: Row = []
        for column in range(self.columns):
            if (mark := self._marks.get((row, column))) is not None:
                cells.append((mark_of(mark), mark))
            elif dots := int(self._dots[row, column]):
                cells.append((chr(_EMPTY + dots), int(self._owners[row, column])))
            else:
                cells.append((" ", None))
        return cells


def _scaled(values: Floats, is_log: bool) -> Floats:
    if not is_log:
        return values
    positive = values[values > 0]
    return np.log10(np.maximum(values, positive.min() if len(positive) else 1.0))


def _unscaled(value: float, is_log: bool) -> float:
    return float(10**value) if is_log else value


def _range(columns: Sequence[Floats]) -> Range:
    low, high = min(float(column.min()) for column in columns), max(float(column.max()) for column in columns)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
