"""Runs and groups of runs side by side: how good, how soon, how fast, and what they differ in."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from gym_gui.services.analytics.across import OverallImprovement, improvements_across
from gym_gui.services.analytics.configurations import Configuration, environment_kwargs_of
from gym_gui.services.analytics.curves import RETURN_TAGS, Curve, Floats, load_curves, return_curve
from gym_gui.services.analytics.figure import continued_note, groups_of
from gym_gui.services.analytics.labels import configuration_labels, differing_parameters, how_many, parameter_value
from gym_gui.services.analytics.lineage import joined, members, missing_note, with_earlier
from gym_gui.services.analytics.repeated_seeds import (
    is_unfinished,
    named,
    not_completed_note,
    once_per_seed,
    repeated_note,
    unfinished_note,
)
from gym_gui.services.analytics.smoothing import Smoothing
from gym_gui.services.analytics.statistics import (
    Estimate,
    Interval,
    bootstrap_interval,
    difference_interval,
    interval_over_runs,
    iqm,
    mean,
    probability_of_improvement,
)
from gym_gui.wording import formats
from gym_gui.wording.run_view import elapsed_s

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.baselines import Baseline
    from gym_gui.services.trainer.client import TrainerClient

LAST_EPISODES = 100
MOST_COMPARED = 20
"""Groups of one environment, the best ones, of which each pair is compared"""


class Verdict(StrEnum):
    """Whether runs learned anything, measured against a policy that acts at random."""

    LEARNED = "learned"
    """the mean of its last episodes is above the random policy's: the 95 % bootstrap interval of the difference is"""
    LEARNED_NOTHING = "learned nothing"
    PARTLY = "some learned"
    """of a group: not all of its runs"""
    NO_BASELINE = "no baseline"
    NO_EPISODES = "no episodes"
    UNFINISHED = "unfinished"
    """it may still learn; of a group: one of its runs may"""


@dataclass(frozen=True)
class RunFigures:
    """What one run reached; None where its curve does not say."""

    run_id: str
    final: float | None
    """Mean return of its last 100 episodes"""
    best: float | None
    """Highest mean return of 100 episodes in a row"""
    auc: float | None
    """Area under the curve of the return, divided by the steps: the mean return over the training"""
    sps: float | None
    wall_s: float | None
    steps: int
    episodes: int
    learned: Verdict
    final_interval: Interval | None = None
    """95 % bootstrap interval of the mean of the last episodes"""


@dataclass(frozen=True)
class GroupFigures:
    """Runs that differ only in their seed."""

    key: str
    label: str
    """`ppo · CartPole-v1 (5 seeds)`"""
    algo: str
    env_id: str
    run_ids: tuple[str, ...]
    """Those that count: one per seed"""
    seeds: tuple[int, ...]
    final: Estimate | None
    """Mean over the runs, with its bootstrap interval; None when no run has one"""
    final_std: float | None
    """Over the runs (n - 1); None for fewer than two"""
    final_iqm: Estimate | None
    best: Estimate | None
    auc: Estimate | None
    sps: float | None
    wall_s: float | None
    """Means over the runs"""
    learned: Verdict
    learned_count: int
    """How many of its runs learned"""
    parameters: Mapping[str, str]
    """Of those in which groups differ, its own values as people write them; – where it was not given"""
    repeated: tuple[str, ...] = ()
    """Runs that do not count because another one of the same seed does"""


@dataclass(frozen=True)
class Improvement:
    """How likely a run of the first group ends better than one of the second."""

    better: str
    """Keys of groups"""
    worse: str
    probability: Estimate


@dataclass(frozen=True)
class Comparison:
    runs: Mapping[str, RunFigures]
    groups: tuple[GroupFigures, ...]
    """Environment by environment, the best final return first"""
    improvements: tuple[Improvement, ...]
    """Each pair of the best groups of one environment, once: the one that is more likely better in front"""
    differing: tuple[str, ...]
    """Names of parameters in which the groups differ"""
    baselines: Mapping[str, Baseline | None]
    """By `environment_of`; None: there is none"""
    tag: str
    """What was compared"""
    overall: tuple[OverallImprovement, ...] = ()
    """Configurations that met in several environments, over all of these"""
    notes: tuple[str, ...] = ()
    """Which runs are unfinished or not completed, and which count elsewhere than their likes"""

    @property
    def note(self) -> str:
        """Which runs are in no group's figures, or not as one might think; empty for none."""
        repeated = repeated_note([run_id for group in self.groups for run_id in group.repeated])
        return " · ".join(filter(None, (repeated, *self.notes)))

    def group(self, key: str) -> GroupFigures:
        return next(group for group in self.groups if group.key == key)


