"""What a benchmark's runs reached, in rows: one of each run, one of each group, with what was published beside it."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gym_gui.services.analytics.baselines import Baseline
from gym_gui.services.analytics.comparison import Comparison, GroupFigures, RunFigures
from gym_gui.services.analytics.configurations import parameters_of
from gym_gui.services.analytics.labels import NOT_GIVEN
from gym_gui.services.analytics.published import PublishedReturn, published_return
from gym_gui.services.analytics.statistics import Estimate, probability_of_improvement
from gym_gui.wording import formats

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet would calculate instead of show"""


@dataclass(frozen=True)
class Held:
    """A group's return held against a published one."""

    published: PublishedReturn
    steps: int
    """What ours trained"""
    is_comparable: bool
    is_reached: bool
    """Only where it is comparable"""

    @property
    def in_a_word(self) -> str:
        """For a narrow table."""
        if not self.published.is_same_environment:
            return "other version"
        return "too short" if not self.is_comparable else "yes" if self.is_reached else "no"

    @property
    def words(self) -> str:
        """The verdict, and where nothing can be said, why."""
        if not self.published.is_same_environment:
            return f"not comparable: published for {self.published.env_id}"
        if not self.is_comparable:
            ours, theirs = formats.count(self.steps), formats.count(self.published.steps)
            return f"not comparable: {ours} of {theirs} steps ({100 * self.steps / self.published.steps:.0f} %)"
        return "reached" if self.is_reached else "not reached"


def baseline_for(env_id: str, comparison: Comparison) -> Baseline | None:
    """What acting at random reaches there; with its own arguments, where the environment was made with some."""
    known = comparison.baselines
    return known.get(env_id) or next((each for key, each in known.items() if key.startswith(f"{env_id} ")), None)


def held_against_published(group: GroupFigures, comparison: Comparison) -> Held | None:
    """None when nothing was published, or the group has no return."""
    published = published_return(group.algo, group.env_id)
    if published is None or group.final is None:
        return None
    baseline = baseline_for(group.env_id, comparison)
    steps = min((comparison.runs[run_id].steps for run_id in group.run_ids if run_id in comparison.runs), default=0)
    comparable = published.is_comparable(steps)
    least = published.least(baseline.mean if baseline else None)
    return Held(published, steps, comparable, comparable and group.final.value >= least)


@dataclass(frozen=True)
class Overall:
    """How likely a run of the first ends better than one of the second in an environment chosen at random."""

    first: str
    second: str
    probability: Estimate
    environments: int
    seeds: int
    """Fewest that a group has"""


def overall_improvements(comparison: Comparison) -> list[Overall]:
    """Each pair that was trained in the same environments, several of them; the likelier winner in front."""
    by_name: dict[str, dict[str, list[float]]] = {}
    for group in comparison.groups:
        finals = [final for run_id in group.run_ids if (final := comparison.runs[run_id].final) is not None]
        if finals:
            by_name.setdefault(name_of(group), {})[group.env_id] = finals
    found = []
    for first, second in itertools.combinations(by_name, 2):
        tasks = [env_id for env_id in by_name[first] if env_id in by_name[second]]
        if len(tasks) < 2 or set(by_name[first]) != set(by_name[second]):
            continue
        ours, theirs = ([by_name[name][env_id] for env_id in tasks] for name in (first, second))
        probability = probability_of_improvement(ours, theirs)
        if probability.value < 0.5:
            first, second, probability = second, first, probability_of_improvement(theirs, ours)
        found.append(Overall(first, second, probability, len(tasks), min(map(len, [*ours, *theirs]))))
    return found


def name_of(group: GroupFigures) -> str:
    """What a group is called, its environment apart: the algorithm and the parameters in which groups differ."""
    return " ".join([group.algo, *(f"{key}={value}" for key, value in group.parameters.items() if value != NOT_GIVEN)])


def run_rows(runs: Sequence[pb.Run], figures: Mapping[str, RunFigures]) -> list[dict[str, Any]]:
    """A row for each run, also of those that failed."""
    rows = []
    for run in runs:
        known = figures.get(run.run_id)
        interval = known.final_interval if known else None
        rows.append(
            {
                "run_id": run.run_id,
                "name": run.name,
                "algo": run.algo,
                "env_id": run.env_id,
                "seed": run.seed if run.HasField("seed") else None,
                "status": run.outcome or run.status,
                "reason": "" if run.outcome == "completed" else " ".join(run.reason.split()),
                "steps": known.steps if known else run.step,
                "episodes": known.episodes if known else None,
                "final": known.final if known else None,
                "final_low": interval.low if interval else None,
                "final_high": interval.high if interval else None,
                "best": known.best if known else None,
                "auc": known.auc if known else None,
                "sps": known.sps if known else None,
                "wall_s": known.wall_s if known else None,
                "learned": str(known.learned) if known else "",
                "parameters": json.dumps(parameters_of(run), sort_keys=True),
            }
        )
    return rows


def group_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """A row for each group of seeds."""
    rows = []
    for group in comparison.groups:
        held = held_against_published(group, comparison)
        baseline = baseline_for(group.env_id, comparison)
        known = [comparison.runs[run_id] for run_id in group.run_ids if run_id in comparison.runs]
        rows.append(
            {
                "env_id": group.env_id,
                "algo": group.algo,
                "group": group.label,
                "parameters": json.dumps(dict(group.parameters), sort_keys=True, ensure_ascii=False),
                "runs": len(group.run_ids),
                "seeds": " ".join(map(str, group.seeds)),
                "steps": min((each.steps for each in known), default=None),
                **_estimate("final", group.final),
                "final_std": group.final_std,
                **_estimate("final_iqm", group.final_iqm),
                **_estimate("best", group.best),
                **_estimate("auc", group.auc),
                "sps": group.sps,
                "wall_s": group.wall_s,
                "learned": str(group.learned),
                "learned_runs": group.learned_count,
                "random_mean": baseline.mean if baseline else None,
                "random_std": baseline.std if baseline else None,
                "published_mean": held.published.mean if held else None,
                "published_std": held.published.std if held else None,
                "published_steps": held.published.steps if held else None,
                "published_env_id": held.published.env_id if held else "",
                "published_source": held.published.source if held else "",
                "against_published": held.words if held else "",
            }
        )
    return rows


def _estimate(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    interval = estimate.interval if estimate else None
    return {
        name: estimate.value if estimate else None,
        f"{name}_low": interval.low if interval else None,
        f"{name}_high": interval.high if interval else None,
    }


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows with a header; a name that begins like a formula is no formula."""
    listed = list(rows)
    out = io.StringIO()
    if listed:
        writer = csv.DictWriter(out, list(listed[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _harmless(value) for key, value in row.items()} for row in listed)
    return out.getvalue()


def _harmless(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
