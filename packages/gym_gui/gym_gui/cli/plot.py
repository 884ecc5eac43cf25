"""`mosaic plot | metrics`: curves of runs as an image, a table of points, or here in the terminal."""

from __future__ import annotations

import csv
import math
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gym_gui.cli.context import Cli, json_option, notify, one_run, pass_cli, style, use_color
from gym_gui.cli.listing import Column, check_target, force_option, write_json, write_table
from gym_gui.cli.progress import reconnecting
from gym_gui.cli.selection import Selection, notify_left_out, run_selection, select_runs
from gym_gui.wording import formats
from gym_gui.wording.formats import one_line

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.curves import Curve
    from gym_gui.services.analytics.figure import Figure, FigureOptions
    from gym_gui.services.trainer.client import RpcStream, TrainerClient

_IMAGES = (".png", ".svg", ".pdf")
_TABLES = (".csv", ".parquet")
_SMOOTH = 0.9
_MOST_TAGS = 30
_MOST_LISTED = 20


class Size(click.ParamType[tuple[int, int]]):
    """Width and height in pixels: 960x540."""

    name = "WxH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d{2,5})[x×X](\d{2,5})", str(value).strip())
        if match is None or min(int(match[1]), int(match[2])) < 200 or max(int(match[1]), int(match[2])) > 10_000:
            self.fail(f"expected width and height such as 960x540, from 200 to 10000, not {value!r}", param, ctx)
        return int(match[1]), int(match[2])


_AXIS = click.Choice(["step", "time", "episode"])


@click.command()
@run_selection
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="TAG",
    help="The curve, or a pattern ('losses/*'); may be repeated.  [default: the return]",
)
@click.option("--x", "axis", type=_AXIS, default="step", show_default=True, help="What it is drawn against.")
@click.option(
    "--smooth",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="W",
    help=f"Weight of the past in a moving average; 0: none.  [default: {_SMOOTH}]",
)
@click.option("--window", type=click.IntRange(min=1), metavar="N", help="The mean of the last N points instead.")
@click.option(
    "--group/--no-group",
    "grouped",
    default=True,
    show_default=True,
    help="Runs that differ only in their seed are one line.",
)
@click.option(
    "--band",
    type=click.Choice(["std", "ci", "iqm", "none"]),
    default="std",
    show_default=True,
    help="Around it: deviation, 95 % bootstrap interval, or interquartile mean and interval.",
)
@click.option("--log-x", is_flag=True, help="Logarithmic x axis.")
@click.option("--log-y", is_flag=True, help="Logarithmic y axis.")
@click.option("--title", default="", help="Title of the figure.")
@click.option("--dark", is_flag=True, help="Light on dark.")
@click.option("--size", type=Size(), default=(960, 540), metavar="WxH", help="In pixels.  [default: 960x540]")
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="An image (.png, .svg, .pdf), or the points (.csv, .parquet).  [default: a sketch]",
)
@force_option
@pass_cli
def plot_command(cli: Cli, /, **options: Any) -> int:
    """Draw curves of runs; those that differ only in their seed become one line with a band, each seed once.

    Without --out a sketch is printed. CSV and Parquet files hold every point, without smoothing.
    """
    from gym_gui.services.analytics.configurations import environment_of
    from gym_gui.services.analytics.lineage import missing_note, with_earlier

    selection = Selection.pop_from(options)
    out: Path | None = options["out"]
    _check_out(out)
    figure_options = _figure_options(options)
    with cli.client() as client:
        chosen = select_runs(client, selection)
        runs = with_earlier(client, chosen)
        if note := missing_note(runs):
            notify(note)
        tags = _tags(client, runs, options["tags"])
        if out is not None and out.suffix.lower() in _TABLES:
            check_target(out, force=options["force"])
            return _write_points(client, runs, tags, out)
        curves = _load(client, runs, tags, figure_options)
    environments = list(dict.fromkeys(map(environment_of, chosen)))
    if len(environments) > 1:
        notify(f"{len(environments)} environments: a figure for each, as their axes differ (--env draws one)")
    for tag in tags:
        for environment in environments:
            here, ours = ([run for run in some if environment_of(run) == environment] for some in (runs, chosen))
            endings = [tag] * (len(tags) > 1) + [environment] * (len(environments) > 1)
            _show(tag, here, ours, curves, figure_options, options, endings)
    return 0


