"""The one figure model: what `mosaic plot` draws with matplotlib and the window with pyqtgraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from gym_gui.services.analytics.aggregate import Aggregated, Band, aggregate
from gym_gui.services.analytics.configurations import Configuration, configuration_of
from gym_gui.services.analytics.curves import RETURN_TAGS, Axis, Curve, Floats, return_curve
from gym_gui.services.analytics.labels import configuration_labels, how_many, run_labels
from gym_gui.services.analytics.lineage import joined, members
from gym_gui.services.analytics.repeated_seeds import once_per_seed, repeated_note
from gym_gui.services.analytics.smoothing import Smoothing
from gym_gui.services.analytics.statistics import FEWEST_RUNS
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

_MOST_WITH_FAINT_LINES = 6
"""With more lines what was measured would be a thicket behind them"""
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
    """What a person chose."""

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
    """Empty for a faint line: it has no place in the legend"""
    x: Floats
    y: Floats
    low: Floats | None
    high: Floats | None
    colour: int
    """Which of the palette's colours, and of its markers"""
    run_ids: tuple[str, ...]
    is_faint: bool = False
    """What was measured, behind its smoothed line"""


@dataclass(frozen=True, eq=False)
class Figure:
    title: str
    x_label: str
    y_label: str
    log_x: bool
    log_y: bool
    lines: tuple[Line, ...]
    """Faint ones first, so that they are drawn behind the others"""
    note: str = ""
    """How lines and bands came about: `mean ± standard deviation · EMA 0.9`"""
    repeated: tuple[str, ...] = ()
    """Runs that are in no line because another run of the same seed is"""

    @property
    def is_empty(self) -> bool:
        return not self.lines


def build_figure(runs: Sequence[pb.Run], curves: Mapping[str, Mapping[str, Curve]], options: FigureOptions) -> Figure:
    """The figure of these runs; runs without the curve are left out, continuations are joined to what they continue.

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
                    options.smoothing.in_words(),
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
    """Runs that differ only in their seed, in the order in which the first of each comes."""
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
        if together is None:  # they share no stretch of the axis: each is shown on its own
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


def _line(label: str, runs: Sequence[pb.Run], found: Mapping[str, Curve], options: FigureOptions, colour: int) -> Line:
    alone = aggregate([found[run.run_id] for run in runs], options.axis, options.band, options.smoothing)
    assert alone is not None
    return _drawn(label, runs, alone, colour)


def _drawn(label: str, runs: Sequence[pb.Run], drawn: Aggregated, colour: int) -> Line:
    return Line(label, drawn.x, drawn.centre, drawn.low, drawn.high, colour, tuple(run.run_id for run in runs))


def _faint_lines(lines: Sequence[Line], found: Mapping[str, Curve], axis: Axis) -> list[Line]:
    """What was measured of each line that stands for a single run."""
    faint = []
    for line in lines:
        if len(line.run_ids) == 1:
            (run_id,) = line.run_ids
            curve = found[run_id]
            faint.append(Line("", curve.axis(axis), curve.values, None, None, line.colour, line.run_ids, is_faint=True))
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
