"""`mosaic archive | export | import | delete`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gym_gui.cli.context import Cli, find_runs, one_run, pass_cli, say, some_runs
from gym_gui.cli.control import for_each
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id, title_of


@click.command()
@some_runs
@click.option("--undo", is_flag=True, help="Bring them back into listings.")
@pass_cli
def archive_command(cli: Cli, /, runs: tuple[str, ...], undo: bool) -> int:
    """Hide finished runs from listings; nothing is deleted (`mosaic runs --archived` shows them)."""
    with cli.client() as client:
        return for_each(find_runs(client, runs), lambda run: client.archive(run.run_id, archived=not undo), "archive")[
            1
        ]


@click.command()
@one_run
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, allow_dash=True), metavar="FILE",
    help="Where to (- is standard output).  [default: mosaic-<RUN>.tar.gz]",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@click.option("--report", is_flag=True, help="Put a report and plots of its curves into it.")
@pass_cli
def export_command(cli: Cli, /, run: str, output: Path | None, force: bool, report: bool) -> int:
    """Write a run into an archive file: its story, its logs and its folder.

    Event files, the W&B folder, checkpoints, videos and plots lie in the run's folder, so they are in the archive.
    """
    with cli.client() as client:
        found = client.find(run)
        if report and found.status == "TERM":  # of any other, the daemon says why it cannot be exported
            from gym_gui.cli.kept_report import keep_report

            keep_report(client, found)
        if str(output) == "-":
            if sys.stdout.isatty():
                raise click.UsageError("an archive is not for a terminal; give -o FILE or redirect")
            with client.export(found.run_id) as chunks:
                for chunk in chunks:
                    sys.stdout.buffer.write(chunk.data)
            return 0
        target = output or Path(f"mosaic-{found.run_id}.tar.gz")
        if target.exists() and not force:
            raise click.UsageError(f"{target} exists; --force replaces it")
        size = client.export_to(found.run_id, target)
    click.echo(f"{target}  {formats.size(size)}")
    return 0


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@pass_cli
def import_command(cli: Cli, /, file: Path) -> int:
    """Take a run in from an archive file that `mosaic export` wrote."""
    with cli.client() as client:
        run = client.import_archive(file)
    click.echo(f"{run.run_id}  {title_of(run)}")
    return 0


@click.command()
@some_runs
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_cli
def delete_command(cli: Cli, /, runs: tuple[str, ...], yes: bool) -> int:
    """Remove finished runs with all their files: checkpoints, logs, configs, evaluations."""
    with cli.client() as client:
        found = find_runs(client, runs)
        for run in found:
            click.echo(f"{run.run_id}  {title_of(run)}  {run.name}  {formats.size(run.size_bytes)}", err=True)
        total = formats.size(sum(run.size_bytes for run in found))
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("this cannot be undone; --yes says that you mean it")
            if not click.confirm(f"Delete {formats.plural(len(found), 'run')} ({total}) for good?", err=True):
                say("nothing was deleted")
                return 1
        code, freed = 0, 0
        for run in found:
            try:
                freed += client.delete(run.run_id)
            except DaemonUnreachable:
                raise
            except TrainerError as error:
                say(f"mosaic: cannot delete {short_id(run.run_id)}: {error}")
                code = 1
        say(f"freed {formats.size(freed)}")
        return code
