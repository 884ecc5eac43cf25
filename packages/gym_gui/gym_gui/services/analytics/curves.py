"""Curves of runs for figures and comparisons: three columns, against steps, time or episodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient


Floats = NDArray[np.float64]

RETURN_TAGS = (
    *("charts/episodic_return", "charts/episode_return", "rollout/ep_rew_mean", "episodic_return"),
    *("eval/episode_return", "eval/episodic_return"),
)
"""Tags of the return; the first one that a run has counts"""
MOST_POINTS = 2_000
"""Default number of points to which the daemon thins a curve, each the mean of a bucket"""
_ALL_POINTS = -1
_BUDGET = 1_000_000
"""Points that one figure of the command reads in total; longer curves are thinned"""


class Axis(StrEnum):
    """The x axis of a curve."""

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
    """Points of the whole curve; more than its columns have if it was thinned"""
    began: float | None = None
    """The time of the run's first point, of whichever curve; None: of this one"""
    episodes: Floats = field(default_factory=_nothing)
    """Number of ended episodes at each point; empty unless requested"""
    not_finite: int = 0
    """Number of points skipped because they are NaN or infinite"""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_thinned(self) -> bool:
        """Return whether the daemon sent fewer points than the curve has."""
        return len(self.values) < self.total

    def axis(self, axis: Axis) -> Floats:
        """Return the x coordinates: steps, seconds since the run's first point, or episodes."""
        if axis is Axis.STEP:
            return self.steps
        if axis is Axis.TIME:
            if not len(self.times):
                return self.times
            began = float(self.times[0]) if self.began is None else self.began
            # A clock that was set back must not make the line go backwards.
            return np.maximum.accumulate(self.times - began)
        return self.episodes if len(self.episodes) == len(self.values) else _numbered(len(self.values), self.total)


def _numbered(points: int, total: int) -> Floats:
    """Return the number of each point from 1, for a thinned curve that of the last point of each bucket."""
    return np.arange(1, points + 1, dtype=np.float64) * (max(points, total) / max(1, points))


