"""`mosaic tag | note | rename | priority`: what people write on runs."""

from __future__ import annotations

import sys

import click

from gym_gui.cli.context import Cli, complete_run, find_runs, one_run, pass_cli, some_runs
from gym_gui.cli.control import for_each
from gym_gui.wording.run_view import short_id


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", metavar="RUN... [+TAG | -TAG]...", nargs=-1, required=True, shell_complete=complete_run)
@click.option("--add", multiple=True, metavar="TAG", help="Add a tag; may be repeated.")
@click.option("--remove", multiple=True, metavar="TAG", help="Remove a tag; may be repeated.")
@pass_cli
def tag_command(cli: Cli, /, words: tuple[str, ...], add: tuple[str, ...], remove: tuple[str, ...]) -> int:
    """Add and remove tags: mosaic tag last +baseline -draft."""
    if mistaken := [word for word in words if word.startswith("--")]:
        raise click.UsageError(
            f"there is no option {mistaken[0]}; tags are given as +TAG, -TAG, --add TAG or --remove TAG"
        )
    runs = [word for word in words if word[0] not in "+-"]
    added = [*add, *(word[1:] for word in words if word[0] == "+")]
    removed = [*remove, *(word[1:] for word in words if word[0] == "-")]
    if not runs:
        raise click.UsageError("which run? mosaic tag RUN +tag")
    if not all(added + removed):
        raise click.UsageError("a tag needs a name: +baseline")
    with cli.client() as client:
        code = 0
        for run in find_runs(client, runs):
            after = client.update(run.run_id, add_tags=added, remove_tags=removed) if added or removed else run
            click.echo(f"{short_id(run.run_id)}  {', '.join(after.tags) or '(no tags)'}")
        return code


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


@click.command(context_settings={"ignore_unknown_options": True})
@some_runs
@click.argument("priority", type=click.IntRange(-1000, 1000))
@pass_cli
def priority_command(cli: Cli, /, runs: tuple[str, ...], priority: int) -> int:
    """Give queued runs a priority: higher goes first, equal ones in order of submission."""
    with cli.client() as client:
        return for_each(
            find_runs(client, runs), lambda run: client.update(run.run_id, priority=priority), "change the priority of"
        )[1]
