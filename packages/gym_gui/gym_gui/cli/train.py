"""`mosaic train`: check what was typed, queue it, follow it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.run_request import OWN_SOURCES, UPSTREAM, Extras, run_request
from mosaic_wire.worker_spec import AlgorithmSpec, ScriptSpec, WorkerSpec, check_algorithm_choice

from gym_gui.cli.algorithms import choose_algorithm, installed_workers
from gym_gui.cli.context import Cli, notify
from gym_gui.cli.flags import (
    OWN_FIELDS,
    Minutes,
    Seeds,
    Steps,
    default_of,
    flag_help,
    listed_problems,
    parse_flags,
    sentence_of,
)
from gym_gui.cli.listing import write_json
from gym_gui.cli.progress import follow_to_end
from gym_gui.cli.scripts import NO_ENVIRONMENT, SHELL, choose_script, is_script
from gym_gui.cli.submit import submit_once
from gym_gui.services.run_configs import seed_name
from gym_gui.services.trainer.errors import InvalidConfig, TrainerError
from gym_gui.wording import formats
from gym_gui.wording.run_view import run_document, short_id, title_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient

EVALUATION_EPISODES = 20
"""Default number of episodes for --expect-return, overridden by --eval-episodes"""


@dataclass(frozen=True)
class TrainingTask:
    """A checked training: one run per seed."""

    spec: WorkerSpec
    algorithm: AlgorithmSpec
    env_id: str
    seeds: tuple[int | None, ...]
    total_timesteps: int | None
    parameters: dict[str, Any]
    script: ScriptSpec | None = None
    """The file that trains, when it is not an algorithm of the worker"""
    extras: Extras = field(default_factory=Extras)
    """Other settings of the worker"""


def complete_algorithm(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    if len(ctx.params.get("arguments") or ()) > 0:
        return []
    workers = installed_workers(ctx.find_object(Cli) or Cli())
    return [
        CompletionItem(algorithm.name, help=algorithm.help)
        for worker in workers
        if worker.spec is not None and not worker.spec.hidden
        for algorithm in worker.spec.algorithms
        if algorithm.name.startswith(incomplete)
    ]


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []}, options_metavar=None)
@click.argument(
    "arguments",
    metavar="ALGO|FILE.py|FILE.sh [ENV] [OPTIONS] [ALGORITHM FLAGS]",
    nargs=-1,
    type=click.UNPROCESSED,
    shell_complete=complete_algorithm,
)
@click.option("--env-id", metavar="ENV", help="The environment, if not given as an argument.")
@click.option("--total-timesteps", type=Steps(), help="Steps to train for: 500000, 500k, 5e5.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="One seed.")
@click.option("--seeds", type=Seeds(), help="One run per seed: 1-5 or 1,3,7.")
@click.option("--cpus", type=click.FloatRange(min=0), metavar="N", help="CPUs to reserve.  [default: 1]")
@click.option("--gpus", type=click.IntRange(min=0), metavar="N", help="GPUs to reserve.  [default: 0]")
@click.option("--memory-mb", type=click.IntRange(min=16), metavar="MB", help="Memory limit of the run.")
@click.option("--max-wallclock", type=Minutes(), help="Time limit: 90 (minutes), 2h, 1d.")
@click.option("--priority", type=click.IntRange(-1000, 1000), metavar="N", help="Higher goes first.  [default: 0]")
@click.option("--retries", type=click.IntRange(0, 100), metavar="N", help="Retry a fault this often.  [default: 0]")
@click.option("--on", "executor", metavar="NAME", help="Where to run: an executor of `mosaic machines`.")
@click.option("--tag", "tags", multiple=True, help="A tag; may be repeated.")
@click.option("--name", help="Name of the run.")
@click.option("--notes", help="A note on the run.")
@click.option("--stop-at-return", type=float, metavar="X", help="Stop once episodes average this return.")
@click.option(
    "--expect-return",
    type=float,
    metavar="X",
    help=f"Evaluate at the end ({EVALUATION_EPISODES} episodes); exit 1 below this mean.",
)
@click.option(
    "--source",
    default="",
    metavar="WHERE",
    help="upstream: CleanRL's own script of that name ($CLEANRL_HOME); or the folder of a checkout.",
)
@click.option("--install-missing", is_flag=True, help="Install what the run lacks before it starts.")
@click.option("--worker", metavar="NAME", help="The worker, when several have the algorithm.")
@click.option("--from-trial", metavar="SWEEP[:N]", help="The values of a sweep's best trial, or of its trial N.")
@click.option("--idempotency-key", metavar="KEY", help="The same key queues the same run only once.")
@click.option("-d/-f", "--detach/--follow", help="Queue and return, do not follow.")
@click.option("--json", "as_json", is_flag=True, help="Print the queued runs as JSON (with --detach).")
@click.option("-h", "--help", "wants_help", is_flag=True, help="This text; after ALGO, also the algorithm's flags.")
@click.pass_context
def train_command(ctx: click.Context, /, arguments: tuple[str, ...], wants_help: bool, **options: Any) -> int:
    """Train an algorithm and follow it until it ends. Ctrl-C leaves the run going.

    \b
      mosaic train ppo CartPole-v1
      mosaic train ppo --env-id CartPole-v1 --seeds 1-5 --learning-rate 3e-4
      mosaic train ./my_ppo.py CartPole-v1 --learning-rate 3e-4
      mosaic train ./phases.sh -- warm-up main
    """
    cli = ctx.find_object(Cli) or Cli()
    if options["from_trial"] and not wants_help:
        return _train_trial(ctx, cli, arguments, options)
    if not arguments:
        if wants_help:
            click.echo(ctx.get_help())
            return 0
        raise click.UsageError("which algorithm? `mosaic algos` lists them", ctx)
    algo, *rest = arguments
    if algo.startswith("-"):
        raise click.UsageError(f"the algorithm comes first, before {algo}: mosaic train ppo CartPole-v1 {algo} …", ctx)
    workers = installed_workers(cli)
    if is_script(algo):
        from gym_gui.cli.scripts import find_file, shell_request

        algo = str(find_file(cli, algo))
    if algo.endswith(SHELL) and not wants_help:
        request = shell_request(cli, workers, algo, rest, options)
        with cli.client(start=True) as client:
            return _follow(client, _queue(client, request, options), options)
    script: ScriptSpec | None = None
    if is_script(algo) or options["source"] not in OWN_SOURCES:
        spec, script = choose_script(workers, algo, options["worker"], options["source"])
        algorithm = script.algorithm
    else:
        known = {each.name for worker in workers if worker.spec is not None for each in worker.spec.algorithms}
        if algo not in known and known & {*rest[:1]}:
            raise click.UsageError(f"the algorithm comes first: mosaic train {rest[0]} {algo}", ctx)
        spec, algorithm = choose_algorithm(workers, algo, options["worker"])
    if wants_help:
        click.echo(_algorithm_help(ctx, spec, algorithm))
        return 0
    request = _check(ctx, spec, algorithm, script, rest, options)
    with cli.client(start=True) as client:
        return _follow(client, _queue(client, request, options), options)


script_command = train_command
"""`mosaic script FILE`: the same"""


def _train_trial(ctx: click.Context, cli: Cli, arguments: tuple[str, ...], options: dict[str, Any]) -> int:
    if arguments:
        raise click.UsageError(f"the trial defines what is trained; what is {' '.join(arguments)!r}?", ctx)
    from gym_gui.cli.sweep import queue_trial

    with cli.client(start=True) as client:
        return _follow(client, queue_trial(client, options["from_trial"], options), options)


def _follow(client: TrainerClient, runs: list[pb.Run], options: dict[str, Any]) -> int:
    if options["detach"]:
        _print_queued(runs, as_json=options["as_json"])
        return 0
    for run in runs:
        notify(f"queued {title_of(run)}  {run.run_id}")
    return follow_to_end(client, runs, expect_return=options["expect_return"])


def _check(
    ctx: click.Context,
    spec: WorkerSpec,
    algorithm: AlgorithmSpec,
    script: ScriptSpec | None,
    rest: list[str],
    options: dict[str, Any],
) -> TrainingTask:
    """Everything that is wrong with the command line, at once, before anything is queued."""
    own_options = [name for param in ctx.command.params for name in param.opts if name.startswith("--")]
    given = parse_flags(rest, algorithm, own_options)
    problems = list(given.problems)
    env_id = options["env_id"] or (given.positional[0] if given.positional else default_of(algorithm, "env_id")) or ""
    if not env_id and script is not None and algorithm.field("env_id") is None:
        env_id = NO_ENVIRONMENT  # it decides itself
    if len(given.positional) > 1 or (given.positional and options["env_id"] not in (None, given.positional[0])):
        extra = given.positional if options["env_id"] else given.positional[1:]
        problems.append(f"one environment at a time; what is {' '.join(extra)!r}?")
    if not env_id:
        problems.append("which environment? Name it after the algorithm: mosaic train " + algorithm.name + " ENV")
    elif not problems or given.positional or options["env_id"]:
        problems += [sentence_of(problem) for problem in check_algorithm_choice(spec, algorithm.name, env_id, {})]
    parameters = {key: value for key, value in given.parameters.items() if key not in OWN_FIELDS}
    if options["stop_at_return"] is not None:
        if algorithm.field("stop_at_return") is None and not algorithm.open_flags:
            problems.append(f"{algorithm.name!r} cannot stop at a return (it has no flag --stop-at-return)")
        parameters["stop_at_return"] = options["stop_at_return"]
    if options["expect_return"] is not None and algorithm.field("eval_episodes") is not None:
        parameters.setdefault("eval_episodes", default_of(algorithm, "eval_episodes") or EVALUATION_EPISODES)
    if options["seed"] is not None and options["seeds"] is not None:
        problems.append("give --seed or --seeds, not both")
    total = options["total_timesteps"] or default_of(algorithm, "total_timesteps")
    if total is None and script is not None:
        from gym_gui.cli.scripts import facts_of

        total = facts_of(Path(script.path)).get("total_timesteps")
    if total is None:
        in_file = ", or a line `# @total_timesteps: N` at the top of the file" if script is not None else ""
        problems.append(f"how long? --total-timesteps N{in_file}")
    if problems:
        raise click.UsageError(listed_problems(problems), ctx)
    seeds = options["seeds"] or [options["seed"] if options["seed"] is not None else default_of(algorithm, "seed")]
    return TrainingTask(spec, algorithm, env_id, tuple(seeds), total, parameters, script)


def _config(request: TrainingTask, seed: int | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the run config of one seed; what was not requested is left to the daemon's defaults."""
    # Without a total the daemon takes that of the variant it chooses.
    spec, script, algo = request.spec, request.script, request.algorithm.name
    is_clear = script is not None or not spec.checks or len(spec.variants(algo)) < 2
    extras: Extras = {
        **request.extras,
        "script_path": script.path if script is not None else request.extras.get("script_path"),
        "source": UPSTREAM if script is not None and options["source"] not in OWN_SOURCES else None,
        "algo_params": request.parameters or None,
        "notes": options["notes"] or None,
        "install_missing": options["install_missing"] or None,
    }
    given = options["name"] or str(request.parameters.get("exp_name") or "")
    return run_request(
        spec.name,
        module=spec.module,
        algo=algo,
        env_id=request.env_id,
        seed=seed,
        total_timesteps=request.total_timesteps if options["total_timesteps"] or is_clear else None,
        extras=extras,
        run_name=seed_name(given, spec.name, algo, seed, request.seeds),
        **resources_of(options),
        tags=options["tags"],
    )


