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
from typing import TYPE_CHECKING, Any

from mosaic_wire.run_status import RunOutcome, RunStatus

from gym_gui import __version__
from gym_gui.services.analytics.bench_plan import Misfit, tag_of
from gym_gui.services.analytics.comparison import Comparison, Verdict, compare, name_of, short_labels
from gym_gui.services.analytics.configurations import environment_of
from gym_gui.services.analytics.curves import (
    RETURN_TAGS,
    Axis,
    Curve,
    Smoothing,
    load_curves,
    points_per_curve,
    return_curve,
)
from gym_gui.services.analytics.drawing import interval_image, intervals_of
from gym_gui.services.analytics.exporting import bench_group_rows, bench_run_rows, csv_text, write_csv
from gym_gui.services.analytics.figure import Band, FigureOptions, SteadyColors, build_figure
from gym_gui.services.analytics.html_report import redacted_run
from gym_gui.services.analytics.lineage import with_earlier
from gym_gui.services.analytics.published import compared_with_published
from gym_gui.services.analytics.report_templates import markdown_template
from gym_gui.wording.run_view import last_output

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.baselines import Baseline
    from gym_gui.services.trainer.client import TrainerClient

REPORT, RUNS, GROUPS, CURVES, PLOTS = "report.md", "runs.csv", "groups.csv", "curves.csv", "plots"
_SMOOTHED_EPISODES = 100
"""The window of a figure: as many episodes as a final return is the mean of; fewer where a run has few"""
_WINDOWS = 10
_LAST_LINES = 8