def environment_of(run: pb.Run) -> str:
    """What a baseline belongs to: the environment's id, and what it was made with where that is more."""
    kwargs = environment_kwargs_of(run)
    return f"{run.env_id} {json.dumps(kwargs, sort_keys=True)}" if kwargs else run.env_id


def compare(
    client: TrainerClient,
    runs: Sequence[pb.Run],
    *,
    tag: str | None = None,
    baselines: Mapping[str, Baseline | None] | None = None,
    only_with_data: bool = False,
) -> Comparison:
    """Measure runs against each other, by their return or another curve (`tag`; more is better, no baseline).

    What a run continues is part of its curve, chosen or not. `baselines` by `environment_of`; `baselines.baselines_for`
    finds or measures them. With `only_with_data` runs without the curve are left out where others have it.
    """
    everyone = with_earlier(client, runs)
    curves = load_curves(client, everyone, tag or RETURN_TAGS, max_points=None)
    if only_with_data:
        _, whole = joined(everyone, curves)
        has_data = {run_id for run_id, own in (curves | whole).items() if any(map(len, own.values()))}
        everyone = with_earlier(client, [run for run in runs if run.run_id in has_data] or runs)
    return compare_curves(everyone, curves, tag=tag, baselines=baselines)


def compare_curves(
    runs: Sequence[pb.Run],
    curves: Mapping[str, Mapping[str, Curve]],
    *,
    tag: str | None = None,
    baselines: Mapping[str, Baseline | None] | None = None,
) -> Comparison:
    """The same for curves that are loaded, whole, already."""
    known = dict(baselines or {}) if tag is None else {}
    shown, whole = joined(runs, curves)
    by_id = {run.run_id: run for run in runs}
    figures: dict[str, RunFigures] = {}
    for run in shown:
        curve = whole[run.run_id].get(tag) if tag is not None else return_curve(whole[run.run_id])
        earlier = [by_id[run_id] for run_id in members(run, by_id)]
        figures[run.run_id] = _figures(run, earlier, curve, known.get(environment_of(run)))
    with_data = {run_id for run_id, own in figures.items() if own.final is not None}
    split = {configuration: once_per_seed(own, with_data) for configuration, own in groups_of(shown).items()}
    groups = {configuration: counted for configuration, (counted, _) in split.items()}
    differing = differing_parameters(groups)
    labels = configuration_labels(list(groups))
    judged = [
        _group(configuration, label, own, repeated, figures, differing)
        for (configuration, (own, repeated)), label in zip(split.items(), labels, strict=True)
    ]
    environments = list(dict.fromkeys(group.env_id for group in judged))
    judged.sort(key=lambda group: (environments.index(group.env_id), group.final is None, -_value(group.final)))
    return Comparison(
        figures, tuple(judged), tuple(_improvements(judged, figures)), tuple(differing),
        {environment_of(run): known.get(environment_of(run)) for run in shown}, tag or RETURN_TAGS[0],
        tuple(improvements_across({configuration: _finals(own, figures) for configuration, own in groups.items()})),
        (unfinished_note(shown), not_completed_note(shown), continued_note(shown, by_id),
         missing_note(runs), _not_finite_note(curves, tag)),
    )  # fmt: skip


def _not_finite_note(curves: Mapping[str, Mapping[str, Curve]], tag: str | None) -> str:
    found = {run_id: own.get(tag) if tag is not None else return_curve(own) for run_id, own in curves.items()}
    counts = {run_id: curve.not_finite for run_id, curve in found.items() if curve is not None and curve.not_finite}
    number = formats.plural(sum(counts.values()), "return" if tag is None else "value")
    return f"NaN or infinite, and left out: {number} of {named(list(counts))}" if counts else ""


def _figures(run: pb.Run, earlier: Sequence[pb.Run], curve: Curve | None, baseline: Baseline | None) -> RunFigures:
    durations = [took for part in earlier if (took := elapsed_s(part)) is not None]
    sps = run.sps if run.HasField("sps") and np.isfinite(run.sps) else None
    wall_s = sum(durations) if durations else None
    if curve is None or not len(curve):
        return RunFigures(run.run_id, None, None, None, sps, wall_s, run.step, 0, Verdict.NO_EPISODES)
    going = is_unfinished(run)
    steps = max(run.step, int(curve.steps[-1])) if going else run.step  # a curve's news come before a heartbeat's
    # Of a curve that came as means of stretches so many points as are a hundred episodes.
    window = max(1, round(LAST_EPISODES * len(curve) / curve.total))
    last = curve.values[-window:]
    return RunFigures(
        run.run_id, float(last.mean()), best_mean(curve.values, window), mean_over_steps(curve), sps, wall_s, steps,
        curve.total, Verdict.UNFINISHED if going else verdict_on(last, baseline), bootstrap_interval(last),
    )  # fmt: skip


