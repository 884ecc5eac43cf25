"""What charts of runs show: which curves are loaded and which are due, what a person chose, what a legend lists.

No widgets. Curves come thinned by the daemon: as many points of each as a chart of so many runs can show.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from mosaic_wire.proto import trainer_pb2 as pb

from gym_gui.services.analytics.aggregate import Band
from gym_gui.services.analytics.configurations import configuration_of
from gym_gui.services.analytics.curves import RETURN_TAGS, Axis, Curve, Floats, extremes, return_curve
from gym_gui.services.analytics.figure import Figure, FigureOptions, Line, build_figure
from gym_gui.services.analytics.smoothing import Smoothing
from gym_gui.ui.presenters.live_curves import CurveBook, CurvePart

_CHART_POINTS = 100_000
"""Points of one chart in all: more runs, fewer of each"""
_FEWEST_POINTS, _MOST_LOADED, _MOST_DRAWN = 150, 50_000, 4_000
"""Of a curve: more are loaded than a chart has pixels, so that smoothing and groups are made of (nearly) every point"""
_STORE_POINTS = 6_000_000
"""Kept in memory; beyond that curves of runs that are not shown go"""
REFRESH_S = 4.0
"""The curves of a run that goes on are asked for again after this long, unless it is followed"""
PIECE_RUNS = 8
"""Runs whose curves are asked for in one call: progress is seen, and nobody waits long for what comes after"""
MOST_FOLLOWED = 4
"""Live runs with a stream of their own"""
MOST_CHARTS = 12
_ASKED_FOR_TAGS = 6
"""Of many runs so many are asked which curves they have"""


# ---------------------------------------------------------------------- what a person chose


@dataclass(frozen=True)
class ChartChoice:
    """How charts are drawn; kept for the next time."""

    axis: Axis = Axis.STEP
    smoothing: Smoothing = field(default_factory=Smoothing)
    is_grouped: bool = False
    band: Band = Band.STD
    log_x: bool = False
    log_y: bool = False

    def options(self, tag: str) -> FigureOptions:
        return FigureOptions(
            tag=tag, axis=self.axis, smoothing=self.smoothing, grouped=self.is_grouped, band=self.band,
            log_x=self.log_x, log_y=self.log_y,
        )  # fmt: skip

    def to_text(self) -> str:
        return json.dumps({
            "axis": self.axis.value, "smoothing": [self.smoothing.kind, self.smoothing.amount],
            "grouped": self.is_grouped, "band": self.band.value, "log": [self.log_x, self.log_y],
        })  # fmt: skip

    @classmethod
    def from_text(cls, text: str, usual: ChartChoice) -> ChartChoice:
        """What was kept; `usual` where somebody edited it by hand."""
        try:
            kept = json.loads(text)
            kind, amount = kept["smoothing"]
            smoothing = Smoothing()
            if kind == "ema":
                smoothing = Smoothing.ema(float(amount))
            elif kind == "window":
                smoothing = Smoothing.window(int(amount))
            log_x, log_y = kept["log"]
            return cls(
                Axis(kept["axis"]), smoothing, bool(kept["grouped"]), Band(kept["band"]), bool(log_x), bool(log_y)
            )
        except (ValueError, KeyError, TypeError):
            return usual


def points_for(runs: int) -> int:
    """How many points of each curve are loaded when so many runs share a chart."""
    return max(_FEWEST_POINTS, min(_MOST_LOADED, _CHART_POINTS // max(1, runs)))


def usual_tags(tags: Iterable[str]) -> list[str]:
    """What is shown before anybody has chosen: the return, or the first curve there is."""
    known = set(tags)
    return [RETURN_TAGS[0]] if known & set(RETURN_TAGS) else sorted(known)[:1]


def loaded_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """What has to be asked for: a run's return has several names, and a figure takes the one that the run has."""
    return tuple(dict.fromkeys((*tags, *(RETURN_TAGS if RETURN_TAGS[0] in tags else ()))))


def asked_for_tags(runs: Sequence[pb.Run]) -> list[pb.Run]:
    """Whom to ask which curves there are: one of each kind of run, a few in all."""
    kinds: dict[tuple[str, str, str], pb.Run] = {}
    for run in runs:
        if run.status != "INIT":
            kinds.setdefault((run.worker_type, run.algo, run.env_id), run)
    return list(kinds.values())[:_ASKED_FOR_TAGS]


