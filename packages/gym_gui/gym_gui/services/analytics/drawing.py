"""A figure as a file: PNG, SVG or PDF, drawn by matplotlib without a screen and without its global state."""

from __future__ import annotations

import io
import os
import textwrap
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gym_gui.services.analytics import palette
from gym_gui.services.analytics.curves import extremes
from gym_gui.services.analytics.figure import Figure, Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

FORMATS = ("png", "svg", "pdf")
SIZE = (960, 540)
_DOTS_PER_INCH = 100
_MOST_POINTS = 2_000
"""Of a line in a file; more are no more to be seen"""
_MOST_LABELS = 24
_LETTER, _HANDLE, _LABEL_HEIGHT = 7, 9, 19
"""Of a legend: pixels of a letter, letters that the line before a name takes, pixels of a row"""
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
    """The name of a file does not say PNG, SVG or PDF."""


def save_figure(figure: Figure, path: Path, *, size: tuple[int, int] = SIZE, dark: bool = False) -> None:
    """Write the figure; its format follows from the name. Nothing half-written is left."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        names = ", ".join(f".{name}" for name in FORMATS)
        raise UnknownFormat(f"{path.name}: a figure's file ends in {names}")
    unfinished = path.with_name(f".{path.name}.part")
    try:
        with unfinished.open("wb") as stream:
            _write(figure, stream, kind, size, dark)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def figure_svg(figure: Figure, *, size: tuple[int, int] = SIZE, dark: bool = False) -> str:
    """The figure as one <svg> element, for a page."""
    stream = io.BytesIO()
    _write(figure, stream, "svg", size, dark)
    text = stream.getvalue().decode("utf-8")
    return text[text.index("<svg") :]


def _write(figure: Figure, stream: Any, kind: str, size: tuple[int, int], dark: bool) -> None:
    write_canvas(lambda scheme: _drawn(figure, size, scheme), stream, kind, dark=dark)


def write_canvas(draw: Callable[[palette.Scheme], Canvas], stream: Any, kind: str, *, dark: bool = False) -> None:
    """Draw with the settings that all our figures have, and write it as PNG, SVG or PDF."""
    import matplotlib

    scheme = palette.DARK if dark else palette.LIGHT
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with _one_at_a_time, matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # A name in letters that the font lacks is drawn with boxes; that is no news for a terminal.
        warnings.filterwarnings("ignore", message=r"Glyph \d+")
        canvas = draw(scheme)
        canvas.savefig(stream, format=kind, dpi=_DOTS_PER_INCH, facecolor=scheme.background, metadata=dates)


def _drawn(figure: Figure, size: tuple[int, int], scheme: palette.Scheme) -> Canvas:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    inches = (size[0] / _DOTS_PER_INCH, size[1] / _DOTS_PER_INCH)
    canvas = Canvas(figsize=inches, dpi=_DOTS_PER_INCH, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.07))
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    _dress(axes, figure, scheme)
    named = [line for line in figure.lines if not line.is_faint]
    is_crowded = len(named) > _CROWD
    handles = [
        handle for line in figure.lines if (handle := _draw(axes, line, scheme, is_crowded=is_crowded)) is not None
    ]
    _scale(axes, figure)
    if len(named) > 1 or (named and named[0].label):
        _legend(canvas, handles, [line.label for line in named], size, scheme)
    return canvas


def _dress(axes: Axes, figure: Figure, scheme: palette.Scheme) -> None:
    axes.set_facecolor(scheme.background)
    for name, spine in axes.spines.items():
        spine.set_color(scheme.grid)
        spine.set_visible(name in ("left", "bottom"))
    axes.tick_params(colors=scheme.muted, which="both", labelsize=9)
    axes.grid(visible=True, color=scheme.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    for text, wanted in ((axes.xaxis.label, figure.x_label), (axes.yaxis.label, figure.y_label)):
        text.set(text=wanted, color=scheme.text, fontsize=10, parse_math=False)
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
    colour = scheme.colour(line.colour)
    x, y = line.x, line.y
    if line.low is not None and line.high is not None:
        axes.fill_between(x, line.low, line.high, color=colour, alpha=0.2, linewidth=0)
    if len(y) > _MOST_POINTS:
        kept = extremes(y, _MOST_POINTS)
        x, y = x[kept], y[kept]
    if line.is_faint:
        axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.25)
        return None
    marker = palette.MARKERS[line.colour % len(palette.MARKERS)]
    dashes = ("-", "--", "-.", ":")[line.colour // len(scheme.series) % 4]
    every = max(1, len(x) // _MARKS)
    (drawn,) = axes.plot(
        x, y, color=colour, linewidth=0.9 if is_crowded else 1.6, linestyle=dashes, marker=marker, markersize=4.5,
        markevery=(min(len(x) - 1, (line.colour % _MARKS) * every // _MARKS), every) if len(x) else None,
    )  # fmt: skip
    return drawn


def _legend(
    canvas: Canvas, handles: list[Line2D], labels: list[str], size: tuple[int, int], scheme: palette.Scheme
) -> None:
    """Below the axes, over a third of the height at most: what does not fit is counted, what is too long is cut."""
    from matplotlib.lines import Line2D as Handle

    letters = max(8, size[0] // _LETTER - _HANDLE)
    names = [textwrap.shorten(label.lstrip("_") or "run", letters, placeholder=" …") for label in labels]
    columns = max(1, min(len(names), size[0] // ((max(map(len, names)) + _HANDLE) * _LETTER)))
    most = min(_MOST_LABELS, columns * max(1, size[1] // 3 // _LABEL_HEIGHT))
    if len(names) > most:
        names = [*names[: most - 1], f"… and {len(names) - most + 1} more"]
        handles = [*handles[: most - 1], Handle([], [], linestyle="none")]
    legend = canvas.legend(
        handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9, labelcolor=scheme.text
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
