"""`mosaic extras`: packages only some runs need. The worker's own program does the work; it is run, never imported."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

import click
from mosaic_wire import env

from gym_gui.cli.algorithms import PREFERRED_WORKER, installed_workers
from gym_gui.cli.context import Cli, json_option, pass_cli


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


def _run(cli: Cli, words: Sequence[str], *, as_json: bool) -> int:
    spec = next((w.spec for w in installed_workers(cli) if w.spec is not None and w.name == PREFERRED_WORKER), None)
    if spec is None or not spec.argv:
        raise click.UsageError(f"requirement sets belong to the worker {PREFERRED_WORKER!r}, which is not installed")
    package = spec.module.partition(".")[0]
    argv = [spec.argv[0], "-m", f"{package}.tools.install_extras", *words, *(["--json"] if as_json else [])]
    return subprocess.run(argv, env={**os.environ, env.MOSAIC_HOME: str(cli.home.root)}, check=False).returncode
