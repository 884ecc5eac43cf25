"""The figure model that `mosaic plot` draws with matplotlib and the window with pyqtgraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from gym_gui.services.analytics.configurations import (
    Configuration,
    configuration_labels,
    configuration_of,
    how_many,
    run_labels,
)
from gym_gui.services.analytics.curves import RETURN_TAGS, Axis, Curve, Floats, Smoothing, return_curve
from gym_gui.services.analytics.lineage import joined, members, once_per_seed, repeated_note
from gym_gui.services.analytics.statistics import FEWEST_RUNS, iqm_weights, resample_counts
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

GRID_POINTS = 500
"""Points of the common grid, about the width of a figure in pixels"""
_LEVEL = 0.95
_RESAMPLES = 2_000


class Band(StrEnum):
    """The band around the line of several seeds."""

    NONE = "none"
    """the mean alone"""
    STD = "std"
    """mean ± one standard deviation over the seeds (n - 1)"""
    CI = "ci"
    """mean, with the 95 % interval of the percentile bootstrap over the seeds"""
    IQM = "iqm"
    """interquartile mean, with its 95 % interval of the percentile bootstrap"""


@dataclass(frozen=True, eq=False)
class Aggregated:
    """One line: its center, and a band if there is one (a deviation needs two seeds, an interval three)."""

    x: Floats
    center: Floats
    low: Floats | None
    high: Floats | None
    count: int
    """Number of curves it was computed from"""


def aggregate(
    curves: Sequence[Curve],
    axis: Axis = Axis.STEP,
    band: Band = Band.STD,
    smoothing: Smoothing | None = None,
    *,
    points: int = GRID_POINTS,
) -> Aggregated | None:
    """Return the curves of several seeds as one line, or None when they have no range of the axis in common.

    Each is smoothed first and then interpolated, so that seeds with more points do not weigh more.
    """
    smoothing = smoothing or Smoothing()
    present = [curve for curve in curves if len(curve)]
    if not present:
        return None
    if len(present) == 1:
        (only,) = present
        return Aggregated(only.axis(axis), smoothing.apply(only.values), None, None, 1)
    axes = [curve.axis(axis) for curve in present]
    grid = common_grid(axes, points)
    if grid is None:
        return None
    table = np.stack(
        [np.interp(grid, x, smoothing.apply(curve.values)) for x, curve in zip(axes, present, strict=True)]
    )
    center, low, high = summarize(table, band)
    return Aggregated(grid, center, low, high, len(present))


def common_grid(axes: Sequence[Floats], points: int = GRID_POINTS) -> Floats | None:
    """Return a grid over the range that all axes cover, no denser than the densest of them, or None without one."""
    first, last = max(float(x[0]) for x in axes), min(float(x[-1]) for x in axes)
    if last < first:
        return None
    if last == first:
        return np.array([first])
    longest = max(int(np.searchsorted(x, last, "right") - np.searchsorted(x, first, "left")) for x in axes)
    return np.linspace(first, last, max(2, min(points, longest)))


def summarize(table: Floats, band: Band) -> tuple[Floats, Floats | None, Floats | None]:
    """Return center, low and high of each column of a table with a row for each seed."""
    if band is Band.IQM:
        table = np.sort(table, axis=0)
        weights = iqm_weights(np.ones((1, len(table))))
        center = (weights @ table)[0]
    else:
        center = table.mean(axis=0)
    if len(table) < 2 or band is Band.NONE:
        return center, None, None
    if band is Band.STD:
        spread = table.std(axis=0, ddof=1)
        return center, center - spread, center + spread
    if len(table) < FEWEST_RUNS:
        return center, None, None
    # How often each seed was drawn, as a matrix: all resamples of all columns are one product.
    counts = resample_counts(len(table), _RESAMPLES)
    weights = iqm_weights(counts) if band is Band.IQM else counts / len(table)
    tail = 50 * (1 - _LEVEL)
    low, high = np.percentile(weights @ table, [tail, 100 - tail], axis=0)
    return center, low, high


_MOST_WITH_FAINT_LINES = 6
"""With more lines, raw curves are not drawn behind the smoothed ones"""
_TIME_UNITS = ((3 * 3600.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""From so many seconds on, the unit, and what it is called"""
_BANDS = {
    Band.NONE: "mean",
    Band.STD: "mean ± standard deviation",
    Band.CI: "mean with 95 % bootstrap interval",
    Band.IQM: "interquartile mean with 95 % bootstrap interval",
}


