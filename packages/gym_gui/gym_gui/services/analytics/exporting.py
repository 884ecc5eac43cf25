"""The points behind a figure as a table: run, name, algo, env, seed, tag, step, wall_time, value."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_wire.run_status import RunOutcome

from gym_gui.services.analytics.baselines import Baseline
from gym_gui.services.analytics.comparison import FACTS, Comparison, GroupFigures, RunFigures
from gym_gui.services.analytics.configurations import parameters_of
from gym_gui.services.analytics.curves import Curve
from gym_gui.services.analytics.published import compare_with_published
from gym_gui.services.analytics.statistics import Estimate, Interval

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb


COLUMNS = ("run", "name", "algo", "env", "seed", "tag", "step", "wall_time", "value")
Curves = Mapping[str, Mapping[str, Curve]]


class MissingPackage(Exception):
    """A file of this kind needs a package that is not installed."""


def write_csv(path: Path, curves: Curves, runs: Sequence[pb.Run] = ()) -> int:
    """Write every point of these curves; return how many."""
    facts = _facts(runs)
    written = 0
    with _unfinished(path) as place, place.open("w", newline="", encoding="utf-8") as stream:
        out = csv.writer(stream, lineterminator="\n")
        out.writerow(COLUMNS)
        for run_id, curve in _each(curves):
            about = (run_id, *facts.get(run_id, ("", "", "", "")), curve.tag)
            steps = curve.steps.astype("int64").tolist()
            rows = zip(steps, curve.times.tolist(), curve.values.tolist(), strict=True)
            out.writerows((*about, *row) for row in rows)
            written += len(curve)
    return written


def write_parquet(path: Path, curves: Curves, runs: Sequence[pb.Run] = ()) -> int:
    """Write every point as Parquet, a row group for each curve; raise MissingPackage without pyarrow."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise MissingPackage("Parquet files need pyarrow: pip install pyarrow, or write a .csv") from None
    facts = _facts(runs)
    text = arrow.dictionary(arrow.int32(), arrow.string())
    kinds = (text, text, text, text, arrow.int64(), text, arrow.int64(), arrow.float64(), arrow.float64())
    schema = arrow.schema(list(zip(COLUMNS, kinds, strict=True)))
    written = 0
    with _unfinished(path) as place, parquet.ParquetWriter(place, schema) as out:
        for run_id, curve in _each(curves):
            name, algo, env, seed = facts.get(run_id, ("", "", "", ""))
            same = (run_id, name, algo, env, None if seed == "" else seed, curve.tag)
            plain = [arrow.int64() if kind == arrow.int64() else arrow.string() for kind in kinds]
            columns: list[Any] = [
                arrow.array([value] * len(curve), type=kind) for value, kind in zip(same, plain, strict=False)
            ]
            columns = [each if each.type == arrow.int64() else each.dictionary_encode() for each in columns]
            columns += [arrow.array(curve.steps.astype("int64")), arrow.array(curve.times), arrow.array(curve.values)]
            out.write_table(arrow.Table.from_arrays(columns, schema=schema))
            written += len(curve)
    return written


def _facts(runs: Sequence[pb.Run]) -> dict[str, tuple[str, str, str, int | str]]:
    return {run.run_id: (run.name, run.algo, run.env_id, run.seed if run.HasField("seed") else "") for run in runs}


