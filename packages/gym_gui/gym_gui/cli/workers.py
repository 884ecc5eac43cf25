"""`mosaic workers | algos | envs | extras`: what is installed."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace

import click
from mosaic_wire import env
from mosaic_wire.worker_spec import EXTRAS, AlgorithmSpec, WorkerSpec, nearest

from gym_gui.cli.algorithms import PREFERRED_WORKER, InstalledWorker, installed_workers
from gym_gui.cli.context import Cli, json_option, notify, pass_cli
from gym_gui.cli.listing import Column, write_json, write_table


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also hidden workers.")
@click.option("--refresh", is_flag=True, help="Ask every worker anew, past the cache.")
@json_option
@pass_cli
def workers_command(cli: Cli, /, everything: bool, refresh: bool, as_json: bool) -> int:
    """List installed workers; one that cannot be used says why."""
    workers = [
        worker
        for worker in installed_workers(cli, refresh=refresh)
        if everything or worker.spec is None or not worker.spec.hidden
    ]
    if as_json:
        write_json(_document(worker) for worker in workers)
        return 0
    if not workers:
        notify("no worker is installed")
    write_table(
        [
            Column("NAME", [worker.name for worker in workers]),
            Column("VERSION", [worker.version for worker in workers]),
            Column(
                "ALGORITHMS",
                [str(len(worker.spec.algorithms)) if worker.spec else "" for worker in workers],
                right=True,
            ),
            Column("WHAT", [worker.display_name for worker in workers], shrink_to=16),
            Column("FOUND BY", [worker.origin for worker in workers], shrink_to=12),
            Column("PROBLEM", [" ".join(worker.problem.split()) for worker in workers], shrink_to=20),
        ]
    )
    return 0


@click.command()
@click.option("--env", "env_id", metavar="ENV", help="Only those that fit this environment.")
@click.option("--worker", metavar="NAME", help="Only of this worker.")
@click.option("--all", "everything", is_flag=True, help="Also those that cannot run now, with the reason.")
@json_option
@pass_cli
def algos_command(cli: Cli, /, env_id: str | None, worker: str | None, everything: bool, as_json: bool) -> int:
    """List algorithms. `mosaic train ALGO --help` shows the flags of one."""
    specs = [
        found.spec
        for found in installed_workers(cli)
        if found.spec is not None and (found.name == worker or (worker is None and not found.spec.hidden))
    ]
    if worker is not None and not specs:
        raise click.UsageError(f"there is no worker {worker!r} that can be used; `mosaic workers` lists them")
    pairs = [(spec, algorithm) for spec in specs for algorithm in spec.algorithms]
    if env_id is not None:
        pairs = _with_refusals(cli, pairs, env_id)
        if as_json and not everything:
            pairs = [pair for pair in pairs if not pair[1].unavailable]
    if as_json:
        write_json({"worker": spec.name, **asdict(algorithm)} for spec, algorithm in pairs)
        return 0
    unavailable = sum(bool(algorithm.unavailable) for _, algorithm in pairs)
    refused = [algorithm.unavailable for spec, algorithm in pairs if spec.checks and env_id is not None]
    if refused and all(refused):
        notify(refused[0])
    if not everything:
        pairs = [pair for pair in pairs if not pair[1].unavailable]
    write_table(
        [
            Column("NAME", [algorithm.name for _, algorithm in pairs]),
            Column("WORKER", [spec.name for spec, _ in pairs], optional=1),
            Column("ACTIONS", [", ".join(algorithm.action_spaces) for _, algorithm in pairs], shrink_to=10),
            Column("OBSERVATIONS", [", ".join(algorithm.observation_spaces) for _, algorithm in pairs], shrink_to=12),
            Column("WHAT", [algorithm.help for _, algorithm in pairs], shrink_to=20),
            Column("CANNOT RUN NOW", [algorithm.unavailable for _, algorithm in pairs], shrink_to=20),
        ]
    )
    if unavailable and not everything:
        notify(f"{unavailable}{' more' if pairs else ''} cannot run now; --all lists them with the reason")
    return 0


def _with_refusals(
    cli: Cli, pairs: list[tuple[WorkerSpec, AlgorithmSpec]], env_id: str
) -> list[tuple[WorkerSpec, AlgorithmSpec]]:
    """Return the workers that know the environment, with the reason if a run with default flags would be refused."""
    knowing = [(spec, algorithm) for spec, algorithm in pairs if spec.knows_environment(env_id)]
    names = {name for spec, _ in pairs for name in spec.environments or ()}
    if names and all(spec.environments is None for spec, _ in knowing):
        close = nearest(env_id, names)
        raise click.UsageError(
            f"no worker knows the environment {env_id!r}" + (f"; did you mean {close!r}?" if close else "")
        )
    if cli.connect is not None:
        notify(f"the daemon is on another machine; these are all algorithms that might fit {env_id}")
        return knowing
    return asyncio.run(_asked(cli, knowing, env_id))


async def _asked(
    cli: Cli, pairs: list[tuple[WorkerSpec, AlgorithmSpec]], env_id: str
) -> list[tuple[WorkerSpec, AlgorithmSpec]]:
    from gym_gui.services.trainer.checking import CheckProcesses

    processes, found = CheckProcesses(cli.home, answer_s=120), []
    try:
        for spec, algorithm in pairs:
            default = algorithm.field("total_timesteps")
            config = {"algo": algorithm.name, "env_id": env_id, "total_timesteps": default.default if default else 1}
            answer = await processes.ask(spec, config)
            why = "; ".join(problem.message for problem in answer.problems)
            found.append((spec, replace(algorithm, unavailable=algorithm.unavailable or why)))
    finally:
        await processes.close()
    return found


def _document(worker: InstalledWorker) -> dict[str, object]:
    return {
        "name": worker.name,
        "display_name": worker.display_name,
        "version": worker.version,
        "origin": worker.origin,
        "algorithms": [algorithm.name for algorithm in worker.spec.algorithms] if worker.spec else [],
        "hidden": worker.spec.hidden if worker.spec else False,
        "problem": worker.problem or None,
    }


# ---------------------------------------------------------------- environments


@click.command()
@click.option("--family", metavar="NAME", help="Only of this family: atari, mujoco, classic, …")
@click.option("--search", default="", metavar="TEXT", help="Only ids that contain this.")
@json_option
@pass_cli
def envs_command(cli: Cli, /, family: str | None, search: str, as_json: bool) -> int:
    """List environments to train in, and the requirement set that each needs.

    A family may have more than are listed (every Atari game); any registered id is accepted.
    """
    from gym_gui.ui.workers.environments import environments_of, family_of

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
        notify("no environment fits; `mosaic envs` lists all")
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


# ---------------------------------------------------------------- requirement sets


@click.group(invoke_without_command=True)
@click.pass_context
def extras_command(ctx: click.Context) -> int | None:
    """Requirement sets: list (also without a command), install, check and remove them."""
    return _run(ctx.find_object(Cli) or Cli(), ["--list"], as_json=False) if ctx.invoked_subcommand is None else None


@extras_command.command("list")
@json_option
@pass_cli
def list_command(cli: Cli, /, as_json: bool) -> int:
    """Show every set, its state, its size and what it is for."""
    return _run(cli, ["--list"], as_json=as_json)


@extras_command.command("install")
@click.argument("sets", metavar="SET...", nargs=-1, required=True)
@json_option
@pass_cli
def install_command(cli: Cli, /, sets: tuple[str, ...], as_json: bool) -> int:
    """Install sets, such as atari or minigrid, as overlays on the base environment."""
    return _run(cli, ["--set", ",".join(sets)], as_json=as_json)


@extras_command.command("check")
@click.argument("sets", metavar="[SET]...", nargs=-1)
@json_option
@pass_cli
def check_command(cli: Cli, /, sets: tuple[str, ...], as_json: bool) -> int:
    """Say whether sets are ready; nothing is installed. Exit code 1: one is not."""
    return _run(cli, ["--check", *(["--set", ",".join(sets)] if sets else [])], as_json=as_json)


@extras_command.command("remove")
@click.argument("sets", metavar="SET...", nargs=-1, required=True)
@json_option
@pass_cli
def remove_command(cli: Cli, /, sets: tuple[str, ...], as_json: bool) -> int:
    """Remove sets and free their space; one that a run uses now stays."""
    return _run(cli, ["--remove", "--set", ",".join(sets)], as_json=as_json)


def _run(cli: Cli, arguments: Sequence[str], *, as_json: bool) -> int:
    spec = next((w.spec for w in installed_workers(cli) if w.spec is not None and w.name == PREFERRED_WORKER), None)
    if spec is None or not spec.extras_program:
        raise click.UsageError(f"requirement sets belong to the worker {PREFERRED_WORKER!r}, which is not installed")
    arguments = [*arguments, *(["--json"] if as_json else [])]
    if cli.connect:
        from gym_gui.cli.daemon import relay_program

        with cli.client() as client:
            if not client.copies.is_here:
                return relay_program(client, spec.name, EXTRAS, arguments)
    argv = [*spec.extras_program, *arguments]
    return subprocess.run(argv, env={**os.environ, env.MOSAIC_HOME: str(cli.home.root)}, check=False).returncode