def _check_out(out: Path | None) -> None:
    if out is None:
        return
    if out.suffix.lower() not in (*_IMAGES, *_TABLES):
        raise click.UsageError(f"--out: a file ends in {', '.join((*_IMAGES, *_TABLES))}; {out.name!r} does not")
    check_target(out, force=True)  # what it is called in the end is known with the figures


def _figure_options(options: Mapping[str, Any]) -> FigureOptions:
    from gym_gui.services.analytics.curves import Axis, Smoothing
    from gym_gui.services.analytics.figure import Band, FigureOptions

    if options["window"] is not None and options["smooth"] is not None:
        raise click.UsageError("--smooth and --window are two ways to smooth; choose one")
    if options["window"] is not None:
        smoothing = Smoothing.window(options["window"])
    else:
        smoothing = Smoothing.ema(_SMOOTH if options["smooth"] is None else options["smooth"])
    return FigureOptions(
        axis=Axis(options["axis"]),
        smoothing=smoothing,
        grouped=options["grouped"],
        band=Band(options["band"]),
        log_x=options["log_x"],
        log_y=options["log_y"],
        title=options["title"],
    )


def _tags(client: TrainerClient, runs: Sequence[pb.Run], patterns: Sequence[str]) -> list[str]:
    """Return the tags these patterns mean; raise UsageError with those there are when it is none."""
    from gym_gui.services.analytics.curves import RETURN_TAGS

    if not patterns:
        return [RETURN_TAGS[0]]
    if not any(set(pattern) & set("*?[") for pattern in patterns):
        return list(dict.fromkeys(patterns))
    from fnmatch import fnmatchcase

    known = sorted({entry.tag for run in runs for entry in client.metric_tags(run.run_id)})
    found = [tag for tag in known if any(fnmatchcase(tag, pattern) for pattern in patterns)]
    if not found:
        raise click.UsageError(f"no curve is called {' or '.join(patterns)}{_offer(known)}")
    if len(found) > _MOST_TAGS:
        raise click.UsageError(f"{len(found)} curves fit, at most {_MOST_TAGS} are drawn at once; choose some")
    return found


def _offer(known: Sequence[str]) -> str:
    return (
        f"; there are {', '.join(known[:20])}{' …' if len(known) > 20 else ''}" if known else "; the runs have none yet"
    )


def _load(
    client: TrainerClient, runs: Sequence[pb.Run], tags: Sequence[str], figure_options: FigureOptions
) -> dict[str, dict[str, Curve]]:
    from gym_gui.services.analytics.curves import RETURN_TAGS, Axis, load_curves, points_per_curve

    requested = [*tags, *(RETURN_TAGS if RETURN_TAGS[0] in tags else ())]
    curves = load_curves(
        client,
        runs,
        requested,
        max_points=points_per_curve(len(runs) * len(tags)),
        episodes=figure_options.axis is Axis.EPISODE,
    )
    if not any(len(curve) for own in curves.values() for curve in own.values()):
        known = sorted({entry.tag for run in runs for entry in client.metric_tags(run.run_id)})
        what = "a return" if tags == [RETURN_TAGS[0]] else f"a curve {' or '.join(tags)}"
        raise click.ClickException(f"none of {formats.plural(len(runs), 'run')} has {what}{_offer(known)}")
    return curves


