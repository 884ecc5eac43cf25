"""`mosaic report`: runs as one HTML page that can be read anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gym_gui.cli.compare import find_baselines
from gym_gui.cli.context import Cli, pass_cli, say
from gym_gui.cli.selecting import Selection, run_selection, select_runs
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

MOST_RUNS = 200
"""Of a page that somebody still reads"""


@click.command()
@run_selection
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.html",
    help="Where to.  [default: mosaic-report-<RUN>.html]",
)  # fmt: skip
@click.option("--title", default="", help="Heading of the page.")
@click.option("--no-baseline", is_flag=True, help="Measure no random policy; use what is known.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@pass_cli
def report_command(cli: Cli, /, out: Path | None, title: str, no_baseline: bool, force: bool, **options: Any) -> int:
    """Write a report of RUNs, or of those that the conditions find, as one HTML file.

    It needs no network, no script and nothing beside it: summary, curves, comparison, parameters, failures, story,
    machine and versions, files, and how to do it again. Small videos are in it, larger ones linked.
    """
    selection = Selection.take(options)
    with cli.client() as client:
        runs = select_runs(client, selection, with_failed=True)
        if len(runs) > MOST_RUNS:
            raise click.UsageError(f"a report has at most {MOST_RUNS} runs; these are {len(runs):,}")
        target = out or Path(f"mosaic-report-{_name(runs, selection)}.html")
        _check(target, force=force)
        from gym_gui.services.analytics.html_report import write_html_report

        baselines = find_baselines(client, runs, measure=not no_baseline)
        size = write_html_report(client, runs, target, commands=commands_of(runs), baselines=baselines, title=title)
    click.echo(f"{target}  {formats.size(size)}")
    return 0


def _check(target: Path, *, force: bool) -> None:
    if target.exists() and not force:
        raise click.UsageError(f"{target} exists; --force replaces it")
    if not target.absolute().parent.is_dir():
        raise click.UsageError(f"there is no folder {target.absolute().parent}")


def _name(runs: Sequence[pb.Run], selection: Selection) -> str:
    if len(runs) == 1 or not selection.run_tags:
        return short_id(runs[0].run_id)
    from gym_gui.services.analytics.bench_report import file_name

    return file_name(selection.run_tags[0])


def commands_of(runs: Sequence[pb.Run]) -> dict[str, str]:
    """What does each run again, where its config can be read here."""
    from gym_gui.ui.runs.run_command import command_of_run

    commands = {}
    for run in runs:
        try:
            commands[run.run_id] = command_of_run(run).text
        except (OSError, ValueError) as error:
            say(f"mosaic: how {short_id(run.run_id)} is done again is left out: {error}")
    return commands