@dataclass(frozen=True)
class FigureOptions:
    """The options of a figure."""

    tag: str = RETURN_TAGS[0]
    """The first of RETURN_TAGS means a run's return, whatever it calls it"""
    axis: Axis = Axis.STEP
    smoothing: Smoothing = field(default_factory=Smoothing)
    grouped: bool = True
    """Runs that differ only in their seed are one line with a band"""
    band: Band = Band.STD
    log_x: bool = False
    log_y: bool = False
    title: str = ""
    """Empty: what is drawn, and where"""


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a figure, with a band where `low` and `high` are there."""

    label: str
    """Empty for a faint line, which is not in the legend"""
    x: Floats
    y: Floats
    low: Floats | None
    high: Floats | None
    color: int
    """Index of its color and marker in the palette"""
    run_ids: tuple[str, ...]
    is_faint: bool = False
    """Whether it is the raw curve behind a smoothed line"""


@dataclass(frozen=True, eq=False)
class Figure:
    """Lines with their bands, axes and title, ready to be drawn."""

    title: str
    x_label: str
    y_label: str
    log_x: bool
    log_y: bool
    lines: tuple[Line, ...]
    """Faint lines first, so that they are drawn behind all other lines"""
    note: str = ""
    """How lines and bands were computed: `mean ± standard deviation · EMA 0.9`"""
    repeated: tuple[str, ...] = ()
    """Runs that are in no line because another run of the same seed counts"""

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to draw."""
        return not self.lines


def build_figure(runs: Sequence[pb.Run], curves: Mapping[str, Mapping[str, Curve]], options: FigureOptions) -> Figure:
    """Return the figure of these runs; skip runs without the curve, and join continued runs with their earlier ones.

    Grouped, a seed counts once: copies of it would make the band narrow.
    """
    shown, whole = joined(runs, curves)
    found = {run.run_id: curve for run in shown if (curve := _chosen(whole[run.run_id], options.tag)) is not None}
    shown = [run for run in shown if run.run_id in found]
    repeated: list[str] = []
    if options.grouped:
        repeated = [run.run_id for own in groups_of(shown).values() for run in once_per_seed(own)[1]]
        shown = [run for run in shown if run.run_id not in repeated]
    lines = _lines(shown, found, options)
    has_too_few = options.band in (Band.CI, Band.IQM) and any(1 < len(line.run_ids) < FEWEST_RUNS for line in lines)
    if options.smoothing.is_on and len(lines) <= _MOST_WITH_FAINT_LINES:
        lines = [*_faint_lines(lines, found, options.axis), *lines]
    lines = [replace(line, run_ids=_with_earlier(line.run_ids, runs)) for line in lines]
    unit, x_label = _unit(lines, options.axis)
    environments = list(dict.fromkeys(run.env_id for run in shown if run.env_id))
    what = _title_of(options.tag)
    where = f" · {environments[0]}" if len(environments) == 1 else ""
    has_band = any(line.low is not None for line in lines)
    return Figure(
        options.title or f"{what[:1].upper()}{what[1:]}{where}",
        x_label,
        what,
        options.log_x,
        options.log_y,
        tuple(replace(line, x=line.x / unit) if unit != 1 else line for line in lines),
        " · ".join(
            filter(
                None,
                (
                    _BANDS[options.band] if has_band else "",
                    f"no interval of fewer than {FEWEST_RUNS} seeds" if has_too_few else "",
                    options.smoothing.label(),
                    repeated_note(repeated),
                    continued_note(shown, {run.run_id: run for run in runs}) if options.grouped else "",
                ),
            )
        ),
        tuple(repeated),
    )


def continued_note(shown: Sequence[pb.Run], by_id: Mapping[str, pb.Run]) -> str:
    """Say which runs are missing among their likes because another one, with other steps, continues them."""
    groups, moved = groups_of(shown), []
    for run in shown:
        for earlier_id in members(run, by_id)[:-1]:
            like = configuration_of(by_id[earlier_id])
            if like in groups and like != configuration_of(run):
                seed = f" (seed {run.seed})" if run.HasField("seed") else ""
                moved.append(f"{short_id(earlier_id)}{seed} counts only in {short_id(run.run_id)}, which continues it")
    return "; ".join(moved)


def groups_of(runs: Sequence[pb.Run]) -> dict[Configuration, list[pb.Run]]:
    """Return groups of runs that differ only in their seed, in the order of their first runs."""
    groups: dict[Configuration, list[pb.Run]] = {}
    for run in runs:
        groups.setdefault(configuration_of(run), []).append(run)
    return groups


