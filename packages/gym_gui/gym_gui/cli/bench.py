"""`mosaic bench`: algorithms in environments with several seeds, followed to their end, and a report of them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from mosaic_wire.redaction import is_secret_key
from mosaic_wire.run_status import RunOutcome, RunStatus

from gym_gui.cli.algorithms import InstalledWorker, choose_algorithm, installed_workers
from gym_gui.cli.context import FOLDER, Cli, notify, pass_cli
from gym_gui.cli.flags import Seeds, Steps, listed_problems, sentence_of
from gym_gui.cli.scripts import choose_script, is_script
from gym_gui.cli.submit import submit_once
from gym_gui.services.analytics.bench_plan import BenchPlan, Cell, Misfit, config_of, key_of, tag_of
from gym_gui.services.trainer.errors import InvalidConfig, TrainerError
from gym_gui.wording import formats
from gym_gui.wording.run_view import short_id, state_of, title_of

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.bench_plan import BenchPlan, Choice
    from gym_gui.services.analytics.bench_report import Bench
    from gym_gui.services.analytics.comparison import Comparison, GroupFigures
    from gym_gui.services.analytics.published import PublishedComparison
    from gym_gui.services.trainer.client import TrainerClient

T = TypeVar("T")


class CommaSeparated(click.ParamType[tuple[str, ...]]):
    """Distinct names, separated by commas."""

    name = "NAME,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(name.strip() for name in str(value).split(",") if name.strip()))
        return names or self.fail("expected names with commas between them", param, ctx)


@click.command()
@click.option("--algos", type=CommaSeparated(), help="Algorithms, or files of your own: ppo,./my_ppo.py.")
@click.option("--envs", type=CommaSeparated(), help="Environments: CartPole-v1,Acrobot-v1.")
@click.option("--models", type=CommaSeparated(), help="Language models, for algorithms that ask one: llama3.2,qwen3.")
@click.option("--seeds", type=Seeds(), default="1-5", show_default=True, help="One run per seed: 1-5 or 1,3,7.")
@click.option("--total-timesteps", type=Steps(), help="Steps of each run.  [default: the algorithm's]")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of all algorithms, or of one: ppo.num_envs=8; may be repeated.",
)
@click.option("--name", help="Name of the benchmark.  [default: made from the settings]")
@click.option("--parallel", is_flag=True, help="As many at a time as there is room for; else one, undisturbed.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, metavar="N", help="GPUs to reserve for each run.")
@click.option("--on", "executor", metavar="NAME", help="Where to run: an executor of `mosaic machines`.")
@click.option("--retry-failed", is_flag=True, help="Queue runs of this benchmark that failed once more.")
@click.option("--install-missing", is_flag=True, help="Install what a run lacks before it starts.")
@click.option("--worker", metavar="NAME", help="The worker, when several have an algorithm.")
@click.option("--out", type=FOLDER, metavar="DIR", help="Folder of the report.  [default: bench-<NAME>]")
@click.option("--no-follow", is_flag=True, help="Queue and return; --report-only writes the report later.")
@click.option("--report-only", metavar="NAME", help="Write the report of this benchmark as it is now.")
@pass_cli
def bench_command(cli: Cli, /, report_only: str | None, out: Path | None, **options: Any) -> int:
    """Train algorithms in environments with several seeds and write a report: report.md, plots, CSV.

    \b
      mosaic bench --algos ppo,dqn --envs CartPole-v1,Acrobot-v1 --seeds 1-5
      mosaic bench --worker llm --models llama3.2,qwen3 --envs FrozenLake-v1 --set base_url=http://127.0.0.1:11434/v1
      mosaic bench --report-only NAME

    The daemon carries it out: Ctrl-C or a closed terminal stops nothing, and the same command continues with the same
    runs. More seeds under the same name add to it. Exit code 1: a run failed; the report is written all the same.
    """
    if report_only is not None:
        return _report_only(cli, _checked_name(report_only), out)
    if options["models"] and options["worker"] and not options["algos"]:
        options["algos"] = _those_that_ask_models(cli, options["worker"])
    missing = [f"--{name}" for name in ("algos", "envs") if not options[name]]
    if missing:
        raise click.UsageError(f"what is to be compared? {' and '.join(missing)} (or --report-only NAME)")
    plan = _plan(cli, options)
    folder = out or Path(f"bench-{plan.name}")
    _check_place(folder)
    with cli.client(start=True) as client:
        return _carry_out(client, plan, folder, options)


def _plan(cli: Cli, options: dict[str, Any]) -> BenchPlan:
    from gym_gui.services.analytics.bench_plan import make_plan, parse_setting

    name = _checked_name(options["name"]) if options["name"] is not None else ""
    settings = [_said_by(parse_setting, text) for text in options["settings"]]
    workers = installed_workers(cli)
    choices, scripts = _choices(workers, options)

    plan = make_plan(
        choices,
        options["envs"],
        options["seeds"],
        total_timesteps=options["total_timesteps"],
        settings=settings,
        name=name,
        scripts=scripts,
        models=options["models"] or (),
    )
    if plan.problems:
        raise click.UsageError(listed_problems(plan.problems))
    return plan


def _those_that_ask_models(cli: Cli, name: str) -> tuple[str, ...]:
    from gym_gui.services.analytics.bench_plan import MODEL

    specs = [worker.spec for worker in installed_workers(cli) if worker.spec is not None and worker.spec.name == name]
    return tuple(algorithm.name for spec in specs for algorithm in spec.algorithms if algorithm.field(MODEL))


def _choices(
    workers: Sequence[InstalledWorker], options: dict[str, Any]
) -> tuple[list[Choice], dict[str, tuple[str, str]]]:
    """Return the algorithms, and path and hash of those that are files of the user's own."""
    choices: list[Choice] = []
    scripts: dict[str, tuple[str, str]] = {}
    for algo in options["algos"]:
        if is_script(algo):
            spec, script = choose_script(workers, algo, options["worker"], "")
            choices.append((spec, script.algorithm))
            scripts[script.algorithm.name] = (script.path, script.sha256)
        else:
            choices.append(choose_algorithm(workers, algo, options["worker"]))
    return choices, scripts


