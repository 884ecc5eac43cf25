"""Compare runs and groups of runs: returns, learning speed, throughput, and their differences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from gym_gui.services.analytics.configurations import (
    NOT_GIVEN,
    Configuration,
    configuration_labels,
    differing_parameters,
    environment_of,
    how_many,
    parameter_value,
)
from gym_gui.services.analytics.curves import RETURN_TAGS, Curve, Floats, Smoothing, load_curves, return_curve
from gym_gui.services.analytics.figure import continued_note, groups_of
from gym_gui.services.analytics.lineage import (
    is_unfinished,
    joined,
    members,
    missing_note,
    named,
    not_completed_note,
    once_per_seed,
    repeated_note,
    unfinished_note,
    with_earlier,
)
from gym_gui.services.analytics.statistics import (
    ENOUGH_SEEDS,
    FEWEST_RUNS,
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
from gym_gui.wording.run_view import elapsed_s, parsed

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.baselines import Baseline
    from gym_gui.services.trainer.client import TrainerClient

_MOST_ACROSS = 12
"""More configurations would give too many pairs"""


@dataclass(frozen=True)
class OverallImprovement:
    """The probability that the first configuration ends better than the second in the environments of both."""

    better: str
    """Labels without an environment: `ppo`, `ppo · lr 1e-3`"""
    worse: str
    environments: tuple[str, ...]
    probability: Estimate
    seeds: int
    """The smallest number of runs of either in an environment"""


def improvements_across(finals: Mapping[Configuration, Sequence[float]]) -> list[OverallImprovement]:
    """Return the pairs of configurations that share at least two environments, by final returns."""
    entries: dict[Configuration, dict[str, Sequence[float]]] = {}
    for configuration, values in finals.items():
        if values:
            others = tuple(pair for pair in configuration.parameters if pair[0] != "env_kwargs")
            anywhere = replace(configuration, env_id="", environment="", total=0, parameters=others)
            entries.setdefault(anywhere, {})[configuration.environment] = values
    several = [entry for entry, where in entries.items() if len(where) > 1][:_MOST_ACROSS]
    labels = dict(zip(several, configuration_labels(several), strict=True))
    found = []
    for first, second in itertools.combinations(several, 2):
        shared = tuple(env_id for env_id in entries[first] if env_id in entries[second])
        if len(shared) < 2:
            continue
        sides = [[entries[entry][env_id] for env_id in shared] for entry in (first, second)]
        probability = probability_of_improvement(*sides)
        if probability.value < 0.5:
            first, second, probability = second, first, probability.complement()
        seeds = min(len(values) for side in sides for values in side)
        found.append(OverallImprovement(labels[first], labels[second], shared, probability, seeds))
    return found


@dataclass(frozen=True)
class Fact:
    """A number that a worker may report with the end of a run; it is compared where a run has it."""

    name: str
    title: str
    meaning: str
    part: str = ""
    """The object of the result that holds it; empty: the result itself"""
    write: Callable[[float], str] = formats.quantity

    def text(self, facts: Mapping[str, float]) -> str:
        """Return its value as text, – where there is none."""
        return self.write(facts[self.name]) if self.name in facts else NOT_GIVEN

    def read(self, result: Mapping[str, Any]) -> float | None:
        """Return its value in a result."""
        holder = result.get(self.part) if self.part else result
        value = holder.get(self.name) if isinstance(holder, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value)


FACTS = (
    Fact("success_rate", "success", "part of the episodes that reached their goal", "evaluation", formats.percent),
    Fact("total_tokens", "tokens", "tokens of prompts and answers", write=formats.short_count),
    Fact("cost", "cost", "in the currency of the prices that were given"),
    Fact(
        "invalid_rate", "invalid", "part of the steps whose first answer named no legal action", write=formats.percent
    ),
    Fact(
        "fallback_rate",
        "random actions",
        "part of the steps with a random action, for want of a legal answer",
        write=formats.percent,
    ),
    Fact("latency_ms", "latency (ms)", "mean time of an answer", write=formats.count),
)


def facts_of(run: pb.Run) -> dict[str, float]:
    """Return the facts that the run's worker reported, by name."""
    result = parsed(run.result_json)
    found = {fact.name: fact.read(result) for fact in FACTS} if isinstance(result, dict) else {}
    return {name: value for name, value in found.items() if value is not None}


