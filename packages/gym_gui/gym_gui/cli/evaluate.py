"""`mosaic eval`: play a trained policy and see how well it does."""

from __future__ import annotations

from typing import Any

import click

from gym_gui.cli.algorithms import choose_algorithm, installed_workers
from gym_gui.cli.checkpoint_word import Chosen, choose
from gym_gui.cli.context import Cli, complete_run, json_option, pass_cli
from gym_gui.cli.queued import follow_or_tell, submit
from gym_gui.services import run_configs

DEFAULT_EPISODES = 20


@click.command()
@click.argument("policy", metavar="RUN|CKPT", required=False, shell_complete=complete_run)
@click.option("--random", "random_env", metavar="ENV", help="Instead: a policy that acts at random in ENV.")
@click.option("--episodes", type=click.IntRange(min=1), default=DEFAULT_EPISODES, show_default=True, metavar="N",
              help="Episodes to play.")  # fmt: skip
@click.option("--video", is_flag=True, help="Record the first episode (requirement set video).")
@click.option("--gamma", type=click.FloatRange(0, 1), metavar="G", help="Of the discounted return, if not as trained.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, metavar="N", help="Batches of so many episodes.")
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Environments stepped together.")
@click.option("--max-steps", type=click.IntRange(min=1), metavar="N", help="Cut an episode after so many steps.")
@click.option("--max-seconds", type=click.FloatRange(min=0), metavar="S", help="Cut an episode after so long.")
@click.option("--stochastic", is_flag=True, help="Sample actions instead of taking the best.")
@click.option("--no-statistics", is_flag=True, help="Of a file without a normaliser's statistics: play it without.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Another seed than the training's.")
@click.option("--env-id", metavar="ENV", help="Another environment than it was trained in.")
@click.option("--algo", metavar="ALGO", help="The algorithm, for a file that does not say it.")
@click.option("--checkpoint", default="", metavar="STEP", help="This checkpoint of the run, not its last.")
@click.option("--name", help="Name of the evaluation.")
@click.option("--tag", "tags", multiple=True, help="A tag; may be repeated.")
@click.option("--expect-return", type=float, metavar="X", help="Exit 1 when the mean return is below this.")
@click.option("--install-missing", is_flag=True, help="Install what the evaluation lacks before it starts.")
@click.option("-d/-f", "--detach/--follow", help="Queue and return, do not follow.")
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
        return follow_or_tell(
            client, submit(client, config), detach=options["detach"] or options["as_json"], as_json=options["as_json"],
            expect_return=options["expect_return"],
        )  # fmt: skip


def evaluation_config(cli: Cli, chosen: Chosen, options: dict[str, Any]) -> dict[str, Any]:
    """The run config of an evaluation."""
    algo, env_id = options["algo"] or chosen.algo, options["env_id"] or chosen.env_id
    missing = [flag for flag, value in (("--algo", algo), ("--env-id", env_id)) if not value]
    if missing:
        raise click.UsageError(f"{chosen.title} does not say what it was trained with; give {' and '.join(missing)}")
    spec, algorithm = choose_algorithm(installed_workers(cli), algo, chosen.worker_type or None)
    if "policy_eval" not in algorithm.modes:
        raise click.UsageError(f"policies of {algo!r} (worker {spec.name}) cannot be evaluated")
    settings = {
        "eval_gamma": options["gamma"], "eval_batch_size": options["batch_size"],
        "eval_max_episode_steps": options["max_steps"], "eval_max_episode_seconds": options["max_seconds"],
        "eval_capture_video": True if options["video"] else None,
        "eval_deterministic": False if options["stochastic"] else None,
        "policy_statistics": "none" if options["no_statistics"] else None,
        "install_missing": True if options["install_missing"] else None,
    }  # fmt: skip
    return run_configs.evaluation_config(
        worker_type=spec.name, module=spec.module, algo=algo, env_id=env_id, checkpoint=chosen.path or None,
        episodes=options["episodes"], repeat=options["repeat"],
        seed=options["seed"] if options["seed"] is not None else chosen.seed,
        name=options["name"] or f"eval of {chosen.title}", tags=options["tags"], settings=settings,
    )  # fmt: skip
