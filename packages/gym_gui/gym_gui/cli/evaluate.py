"""`mosaic eval` and `mosaic resume --checkpoint`: play a trained policy, or continue training it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from mosaic_wire.env_kwargs import parse_env_kwargs
from mosaic_wire.ids import is_run_id
from mosaic_wire.manifest import POLICY_SUFFIX, AnalyticsManifest
from mosaic_wire.paths import user_path
from mosaic_wire.run_request import NOT_TRAINING, Extras, Mode, run_request, worker_part
from mosaic_wire.run_status import RunStatus
from mosaic_wire.worker_spec import AlgorithmSpec

from gym_gui.cli.algorithms import choose_algorithm, installed_workers
from gym_gui.cli.context import POSITIVE, Cli, complete_run, json_option, notify, pass_cli
from gym_gui.cli.flags import default_of
from gym_gui.cli.submit import follow_or_print, submit_once
from gym_gui.services import policy_files, run_configs
from gym_gui.services.policy_files import Chosen
from gym_gui.services.trainer.errors import RunNotFound
from gym_gui.wording.run_view import extras_of, short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.trainer.client import TrainerClient


@click.command()
@click.argument("policy", metavar="RUN|CKPT", required=False, shell_complete=complete_run)
@click.option("--random", "random_env", metavar="ENV", help="Instead: a policy that acts at random in ENV.")
@click.option("--episodes", type=POSITIVE, default=20, show_default=True, metavar="N", help="Episodes to play.")
@click.option("--video", is_flag=True, help="Record the first episode (requirement set video).")
@click.option("--gamma", type=click.FloatRange(0, 1), metavar="G", help="Of the discounted return, if not as trained.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, metavar="N", help="Batches of so many episodes.")
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Environments stepped together.")
@click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Cut an episode after so many steps.")
@click.option("--max-seconds", type=click.FloatRange(min=0), metavar="S", help="Cut an episode after so long.")
@click.option("--stochastic", is_flag=True, help="Sample actions instead of taking the best.")
@click.option("--no-statistics", is_flag=True, help="Of a file without a normalizer's statistics: play it without.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Another seed than the training's.")
@click.option("--env-id", metavar="ENV", help="Another environment than it was trained in.")
@click.option("--env-kwargs", metavar="KWARGS", help="Arguments of the environment: is_slippery=false, or JSON.")
@click.option("--algo", metavar="ALGO", help="The algorithm, for a file that does not name it.")
@click.option("--checkpoint", default="", metavar="STEP", help="This checkpoint of the run, not its last.")
@click.option("--name", help="Name of the evaluation.")
@click.option("--tag", "tags", multiple=True, help="A tag; may be repeated.")
@click.option("--expect-return", type=float, metavar="X", help="Exit 1 when the mean return is below this.")
@click.option("--install-missing", is_flag=True, help="Install what the evaluation lacks before it starts.")
@click.option("-d/-f", "--detach/--follow", help="Queue and return, do not follow.")
@click.option("--on", "executor", metavar="NAME", help="Where to run: an executor of `mosaic machines`.")
@json_option
@pass_cli
def eval_command(cli: Cli, /, policy: str | None, random_env: str | None, **options: Any) -> int:
    """Evaluate a policy: of a run, a checkpoint folder, or a .cleanrl_model file; or one that acts at random.

    It is queued like a training; figures are in the run, in eval_summary.json and in TensorBoard.
    """
    if (policy is None) == (random_env is None):
        raise click.UsageError("whose policy? Give a RUN or CKPT, or --random ENV")
    with cli.client(start=True) as client:
        if random_env is not None:
            chosen = Chosen("", f"a random policy in {random_env}", algo=options["algo"] or "ppo", env_id=random_env)
        else:
            chosen = choose(client, str(policy), options["checkpoint"])
        config = evaluation_config(cli, chosen, options)
        if options["executor"]:
            config["scheduling"] = {"executor": options["executor"]}
        answer, as_json = submit_once(client, config), options["as_json"]
        run = answer.run
        for note in answer.notes:
            notify(f"note: {note}")
        detach, expected = options["detach"] or as_json, options["expect_return"]
        return follow_or_print(client, run, detach=detach, as_json=as_json, expect_return=expected)


def evaluation_config(cli: Cli, chosen: Chosen, options: dict[str, Any]) -> dict[str, Any]:
    """Return the run config of an evaluation."""
    algo, env_id = options["algo"] or chosen.algo, options["env_id"] or chosen.env_id
    missing = [flag for flag, value in (("--algo", algo), ("--env-id", env_id)) if not value]
    if missing:
        raise click.UsageError(f"{chosen.title} does not name what it was trained with; give {' and '.join(missing)}")
    spec, algorithm = choose_algorithm(installed_workers(cli), algo, chosen.worker_type or None)
    if Mode.EVALUATE not in algorithm.modes:
        raise click.UsageError(f"policies of {algo!r} (worker {spec.name}) cannot be evaluated")
    try:
        env_kwargs = parse_env_kwargs(options["env_kwargs"] or "")
    except ValueError as error:
        raise click.UsageError(f"--env-kwargs {error}") from None
    settings: Extras = {
        "env_kwargs": env_kwargs or None,
        "eval_gamma": options["gamma"],
        "eval_batch_size": options["batch_size"],
        "eval_max_episode_steps": options["max_steps"],
        "eval_max_episode_seconds": options["max_seconds"],
        "eval_capture_video": True if options["video"] else None,
        "eval_deterministic": False if options["stochastic"] else None,
        "policy_statistics": "none" if options["no_statistics"] else None,
        "install_missing": True if options["install_missing"] else None,
    }
    return run_configs.evaluation_config(
        worker_type=spec.name,
        module=spec.module,
        algo=algo,
        env_id=env_id,
        checkpoint=chosen.path or None,
        episodes=options["episodes"],
        repeat=options["repeat"],
        seed=options["seed"] if options["seed"] is not None else chosen.seed,
        name=options["name"] or f"eval of {chosen.title}",
        tags=options["tags"],
        settings=settings,
    )


# ---------------------------------------------------------------- which policy is meant


__all__ = ["Chosen", "choose", "of_path"]


def choose(client: TrainerClient, source: str, checkpoint: str = "") -> Chosen:
    """Return the policy in `source`: a run (or one checkpoint of it), a checkpoint folder, or a file with weights."""
    path = user_path(source)
    if path.suffix == POLICY_SUFFIX or path.exists():
        if checkpoint:
            raise click.UsageError("--checkpoint chooses among the checkpoints of a run; a path names one already")
        refuse_own_path(client, path)
        return of_path(path)
    return _of_run(client, client.find(source), checkpoint)


def refuse_own_path(client: TrainerClient, path: Path) -> None:
    """Refuse a path of this machine for a daemon that cannot read it."""
    if not client.copies.is_here:
        raise click.UsageError(
            f"{path} is on this machine, and the daemon at {client.target} reads files of its own; name a run of it, "
            "or `mosaic import` an archive of the run there first"
        )


def _of_run(client: TrainerClient, run: pb.Run, checkpoint: str) -> Chosen:
    extras = extras_of(run)
    if extras.get("mode") in NOT_TRAINING:
        raise click.UsageError(f"{short_id(run.run_id)} trained no policy: its mode was {extras['mode']}")
    if run.status == RunStatus.TERM and not run.started_at:
        raise click.UsageError(f"run {short_id(run.run_id)} never started, so it has no policy")
    if extras.get("script_path") and run.status == RunStatus.TERM and _saved_no_model(client, run):
        raise click.UsageError(f"run {short_id(run.run_id)} saved no model: its script wrote no {POLICY_SUFFIX} file")
    schedule = extras.get("curriculum_schedule")
    path = run.run_id
    if checkpoint:
        path = str(Path(run.run_dir) / "checkpoints" / f"step-{checkpoint.rpartition('step-')[2].strip('/')}")
    seed = run.seed if run.HasField("seed") else None
    return Chosen(
        path,
        short_id(run.run_id),
        run.worker_type,
        run.algo,
        _last_env(schedule) or run.env_id,
        seed,
        run.step,
        curriculum=schedule,
    )


def _saved_no_model(client: TrainerClient, run: pb.Run) -> bool:
    """Return whether the run's manifest names none."""
    manifest = AnalyticsManifest.find(Path(client.local(run, "run/analytics.json").run_dir) / "analytics.json")
    return manifest is not None and not manifest.policy