LAST_EPISODES = 100
MOST_COMPARED = 20
"""The best groups of one environment, of which each pair is compared"""


class Verdict(StrEnum):
    """Whether runs learned anything, compared with a random policy."""

    LEARNED = "learned"
    """the mean of its last episodes is above the random policy's: the 95 % bootstrap interval of the difference is"""
    LEARNED_NOTHING = "learned nothing"
    PARTLY = "some learned"
    """of a group: some of its runs did"""
    DID_NOT_IMPROVE = "did not improve"
    """better than the random policy from the start: an untrained network may be, or one that began with weights"""
    NO_BASELINE = "no baseline"
    NO_EPISODES = "no episodes"
    UNFINISHED = "unfinished"
    """it may still learn; of a group: one of its runs may"""


@dataclass(frozen=True)
class RunFigures:
    """The results of one run; None where its curve has no value."""

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
    facts: Mapping[str, float] = field(default_factory=dict)
    """By name, those of FACTS that it has"""


@dataclass(frozen=True)
class GroupFigures:
    """Runs that differ only in their seed."""

    key: str
    label: str
    """`ppo · CartPole-v1 (5 seeds)`"""
    algo: str
    env_id: str
    environment: str
    """See `configurations.environment_of`"""
    run_ids: tuple[str, ...]
    """The runs that count, one per seed"""
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
    """The number of its runs that learned"""
    steps: int
    """The smallest number of steps of its runs"""
    parameters: Mapping[str, str]
    """Its values of the parameters in which groups differ; – where one was not given"""
    repeated: tuple[str, ...] = ()
    """Runs that do not count because another run of the same seed does"""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Means over the runs that have them"""


@dataclass(frozen=True)
class Improvement:
    """The probability that a run of the first group ends better than one of the second."""

    better: str
    """Keys of groups"""
    worse: str
    probability: Estimate
    seeds: int
    """The smallest number of runs of either group"""


@dataclass(frozen=True)
class Comparison:
    """A comparison of runs, in groups that differ only in their seed."""

    runs: Mapping[str, RunFigures]
    groups: tuple[GroupFigures, ...]
    """Groups by `environment`, the best final return first"""
    improvements: tuple[Improvement, ...]
    """Each pair of the best groups of one environment; the one that is more likely better comes first"""
    differing: tuple[str, ...]
    """Names of parameters in which the groups differ"""
    baselines: Mapping[str, Baseline | None]
    """Baselines by `environment_of`; None: there is none"""
    tag: str
    """The compared metric"""
    overall: tuple[OverallImprovement, ...] = ()
    """Configurations compared over several common environments"""
    notes: tuple[str, ...] = ()
    """Notes on runs that are unfinished or not completed, or that count in another group"""

    @property
    def note(self) -> str:
        """Return a note on runs that are excluded from the statistics or treated specially, or an empty text."""
        repeated = repeated_note([run_id for group in self.groups for run_id in group.repeated])
        return " · ".join(filter(None, (repeated, *self.notes)))

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Return the facts that at least one run has."""
        return tuple(fact for fact in FACTS if any(fact.name in figures.facts for figures in self.runs.values()))

    def group(self, key: str) -> GroupFigures:
        """Return the group with this key."""
        return next(group for group in self.groups if group.key == key)


