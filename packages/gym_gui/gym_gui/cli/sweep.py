"""`mosaic sweep`: search for good hyper-parameters, and train with the values of a trial."""

from __future__ import annotations

import json
import secrets
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.errors import Problem
from mosaic_wire.run_request import worker_part
from mosaic_wire.run_status import RunStatus
from mosaic_wire.sweep_settings import AGGREGATES, DIRECTIONS, PRUNERS, SAMPLERS, WORKER_TYPE

from gym_gui.cli.context import Cli, complete_run, json_option, notify, one_run, pass_cli, read_limited
from gym_gui.cli.flags import Minutes, Seeds, Steps, listed_problems
from gym_gui.cli.listing import write_json_object
from gym_gui.cli.submit import print_queued, submit_once
from gym_gui.services.sweeps import SweepUnreadable, config_of_trial, settings_of, trial_of, use_trials_script
from gym_gui.services.trainer.errors import NotPossibleNow
from gym_gui.services.trainer.run_copies import STUDY
from gym_gui.services.trainer.validation.json_document import MAX_BYTES
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb
    from mosaic_wire.worker_spec import ScriptSpec

    from gym_gui.cli.algorithms import InstalledWorker
    from gym_gui.services.sweeps import SweepDocument
    from gym_gui.services.trainer.client import TrainerClient

_OTHERWISE = ("parameters", "fixed", "cpus", "gpus", "memory_mb", "executor", "install_missing", "tags")
_OF_THE_COMMAND = ("resume", "only_print", "detach", "as_json")
"""Options that are not keys of a sweep as they are"""


class SweepGroup(click.Group):
    """`mosaic sweep show RUN` and `best RUN` are commands of their own; everything else starts a sweep."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["start", *args]
        return super().parse_args(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        return self.commands["start"].get_help(ctx)


@click.group(cls=SweepGroup)
def sweep_command() -> None:
    """Search for good hyper-parameters."""


class Trials(click.ParamType[int]):
    """Number of trials; with --resume, +20 means 20 more."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if not text.removeprefix("+").isdigit() or not 0 < int(text.removeprefix("+")) <= 1_000_000:
            self.fail(f"expected a number of trials such as 50, or +20 with --resume, not {value!r}", param, ctx)
        if text.startswith("+") and ctx is not None:
            ctx.meta["mosaic.more_trials"] = True
        return int(text)