# ---------------------------------------------------------------------- what was loaded


@dataclass
class _Kept:
    curve: Curve | None
    points: int
    has_episodes: bool
    is_final: bool
    loaded_at: float


class CurveStore:
    """Curves by run and tag, and which of them have to be asked for (again)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, dict[str, _Kept]] = {}
        self._books: dict[str, CurveBook] = {}
        """Of runs that are followed"""

    def due(self, runs: Iterable[pb.Run], tags: Sequence[str], points: int, *, episodes: bool) -> list[pb.Run]:
        """Runs with a curve that is missing, too coarse, or from a while ago; those that are followed are not."""
        now = self._clock()
        return [run for run in runs if any(self._is_due(run, tag, points, episodes, now) for tag in tags)]

    def _is_due(self, run: pb.Run, tag: str, points: int, episodes: bool, now: float) -> bool:
        if run.status == "INIT":
            return False
        kept = self._kept.get(run.run_id, {}).get(tag)
        if kept is None or (episodes and not kept.has_episodes):
            return True
        if run.run_id in self._books:
            return False
        if kept.curve is not None and kept.curve.is_thinned and kept.points < points // 2:
            return True
        return not kept.is_final and now - kept.loaded_at >= REFRESH_S

    def put(
        self, run: pb.Run, tags: Sequence[str], loaded: Mapping[str, Curve], points: int, *, episodes: bool
    ) -> None:
        """What came for a run that was asked for these tags; a tag that did not come it does not have."""
        own = self._kept.setdefault(run.run_id, {})
        for tag in tags:
            own[tag] = _Kept(loaded.get(tag), points, episodes, run.status == "TERM", self._clock())

    def curves(self, runs: Iterable[pb.Run], tags: Sequence[str]) -> dict[str, dict[str, Curve]]:
        """What there is of these; safe to read in another thread, for curves do not change."""
        found: dict[str, dict[str, Curve]] = {}
        for run in runs:
            own = self._kept.get(run.run_id, {})
            curves = {tag: kept.curve for tag in tags if (kept := own.get(tag)) is not None and kept.curve is not None}
            if curves:
                found[run.run_id] = curves
        return found

    def forget(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            self._kept.pop(run_id, None)
            self._books.pop(run_id, None)

    def trim(self, shown: Iterable[str]) -> None:
        """Let go of curves that nobody looks at, when there are many."""
        total = sum(len(kept.curve) for own in self._kept.values() for kept in own.values() if kept.curve is not None)
        if total > _STORE_POINTS:
            self.forget(set(self._kept) - set(shown))

    # -- runs that are followed

    def follow(self, run_id: str) -> None:
        """From now on its curves grow by `add`."""
        self._books[run_id] = CurveBook()

    def unfollow(self, run_id: str) -> None:
        """Its curves are as old as their last point from here on."""
        if self._books.pop(run_id, None) is not None:
            for kept in self._kept.get(run_id, {}).values():
                kept.is_final, kept.loaded_at = False, self._clock() - REFRESH_S

    def add(self, run_id: str, parts: Iterable[CurvePart], tags: Sequence[str]) -> bool:
        """Take in what a followed run has told; whether any of these tags has changed."""
        book = self._books.get(run_id)
        if book is None:
            return False
        changed = book.add(parts)
        began = book.began_at()
        grown = {
            tag: Curve(run_id, tag, own.steps, own.times, own.values, max(own.total, len(own.values)), began)
            for tag, own in book.curves.items()
            if len(own.values)
        }
        counted = return_curve(grown)
        own = self._kept.setdefault(run_id, {})
        for tag in set(tags) & grown.keys():
            curve = grown[tag]
            if counted is not None:
                curve = replace(curve, episodes=_episodes_at(curve, counted))
            own[tag] = _Kept(curve, len(curve), True, False, self._clock())
        return bool(changed & {*tags, *(RETURN_TAGS if counted is not None else ())})


def _episodes_at(curve: Curve, counted: Curve) -> Floats:
    numbers = counted.axis(Axis.EPISODE)
    if curve is counted:
        return numbers
    return np.asarray(np.interp(curve.steps, counted.steps, numbers, left=0.0), np.float64)


def build_figures(
    runs: Sequence[pb.Run], curves: Mapping[str, Mapping[str, Curve]], choice: ChartChoice, tags: Sequence[str]
) -> dict[str, Figure]:
    """The figure of each tag. May take a while with many runs and a bootstrap: call it in a thread."""
    numbers = _colour_numbers(runs, grouped=choice.is_grouped)
    return {tag: _steady(build_figure(runs, curves, choice.options(tag)), numbers) for tag in tags}


def _colour_numbers(runs: Sequence[pb.Run], *, grouped: bool) -> dict[str, int]:
    """A colour for each run, or for each configuration: the same in every chart, and while more runs arrive."""
    if not grouped:
        return {run.run_id: number for number, run in enumerate(runs)}
    configurations = {run.run_id: configuration_of(run) for run in runs}
    numbers = {own: number for number, own in enumerate(dict.fromkeys(configurations.values()))}
    return {run_id: numbers[own] for run_id, own in configurations.items()}


def _steady(figure: Figure, numbers: Mapping[str, int]) -> Figure:
    lines = [replace(line, colour=numbers[line.run_ids[-1]]) for line in figure.lines]
    shown = [line.colour for line in lines if not line.is_faint]
    # Runs of a group that could not be made one line keep the colours that tell them apart.
    return figure if len(set(shown)) < len(shown) else replace(figure, lines=tuple(lines))


def points_drawn(lines: int) -> int:
    """How many points of each line a chart of so many lines draws."""
    return max(_FEWEST_POINTS, min(_MOST_DRAWN, _CHART_POINTS // max(1, lines)))


def drawn_part(line: Line, most: int, stretch: tuple[float, float] | None = None) -> tuple[Floats, Floats]:
    """The points of a line that are drawn: about `most`, extremes among them; of a stretch that is looked at, finer."""
    if len(line.y) <= 1.2 * most:
        return line.x, line.y
    kept = extremes(line.y, most)
    if stretch is not None:
        begin, end = max(0, int(np.searchsorted(line.x, stretch[0])) - 1), int(np.searchsorted(line.x, stretch[1])) + 1
        kept = np.union1d(kept, begin + extremes(line.y[begin:end], most))
    return line.x[kept], line.y[kept]


# ---------------------------------------------------------------------- the legend


@dataclass(frozen=True)
class Entry:
    """A line of the legend: a run or a group of runs."""

    key: str
    """Stays the same while more of a group's runs arrive"""
    label: str
    short: str
    """As much of the label as tells it from the others"""
    colour: int
    run_ids: tuple[str, ...]
    line: Line


