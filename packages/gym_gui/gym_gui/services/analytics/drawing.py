"""A figure as a file: PNG, SVG or PDF, drawn by matplotlib without a screen and without its global state."""

from __future__ import annotations

import io
import os
import textwrap
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gym_gui.services.analytics import palette
from gym_gui.services.analytics.comparison import Comparison
from gym_gui.services.analytics.curves import Floats, extremes
from gym_gui.services.analytics.figure import Figure, Line
from gym_gui.services.analytics.published import published_return
from gym_gui.services.analytics.statistics import Estimate
from gym_gui.wording import formats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D


FORMATS = ("png", "svg", "pdf")
SIZE = (960, 540)
_DOTS_PER_INCH = 100
_MOST_POINTS = 2_000
"""Points drawn per line in a file; more are not visible"""
_MOST_LABELS = 24
_CHARACTER, _HANDLE, _LABEL_HEIGHT = 7, 9, 19
"""Of a legend: width of a character in pixels, width of a line sample in characters, height of a row in pixels"""
_CROWD = 16
"""More lines than this are thin"""
_MARKS = 8
"""Markers on a line"""
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "mosaic",  # the same figure is the same file
    "svg.fonttype": "none",  # text stays text: it can be searched, and the file is small
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica"],  # a reader of the SVG may lack the first
    "path.simplify": True,
}
_one_at_a_time = threading.Lock()
"""The settings are matplotlib's, for the whole process, while a figure is drawn"""


class UnknownFormat(ValueError):
    """The name of a file does not end in .png, .svg or .pdf."""