def _last_env(schedule: Any) -> str:
    """Return the last environment of a curriculum, in which its policy is evaluated."""
    if isinstance(schedule, dict):
        schedule = schedule.get("stages")
    last = schedule[-1] if isinstance(schedule, list) and schedule else None
    return str(last.get("env_id") or "") if isinstance(last, dict) else ""


def of_path(path: Path) -> Chosen:
    """Return a checkpoint folder or a file with weights, by what lies in it and around it."""
    try:
        return policy_files.of_path(path)
    except policy_files.NoPolicy as error:
        raise click.UsageError(str(error)) from error


# ---------------------------------------------------------------- resuming from a checkpoint


_GIVEN_ELSEWHERE = ("env_id", "seed", "total_timesteps", "track", "cuda")


def resume_checkpoint(
    cli: Cli,
    source: str,
    *,
    timesteps: int | None,
    algo: str | None,
    env_id: str | None,
    no_statistics: bool,
    follow: bool,
) -> int:
    """Queue a run that resumes from this folder or file."""
    path = user_path(source)
    if not path.exists():
        raise click.UsageError(f"there is no {path}; name the run in front to choose one of its checkpoints")
    chosen = of_path(path)
    with cli.client(start=True) as client:
        refuse_own_path(client, path)
        owner = path.parent.parent
        if not chosen.weights_only and is_run_id(owner.name) and owner == cli.home.run_folder(owner.name).root:
            try:  # one of this home's runs: the daemon knows its config
                run = client.resume(
                    owner.name, additional_timesteps=timesteps or 0, checkpoint=f"checkpoints/{path.name}"
                )
                return follow_or_print(client, run, detach=not follow)
            except RunNotFound:
                pass  # its folder was copied here without the run
        config = _config(cli, chosen, timesteps, algo or chosen.algo, env_id or chosen.env_id)
        if no_statistics:
            worker_part(config)["extras"]["policy_statistics"] = "none"
        return follow_or_print(client, submit_once(client, config).run, detach=not follow)


