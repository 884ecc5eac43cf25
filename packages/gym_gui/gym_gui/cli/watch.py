"""`mosaic watch`: follow runs live."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gym_gui.cli.context import Cli, complete_run, find_runs, pass_cli, say

if TYPE_CHECKING:
    from gym_gui.services.trainer.client import TrainerClient


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=complete_run)
@pass_cli
def watch_command(cli: Cli, /, runs: tuple[str, ...]) -> int:
    """Follow these runs until they end; without RUN, follow whatever is queued or running until Ctrl-C."""
    with cli.client() as client:
        if not runs:
            return _watch_all(client)
        from gym_gui.cli.progress import follow
        from gym_gui.cli.summary import say_how_to_return, summarise

        found = find_runs(client, runs)
        ended = follow(client, found)
        if ended is None:
            say_how_to_return(found)
            return 0
        return summarise(client, ended)


def _watch_all(client: TrainerClient) -> int:
    from gym_gui.cli.follow import RunFollower
    from gym_gui.cli.progress import show

    answer = client.list(statuses=["INIT", "HSHK", "RDY", "EXEC", "PAUSE", "FAULT"])
    if not answer.runs:
        say("nothing is queued or running; new runs show up here, Ctrl-C leaves")
    with RunFollower(client, answer.runs, since_seq=answer.last_seq, adopt=True) as follower:
        try:
            show(follower, until=lambda: False)
        except KeyboardInterrupt:
            say("")
    return 0