def save_figure(figure: Figure, path: Path, *, size: tuple[int, int] = SIZE, dark: bool = False) -> None:
    """Write the figure; its format follows from the name. Nothing half-written is left."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        names = ", ".join(f".{name}" for name in FORMATS)
        raise UnknownFormat(f"{path.name}: a figure's file ends in {names}")
    unfinished = path.with_name(f".{path.name}.part")
    try:
        with unfinished.open("wb") as stream:
            _write(figure, stream, kind, size, dark=dark)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def figure_svg(figure: Figure, *, size: tuple[int, int] = SIZE) -> str:
    """Return the figure as one <svg> element, for a page."""
    stream = io.BytesIO()
    _write(figure, stream, "svg", size, dark=False)
    text = stream.getvalue().decode("utf-8")
    return text[text.index("<svg") :]


def _write(figure: Figure, stream: Any, kind: str, size: tuple[int, int], *, dark: bool) -> None:
    write_canvas(lambda scheme: _drawn(figure, size, scheme), stream, kind, dark=dark)


def write_canvas(draw: Callable[[palette.Scheme], Canvas], stream: Any, kind: str, *, dark: bool = False) -> None:
    """Draw with the settings that all our figures have, and write it as PNG, SVG or PDF."""
    import matplotlib

    scheme = palette.DARK if dark else palette.LIGHT
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with _one_at_a_time, matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # A name with characters that the font lacks is drawn with boxes; no warning is printed.
        warnings.filterwarnings("ignore", message=r"Glyph \d+")
        canvas = draw(scheme)
        canvas.savefig(stream, format=kind, dpi=_DOTS_PER_INCH, facecolor=scheme.background, metadata=dates)


def _drawn(figure: Figure, size: tuple[int, int], scheme: palette.Scheme) -> Canvas:
    canvas, axes = _canvas(size, scheme, spines=("left", "bottom"), h_pad=0.07)
    _label(axes, figure, scheme)
    named = [line for line in figure.lines if not line.is_faint]
    is_crowded = len(named) > _CROWD
    handles = [
        handle for line in figure.lines if (handle := _draw(axes, line, scheme, is_crowded=is_crowded)) is not None
    ]
    _scale(axes, figure)
    if len(named) > 1 or (named and named[0].label):
        _legend(canvas, handles, [line.label for line in named], size, scheme)
    return canvas


def _canvas(
    size: tuple[int, int], scheme: palette.Scheme, *, spines: Sequence[str], h_pad: float
) -> tuple[Canvas, Axes]:
    """Return an empty figure in this color scheme, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    inches = (size[0] / _DOTS_PER_INCH, size[1] / _DOTS_PER_INCH)
    canvas = Canvas(figsize=inches, dpi=_DOTS_PER_INCH, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=h_pad))
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    axes.set_facecolor(scheme.background)
    for name, spine in axes.spines.items():
        spine.set_color(scheme.grid)
        spine.set_visible(name in spines)
    axes.tick_params(colors=scheme.muted, which="both", labelsize=9)
    axes.grid(visible=True, color=scheme.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    return canvas, axes


def _label(axes: Axes, figure: Figure, scheme: palette.Scheme) -> None:
    for text, label in ((axes.xaxis.label, figure.x_label), (axes.yaxis.label, figure.y_label)):
        text.set(text=label, color=scheme.text, fontsize=10, parse_math=False)
    axes.set_title(
        figure.title, loc="left", color=scheme.text, fontsize=13, fontweight="bold", pad=24 if figure.note else 8
    )
    axes.title.set_parse_math(False)
    axes._left_title.set_parse_math(False)  # type: ignore[attr-defined]
    if figure.note:
        note = axes.text(0, 1.015, figure.note, transform=axes.transAxes, color=scheme.muted, fontsize=9, va="bottom")
        note.set_in_layout(False)  # a long one must not squeeze the axes


def _scale(axes: Axes, figure: Figure) -> None:
    from matplotlib.ticker import EngFormatter, NullFormatter

    if figure.log_x:
        axes.set_xscale("log", nonpositive="mask")
    if figure.log_y:
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_minor_formatter(NullFormatter())
    for axis, is_log in ((axes.xaxis, figure.log_x), (axes.yaxis, figure.log_y)):
        low, high = axis.get_view_interval()
        if not is_log and max(abs(low), abs(high)) >= 10_000:
            axis.set_major_formatter(EngFormatter(sep=""))
    axes.margins(x=0.01)


def _draw(axes: Axes, line: Line, scheme: palette.Scheme, *, is_crowded: bool) -> Line2D | None:
    """One line; what a legend shows of it, None for a faint one."""
    color = scheme.color(line.color)
    x, y = line.x, line.y
    if line.low is not None and line.high is not None:
        axes.fill_between(x, line.low, line.high, color=color, alpha=0.2, linewidth=0)
    if len(y) > _MOST_POINTS:
        kept = extremes(y, _MOST_POINTS)
        x, y = x[kept], y[kept]
    if line.is_faint:
        axes.plot(x, y, color=color, linewidth=0.8, alpha=0.25)
        return None
    marker = palette.MARKERS[line.color % len(palette.MARKERS)]
    dashes = ("-", "--", "-.", ":")[line.color // len(scheme.series) % 4]
    every = max(1, len(x) // _MARKS)
    places = (min(len(x) - 1, (line.color % _MARKS) * every // _MARKS), every) if len(x) else None
    width = 0.9 if is_crowded else 1.6
    style: dict[str, Any] = {
        "color": color,
        "linewidth": width,
        "linestyle": dashes,
        "marker": marker,
        "markersize": 4.5,
    }
    (drawn,) = axes.plot(x, y, markevery=places, **style)
    return drawn


def _legend(
    canvas: Canvas, handles: list[Line2D], labels: list[str], size: tuple[int, int], scheme: palette.Scheme
) -> None:
    """Below the axes, over a third of the height at most: what does not fit is counted, what is too long is cut."""
    from matplotlib.lines import Line2D as Handle

    characters = max(8, size[0] // _CHARACTER - _HANDLE)
    names = [textwrap.shorten(label.lstrip("_") or "run", characters, placeholder=" …") for label in labels]
    columns = max(1, min(len(names), size[0] // ((max(map(len, names)) + _HANDLE) * _CHARACTER)))
    most = min(_MOST_LABELS, columns * max(1, size[1] // 3 // _LABEL_HEIGHT))
    if len(names) > most:
        names = [*names[: most - 1], f"… and {len(names) - most + 1} more"]
        handles = [*handles[: most - 1], Handle([], [], linestyle="none")]
    _add_legend(canvas, handles, names, columns, scheme)


def _add_legend(canvas: Canvas, handles: list[Line2D], labels: list[str], columns: int, scheme: palette.Scheme) -> None:
    legend = canvas.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, labelcolor=scheme.text
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


# ---------------------------------------------------------------- final returns with their intervals


_WIDTH, _ROW, _AROUND = 960, 46, 170
"""Sizes in pixels: width of the image, height of a group, height of title, axis and legend"""
MOST_GROUPS = 40
_LABEL_CHARACTERS = 40


@dataclass(frozen=True)
class IntervalRow:
    """One group."""

    label: str
    finals: tuple[float, ...]
    """Final returns, a seed each"""
    center: Estimate
    color: int
    published: float | None


@dataclass(frozen=True)
class IntervalFigure:
    """The final returns of the groups of one environment."""

    title: str
    rows: tuple[IntervalRow, ...]
    """The best group first"""
    random: float | None
    """Mean return of a random policy"""


def intervals_of(
    environment: str, comparison: Comparison, labels: Mapping[str, str], colors: Mapping[str, int]
) -> IntervalFigure:
    """Return the groups of one environment; labels and colors by their keys."""
    rows: list[IntervalRow] = []
    for group in comparison.groups:
        finals = [final for run_id in group.run_ids if (final := comparison.runs[run_id].final) is not None]
        if group.environment == environment and group.final_iqm is not None and len(rows) < MOST_GROUPS:
            theirs = published_return(group.algo, environment)
            published = theirs.mean if theirs else None
            label, color = labels[group.key], colors[group.key]
            rows.append(IntervalRow(label, tuple(finals), group.final_iqm, color, published))
    baseline = comparison.baselines.get(environment)
    return IntervalFigure(f"{environment}: final return", tuple(rows), baseline.mean if baseline else None)


def interval_image(figure: IntervalFigure, kind: str) -> bytes:
    """Return the figure as PNG or SVG."""
    stream = io.BytesIO()
    write_canvas(lambda scheme: _interval_canvas(figure, scheme), stream, kind)
    return stream.getvalue()


def _interval_canvas(figure: IntervalFigure, scheme: palette.Scheme) -> Canvas:
    canvas, axes = _canvas((_WIDTH, _AROUND + _ROW * max(1, len(figure.rows))), scheme, spines=("bottom",), h_pad=0.09)
    _style_interval_axes(axes, figure, scheme)
    for place, row in enumerate(figure.rows):
        _draw_interval(axes, row, place, scheme)
    if figure.random is not None:
        axes.axvline(figure.random, color=scheme.muted, linestyle="--", linewidth=1.2, label="acting at random")
    handles, labels = _legend_entries(figure, scheme)
    _add_legend(canvas, handles, labels, 4, scheme)
    return canvas


def _style_interval_axes(axes: Axes, figure: IntervalFigure, scheme: palette.Scheme) -> None:
    axes.tick_params(left=False)
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(figure.rows)))
    for text in axes.set_yticklabels(
        [_cut(row.label, _LABEL_CHARACTERS) for row in figure.rows], color=scheme.text, fontsize=10
    ):
        text.set_parse_math(False)
    axes.set_ylim(len(figure.rows) - 0.4, -0.6)
    axes.set_xlabel("return: mean over the last 100 episodes", color=scheme.text, fontsize=10)
    title = _cut(figure.title, 2 * _LABEL_CHARACTERS)
    style: dict[str, Any] = {
        "color": scheme.text,
        "fontsize": 13,
        "fontweight": "bold",
        "va": "bottom",
        "parse_math": False,
    }
    axes.text(0, 1.06, title, transform=axes.transAxes, **style)


def _cut(text: str, characters: int) -> str:
    """Shorten a name that would leave no room for the drawing."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def _draw_interval(axes: Axes, row: IntervalRow, place: int, scheme: palette.Scheme) -> None:
    color = scheme.color(row.color)
    if (interval := row.center.interval) is not None:
        ends = [interval.low, interval.high]
        axes.plot(ends, [place, place], color=color, linewidth=11, alpha=0.3, solid_capstyle="butt")
    axes.plot([row.center.value] * 2, [place - 0.22, place + 0.22], color=color, linewidth=2.6, solid_capstyle="butt")
    # Seeds that reached the same would hide each other.
    nudges = [0.0] if len(row.finals) < 2 else [0.12 * (index % 3 - 1) for index in range(len(row.finals))]
    heights = [place + nudge for nudge in nudges]
    dot: dict[str, Any] = {"marker": "o", "markersize": 5, "markerfacecolor": scheme.background}
    axes.plot(row.finals, heights, linestyle="none", markeredgecolor=color, markeredgewidth=1.4, **dot)
    if row.published is not None:
        diamond: dict[str, Any] = {
            "marker": "D",
            "markersize": 7,
            "markerfacecolor": "none",
            "markeredgecolor": scheme.text,
        }
        axes.plot([row.published], [place], linestyle="none", markeredgewidth=1.3, **diamond)


def _legend_entries(figure: IntervalFigure, scheme: palette.Scheme) -> tuple[list[Line2D], list[str]]:
    """Return what a legend shows: the same signs for every row."""
    from matplotlib.lines import Line2D

    ink = scheme.muted
    dot = Line2D([], [], linestyle="none", marker="o", markerfacecolor=scheme.background, markeredgecolor=ink)
    bar = Line2D([], [], color=ink, linewidth=6, alpha=0.5)
    signs = [(dot, "one seed"), (bar, "IQM, 95 % interval")]
    if figure.random is not None:
        signs.append((Line2D([], [], color=ink, linestyle="--"), "acting at random"))
    if any(row.published is not None for row in figure.rows):
        diamond = Line2D([], [], linestyle="none", marker="D", markerfacecolor="none", markeredgecolor=scheme.text)
        signs.append((diamond, "published, after its own steps"))
    return [sign for sign, _ in signs], [text for _, text in signs]


# ---------------------------------------------------------------- text for a terminal


COLORS = ("blue", "red", "green", "magenta", "yellow", "cyan", "bright_blue", "bright_black")
"""Colors of the lines, by their number"""
TextRow = list[tuple[str, int | None]]
"""Texts, and the number of the line that colors each"""
Range = tuple[float, float]
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, by row and column"""
_EMPTY = 0x2800
_NUMBERS = "123456789abcdefghijklmnopqrstuvwxyz"
"""A line has its number at its end, so that lines differ in more than color"""


def sketch(figure: Figure, *, width: int = 80, height: int = 16) -> list[TextRow]:
    """Return the figure as rows of text, the axis below it."""
    lines = visible(figure)
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
    rows: list[TextRow] = [[(f"{labels.get(row, ''):>{edge}} │", None), *board.row(row)] for row in range(height)]
    first, last = (formats.short_count(_unscaled(value, figure.log_x)) for value in x_range)
    ends = f"{first}{f'{last} {figure.x_label}':>{max(1, board.columns - len(first))}}"
    return [*rows, [(f"{'':>{edge}} └{'─' * board.columns}", None)], [(f"{'':>{edge}}  {ends}", None)]]


def mark_of(index: int) -> str:
    """Return what stands at the end of a line, and before its name."""
    return _NUMBERS[index % len(_NUMBERS)]


def visible(figure: Figure) -> list[Line]:
    """Return the lines that a sketch shows, in the order of their numbers."""
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
                self._set(index, row, place)  # a steep part is a line, not two dots
            before = now
        if before is not None:
            self._marks[before // 4, min(int(last), len(places) - 1) // 2] = index

    def _set(self, index: int, row: int, place: int) -> None:
        self._dots[row // 4, place // 2] |= _DOTS[row % 4][place % 2]
        self._owners[row // 4, place // 2] = index

    def row(self, row: int) -> TextRow:
        cells: TextRow = []
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