def _check_place(folder: Path) -> None:
    """Check before training that the report can be written."""
    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"the report cannot be written to {folder}: {error.strerror}") from error
    if not os.access(folder if folder.exists() else folder.absolute().parent, os.W_OK | os.X_OK):
        raise click.UsageError(f"the report cannot be written to {folder}: the folder is not yours to write to")


def _carry_out(client: TrainerClient, plan: BenchPlan, folder: Path, options: dict[str, Any]) -> int:
    from gym_gui.services.analytics.bench_report import Bench

    # Alone on the machine by reserving it whole: the daemon enforces it.
    executor = options["executor"] or ""
    cpus = 1.0 if options["parallel"] or executor else max(1.0, client.health().cpus_total)
    queue_options = QueueOptions(cpus, options["gpus"], options["install_missing"], options["retry_failed"], executor)
    queued = queue(client, plan, queue_options)
    for each in queued.misfits:
        notify(f"left out: {each.algo} on {each.env_id}: {each.reason}")
    if not queued.runs and not queued.refused:
        raise click.UsageError("none of these algorithms can play any of these environments")
    for title, reason in queued.refused:
        notify(f"mosaic: {title} was not queued: {reason}")
    if any("--" in reason for _, reason in queued.refused):
        notify("a flag of an algorithm, --base-url X, is written --set base_url=X here")
    if not queued.runs:
        return 1
    _print_queued(plan, queued.runs, queued.known, one_at_a_time=not options["parallel"])
    if options["no_follow"]:
        for run in queued.runs:
            click.echo(run.run_id)
        notify(f"`mosaic bench --report-only {plan.name}` writes the report, now or later")
        return 1 if queued.refused else 0
    runs: list[pb.Run] | None = queued.runs
    if queued.runs:
        from gym_gui.cli.progress import follow

        runs = follow(client, queued.runs, headline=lambda each: headline_of(plan.name, each))
    if runs is None:
        notify(f"\ndetached; the runs continue\n  resume and report  {command_of(plan, options)}")
        notify(f"  end them           mosaic cancel {' '.join(short_id(run.run_id) for run in queued.runs)}")
        return 130
    bench = Bench(plan.name, tuple(runs), tuple(queued.misfits), tuple(queued.refused), command_of(plan, options))
    return _write(client, bench, folder)