def _config(cli: Cli, chosen: Chosen, timesteps: int | None, algo: str, env_id: str) -> dict[str, Any]:
    missing = [flag for flag, value in (("--algo", algo), ("--env-id", env_id)) if not value]
    if missing:
        raise click.UsageError(f"{chosen.title} does not name what it was trained with; give {' and '.join(missing)}")
    spec, algorithm = choose_algorithm(installed_workers(cli), algo, None)
    total = chosen.step + timesteps if timesteps else chosen.args.get("total_timesteps")
    total = total or default_of(algorithm, "total_timesteps")
    if not total or total <= chosen.step:
        raise click.UsageError(f"{chosen.title} has trained {chosen.step} steps; choose how many more: --timesteps N")
    return run_request(
        spec.name,
        module=spec.module,
        algo=algo,
        env_id=env_id,
        total_timesteps=total,
        seed=chosen.seed if isinstance(chosen.seed, int) else None,
        extras={"mode": Mode.RESUME, "checkpoint_path": chosen.path, "algo_params": _flags(chosen, algorithm)},
    )


def _flags(chosen: Chosen, algorithm: AlgorithmSpec) -> dict[str, Any]:
    """Return the flags it was trained with, as far as the algorithm still has them."""
    return {
        name: value
        for name, value in chosen.args.items()
        if name not in _GIVEN_ELSEWHERE
        and (known := algorithm.field(name)) is not None
        and value != known.default
        and known.problem_with(value) is None
    }
