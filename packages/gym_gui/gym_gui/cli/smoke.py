"""`mosaic smoke`: short runs through the daemon, to prove that an algorithm starts, trains and ends."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.files import read_json_object, write_json_atomically
from mosaic_wire.paths import RunFolder
from mosaic_wire.worker_spec import WorkerSpec

from gym_gui.cli.algorithms import choose_algorithm, installed_workers
from gym_gui.cli.context import Cli
from gym_gui.cli.flags import parse_flags
from gym_gui.wording.plain_text import one_line
from gym_gui.wording.run_view import state_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

SMOKE_FILE = "smoke.json"
STEPS = 2048
_MOST_ARTEFACTS = 200


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, options_metavar=None)
@click.argument("words", metavar="ALGO ENV... [OPTIONS] [ALGORITHM FLAGS]", nargs=-1, type=click.UNPROCESSED)
@click.option("--total-timesteps", type=click.IntRange(min=1), default=STEPS, metavar="N", help="Steps of each run.")
@click.option("--seed", type=click.IntRange(min=0), default=1, metavar="N", help="Seed of each run.")
@click.option("--extras", default="{}", metavar="JSON", help='More of the config\'s extras: {"source": "upstream"}.')
@click.option("--worker", metavar="NAME", help="The worker, when several have the algorithm.")
@click.option("-h", "--help", "wants_help", is_flag=True, help="This text.")
@click.pass_context
def smoke_command(
    ctx: click.Context, /, words: tuple[str, ...], total_timesteps: int, seed: int, extras: str, worker: str | None,
    wants_help: bool,
) -> int:  # fmt: skip
    """Run ALGO briefly in each ENV through the daemon. Exit 1 when a run does not complete.

    Each run's folder gets a smoke.json: what was submitted, that the worker registered, what the run left, how it
    ended. The coverage table of a worker's documentation is made from these files.
    """
    cli = ctx.find_object(Cli) or Cli()
    if wants_help or not words:
        click.echo(ctx.get_help())
        return 0 if wants_help else 2
    spec, algorithm = choose_algorithm(installed_workers(cli), words[0], worker)
    given = parse_flags(words[1:], algorithm)
    problems = [*given.problems] if given.words else [*given.problems, "which environment? Name one or more"]
    try:
        more = json.loads(extras)
    except ValueError as error:
        problems.append(f"--extras is not JSON: {error}")
    if problems:
        raise click.UsageError("; ".join(problems), ctx)
    with cli.client(start=True) as client:
        ended = [
            _run_once(client, spec, {
                "run_id": "${RUN_ID}", "algo": algorithm.name, "env_id": env_id, "seed": seed,
                "total_timesteps": total_timesteps, "extras": {**more, "algo_params": given.parameters},
            })
            for env_id in given.words
        ]  # fmt: skip
    return 0 if all(run.outcome == "completed" for run in ended) else 1


def _run_once(client: TrainerClient, spec: WorkerSpec, config: dict[str, Any]) -> pb.Run:
    worker = {"type": spec.name, "module": spec.module, "config": config}
    run = wait_for_end(client, client.submit({"tags": ["smoke"], "metadata": {"worker": worker}}).run)
    write_json_atomically(Path(run.run_dir) / SMOKE_FILE, smoke_report(client, run))
    click.echo(f"{state_of(run):10} {run.algo:28} {run.env_id:28} {run.run_id}  {one_line(run.reason)}")
    return run


def wait_for_end(client: TrainerClient, run: pb.Run) -> pb.Run:
    """Follow one run quietly until it is TERM."""
    with client.watch(run_id=run.run_id, since_seq=run.event_seq) as updates:
        return next(update.run for update in updates if update.run.status == "TERM")


def smoke_report(client: TrainerClient, run: pb.Run) -> dict[str, Any]:
    """What `smoke.json` holds of an ended run."""
    folder = RunFolder(Path(run.run_dir))
    story = list(client.story(run.run_id))
    registered = next((event for event in story if event.kind == "registered"), None)
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
        "payload": str(folder.root.parent.parent / "configs" / f"config-{run.run_id}.json"),
        "handshake": handshake,
        "artefacts": artefacts_of(folder),
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


def artefacts_of(folder: RunFolder) -> list[str]:
    """Files of the run folder, relative to it."""
    files = (path for path in sorted(folder.root.rglob("*")) if path.is_file() and path.name != SMOKE_FILE)
    return [str(path.relative_to(folder.root)) for path in files][:_MOST_ARTEFACTS]


def _source_of(manifest: dict[str, Any]) -> str:
    return "script" if manifest.get("script") else "mosaic"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
