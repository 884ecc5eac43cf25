"""Curves of runs as figures and comparisons read them: three columns, against steps, time or episodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

Floats = NDArray[np.float64]

RETURN_TAGS = (
    "charts/episodic_return", "charts/episode_return", "rollout/ep_rew_mean", "episodic_return", "eval/episode_return",
    "eval/episodic_return",
)  # fmt: skip
"""The curve of a run's return, by the names it has; the first that a run has counts"""
MOST_POINTS = 2_000
"""What the daemon thins a curve to unless more are asked for; each point is then the mean of a stretch"""
_ALL_POINTS = -1
_BUDGET = 1_000_000
"""Points that one figure of the command reads in all, so that short curves come whole and long ones are thinned"""


class Axis(StrEnum):
    """What a curve is drawn against."""

    STEP = "step"
    TIME = "time"
    """Seconds since the run's first point"""
    EPISODE = "episode"
    """Episodes that had ended"""


def _nothing() -> Floats:
    return np.empty(0, np.float64)


@dataclass(frozen=True, eq=False)
class Curve:
    """The finite points of one curve, in the order of their steps."""

    run_id: str
    tag: str
    steps: Floats
    times: Floats
    """Unix seconds"""
    values: Floats
    total: int
    """Points the whole curve has; more than are here when it was thinned"""
    began: float | None = None
    """The time of the run's first point, of whichever curve; None: of this one"""
    episodes: Floats = field(default_factory=_nothing)
    """How many episodes had ended at each point; empty when nobody asked"""
    not_finite: int = 0
    """Points left out because they are NaN or infinite"""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_thinned(self) -> bool:
        return len(self.values) < self.total

    def axis(self, axis: Axis) -> Floats:
        """Where the points lie: steps, seconds since the run's first point, or episodes."""
        if axis is Axis.STEP:
            return self.steps
        if axis is Axis.TIME:
            if not len(self.times):
                return self.times
            began = float(self.times[0]) if self.began is None else self.began
            # A clock that was set back must not send the line back.
            return np.maximum.accumulate(self.times - began)
        return self.episodes if len(self.episodes) == len(self.values) else _numbered(len(self.values), self.total)


def _numbered(points: int, total: int) -> Floats:
    """The number of each point, from 1; of a thinned curve, whose points stand for stretches, of their last."""
    return np.arange(1, points + 1, dtype=np.float64) * (max(points, total) / max(1, points))


def curve_of(run_id: str, tag: str, steps: ArrayLike, times: ArrayLike, values: ArrayLike, total: int) -> Curve:
    """A curve from plain columns; points that are no number are left out, and steps put in order."""
    columns = (np.asarray(column, np.float64) for column in (steps, times, values))
    step, time, value = (column.copy() if column.base is not None else column for column in columns)
    finite = np.isfinite(value)
    if not finite.all():
        step, time, value = step[finite], time[finite], value[finite]
        total = max(len(value), total - int((~finite).sum()))
    if len(step) > 1 and (np.diff(step) < 0).any():
        order = np.argsort(step, kind="stable")
        step, time, value = step[order], time[order], value[order]
    return Curve(run_id, tag, step, time, value, max(total, len(value)), not_finite=int((~finite).sum()))


def points_per_curve(number_of_curves: int) -> int:
    """How many points of each curve a figure of so many reads: all of short ones, and as many as a chart shows."""
    return max(MOST_POINTS, _BUDGET // max(1, number_of_curves))


def load_curves(
    client: TrainerClient,
    runs: Iterable[pb.Run],
    tags: str | Sequence[str] = RETURN_TAGS,
    *,
    max_points: int | None = MOST_POINTS,
    episodes: bool = False,
) -> dict[str, dict[str, Curve]]:
    """Curves of runs by run id and tag; `tags` may be patterns such as losses/*, `max_points` None means every point.

    A longer curve comes as the means of its stretches: what is smoothed and averaged over seeds must not be made of
    extremes, whose middle is not the mean.
    With `episodes` each curve also knows how many episodes had ended at its points (for `Axis.EPISODE`).
    """
    wanted = [tags] if isinstance(tags, str) else list(tags)
    asked = [*wanted, *RETURN_TAGS] if episodes else wanted
    loaded: dict[str, dict[str, Curve]] = {}
    for run in runs:
        found: dict[str, Curve] = {}
        points = _ALL_POINTS if max_points is None else max_points
        with client.metrics(run.run_id, asked, max_points=points, means=True) as stream:
            for message in stream:
                for part in message.curves:
                    curve = curve_of(run.run_id, part.tag, part.steps, part.wall_times, part.values, part.total)
                    found[part.tag] = _after(found.get(part.tag), curve, is_reset=part.is_reset)
        loaded[run.run_id] = _dated(found, wanted, episodes=episodes)
    return loaded


def _after(known: Curve | None, more: Curve, *, is_reset: bool) -> Curve:
    """A long curve may come in several messages."""
    if known is None or is_reset:
        return more
    steps, times, values = (
        np.concatenate(pair)
        for pair in ((known.steps, more.steps), (known.times, more.times), (known.values, more.values))
    )
    joined = curve_of(more.run_id, more.tag, steps, times, values, more.total)
    return replace(joined, not_finite=known.not_finite + more.not_finite)


def _dated(found: Mapping[str, Curve], wanted: Sequence[str], *, episodes: bool) -> dict[str, Curve]:
    began = min((float(curve.times[0]) for curve in found.values() if len(curve)), default=None)
    counted = return_curve(found) if episodes else None
    dated = {}
    for tag, curve in found.items():
        if not any(fnmatchcase(tag, pattern) for pattern in wanted):
            continue
        ended = _nothing()
        if counted is not None and len(counted):
            ended = _episodes_at(curve, counted)
        dated[tag] = replace(curve, began=began, episodes=ended)
    return dated


def _episodes_at(curve: Curve, counted: Curve) -> Floats:
    numbers = _numbered(len(counted), counted.total)
    if curve is counted:
        return numbers
    return np.asarray(np.interp(curve.steps, counted.steps, numbers, left=0.0), np.float64)


def return_curve(curves: Mapping[str, Curve]) -> Curve | None:
    """The curve of the return among a run's curves; None when it has none."""
    return next((curves[tag] for tag in RETURN_TAGS if tag in curves and len(curves[tag])), None)


def tags_in(curves: Mapping[str, Mapping[str, Curve]]) -> list[str]:
    """Every tag that some run has, sorted."""
    return sorted({tag for own in curves.values() for tag, curve in own.items() if len(curve)})


def extremes(values: Floats, most: int) -> NDArray[np.intp]:
    """About `most` places of a curve: of each stretch its lowest and highest point, and the very first and last."""
    number = len(values)
    if number <= most:
        return np.arange(number, dtype=np.intp)
    edges = np.linspace(0, number, max(1, most // 2) + 1).astype(np.intp)
    begins = edges[:-1]
    widths = np.diff(edges)
    # Stretches are of two lengths at most: a table with the last column repeated holds them all.
    places = begins[:, None] + np.minimum(np.arange(widths.max()), widths[:, None] - 1)
    table = values[places]
    rows = np.arange(len(begins))
    chosen = (places[rows, table.argmin(axis=1)], places[rows, table.argmax(axis=1)], [0, number - 1])
    return np.unique(np.concatenate(chosen)).astype(np.intp)
