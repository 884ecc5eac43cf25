"""`mosaic metrics`: the curves of a run, as a table with sparklines or point by point."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from gym_gui.cli.context import Cli, json_option, one_run, pass_cli, say
from gym_gui.cli.listing import Column, write_json, write_table
from gym_gui.wording import formats

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

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
        say(f"{name} has no curves" + (f" called {', '.join(tags)}" if tags else " yet"))
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


def sparkline(steps: Sequence[int], values: Sequence[float], width: int = _SPARK_POINTS) -> str:
    """A curve in one line: the mean of each stretch of steps."""
    known = [(step, value) for step, value in zip(steps, values, strict=True) if math.isfinite(value)]
    if len(known) < 2:
        return ""
    first, span = known[0][0], max(1, known[-1][0] - known[0][0])
    stretches: list[list[float]] = [[] for _ in range(width)]
    for step, value in known:
        stretches[min(width - 1, max(0, (step - first) * width // span))].append(value)
    means = [sum(stretch) / len(stretch) if stretch else None for stretch in stretches]
    present = [mean for mean in means if mean is not None]
    low, reach = min(present), (max(present) - min(present)) or 1.0
    return "".join(" " if mean is None else _BARS[int((mean - low) / reach * (len(_BARS) - 1))] for mean in means)


def _print_points(client: TrainerClient, run_id: str, tags: Sequence[str], points: int, follow: bool) -> int:
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(("tag", "step", "wall_time", "value"))
    try:
        with client.metrics(run_id, tags, max_points=points, follow=follow) as stream:
            for update in stream:
                for curve in update.curves:
                    rows = zip(curve.steps, curve.wall_times, curve.values, strict=True)
                    out.writerows((curve.tag, *row) for row in rows)
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
