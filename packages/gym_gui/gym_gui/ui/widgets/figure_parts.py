"""What a figure looks like on the screen: lines of one colour as one stroke, bands as fills, the chosen line in front.

However many lines there are, a chart has a few strokes: a thousand runs cost what their points cost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from PySide6.QtGui import QColor

from gym_gui.services.analytics.curves import Floats
from gym_gui.services.analytics.figure import Figure, Line
from gym_gui.ui import theme
from gym_gui.ui.presenters.charts import Entry, drawn_part, key_by_runs, points_drawn
from gym_gui.ui.widgets.plot_layer import Fill, Stroke

_FAINT, _DIMMED, _BAND = 70, 45, 45
"""Opacity (of 255) of a curve behind its smoothed self, of those that are not the chosen one, of a band"""
_CHOSEN_FAINT = 160
_MANY, _MANY_OPACITY = 40, 120
"""From so many lines on each is drawn fainter, so that where many lie can be seen"""
_MOST_BANDS = 40
"""More bands than these would hide each other"""
_BAND_COLUMNS, _FEWEST_COLUMNS = 2_500, 60
"""Corners of all bands together: Qt fills a jagged outline dearly, and nobody sees the teeth of twenty bands"""


@dataclass(frozen=True)
class Look:
    """How a figure is looked at."""

    hidden: Collection[str] = frozenset()
    """Keys of entries that are not to be seen"""
    chosen: str = ""
    """The one that is brought forward"""
    stretch: tuple[float, float] | None = None
    """The part of the axis whose points are drawn finer"""


def parts_of(figure: Figure, entries: Collection[Entry], look: Look) -> tuple[list[Fill], list[Stroke], bool]:
    """What is drawn, from the back to the front, and whether lines have more points than that."""
    series = theme.colours().series
    keys = key_by_runs(entries)
    buckets: dict[tuple[int, int, int], list[Line]] = {}  # (front, opacity, colour) → lines
    banded: list[Line] = []
    for line in figure.lines:
        key = keys.get(line.run_ids, "")
        if key in look.hidden or not len(line.x):
            continue
        is_chosen = bool(look.chosen) and key == look.chosen
        opacity = _opacity(line, is_chosen=is_chosen, is_one_chosen=bool(look.chosen), lines=len(entries))
        front = 2 * is_chosen + (not line.is_faint)
        buckets.setdefault((front, opacity, line.colour % len(series)), []).append(line)
        if line.low is not None and (is_chosen or not look.chosen):
            banded.append(line)
    if len(banded) > _MOST_BANDS:
        banded = []
    columns = max(_FEWEST_COLUMNS, _BAND_COLUMNS // max(1, len(banded)))
    most = points_drawn(sum(map(len, buckets.values())))
    strokes = []
    for (_, opacity, number), lines in sorted(buckets.items(), key=lambda pair: pair[0]):
        points = [_on_axes(figure, *drawn_part(line, most, look.stretch)) for line in lines]
        strokes.append(_stroke(_faded(series[number], opacity), points))
    fills = [_band(figure, line, columns, series[line.colour % len(series)]) for line in banded]
    return fills, strokes, any(len(line.x) > most for line in _all(buckets.values()))


def _all(buckets: Iterable[Sequence[Line]]) -> Iterable[Line]:
    return (line for lines in buckets for line in lines)


def _opacity(line: Line, *, is_chosen: bool, is_one_chosen: bool, lines: int) -> int:
    if is_chosen:
        return _CHOSEN_FAINT if line.is_faint else 255
    usual = _FAINT if line.is_faint else _MANY_OPACITY if lines > _MANY else 255
    return min(usual, _DIMMED) if is_one_chosen else usual


def _stroke(colour: QColor, parts: Sequence[tuple[Floats, Floats]]) -> Stroke:
    """Several lines as one: which point is joined to the next."""
    xs = np.concatenate([part[0] for part in parts])
    ys = np.concatenate([part[1] for part in parts])
    joined = np.ones(len(xs), np.int32)
    ends = np.cumsum([len(part[0]) for part in parts])
    joined[ends[ends > 0] - 1] = 0
    return Stroke(colour, xs, ys, joined)


def _band(figure: Figure, line: Line, columns: int, colour: str) -> Fill:
    assert line.low is not None
    assert line.high is not None
    x, low, high = _coarser((line.x, line.low, line.high), columns)
    if figure.log_y:
        above = np.concatenate((line.y, high))
        floor = float(above[above > 0].min(initial=1.0))
        low, high = np.maximum(low, floor), np.maximum(high, floor)
    outline = _on_axes(figure, np.concatenate((x, x[::-1])), np.concatenate((high, low[::-1])))
    return Fill(_faded(colour, _BAND), *outline)


def _on_axes(figure: Figure, xs: Floats, ys: Floats) -> tuple[Floats, Floats]:
    """As they stand on the axes; what has no place on a logarithmic one is left out."""
    keep = np.isfinite(xs) & np.isfinite(ys)
    if figure.log_x:
        keep &= xs > 0
    if figure.log_y:
        keep &= ys > 0
    if not keep.all():
        xs, ys = xs[keep], ys[keep]
    return (np.log10(xs) if figure.log_x else xs), (np.log10(ys) if figure.log_y else ys)


def _coarser(columns: tuple[Floats, ...], most: int) -> tuple[Floats, ...]:
    """Columns of one length with fewer rows: the mean of each stretch; the first and the last row stay."""
    length = len(columns[0])
    if length <= most:
        return columns
    begins = np.linspace(1, length - 1, most - 1).astype(np.intp)[:-1]
    widths = np.diff(np.append(begins, length - 1))
    return tuple(
        np.concatenate((column[:1], np.add.reduceat(column[:-1], begins) / widths, column[-1:])) for column in columns
    )


def _faded(colour: str, opacity: int) -> QColor:
    faded = QColor(colour)
    faded.setAlpha(opacity)
    return faded
