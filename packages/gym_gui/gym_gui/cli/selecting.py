"""Runs for a command that looks at several: named one by one, or by what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gym_gui.cli.context import complete_run, find_runs, say
from gym_gui.wording import formats

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

_NOT_TRAINING = ("policy_eval", "interactive")
"""Their curves count episodes: they are shown when somebody names them"""
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Selection:
    """What a person said about the runs they mean."""

    runs: tuple[str, ...]
    algos: tuple[str, ...]
    env_ids: tuple[str, ...]
    run_tags: tuple[str, ...]
    text: str
    states: tuple[str, ...]
    filter_name: str | None
    archived: bool
    limit: int | None

    @classmethod
    def take(cls, options: dict[str, Any]) -> Selection:
        """Take these options out of a command's others."""
        return cls(**{part.name: options.pop(part.name) for part in fields(cls)})

    @property
    def has_conditions(self) -> bool:
        return any((self.algos, self.env_ids, self.run_tags, self.text, self.states, self.filter_name, self.limit))


_OPTIONS = (
    click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=complete_run),
    click.option("--algo", "algos", multiple=True, metavar="ALGO", help="Runs of this algorithm (or pattern)."),
    click.option("--env", "env_ids", multiple=True, metavar="ENV", help="Runs in this environment (or pattern)."),
    click.option("--with-tag", "run_tags", multiple=True, metavar="TAG", help="Runs with this tag; repeated: all."),
    click.option("--text", default="", help="Found in id, name, algorithm, environment or note."),
    click.option("--status", "states", multiple=True, metavar="STATUS", help="As `mosaic runs` has it."),
    click.option("--filter", "filter_name", metavar="NAME", help="A filter saved by `mosaic runs --save-filter`."),
    click.option("--archived", is_flag=True, help="Archived runs too."),
    click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="The newest N of them."),
)  # fmt: skip


def run_selection(command: Command) -> Command:
    """RUN... and the conditions, as options of a click command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def select_runs(client: TrainerClient, selection: Selection) -> list[pb.Run]:
    """The runs a person means, in the order they named them or, chosen by conditions, the oldest first.

    Raise UsageError when they said nothing, or nothing fits.
    """
    if selection.runs and selection.has_conditions:
        raise click.UsageError("name the runs, or say what they have in common; not both")
    if selection.runs:
        return find_runs(client, selection.runs)
    if not selection.has_conditions:
        raise click.UsageError(
            "which runs? Name them, or say what they have in common: --algo, --env, --with-tag, --text, --filter … "
            "(`mosaic runs` lists them)"
        )
    found = _matching(client, selection)
    if not found:
        raise click.UsageError("no run fits; `mosaic runs` lists those there are")
    return found


def _matching(client: TrainerClient, selection: Selection) -> list[pb.Run]:
    from gym_gui.cli.runs import check_filter, status_words
    from gym_gui.services.analytics.configurations import configuration_of

    statuses, outcomes = status_words(selection.states)
    query: dict[str, Any] = {
        "statuses": statuses, "outcomes": outcomes, "tags": list(selection.run_tags), "text": selection.text,
        "include_archived": selection.archived,
    }  # fmt: skip
    if selection.filter_name:
        saved = client.filters()
        check_filter(selection.filter_name, saved)
        query = {key: value or saved[selection.filter_name].get(key, value) for key, value in query.items()}
    found = [
        run
        for run in client.list(**query).runs
        if _fits(run.algo, selection.algos) and _fits(run.env_id, selection.env_ids)
        if configuration_of(run).mode not in _NOT_TRAINING
    ]
    return found[: selection.limit][::-1]


def _fits(value: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)


def say_left_out(missing: Sequence[pb.Run], what: str) -> None:
    """Tell which runs are not in a figure, and why."""
    from gym_gui.wording.run_view import short_id

    if not missing:
        return
    named = ", ".join(short_id(run.run_id) for run in missing[:5]) + (" …" if len(missing) > 5 else "")
    say(f"left out: {formats.plural(len(missing), 'run')} without {what} ({named})")
