"""`mosaic submit`: queue a run from a config file."""

from __future__ import annotations

from typing import Any

import click

from gym_gui.cli.context import Cli, json_option, pass_cli, say
from gym_gui.cli.listing import write_json_object
from gym_gui.cli.scripts import with_script_found
from gym_gui.services.trainer.errors import InvalidConfig
from gym_gui.services.trainer.validation.json_document import MAX_BYTES, read_config_text
from gym_gui.wording.run_view import run_document, short_id, title_of


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("-f/-d", "--follow/--detach", "wants_follow", help="Follow the run until it ends.")
@click.option("--idempotency-key", default="", metavar="KEY", help="The same key queues the same run only once.")
@json_option
@pass_cli
def submit_command(cli: Cli, /, file: str, wants_follow: bool, idempotency_key: str, as_json: bool) -> int:
    """Queue the run that a JSON config FILE describes (- reads standard input)."""
    config = with_script_found(_read(file))
    with cli.client(start=True) as client:
        answer = client.submit(config, idempotency_key=idempotency_key)
        run = answer.run
        if answer.already_known:
            say(f"this key is known already: {short_id(run.run_id)}")
        for note in answer.notes:
            say(f"note: {note}")
        if as_json:
            write_json_object(run_document(run))
        else:
            click.echo(run.run_id)
        if not wants_follow:
            say(f"queued {title_of(run)}; `mosaic watch {short_id(run.run_id)}` follows")
            return 0
        from gym_gui.cli.progress import follow
        from gym_gui.cli.summary import say_how_to_return, summarise

        ended = follow(client, [run])
        if ended is None:
            say_how_to_return([run])
            return 130
        return summarise(client, ended)


def _read(file: str) -> dict[str, Any]:
    try:
        with click.open_file(file, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise click.UsageError(f"cannot read {file}: {error.strerror}") from error
    where = "standard input" if file == "-" else file
    try:
        return read_config_text(data)
    except InvalidConfig as error:
        raise click.UsageError(f"{where}: {error.problems[0].message}") from error
