"""Select the runs of a command: by name, or by conditions."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

import click
from mosaic_wire.run_status import RunOutcome

from gym_gui.cli.context import complete_run, find_runs, notify
from gym_gui.wording import formats

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

_OUTCOMES = ("completed", "failed", "cancelled")
_SHOWN_BEFORE_ASKING = 20
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Selection:
    """The runs and conditions given on the command line."""

    runs: tuple[str, ...]
    algos: tuple[str, ...]
    env_ids: tuple[str, ...]
    run_tags: tuple[str, ...]
    text: str
    states: tuple[str, ...]
    outcomes: tuple[str, ...]
    filter_name: str | None
    archived: bool
    limit: int | None
    with_trials: bool

    @classmethod
    def pop_from(cls, options: dict[str, Any]) -> Selection:
        """Remove these options from a command's options and return them."""
        return cls(**{part.name: options.pop(part.name, ()) for part in fields(cls)})

    @property
    def narrows(self) -> bool:
        """Return whether it has conditions."""
        return any((self.algos, self.env_ids, self.run_tags, self.text, self.states, self.outcomes, self.filter_name))

    @property
    def has_conditions(self) -> bool:
        return self.narrows or bool(self.limit)


def run_conditions(*tag_names: str, short: bool = True) -> Callable[[Command], Command]:
    """Add options for conditions to a click command; `tag_names`: the names of the option for tags."""
    limit = ("-n", "--limit") if short else ("--limit",)
    options = (
        click.option("--algo", "algos", multiple=True, metavar="ALGO", help="Runs of this algorithm, as shown."),
        click.option("--env", "env_ids", multiple=True, metavar="ENV", help="Runs in this environment (or pattern)."),
        click.option(
            *(tag_names or ("--with-tag",)),
            "run_tags",
            multiple=True,
            metavar="TAG",
            help="Runs with this tag; repeated: all.",
        ),
        click.option(
            "--text",
            default="",
            help="Found in name, algorithm, environment or note; or an id's first or last 4 or more letters.",
        ),
        click.option(
            "--status",
            "states",
            multiple=True,
            metavar="STATUS",
            help="queued, starting, running, paused, faulted, finished, completed … (also INIT … TERM).",
        ),
        click.option("--outcome", "outcomes", multiple=True, type=click.Choice(_OUTCOMES), help="How they ended."),
        click.option("--filter", "filter_name", metavar="NAME", help="A filter saved by `mosaic runs --save-filter`."),
        click.option("--archived", is_flag=True, help="Archived runs too."),
        click.option(*limit, type=click.IntRange(min=1), metavar="N", help="The newest N of them."),
    )

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def run_selection(command: Command) -> Command:
    """Add RUN... and options for conditions to a click command."""
    with_trials = click.option("--with-trials", is_flag=True, help="Trials of sweeps too.")
    return _optional_runs(run_conditions()(with_trials(command)))


def runs_to_change(command: Command) -> Command:
    """Add the same options to a command that changes runs, with `--yes` for its confirmation."""
    return _optional_runs(run_conditions("--with-tag", "--tag")(yes_option(command)))


_optional_runs = click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=complete_run)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def select_runs(client: TrainerClient, selection: Selection, *, with_failed: bool = False) -> list[pb.Run]:
    """Return the selected runs, in the order they were named or, selected by conditions, the oldest first.

    Conditions mean trainings: what else fits (trials, sweeps, evaluations; failed and cancelled runs, unless
    `with_failed`) is left out and counted. Raise UsageError when they said nothing, or nothing fits.
    """
    if (named := _named(client, selection, selection.has_conditions)) is not None:
        return named
    from gym_gui.services.analytics.configurations import kind_of
    from gym_gui.services.analytics.lineage import members

    conditions = conditions_of(client, selection)
    with_trials = selection.with_trials or any(tag.startswith(("sweep:", "trial:")) for tag in conditions["tags"])
    with_failed = with_failed or bool(conditions["outcomes"] or conditions["statuses"])
    kept, others = [], dict[str, str]()
    listed, _ = list_runs(client, conditions)
    for run in listed:
        kind = kind_of(run)
        if not kind and not with_failed and run.outcome in (RunOutcome.FAILED, RunOutcome.CANCELLED):
            kind = f"{run.outcome} run"
        if kind and not (kind == "trial" and with_trials):
            others[run.run_id] = kind
        else:
            kept.append(run)
    by_id = {run.run_id: run for run in listed}
    parts = {part for run in kept for part in members(run, by_id)}  # of a curve that is shown
    if counts := Counter(kind for run_id, kind in others.items() if run_id not in parts):
        counted = ", ".join(formats.plural(number, kind) for kind, number in counts.items())
        notify(f"left out: {counted} (name them, or --with-trials, --outcome failed …, to see them)")
    return _found(kept[: selection.limit][::-1])


def select_to_change(
    client: TrainerClient,
    selection: Selection,
    verb: str,
    *,
    yes: bool,
    fits: Callable[[pb.Run], bool],
    unfit: str,
    for_good: bool = False,
    warning: Callable[[Sequence[pb.Run]], str] | None = None,
) -> list[pb.Run]:
    """Return the runs to change; those selected by conditions are confirmed, `unfit` is why some are skipped.

    What is done `for_good` is confirmed also for runs that were named; `warning` is said before the question.
    """
    found = _named(client, selection, selection.narrows)
    if found is None:
        conditions = conditions_of(client, selection)
        if not any(value for key, value in conditions.items() if key != "include_archived"):
            raise click.UsageError(f"the filter {selection.filter_name!r} has no conditions; it means every run")
        matching, _ = list_runs(client, conditions)
        found = _found([run for run in matching if fits(run)][: selection.limit])
        if left := sum(not fits(run) for run in matching):
            notify(f"left out: {formats.plural(left, 'run')} ({unfit})")
    elif not for_good:
        return found
    if warning is not None and (text := warning(found)):
        notify(text)
    _confirm(found, verb, yes=yes, for_good=for_good)
    return found