@dataclass(frozen=True)
class Bench:
    """A benchmark with the runs it has so far."""

    name: str
    runs: tuple[pb.Run, ...]
    misfits: tuple[Misfit, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    """Cells that the daemon refused, and why"""
    command: str = ""
    """The command that repeats it"""

    @property
    def completed(self) -> list[pb.Run]:
        """Return the runs that completed."""
        return [run for run in self.runs if run.outcome == RunOutcome.COMPLETED]

    @property
    def failed(self) -> list[pb.Run]:
        """Return the runs that failed or were cancelled."""
        return [run for run in self.runs if run.status == RunStatus.TERM and run.outcome != RunOutcome.COMPLETED]

    @property
    def unfinished(self) -> list[pb.Run]:
        """Return the runs that have not ended."""
        return [run for run in self.runs if run.status != RunStatus.TERM]


@dataclass(frozen=True)
class Plot:
    """A plot of the report."""

    environment: str
    file: str
    """Relative to the report; the SVG lies beside the PNG"""
    shows: str


@dataclass(frozen=True)
class WrittenReport:
    """A written report and its comparison."""

    folder: Path
    comparison: Comparison | None
    """None when no run was completed"""


def write_report(
    client: TrainerClient, bench: Bench, folder: Path, *, baselines: Mapping[str, Baseline | None]
) -> WrittenReport:
    """Compare the completed runs, and write the report with its plots."""
    bench = replace(bench, runs=tuple(redacted_run(run) for run in bench.runs))
    completed = bench.completed
    comparison: Comparison | None = None
    curves: dict[str, dict[str, Curve]] = {}
    if completed:
        comparison = compare(client, completed, baselines=baselines)
        completed = [redacted_run(run) for run in with_earlier(client, completed)]
        curves = load_curves(client, completed, RETURN_TAGS, max_points=points_per_curve(len(completed)))
    events = {run.run_id: list(client.history(run.run_id)) for run in bench.failed}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as unfinished:
        draft = Path(unfinished)
        plots = draw_returns(completed, curves, draft / PLOTS)
        if comparison is not None:
            plots = [*draw_finals(completed, comparison, draft / PLOTS), *plots]
        _write(draft / RUNS, csv_text(bench_run_rows(bench.runs, comparison.runs if comparison else {})))
        _write(draft / GROUPS, csv_text(bench_group_rows(comparison) if comparison else []))
        write_csv(draft / CURVES, curves, completed)
        _write(draft / REPORT, render(bench, comparison, plots, events, now=time.time()))
        _put_in_place(draft, folder)
    return WrittenReport(folder, comparison)


def render(
    bench: Bench,
    comparison: Comparison | None,
    plots: Sequence[Plot],
    events: Mapping[str, Sequence[pb.StoryEvent]],
    *,
    now: float,
) -> str:
    """Return the report as Markdown; `events` of the runs that failed."""
    groups = comparison.groups if comparison else ()
    kinds = {"completed": bench.completed, "failed or cancelled": bench.failed, "unfinished": bench.unfinished}
    again = [f"mosaic bench --report-only {bench.name}", f"mosaic runs --tag {tag_of(bench.name)} --all"]
    return markdown_template("bench.md").render(
        bench=bench,
        comparison=comparison,
        environments=[
            _environment(environment, comparison, plots)
            for environment in dict.fromkeys(group.environment for group in groups)
            if comparison
        ],
        published=compared_with_published(comparison) if comparison else [],
        learned_nothing=[group for group in groups if group.learned is Verdict.LEARNED_NOTHING],
        names={run_id: name_of(group) for group in groups for run_id in (*group.run_ids, *group.repeated)},
        counts=[f"{len(runs)} {kind}" for kind, runs in kinds.items() if runs],
        last_output={run.run_id: last_output(events.get(run.run_id, ()), lines=_LAST_LINES)[1] for run in bench.failed},
        commands=[bench.command, *again] if bench.command else again,
        version=__version__,
        now=now,
    )


def _environment(environment: str, comparison: Comparison, plots: Sequence[Plot]) -> dict[str, Any]:
    groups = [group for group in comparison.groups if group.environment == environment]
    labels = short_labels(groups)
    return {
        "environment": environment,
        "groups": groups,
        "labels": labels,
        "pairs": [pair for pair in comparison.improvements if pair.better in labels],
        "baseline": comparison.baselines.get(environment),
        "plots": [plot for plot in plots if plot.environment == environment],
    }


def plots_in_place(client: TrainerClient, runs: Sequence[pb.Run], folder: Path) -> None:
    """Draw the returns of these runs into a folder, in place of what it held."""
    curves = load_curves(client, runs, RETURN_TAGS, max_points=points_per_curve(len(runs)))
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as unfinished:
        draw_returns(runs, curves, Path(unfinished) / PLOTS)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(Path(unfinished) / PLOTS, folder)


def draw_returns(runs: Sequence[pb.Run], curves: Mapping[str, Mapping[str, Curve]], folder: Path) -> list[Plot]:
    """For each environment the return against steps and against time, as PNG and SVG."""
    from gym_gui.services.analytics.drawing import save_figure

    folder.mkdir()
    plots: list[Plot] = []
    colors = SteadyColors(runs)
    for environment in dict.fromkeys(map(environment_of, runs)):
        own = [run for run in runs if environment_of(run) == environment]
        found = [curve for run in own if (curve := return_curve(curves.get(run.run_id, {}))) is not None]
        if not found:
            continue
        smoothing = smoothing_for(found)
        for axis, unit in ((Axis.STEP, "steps"), (Axis.TIME, "time")):
            options = FigureOptions(
                found[0].tag, axis, smoothing, band=Band.CI, title=f"{environment}: episodic return"
            )
            figure = colors.on(build_figure(own, curves, options))
            if not figure.is_empty:
                stem = f"return-{unit}-{file_name(environment)}"
                for suffix in (".png", ".svg"):
                    save_figure(figure, folder / f"{stem}{suffix}")
                smoothed = f", {smoothing.label()} episodes" if smoothing.is_on else ""
                plots.append(Plot(environment, f"{PLOTS}/{stem}.png", f"return against {unit}{smoothed}"))
    return plots


def draw_finals(runs: Sequence[pb.Run], comparison: Comparison, folder: Path) -> list[Plot]:
    """For each environment what every seed reached, as PNG and SVG."""
    colors = SteadyColors(runs)
    plots: list[Plot] = []
    for environment in dict.fromkeys(group.environment for group in comparison.groups):
        groups = [group for group in comparison.groups if group.environment == environment]
        numbers = {group.key: colors.number(group.run_ids[-1]) for group in groups}
        figure = intervals_of(environment, comparison, short_labels(groups), numbers)
        if figure.rows:
            stem = f"final-{file_name(environment)}"
            for kind in ("png", "svg"):
                (folder / f"{stem}.{kind}").write_bytes(interval_image(figure, kind))
            plots.append(Plot(environment, f"{PLOTS}/{stem}.png", "final return of every seed"))
    return plots


def smoothing_for(curves: Sequence[Curve]) -> Smoothing:
    """Return a moving average whose window fits several times into the shortest of these curves."""
    shortest = min((len(curve) for curve in curves), default=0)
    return Smoothing.window(max(1, min(_SMOOTHED_EPISODES, shortest // _WINDOWS)))


def file_name(environment: str) -> str:
    """Return an environment as part of a file name: `ALE/Pong-v5` → `ALE-Pong-v5`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", environment).strip(".-") or "environment"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _put_in_place(draft: Path, folder: Path) -> None:
    """Move the written files into the folder, replacing an earlier report but no other files."""
    folder.mkdir(exist_ok=True)
    shutil.rmtree(folder / PLOTS, ignore_errors=True)
    for made in sorted(draft.iterdir()):
        os.replace(made, folder / made.name)