@sweep_command.command("start")
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--algo", metavar="ALGO", help="The algorithm to tune.")
@click.option("--env", "--env-id", "env_id", metavar="ENV", help="The environment.")
@click.option(
    "--param",
    "parameters",
    multiple=True,
    metavar="NAME=RANGE",
    help="A parameter to search for: lr=log:1e-5:1e-2, n=int:32:256[:32], x=float:0:1, b=choice:true,false.",
)
@click.option("--set", "fixed", multiple=True, metavar="NAME=VALUE", help="A parameter that stays the same.")
@click.option("--trials", type=Trials(), help="How many.  [default: 50]")
@click.option("--parallel", type=click.IntRange(1, 1000), metavar="N", help="Trials at a time.  [default: 1]")
@click.option("--sampler", type=click.Choice(SAMPLERS), help="How the next values are chosen.  [default: tpe]")
@click.option("--pruner", type=click.Choice(PRUNERS), help="How bad trials are ended early.  [default: none]")
@click.option("--seeds", type=Seeds(), help="One run per seed in every trial: 1-3.  [default: 1]")
@click.option("--aggregate", type=click.Choice(AGGREGATES), help="What the seeds give together.  [default: mean]")
@click.option("--metric", metavar="TAG", help="The figure to judge by.  [default: mean return of 100 episodes]")
@click.option("--direction", type=click.Choice(DIRECTIONS), help="[default: maximize]")
@click.option("--total-timesteps", type=Steps(), help="Steps of each trial.  [default: the algorithm's]")
@click.option("--timeout", "timeout_minutes", type=Minutes(), help="No new trials after: 90 (minutes), 2h, 1d.")
@click.option("--reports", type=click.IntRange(1, 1000), metavar="N", help="How often a trial is compared.")
@click.option("--warmup-trials", type=click.IntRange(0), metavar="N", help="Trials that end before one is pruned.")
@click.option("--startup-trials", type=click.IntRange(0), metavar="N", help="Random trials before the sampler learns.")
@click.option("--give-up-after", type=click.IntRange(0), metavar="N", help="Failed trials in a row; 0: never.")
@click.option("--storage", metavar="WHERE", help="journal, sqlite, or the URL of a database.  [default: journal]")
@click.option("--study-name", metavar="NAME", help="Name of the study.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed of the sampler.  [default: 1]")
@click.option("--cpus", type=click.FloatRange(min=0), metavar="N", help="CPUs of each run.  [default: 1]")
@click.option("--gpus", type=click.IntRange(min=0), metavar="N", help="GPUs of each run.  [default: 0]")
@click.option("--memory-mb", type=click.IntRange(min=16), metavar="MB", help="Memory limit of each run.")
@click.option("--on", "executor", metavar="NAME", help="Where the trials run: an executor of `mosaic machines`.")
@click.option("--install-missing", is_flag=True, help="Install what the trials lack before they start.")
@click.option("--worker", metavar="NAME", help="The worker, when several have the algorithm.")
@click.option("--name", help="Name of the sweep.")
@click.option("--tag", "tags", multiple=True, help="A tag of the sweep; may be repeated.")
@click.option(
    "--resume",
    metavar="RUN",
    shell_complete=complete_run,
    help="Continue a finished, failed or cancelled sweep; --trials +20: with more trials.",
)
@click.option("--print", "only_print", is_flag=True, help="Print the config and queue nothing.")
@click.option("-d/-f", "--detach/--follow", help="Queue and return, do not follow.")
@json_option
@click.pass_context
def start_command(ctx: click.Context, /, file: str | None, **options: Any) -> int:
    """Search for good hyper-parameters. Ctrl-C leaves the sweep going.

    \b
      mosaic sweep --algo ppo --env CartPole-v1 --total-timesteps 50k --trials 50 --parallel 2 \\
        --param learning_rate=log:1e-5:1e-2 --param num_steps=int:32:256 --pruner median
      mosaic sweep ./my_ppo.py --env CartPole-v1 --param learning_rate=log:1e-5:1e-2
      mosaic sweep search.toml --trials 100
      mosaic sweep --resume RUN --trials +20
      mosaic sweep show RUN          its trials, best first
      mosaic sweep best RUN          the best values; `mosaic train --from-trial RUN` trains with them
    """
    cli = ctx.find_object(Cli) or Cli()
    if file and file.endswith(".py") and not options["algo"]:
        file, options["algo"] = None, file
    if options["resume"]:
        return _resume(cli, ctx, file, options)
    config = _config(cli, ctx, file, options)
    if options["only_print"]:
        from gym_gui.cli.submit import shown

        write_json_object(shown(config))
        return 0
    with cli.client(start=True) as client:
        run = submit_once(client, config).run
        return _queued(client, run, detach=options["detach"], as_json=options["as_json"])


@sweep_command.command("show")
@one_run
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most so many trials.")
@json_option
@pass_cli
def show_command(cli: Cli, /, run: str, limit: int | None, as_json: bool) -> int:
    """The trials of a sweep, best first."""
    from gym_gui.cli.sweep_display import write_trials

    with cli.client() as client:
        return write_trials(client.local(find_sweep(client, run), *STUDY), limit=limit, as_json=as_json)


@sweep_command.command("best")
@one_run
@json_option
@pass_cli
def best_command(cli: Cli, /, run: str, as_json: bool) -> int:
    """The best values a sweep has found, as flags of `mosaic train`."""
    from gym_gui.cli.sweep_display import write_best

    with cli.client() as client:
        return write_best(client.local(find_sweep(client, run), *STUDY), as_json=as_json)


def find_sweep(client: TrainerClient, name: str) -> pb.Run:
    """Find a sweep by name or id; `last` is the newest sweep, not the newest of its trials."""
    if name in ("last", "@"):
        found = client.list(text=WORKER_TYPE, include_archived=True).runs
        for run in found:
            if run.worker_type == WORKER_TYPE and not client.was_imported(run.run_id):
                return run
    return client.find(name)


# ---------------------------------------------------------------- starting


def _queued(client: TrainerClient, run: pb.Run, *, detach: bool, as_json: bool) -> int:
    if detach:
        message = f"queued; `mosaic sweep show {short_id(run.run_id)}` lists its trials, `mosaic watch` follows it"
        return print_queued(run, message, as_json=as_json)
    notify(f"queued {run.name}  {run.run_id}")
    from gym_gui.cli.sweep_display import follow_sweep, write_end

    ended = follow_sweep(client, run)
    if ended is None:
        known = short_id(run.run_id)
        notify(
            f"\ndetached; the sweep continues\n  follow again   mosaic watch {known}\n"
            f"  its trials     mosaic sweep show {known}\n  end            mosaic cancel {known}"
        )
        return 130
    return write_end(client, ended)