def compare(
    client: TrainerClient,
    runs: Sequence[pb.Run],
    *,
    tag: str | None = None,
    baselines: Mapping[str, Baseline | None] | None = None,
    only_with_data: bool = False,
) -> Comparison:
    """Compare runs by their return or another curve (`tag`; more is better, no baseline).

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
    """Compare runs by complete curves that are already loaded."""
    known = dict(baselines or {}) if tag is None else {}
    shown, whole = joined(runs, curves)
    by_id = {run.run_id: run for run in runs}
    figures: dict[str, RunFigures] = {}
    for run in shown:
        curve = whole[run.run_id].get(tag) if tag is not None else return_curve(whole[run.run_id])
        earlier = [by_id[run_id] for run_id in members(run, by_id)]
        figures[run.run_id] = _run_figures(run, earlier, curve, known.get(environment_of(run)))
    with_data = {run_id for run_id, own in figures.items() if own.final is not None}
    split = {configuration: once_per_seed(own, with_data) for configuration, own in groups_of(shown).items()}
    groups = {configuration: counted for configuration, (counted, _) in split.items()}
    differing = differing_parameters(groups)
    labels = configuration_labels(list(groups))
    judged = [
        _group(configuration, label, own, repeated, figures, differing)
        for (configuration, (own, repeated)), label in zip(split.items(), labels, strict=True)
    ]
    environments = list(dict.fromkeys(group.environment for group in judged))
    judged.sort(key=lambda group: (environments.index(group.environment), group.final is None, -_value(group.final)))
    notes = (unfinished_note(shown), not_completed_note(shown), continued_note(shown, by_id), missing_note(runs))
    return Comparison(
        runs=figures,
        groups=tuple(judged),
        improvements=tuple(_improvements(judged, figures)),
        differing=tuple(differing),
        baselines={environment_of(run): known.get(environment_of(run)) for run in shown},
        tag=tag or RETURN_TAGS[0],
        overall=tuple(improvements_across({own: _finals(members, figures) for own, members in groups.items()})),
        notes=(*notes, _not_finite_note(curves, tag)),
    )


def _not_finite_note(curves: Mapping[str, Mapping[str, Curve]], tag: str | None) -> str:
    found = {run_id: own.get(tag) if tag is not None else return_curve(own) for run_id, own in curves.items()}
    counts = {run_id: curve.not_finite for run_id, curve in found.items() if curve is not None and curve.not_finite}
    number = formats.plural(sum(counts.values()), "return" if tag is None else "value")
    return f"NaN or infinite, and left out: {number} of {named(list(counts))}" if counts else ""


def _run_figures(run: pb.Run, earlier: Sequence[pb.Run], curve: Curve | None, baseline: Baseline | None) -> RunFigures:
    durations = [took for part in earlier if (took := elapsed_s(part)) is not None]
    sps = run.sps if run.HasField("sps") and np.isfinite(run.sps) else None
    wall_s = sum(durations) if durations else None
    if curve is None or not len(curve):
        nothing = Verdict.NO_EPISODES
        return RunFigures(run.run_id, None, None, None, sps, wall_s, run.step, 0, nothing, facts=facts_of(run))
    going = is_unfinished(run)
    steps = max(run.step, int(curve.steps[-1])) if going else run.step  # curves arrive before heartbeats
    # A thinned curve consists of means of buckets; use as many points as cover a hundred episodes.
    window = max(1, round(LAST_EPISODES * len(curve) / curve.total))
    last = curve.values[-window:]
    learned = Verdict.UNFINISHED if going else verdict_on(last, baseline)
    if learned is Verdict.LEARNED and '"never_updated"' in run.result_json:  # an untrained network may beat chance
        learned = Verdict.LEARNED_NOTHING
    elif learned is Verdict.LEARNED and not _improved(curve, window):
        learned = Verdict.DID_NOT_IMPROVE
    reached = float(last.mean()), best_mean(curve.values, window), mean_over_steps(curve)
    interval = bootstrap_interval(last)
    return RunFigures(run.run_id, *reached, sps, wall_s, steps, curve.total, learned, interval, facts_of(run))


def best_mean(values: Floats, episodes: int = LAST_EPISODES) -> float:
    """Return the highest mean of `window` consecutive values, or of all if there are fewer."""
    size = min(episodes, len(values))
    return float(Smoothing("window", size).apply(values)[size - 1 :].max()) if size > 1 else float(values.max())


def mean_over_steps(curve: Curve) -> float:
    """Return the area under the curve divided by the steps it covers."""
    width = float(curve.steps[-1] - curve.steps[0])
    return float(np.trapezoid(curve.values, curve.steps)) / width if width > 0 else float(curve.values.mean())


def verdict_on(last: Floats, baseline: Baseline | None) -> Verdict:
    """Return the verdict on a run's last episodes: significantly better than a random policy or not."""
    if baseline is None:
        return Verdict.NO_BASELINE
    if len(last) < 2:
        return Verdict.LEARNED if float(last.mean()) > max(baseline.returns) else Verdict.LEARNED_NOTHING
    return Verdict.LEARNED if difference_interval(last, baseline.returns).low > 0 else Verdict.LEARNED_NOTHING


