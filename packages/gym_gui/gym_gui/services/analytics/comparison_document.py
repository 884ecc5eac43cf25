"""A comparison as data: one JSON object, or one row a run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gym_gui.services.analytics.baselines import Baseline
from gym_gui.services.analytics.comparison import Comparison, GroupFigures, RunFigures
from gym_gui.services.analytics.configurations import parameters_of
from gym_gui.services.analytics.statistics import Estimate, Interval

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

RUN_COLUMNS = (
    "run", "name", "algo", "env", "seed", "group", "final", "final_low", "final_high", "best", "auc", "sps", "wall_s",
    "steps", "episodes", "learned",
)  # fmt: skip


def run_rows(comparison: Comparison, runs: Sequence[pb.Run]) -> Iterator[tuple[Any, ...]]:
    """A row for each run, in the order of the groups; RUN_COLUMNS names its fields."""
    by_id = {run.run_id: run for run in runs}
    for group in comparison.groups:
        for run_id in (*group.run_ids, *group.repeated):
            run, figures = by_id[run_id], comparison.runs[run_id]
            interval = figures.final_interval
            low, high = (interval.low, interval.high) if interval is not None else (None, None)
            yield (
                run_id, run.name, run.algo, run.env_id, run.seed if run.HasField("seed") else None, group.label,
                figures.final, low, high, figures.best, figures.auc, figures.sps, figures.wall_s, figures.steps,
                figures.episodes, str(figures.learned),
            )  # fmt: skip


def comparison_document(comparison: Comparison, runs: Sequence[pb.Run]) -> dict[str, Any]:
    """Everything a comparison says; what is not known is null."""
    by_id = {run.run_id: run for run in runs}
    return {
        "tag": comparison.tag,
        "baselines": {key: _baseline(baseline) for key, baseline in comparison.baselines.items()},
        "groups": [_group(group) for group in comparison.groups],
        "differing_parameters": list(comparison.differing),
        "improvements": [
            {"better": comparison.group(pair.better).label, "than": comparison.group(pair.worse).label}
            | {"probability": pair.probability.value, "interval": _interval(pair.probability.interval)}
            for pair in comparison.improvements
        ],
        "overall": [
            {"better": pair.better, "than": pair.worse, "environments": list(pair.environments)}
            | {"probability": pair.probability.value, "interval": _interval(pair.probability.interval)}
            for pair in comparison.overall
        ],
        "runs": [_run(by_id[run_id], figures) for run_id, figures in comparison.runs.items()],
    }


def _group(group: GroupFigures) -> dict[str, Any]:
    return {
        "label": group.label,
        "algo": group.algo,
        "env_id": group.env_id,
        "runs": list(group.run_ids),
        "repeated_seeds": list(group.repeated),
        "seeds": list(group.seeds),
        "final": _estimate(group.final),
        "final_std": group.final_std,
        "final_iqm": _estimate(group.final_iqm),
        "best": _estimate(group.best),
        "auc": _estimate(group.auc),
        "sps": group.sps,
        "wall_s": group.wall_s,
        "learned": str(group.learned),
        "learned_count": group.learned_count,
        "parameters": dict(group.parameters),
    }


def _run(run: pb.Run, figures: RunFigures) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "name": run.name,
        "algo": run.algo,
        "env_id": run.env_id,
        "seed": run.seed if run.HasField("seed") else None,
        "final": figures.final,
        "final_interval": _interval(figures.final_interval),
        "best": figures.best,
        "auc": figures.auc,
        "sps": figures.sps if figures.sps is not None and math.isfinite(figures.sps) else None,
        "wall_s": figures.wall_s,
        "steps": figures.steps,
        "episodes": figures.episodes,
        "learned": str(figures.learned),
        "parameters": parameters_of(run),
    }


def _baseline(baseline: Baseline | None) -> dict[str, Any] | None:
    if baseline is None:
        return None
    return {
        "mean": baseline.mean,
        "std": baseline.std,
        "interval": _interval(baseline.interval),
        "episodes": baseline.episodes,
        "run_id": baseline.run_id,
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else {"value": estimate.value, "interval": _interval(estimate.interval)}


def _interval(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]