def _each(curves: Curves) -> Iterator[tuple[str, Curve]]:
    for run_id, own in curves.items():
        for tag in sorted(own):
            yield run_id, own[tag]


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces the file when everything is written."""
    place = path.with_name(f".{path.name}.part")
    try:
        yield place
        os.replace(place, path)
    finally:
        place.unlink(missing_ok=True)


# ---------------------------------------------------------------- comparison document


RUN_COLUMNS = (
    *("run", "name", "algo", "env", "seed", "group", "final", "final_low", "final_high", "best", "auc", "sps"),
    *("wall_s", "steps", "episodes", "learned", *(fact.name for fact in FACTS)),
)


def run_rows(comparison: Comparison, runs: Sequence[pb.Run]) -> Iterator[tuple[Any, ...]]:
    """Return a row for each run, in the order of the groups; RUN_COLUMNS names its fields."""
    by_id = {run.run_id: run for run in runs}
    for group in comparison.groups:
        for run_id in (*group.run_ids, *group.repeated):
            run, figures = by_id[run_id], comparison.runs[run_id]
            interval = figures.final_interval
            low, high = (interval.low, interval.high) if interval is not None else (None, None)
            about = run_id, run.name, run.algo, run.env_id, run.seed if run.HasField("seed") else None, group.label
            reached = figures.final, low, high, figures.best, figures.auc, figures.sps, figures.wall_s
            yield *about, *reached, figures.steps, figures.episodes, str(figures.learned), *_facts_in(figures).values()


def _facts_in(figures: RunFigures | GroupFigures | None) -> dict[str, float | None]:
    return {fact.name: figures.facts.get(fact.name) if figures else None for fact in FACTS}


def comparison_document(comparison: Comparison, runs: Sequence[pb.Run]) -> dict[str, Any]:
    """Return a comparison as JSON; unknown values are null."""
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
    names = ("label", "algo", "env_id", "environment", "final_std", "sps", "wall_s", "learned_count")
    return {
        **{name: getattr(group, name) for name in names},
        **{name: _estimate(getattr(group, name)) for name in ("final", "final_iqm", "best", "auc")},
        "runs": list(group.run_ids),
        "repeated_seeds": list(group.repeated),
        "seeds": list(group.seeds),
        "learned": str(group.learned),
        **_facts_in(group),
        "parameters": dict(group.parameters),
    }


def _about(run: pb.Run) -> dict[str, Any]:
    named = {name: getattr(run, name) for name in ("run_id", "name", "algo", "env_id")}
    return {**named, "seed": run.seed if run.HasField("seed") else None}


def _run(run: pb.Run, figures: RunFigures) -> dict[str, Any]:
    return {
        **_about(run),
        **{name: getattr(figures, name) for name in ("final", "best", "auc", "wall_s", "steps", "episodes")},
        "final_interval": _interval(figures.final_interval),
        "sps": figures.sps if figures.sps is not None and math.isfinite(figures.sps) else None,
        "learned": str(figures.learned),
        **_facts_in(figures),
        "parameters": parameters_of(run),
    }


def _baseline(baseline: Baseline | None) -> dict[str, Any] | None:
    if baseline is None:
        return None
    known = {name: getattr(baseline, name) for name in ("mean", "std", "episodes", "run_id")}
    return {**known, "interval": _interval(baseline.interval)}


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else {"value": estimate.value, "interval": _interval(estimate.interval)}


def _interval(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


# ---------------------------------------------------------------- the tables of a benchmark


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of text that a spreadsheet would evaluate as a formula"""


def bench_run_rows(runs: Sequence[pb.Run], figures: Mapping[str, RunFigures]) -> list[dict[str, Any]]:
    """Return a row for each run, also of those that failed."""
    rows = []
    for run in runs:
        known = figures.get(run.run_id)
        interval = known.final_interval if known else None
        reached = {name: getattr(known, name, None) for name in ("best", "auc", "sps", "wall_s")}
        rows.append(
            {
                **_about(run),
                "status": run.outcome or run.status,
                "reason": "" if run.outcome == RunOutcome.COMPLETED else " ".join(run.reason.split()),
                "steps": known.steps if known else run.step,
                "episodes": known.episodes if known else None,
                "final": known.final if known else None,
                "final_low": interval.low if interval else None,
                "final_high": interval.high if interval else None,
                **reached,
                "learned": str(known.learned) if known else "",
                **_facts_in(known),
                "parameters": json.dumps(parameters_of(run), sort_keys=True),
            }
        )
    return rows


def bench_group_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return a row for each group of seeds."""
    rows = []
    for group in comparison.groups:
        reference = compare_with_published(group, comparison)
        published = reference.published if reference else None
        baseline = comparison.baselines.get(group.environment)
        rows.append(
            {
                "env_id": group.env_id,
                "environment": group.environment,
                "algo": group.algo,
                "group": group.label,
                "parameters": json.dumps(dict(group.parameters), sort_keys=True, ensure_ascii=False),
                "runs": len(group.run_ids),
                "seeds": " ".join(map(str, group.seeds)),
                "steps": group.steps,
                **_estimate_columns("final", group.final),
                "final_std": group.final_std,
                **_estimate_columns("final_iqm", group.final_iqm),
                **_estimate_columns("best", group.best),
                **_estimate_columns("auc", group.auc),
                "sps": group.sps,
                "wall_s": group.wall_s,
                "learned": str(group.learned),
                "learned_runs": group.learned_count,
                **_facts_in(group),
                **{f"random_{name}": getattr(baseline, name, None) for name in ("mean", "std")},
                **{f"published_{name}": getattr(published, name, None) for name in ("mean", "std", "steps")},
                **{f"published_{name}": getattr(published, name, "") for name in ("env_id", "source")},
                "against_published": reference.text if reference else "",
            }
        )
    return rows


def _estimate_columns(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    interval = estimate.interval if estimate else None
    return {
        name: estimate.value if estimate else None,
        f"{name}_low": interval.low if interval else None,
        f"{name}_high": interval.high if interval else None,
    }


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows with a header as CSV; text that looks like a formula is escaped."""
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