def _report_only(cli: Cli, name: str, out: Path | None) -> int:
    from gym_gui.services.analytics.bench_plan import tag_of
    from gym_gui.services.analytics.bench_report import Bench

    with cli.client() as client:
        runs = newest_tries(runs_of(client, name))
        if not runs:
            raise click.UsageError(f"no run has the tag {tag_of(name)}; `mosaic bench --name {name} …` makes them")
        return _write(client, Bench(name, tuple(runs)), out or Path(f"bench-{name}"))


def _write(client: TrainerClient, bench: Bench, folder: Path) -> int:
    from gym_gui.cli.compare import find_baselines
    from gym_gui.services.analytics.bench_report import REPORT, write_report

    baselines = find_baselines(client, bench.completed, measure=True)
    written = write_report(client, bench, folder, baselines=baselines)
    if written.comparison is not None:
        _write_groups(written.comparison)
    for run in bench.failed:
        notify(f"mosaic: {title_of(run)} {state_of(run)} ({short_id(run.run_id)}): {' '.join(run.reason.split())}")
    if bench.unfinished:
        notify(f"{formats.plural(len(bench.unfinished), 'run')} of it have not ended and are in no figure")
    click.echo(str(written.folder / REPORT))
    return 1 if bench.failed or bench.refused else 0


def _write_groups(comparison: Comparison) -> None:
    from gym_gui.cli.compare import fact_columns
    from gym_gui.cli.listing import Column, write_table
    from gym_gui.services.analytics.comparison import estimate_text, number
    from gym_gui.services.analytics.published import compare_with_published

    groups = comparison.groups
    best, area = (
        [number(each.value if each else None) for each in figures]
        for figures in ([group.best for group in groups], [group.auc for group in groups])
    )
    held = [compare_with_published(group, comparison) for group in groups]
    write_table(
        [
            Column("ALGO", [_player(group) for group in groups], shrink_to=8),
            Column("ENV", [group.environment for group in groups], shrink_to=11),
            Column("SEEDS", [str(len(group.run_ids)) for group in groups], right=True),
            Column("FINAL (IQM, 95 %)", [estimate_text(group.final_iqm) for group in groups], right=True),
            Column("BEST", best, right=True, optional=3),
            Column("AUC", area, right=True, optional=4),
            Column("SPS", [formats.count(group.sps) if group.sps else "" for group in groups], right=True, optional=2),
            *fact_columns(comparison, groups),
            Column("LEARNED", [str(group.learned) for group in groups]),
            Column("PUBLISHED", [_published(each) for each in held], optional=1),
            Column("REACHED", [each.short_text if each else "" for each in held]),
        ]
    )


def _player(group: GroupFigures) -> str:
    """The algorithm, with its model where groups differ in that."""
    from gym_gui.services.analytics.bench_plan import MODEL

    model = group.parameters.get(MODEL, "")
    return f"{group.algo} {model}".strip()


def _published(held: PublishedComparison | None) -> str:
    if held is None:
        return ""
    theirs = held.published
    return (
        f"{formats.quantity(theirs.mean)} ± {formats.quantity(theirs.std)} ({formats.short_count(theirs.steps)} steps)"
    )


def _print_queued(plan: BenchPlan, runs: Sequence[pb.Run], known: int, *, one_at_a_time: bool) -> None:
    new = len(runs) - known
    parts = [f"queued {formats.plural(new, 'run')}"] if new else []
    if known:
        parts.append(f"{formats.plural(known, 'run')} of it {'was' if known == 1 else 'were'} there already")
    how = ", one at a time (--parallel: as many as fit)" if one_at_a_time and new > 1 else ""
    notify(f"benchmark {plan.name}: {', '.join(parts) or 'nothing to do'}{how}")


