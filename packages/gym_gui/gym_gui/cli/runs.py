"""`mosaic runs`: the listing."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gym_gui.cli.context import Cli, json_option, pass_cli, say
from gym_gui.cli.listing import Column, write_json, write_table
from gym_gui.wording import formats
from gym_gui.wording.run_view import (
    COLOURS,
    STATE_WORDS,
    algo_of,
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
_OUTCOMES = ("completed", "failed", "cancelled")


@click.command()
@click.option(
    "--status", "states", multiple=True, metavar="STATUS",
    help="queued, starting, running, paused, faulted, finished, completed … (also INIT … TERM); may be repeated.",
)  # fmt: skip
@click.option(
    "--outcome", "outcomes", multiple=True, type=click.Choice(_OUTCOMES), help="How it ended; may be repeated."
)  # fmt: skip
@click.option("--tag", "tags", multiple=True, help="Has this tag; repeated: has all of them.")
@click.option("--text", default="", help="Found in id, name, algorithm, environment or note.")
@click.option("--archived", is_flag=True, help="Archived runs too.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help=f"The newest N.  [default: {DEFAULT_LIMIT}]")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--filter", "filter_name", metavar="NAME", help="Start from a saved filter.")
@click.option("--save-filter", metavar="NAME", help="Save these conditions under a name.")
@click.option("--delete-filter", metavar="NAME", help="Forget a saved filter.")
@click.option("--filters", "list_filters", is_flag=True, help="List saved filters instead.")
@json_option
@pass_cli
def runs_command(cli: Cli, /, as_json: bool, list_filters: bool, delete_filter: str | None, **options: Any) -> int:
    """List runs, the newest first."""
    options["states"] = status_words(options["states"])
    with cli.client() as client:
        if delete_filter:
            check_filter(delete_filter, client.filters())
            client.delete_filter(delete_filter)
            say(f"forgot the filter {delete_filter!r}")
            return 0
        if list_filters:
            _write_filters(client.filters(), as_json)
            return 0
        query = _query(client, **options)
        answer = client.list(**query)
    if as_json:
        write_json(run_document(run) for run in answer.runs)
        return 0
    if not answer.runs:
        is_filtered = any(value for key, value in query.items() if key not in ("limit", "include_archived"))
        say("no run fits" if is_filtered else "no runs yet; `mosaic train ppo CartPole-v1` makes one")
        return 0
    write_runs(answer.runs)
    if (hidden := answer.matching - len(answer.runs)) > 0:
        say(f"… and {formats.plural(hidden, 'more run')}; --all shows them")
    return 0


def _query(
    client: TrainerClient,
    *,
    states: tuple[list[str], list[str]],
    outcomes: Sequence[str],
    tags: Sequence[str],
    text: str,
    archived: bool,
    limit: int | None,
    everything: bool,
    filter_name: str | None,
    save_filter: str | None,
) -> dict[str, Any]:
    statuses, ends = states
    conditions: dict[str, Any] = {
        "statuses": statuses,
        "outcomes": list(dict.fromkeys([*outcomes, *ends])),
        "tags": list(tags),
        "text": text,
        "include_archived": archived,
    }
    if filter_name:
        saved = client.filters()
        check_filter(filter_name, saved)
        conditions = {key: value or saved[filter_name].get(key, value) for key, value in conditions.items()}
    if save_filter:
        client.save_filter(save_filter, {key: value for key, value in conditions.items() if value})
        say(f"saved; `mosaic runs --filter {save_filter}` uses it")
    return {**conditions, "limit": 0 if everything else limit or DEFAULT_LIMIT}


def check_filter(name: str, saved: dict[str, Any]) -> None:
    if name not in saved:
        from mosaic_wire.worker_spec import nearest

        close = nearest(name, saved)
        raise click.UsageError(f"there is no filter {name!r}" + (f"; did you mean {close!r}?" if close else ""))


def _write_filters(saved: dict[str, dict[str, Any]], as_json: bool) -> None:
    if as_json:
        write_json({"name": name, "query": query} for name, query in sorted(saved.items()))
        return
    if not saved:
        say("no saved filters; `mosaic runs --tag x --save-filter mine` makes one")
    write_table(
        [
            Column("NAME", sorted(saved)),
            Column("CONDITIONS", [_in_words(saved[name]) for name in sorted(saved)], shrink_to=20),
        ]
    )


def _in_words(query: dict[str, Any]) -> str:
    return "; ".join(
        f"{key}: {', '.join(map(str, value)) if isinstance(value, list) else value}" for key, value in query.items()
    )


def status_words(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Statuses and outcomes: people do not tell the two apart, so --status takes both."""
    words = [word for text in texts for word in text.split(",")]
    return _status_names([word for word in words if word not in _OUTCOMES]), [w for w in words if w in _OUTCOMES]


def _status_names(words: Sequence[str]) -> list[str]:
    """States as people or documents name them."""
    aliases = {"EXECUTING": "EXEC", "TERMINATED": "TERM", "TRAINING": "EXEC"}
    names: list[str] = []
    for word in words:
        upper = aliases.get(word.upper(), word.upper())
        fitting = [status for status, name in STATE_WORDS.items() if upper == status or word.lower() == name]
        if not fitting:
            from mosaic_wire.worker_spec import nearest

            known = [*dict.fromkeys(STATE_WORDS.values()), *_OUTCOMES]
            close = nearest(word, [*known, *STATE_WORDS])
            hint = f"; did you mean {close!r}?" if close else ""
            raise click.UsageError(f"--status: expected {', '.join(known)}, not {word!r}{hint}")
        names.extend(fitting)
    return names


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
            Column("STATUS", states, colours=[COLOURS.get(state) for state in states]),
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
    """`cleanrl-ppo-20260101-120000` says nothing that the other columns do not say."""
    stamp = run.name.removeprefix(f"{run.worker_type}-{run.algo}-")
    return stamp != run.name and len(stamp) == 15 and stamp.replace("-", "", 1).isdigit()
