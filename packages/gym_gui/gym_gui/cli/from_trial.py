"""`mosaic train --from-trial SWEEP[:N]`: train with the values of a trial."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import click

from gym_gui.cli.context import say
from gym_gui.cli.sweep import find_sweep
from gym_gui.services import run_configs
from gym_gui.services.run_configs import ConfigUnreadable
from gym_gui.services.sweeps import SweepUnreadable, config_of_trial, settings_of, trial_of
from gym_gui.services.trainer.errors import DaemonUnreachable, RunNotFound
from gym_gui.wording.run_view import short_id

if TYPE_CHECKING:
    from mosaic_wire.proto import trainer_pb2 as pb

    from gym_gui.services.analytics.studies import Trial
    from gym_gui.services.trainer.client import TrainerClient


def queue_trial(client: TrainerClient, word: str, options: dict[str, Any]) -> list[pb.Run]:
    """Queue runs with the values of the best trial of a sweep, or of the one after the colon; one run per seed."""
    name, _, number = word.partition(":")
    if number and not number.isdigit():
        raise click.UsageError(f"--from-trial {word}: the trial is a number: {name}:3")
    sweep = find_sweep(client, name)
    try:
        trial = trial_of(sweep, int(number) if number else None)
        config = config_of_trial(sweep, trial)
    except SweepUnreadable as error:
        raise click.ClickException(str(error)) from error
    values = ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in
                       trial.params.items())  # fmt: skip
    say(f"trial {trial.number} of {short_id(sweep.run_id)}: {values}")
    _use_the_trials_script(client, trial, config)
    _adjust(config, options)
    usual = [None] if settings_of(sweep).get("seeds") == [None] else [1]
    seeds = options["seeds"] or ([options["seed"]] if options["seed"] is not None else usual)
    key = options["idempotency_key"] or secrets.token_hex(16)
    runs = []
    for seed in seeds:
        config["metadata"]["worker"]["config"]["seed"] = seed
        config["run_name"] = (options["name"] or f"trial-{trial.number}-of-{short_id(sweep.run_id)}") + (
            f"-s{seed}" if len(seeds) > 1 else ""
        )
        try:
            answer = client.submit(config, idempotency_key=f"{key}-s{seed}")
        except DaemonUnreachable:
            answer = client.submit(config, idempotency_key=f"{key}-s{seed}")
        runs.append(answer.run)
    return runs


def _use_the_trials_script(client: TrainerClient, trial: Trial, config: dict[str, Any]) -> None:
    """Train the code that the trial ran, as `mosaic clone` does: where the file has changed, the copy of its run."""
    extras = config["metadata"]["worker"]["config"].get("extras") or {}
    if not extras.get("script_path"):
        return
    try:
        found = run_configs.config_of(client.get(next(iter(trial.run_ids), "")))
    except (RunNotFound, ConfigUnreadable):
        say(f"mosaic: the run of the trial is gone; whether {extras['script_path']} has changed since is not known")
        return
    trained = found.document["metadata"]["worker"]["config"]["extras"]
    extras.update({key: trained[key] for key in ("script_path", "script_sha256") if key in trained})
    for notice in found.notices:
        say(f"mosaic: {notice}")


def _adjust(config: dict[str, Any], options: dict[str, Any]) -> None:
    """What the command line says about the run, not about the algorithm."""
    worker = config["metadata"]["worker"]["config"]
    if options["total_timesteps"]:
        worker["total_timesteps"] = options["total_timesteps"]
    resources = {
        "cpus": None if options["cpus"] is None else {"requested": options["cpus"]},
        "gpus": options["gpus"], "memory_mb": options["memory_mb"], "max_wallclock_minutes": options["max_wallclock"],
    }  # fmt: skip
    scheduling = {"priority": options["priority"], "retries": options["retries"]}
    for key, given in (("resources", resources), ("scheduling", scheduling)):
        found = {name: value for name, value in given.items() if value is not None}
        config[key] = {**config.get(key, {}), **found}
    config["tags"] = [*config.get("tags", []), *options["tags"]]
