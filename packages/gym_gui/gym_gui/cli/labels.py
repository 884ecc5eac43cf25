"""`mosaic tag | note | rename | priority`: what people write on runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from gym_gui.cli.context import Cli, complete_run, find_runs, one_run, pass_cli, some_runs
from gym_gui.cli.control import for_each
from gym_gui.cli.selecting import Selection, run_conditions, select_to_change
from gym_gui.services.trainer.errors import AmbiguousRunId, RunNotFound
from gym_gui.wording.plain_text import one_line
from gym_gui.wording.run_view import SHORT_ID, short_id

if TYPE_CHECKING:
    from gym_gui.services.trainer.client import TrainerClient


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", metavar="[RUN]... [TAG | +TAG | -TAG]...", nargs=-1, shell_complete=complete_run)
@click.option("--add", multiple=True, metavar="TAG", help="Add a tag; may be repeated.")
@click.option("--remove", multiple=True, metavar="TAG", help="Remove a tag; may be repeated.")
@run_conditions(short=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_cli
def tag_command(
    cli: Cli, /, words: tuple[str, ...], add: tuple[str, ...], remove: tuple[str, ...], yes: bool, **options: Any
) -> int:
    """Add and remove tags.

    \b
      mosaic tag last good
      mosaic tag RUN RUN +baseline -draft
      mosaic tag --algo ppo --env CartPole-v1 good
    """
    if mistaken := [word for word in words if word.startswith("--")]:
        raise click.UsageError(
            f"there is no option {mistaken[0]}; tags are given as +TAG, -TAG, --add TAG or --remove TAG"
        )
    plain = [word for word in words if word[:1] not in ("+", "-")]
    added = [*add, *(word[1:] for word in words if word[:1] == "+")]
    removed = [*remove, *(word[1:] for word in words if word[:1] == "-")]
    if not all(added + removed):
        raise click.UsageError("a tag needs a name: +baseline")
    selection = Selection.take(options)
    with cli.client() as client:
        if not (added or removed):
            # `tag RUN good`: the first word is a run, as is every other that is an id.
            first = 0 if selection.narrows else 1
            is_id = [number < first or _is_id(client, word) for number, word in enumerate(plain)]
            added = [word for word, is_run in zip(plain, is_id, strict=True) if not is_run]
            plain = [word for word, is_run in zip(plain, is_id, strict=True) if is_run]
        selection = replace(selection, runs=tuple(plain))
        for run in select_to_change(client, selection, "tag", yes=yes, fits=lambda run: True, unfit=""):
            after = client.update(run.run_id, add_tags=added, remove_tags=removed) if added or removed else run
            click.echo(f"{short_id(run.run_id)}  {one_line(', '.join(after.tags)) or '(no tags)'}")
    return 0


def _is_id(client: TrainerClient, word: str) -> bool:
    """Whether it is the id of a run as listings show it; shorter words are tags."""
    if len(word) < SHORT_ID or not word.isalnum():
        return False
    try:
        return client.find(word).run_id.endswith(word.upper())
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
    """The last word of the command."""

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
