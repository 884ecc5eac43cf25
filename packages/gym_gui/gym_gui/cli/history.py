"""`mosaic history`: what happened to a run."""

from __future__ import annotations

import click

from gym_gui.cli.context import Cli, json_option, one_run, pass_cli
from gym_gui.cli.listing import Column, write_json, write_table
from gym_gui.wording import formats
from gym_gui.wording.run_view import parsed


@click.command()
@one_run
@json_option
@pass_cli
def history_command(cli: Cli, /, run: str, as_json: bool) -> int:
    """What happened to a run, step by step."""
    with cli.client() as client:
        events = list(client.story(client.find(run).run_id))
    if as_json:
        write_json(
            {
                "seq": event.seq,
                "run_id": event.run_id,
                "timestamp": event.timestamp,
                "kind": event.kind,
                "from": event.from_status or None,
                "to": event.to_status or None,
                "reason": event.reason,
                "payload": parsed(event.payload_json),
                "attempt": event.attempt,
            }
            for event in events
        )
        return 0
    several = any(event.attempt > 1 for event in events)
    moves = [
        f"{event.from_status} → {event.to_status}" if event.from_status and event.from_status != event.to_status
        else event.to_status
        for event in events
    ]  # fmt: skip
    write_table(
        [
            Column("TIME", [formats.moment(event.timestamp) for event in events]),
            Column("EVENT", [event.kind for event in events]),
            Column("STATUS", moves),
            Column("ATTEMPT", [str(event.attempt) if several else "" for event in events], right=True),
            Column("REASON", [" ".join(event.reason.split()) for event in events], shrink_to=20),
        ]
    )
    return 0
