"""The report of a benchmark: a folder with `report.md`, plots, and every figure as CSV. Written whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gym_gui.services.analytics.aggregate import Band
from gym_gui.services.analytics.bench_figures import csv_text, group_rows, run_rows
from gym_gui.services.analytics.bench_markdown import Bench, Plot, render, short_labels
from gym_gui.services.analytics.comparison import Comparison, compare
from gym_gui.services.analytics.curves import RETURN_TAGS, Axis, Curve, load_curves, points_per_curve, return_curve
from gym_gui.services.analytics.exporting import write_csv
from gym_gui.services.analytics.figure import FigureOptions, build_figure
from gym_gui.services.analytics.interval_plot import interval_picture, intervals_of
from gym_gui.services.analytics.lineage import with_earlier
from gym_gui.services.analytics.report_facts import redacted_run
from gym_gui.services.analytics.smoothing import Smoothing
from gym_gui.services.analytics.steady_colours import SteadyColours

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.baselines import Baseline
    from gym_gui.services.trainer.client import TrainerClient

REPORT, RUNS, GROUPS, CURVES, PLOTS = "report.md", "runs.csv", "groups.csv", "curves.csv", "plots"
_SMOOTHED_EPISODES = 100
"""The window of a figure: as many episodes as a final return is the mean of; fewer where a run has few"""
_WINDOWS = 10


@dataclass(frozen=True)
class WrittenReport:
    folder: Path
    comparison: Comparison | None
    """None when no run was completed"""


def write_report(
    client: TrainerClient, bench: Bench, folder: Path, *, baselines: Mapping[str, Baseline | None]
) -> WrittenReport:
    """Measure the completed runs, draw them, write it all."""
    bench = replace(bench, runs=tuple(redacted_run(run) for run in bench.runs))
    completed = bench.completed
    comparison: Comparison | None = None
    curves: dict[str, dict[str, Curve]] = {}
    if completed:
        comparison = compare(client, completed, baselines=baselines)
        completed = [redacted_run(run) for run in with_earlier(client, completed)]
        curves = load_curves(client, completed, RETURN_TAGS, max_points=points_per_curve(len(completed)))
    stories = {run.run_id: list(client.story(run.run_id)) for run in bench.failed}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as unfinished:
        draft = Path(unfinished)
        plots = draw_returns(completed, curves, draft / PLOTS)
        if comparison is not None:
            plots = [*draw_finals(completed, comparison, draft / PLOTS), *plots]
        _write(draft / RUNS, csv_text(run_rows(bench.runs, comparison.runs if comparison else {})))
        _write(draft / GROUPS, csv_text(group_rows(comparison) if comparison else []))
        write_csv(draft / CURVES, curves, completed)
        _write(draft / REPORT, render(bench, comparison, plots, stories, now=time.time()))
        _put_in_place(draft, folder)
    return WrittenReport(folder, comparison)


def plots_in_place(client: TrainerClient, runs: Sequence[pb.Run], folder: Path) -> None:
    """Draw the returns of these runs into a folder, in place of what it held."""
    curves = load_curves(client, runs, RETURN_TAGS, max_points=points_per_curve(len(runs)))
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as unfinished:
        draw_returns(runs, curves, Path(unfinished) / PLOTS)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(Path(unfinished) / PLOTS, folder)


def draw_returns(
    runs: Sequence[pb.Run], curves: Mapping[str, Mapping[str, Curve]], folder: Path
) -> list[Plot]:  # fmt: skip
    """For each environment the return against steps and against time, as PNG and SVG."""
    from gym_gui.services.analytics.drawing import save_figure

    folder.mkdir()
    plots: list[Plot] = []
    colours = SteadyColours(runs)
    for env_id in dict.fromkeys(run.env_id for run in runs):
        own = [run for run in runs if run.env_id == env_id]
        found = [curve for run in own if (curve := return_curve(curves.get(run.run_id, {}))) is not None]
        if not found:
            continue
        smoothing = smoothing_for(found)
        for axis, words in ((Axis.STEP, "steps"), (Axis.TIME, "time")):
            options = FigureOptions(found[0].tag, axis, smoothing, band=Band.CI, title=f"{env_id}: episodic return")
            figure = colours.on(build_figure(own, curves, options))
            if not figure.is_empty:
                stem = f"return-{words}-{file_name(env_id)}"
                for suffix in (".png", ".svg"):
                    save_figure(figure, folder / f"{stem}{suffix}")
                smoothed = f", {smoothing.in_words()} episodes" if smoothing.is_on else ""
                plots.append(Plot(env_id, f"{PLOTS}/{stem}.png", f"return against {words}{smoothed}"))
    return plots


def draw_finals(runs: Sequence[pb.Run], comparison: Comparison, folder: Path) -> list[Plot]:
    """For each environment what every seed reached, as PNG and SVG."""
    colours = SteadyColours(runs)
    plots: list[Plot] = []
    for env_id in dict.fromkeys(group.env_id for group in comparison.groups):
        groups = [group for group in comparison.groups if group.env_id == env_id]
        numbers = {group.key: colours.number(group.run_ids[-1]) for group in groups}
        figure = intervals_of(env_id, comparison, short_labels(groups), numbers)
        if figure.rows:
            stem = f"final-{file_name(env_id)}"
            for kind in ("png", "svg"):
                (folder / f"{stem}.{kind}").write_bytes(interval_picture(figure, kind))
            plots.append(Plot(env_id, f"{PLOTS}/{stem}.png", "final return of every seed"))
    return plots


def smoothing_for(curves: Sequence[Curve]) -> Smoothing:
    """A mean over a window that even the shortest of these curves has several of."""
    shortest = min((len(curve) for curve in curves), default=0)
    return Smoothing.window(max(1, min(_SMOOTHED_EPISODES, shortest // _WINDOWS)))


def file_name(env_id: str) -> str:
    """An environment's id as part of a file's name: `ALE/Pong-v5` → `ALE-Pong-v5`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", env_id).strip(".-") or "environment"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _put_in_place(draft: Path, folder: Path) -> None:
    """Move what was written into the folder, in place of an earlier report; what else lies there stays."""
    folder.mkdir(exist_ok=True)
    shutil.rmtree(folder / PLOTS, ignore_errors=True)
    for made in sorted(draft.iterdir()):
        os.replace(made, folder / made.name)