def _confirm(runs: Sequence[pb.Run], verb: str, *, yes: bool, for_good: bool) -> None:
    """List the runs and ask for confirmation; raise unless it is given."""
    from gym_gui.wording.run_view import title_of

    for run in runs[:_SHOWN_BEFORE_ASKING]:
        notify(f"{run.run_id}  {title_of(run)}  {run.name}  {formats.size(run.size_bytes)}")
    if len(runs) > _SHOWN_BEFORE_ASKING:
        notify(f"… and {formats.plural(len(runs) - _SHOWN_BEFORE_ASKING, 'more run')}")
    if yes:
        return
    number = formats.plural(len(runs), "run")
    if not sys.stdin.isatty():
        raise click.UsageError(f"this would {verb} {number}; --yes says that you mean it")
    size = f" ({formats.size(sum(run.size_bytes for run in runs))}) for good" if for_good else ""
    if not click.confirm(f"{verb.capitalize()} {number}{size}?", err=True):
        raise click.ClickException("nothing was changed")


def _named(client: TrainerClient, selection: Selection, has_conditions: bool) -> list[pb.Run] | None:
    if selection.runs and has_conditions:
        raise click.UsageError("name the runs or give conditions, not both")
    if selection.runs:
        return find_runs(client, selection.runs)
    if not has_conditions:
        raise click.UsageError(
            "which runs? Name them or give conditions: --algo, --env, --with-tag, --text, --filter … "
            "(`mosaic runs` lists them)"
        )
    return None


def _found(runs: list[pb.Run]) -> list[pb.Run]:
    if not runs:
        raise click.UsageError("no run fits; `mosaic runs` lists those there are")
    return runs


# ---------------------------------------------------------------- conditions


def conditions_of(client: TrainerClient, selection: Selection) -> dict[str, Any]:
    """Return the conditions as a query, added to those of the saved filter if one is named."""
    statuses, ends = parse_states(selection.states)
    conditions: dict[str, Any] = {
        "statuses": statuses,
        "outcomes": list(dict.fromkeys([*selection.outcomes, *ends])),
        "tags": list(selection.run_tags),
        "text": selection.text,
        "include_archived": selection.archived,
        "algos": list(selection.algos),
        "env_ids": list(selection.env_ids),
    }
    if selection.filter_name:
        saved = client.filters()
        check_filter(selection.filter_name, saved)
        for key, value in saved[selection.filter_name].items():
            if key == "tags":
                conditions[key] += value  # a run must have all of them
            elif value and conditions.get(key) and key != "include_archived":
                raise click.UsageError(f"the filter {selection.filter_name!r} says which {key} already; leave one out")
            else:
                conditions[key] = value or conditions.get(key, value)
    return conditions


def list_runs(client: TrainerClient, conditions: dict[str, Any], limit: int = 0) -> tuple[list[pb.Run], int]:
    """Return the matching runs, newest first and at most `limit` (0: all), and how many match."""
    from gym_gui.wording.run_view import algo_of

    query = dict(conditions)
    algos, env_ids = query.pop("algos"), query.pop("env_ids")
    is_narrower = bool(algos or env_ids)
    answer = client.list(**query, limit=0 if is_narrower else limit)
    if not is_narrower:
        return list(answer.runs), answer.matching
    names = {algo_of(run) for run in answer.runs}
    # Scripts are listed with their suffix; without it, a name matches if no algorithm has it.
    algos = [algo if any(_fits(name, [algo]) for name in names) else f"{algo}.*" for algo in algos]
    found = [run for run in answer.runs if _fits(algo_of(run), algos) and _fits(run.env_id, env_ids)]
    return found[: limit or None], len(found)


def _fits(value: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)


def check_filter(name: str, saved: dict[str, Any]) -> None:
    if name not in saved:
        from mosaic_wire.worker_spec import nearest

        close = nearest(name, saved)
        raise click.UsageError(f"there is no filter {name!r}" + (f"; did you mean {close!r}?" if close else ""))


def parse_states(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return statuses and outcomes; --status accepts both, because users do not distinguish them."""
    names = [name for text in texts for name in text.split(",")]
    return _status_names([name for name in names if name not in _OUTCOMES]), [n for n in names if n in _OUTCOMES]


def _status_names(names: Sequence[str]) -> list[str]:
    """Return the statuses with these names or labels."""
    from gym_gui.wording.run_view import STATE_LABELS

    aliases = {"EXECUTING": "EXEC", "TERMINATED": "TERM", "TRAINING": "EXEC"}
    statuses: list[str] = []
    for name in names:
        upper = aliases.get(name.upper(), name.upper())
        fitting = [status for status, label in STATE_LABELS.items() if upper == status or name.lower() == label]
        if not fitting:
            from mosaic_wire.worker_spec import nearest

            known = [*dict.fromkeys(STATE_LABELS.values()), *_OUTCOMES]
            close = nearest(name, [*known, *STATE_LABELS])
            hint = f"; did you mean {close!r}?" if close else ""
            raise click.UsageError(f"--status: expected {', '.join(known)}, not {name!r}{hint}")
        statuses.extend(fitting)
    return statuses


def notify_left_out(missing: Sequence[pb.Run], what: str) -> None:
    """Print which runs are not in a figure, and why."""
    from gym_gui.wording.run_view import short_id

    if not missing:
        return
    named = ", ".join(short_id(run.run_id) for run in missing[:5]) + (" …" if len(missing) > 5 else "")
    notify(f"left out: {formats.plural(len(missing), 'run')} without {what} ({named})")