def _resume(cli: Cli, ctx: click.Context, file: str | None, options: dict[str, Any]) -> int:
    allowed = ("resume", "trials", "detach", "as_json")
    if file or any(value for name, value in options.items() if name not in allowed and value is not None):
        raise click.UsageError("a resumed sweep keeps its settings: --resume goes with --trials alone", ctx)
    is_more = ctx.meta.get("mosaic.more_trials", False)
    with cli.client(start=True) as client:
        earlier = find_sweep(client, options["resume"])
        if earlier.worker_type != WORKER_TYPE:
            raise click.UsageError(f"{short_id(earlier.run_id)} is no sweep; `mosaic resume` continues other runs", ctx)
        if earlier.status != RunStatus.TERM and earlier.status != RunStatus.PAUSE:
            raise NotPossibleNow(f"sweep {earlier.run_id} has not ended; `mosaic watch {short_id(earlier.run_id)}`")
        trials = options["trials"] or 0
        more = trials if is_more else max(0, trials - earlier.total)
        if earlier.status == RunStatus.TERM and not more and earlier.step >= earlier.total:
            known = short_id(earlier.run_id)
            raise click.UsageError(
                f"all {earlier.total} trials have ended; how many more? mosaic sweep --resume {known} --trials +20", ctx
            )
        run = client.resume(earlier.run_id, additional_timesteps=more if earlier.status == RunStatus.TERM else 0)
        return _queued(client, run, detach=options["detach"], as_json=options["as_json"])


