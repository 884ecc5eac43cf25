"""`mosaic machines`: where runs can run, and who waits for what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gym_gui.cli.context import Cli, json_option, notify, pass_cli
from gym_gui.cli.listing import Column, write_json, write_table
from gym_gui.wording import formats

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb


@click.command()
@json_option
@pass_cli
def machines_command(cli: Cli, /, as_json: bool) -> int:
    """List executors, their nodes with free CPUs and GPUs, and their queues. Exit 1 if one does not answer.

    `mosaic train ALGO ENV --on NAME` trains there; [executors.NAME] in the settings adds one.
    """
    with cli.client() as client:
        executors = client.machines()
    if as_json:
        write_json(_document(each) for each in executors)
    else:
        rows = [(executor, node) for executor in executors for node in executor.nodes]
        write_table(
            [
                Column("EXECUTOR", [executor.name for executor, _ in rows]),
                Column("NODE", [node.name for _, node in rows], shrink_to=12),
                Column("STATE", [node.state for _, node in rows]),
                Column("CPUS FREE", [f"{node.cpus_free:g} of {node.cpus:g}" for _, node in rows], right=True),
                Column("GPUS FREE", [_of(node.gpus_free, node.gpus) for _, node in rows], right=True),
                Column("MEMORY", [formats.size(node.memory_mb << 20) for _, node in rows], right=True),
            ]
        )
        for each in executors:
            others = (
                f"; {formats.plural(each.pending, 'job')} of all users in its queue" if each.type != "local" else ""
            )
            notify(f"{each.name}: {each.own_running} running, {each.own_queued} queued{others}")
            if each.problem:
                notify(f"{each.name} cannot be used now: {each.problem}")
    return 1 if any(each.problem for each in executors) else 0


def _of(free: int, total: int) -> str:
    return f"{free} of {total}" if total else ""


def _document(executor: pb.ExecutorState) -> dict[str, Any]:
    names = ("name", "state", "cpus", "cpus_free", "memory_mb", "gpus", "gpus_free")
    return {
        "name": executor.name,
        "type": executor.type,
        "problem": executor.problem or None,
        "running": executor.own_running,
        "queued": executor.own_queued,
        "pending": executor.pending,
        "nodes": [{name: getattr(node, name) for name in names} for node in executor.nodes],
    }
