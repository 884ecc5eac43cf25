"""`mosaic runs`: the listing."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from gym_gui.cli.context import Cli, json_option, notify, pass_cli
from gym_gui.cli.listing import Column, write_json, write_table
from gym_gui.cli.selection import Selection, check_filter, conditions_of, list_runs, parse_states, run_conditions
from gym_gui.wording import formats
from gym_gui.wording.run_view import (
    COLORS,
    algo_of,
    elapsed_s,
    progress_of,
    remark_on,
    run_document,
    short_id,
    state_of,
)

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

DEFAULT_LIMIT = 50
_UP: dict[str, Callable[[pb.Run], Any]] = {
    "name": lambda run: run.name.lower(),
    "algo": algo_of,
    "env": lambda run: run.env_id,
    "status": state_of,
}
_DOWN: dict[str, Callable[[pb.Run], float]] = {
    "created": lambda run: run.number,
    "return": lambda run: run.episodic_return if run.HasField("episodic_return") else -math.inf,
    "steps": lambda run: run.step,
    "sps": lambda run: run.sps,
    "size": lambda run: run.size_bytes,
    "duration": lambda run: elapsed_s(run) or 0.0,
}
"""Keys sorted in descending order"""


@click.command()
@run_conditions("--tag", "--with-tag")
@click.option("--all", "everything", is_flag=True, help=f"All of them, not only {DEFAULT_LIMIT}.")
@click.option("--sort", type=click.Choice([*_DOWN, *_UP]), default="created", help="Numbers: the highest first.")
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
@click.option("--save-filter", metavar="NAME", help="Save these conditions under a name.")
@click.option("--delete-filter", metavar="NAME", help="Forget a saved filter.")
@click.option("--filters", "list_filters", is_flag=True, help="List saved filters instead.")
@json_option
@pass_cli
def runs_command(
    cli: Cli, /, as_json: bool, quiet: bool, list_filters: bool, delete_filter: str | None, **options: Any
) -> int:
    """List runs, the newest first."""
    selection = Selection.pop_from(options)
    parse_states(selection.states)  # report a mistake before anything else
    if options["save_filter"] and not selection.narrows:
        raise click.UsageError("a filter needs conditions: --algo, --env, --tag, --text, --status or --outcome")
    with cli.client() as client:
        if delete_filter:
            check_filter(delete_filter, client.filters())
            client.delete_filter(delete_filter)
            notify(f"forgot the filter {delete_filter!r}")
            return 0
        if list_filters:
            _write_filters(client.filters(), as_json)
            return 0
        conditions = conditions_of(client, selection)
        if name := options["save_filter"]:
            client.save_filter(name, {key: value for key, value in conditions.items() if value})
            notify(f"saved; `mosaic runs --filter {name}` uses it")
        runs, matching = _sorted_runs(client, conditions, selection.limit, **options)
    if as_json:
        write_json(run_document(run) for run in runs)
    elif quiet:
        click.echo("".join(f"{run.run_id}\n" for run in runs), nl=False)
    elif not runs:
        notify("no run fits" if selection.narrows else "no runs yet; `mosaic train ppo CartPole-v1` makes one")
    else:
        write_runs(runs)
        if (hidden := matching - len(runs)) > 0:
            notify(f"… and {formats.plural(hidden, 'more run')}; --all shows them")
    return 0


def _sorted_runs(
    client: TrainerClient,
    conditions: dict[str, Any],
    limit: int | None,
    *,
    sort: str,
    reverse: bool,
    everything: bool,
    **_: Any,
) -> tuple[list[pb.Run], int]:
    most = 0 if everything else limit or DEFAULT_LIMIT
    is_stored_order = sort == "created" and not reverse
    runs, matching = list_runs(client, conditions, most if is_stored_order else 0)
    if not is_stored_order:
        down = sort in _DOWN
        runs.sort(key=_DOWN[sort] if down else _UP[sort], reverse=down != reverse)
    return runs[: most or None], matching


def _write_filters(saved: dict[str, dict[str, Any]], as_json: bool) -> None:
    if as_json:
        write_json({"name": name, "query": query} for name, query in sorted(saved.items()))
        return
    if not saved:
        notify("no saved filters; `mosaic runs --tag x --save-filter mine` makes one")
    write_table(
        [
            Column("NAME", sorted(saved)),
            Column("CONDITIONS", [_conditions_text(saved[name]) for name in sorted(saved)], shrink_to=20),
        ]
    )


def _conditions_text(query: dict[str, Any]) -> str:
    return "; ".join(
        f"{key}: {', '.join(map(str, value)) if isinstance(value, list) else value}" for key, value in query.items()
    )


def write_runs(runs: Sequence[pb.Run]) -> None:
    """The table of runs; on a terminal with short ids and cut to fit, elsewhere complete."""
    now = time.time()
    on_terminal = sys.stdout.isatty()
    states = [state_of(run) for run in runs]
    seeds = [str(run.seed) if run.HasField("seed") else "" for run in runs]
    names = ["" if on_terminal and _is_default_name(run) else run.name for run in runs]
    returns = [formats.quantity(run.episodic_return) if run.HasField("episodic_return") else "" for run in runs]
    speeds = [formats.short_count(run.sps) if run.HasField("sps") else "" for run in runs]
    write_table(
        [
            Column("ID", [short_id(run.run_id) if on_terminal else run.run_id for run in runs]),
            Column("STATUS", states, colors=[COLORS.get(state) for state in states]),
            Column("ALGO", [algo_of(run) for run in runs], shrink_to=8),
            Column("ENV", [run.env_id for run in runs], shrink_to=11),
            Column("SEED", seeds, right=True, optional=1),
            Column("DONE", [progress_of(run) for run in runs], right=True),
            Column("RETURN", returns, right=True),
            Column("SPS", speeds, right=True, optional=3),
            Column("AGE", [formats.age(run.created_at, now) for run in runs], right=True),
            Column("TAGS", [",".join(run.tags) for run in runs], shrink_to=8, optional=4),
            Column("NAME", names, shrink_to=12, optional=5),
            Column("REMARK", [remark_on(run) for run in runs], shrink_to=12, optional=2),
        ]
    )


def _is_default_name(run: pb.Run) -> bool:
    """Return a run's name, or nothing for a default name like `cleanrl-ppo-20260101-120000`."""
    stamp = run.name.removeprefix(f"{run.worker_type}-{run.algo}-")
    return stamp != run.name and re.fullmatch(r"\d{8}-\d{6}(-s\d+)?", stamp) is not None
