"""`mosaic resume --checkpoint PATH`: train on from a checkpoint, whoever wrote it."""

from __future__ import annotations

from typing import Any

import click
from mosaic_wire.ids import is_run_id
from mosaic_wire.paths import person_path
from mosaic_wire.worker_spec import AlgorithmSpec

from gym_gui.cli.algorithms import choose_algorithm, installed_workers
from gym_gui.cli.checkpoint_word import Chosen, of_path
from gym_gui.cli.context import Cli
from gym_gui.cli.flags import default_of
from gym_gui.cli.queued import follow_or_tell, submit
from gym_gui.services.trainer.errors import RunNotFound

_SAID_ELSEWHERE = ("env_id", "seed", "total_timesteps", "track", "cuda")


def resume_checkpoint(
    cli: Cli, word: str, *, timesteps: int | None, algo: str | None, env_id: str | None, no_statistics: bool,
    follow: bool,
) -> int:  # fmt: skip
    """Queue a run that goes on from this folder or file."""
    path = person_path(word)
    if not path.exists():
        raise click.UsageError(f"there is no {path}; name the run in front to choose one of its checkpoints")
    chosen = of_path(path)
    with cli.client(start=True) as client:
        owner = path.parent.parent
        if not chosen.weights_only and is_run_id(owner.name) and owner == cli.home.run_folder(owner.name).root:
            try:  # one of this home's runs: the daemon knows its config
                run = client.resume(
                    owner.name, additional_timesteps=timesteps or 0, checkpoint=f"checkpoints/{path.name}"
                )
                return follow_or_tell(client, run, detach=not follow)
            except RunNotFound:
                pass  # its folder was copied here without the run
        config = _config(cli, chosen, timesteps, algo or chosen.algo, env_id or chosen.env_id)
        if no_statistics:
            config["metadata"]["worker"]["config"]["extras"]["policy_statistics"] = "none"
        return follow_or_tell(client, submit(client, config), detach=not follow)


def _config(cli: Cli, chosen: Chosen, timesteps: int | None, algo: str, env_id: str) -> dict[str, Any]:
    missing = [flag for flag, value in (("--algo", algo), ("--env-id", env_id)) if not value]
    if missing:
        raise click.UsageError(f"{chosen.title} does not say what it was trained with; give {' and '.join(missing)}")
    spec, algorithm = choose_algorithm(installed_workers(cli), algo, None)
    total = chosen.step + timesteps if timesteps else chosen.args.get("total_timesteps")
    total = total or default_of(algorithm, "total_timesteps")
    if not total or total <= chosen.step:
        raise click.UsageError(f"{chosen.title} has trained {chosen.step} steps; say how many more: --timesteps N")
    worker_config: dict[str, Any] = {
        "run_id": "${RUN_ID}", "algo": algo, "env_id": env_id, "total_timesteps": total,
        "extras": {
            "mode": "resume_training", "checkpoint_path": chosen.path, "algo_params": _flags(chosen, algorithm)
        },
        **({"seed": chosen.seed} if isinstance(chosen.seed, int) else {}),
    }  # fmt: skip
    return {"metadata": {"worker": {"type": spec.name, "module": spec.module, "config": worker_config}}}


def _flags(chosen: Chosen, algorithm: AlgorithmSpec) -> dict[str, Any]:
    """The flags it was trained with, as far as the algorithm still has them."""
    return {
        name: value
        for name, value in chosen.args.items()
        if name not in _SAID_ELSEWHERE
        and (known := algorithm.field(name)) is not None
        and value != known.default
        and known.problem_with(value) is None
    }
