"""`mosaic clone`: the same run once more, with an id of its own."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.files import read_json_object
from mosaic_wire.worker_config import RUN_ID_PLACEHOLDER

from gym_gui.cli.context import Cli, one_run, pass_cli, say
from gym_gui.cli.run_view import short_id, title_of
from gym_gui.services.trainer.secrets import SECRET_REF, is_secret_ref, to_environment

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

_MADE_UP_NAME = re.compile(r".+-\d{8}-\d{6}")
"""A name the daemon chose: the clone gets one of its own time"""


@click.command()
@one_run
@click.option("--print", "only_print", is_flag=True, help="Print the config and queue nothing.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Another seed than the original's.")
@click.option("--name", help="Name of the new run.")
@click.option("-f", "--follow", "wants_follow", is_flag=True, help="Follow the run until it ends.")
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
            click.echo(json.dumps(shown(config), indent=2, ensure_ascii=False))
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
    # <home>/trainer/runs/<id> and <home>/trainer/configs: where the daemon keeps them.
    file = Path(run.run_dir).parent.parent / "configs" / f"config-{run.run_id}.json"
    try:
        document = read_json_object(file)
        worker = document["metadata"]["worker"]["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"the config of {short_id(run.run_id)} cannot be read here: {error}") from error
    document = _without_id(document, run.run_id)
    worker = document["metadata"]["worker"]["config"]
    worker["run_id"] = RUN_ID_PLACEHOLDER
    if _MADE_UP_NAME.fullmatch(str(document.get("run_name") or "")):
        document["run_name"] = None
    _use_the_copied_script(worker.get("extras") or {}, Path(run.run_dir))
    return {key: value for key, value in document.items() if value is not None}


def _without_id(value: Any, run_id: str) -> Any:
    """The run's id stands in paths below its folder; the clone's paths have the clone's."""
    if isinstance(value, dict):
        return {key: _without_id(item, run_id) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_id(item, run_id) for item in value]
    # An absolute path (a checkpoint to go on from) means that very place.
    is_place = isinstance(value, str) and os.path.isabs(value)
    return value.replace(run_id, RUN_ID_PLACEHOLDER) if isinstance(value, str) and not is_place else value


def _use_the_copied_script(extras: dict[str, Any], run_dir: Path) -> None:
    expected, script = extras.get("script_sha256"), extras.get("script_path")
    if not expected or not script or _sha256(Path(script)) == expected:
        return
    copy = run_dir / "scripts" / Path(script).name
    if _sha256(copy) == expected:
        say(f"mosaic: {script} has changed since; the clone runs the copy {copy}")
        extras["script_path"] = str(copy)


def _sha256(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def take_secrets_from(environ: os._Environ[str] | dict[str, str], part: Any) -> list[str]:
    """Put secrets in place of their references; return the environment variables that were not there."""
    missing = []
    for key, value in list(part.items()) if isinstance(part, dict) else []:
        if is_secret_ref(value):
            (variable,) = to_environment({value[SECRET_REF]: ""})
            if environ.get(variable):
                part[key] = environ[variable]
            else:
                del part[key]
                missing.append(variable)
        else:
            missing += take_secrets_from(environ, value)
    return missing


def shown(config: dict[str, Any]) -> Any:
    """The config without secrets, for the screen."""
    from mosaic_wire.redaction import redact_document, secret_values

    return redact_document(config, secret_values(config))