def _improved(curve: Curve, window: int) -> bool:
    """Return whether the last episodes are better than the first; True for evaluations and very short curves."""
    size = min(window, len(curve) // 2)
    if size < 2 or curve.tag.startswith("eval/"):
        return True
    return difference_interval(curve.values[-size:], curve.values[:size]).low > 0


def _finals(runs: Sequence[pb.Run], figures: Mapping[str, RunFigures]) -> list[float]:
    return [final for run in runs if (final := figures[run.run_id].final) is not None]


def _group(
    configuration: Configuration,
    label: str,
    runs: Sequence[pb.Run],
    repeated: Sequence[pb.Run],
    figures: Mapping[str, RunFigures],
    differing: Sequence[str],
) -> GroupFigures:
    own = [figures[run.run_id] for run in runs]
    finals = _finals(runs, figures)
    counted = how_many(runs) if len(runs) > 1 else f"seed {runs[0].seed}" if runs[0].HasField("seed") else "1 run"
    return GroupFigures(
        key=configuration.key,
        label=f"{label} ({counted})",
        algo=configuration.algo or configuration.worker,
        env_id=configuration.env_id,
        environment=configuration.environment,
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
        steps=min(figure.steps for figure in own),
        parameters={name: parameter_value(configuration, name) for name in differing},
        repeated=tuple(run.run_id for run in repeated),
        facts={
            fact.name: float(np.mean(values))
            for fact in FACTS
            if (values := [figure.facts[fact.name] for figure in own if fact.name in figure.facts])
        },
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
    for environment in dict.fromkeys(group.environment for group in groups):
        best = [group for group in groups if group.environment == environment and group.final is not None][
            :MOST_COMPARED
        ]
        for first, second in itertools.combinations(best, 2):
            probability = probability_of_improvement(ends[first.key], ends[second.key])
            if probability.value < 0.5:
                first, second, probability = second, first, probability.complement()
            yield Improvement(first.key, second.key, probability, min(len(first.run_ids), len(second.run_ids)))


def _estimate(values: Sequence[float]) -> Estimate | None:
    return Estimate(float(mean(values)), interval_over_runs(values)) if values else None


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _value(estimate: Estimate | None) -> float:
    return estimate.value if estimate is not None else 0.0


# ---------------------------------------------------------------- how reports write it


def number(value: float | None) -> str:
    """Return a return or score as text, – for None."""
    return NOT_GIVEN if value is None else formats.quantity(value)


def estimate_text(estimate: Estimate | None) -> str:
    """Return `487.2 [470.1, 499.0]`."""
    interval = estimate.interval if estimate else None
    text = number(estimate.value if estimate else None)
    return f"{text} [{number(interval.low)}, {number(interval.high)}]" if interval else text


def probability_text(probability: Estimate) -> str:
    """Return `0.93 [0.71, 1.00]`."""
    interval = probability.interval
    return f"{probability.value:.2f}" + (f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else "")


def decided(probability: Estimate, seeds: int) -> str:
    """Return what an interval allows to conclude; a bootstrap over a few seeds allows nothing."""
    if probability.interval is None:
        return f"no: fewer than {FEWEST_RUNS} seeds"
    if 0.5 in probability.interval:
        return "no: 0.50 lies within"
    return "yes" if seeds >= ENOUGH_SEEDS else f"likely: only {formats.plural(seeds, 'seed')}"


def verdict_text(group: GroupFigures) -> str:
    """Return `learned`, `learned nothing` or `2 of 3 learned`."""
    if group.learned is Verdict.PARTLY:
        return f"{group.learned_count} of {len(group.run_ids)} learned"
    return str(group.learned)


def name_of(group: GroupFigures) -> str:
    """Return a group's name without its environment: the algorithm and the parameters in which groups differ."""
    return " ".join([group.algo, *(f"{key}={value}" for key, value in group.parameters.items() if value != NOT_GIVEN)])


def short_labels(groups: Sequence[GroupFigures]) -> dict[str, str]:
    """Return labels within one environment: the algorithm, and its parameters where others have the same."""
    algos = [group.algo for group in groups]
    return {group.key: group.algo if algos.count(group.algo) == 1 else name_of(group) for group in groups}
