"""What groups of seeds reached, in one picture: every seed a dot, the interquartile mean and its interval a bar."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gym_gui.services.analytics import palette
from gym_gui.services.analytics.bench_figures import baseline_for
from gym_gui.services.analytics.comparison import Comparison
from gym_gui.services.analytics.drawing import write_canvas
from gym_gui.services.analytics.published import published_return
from gym_gui.services.analytics.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas
    from matplotlib.lines import Line2D

_DOTS_PER_INCH = 100
_WIDTH, _ROW, _AROUND = 960, 46, 170
"""Pixels: of the picture, of a group, and of title, axis and legend together"""
MOST_GROUPS = 40
_LETTERS = 40


@dataclass(frozen=True)
class Row:
    """One group."""

    label: str
    finals: tuple[float, ...]
    """Final returns, a seed each"""
    centre: Estimate
    colour: int
    published: float | None


@dataclass(frozen=True)
class IntervalFigure:
    title: str
    rows: tuple[Row, ...]
    """The best on top"""
    random: float | None
    """What acting at random reaches"""


def intervals_of(
    env_id: str, comparison: Comparison, labels: Mapping[str, str], colours: Mapping[str, int]
) -> IntervalFigure:
    """The groups of one environment; labels and colours by their keys."""
    rows: list[Row] = []
    for group in comparison.groups:
        finals = [final for run_id in group.run_ids if (final := comparison.runs[run_id].final) is not None]
        if group.env_id == env_id and group.final_iqm is not None and len(rows) < MOST_GROUPS:
            theirs = published_return(group.algo, env_id)
            published = theirs.mean if theirs else None
            label, colour = labels[group.key], colours[group.key]
            rows.append(Row(label, tuple(finals), group.final_iqm, colour, published))
    baseline = baseline_for(env_id, comparison)
    return IntervalFigure(f"{env_id}: final return", tuple(rows), baseline.mean if baseline else None)


def interval_picture(figure: IntervalFigure, kind: str) -> bytes:
    """As PNG or SVG."""
    stream = io.BytesIO()
    write_canvas(lambda scheme: _drawn(figure, scheme), stream, kind)
    return stream.getvalue()


def _drawn(figure: IntervalFigure, scheme: palette.Scheme) -> Canvas:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    height = _AROUND + _ROW * max(1, len(figure.rows))
    inches = (_WIDTH / _DOTS_PER_INCH, height / _DOTS_PER_INCH)
    canvas = Canvas(figsize=inches, dpi=_DOTS_PER_INCH, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.09))
    FigureCanvasAgg(canvas)
    axes = canvas.add_subplot()
    _dress(axes, figure, scheme)
    for place, row in enumerate(figure.rows):
        _draw(axes, row, place, scheme)
    if figure.random is not None:
        axes.axvline(figure.random, color=scheme.muted, linestyle="--", linewidth=1.2, label="acting at random")
    handles, words = _explained(figure, scheme)
    legend = canvas.legend(
        handles, words, loc="outside lower center", ncols=4, frameon=False, fontsize=9, labelcolor=scheme.text
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    return canvas


def _dress(axes: Axes, figure: IntervalFigure, scheme: palette.Scheme) -> None:
    axes.set_facecolor(scheme.background)
    for name, spine in axes.spines.items():
        spine.set_color(scheme.grid)
        spine.set_visible(name == "bottom")
    axes.tick_params(colors=scheme.muted, labelsize=9, left=False)
    axes.grid(visible=True, axis="x", color=scheme.grid, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_yticks(range(len(figure.rows)))
    for text in axes.set_yticklabels(
        [_cut(row.label, _LETTERS) for row in figure.rows], color=scheme.text, fontsize=10
    ):
        text.set_parse_math(False)
    axes.set_ylim(len(figure.rows) - 0.4, -0.6)
    axes.set_xlabel("return: mean over the last 100 episodes", color=scheme.text, fontsize=10)
    title = _cut(figure.title, 2 * _LETTERS)
    axes.text(
        0, 1.06, title, transform=axes.transAxes, color=scheme.text, fontsize=13, fontweight="bold", va="bottom",
        parse_math=False,
    )  # fmt: skip


def _cut(text: str, letters: int) -> str:
    """A name that would leave no room for the picture is not written to its end."""
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _draw(axes: Axes, row: Row, place: int, scheme: palette.Scheme) -> None:
    colour = scheme.colour(row.colour)
    if (interval := row.centre.interval) is not None:
        ends = [interval.low, interval.high]
        axes.plot(ends, [place, place], color=colour, linewidth=11, alpha=0.3, solid_capstyle="butt")
    axes.plot([row.centre.value] * 2, [place - 0.22, place + 0.22], color=colour, linewidth=2.6, solid_capstyle="butt")
    # Seeds that reached the same would hide each other.
    nudges = [0.0] if len(row.finals) < 2 else [0.12 * (index % 3 - 1) for index in range(len(row.finals))]
    heights = [place + nudge for nudge in nudges]
    axes.plot(row.finals, heights, linestyle="none", marker="o", markersize=5, markerfacecolor=scheme.background,
              markeredgecolor=colour, markeredgewidth=1.4)  # fmt: skip
    if row.published is not None:
        axes.plot([row.published], [place], linestyle="none", marker="D", markersize=7, markerfacecolor="none",
                  markeredgecolor=scheme.text, markeredgewidth=1.3)  # fmt: skip


def _explained(figure: IntervalFigure, scheme: palette.Scheme) -> tuple[list[Line2D], list[str]]:
    """What a legend shows: the same signs for every row."""
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
    return [sign for sign, _ in signs], [words for _, words in signs]