def _write_points(client: TrainerClient, runs: Sequence[pb.Run], tags: Sequence[str], out: Path) -> int:
    from gym_gui.services.analytics.curves import RETURN_TAGS, load_curves, return_curve
    from gym_gui.services.analytics.exporting import MissingPackage, write_csv, write_parquet

    requested = [*tags, *(RETURN_TAGS if RETURN_TAGS[0] in tags else ())]
    curves = load_curves(client, runs, requested, max_points=None)
    if tags == [RETURN_TAGS[0]]:  # of the names a return has, the one that is drawn
        chosen = {run_id: return_curve(own) for run_id, own in curves.items()}
        curves = {run_id: {curve.tag: curve} if curve is not None else {} for run_id, curve in chosen.items()}
    write = write_csv if out.suffix.lower() == ".csv" else write_parquet
    try:
        written = write(out, curves, runs)
    except MissingPackage as error:
        raise click.ClickException(str(error)) from None
    notify_left_out([run for run in runs if not curves[run.run_id]], "these curves")
    click.echo(f"{out}  {formats.plural(written, 'point')} of {formats.plural(len(runs), 'run')}")
    return 0


def _show(
    tag: str,
    runs: Sequence[pb.Run],
    chosen: Sequence[pb.Run],
    curves: Mapping[str, Mapping[str, Curve]],
    figure_options: FigureOptions,
    options: Mapping[str, Any],
    endings: Sequence[str],
) -> None:
    from dataclasses import replace

    from gym_gui.services.analytics.figure import build_figure
    from gym_gui.services.analytics.lineage import unfinished_note

    figure = build_figure(runs, curves, replace(figure_options, tag=tag))
    drawn = {run_id for line in figure.lines for run_id in line.run_ids}
    missing = [run for run in chosen if run.run_id not in drawn and run.run_id not in figure.repeated]
    notify_left_out(missing, f"a curve {tag}")
    if figure.is_empty:
        return
    going = unfinished_note([run for run in chosen if run.run_id in drawn])
    figure = replace(figure, note=" · ".join(filter(None, (figure.note, going))))
    out: Path | None = options["out"]
    if out is None:
        _print_sketch(figure)
        return
    from gym_gui.services.analytics.drawing import save_figure

    target = out.with_stem("-".join((out.stem, *(re.sub(r"[^\w.]+", "-", ending) for ending in endings))))
    check_target(target, force=options["force"])
    save_figure(figure, target, size=options["size"], dark=options["dark"])
    lines = sum(not line.is_faint for line in figure.lines)
    click.echo(f"{target}  {formats.plural(lines, 'line')} of {formats.plural(len(drawn), 'run')}")


def _print_sketch(figure: Figure) -> None:
    from gym_gui.services.analytics.drawing import COLORS, mark_of, sketch, visible

    color = use_color()

    def colored(text: str, owner: int | None) -> str:
        return style(text, fg=COLORS[owner % len(COLORS)]) if color and owner is not None else text

    width = min(120, shutil.get_terminal_size().columns) if sys.stdout.isatty() else 80
    title = style(one_line(figure.title), bold=True)
    click.echo(title + (f"  ({figure.note})" if figure.note else ""))
    for row in sketch(figure, width=width):
        spans = groupby(row, key=lambda cell: cell[1])
        click.echo("".join(colored("".join(text for text, _ in cells), owner) for owner, cells in spans).rstrip())
    lines = visible(figure)
    for index, line in enumerate(lines[:_MOST_LISTED]):
        end = formats.quantity(float(line.y[-1]))
        click.echo(f"  {colored(mark_of(index), index)}  {one_line(line.label)}, ends at {end}")
    if len(lines) > _MOST_LISTED:
        click.echo(f"     … and {len(lines) - _MOST_LISTED} more")
    if sys.stdout.isatty():
        notify("--out plot.png draws it properly")


# ---------------------------------------------------------------- metrics


_BARS = "▁▂▃▄▅▆▇█"
_SPARK_POINTS = 24


