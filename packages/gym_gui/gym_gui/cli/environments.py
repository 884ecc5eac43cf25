"""`mosaic envs`: the environments that workers name, by family."""

from __future__ import annotations

import click

from gym_gui.cli.algorithms import installed_workers
from gym_gui.cli.context import Cli, json_option, pass_cli, say
from gym_gui.cli.listing import Column, write_json, write_table


@click.command()
@click.option("--family", metavar="NAME", help="Only of this family: atari, mujoco, classic, …")
@click.option("--search", default="", metavar="TEXT", help="Only ids that contain this.")
@json_option
@pass_cli
def envs_command(cli: Cli, /, family: str | None, search: str, as_json: bool) -> int:
    """List environments to train in, and the requirement set that each needs.

    A family may have more than are listed (every Atari game); any registered id is accepted.
    """
    from gym_gui.ui.workers.environment_families import environments_of, family_of

    specs = [worker.spec for worker in installed_workers(cli) if worker.spec is not None and not worker.spec.hidden]
    found = {env_id: title for spec in specs for title, ids in environments_of(spec).items() for env_id in ids}
    titles = list(dict.fromkeys(found.values()))
    if family is not None:
        chosen = {title for title in titles if _plain(title).startswith(_plain(family))}
        if not chosen:
            raise click.UsageError(f"there is no family {family!r}; there are {', '.join(titles)}")
        found = {env_id: title for env_id, title in found.items() if title in chosen}
    rows = [
        {"env_id": env_id, "family": title, "requirement_set": family_of(env_id).requirement_set or None}
        for env_id, title in found.items()
        if search.lower() in env_id.lower()
    ]
    if as_json:
        write_json(rows)
        return 0
    if not rows:
        say("no environment fits; `mosaic envs` lists all")
    write_table(
        [
            Column("ENV", [str(row["env_id"]) for row in rows]),
            Column("FAMILY", [str(row["family"]) for row in rows]),
            Column("NEEDS SET", [row["requirement_set"] or "" for row in rows]),
        ]
    )
    return 0


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