def resources_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the options of `mosaic train` reserve and limit, None where they leave it to the daemon."""
    return {
        "resources": {
            "cpus": None if options["cpus"] is None else {"requested": options["cpus"]},
            "gpus": options["gpus"],
            "memory_mb": options["memory_mb"],
            "max_wallclock_minutes": options["max_wallclock"],
        },
        "scheduling": {"priority": options["priority"], "retries": options["retries"], "executor": options["executor"]},
    }


def _queue(client: TrainerClient, request: TrainingTask, options: dict[str, Any]) -> list[pb.Run]:
    # With a key of our own a submission whose answer got lost can be sent again without making two runs.
    key = options["idempotency_key"] or secrets.token_hex(16)
    runs: list[pb.Run] = []
    for seed in request.seeds:
        config, seed_key = _config(request, seed, options), key if len(request.seeds) == 1 else f"{key}-s{seed}"
        try:
            answer = submit_once(client, config, seed_key)
        except TrainerError as error:
            if runs:
                queued = " ".join(run.run_id for run in runs)
                notify(f"mosaic: {len(runs)} of {len(request.seeds)} runs were queued: {queued}")
            if isinstance(error, InvalidConfig):
                raise click.UsageError(listed_problems([sentence_of(each) for each in error.problems])) from error
            raise
        run = answer.run
        if answer.already_known:
            notify(f"this key is known already: {short_id(run.run_id)}")
        elif options["notes"] and run.notes != options["notes"]:
            run = client.update(run.run_id, notes=options["notes"])
        if run.algo != request.algorithm.name and not runs:
            notify(f"{request.algorithm.name} in {run.env_id} means {run.algo}")
        for note in answer.notes if not runs else ():
            notify(f"note: {note}")
        runs.append(run)
    return runs


def _print_queued(runs: list[pb.Run], *, as_json: bool) -> None:
    if as_json:
        write_json(run_document(run) for run in runs)
        return
    for run in runs:
        click.echo(run.run_id)
    ids = " ".join(short_id(run.run_id) for run in runs)
    notify(f"queued {formats.plural(len(runs), 'run')}; `mosaic watch {ids}` follows")


def _algorithm_help(ctx: click.Context, spec: WorkerSpec, algorithm: AlgorithmSpec) -> str:
    formatter = ctx.make_formatter()
    formatter.write_usage(f"mosaic train {algorithm.name}", "[ENV] [OPTIONS] [ALGORITHM FLAGS]")
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(
            f"{algorithm.help or algorithm.name} (worker {spec.name}, {spec.display_name} {spec.version})"
        )
        if algorithm.unavailable:
            formatter.write_text(f"Cannot run now: {algorithm.unavailable}")
        defaults = [
            f"{name.replace('_', '-')} {default_of(algorithm, name)}"
            for name in OWN_FIELDS
            if default_of(algorithm, name) is not None
        ]
        if defaults:
            formatter.write_text("By default: " + ", ".join(defaults) + ".")
    for group, rows in flag_help(algorithm).items():
        with formatter.section(group):
            formatter.write_dl(rows, col_max=30)
    train_command.format_options(ctx, formatter)
    return formatter.getvalue().rstrip("\n")
