"""Curves as charts show them: which are loaded or due, how they are drawn, what the legend lists. No Qt.

The daemon downsamples a long curve when it is requested; points that arrive while a run is followed are downsampled
here, so that a chart that stays open for a week holds as many points as one that was opened just now.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from mosaic_wire.proto import trainer_pb2 as pb
from mosaic_wire.run_status import RunStatus

from gym_gui.services.analytics.configurations import configuration_of
from gym_gui.services.analytics.curves import (
    RETURN_TAGS,
    Axis,
    Curve,
    Floats,
    Smoothing,
    appended,
    curve_of,
    dated,
    extremes,
    load_curves,
    return_curve,
)
from gym_gui.services.analytics.figure import Band, Figure, FigureOptions, Line, build_figure
from gym_gui.services.trainer.client import TrainerClient
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError

MAX_CHARTS = 24
_DEFAULT_CHARTS = 6
MAX_FOLLOWED_POINTS = 1_000
"""A followed curve is downsampled to this many points when it has twice as many"""
_CHART_POINTS = 100_000
"""Points of one chart in all: more runs, fewer of each"""
_MIN_POINTS, _MAX_LOADED, _MAX_DRAWN = 150, 50_000, 4_000
"""Points per curve: more than a chart has pixels, so that smoothing and groups use (nearly) every point"""
_STORE_POINTS = 6_000_000
"""Kept in memory; beyond that, curves of runs that are not shown are dropped"""
REFRESH_S = 4.0
"""The curves of a live run are requested again after this long, unless it is followed"""
_MAX_RUNS_TO_QUERY = 6

_HEADLINES = (
    "charts/episodic_return",
    "charts/episode_return",
    "rollout/ep_rew_mean",
    "charts/episodic_length",
    "charts/SPS",
    "time/fps",
    "losses/policy_loss",
    "losses/actor_loss",
    "losses/td_loss",
    "losses/qf_loss",
    "losses/loss",
    "losses/value_loss",
    "losses/q_values",
    "losses/entropy",
    "eval/episodic_return",
)
"""Shown by default, in this order; other losses follow while there is room"""


# ---------------------------------------------------------------------- which curves, drawn how


@dataclass(frozen=True)
class ChartChoice:
    """How charts are drawn; remembered between sessions."""

    axis: Axis = Axis.STEP
    smoothing: Smoothing = field(default_factory=Smoothing)
    is_grouped: bool = False
    band: Band = Band.STD
    log_x: bool = False
    log_y: bool = False

    def options(self, tag: str) -> FigureOptions:
        return FigureOptions(tag, self.axis, self.smoothing, self.is_grouped, self.band, self.log_x, self.log_y)

    def to_text(self) -> str:
        smoothing = [self.smoothing.kind, self.smoothing.amount]
        kept = {"axis": self.axis.value, "smoothing": smoothing, "grouped": self.is_grouped, "band": self.band.value}
        return json.dumps({**kept, "log": [self.log_x, self.log_y]})

    @classmethod
    def from_text(cls, text: str, default: ChartChoice) -> ChartChoice:
        """Parse a stored choice; return `default` if it is not valid."""
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
            return default


def return_tags(known: Iterable[str]) -> list[str]:
    """Return the tag of the return, or of the first curve there is."""
    tags = set(known)
    return [RETURN_TAGS[0]] if tags & set(RETURN_TAGS) else sorted(tags)[:1]


def headline_tags(known: Iterable[str]) -> list[str]:
    """Return the usual curves of a training, a few at most: return, length, speed, losses."""
    tags = set(known)
    found = [tag for tag in _HEADLINES if tag in tags]
    found += sorted(tag for tag in tags if tag.startswith("losses/") and tag not in found)
    return found[:_DEFAULT_CHARTS]


def loaded_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Return the tags to request: a run's return has several names, and a figure takes the one that the run has."""
    return tuple(dict.fromkeys((*tags, *(RETURN_TAGS if RETURN_TAGS[0] in tags else ()))))


def title_of(tag: str) -> str:
    """`charts/episodic_return` → `episodic return`"""
    return tag.rpartition("/")[2].replace("_", " ")


