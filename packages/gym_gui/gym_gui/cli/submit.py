"""`mosaic submit | clone | smoke`: queue a run from a config file, an earlier run, or to prove that it works."""

from __future__ import annotations

import json
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.paths import RunFolder
from mosaic_wire.run_request import Extras, run_request, worker_part
from mosaic_wire.run_status import RunOutcome, RunStatus

from gym_gui.cli.algorithms import choose_algorithm, installed_workers
from gym_gui.cli.context import Cli, json_option, notify, one_run, pass_cli, read_limited
from gym_gui.cli.flags import parse_flags
from gym_gui.cli.listing import write_json_object
from gym_gui.cli.progress import follow_to_end
from gym_gui.cli.scripts import with_script_found
from gym_gui.services import run_configs
from gym_gui.services.run_configs import ConfigUnreadable, take_secrets_from
from gym_gui.services.trainer.errors import DaemonUnreachable, InvalidConfig
from gym_gui.services.trainer.run_copies import DOCUMENTS, SCRIPTS
from gym_gui.services.trainer.validation.json_document import MAX_BYTES, read_config_text
from gym_gui.wording.formats import one_line
from gym_gui.wording.run_view import run_document, short_id, state_of, title_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("-f/-d", "--follow/--detach", "wants_follow", help="Follow the run until it ends.")
@click.option("--idempotency-key", default="", metavar="KEY", help="The same key queues the same run only once.")
@json_option
@pass_cli
def submit_command(cli: Cli, /, file: str, wants_follow: bool, idempotency_key: str, as_json: bool) -> int:
    """Queue the run that a JSON config FILE describes (- reads standard input)."""
    config = with_script_found(_read(file))
    with cli.client(start=True) as client:
        answer = client.submit(config, idempotency_key=idempotency_key)
        run = answer.run
        if answer.already_known:
            notify(f"this key is known already: {short_id(run.run_id)}")
        for note in answer.notes:
            notify(f"note: {note}")
        message = "" if wants_follow else f"queued {title_of(run)}; `mosaic watch {short_id(run.run_id)}` follows"
        print_queued(run, message, as_json=as_json)
        return follow_to_end(client, [run]) if wants_follow else 0


def _read(file: str) -> dict[str, Any]:
    where = "standard input" if file == "-" else file
    try:
        return read_config_text(read_limited(file, MAX_BYTES))
    except InvalidConfig as error:
        raise click.UsageError(f"{where}: {error.problems[0].message}") from error


# ---------------------------------------------------------------- following


def submit_once(client: TrainerClient, config: dict[str, Any], key: str = "") -> pb.SubmitRunResponse:
    """Queue a run. When the answer is lost, ask again with the same key: that does not queue it twice."""
    key = key or secrets.token_hex(16)
    try:
        return client.submit(config, idempotency_key=key)
    except DaemonUnreachable:
        return client.submit(config, idempotency_key=key)


def print_queued(run: pb.Run, message: str, *, as_json: bool) -> int:
    """Print the id for a program, and what to do next for people."""
    if as_json:
        write_json_object(run_document(run))
        return 0
    click.echo(run.run_id)
    if message:
        notify(message)
    return 0


def follow_or_print(
    client: TrainerClient, run: pb.Run, *, detach: bool, as_json: bool = False, expect_return: float | None = None
) -> int:
    """Follow the run and summarize its end, or print its id and return."""
    if detach:
        message = f"queued {title_of(run)}; `mosaic watch {short_id(run.run_id)}` follows"
        return print_queued(run, message, as_json=as_json)
    notify(f"queued {title_of(run)}  {run.run_id}")
    return follow_to_end(client, [run], expect_return=expect_return)


# ---------------------------------------------------------------- clone


@click.command()
@one_run
@click.option("--print", "only_print", is_flag=True, help="Print the config and queue nothing.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Another seed than the original's.")
@click.option("--name", help="Name of the new run.")
@click.option("-f/-d", "--follow/--detach", "wants_follow", help="Follow the run until it ends.")
@pass_cli
def clone_command(
    cli: Cli, /, run: str, only_print: bool, seed: int | None, name: str | None, wants_follow: bool
) -> int:
    """Queue RUN again as it was submitted: algorithm, environment, seed, flags, resources. Tags come along, too.

    A script that has changed since is taken from the copy in the run's folder. Secrets are those of RUN, unless their
    environment variables (API_KEY for --api-key) are set.
    """
    with cli.client(start=not only_print) as client:
        original = client.find(run)
        config = config_of(original, client.local(original, *DOCUMENTS, *SCRIPTS))
        worker = worker_part(config)
        if seed is not None:
            worker["seed"] = seed
        if name is not None:
            config["run_name"] = name
        if only_print:
            write_json_object(config)
            return 0
        take_secrets_from(os.environ, worker)
        answer = client.submit(config)
        for note in answer.notes:
            notify(f"note: {note}")
        click.echo(answer.run.run_id)
        if wants_follow:
            return follow_to_end(client, [answer.run])
        notify(f"queued {title_of(answer.run)} like {short_id(original.run_id)}")
        return 0


def config_of(run: pb.Run, here: pb.Run | None = None) -> dict[str, Any]:
    """Return the run's config as it can be submitted again; `here` is the run with folders on this machine."""
    try:
        found = run_configs.config_of(run, here)
    except ConfigUnreadable as error:
        raise click.ClickException(str(error)) from error
    for notice in found.notices:
        notify(f"mosaic: {notice}")
    return found.document


