"""A report and plots in a run's own folder, so that they travel with it when it is exported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gym_gui.cli.compare import find_baselines
from gym_gui.cli.report import commands_of
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

REPORT, PLOTS = "report.html", "plots"


def keep_report(client: TrainerClient, run: pb.Run) -> None:
    """Write `report.html` and `plots/` into the run's folder, in place of those it has."""
    folder = Path(run.run_dir)
    if not run.run_dir or not folder.is_dir():
        raise click.ClickException(
            f"the folder of {short_id(run.run_id)} is not on this machine: --report writes into it. "
            "Export without it, or on the daemon's machine"
        )
    from gym_gui.services.analytics.bench_report import plots_in_place
    from gym_gui.services.analytics.html_report import write_html_report

    baselines = find_baselines(client, [run], measure=False)
    write_html_report(client, [run], folder / REPORT, commands=commands_of([run]), baselines=baselines)
    plots_in_place(client, [run], folder / PLOTS)
