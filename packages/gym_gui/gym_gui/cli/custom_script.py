"""`mosaic script`: run a script of one's own as a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from mosaic_wire.script_header import read_script_header

from gym_gui.cli.algorithms import PREFERRED_WORKER, installed_workers
from gym_gui.cli.context import Cli, json_option, pass_cli
from gym_gui.cli.queued import follow_or_tell, submit
from gym_gui.cli.values import Steps


@click.command()
@click.argument("file", metavar="FILE", type=click.Path())
@click.argument("arguments", metavar="[-- ARGUMENT...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--total-timesteps", type=Steps(), help="What it is to reach, if the script does not say it.")
@click.option("--cpus", type=click.FloatRange(min=0), metavar="N", help="CPUs to reserve.  [default: 1]")
@click.option("--gpus", type=click.IntRange(min=0), metavar="N", help="GPUs to reserve.  [default: 0]")
@click.option("--name", help="Name of the run.")
@click.option("--tag", "tags", multiple=True, help="A tag; may be repeated.")
@click.option("-d", "--detach", is_flag=True, help="Queue and return, do not follow.")
@json_option
@pass_cli
def script_command(cli: Cli, /, file: str, arguments: tuple[str, ...], **options: Any) -> int:
    """Run FILE (*.sh or *.py) with these arguments, MOSAIC's variables, its own folder and its logs.

    It must lie in a folder that was configured for that: `custom_scripts` in settings.toml, or
    trainer/custom_scripts of the home, where a bare name is looked for.
    """
    path = Path(os.path.expanduser(file))
    if not path.exists() and not path.is_absolute() and len(path.parts) == 1:
        path = cli.home.custom_scripts / path
    try:
        facts = read_script_header(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from error
    spec = next((w.spec for w in installed_workers(cli) if w.spec is not None and w.name == PREFERRED_WORKER), None)
    if spec is None:
        raise click.UsageError(f"scripts are run by the worker {PREFERRED_WORKER!r}, which is not installed")
    worker_config = {
        "run_id": "${RUN_ID}", "algo": "custom_script", "env_id": str(facts.get("env_family") or "custom"),
        "total_timesteps": options["total_timesteps"] or facts.get("total_timesteps") or 1,
        "extras": {
            "mode": "custom_script", "script_path": str(path.absolute()),
            **({"script_arguments": list(arguments)} if arguments else {}),
        },
    }  # fmt: skip
    resources = {
        "cpus": None if options["cpus"] is None else {"requested": options["cpus"]}, "gpus": options["gpus"]
    }  # fmt: skip
    config = {
        "run_name": options["name"] or path.name,
        "resources": {key: value for key, value in resources.items() if value is not None},
        "tags": list(options["tags"]),
        "metadata": {"worker": {"type": spec.name, "module": spec.module, "config": worker_config}},
    }
    with cli.client(start=True) as client:
        run = submit(client, config)
        return follow_or_tell(client, run, detach=options["detach"] or options["as_json"], as_json=options["as_json"])