def _config(cli: Cli, ctx: click.Context, file: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the run config, or report all its problems at once."""
    from gym_gui.cli.algorithms import choose_algorithm, installed_workers
    from gym_gui.cli.scripts import choose_script, is_script
    from gym_gui.services.sweeps import SweepDocument

    document = _read(file) if file else {}
    if "metadata" in document:
        return document  # a run config: the daemon checks it
    problems: list[str] = []
    request = SweepDocument(_merged(document, options, problems))
    workers = installed_workers(cli)
    _require_sweep_worker(workers)
    algo = request.values.get("algo")
    if not isinstance(algo, str) or not algo:
        raise click.UsageError("which algorithm? --algo ppo; `mosaic algos` lists them", ctx)
    if is_script(algo):
        spec, script = choose_script(workers, algo, request.values.get("worker"), "")
        algorithm = script.algorithm
        request.values["extras"] = {**(request.values.get("extras") or {}), "script_path": script.path}
        request.values = {**_script_defaults(script), **request.values}
    else:
        spec, algorithm = choose_algorithm(workers, algo, request.values.get("worker"))
    _read_fixed(request, options["fixed"], algorithm, problems)
    config, wrong = request.config(spec, algorithm)
    problems += [_in_a_sentence(problem) for problem in wrong]
    if problems:
        raise click.UsageError(listed_problems(problems), ctx)
    return config


def _script_defaults(script: ScriptSpec) -> dict[str, Any]:
    """Return the defaults of the script: its environment, its length, and no seed if it has none."""
    from gym_gui.cli.flags import default_of
    from gym_gui.cli.scripts import NO_ENVIRONMENT, facts_of

    algorithm = script.algorithm
    length = default_of(algorithm, "total_timesteps") or facts_of(Path(script.path)).get("total_timesteps")
    defaults = {
        "env_id": default_of(algorithm, "env_id") if algorithm.field("env_id") else NO_ENVIRONMENT,
        "total_timesteps": length,
        "seeds": None if algorithm.open_flags or algorithm.field("seed") else [None],
    }
    return {name: value for name, value in defaults.items() if value}


def _in_a_sentence(problem: Problem) -> str:
    hint = f"; did you mean {problem.suggestion!r}?" if problem.suggestion else ""
    return f"{problem.path}: {problem.message}{hint}" if problem.path else f"{problem.message}{hint}"


def _read(file: str) -> dict[str, Any]:
    data = read_limited(file, MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise click.UsageError(f"{file} is larger than {MAX_BYTES} bytes")
    try:
        text = data.decode()
        document = tomllib.loads(text) if file.endswith(".toml") else json.loads(text)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        kind = "TOML" if file.endswith(".toml") else "JSON"
        raise click.UsageError(f"{file} is not valid {kind}: {error}") from error
    if not isinstance(document, dict):
        raise click.UsageError(f"{file} holds {type(document).__name__}, expected an object (a sweep)")
    return document


def _merged(document: dict[str, Any], options: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the file with what was typed over it."""
    from gym_gui.wording.formats import parse_seeds

    values = dict(document)
    if "env" in values:
        values.setdefault("env_id", values.pop("env"))
    if isinstance(seeds := values.get("seeds"), str):
        try:
            values["seeds"] = parse_seeds(seeds)
        except ValueError as error:
            problems.append(f"seeds: {error}")
    plain = options.keys() - {*_OTHERWISE, *_OF_THE_COMMAND}
    values |= {name: value for name, value in options.items() if name in plain and value is not None}
    ranges = dict(values.get("parameters") or {}) if isinstance(values.get("parameters") or {}, dict) else {}
    for text in options["parameters"]:
        name, is_given, given = text.partition("=")
        if not is_given:
            problems.append(f"--param {text}: write NAME=RANGE, for example learning_rate=log:1e-5:1e-2")
        ranges[name.strip()] = given.strip()
    values["parameters"] = ranges
    if options["install_missing"]:
        values["extras"] = {**(values.get("extras") or {}), "install_missing": True}
    if options["tags"]:
        values["tags"] = [*(values.get("tags") or ()), *options["tags"]]
    resources = {"cpus": options["cpus"], "gpus": options["gpus"], "memory_mb": options["memory_mb"]}
    if given_resources := {name: value for name, value in resources.items() if value is not None}:
        values["resources"] = {**(values.get("resources") or {}), **given_resources}
    if options["executor"]:
        values["scheduling"] = {**(values.get("scheduling") or {}), "executor": options["executor"]}
    return values


def _read_fixed(request: SweepDocument, fixed: tuple[str, ...], algorithm: Any, problems: list[str]) -> None:
    """`--set NAME=VALUE`, read as the algorithm's flag would be."""
    found = dict(request.values.get("fixed") or {})
    for text in fixed:
        name, is_given, value = text.partition("=")
        name = name.strip().replace("-", "_")
        known = algorithm.field(name)
        if not is_given:
            problems.append(f"--set {text}: write NAME=VALUE")
        elif known is None:
            found[name] = value  # unknown names are reported with all other problems
        else:
            try:
                found[name] = known.parse(value)
            except ValueError as error:
                problems.append(str(error))
    if found:
        request.values["fixed"] = found


def _require_sweep_worker(workers: list[InstalledWorker]) -> None:
    known = next((worker for worker in workers if worker.name == WORKER_TYPE), None)
    if known is None:
        raise click.ClickException(
            "sweeps need the sweep worker, which is not installed; in MOSAIC's folder: "
            f"{sys.executable} -m pip install -r requirements/sweep_worker.txt"
        )
    if known.spec is None:
        raise click.ClickException(f"the sweep worker cannot be used: {known.problem}")


# ---------------------------------------------------------------- training with a trial's values


def queue_trial(client: TrainerClient, trial_name: str, options: dict[str, Any]) -> list[pb.Run]:
    """Queue runs with the values of the best trial of a sweep, or of the one after the colon; one run per seed."""
    name, _, number = trial_name.partition(":")
    if number and not number.isdigit():
        raise click.UsageError(f"--from-trial {trial_name}: the trial is a number: {name}:3")
    sweep = find_sweep(client, name)
    try:
        here = client.local(sweep, *STUDY)
        trial = trial_of(here, int(number) if number else None)
        config = config_of_trial(here, trial)
    except SweepUnreadable as error:
        raise click.ClickException(str(error)) from error
    values = ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in trial.params.items()
    )
    notify(f"trial {trial.number} of {short_id(sweep.run_id)}: {values}")
    for notice in use_trials_script(sweep, trial, config, client):
        notify(f"mosaic: {notice}")
    _adjust(config, options)
    usual = [None] if settings_of(here).get("seeds") == [None] else [1]
    seeds = options["seeds"] or ([options["seed"]] if options["seed"] is not None else usual)
    key = options["idempotency_key"] or secrets.token_hex(16)
    runs = []
    for seed in seeds:
        worker_part(config)["seed"] = seed
        config["run_name"] = (options["name"] or f"trial-{trial.number}-of-{short_id(sweep.run_id)}") + (
            f"-s{seed}" if len(seeds) > 1 else ""
        )
        runs.append(submit_once(client, config, f"{key}-s{seed}").run)
    return runs


def _adjust(config: dict[str, Any], options: dict[str, Any]) -> None:
    """Apply the run's settings on the command line to a config; those of the algorithm come from the trial."""
    worker = worker_part(config)
    if options["total_timesteps"]:
        worker["total_timesteps"] = options["total_timesteps"]
    from gym_gui.cli.train import resources_of

    for key, given in resources_of(options).items():
        found = {name: value for name, value in given.items() if value is not None}
        config[key] = {**config.get(key, {}), **found}
    config["tags"] = [*config.get("tags", []), *options["tags"]]
