"""`mosaic steps`: what a run did step by step, and why."""

from __future__ import annotations

import json
import zlib
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from gym_gui.cli.context import Cli, json_option, notify, one_run, pass_cli, style
from gym_gui.cli.listing import write_json, write_pairs
from gym_gui.wording import formats
from gym_gui.wording.actions import named_action
from gym_gui.wording.formats import printable
from gym_gui.wording.run_view import parsed

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

_LAST = 10
_MOST_CHARACTERS = 200
"""Of an action"""


@click.command()
@one_run
@click.option("--episode", type=click.IntRange(min=0), metavar="N", help="All steps of this episode.")
@click.option("-n", "--tail", type=click.IntRange(min=1), metavar="N", help=f"The last N steps.  [default: {_LAST}]")
@click.option("-f", "--follow", is_flag=True, help="Print steps as they come, until the run ends.")
@json_option
@pass_cli
def steps_command(cli: Cli, /, run: str, episode: int | None, tail: int | None, follow: bool, as_json: bool) -> int:
    """Print steps of a run: action, reward, and why a reasoning agent (BDI, language model) acted so.

    Steps are recorded by workers that send them (people, agents that reason, `record_steps`), not by CleanRL's.
    """
    if follow and (as_json or episode is not None):
        raise click.UsageError("--follow prints what comes; it goes with neither --json nor --episode")
    with cli.client() as client:
        found = client.find(run)
        last = tail or (_LAST if episode is None else 0)
        # The last steps of a run can be selected; those of an episode come with all of them.
        since = -last if episode is None else 0
        with client.steps(found.run_id, since_seq=since, episode=episode, follow=follow) as stream:
            steps = (step for batch in stream for step in batch.steps)
            selected: Iterable[pb.RunStep] = steps if follow or not last else deque(steps, maxlen=last)
            if as_json:
                write_json(_document(step, found.env_id) for step in selected)
                return 0
            try:
                count = sum(1 for step in selected if _write(step, found.env_id))
            except KeyboardInterrupt:
                return 130
    if not count:
        which = f"no step of episode {episode}" if episode is not None else "no steps"
        notify(f"{run} has recorded {which}; `mosaic metrics {run}` shows its curves")
    return 0


def _write(step: pb.RunStep, env_id: str) -> bool:
    """Print one step; return True."""
    from mosaic_wire.reasoning import reasoning_of

    ending = " · the episode ends" if step.terminated else " · cut short" if step.truncated else ""
    agent = f" · {step.agent_id}" if step.agent_id else ""
    action = printable(named_action(env_id, json.dumps(_decoded(step.action), ensure_ascii=False)[:_MOST_CHARACTERS]))
    place = f"episode {step.episode} · step {step.index}{printable(agent)}"
    click.echo(f"{style(place, bold=True)} · {action} · reward {formats.quantity(step.reward)}{ending}")
    parts = reasoning_of(_info(step))
    write_pairs((f"  {printable(part.title)}", printable(part.text or "\n".join(part.items))) for part in parts)
    return True


def _document(step: pb.RunStep, env_id: str) -> dict[str, Any]:
    action = _decoded(step.action)
    return {
        "seq": step.seq,
        "episode": step.episode,
        "index": step.index,
        "agent_id": step.agent_id or None,
        "observation": _decoded(step.observation),
        "action": action,
        "action_text": named_action(env_id, json.dumps(action)),
        "reward": step.reward,
        "terminated": step.terminated,
        "truncated": step.truncated,
        "info": _info(step),
    }


def _decoded(payload: pb.Payload) -> Any:
    """Return an observation or action as a JSON value; None where it cannot be read."""
    from mosaic_wire.telemetry import decode

    try:
        value = decode(payload)
    except (ValueError, EOFError, OSError, zlib.error):
        return None
    return value.tolist() if hasattr(value, "tolist") else value


def _info(step: pb.RunStep) -> dict[str, Any]:
    info = parsed(step.info_json)
    return info if isinstance(info, dict) else {}
