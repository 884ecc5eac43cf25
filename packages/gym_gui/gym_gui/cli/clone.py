"""`mosaic clone`: the same run once more, with an id of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from gym_gui.cli.context import Cli, one_run, pass_cli, say
from gym_gui.cli.listing import write_json_object
from gym_gui.services import run_configs
from gym_gui.services.run_configs import ConfigUnreadable, take_secrets_from
from gym_gui.wording.run_view import short_id, title_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb


@click.command()
@one_run
@click.option("--print", "only_print", is_flag=True, help="Print the config and queue nothing.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Another seed than the original's.")
@click.option("--name", help="Name of the new run.")
@click.option("-f/-d", "--follow/--detach", "wants_follow", help="Follow the run until it ends.")
@pass_cli
def clone_command(
    cli: Cli, /, run: str, only_print: bool, seed: int | None, name: str | None, wants_follow: bool
) -> int:
    """Queue RUN again as it was submitted: algorithm, environment, seed, flags, resources. Tags come along, too.

    A script that has changed since is taken from the copy in the run's folder. Secrets are not stored with a run: they
    are taken from their environment variables, or left out.
    """
    with cli.client(start=not only_print) as client:
        original = client.find(run)
        config = config_of(original)
        worker = config["metadata"]["worker"]["config"]
        if seed is not None:
            worker["seed"] = seed
        if name is not None:
            config["run_name"] = name
        for missing in take_secrets_from(os.environ, worker):
            say(f"mosaic: {missing} is left out: a secret is not copied. Set it in the environment to pass it on")
        if only_print:
            write_json_object(shown(config))
            return 0
        answer = client.submit(config)
        click.echo(answer.run.run_id)
        if not wants_follow:
            say(f"queued {title_of(answer.run)} like {short_id(original.run_id)}")
            return 0
        from gym_gui.cli.progress import follow
        from gym_gui.cli.summary import say_how_to_return, summarise

        ended = follow(client, [answer.run])
        if ended is None:
            say_how_to_return([answer.run])
            return 130
        return summarise(client, ended)


def config_of(run: pb.Run) -> dict[str, Any]:
    """The run's config as it can be submitted again."""
    try:
        found = run_configs.config_of(run)
    except ConfigUnreadable as error:
        raise click.ClickException(str(error)) from error
    for notice in found.notices:
        say(f"mosaic: {notice}")
    return found.document


def shown(config: dict[str, Any]) -> Any:
    """The config without secrets, for the screen."""
    from mosaic_wire.redaction import redact_document, secret_values

    return redact_document(config, secret_values(config))
