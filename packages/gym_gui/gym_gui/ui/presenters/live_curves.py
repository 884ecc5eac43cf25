"""Curves of a live run as the window keeps them: bounded, smoothed, looked up. No widgets here.

The daemon thins a long curve when it is asked for it; what is added while the window follows is thinned here, so that
a chart that stays open for a week holds as many points as one that was opened just now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np
from mosaic_wire.proto import trainer_pb2 as pb
from numpy.typing import NDArray

from gym_gui.services.analytics.curves import extremes
from gym_gui.services.analytics.smoothing import Smoothing

Floats = NDArray[np.float64]

MOST_POINTS = 1_000
"""What a curve is thinned to; a chart has fewer pixels than that"""
MOST_CHARTS = 24
_CHARTS_AT_FIRST = 6

HEADLINES = (
    "charts/episodic_return", "charts/episode_return", "rollout/ep_rew_mean", "charts/episodic_length", "charts/SPS",
    "time/fps", "losses/policy_loss", "losses/actor_loss", "losses/td_loss", "losses/qf_loss", "losses/loss",
    "losses/value_loss", "losses/q_values", "losses/entropy", "eval/episodic_return",
)  # fmt: skip
"""Shown before anybody has chosen, in this order; other losses follow while there is room"""
FOLLOWED = ("charts/epis*", "charts/SPS", "losses/*", "rollout/ep_rew_mean", "time/fps", "eval/episodic_return")
"""Patterns that are always asked for, so that a curve which begins later comes by itself"""


@dataclass(frozen=True)
class CurvePart:
    """Points to put behind those of a curve, or in their place."""

    tag: str
    steps: Floats
    times: Floats
    values: Floats
    total: int
    replaces: bool


class PartReader:
    """Turns the messages of one stream into parts; the first part of each curve replaces what is known of it."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, message: pb.RunMetrics) -> list[CurvePart]:
        parts = [self._part(curve) for curve in message.curves]
        self._seen.update(part.tag for part in parts)
        return parts

    def _part(self, curve: pb.MetricCurve) -> CurvePart:
        steps, times, values = (
            np.fromiter(column, np.float64, len(column)) for column in (curve.steps, curve.wall_times, curve.values)
        )
        finite = np.isfinite(values)
        if not finite.all():  # a chart cannot show them, and its range must not follow them
            steps, times, values = steps[finite], times[finite], values[finite]
        return CurvePart(curve.tag, steps, times, values, curve.total, curve.is_reset or curve.tag not in self._seen)


def _none() -> Floats:
    return np.empty(0, np.float64)


@dataclass
class Curve:
    """One curve: at most twice MOST_POINTS points."""

    tag: str
    steps: Floats = field(default_factory=_none)
    times: Floats = field(default_factory=_none)
    values: Floats = field(default_factory=_none)
    total: int = 0
    """Points the whole curve has; more than are kept here when it was thinned"""

    def add(self, part: CurvePart) -> None:
        if part.replaces:
            self.steps, self.times, self.values = part.steps, part.times, part.values
        else:
            self.steps = np.concatenate((self.steps, part.steps))
            self.times = np.concatenate((self.times, part.times))
            self.values = np.concatenate((self.values, part.values))
        self.total = part.total
        if len(self.values) > 2 * MOST_POINTS:
            kept = extremes(self.values, MOST_POINTS)
            self.steps, self.times, self.values = self.steps[kept], self.times[kept], self.values[kept]

    def nearest(self, axis: Floats, x: float) -> int | None:
        """The point closest to a place on the axis; None without points."""
        if not len(axis):
            return None
        return int(np.abs(axis - x).argmin())


def smoothed(values: Floats, weight: float) -> Floats:
    """An exponential moving average without the pull towards zero at its beginning; weight 0 changes nothing."""
    return Smoothing("ema", weight).apply(values)


class CurveBook:
    """All curves of the run that is shown, and which of them a person wants to see."""

    def __init__(self) -> None:
        self.curves: dict[str, Curve] = {}

    def clear(self) -> None:
        self.curves.clear()

    def add(self, parts: Iterable[CurvePart]) -> set[str]:
        """Take parts in; returns the tags that changed."""
        changed = set()
        for part in parts:
            self.curves.setdefault(part.tag, Curve(part.tag)).add(part)
            changed.add(part.tag)
        return changed

    def began_at(self) -> float:
        """The time of the earliest point; 0 without any."""
        return min((float(curve.times[0]) for curve in self.curves.values() if len(curve.times)), default=0.0)


def shown_tags(tags: Iterable[str], choices: Mapping[str, bool]) -> list[str]:
    """Which of the tags have a chart: what a person chose, and beside that the headlines while there is room."""
    known = sorted(set(tags), key=_rank)
    wanted = [tag for tag in known if choices.get(tag)]
    room = _CHARTS_AT_FIRST - len(wanted)
    by_default = [tag for tag in known if tag not in choices and _is_headline(tag)][: max(0, room)]
    return sorted({*wanted, *by_default}, key=_rank)[:MOST_CHARTS]


def asked_tags(choices: Mapping[str, bool]) -> Sequence[str]:
    """What the daemon is asked for."""
    chosen = [tag for tag, is_wanted in choices.items() if is_wanted]
    return [*FOLLOWED, *(tag for tag in chosen if not any(fnmatchcase(tag, pattern) for pattern in FOLLOWED))]


def title_of(tag: str) -> str:
    """`charts/episodic_return` → `episodic return`"""
    return tag.rpartition("/")[2].replace("_", " ")


def _is_headline(tag: str) -> bool:
    return tag in HEADLINES or tag.startswith("losses/")


def _rank(tag: str) -> tuple[int, str]:
    return (HEADLINES.index(tag) if tag in HEADLINES else len(HEADLINES), tag)
