"""`mosaic archive | export | import | delete | tag | note | rename | priority`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.run_status import RunStatus
from mosaic_wire.sweep_settings import WORKER_TYPE

from gym_gui.cli.context import Cli, complete_run, find_runs, notify, one_run, pass_cli, some_runs
from gym_gui.cli.control import for_each
from gym_gui.cli.listing import check_target, force_option
from gym_gui.cli.selection import Selection, run_conditions, runs_to_change, select_to_change
from gym_gui.services.trainer.errors import AmbiguousRunId, DaemonUnreachable, RunNotFound, TrainerError
from gym_gui.wording import formats
from gym_gui.wording.formats import one_line
from gym_gui.wording.run_view import SHORT_ID, continued_by, short_id, title_of

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
    selection = replace(Selection.pop_from(options), archived=undo)
    verb, done = ("bring back", "brought back") if undo else ("archive", "archived")
    with cli.client() as client:
        found = select_to_change(
            client,
            selection,
            verb,
            yes=yes,
            fits=lambda run: run.archived if undo else run.status == RunStatus.TERM,
            unfit="not archived" if undo else _UNFINISHED,
        )
        return for_each(found, lambda run: client.archive(run.run_id, archived=not undo), verb, done)[1]


@click.command()
@one_run
@click.option(
    "-o",
    "--output",
    "--out",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Where to (- is standard output).  [default: mosaic-<RUN>.tar.gz]",
)
@force_option
@click.option("--report", is_flag=True, help="Put a report and plots of its curves into it.")
@click.option("--with-earlier", is_flag=True, help="Also each run that it continues, into a file of its own beside it.")
@click.option(
    "--episodes",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Instead: its recorded episodes, as .npz; conversations with a model as .jsonl.",
)
@click.option("--min-return", type=float, metavar="X", help="With --episodes: those that earned at least this.")
@pass_cli
def export_command(
    cli: Cli,
    /,
    run: str,
    output: Path | None,
    force: bool,
    report: bool,
    with_earlier: bool,
    episodes: Path | None,
    min_return: float | None,
) -> int:
    """Write a run into an archive file: its history, its logs and its folder.

    Event files, the W&B folder, checkpoints, videos and plots lie in the run's folder, so they are in the archive.
    """
    with cli.client() as client:
        found = client.find(run)
        if episodes is not None:
            check_target(episodes, force=force)
            return _export_episodes(client, found, episodes, min_return)
        if report and found.status == RunStatus.TERM:  # for any other run the daemon reports why it cannot be exported
            from gym_gui.cli.compare import keep_report

            keep_report(client, found)
        if str(output) == "-":
            if sys.stdout.isatty() or with_earlier:
                what = "several archives are files" if with_earlier else "an archive is not for a terminal"
                raise click.UsageError(f"{what}; give -o FILE or redirect")
            with client.export(found.run_id) as chunks:
                for chunk in chunks:
                    sys.stdout.buffer.write(chunk.data)
        else:
            _export_files(client, found, output or Path(f"mosaic-{found.run_id}.tar.gz"), force, with_earlier)
        if found.HasField("parent") and not with_earlier:
            needed = f"export run {found.parent.run_id}, too, which it continues (--with-earlier does)"
            notify(f"the beginning of its curves is not in it: {needed}")
    return 0


def _export_episodes(client: TrainerClient, run: pb.Run, target: Path, min_return: float | None) -> int:
    from gym_gui.ui.play.recorded import export_conversations, export_npz, read_episodes

    if target.suffix not in (".npz", ".jsonl"):
        raise click.UsageError(f"--episodes {target}: the file has to end with .npz or .jsonl")
    known = [episode for episode in read_episodes(client, run.run_id) if episode.ended_by]
    chosen = [episode for episode in known if min_return is None or episode.total >= min_return]
    if not chosen:
        raise click.UsageError(f"run {run.run_id} has no such episode: {len(known)} are recorded and finished")
    about = {"env_id": run.env_id, "run_id": run.run_id}
    if target.suffix == ".jsonl":
        count = export_conversations(target, chosen, about)
        if not count:
            target.unlink()
            raise click.UsageError(f"no language model played in run {run.run_id}; export its episodes as .npz")
    else:
        count = len(chosen)
        export_npz(target, chosen, about)
    click.echo(f"{target}  {formats.plural(count, 'episode')}")
    return 0


def _export_files(client: TrainerClient, run: pb.Run, target: Path, force: bool, with_earlier: bool) -> None:
    targets = {run.run_id: target}
    if with_earlier:
        from gym_gui.services.analytics import lineage

        earlier = lineage.with_earlier(client, [run])[1:]
        targets |= {each.run_id: target.with_name(f"mosaic-{each.run_id}.tar.gz") for each in earlier}
    for file in targets.values():
        check_target(file, force=force)
    for run_id, file in targets.items():
        click.echo(f"{file}  {formats.size(client.export_to(run_id, file))}")


@click.command()
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@pass_cli
def import_command(cli: Cli, /, files: tuple[Path, ...]) -> int:
    """Import runs from archive files that `mosaic export` wrote."""
    with cli.client() as client:
        runs = []
        for file in files:
            runs.append(client.import_archive(file))
            click.echo(f"{runs[-1].run_id}  {title_of(runs[-1])}")
        from gym_gui.services.analytics import lineage

        if note := lineage.missing_note(lineage.with_earlier(client, runs)):
            notify(f"{note}; import its archive, too")
    return 0


@click.command()
@runs_to_change
@pass_cli
def delete_command(cli: Cli, /, yes: bool, **options: Any) -> int:
    """Remove finished runs with all their files: checkpoints, logs, configs, evaluations."""
    selection = Selection.pop_from(options)
    with cli.client() as client:
        found = select_to_change(
            client,
            selection,
            "delete",
            yes=yes,
            fits=lambda run: run.status == RunStatus.TERM,
            unfit=_UNFINISHED,
            for_good=True,
            warning=lambda runs: _continued_note(client, runs),
        )
        code, freed = 0, 0
        for number, run in enumerate(found):
            try:
                freed += client.delete(run.run_id)
            except DaemonUnreachable:
                notify(f"deleted {number} of {formats.plural(len(found), 'run')}; the same command deletes the rest")
                raise
            except TrainerError as error:
                notify(f"mosaic: cannot delete {short_id(run.run_id)}: {error}")
                code = 1
        notify(f"freed {formats.size(freed)}")
        for tag in (f"sweep:{run.run_id}" for run in found if run.worker_type == WORKER_TYPE):
            if left := client.list(tags=[tag], include_archived=True, limit=1).matching:
                count = formats.plural(left, "run")
                notify(f"its trials are still there ({count}); `mosaic delete --tag {tag}` deletes them, too")
        return code


def _continued_note(client: TrainerClient, runs: Sequence[pb.Run]) -> str:
    """Return a sentence about other runs that continue these; empty for none."""
    left = continued_by(runs, client.list(include_archived=True).runs if runs else ())
    what = "it" if len(runs) == 1 else "them"
    if len(left) == 1:
        return f"1 run continues {what} and loses the beginning of its curves: {left[0]}"
    return f"{len(left)} runs continue {what} and lose the beginning of their curves: {', '.join(left)}" if left else ""


# ---------------------------------------------------------------- names, notes, tags and priorities


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", metavar="[RUN]... [TAG | +TAG | -TAG]...", nargs=-1, shell_complete=complete_run)
@click.option("--add", multiple=True, metavar="TAG", help="Add a tag; may be repeated.")
@click.option("--remove", multiple=True, metavar="TAG", help="Remove a tag; may be repeated.")
@run_conditions(short=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_cli
def tag_command(
    cli: Cli, /, arguments: tuple[str, ...], add: tuple[str, ...], remove: tuple[str, ...], yes: bool, **options: Any
) -> int:
    """Add and remove tags.

    \b
      mosaic tag last good
      mosaic tag RUN RUN +baseline -draft
      mosaic tag --algo ppo --env CartPole-v1 good
    """
    if mistaken := [argument for argument in arguments if argument.startswith("--")]:
        raise click.UsageError(
            f"there is no option {mistaken[0]}; tags are given as +TAG, -TAG, --add TAG or --remove TAG"
        )
    plain = [argument for argument in arguments if argument[:1] not in ("+", "-")]
    added = [*add, *(argument[1:] for argument in arguments if argument[:1] == "+")]
    removed = [*remove, *(argument[1:] for argument in arguments if argument[:1] == "-")]
    if not all(added + removed):
        raise click.UsageError("a tag needs a name: +baseline")
    selection = Selection.pop_from(options)
    with cli.client() as client:
        if not (added or removed):
            # `tag RUN good`: the first argument is a run, as is every other that is an id.
            first = 0 if selection.narrows else 1
            is_id = [number < first or _is_id(client, argument) for number, argument in enumerate(plain)]
            added = [argument for argument, is_run in zip(plain, is_id, strict=True) if not is_run]
            plain = [argument for argument, is_run in zip(plain, is_id, strict=True) if is_run]
        selection = replace(selection, runs=tuple(plain))
        for run in select_to_change(client, selection, "tag", yes=yes, fits=lambda run: True, unfit=""):
            after = client.update(run.run_id, add_tags=added, remove_tags=removed) if added or removed else run
            click.echo(f"{short_id(run.run_id)}  {one_line(', '.join(after.tags)) or '(no tags)'}")
    return 0


def _is_id(client: TrainerClient, argument: str) -> bool:
    """Return whether it is the id of a run as listings show it; shorter arguments are tags."""
    if len(argument) < SHORT_ID or not argument.isalnum():
        return False
    try:
        return client.find(argument).run_id.endswith(argument.upper())
    except (RunNotFound, AmbiguousRunId):
        return False


@click.command()
@one_run
@click.argument("text", nargs=-1)
@click.option("--append", is_flag=True, help="Add to the note instead of replacing it.")
@click.option("--clear", is_flag=True, help="Remove the note.")
@pass_cli
def note_command(cli: Cli, /, run: str, text: tuple[str, ...], append: bool, clear: bool) -> int:
    """Write a note on a run (TEXT `-` reads standard input); without TEXT, print it."""
    note = sys.stdin.read().rstrip("\n") if text == ("-",) else " ".join(text)
    if clear and note:
        raise click.UsageError("give a text or --clear, not both")
    with cli.client() as client:
        found = client.find(run)
        if not note and not clear:
            click.echo(found.notes, nl=bool(found.notes))
            return 0
        if append and found.notes:
            note = f"{found.notes}\n{note}"
        client.update(found.run_id, notes=note)
    return 0


@click.command()
@one_run
@click.argument("name")
@pass_cli
def rename_command(cli: Cli, /, run: str, name: str) -> int:
    """Give a run a name."""
    with cli.client() as client:
        found = client.find(run)
        click.echo(f"{short_id(found.run_id)}  {client.update(found.run_id, name=name).name}")
    return 0


class Priority(click.IntRange):
    """The last argument of the command."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).lstrip("+-").isdigit():
            self.fail(f"the priority comes last, a whole number such as 5; {value!r} is none", param, ctx)
        return super().convert(value, param, ctx)


@click.command(context_settings={"ignore_unknown_options": True})
@some_runs
@click.argument("priority", type=Priority(-1000, 1000))
@pass_cli
def priority_command(cli: Cli, /, runs: tuple[str, ...], priority: int) -> int:
    """Give queued runs a priority: higher goes first, equal ones in order of submission."""
    with cli.client() as client:
        return for_each(
            find_runs(client, runs), lambda run: client.update(run.run_id, priority=priority), "change the priority of"
        )[1]