def _chosen(curves: Mapping[str, Curve], tag: str) -> Curve | None:
    if tag == RETURN_TAGS[0]:
        return return_curve(curves)
    curve = curves.get(tag)
    return curve if curve is not None and len(curve) else None


def _lines(runs: Sequence[pb.Run], found: Mapping[str, Curve], options: FigureOptions) -> list[Line]:
    if not options.grouped:
        names = run_labels(runs, [configuration_of(run) for run in runs])
        return [
            _line(name, [run], found, options, index) for index, (run, name) in enumerate(zip(runs, names, strict=True))
        ]
    groups = groups_of(runs)
    lines: list[Line] = []
    for label, own in zip(configuration_labels(list(groups)), groups.values(), strict=True):
        together = aggregate([found[run.run_id] for run in own], options.axis, options.band, options.smoothing)
        if together is None:  # they share no range of the axis: each is shown on its own
            names = run_labels(own, [configuration_of(run) for run in own])
            lines += [
                _line(name, [run], found, options, len(lines) + at)
                for at, (run, name) in enumerate(zip(own, names, strict=True))
            ]
            continue
        seed = f" · seed {own[0].seed}" if own[0].HasField("seed") else ""
        name = f"{label} ({how_many(own)})" if len(own) > 1 else f"{label}{seed}"
        lines.append(_drawn(name, own, together, len(lines)))
    return lines


def _line(label: str, runs: Sequence[pb.Run], found: Mapping[str, Curve], options: FigureOptions, color: int) -> Line:
    alone = aggregate([found[run.run_id] for run in runs], options.axis, options.band, options.smoothing)
    assert alone is not None
    return _drawn(label, runs, alone, color)


def _drawn(label: str, runs: Sequence[pb.Run], drawn: Aggregated, color: int) -> Line:
    return Line(label, drawn.x, drawn.center, drawn.low, drawn.high, color, tuple(run.run_id for run in runs))


def _faint_lines(lines: Sequence[Line], found: Mapping[str, Curve], axis: Axis) -> list[Line]:
    """Return the raw curve of each line of a single run."""
    faint = []
    for line in lines:
        if len(line.run_ids) == 1:
            (run_id,) = line.run_ids
            curve = found[run_id]
            faint.append(Line("", curve.axis(axis), curve.values, None, None, line.color, line.run_ids, is_faint=True))
    return faint


def _with_earlier(run_ids: tuple[str, ...], runs: Sequence[pb.Run]) -> tuple[str, ...]:
    if not any(run.HasField("parent") for run in runs):
        return run_ids
    by_id = {run.run_id: run for run in runs}
    return tuple(dict.fromkeys(member for run_id in run_ids for member in members(by_id[run_id], by_id)))


def _unit(lines: Sequence[Line], axis: Axis) -> tuple[float, str]:
    if axis is not Axis.TIME:
        return 1.0, "steps" if axis is Axis.STEP else "episodes"
    longest = max((float(line.x[-1]) for line in lines if len(line.x)), default=0.0)
    return next((unit, f"time ({name})") for limit, unit, name in _TIME_UNITS if longest >= limit)


def _title_of(tag: str) -> str:
    """`charts/episodic_return` → `episodic return`, `losses/value_loss` → `value loss`"""
    return tag.rpartition("/")[2].replace("_", " ")


# ---------------------------------------------------------------- steady colors


class SteadyColors:
    """Assigns colors to configurations in the order of all runs of a report, separately for each environment."""

    def __init__(self, runs: Sequence[pb.Run]) -> None:
        self._keys = {run.run_id: _key(run) for run in runs}
        self._numbers = {key: number for number, key in enumerate(dict.fromkeys(self._keys.values()))}

    def number(self, run_id: str) -> int:
        """Return the palette index of a run's configuration."""
        return self._numbers[self._keys[run_id]]

    def on(self, figure: Figure) -> Figure:
        """Return the figure with these colors, or unchanged if two of its lines would look alike."""
        numbers = [self.number(line.run_ids[-1]) for line in figure.lines]
        shown = [number for number, line in zip(numbers, figure.lines, strict=True) if not line.is_faint]
        if len(set(shown)) < len(shown):
            return figure
        lines = (replace(line, color=number) for line, number in zip(figure.lines, numbers, strict=True))
        return replace(figure, lines=tuple(lines))


def _key(run: pb.Run) -> tuple[object, ...]:
    own = configuration_of(run)
    return own.worker, own.algo, own.mode, own.parameters, own.total