def points_for(runs: int) -> int:
    """Return how many points of each curve are loaded when so many runs share a chart."""
    return max(_MIN_POINTS, min(_MAX_LOADED, _CHART_POINTS // max(1, runs)))


def runs_to_query(runs: Sequence[pb.Run]) -> list[pb.Run]:
    """Return the runs to ask which curves they have: one of each kind, a few in all."""
    kinds: dict[tuple[str, str, str], pb.Run] = {}
    for run in runs:
        if run.status != RunStatus.INIT:
            kinds.setdefault((run.worker_type, run.algo, run.env_id), run)
    return list(kinds.values())[:_MAX_RUNS_TO_QUERY]


# ---------------------------------------------------------------------- loaded curves

CurvePart = tuple[Curve, bool]
"""Points to append to a curve, or (True) to replace it with"""


class PartReader:
    """Decode the messages of one stream; the first part of each curve replaces what is known of it."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._seen: set[str] = set()

    def __call__(self, message: pb.RunMetrics) -> list[CurvePart]:
        parts = []
        for part in message.curves:
            curve = curve_of(self._run_id, part.tag, part.steps, part.wall_times, part.values, part.total)
            parts.append((curve, part.is_reset or part.tag not in self._seen))
            self._seen.add(part.tag)
        return parts


def downsampled(curve: Curve) -> Curve:
    """Return a curve of bounded length that keeps its extremes."""
    if len(curve) <= 2 * MAX_FOLLOWED_POINTS:
        return curve
    kept = extremes(curve.values, MAX_FOLLOWED_POINTS)
    return replace(curve, steps=curve.steps[kept], times=curve.times[kept], values=curve.values[kept])


def load_present(
    client: TrainerClient, runs: Iterable[pb.Run], tags: Sequence[str], max_points: int, *, episodes: bool = False
) -> dict[str, dict[str, Curve]]:
    """Load curves by run and tag; a run that was deleted meanwhile has none."""
    loaded: dict[str, dict[str, Curve]] = {}
    for run in runs:
        try:
            loaded.update(load_curves(client, [run], tags, max_points=max_points, episodes=episodes))
        except DaemonUnreachable:
            raise
        except TrainerError:
            loaded[run.run_id] = {}
    return loaded


@dataclass
class _Loaded:
    curve: Curve | None
    points: int
    has_episodes: bool
    is_final: bool
    loaded_at: float


class CurveStore:
    """Curves by run and tag, and which of them have to be requested (again)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, refresh_s: float = REFRESH_S) -> None:
        self._clock, self._refresh_s = clock, refresh_s
        self._loaded: dict[str, dict[str, _Loaded]] = {}
        self._followed: dict[str, dict[str, Curve]] = {}
        """Run → its curves as its stream has sent them"""

    def due(self, runs: Iterable[pb.Run], tags: Sequence[str], points: int, *, episodes: bool) -> list[pb.Run]:
        """Return the runs with a curve that is missing, too coarse or outdated; followed ones are up to date."""
        now = self._clock()
        return [run for run in runs if any(self._is_due(run, tag, points, episodes, now) for tag in tags)]

    def _is_due(self, run: pb.Run, tag: str, points: int, episodes: bool, now: float) -> bool:
        if run.status == RunStatus.INIT:
            return False
        loaded = self._loaded.get(run.run_id, {}).get(tag)
        if loaded is None or (episodes and not loaded.has_episodes):
            return True
        if run.run_id in self._followed:
            return False
        if loaded.curve is not None and loaded.curve.is_thinned and loaded.points < points // 2:
            return True
        return not loaded.is_final and now - loaded.loaded_at >= self._refresh_s

    def put(
        self, run: pb.Run, tags: Sequence[str], loaded: Mapping[str, Curve], points: int, *, episodes: bool
    ) -> None:
        """Store the answer to a request for these tags; the run has no curve of a tag that did not come."""
        own = self._loaded.setdefault(run.run_id, {})
        is_final = run.status == RunStatus.TERM
        for tag in tags:
            own[tag] = _Loaded(loaded.get(tag), points, episodes, is_final, self._clock())

    def curves(self, runs: Iterable[pb.Run], tags: Sequence[str]) -> dict[str, dict[str, Curve]]:
        """Return the loaded curves; safe to read in another thread, because curves do not change."""
        found: dict[str, dict[str, Curve]] = {}
        for run in runs:
            own = self._loaded.get(run.run_id, {})
            curves = {tag: own[tag].curve for tag in tags if tag in own}
            if present := {tag: curve for tag, curve in curves.items() if curve is not None}:
                found[run.run_id] = present
        return found

    def forget(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            self._loaded.pop(run_id, None)
            self._followed.pop(run_id, None)

    def trim(self, shown: Iterable[str]) -> None:
        """Drop the curves of runs that are not shown, when there are many."""
        curves = [loaded.curve for own in self._loaded.values() for loaded in own.values()]
        if sum(len(curve) for curve in curves if curve is not None) > _STORE_POINTS:
            self.forget(set(self._loaded) - set(shown))

    # -- followed runs

    def follow(self, run_id: str) -> None:
        """Let the run's curves grow by `add` from now on."""
        self._followed[run_id] = {}

    def unfollow(self, run_id: str) -> None:
        """Treat the run's curves as outdated from now on."""
        if self._followed.pop(run_id, None) is not None:
            for loaded in self._loaded.get(run_id, {}).values():
                loaded.is_final, loaded.loaded_at = False, self._clock() - self._refresh_s

    def add(self, run_id: str, parts: Iterable[CurvePart], tags: Sequence[str]) -> bool:
        """Add what a followed run has sent; return whether any of these tags has changed."""
        followed = self._followed.get(run_id)
        if followed is None:
            return False
        changed = set()
        for part, replaces in parts:
            followed[part.tag] = downsampled(appended(followed.get(part.tag), part, is_reset=replaces))
            changed.add(part.tag)
        own = self._loaded.setdefault(run_id, {})
        grown = dated(followed, ("*",), episodes=True)
        for tag in grown.keys() & set(tags):
            own[tag] = _Loaded(grown[tag], len(grown[tag]), True, False, self._clock())
        return bool(changed & {*tags, *(RETURN_TAGS if return_curve(followed) is not None else ())})


# ---------------------------------------------------------------------- figures


def build_figures(
    runs: Sequence[pb.Run], curves: Mapping[str, Mapping[str, Curve]], choice: ChartChoice, tags: Sequence[str]
) -> dict[str, Figure]:
    """Return the figure of each tag. Slow for many runs with a bootstrap: call it in a thread."""
    numbers = _color_numbers(runs, grouped=choice.is_grouped)
    return {tag: _with_stable_colors(build_figure(runs, curves, choice.options(tag)), numbers) for tag in tags}


def _color_numbers(runs: Sequence[pb.Run], *, grouped: bool) -> dict[str, int]:
    """Return a color for each run, or for each configuration: the same in every chart, and while more runs arrive."""
    if not grouped:
        return {run.run_id: number for number, run in enumerate(runs)}
    configurations = {run.run_id: configuration_of(run) for run in runs}
    numbers = {own: number for number, own in enumerate(dict.fromkeys(configurations.values()))}
    return {run_id: numbers[own] for run_id, own in configurations.items()}


def _with_stable_colors(figure: Figure, numbers: Mapping[str, int]) -> Figure:
    lines = [replace(line, color=numbers[line.run_ids[-1]]) for line in figure.lines]
    shown = [line.color for line in lines if not line.is_faint]
    # Runs of a group that could not be aggregated keep distinct colors.
    return figure if len(set(shown)) < len(shown) else replace(figure, lines=tuple(lines))


def points_drawn(lines: int) -> int:
    """Return how many points of each line a chart of so many lines draws."""
    return max(_MIN_POINTS, min(_MAX_DRAWN, _CHART_POINTS // max(1, lines)))


def drawn_part(line: Line, most: int, x_range: tuple[float, float] | None = None) -> tuple[Floats, Floats]:
    """Return about `most` points of a line, extremes among them; as many again within the range that is zoomed to."""
    if len(line.y) <= 1.2 * most:
        return line.x, line.y
    kept = extremes(line.y, most)
    if x_range is not None:
        begin, end = max(0, int(np.searchsorted(line.x, x_range[0])) - 1), int(np.searchsorted(line.x, x_range[1])) + 1
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
    """The parts of the label that differ from the other entries"""
    color: int
    run_ids: tuple[str, ...]
    line: Line


def entries_of(figure: Figure) -> dict[str, Entry]:
    """Return the named lines by key; a faint line behind such a line has the same runs."""
    named = [line for line in figure.lines if not line.is_faint]
    # Two runs that continue the same one both begin with it: each gets the key of its own end.
    run_counts = Counter(line.run_ids[0] for line in named)
    found: dict[str, Entry] = {}
    for line, short in zip(named, distinct_labels([line.label for line in named]), strict=True):
        key = line.run_ids[0] if run_counts[line.run_ids[0]] == 1 else line.run_ids[-1]
        found[key] = Entry(key, line.label, short, line.color, line.run_ids, line)
    return found


def distinct_labels(labels: Sequence[str]) -> list[str]:
    """Return the labels without the parts that all of them share: the title of the chart has those."""
    if len(labels) < 2:
        return list(labels)
    # `ppo · CartPole-v1 (5 seeds)` → ppo, CartPole-v1; (5 seeds)
    split = [label.partition(" (") for label in labels]
    parts = [bare.split(" · ") for bare, _, _ in split]
    common = set(parts[0]).intersection(*parts)
    endings = [bracket + ending for _, bracket, ending in split]
    return [
        " · ".join(part for part in own if part not in common) + ending or label
        for own, ending, label in zip(parts, endings, labels, strict=True)
    ]


def key_by_runs(entries: Iterable[Entry]) -> dict[tuple[str, ...], str]:
    """Map the runs of a line to the key of its entry."""
    return {entry.run_ids: entry.key for entry in entries}


def visible_part(figure: Figure, hidden: Iterable[str]) -> Figure:
    """Return the figure without hidden entries: what is saved is what is shown."""
    removed = set(hidden)
    keys = key_by_runs(entries_of(figure).values())
    return replace(figure, lines=tuple(line for line in figure.lines if keys.get(line.run_ids, "") not in removed))