def curve_of(run_id: str, tag: str, steps: ArrayLike, times: ArrayLike, values: ArrayLike, total: int) -> Curve:
    """Return a curve from plain columns, without NaN and infinities and sorted by step."""
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
    """Return how many points of each curve a figure with this many curves reads."""
    return max(MOST_POINTS, _BUDGET // max(1, number_of_curves))


def load_curves(
    client: TrainerClient,
    runs: Iterable[pb.Run],
    tags: str | Sequence[str] = RETURN_TAGS,
    *,
    max_points: int | None = MOST_POINTS,
    episodes: bool = False,
) -> dict[str, dict[str, Curve]]:
    """Return curves by run id and tag; `tags` may be patterns such as losses/*, `max_points` None means every point.

    A longer curve comes as the means of buckets: what is smoothed and averaged over seeds must not be made of
    extremes, whose middle is not the mean.
    With `episodes` each curve also knows how many episodes had ended at its points (for `Axis.EPISODE`).
    """
    requested = [tags] if isinstance(tags, str) else list(tags)
    queried = [*requested, *RETURN_TAGS] if episodes else requested
    loaded: dict[str, dict[str, Curve]] = {}
    for run in runs:
        found: dict[str, Curve] = {}
        points = _ALL_POINTS if max_points is None else max_points
        with client.metrics(run.run_id, queried, max_points=points, means=True) as stream:
            for message in stream:
                for part in message.curves:
                    curve = curve_of(run.run_id, part.tag, part.steps, part.wall_times, part.values, part.total)
                    found[part.tag] = appended(found.get(part.tag), curve, is_reset=part.is_reset)
        loaded[run.run_id] = dated(found, requested, episodes=episodes)
    return loaded


def appended(known: Curve | None, more: Curve, *, is_reset: bool) -> Curve:
    """Return a curve with the points of `more` behind its own, or in their place."""
    if known is None or is_reset:
        return more
    steps, times, values = (
        np.concatenate(pair)
        for pair in ((known.steps, more.steps), (known.times, more.times), (known.values, more.values))
    )
    joined = curve_of(more.run_id, more.tag, steps, times, values, more.total)
    return replace(joined, not_finite=known.not_finite + more.not_finite)


def dated(found: Mapping[str, Curve], patterns: Sequence[str], *, episodes: bool) -> dict[str, Curve]:
    """Return the curves whose tags match, with the time of the run's first point and, on request, episode numbers."""
    began = min((float(curve.times[0]) for curve in found.values() if len(curve)), default=None)
    counted = return_curve(found) if episodes else None
    found_at = {}
    for tag, curve in found.items():
        if not any(fnmatchcase(tag, pattern) for pattern in patterns):
            continue
        ended = _nothing()
        if counted is not None and len(counted):
            ended = _episodes_at(curve, counted)
        found_at[tag] = replace(curve, began=began, episodes=ended)
    return found_at


def _episodes_at(curve: Curve, counted: Curve) -> Floats:
    numbers = _numbered(len(counted), counted.total)
    if curve is counted:
        return numbers
    return np.asarray(np.interp(curve.steps, counted.steps, numbers, left=0.0), np.float64)


def return_curve(curves: Mapping[str, Curve]) -> Curve | None:
    """Return the curve of the return among a run's curves, or None."""
    return next((curves[tag] for tag in RETURN_TAGS if tag in curves and len(curves[tag])), None)


def tags_in(curves: Mapping[str, Mapping[str, Curve]]) -> list[str]:
    """Return every tag of any run, sorted."""
    return sorted({tag for own in curves.values() for tag, curve in own.items() if len(curve)})


def extremes(values: Floats, most: int) -> NDArray[np.intp]:
    """Return about `most` indices of a curve: the lowest and highest point of each bucket, and both ends."""
    number = len(values)
    if number <= most:
        return np.arange(number, dtype=np.intp)
    edges = np.linspace(0, number, max(1, most // 2) + 1).astype(np.intp)
    begins = edges[:-1]
    widths = np.diff(edges)
    # Buckets have two lengths at most: a table with the last column repeated holds them all.
    places = begins[:, None] + np.minimum(np.arange(widths.max()), widths[:, None] - 1)
    table = values[places]
    rows = np.arange(len(begins))
    chosen = (places[rows, table.argmin(axis=1)], places[rows, table.argmax(axis=1)], [0, number - 1])
    return np.unique(np.concatenate(chosen)).astype(np.intp)


# ---------------------------------------------------------------- smoothing


_SMALLEST = 1e-100
"""Weights below this leave room for a double to hold their inverse, and a sum of them"""


@dataclass(frozen=True)
class Smoothing:
    """How a curve is smoothed; `amount` is the weight of the past (0 to 1) of an average, or the points of a window."""

    kind: Literal["none", "ema", "window"] = "none"
    amount: float = 0.0

    @classmethod
    def ema(cls, weight: float) -> Self:
        """Return an exponential moving average; raise ValueError for an invalid weight."""
        if not 0 <= weight < 1:
            raise ValueError(f"the weight of an average is from 0 to below 1, not {weight:g}")
        return cls("ema", weight) if weight else cls()

    @classmethod
    def window(cls, points: int) -> Self:
        """Return a moving average over `points`; raise ValueError for fewer than one."""
        if points < 1:
            raise ValueError(f"a window has at least one point, not {points}")
        return cls("window", float(points)) if points > 1 else cls()

    @property
    def is_on(self) -> bool:
        """Return whether it changes anything."""
        return self.kind != "none" and self.amount > (0 if self.kind == "ema" else 1)

    def apply(self, values: Floats) -> Floats:
        """Return the smoothed values, one per value."""
        if not self.is_on or len(values) < 2:
            return values
        return _average(values, self.amount) if self.kind == "ema" else _window(values, int(self.amount))

    def label(self) -> str:
        """`EMA 0.9`, `mean of 100`; empty without smoothing."""
        if not self.is_on:
            return ""
        return f"EMA {self.amount:g}" if self.kind == "ema" else f"mean of {self.amount:.0f}"


def _average(values: Floats, weight: float) -> Floats:
    """Return TensorBoard's debiased exponential moving average, computed in parts as sums of powers."""
    # y[t] = w·y[t-1] + (1-w)·x[t], so y[t] = w^t · (w·y[-1] + (1-w)·Σ x[i]·w^-i): as far as w^-i has room in a double.
    size = max(1, min(len(values), int(math.log(_SMALLEST) / math.log(weight))))
    powers = weight ** np.arange(size, dtype=np.float64)
    inverse = 1.0 / powers
    result = np.empty_like(values)
    past = 0.0
    for begin in range(0, len(values), size):
        part = values[begin : begin + size]
        size = len(part)
        sums = np.cumsum(part * inverse[:size])
        result[begin : begin + size] = powers[:size] * (weight * past + (1 - weight) * sums)
        past = float(result[begin + size - 1])
    return np.asarray(result / -np.expm1(math.log(weight) * np.arange(1, len(values) + 1)), np.float64)


def _window(values: Floats, points: int) -> Floats:
    """Return the mean of the last `window` values, of fewer at the beginning."""
    # Subtract the level first, because sums of large values lose small ones.
    level = float(values.mean())
    sums = np.concatenate(([0.0], np.cumsum(values - level)))
    last = np.arange(1, len(values) + 1)
    first = np.maximum(0, last - points)
    return np.asarray((sums[last] - sums[first]) / (last - first) + level, np.float64)


def continued_curve(before: Curve | None, after: Curve | None, step: int) -> Curve:
    """Return two curves as one, without points of the earlier run after the checkpoint."""
    if before is None or not len(before):
        assert after is not None
        return after
    kept = before.steps <= step
    if after is None or not len(after):
        cut = [column[kept] for column in (before.steps, before.times, before.values)]
        episodes = before.episodes[kept] if len(before.episodes) else before.episodes
        return replace(before, steps=cut[0], times=cut[1], values=cut[2], episodes=episodes)
    steps, times, values = before.steps[kept], before.times[kept], before.values[kept]
    if not len(steps):
        return after
    # Time between the runs does not count: the later clock continues where the earlier one stopped.
    pause = (float(after.times[0]) if after.began is None else after.began) - float(times[-1])
    episodes = np.empty(0)
    if len(before.episodes) and len(after.episodes):
        episodes = np.concatenate((before.episodes[kept], after.episodes + before.episodes[kept][-1]))
    share = len(steps) / max(1, len(before))
    return Curve(
        after.run_id,
        after.tag,
        np.concatenate((steps, after.steps)),
        np.concatenate((times, after.times - max(0.0, pause))),
        np.concatenate((values, after.values)),
        round(before.total * share) + after.total,
        before.began,
        episodes,
    )