def shown(config: dict[str, Any]) -> Any:
    """Return the config without secrets, for the screen."""
    from mosaic_wire.redaction import redact_document, secret_values

    return redact_document(config, secret_values(config))


# ---------------------------------------------------------------- smoke


SMOKE_FILE = "smoke.json"
STEPS = 2048
_MOST_ARTIFACTS = 200


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, options_metavar=None)
@click.argument("arguments", metavar="ALGO ENV... [OPTIONS] [ALGORITHM FLAGS]", nargs=-1, type=click.UNPROCESSED)
@click.option("--total-timesteps", type=click.IntRange(min=1), default=STEPS, metavar="N", help="Steps of each run.")
@click.option("--seed", type=click.IntRange(min=0), default=1, metavar="N", help="Seed of each run.")
@click.option("--extras", default="{}", metavar="JSON", help='More of the config\'s extras: {"source": "upstream"}.')
@click.option("--worker", metavar="NAME", help="The worker, when several have the algorithm.")
@click.option("-h", "--help", "wants_help", is_flag=True, help="This text.")
@click.pass_context
def smoke_command(
    ctx: click.Context,
    /,
    arguments: tuple[str, ...],
    total_timesteps: int,
    seed: int,
    extras: str,
    worker: str | None,
    wants_help: bool,
) -> int:
    """Run ALGO briefly in each ENV through the daemon. Exit 1 when a run does not complete.

    Each run's folder gets a smoke.json: what was submitted, that the worker registered, what the run left, how it
    ended. The coverage table of a worker's documentation is made from these files.
    """
    cli = ctx.find_object(Cli) or Cli()
    if wants_help or not arguments:
        click.echo(ctx.get_help())
        return 0 if wants_help else 2
    spec, algorithm = choose_algorithm(installed_workers(cli), arguments[0], worker)
    given = parse_flags(arguments[1:], algorithm)
    problems = [*given.problems] if given.positional else [*given.problems, "which environment? Name one or more"]
    try:
        more: Any = json.loads(extras)
    except ValueError as error:
        problems.append(f"--extras is not JSON: {error}")
    else:
        if not isinstance(more, dict):
            problems.append(f"--extras must be a JSON object, not {type(more).__name__}")
    if problems:
        raise click.UsageError("; ".join(problems), ctx)
    with cli.client(start=True) as client:
        ended = [
            _run_once(
                client,
                run_request(
                    spec.name,
                    module=spec.module,
                    algo=algorithm.name,
                    env_id=env_id,
                    seed=seed,
                    total_timesteps=total_timesteps,
                    extras=cast(Extras, {**more, "algo_params": given.parameters}),
                    tags=["smoke"],
                ),
            )
            for env_id in given.positional
        ]
    return 0 if all(run.outcome == RunOutcome.COMPLETED for run in ended) else 1


def _run_once(client: TrainerClient, config: dict[str, Any]) -> pb.Run:
    run = wait_for_end(client, client.submit(config).run)
    here = client.local(run, *DOCUMENTS, listed=("run/*",))
    write_json_atomically(Path(here.run_dir) / SMOKE_FILE, smoke_report(client, here))
    if here is not run:
        notify(f"its {SMOKE_FILE} is on this machine: {Path(here.run_dir) / SMOKE_FILE}")
    click.echo(f"{state_of(run):10} {run.algo:28} {run.env_id:28} {run.run_id}  {one_line(run.reason)}")
    return run


def wait_for_end(client: TrainerClient, run: pb.Run) -> pb.Run:
    """Follow one run quietly until it is TERM."""
    with client.watch(run_id=run.run_id, since_seq=run.event_seq) as updates:
        return next(update.run for update in updates if update.run.status == RunStatus.TERM)


def smoke_report(client: TrainerClient, run: pb.Run) -> dict[str, Any]:
    """Return what `smoke.json` holds of an ended run."""
    folder = RunFolder(Path(run.run_dir))
    history = list(client.history(run.run_id))
    registered = next((event for event in history if event.kind == "registered"), None)
    handshake = (
        f"{_moment(registered.timestamp)} RegisterWorker of {run.run_id}: {registered.from_status} -> "
        f"{registered.to_status}"
        if registered is not None
        else None
    )
    try:
        manifest = read_json_object(folder.manifest)
    except (OSError, ValueError):
        manifest = {}
    return {
        "run_id": run.run_id,
        "worker": run.worker_type,
        "algo": run.algo,
        "env_id": run.env_id,
        "payload": str(folder.home.config_file(run.run_id)),
        "handshake": handshake,
        "artefacts": artifacts_of(folder),
        "status": run.status,
        "outcome": run.outcome,
        "reason": run.reason,
        "steps": run.step,
        "total": run.total,
        "requirements": manifest.get("requirements") or [],
        "versions": manifest.get("versions") or {},
        "source": _source_of(manifest),
        "seconds": round(run.finished_at - run.started_at, 1) if run.started_at else None,
        "written_at": _moment(time.time()),
    }


def artifacts_of(folder: RunFolder) -> list[str]:
    """Files of the run folder, relative to it."""
    files = (path for path in sorted(folder.root.rglob("*")) if path.is_file() and path.name != SMOKE_FILE)
    return [str(path.relative_to(folder.root)) for path in files][:_MOST_ARTIFACTS]


def _source_of(manifest: dict[str, Any]) -> str:
    return "script" if manifest.get("script") else "mosaic"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
