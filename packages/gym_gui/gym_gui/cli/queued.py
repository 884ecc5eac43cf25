"""After a run was queued: say so, or follow it to its end."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import click

from gym_gui.cli.context import say
from gym_gui.cli.listing import write_json_object
from gym_gui.services.trainer.errors import DaemonUnreachable
from gym_gui.wording.run_view import run_document, short_id, title_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient


def submit(client: TrainerClient, config: dict[str, Any]) -> pb.Run:
    """Queue it; an answer that got lost is asked for again without making two runs."""
    key = secrets.token_hex(16)
    try:
        return client.submit(config, idempotency_key=key).run
    except DaemonUnreachable:
        return client.submit(config, idempotency_key=key).run


def tell_queued(run: pb.Run, words: str, *, as_json: bool) -> int:
    """Nobody follows it: its id for a program, and for people what to do next."""
    if as_json:
        write_json_object(run_document(run))
    else:
        click.echo(run.run_id)
        say(words)
    return 0


def follow_or_tell(
    client: TrainerClient, run: pb.Run, *, detach: bool, as_json: bool = False, expect_return: float | None = None
) -> int:
    """Follow the run and summarise its end, or print its id and return."""
    if detach:
        words = f"queued {title_of(run)}; `mosaic watch {short_id(run.run_id)}` follows"
        return tell_queued(run, words, as_json=as_json)
    from gym_gui.cli.progress import follow
    from gym_gui.cli.summary import say_how_to_return, summarise

    say(f"queued {title_of(run)}  {run.run_id}")
    ended = follow(client, [run])
    if ended is None:
        say_how_to_return([run])
        return 130
    return summarise(client, ended, expect_return=expect_return)