def best_mean(values: Floats, episodes: int = LAST_EPISODES) -> float:
    """The highest mean of so many in a row; of all, when there are fewer."""
    size = min(episodes, len(values))
    return float(Smoothing("window", size).apply(values)[size - 1 :].max()) if size > 1 else float(values.max())


def mean_over_steps(curve: Curve) -> float:
    """The area under the curve divided by the steps it covers."""
    width = float(curve.steps[-1] - curve.steps[0])
    return float(np.trapezoid(curve.values, curve.steps)) / width if width > 0 else float(curve.values.mean())


def verdict_on(last: Floats, baseline: Baseline | None) -> Verdict:
    """Better than acting at random, by more than chance explains?"""
    if baseline is None:
        return Verdict.NO_BASELINE
    if len(last) < 2:
        return Verdict.LEARNED if float(last.mean()) > max(baseline.returns) else Verdict.LEARNED_NOTHING
    return Verdict.LEARNED if difference_interval(last, baseline.returns).low > 0 else Verdict.LEARNED_NOTHING


def _finals(runs: Sequence[pb.Run], figures: Mapping[str, RunFigures]) -> list[float]:
    return [final for run in runs if (final := figures[run.run_id].final) is not None]


def _group(
    configuration: Configuration, label: str, runs: Sequence[pb.Run], repeated: Sequence[pb.Run],
    figures: Mapping[str, RunFigures], differing: Sequence[str],
) -> GroupFigures:  # fmt: skip
    own = [figures[run.run_id] for run in runs]
    finals = _finals(runs, figures)
    counted = how_many(runs) if len(runs) > 1 else f"seed {runs[0].seed}" if runs[0].HasField("seed") else "1 run"
    return GroupFigures(
        key=configuration.key,
        label=f"{label} ({counted})",
        algo=configuration.algo or configuration.worker,
        env_id=configuration.env_id,
        run_ids=tuple(run.run_id for run in runs),
        seeds=tuple(run.seed for run in runs if run.HasField("seed")),
        final=_estimate(finals),
        final_std=float(np.std(finals, ddof=1)) if len(finals) > 1 else None,
        final_iqm=Estimate(float(iqm(finals)), interval_over_runs(finals, iqm)) if finals else None,
        best=_estimate([figure.best for figure in own if figure.best is not None]),
        auc=_estimate([figure.auc for figure in own if figure.auc is not None]),
        sps=_mean([figure.sps for figure in own if figure.sps is not None]),
        wall_s=_mean([figure.wall_s for figure in own if figure.wall_s is not None]),
        learned=_together([figure.learned for figure in own]),
        learned_count=sum(figure.learned is Verdict.LEARNED for figure in own),
        parameters={name: parameter_value(configuration, name) for name in differing},
        repeated=tuple(run.run_id for run in repeated),
    )


def _together(verdicts: Sequence[Verdict]) -> Verdict:
    judged = {verdict for verdict in verdicts if verdict is not Verdict.NO_EPISODES}
    if not judged or Verdict.UNFINISHED in judged:
        return Verdict.UNFINISHED if judged else Verdict.NO_EPISODES
    return next(iter(judged)) if len(judged) == 1 else Verdict.PARTLY


def _improvements(groups: Sequence[GroupFigures], figures: Mapping[str, RunFigures]) -> Iterator[Improvement]:
    ends = {
        group.key: np.array([final for run_id in group.run_ids if (final := figures[run_id].final) is not None])
        for group in groups
    }
    for env_id in dict.fromkeys(group.env_id for group in groups):
        best = [group.key for group in groups if group.env_id == env_id and group.final is not None][:MOST_COMPARED]
        for first, second in itertools.combinations(best, 2):
            probability = probability_of_improvement(ends[first], ends[second])
            if probability.value < 0.5:
                yield Improvement(second, first, probability.complement())
            else:
                yield Improvement(first, second, probability)


def _estimate(values: Sequence[float]) -> Estimate | None:
    return Estimate(float(mean(values)), interval_over_runs(values)) if values else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _value(estimate: Estimate | None) -> float:
    return estimate.value if estimate is not None else 0.0
