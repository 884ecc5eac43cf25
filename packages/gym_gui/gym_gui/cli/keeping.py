"""`mosaic archive | export | import | delete`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.sweep_settings import WORKER_TYPE

from gym_gui.cli.context import Cli, one_run, pass_cli, say
from gym_gui.cli.control import for_each
from gym_gui.cli.selecting import Selection, runs_to_change, select_to_change
from gym_gui.services.trainer.errors import DaemonUnreachable, TrainerError
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id, title_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

_UNFINISHED = "not finished"


@click.command()
@runs_to_change
@click.option("--undo", is_flag=True, help="Bring them back into listings.")
@pass_cli
def archive_command(cli: Cli, /, undo: bool, yes: bool, **options: Any) -> int:
    """Hide finished runs from listings; nothing is deleted (`mosaic runs --archived` shows them)."""
    selection = replace(Selection.take(options), archived=undo)
    verb, done = ("bring back", "brought back") if undo else ("archive", "archived")
    with cli.client() as client:
        found = select_to_change(
            client, selection, verb, yes=yes,
            fits=lambda run: run.archived if undo else run.status == "TERM",
            unfit="not archived" if undo else _UNFINISHED,
        )  # fmt: skip
        return for_each(found, lambda run: client.archive(run.run_id, archived=not undo), verb, done)[1]


@click.command()
@one_run
@click.option(
    "-o", "--output", "--out", type=click.Path(path_type=Path, allow_dash=True), metavar="FILE",
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
@runs_to_change
@pass_cli
def delete_command(cli: Cli, /, yes: bool, **options: Any) -> int:
    """Remove finished runs with all their files: checkpoints, logs, configs, evaluations."""
    selection = Selection.take(options)
    with cli.client() as client:
        found = select_to_change(
            client, selection, "delete", yes=yes, fits=lambda run: run.status == "TERM", unfit=_UNFINISHED,
            for_good=True, warning=lambda runs: _continued_note(client, runs),
        )  # fmt: skip
        code, freed = 0, 0
        for number, run in enumerate(found):
            try:
                freed += client.delete(run.run_id)
            except DaemonUnreachable:
                say(f"deleted {number} of {formats.plural(len(found), 'run')}; the same command deletes the rest")
                raise
            except TrainerError as error:
                say(f"mosaic: cannot delete {short_id(run.run_id)}: {error}")
                code = 1
        say(f"freed {formats.size(freed)}")
        for tag in (f"sweep:{run.run_id}" for run in found if run.worker_type == WORKER_TYPE):
            if left := client.list(tags=[tag], include_archived=True, limit=1).matching:
                count = formats.plural(left, "run")
                say(f"its trials are still there ({count}); `mosaic delete --tag {tag}` deletes them, too")
        return code


def _continued_note(client: TrainerClient, runs: Sequence[pb.Run]) -> str:
    """Say which other runs continue these; empty for none."""
    chosen = {run.run_id for run in runs}
    listed = client.list(include_archived=True).runs if chosen else ()
    left = [run.run_id for run in listed if run.parent.run_id in chosen and run.run_id not in chosen]
    what = "it" if len(chosen) == 1 else "them"
    if len(left) == 1:
        return f"1 run continues {what} and loses the beginning of its curves: {left[0]}"
    return f"{len(left)} runs continue {what} and lose the beginning of their curves: {', '.join(left)}" if left else ""