def headline_of(name: str, runs: Sequence[pb.Run]) -> str:
    """`bench NAME: 3 of 6 done, 1 failed, 1 running`"""
    ended = [run for run in runs if run.status == RunStatus.TERM]
    failed = sum(run.outcome != RunOutcome.COMPLETED for run in ended)
    running = sum(run.status == RunStatus.EXEC for run in runs)
    parts = [f"{len(ended)} of {len(runs)} done"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{running} running"] if running else []
    return f"bench {name}: {', '.join(parts)}"


def command_of(plan: BenchPlan, options: dict[str, Any]) -> str:
    """Return the shell command that continues this benchmark."""
    from gym_gui.ui.presenters.workers.train_request import seeds_text

    argv = ["mosaic", "bench", "--algos", ",".join(options["algos"]), "--envs", ",".join(options["envs"])]
    argv += ["--seeds", seeds_text(options["seeds"])]
    if options["total_timesteps"]:
        argv += ["--total-timesteps", str(options["total_timesteps"])]
    argv += ["--models", ",".join(options["models"])] if options.get("models") else []
    for setting in options["settings"]:
        name = setting.partition("=")[0]
        argv += ["--set", f"{name}=…" if is_secret_key(name) else setting]
    argv += ["--worker", options["worker"]] if options["worker"] else []
    argv += ["--gpus", str(options["gpus"])] if options["gpus"] else []
    argv += ["--install-missing"] if options["install_missing"] else []
    argv += ["--parallel"] if options["parallel"] else []
    return shlex.join([*argv, "--name", plan.name])


def _checked_name(name: str) -> str:
    from gym_gui.services.analytics.bench_plan import check_name

    return _said_by(check_name, name)


def _said_by(read: Callable[[str], T], text: str) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


# ---------------------------------------------------------------- queueing


_ENVIRONMENT, _THOSE_OF = "metadata.worker.config.env_id", "; those of "
"""A worker's message such as: ppo needs discrete actions; those of Pendulum-v1 are …"""
_RETRY = "retry-of:"
"""Tag of a run that was queued because an earlier one of its cell failed"""


@dataclass
class Queued:
    """The runs of a plan, in its order; new ones and those that were known."""

    runs: list[pb.Run] = field(default_factory=list)
    known: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    misfits: list[Misfit] = field(default_factory=list)
    """Combinations that are left out"""


@dataclass(frozen=True)
class QueueOptions:
    """Resources of each run, and whether failed runs are retried."""

    cpus: float
    gpus: int = 0
    install_missing: bool = False
    retry_failed: bool = False
    executor: str = ""


def queue(client: TrainerClient, plan: BenchPlan, options: QueueOptions) -> Queued:
    """Queue the missing cells; note a cell that the daemon refuses, and continue."""
    queued = Queued()
    retried = _retried(runs_of(client, plan.name))
    for cell in plan.cells:
        if any((cell.algo, cell.env_id) == (each.algo, each.env_id) for each in queued.misfits):
            continue
        try:
            run, is_known = _submit(client, plan, cell, options, key_of(plan.name, cell))
            while run.run_id in retried:
                run, is_known = retried[run.run_id], True
            if options.retry_failed and run.outcome in (RunOutcome.FAILED, RunOutcome.CANCELLED):
                run, is_known = _submit(
                    client, plan, cell, options, f"{key_of(plan.name, cell)}:after:{run.run_id}", run
                )
        except InvalidConfig as error:
            if all(problem.path == _ENVIRONMENT and _THOSE_OF in problem.message for problem in error.problems):
                queued.misfits.append(Misfit(cell.algo, cell.env_id, error.problems[0].message))
                continue
            queued.refused.append((cell.title, "; ".join(map(sentence_of, error.problems))))
            continue
        except TrainerError:
            if queued.runs:
                notify(f"mosaic: {len(queued.runs)} of {len(plan.cells)} runs are queued; the same command continues")
            raise
        queued.runs.append(run)
        queued.known += is_known
    return queued


def runs_of(client: TrainerClient, name: str) -> list[pb.Run]:
    """Return every run of a benchmark, the oldest first."""
    return sorted(client.list(tags=[tag_of(name)], include_archived=True).runs, key=lambda run: run.number)


def newest_tries(runs: Sequence[pb.Run]) -> list[pb.Run]:
    """Without those that failed and were queued again."""
    replaced = _retried(runs).keys()
    return [run for run in runs if run.run_id not in replaced]


def _submit(
    client: TrainerClient, plan: BenchPlan, cell: Cell, options: QueueOptions, key: str, failed: pb.Run | None = None
) -> tuple[pb.Run, bool]:
    config = config_of(
        plan,
        cell,
        cpus=options.cpus,
        gpus=options.gpus,
        install_missing=options.install_missing,
        executor=options.executor,
    )
    if failed is not None:
        config["tags"].append(f"{_RETRY}{failed.run_id}")
    answer = submit_once(client, config, key)
    return answer.run, answer.already_known


def _retried(runs: Sequence[pb.Run]) -> dict[str, pb.Run]:
    """Return which run was queued in place of one that failed."""
    return {tag.removeprefix(_RETRY): run for run in runs for tag in run.tags if tag.startswith(_RETRY)}