def entries_of(figure: Figure) -> dict[str, Entry]:
    """The lines that have a name, by key; a faint one behind such a line has the same runs."""
    named = [line for line in figure.lines if not line.is_faint]
    # Two runs that go on from the same one both begin with it; each is then called by its own end.
    firsts = Counter(line.run_ids[0] for line in named)
    found: dict[str, Entry] = {}
    for line, short in zip(named, told_apart([line.label for line in named]), strict=True):
        key = line.run_ids[0] if firsts[line.run_ids[0]] == 1 else line.run_ids[-1]
        found[key] = Entry(key, line.label, short, line.colour, line.run_ids, line)
    return found


def told_apart(labels: Sequence[str]) -> list[str]:
    """Labels without the parts that all of them share: the title of the chart says those."""
    parts = [_parts_of(label) for label in labels]
    if len(labels) < 2:
        return list(labels)
    common = set(parts[0][0]).intersection(*(own for own, _ in parts))
    return [
        " · ".join(part for part in own if part not in common) + ending or label
        for (own, ending), label in zip(parts, labels, strict=True)
    ]


def _parts_of(label: str) -> tuple[list[str], str]:
    """`ppo · CartPole-v1 (5 seeds)` → ppo, CartPole-v1; (5 seeds)"""
    bare, bracket, ending = label.partition(" (")
    return bare.split(" · "), bracket + ending


def key_by_runs(entries: Iterable[Entry]) -> dict[tuple[str, ...], str]:
    """The runs of a line → the key of its entry."""
    return {entry.run_ids: entry.key for entry in entries}


def in_view(figure: Figure, hidden: Iterable[str]) -> Figure:
    """The figure without the entries that are not to be seen: what is saved is what is shown."""
    gone = set(hidden)
    keys = key_by_runs(entries_of(figure).values())
    return replace(figure, lines=tuple(line for line in figure.lines if keys.get(line.run_ids, "") not in gone))