@click.command()
@one_run
@click.argument("tags", metavar="[TAG]...", nargs=-1)
@click.option("-f", "--follow", is_flag=True, help="Print points as they come, until the run ends.")
@click.option("--csv", "as_csv", is_flag=True, help="Print every point: tag, step, wall time, value.")
@click.option("--points", type=click.IntRange(min=1), metavar="N", help="At most about N points a curve.")
@json_option
@pass_cli
def metrics_command(
    cli: Cli, /, run: str, tags: tuple[str, ...], follow: bool, as_csv: bool, points: int | None, as_json: bool
) -> int:
    """The curves of a run. TAG may be a pattern ('losses/*'); without one, all of them.

    By default a table with the last values. --csv and --json print the points, all of them unless --points says how
    many: then a curve is thinned so that its highest and lowest points stay.
    """
    with cli.client() as client:
        run_id = client.find(run).run_id
        if follow or as_csv:
            return _print_points(client, run_id, tags, points or -1, follow)
        if as_json:
            return _print_json(client, run_id, tags, points or -1)
        return _print_table(client, run_id, tags, run)


def _print_table(client: TrainerClient, run_id: str, tags: Sequence[str], name: str) -> int:
    curves: dict[str, pb.MetricCurve] = {}
    with client.metrics(run_id, tags, max_points=8 * _SPARK_POINTS) as stream:
        for update in stream:
            curves |= {curve.tag: curve for curve in update.curves}
    if not curves:
        notify(f"{name} has no curves" + (f" called {', '.join(tags)}" if tags else " yet"))
        return 1 if tags else 0
    rows = [curves[tag] for tag in sorted(curves)]
    write_table(
        [
            Column("CURVE", [curve.tag for curve in rows]),
            Column("LAST", [f"{curve.values[-1]:.5g}" for curve in rows], right=True),
            Column("LOWEST", [f"{_extremes(curve.values)[0]:.5g}" for curve in rows], right=True, optional=2),
            Column("HIGHEST", [f"{_extremes(curve.values)[1]:.5g}" for curve in rows], right=True, optional=2),
            Column("STEP", [formats.count(curve.steps[-1]) for curve in rows], right=True),
            Column("POINTS", [formats.count(curve.total) for curve in rows], right=True, optional=1),
            Column("", [sparkline(curve.steps, curve.values) for curve in rows]),
        ]
    )
    return 0


def _extremes(values: Sequence[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)] or [math.nan]
    return min(finite), max(finite)


def sparkline(steps: Sequence[int], values: Sequence[float]) -> str:
    """Return a curve in one line: the mean of each bucket."""
    known = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    if len(known) < 2:
        return ""
    first, span = known[0][0], max(1, known[-1][0] - known[0][0])
    buckets: list[list[float]] = [[] for _ in range(_SPARK_POINTS)]
    for step, value in known:
        buckets[min(_SPARK_POINTS - 1, max(0, (step - first) * _SPARK_POINTS // span))].append(value)
    means = [sum(bucket) / len(bucket) if bucket else None for bucket in buckets]
    present = [mean for mean in means if mean is not None]
    low, reach = min(present), (max(present) - min(present)) or 1.0
    return "".join(" " if mean is None else _BARS[int((mean - low) / reach * (len(_BARS) - 1))] for mean in means)


def _print_points(client: TrainerClient, run_id: str, tags: Sequence[str], points: int, follow: bool) -> int:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("tag", "step", "wall_time", "value"))
    newest: dict[str, tuple[int, float]] = {}
    printed: dict[str, tuple[int, float]] = {}

    def opened() -> RpcStream[pb.RunMetrics]:
        printed.update(newest)  # after a break, everything is sent again
        return client.metrics(run_id, tags, max_points=points, follow=follow)

    try:
        for update in reconnecting(opened, notify):
            for curve in update.curves:
                rows, before = zip(curve.steps, curve.wall_times, curve.values, strict=True), printed.get(curve.tag)
                new = [row for row in rows if before is None or row[:2] > before]
                out.writerows((curve.tag, *row) for row in new)
                if new:
                    newest[curve.tag] = new[-1][:2]
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    return 0


def _print_json(client: TrainerClient, run_id: str, tags: Sequence[str], points: int) -> int:
    with client.metrics(run_id, tags, max_points=points) as stream:
        write_json(
            {
                "tag": curve.tag,
                "total": curve.total,
                "steps": list(curve.steps),
                "wall_times": list(curve.wall_times),
                "values": [value if math.isfinite(value) else None for value in curve.values],
            }
            for update in stream
            for curve in update.curves
        )
    return 0
